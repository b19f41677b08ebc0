"""What `context` measures: how far a token's vectors are apart in two contexts, and answers under cuts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses.context import DATA_SEED, ENCODER, KINDS, LAYERS, of_masked, of_pronoun
from workbench import Batch, Study, joined, record, run_study
from workbench.batch import UNREAD
from workbench.checkpoints import Trained
from workbench.examples import Examples

SIDES = ("right", "left")
ROLES = {
    "pronoun": ("it", "nouns", "verb", "last"),
    "masked": ("mask before", "words before", "clue", "mask after"),
}
"""Positions at which vectors are compared. The verb and the clues are what differs; `before` is left of all that
differs, and `mask after` the mask that stands to the right of its clue."""


@dataclass(frozen=True)
class Measured:
    """apart: a row a task, kind, model seed, role and stage (`vectors_apart`). pronoun, masked: results; the models of
    `masked` are a kind and a side: "encoder, told by the right". studies, n: what was done, to how many sentences."""

    trained: Mapping[str, Mapping[str, Sequence[Trained]]]
    tasks: Mapping[str, Any]
    apart: pd.DataFrame
    pronoun: pd.DataFrame
    masked: pd.DataFrame
    studies: Mapping[str, Study]
    sizes: Mapping[str, float]


def measured(
    tasks: Mapping[str, Any], trained: Mapping[str, Mapping[str, Sequence[Trained]]], n: int, *, progress: bool
) -> Measured:
    """Everything, on `n` sentences of each task (of the masked, those of them that are `even_sided`)."""
    few = min(n, 1000)
    apart = pd.concat([
        vectors_apart(one.model, task.sample(few, DATA_SEED), task, name).assign(kind=kind, model_seed=one.seed)
        for name, task in tasks.items()
        for kind in KINDS
        for one in trained[name][kind]
    ], ignore_index=True)  # fmt: skip
    plan = of_pronoun(n // 2)
    pronoun, _ = run_study(plan, tasks["pronoun"], trained["pronoun"], progress=progress)
    # Four decimals of a weight say all that is read off it, and keep the rows small.
    pronoun[list(plan.weights)] = pronoun[list(plan.weights)].round(4)
    batch = even_sided(tasks["masked"].sample(n, DATA_SEED))
    frames, studies = [], {"pronoun": plan}
    for kind in KINDS:
        studies[f"masked, {kind}"] = own = of_masked(kind, len(batch))
        for side in SIDES:
            asked = Examples(f"told by the {side}", with_sides(asking(batch, side)))
            frames.append(run_study(own, asked, {label(kind, side): trained["masked"][kind]}, progress=progress)[0])
    sizes = {"pronoun": n // 2, "masked": len(batch), "drawn": n, "apart": few, **_cut_a_row(batch)}
    return Measured(trained, tasks, apart, pronoun, joined(frames), studies, sizes)


def label(kind: str, side: str) -> str:
    """What a kind of model is called where masks of one side are read."""
    return f"{kind}, told by the {side}"


def vectors_apart(model: Any, batch: Batch, task: Any, name: str) -> pd.DataFrame:
    """A row a role and stage (0 the embedding, then after each layer): how far the vectors of one position are apart in
    a sentence and in its counterfactual. `distance`: Euclid's, over the mean length of the two; `cosine`: 1 − their
    cosine; both are means over positions of an example, then over examples. `largest`: the largest difference of any
    number of any of these vectors."""
    other = task.corrupt(batch, seed=1)
    masks = _compared(name, batch, batch.tokens != other.tokens)
    sites = [("resid_pre", 0), *(("resid_post", layer) for layer in range(LAYERS[name]))]
    one, two = (record(model, each, sites) for each in (batch, other))
    rows = []
    for stage, key in enumerate(sites):
        a, b = one[key].double(), two[key].double()
        lengths = a.norm(dim=-1), b.norm(dim=-1)
        distance = (a - b).norm(dim=-1) / ((lengths[0] + lengths[1]) / 2)
        cosine = 1 - torch.nn.functional.cosine_similarity(a, b, dim=-1)
        largest = (a - b).abs().amax(-1)
        for role, mask in masks.items():
            rows.append({"task": name, "role": role, "stage": stage, "distance": _mean(distance, mask),
                         "cosine": _mean(cosine, mask), "largest": float(largest[mask].max())})  # fmt: skip
    return pd.DataFrame(rows)


def even_sided(batch: Batch) -> Batch:
    """The examples in which each mask's clue is no further than the nearer end of the sentence, so that equally many
    sources can be cut on either side of the mask, the clue among them."""
    at = torch.arange(batch.tokens.shape[1])
    both = torch.minimum(at, at.flip(0))
    near = (at[:, None] - at[None, :]).abs() <= both[:, None]
    far = batch.relations["told_by"] & ~near
    return batch.select(~far.flatten(1).any(1))


def asking(batch: Batch, side: str) -> Batch:
    """The batch with labels at the masks told by that side alone, which have the role `asked`."""
    asked = batch.roles[f"by_{side}"]
    return replace(batch, labels=batch.labels.masked_fill(~asked, UNREAD), roles={**batch.roles, "asked": asked})


def with_sides(batch: Batch) -> Batch:
    """The batch with relations for what stands right and left of each position: `right`, `left`, and of both equally
    many, the nearest ones: `near_right`, `near_left`."""
    return batch.with_relations(**{name: mask.expand(len(batch), -1, -1) for name, mask in _sides(batch)})


def _sides(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    at = torch.arange(batch.tokens.shape[1])
    offset = at[None, :] - at[:, None]
    near = offset.abs() <= torch.minimum(at, at.flip(0))[:, None]
    for side, mask in {"right": offset > 0, "left": offset < 0}.items():
        yield side, mask
        yield f"near_{side}", mask & near


def _cut_a_row(batch: Batch) -> dict[str, float]:
    """How many sources each cut takes from the row of a mask, in the mean, by the side that tells it."""
    out = {}
    for told in SIDES:
        rows = batch.roles[f"by_{told}"].double()
        for name, mask in _sides(batch):
            out[f"{told}, {name}"] = float((rows @ mask.double().sum(1)).sum() / rows.sum())
    return out


def _compared(name: str, batch: Batch, differs: Tensor) -> dict[str, Tensor]:
    """The positions of each of `ROLES`."""
    before = (differs.cumsum(1) == 0) & ~differs
    if name == "pronoun":
        return {role: batch.roles[role] for role in ROLES[name]}
    masked = batch.roles["masked"]
    found = {"mask before": masked & before, "words before": before & ~masked, "clue": differs,
             "mask after": batch.roles["by_left"]}  # fmt: skip
    return {role: found[role] for role in ROLES[name]}


def _mean(values: Tensor, mask: Tensor) -> float:
    """The mean over positions of each example that has any, then over examples."""
    counts = mask.sum(1)
    return float(((values * mask).sum(1) / counts)[counts > 0].mean())


def before(name: str) -> tuple[str, ...]:
    """The roles that stand left of everything that differs."""
    return ("it", "nouns") if name == "pronoun" else ("mask before", "words before")


def kinds_of(measured: Measured) -> list[str]:
    """The models of the masked task, as they are called in its results."""
    return [label(kind, side) for kind in (ENCODER, *[kind for kind in KINDS if kind != ENCODER]) for side in SIDES]
