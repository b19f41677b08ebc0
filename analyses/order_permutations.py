"""Permuted inputs: do the outputs permute with them, and does anything else change?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from workbench import ModelConfig, Transformer
from workbench.batch import Batch
from workbench.checkpoints import Trained
from workbench.models.config import Mask

SAME = 5e-6
"""Rounding: a change of at most this share of the largest number is none (float32)."""
CHANGED = 1e-3
"""A change of more than this share of the largest number is one."""
SINGLE = "one causal layer, last position"
N_PERMUTATIONS = 16
SENTENCES = ("the woman ate the raccoon", "the raccoon ate the woman")
LETTERS = dict(zip(("the", "woman", "ate", "raccoon"), range(4), strict=True))
"""The words' tokens; which ones they are does not matter."""


def measured(trained: Mapping[str, Sequence[Trained]], batch: Batch) -> pd.DataFrame:
    """A row a model: model, trained (or as it was initialised), model_seed, and the largest and the smallest change
    over permutations, each the largest over examples and positions, as a share of the largest logit.

    Encoders of the other kinds of position and the single causal layer have the weights that they were initialised
    with.
    """
    rows = []
    for label, several in trained.items():
        for one in several:
            fresh = Transformer(one.model.config, seed=one.seed)
            for known, model in ((True, one.model), (False, fresh)):
                rows.append(_row(label, known, one.seed, disorder(model, batch.tokens)))
                if label.startswith("encoder"):
                    rows.append(_row(f"woman: {label}", known, one.seed, [woman(model)]))
    bare = trained["encoder, none"]
    for one in bare:
        fixed = disorder(Transformer(single(one.model.config), seed=one.seed), batch.tokens, last_only=True)
        rows.append(_row(SINGLE, False, one.seed, fixed))
        for kind in ("sinusoidal", "relative", "rotary"):
            config = one.model.config.model_copy(update={"positions": kind})
            rows.append(_row(f"encoder, {kind}", False, one.seed, disorder(filled(config, one.seed), batch.tokens)))
    return pd.DataFrame(rows).astype({"model": "category"})


def single(encoder: ModelConfig) -> ModelConfig:
    """The encoder's first layer alone, under a causal mask."""
    return encoder.model_copy(update={"n_layers": 1, "masks": (Mask(),)})


@torch.no_grad()
def filled(config: ModelConfig, seed: int) -> Transformer:
    """An initialised model; the numbers per offset, which begin at 0 and tell nothing yet, drawn from N(0, 1)."""
    model, generator = Transformer(config, seed=seed), torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.endswith("W_rel"):
            weight.normal_(generator=generator)
    return model


@torch.no_grad()
def disorder(model: Transformer, tokens: Tensor, last_only: bool = False) -> list[float]:
    """For each of 16 permutations, the largest difference between the outputs of permuted tokens [batch pos] and the
    permuted outputs, over the largest logit. last_only: the last position, which stays where it is."""
    clean = model(tokens)
    out = []
    for order in permutations(tokens.shape[1] - last_only):
        full = torch.cat([order, torch.tensor([tokens.shape[1] - 1])]) if last_only else order
        change = (model(tokens[:, full]) - clean[:, full]).abs()
        out.append(float(change[:, -1:].max() if last_only else change.max()) / float(clean.abs().max()))
    return out


def permutations(length: int) -> list[Tensor]:
    """Orders of so many places, none of them the identity: half swap two places, half are drawn whole."""
    generator = torch.Generator().manual_seed(0)
    found: list[Tensor] = []
    while len(found) < N_PERMUTATIONS:
        order = torch.arange(length)
        drawn = torch.randperm(length, generator=generator)
        if len(found) % 2:
            order = drawn
        else:
            order[drawn[:2]] = order[drawn[:2].flip(0)]
        if not torch.equal(order, torch.arange(length)):
            found.append(order)
    return found


@torch.no_grad()
def woman(model: Transformer) -> float:
    """How far the logits at "woman" differ between the two sentences, over the largest of them."""
    first, second = (model(torch.tensor([[LETTERS[word] for word in words.split()]]))[0] for words in SENTENCES)
    a, b = (out[words.split().index("woman")] for out, words in zip((first, second), SENTENCES, strict=True))
    return float((a - b).abs().max() / a.abs().max())


def _row(label: str, trained: bool, seed: int, changes: Sequence[float]) -> dict:
    return {
        "model": label, "trained": trained, "model_seed": seed, "largest": max(changes), "smallest": min(changes)
    }  # fmt: skip
