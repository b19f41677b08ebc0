"""An attention pattern that maps atoms, and what cutting it is worth: a published model of chemical reactions."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses.rxnmapper_batch import COPIES, Masked, batch_of, masked
from analyses.rxnmapper_cuts import (
    MEASURES,
    RANDOM,
    TOP,
    TOP_IN_COPY,
    Condition,
    conditions,
    cut_values,
    measured,
    random_edges,
    top_edges,
)
from analyses.rxnmapper_mapping import agreement, baselines, mapped, table
from analyses.rxnmapper_model import LAYER_AND_HEAD, checked, load, patterns
from analyses.rxnmapper_reactions import reactions
from analyses.rxnmapper_report import write
from analyses.rxnmapper_tokens import read_vocabulary
from workbench import Batch, Edges, cut, record, wrap
from workbench.devices import one_thread

SEED = 0
PROTOTYPE = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
"""The reaction of the wheel's README; taken to be the one that a prototype of this analysis read."""

QUICK_REACTIONS, QUICK_LAYERS = 6, (0, 5, 10)


@dataclass(frozen=True)
class Evidence:
    """Everything that the report is written from.

    reactions: name → reaction SMILES. batch: the reactions, nothing masked; made: their masked copies. heads: layer,
    head and what one pass without masks shows of each: `agreement`, `hetero`, `one_to_one`, `used_once`, and `weight`,
    the mean over product atoms of the weight on all reactant atoms together. frame: the results frame, a row per
    condition × reaction; its metric `agreement` (clean) is the mapping head's. top_weight: the mean
    weight of the edges that the mapping reads. same_top: the share of masked atoms whose top reactant atom is the same
    with and without the mask. seconds: how long the conditions took, summed, each on one thread. seed: of the masks
    and of the random edges. prototype: see `prototype_reading`.
    """

    reactions: dict[str, str]
    batch: Batch
    made: Masked
    conditions: tuple[Condition, ...]
    heads: pd.DataFrame
    baselines: dict[str, float]
    frame: pd.DataFrame
    same_top: float
    top_weight: float
    prototype: pd.DataFrame
    seed: int
    seconds: float
    quick: bool


def main(
    *, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True, place: Path | str | None = None
) -> Path:
    """Maps, cuts, measures, and writes `out/rxnmapper/`; returns that folder.

    seeds: the published model is one; 1 or nothing. quick: 6 reactions and 3 layers, to see that all of it runs; its
    figures mean nothing. place: the folder of runs, where the fetched model lies and values are kept (default
    `$WORKBENCH_HOME`, or `./runs`).

    Raises FileNotFoundError, with the command that fetches it, where the model is not there, and ValueError for more
    seeds than one.
    """
    if seeds not in (None, 1):
        raise ValueError(f"seeds={seeds} was asked; there is one published model, so leave it out")
    return write(Path(out) / "rxnmapper", measure(place, quick, progress))


def measure(place: Path | str | None, quick: bool, progress: bool) -> Evidence:
    """Everything that is measured; conditions kept from a run before are read."""
    vocabulary = read_vocabulary(checked(place) / "vocab.txt")
    chosen = dict(list(reactions().items())[: QUICK_REACTIONS if quick else None])
    batch = batch_of(list(chosen.values()), vocabulary)
    made = masked(batch, copies=COPIES, seed=SEED)
    with one_thread():
        model = load(place)
        shown = clean_patterns(model, batch)
        made, same_top = with_edges(model, made, batch, shown["at"])
        reading = prototype_reading(model, vocabulary)
    layers = QUICK_LAYERS if quick else range(model.config.num_hidden_layers)
    several = conditions(list(layers), model.config.num_attention_heads)
    if progress:
        print(f"rxnmapper: {len(several)} conditions on {len(made.batch)} masked copies", file=sys.stderr, flush=True)
    values = measured(made, several, place=place, progress=progress)
    return Evidence(
        reactions=chosen,
        batch=batch,
        made=made,
        conditions=several,
        heads=shown["heads"][shown["heads"]["layer"].isin(list(layers))].reset_index(drop=True),
        baselines=baselines(batch),
        frame=results_frame(values, several, shown["agreement"]),
        same_top=same_top,
        top_weight=shown["top_weight"],
        prototype=reading,
        seconds=sum(float(one["seconds"].iloc[0]) for one in values.values()),
        quick=quick,
        seed=SEED,
    )


