"""The lecture's figures, drawn from what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analyses.lecture_table import CONTROLS, ONE, ROWS, TWO
from workbench import record
from workbench.figures import (
    accuracy_under_intervention,
    pattern_grids,
    route,
    to_png,
    to_svg,
    training_curves,
    weights_by_role,
)

if TYPE_CHECKING:
    from analyses.lecture_evidence import Evidence

SEQUENCE = "c 5 a 2 f 7 b 0 a"
LAYERS = ("layer 1", "layer 2")
LABELS = {
    "clean": "two layers, nothing cut",
    "cut-answer": "layer 2, last: cut the matching digit",
    "cut-other": "layer 2, last: cut a different digit",
    "cut-largest": "layer 1, last: cut its largest weight",
    "cut-largest-control": "layer 1, last: cut another of its class",
    "uniform": "layer 1, last: uniform weights",
    "no-update": "layer 1, last: no attention update",
    "cut-hidden": "layer 1: cut matching digit ← its letter",
    "cut-hidden-control": "layer 1: cut a different digit ← its letter",
    ONE: "one layer, nothing cut",
}
GUESSES = {
    "any": "guess: any digit",
    "seen": "guess: a digit of the sequence",
    "mode": "guess: the most frequent digit",
}


def figures(evidence: Evidence, measured: pd.DataFrame) -> dict[str, bytes]:
    """Every figure as SVG and PNG, by file name."""
    drawn = {
        "patterns": _patterns(evidence),
        "route": _route(evidence),
        "accuracy": _accuracy(evidence, measured),
        "training": _training(evidence),
        "weights": weights_by_role(evidence.weights, layer_names=LAYERS, title="Mean recorded weight, two layers"),
    }
    files = {}
    for name, figure in drawn.items():
        files[f"{name}.svg"], files[f"{name}.png"] = to_svg(figure), to_png(figure)
    return files


def _places(evidence: Evidence) -> dict[str, int]:
    batch = evidence.task.encode(SEQUENCE)
    return {name: int(batch.role(name)[0].nonzero()) for name in ("last", "answer", "match")}


def _patterns(evidence: Evidence):  # type: ignore[no-untyped-def]
    batch = evidence.task.encode(SEQUENCE)
    one = evidence.trained[TWO][0]
    recording, words, at = record(one.model, batch, ["pattern"]), batch.words(0), _places(evidence)
    return pattern_grids(
        {name: recording["pattern", layer][0, 0] for layer, name in enumerate(LAYERS)},
        words,
        words,
        visible=one.model.visible(0, batch.tokens)[0],
        boxed={"layer 1": [(at["answer"], at["match"])], "layer 2": [(at["last"], at["answer"])]},
        title=f"Attention weights, model seed {one.seed}, one sequence",
    )


def _route(evidence: Evidence):  # type: ignore[no-untyped-def]
    words, at = evidence.task.encode(SEQUENCE).words(0), _places(evidence)
    copied = [(pos + 1, pos, words[pos]) for pos in range(0, len(words) - 1, 2)]
    return route(
        words,
        [copied, [(at["last"], at["answer"], words[at["answer"]])]],
        layer_names=LAYERS,
        title="The route that the patterns suggest",
    )


def _accuracy(evidence: Evidence, measured: pd.DataFrame):  # type: ignore[no-untyped-def]
    rows = [row for row in (*ROWS, *CONTROLS) if row.metric == "accuracy" and row.model != "guess"]
    names = {row.id: ONE if row.model == ONE else row.condition for row in rows}
    summary = measured[measured["id"].isin(names)].assign(condition=lambda frame: frame["id"].map(names))
    ran = evidence.frame[evidence.frame["skipped"].isna()]
    seeds = (
        ran.groupby(["model", "model_seed", "condition"], observed=True)["accuracy"]
        .mean()
        .rename("value")
        .reset_index()
    )
    seeds["condition"] = [
        ONE if model == ONE else c for model, c in zip(seeds["model"], seeds["condition"], strict=True)
    ]
    return accuracy_under_intervention(
        summary,
        seeds,
        {GUESSES[name]: value for name, value in evidence.exact.items()},
        order=[*(label for label in LABELS if label in set(summary["condition"]))],
        labels=LABELS,
        interval="mean, 95% interval over models and sequences",
        title="Accuracy under intervention",
    )


def _training(evidence: Evidence):  # type: ignore[no-untyped-def]
    curves = [
        pd.DataFrame(one.curve).assign(model=label, model_seed=one.seed)
        for label, several in evidence.trained.items()
        for one in several
    ]
    return training_curves(pd.concat(curves, ignore_index=True), title="Training")
