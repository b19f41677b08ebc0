"""Which relation a head's weights show best, by name, and how spread they are: every head of every model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from einops import einsum, rearrange
from torch import Tensor

from analyses.heads import DATA_SEED, SHAPES, TRANSLATORS
from workbench import record
from workbench.sites import in_part

if TYPE_CHECKING:
    from tasks.translate import Translate
    from tasks.two_relations import TwoRelations
    from workbench import Batch
    from workbench.checkpoints import Trained

Named = Mapping[str, Tensor]
DIGITS = "digits"
"""Rows that nothing reads in the last layer, where they are left out."""


def names(trained: dict[str, list[Trained]], two: TwoRelations, translate: Translate, n: int) -> pd.DataFrame:
    """A row a kind of model, trained model, part, layer, head, kind of row and name: the mean weight of that relation.

    weight: over the rows that have such an edge. spread: the row's entropy as a share of its greatest (1: uniform),
    over rows with two sources or more; the same for every name.
    """
    sampled = two.sample(n, DATA_SEED), translate.sample(n, DATA_SEED)
    batches = dict(
        zip((*SHAPES, *TRANSLATORS), [sampled[0]] * len(SHAPES) + [sampled[1]] * len(TRANSLATORS), strict=True)
    )
    rows = []
    for label, several in trained.items():
        batch = batches[label]
        asked = list(_asked(batch))
        for one in several:
            recording = record(one.model, batch, ["pattern"])
            for part, rows_of, mask, named in asked:
                n_layers = one.model.parts[part].n_layers
                for layer in range(n_layers - 1 if rows_of == DIGITS else n_layers):
                    pattern = recording[in_part(part, "pattern"), layer].double()
                    visible = one.model.sees(batch, part, layer)
                    place = {"model": label, "model_seed": one.seed, "part": part, "layer": layer, "rows": rows_of}
                    rows += [place | row for row in weighed(pattern, mask, named, visible)]
    return pd.DataFrame(rows)


def weighed(pattern: Tensor, rows: Tensor, named: Named, visible: Tensor) -> Iterator[dict[str, Any]]:
    """pattern [batch head dest source], rows [batch dest], named and visible [batch dest source] → a row a head and
    name, as in `names`."""
    several = (visible.sum(-1) > 1) & rows
    log = torch.where(pattern > 0, pattern, 1.0).log()
    entropy = -(pattern * log).sum(-1) / visible.sum(-1).clamp_min(2).double().log()[:, None]
    spread = einsum(entropy, several.double(), "batch head dest, batch dest -> head") / several.sum()
    for name, mask in named.items():
        edges = mask & visible & rows[:, :, None]
        total = einsum(pattern, edges.double(), "batch head dest source, batch dest source -> head")
        for head, weight in enumerate((total / edges.any(-1).sum()).tolist()):
            yield {"head": head, "name": name, "weight": weight, "spread": float(spread[head])}


def _asked(batch: Batch) -> Iterator[tuple[str, str, Tensor, Named]]:
    """Part of the model, kind of row, its rows, and what its edges are called."""
    if batch.context is None:
        role, length = batch.roles, batch.tokens.shape[1]
        sources = {
            name: _every(role[name], length) for name in ("first_fact", "second_fact", "first_match", "second_match")
        }
        near = _near(len(batch), length)
        yield "", DIGITS, role["digits"], {"its letter": batch.relations["previous"], "itself": near["itself"]}
        yield (
            "",
            "last",
            role["last"],
            {**{_WORDS[name]: mask for name, mask in sources.items()}, "itself": near["itself"]},
        )
        return
    aligned, agrees = (batch.alignments[name] for name in ("aligned", "agrees"))
    yield (
        "cross",
        "predicting a word",
        batch.roles["words"],
        {"the word translated": aligned, "the noun agreed with": agrees},
    )
    source = batch.context
    near = _near(len(source), source.tokens.shape[1])
    own = einsum(aligned.double(), agrees.double(), "batch dest one, batch dest other -> batch one other") > 0
    agreeing = {"its noun": own, **{name: near[name] for name in ("itself", "the word before", "the word after")}}
    yield "encoder", "adjectives", source.roles["adjectives"], agreeing
    yield "encoder", "verb", source.roles["verb"], agreeing
    near = _near(len(batch), batch.tokens.shape[1])
    begin = _every(batch.roles["begin"], batch.tokens.shape[1])
    kept = {"itself": near["itself"], "the word before": near["the word before"], "<begin>": begin}
    yield "decoder", "predicting a word", batch.roles["words"] & ~batch.roles["begin"], kept


_WORDS = {
    "first_fact": "the first fact",
    "second_fact": "the second fact",
    "first_match": "the letter in the first list",
    "second_match": "the letter in the second list",
}


def _every(sources: Tensor, dests: int) -> Tensor:
    """Every position ← these sources [batch source]."""
    return sources[:, None, :].expand(-1, dests, -1)


def _near(n: int, length: int) -> dict[str, Tensor]:
    """Edges by how far away the source is [batch dest source]."""
    place = torch.arange(length)
    step = rearrange(place, "source -> 1 source") - rearrange(place, "dest -> dest 1")
    steps = {"itself": 0, "the word before": -1, "the word after": 1}
    return {name: (step == far).expand(n, -1, -1) for name, far in steps.items()}


def best(names: pd.DataFrame) -> pd.DataFrame:
    """Each head's best name in each kind of row: the name with the most weight."""
    keys = ["model", "model_seed", "part", "layer", "head", "rows"]
    return names.loc[names.groupby(keys, sort=False)["weight"].idxmax()].reset_index(drop=True)