def clean_patterns(model: Any, batch: Batch) -> dict[str, Any]:
    """One pass, nothing masked, nothing cut: `heads`, a row a head (see `Evidence`); and of the mapping head `at`
    [batch dest], `agreement` [batch], and `top_weight`, the mean weight of the edges that the mapping reads."""
    layer, head = LAYER_AND_HEAD
    weights = patterns(model, batch)
    at = torch.stack([mapped(one, batch) for one in weights])
    edges, atoms = batch.edges("product", "reactant"), batch.role("product").sum(1)
    per_head = torch.stack([(one * edges[:, None]).sum((-2, -1)).double() / atoms[:, None] for one in weights])
    heads = table(at, batch)
    heads["weight"] = per_head.mean(1).flatten().numpy()
    largest = (weights[layer][:, head] * edges).amax(-1).sum(1).double() / atoms
    return {
        "heads": heads,
        "at": at[layer][:, head],
        "agreement": agreement(at[layer], batch)[:, head],
        "top_weight": float(largest.mean()),
    }


def with_edges(model: Any, made: Masked, batch: Batch, at: Tensor) -> tuple[Masked, float]:
    """The masked copies with the mapping head's edges as relations, and `Evidence.same_top`.

    "top edge": to the source with the highest weight in the reaction without masks, which the published mapping reads;
    "random edge": another reactant atom of the same row; "top edge of the copy": to the source with the highest weight
    when the copy itself is run.
    """
    layer, head = LAYER_AND_HEAD
    recording = record(wrap(model), made.batch, [("pattern", layer)], chunk_size=64)
    here = mapped(recording["pattern", layer][:, head : head + 1], made.batch)[:, 0]
    relations = {
        TOP: top_edges(at)[made.reaction],
        RANDOM: random_edges(at, batch, seed=SEED)[made.reaction],
        TOP_IN_COPY: top_edges(here),
    }
    hidden = made.batch.role("masked")
    same = float((here == at[made.reaction])[hidden].double().mean())
    return replace(made, batch=made.batch.with_relations(**relations)), same


def prototype_reading(model: Any, vocabulary: tuple[str, ...]) -> pd.DataFrame:
    """The prototype's reaction, one atom masked at a time: loss clean, with the mapping head cut in its layer, and with
    all heads cut; once between atoms, as everywhere here, once from all that follows `>>` to all before it, with
    [CLS], [SEP], bonds and brackets."""
    batch = batch_of([PROTOTYPE], vocabulary)
    made = masked(batch, copies=int(batch.role("product").sum()), seed=SEED)
    tokens = made.batch.tokens
    before = (tokens == vocabulary.index(">>")).cumsum(1) == 0
    after = ~before & (tokens != vocabulary.index(">>"))
    made = replace(made, batch=made.batch.with_roles(before=before, after=after))
    wrapped, rows = wrap(model), []
    for what, dest, source in (("atoms", "product", "reactant"), ("whole sides", "after", "before")):
        layer, head = LAYER_AND_HEAD
        everywhere = [
            cut(Edges(layer=each, dest=dest, source=source)) for each in range(model.config.num_hidden_layers)
        ]
        lists = {"clean": [], "head": [cut(Edges(layer=layer, head=head, dest=dest, source=source))], "all": everywhere}
        rows.append(
            {"cut between": what} | {name: cut_values(wrapped, made, one)["loss"][0] for name, one in lists.items()}
        )
    return pd.DataFrame(rows)


def results_frame(values: dict[str, pd.DataFrame], several: tuple[Condition, ...], right: Tensor) -> pd.DataFrame:
    """The results frame that `workbench.results` reads: one model, an example is a reaction.

    right [reaction]: the mapping head's agreement. A condition `halfway` holds, per reaction, the mean of its loss
    clean and with everything cut: what a cut has to pass to be worth half of all.
    """
    cells = {one.label: values[one.label][list(MEASURES)] for one in several}
    cells["halfway"] = (cells["clean"][["loss"]] + cells["all"][["loss"]]) / 2
    shown = {"clean": right.numpy()}
    frames = [
        cell.assign(condition=label, example=range(len(cell)), agreement=shown.get(label, float("nan")))
        for label, cell in cells.items()
    ]
    frame = pd.concat(frames, ignore_index=True).assign(model="rxnmapper", model_seed=0, skipped=None)
    frame["condition"] = pd.Categorical(frame["condition"], categories=list(cells))
    return frame.astype({"model": "category", "skipped": "category", "agreement": float, "accuracy": float})
