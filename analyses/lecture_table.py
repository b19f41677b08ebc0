"""The rows of the lecture's table: what is measured, what the lecture says, whether we agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench import contrast

TWO, ONE = "two layers", "one layer"


@dataclass(frozen=True)
class Row:
    """A measurement: its id, what it is, where it is found in the results frame; the lecture's figure as it prints it,
    as a fraction, and half of its last digit."""

    id: str
    statement: str
    said: str
    lecture: float
    half: float
    metric: str = "accuracy"
    condition: str = "clean"
    model: str = TWO


ROWS = (
    Row("base-2", "two layers, nothing cut: accuracy", "100%", 1.0, 0.005),
    Row("base-1", "one layer, nothing cut: accuracy", "42%", 0.42, 0.005, model=ONE),
    Row("guess-any", "guess any digit: accuracy", "1 in 8", 0.125, 0.0005, model="guess"),
    Row("guess-seen", "guess the digit of a random pair of the sequence: accuracy", "35%", 0.35, 0.005, model="guess"),
    Row(
        "guess-mode",
        "guess the sequence's most frequent digit, ties at random: accuracy",
        "43%",
        0.43,
        0.005,
        model="guess",
    ),
    Row("prev", "layer 1: weight that each digit gives the letter just before it", "0.99", 0.99, 0.005, metric="prev"),
    Row(
        "match", "layer 2: weight that the last position gives the matching digit", "0.99", 0.99, 0.005, metric="match"
    ),
    Row(
        "spread", "layer 1: weight that the last position gives each digit", "about 0.17", 0.17, 0.005, metric="spread"
    ),
    Row(
        "cut-answer",
        "layer 2, last position: cut the matching digit: accuracy",
        "14%",
        0.14,
        0.005,
        condition="cut-answer",
    ),
    Row(
        "cut-other",
        "layer 2, last position: cut a different digit: accuracy",
        "100%",
        1.0,
        0.005,
        condition="cut-other",
    ),
    Row(
        "cut-largest",
        "layer 1, last position: cut its largest weight: accuracy",
        "100%",
        1.0,
        0.005,
        condition="cut-largest",
    ),
    Row(
        "uniform",
        "layer 1, last position: all its weights made uniform: accuracy",
        "100%",
        1.0,
        0.005,
        condition="uniform",
    ),
    Row(
        "no-update",
        "layer 1, last position: attention update removed: accuracy",
        "100%",
        1.0,
        0.005,
        condition="no-update",
    ),
    Row(
        "cut-hidden",
        "layer 1: cut the weight that the matching digit gives its own letter: accuracy",
        "36%",
        0.36,
        0.005,
        condition="cut-hidden",
    ),
    Row(
        "unseen-letter",
        "layer 2: weight that the last position gives the earlier copy of its letter",
        "0.1%",
        0.001,
        0.0005,
        metric="unseen-letter",
    ),
)

CONTROLS = (
    Row(
        "cut-largest-control",
        "layer 1, last position: cut another source of the largest one's class: accuracy",
        "",
        float("nan"),
        0.0,
        condition="cut-largest-control",
    ),
    Row(
        "cut-hidden-control",
        "layer 1: cut the weight that a different digit gives its own letter: accuracy",
        "",
        float("nan"),
        0.0,
        condition="cut-hidden-control",
    ),
    Row(
        "largest-weight", "layer 1: the last position's largest weight", "", float("nan"), 0.0, metric="largest-weight"
    ),
    Row(
        "hidden-weight",
        "layer 1: weight that the matching digit gives its own letter",
        "",
        float("nan"),
        0.0,
        metric="hidden-weight",
    ),
)


def table(frame: pd.DataFrame, guesses: Mapping[str, float]) -> pd.DataFrame:
    """All measurements, the controls among them, with every count and the range over model seeds."""
    rows = []
    for row in (*ROWS, *CONTROLS):
        known = {"id": row.id, "statement": row.statement, "lecture": row.lecture}
        if row.model == "guess":
            exact = guesses[row.id.removeprefix("guess-")]
            found: dict[str, Any] = {
                "estimate": exact,
                "low": exact,
                "high": exact,
                "interval": "exact, by enumeration",
                "n_models": 0,
            }
        else:
            one = contrast(frame, row.condition, None, row.metric, row.model).iloc[0]
            found = {name: one[name] for name in FOUND}
        rows.append(known | found | {"verdict": _agreement(row, float(found["estimate"]))})
    out = pd.DataFrame(rows)[["id", "statement", "lecture", *FOUND, "verdict"]]
    return out.astype(dict.fromkeys(("n_models", "n_examples", "planned", "run", "skipped"), "Int64"))


FOUND = [
    "estimate",
    "low",
    "high",
    "interval",
    "n_models",
    "n_examples",
    "planned",
    "run",
    "skipped",
    "seed_low",
    "seed_high",
]


def _agreement(row: Row, estimate: float) -> str:
    """Whether the estimate lies within the lecture's figure ± half its last digit; rounding at the ends is forgiven."""
    if pd.isna(row.lecture):
        return ""
    return "agrees" if abs(estimate - row.lecture) <= row.half + 1e-9 else "differs"
