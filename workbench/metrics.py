"""Metrics: (logits, batch) → one value per example, in float32 or better.

`logits` are [batch pos d_vocab], or [batch read d_vocab] as `run(..., positions="read")` gives them. Each metric is the
mean over the positions that are read in an example (labels ≠ −100); an example with none raises.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.batch import UNREAD, Batch
from workbench.rows import exact

MEANING = 1
"""Raised by hand where a metric of the same name comes to mean another number."""


def accuracy(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
    """1 where the largest logit is the label's, else 0; ties are wrong. Unit: fraction of the example's read
    positions."""
    rows, labels, read = _at_labels(logits, batch)
    asked = rows.gather(-1, labels[..., None])
    rivals = rows.scatter(-1, labels[..., None], -torch.inf).amax(-1, keepdim=True)
    return _mean((asked > rivals)[..., 0].to(rows.dtype), read)


def log_prob(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
    """log softmax(logits)[label]. Unit: nats."""
    rows, labels, read = _at_labels(logits, batch)
    return _mean(torch.log_softmax(rows, -1).gather(-1, labels[..., None])[..., 0], read)


def loss(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
    """Cross-entropy, −log softmax(logits)[label]. Unit: nats."""
    return -log_prob(logits, batch)


def logit_margin(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
    """The label's logit less the largest other logit. Unit: logits."""
    rows, labels, read = _at_labels(logits, batch)
    rivals = rows.scatter(-1, labels[..., None], -torch.inf).amax(-1)
    return _mean(rows.gather(-1, labels[..., None])[..., 0] - rivals, read)


def exact_match(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
    """1 where the largest logit is the label's at every read position of the example, else 0; ties are wrong. Unit:
    fraction of examples."""
    return (accuracy(logits, batch) == 1).to(exact(logits).dtype)


def rank(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
    """The label's place among all tokens by logit, 1 for the largest; ties count half, as in Mann and Whitney's
    statistic (1947). Unit: places."""
    rows, labels, read = _at_labels(logits, batch)
    asked = rows.gather(-1, labels[..., None])
    larger, equal = (rows > asked).sum(-1), (rows == asked).sum(-1) - 1
    return _mean((1 + larger + equal / 2).to(rows.dtype), read)


def kl_to_clean(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch, clean: Tensor) -> Float[Tensor, "batch"]:
    """Kullback–Leibler divergence Σ p log(p / q) of the distribution p without interventions from q with them
    (Kullback and Leibler 1951). Unit: nats; 0 where nothing changed."""
    mine, theirs, read = _two(logits, batch, clean)
    return _mean((theirs.exp() * (theirs - mine)).sum(-1).clamp_min(0), read)


def tv_to_clean(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch, clean: Tensor) -> Float[Tensor, "batch"]:
    """Total variation distance Σ |p − q| / 2 between the distributions with and without interventions. Unit: fraction,
    0 where nothing changed, 1 where they share nothing."""
    mine, theirs, read = _two(logits, batch, clean)
    return _mean((mine.exp() - theirs.exp()).abs().sum(-1) / 2, read)


def logit_diff(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch, other: Batch) -> Float[Tensor, "batch"]:
    """The label's logit less the logit of the other batch's label at the same position: logit[y] − logit[y_other]
    (Wang et al. 2022, "logit difference"). Unit: logits; 0 where both labels are the same token.

    other: a matched batch, such as `task.corrupt(batch, seed)`. Raises ValueError where it reads other positions, in
    which example i of it does not stand beside example i of the batch.
    """
    if other.labels.shape != batch.labels.shape or bool(((other.labels != UNREAD) != (batch.labels != UNREAD)).any()):
        raise ValueError(
            f"the other batch reads other positions: labels {list(other.labels.shape)} beside "
            f"{list(batch.labels.shape)}, or read elsewhere; give a batch matched example by example"
        )
    rows, labels, read = _at_labels(logits, batch)
    others = other.labels.to(labels.device).gather(1, batch.read_positions()).clamp_min(0)
    return _mean((rows.gather(-1, labels[..., None]) - rows.gather(-1, others[..., None]))[..., 0], read)


METRICS = {
    "accuracy": accuracy,
    "exact_match": exact_match,
    "log_prob": log_prob,
    "loss": loss,
    "logit_margin": logit_margin,
    "rank": rank,
}
"""(logits, batch) → [batch]."""

AGAINST_CLEAN = {"kl_to_clean": kl_to_clean, "tv_to_clean": tv_to_clean}
"""(logits, batch, logits without interventions) → [batch]."""


def _two(logits: Tensor, batch: Batch, clean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities with and without interventions at the positions read, and the mask of those."""
    mine, _, read = _at_labels(logits, batch)
    theirs, _, _ = _at_labels(clean, batch)
    return torch.log_softmax(mine, -1), torch.log_softmax(theirs, -1), read


def _at_labels(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [batch read d_vocab], labels and a mask [batch read] at the positions read."""
    index = batch.read_positions()
    labels = batch.labels.gather(1, index)
    if logits.shape[:2] == batch.tokens.shape:
        rows = logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))
    elif logits.shape[:2] == index.shape:
        rows = logits
    else:
        raise ValueError(
            f"logits {list(logits.shape)} belong to another batch: this one has {list(batch.tokens.shape)} positions, "
            f"of which {index.shape[1]} are read"
        )
    rows = exact(rows)
    # A row with fewer reads than the longest repeats its first in the index: count each position once.
    first = torch.arange(index.shape[1], device=index.device)[None, :] == 0
    repeated = (index == index[:, :1]) & ~first
    read = (labels != UNREAD) & ~repeated
    if not read.any(1).all():
        empty = (~read.any(1)).nonzero().flatten().tolist()
        raise ValueError(f"nothing is read in examples {empty[:8]}: every label is -100")
    return rows, labels.clamp_min(0), read


def _mean(values: Tensor, read: Tensor) -> Tensor:
    return (values.masked_fill(~read, 0.0)).sum(1) / read.sum(1)
