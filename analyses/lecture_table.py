"""The rows of the lecture's table and its four claims: what is asked, what the lecture says, how it is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench import Claim, contrast, judge, together

TWO, ONE = "two layers", "one layer"
CLAIMS_COLUMNS = ["id", "kind", "statement", "lecture", "estimate", "low", "high", "n_models", "n_examples", "verdict"]


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


def _greater(id: str, statement: str, a: str, b: str | None, margin: float, metric: str = "accuracy") -> Claim:
    return Claim(id=id, statement=statement, metric=metric, a=a, b=b, model=TWO, direction="greater", margin=margin)


# Margins are set by what the sentences say, before anything is measured: an even share is one of nine sources;
# "needs" is more than half of all answers lost; "does not need" is fewer than one answer in a hundred changed.
EVEN, LOST, SPARED, SMALL, NAMEABLE = 1 / 9, 0.5, 0.01, 0.01, 0.95

_NEEDS_DIGIT = _greater(
    "mattered",
    "cutting the matching digit loses more than half of the answers that cutting a different digit keeps",
    "cut-other",
    "cut-answer",
    LOST,
)
_NEEDS_LETTER = _greater(
    "mattered",
    "cutting the matching digit's link to its own letter in layer 1 loses more than half of the answers that cutting "
    "another digit's link keeps",
    "cut-hidden-control",
    "cut-hidden",
    LOST,
)

CLAIMS: Mapping[str, tuple[str, tuple[Claim, ...]]] = {
    "drew-on": (
        "In layer 2 the last position drew on the matching digit: the recorded weight says so by itself",
        (_greater("drew-on", "its weight is more than an even share of nine sources", "clean", None, EVEN, "match"),),
    ),
    "mattered": (
        "Which source mattered is shown by cutting it, and its weight alone does not show it",
        (
            _NEEDS_DIGIT,
            _greater(
                "mattered",
                "weight without effect: in layer 1 the last position gives each digit more than an even share",
                "clean",
                None,
                EVEN,
                "spread",
            ),
            Claim(
                id="mattered",
                statement="weight without effect: cutting its largest layer-1 weight changes under 1 answer in 100",
                metric="accuracy",
                a="clean",
                b="cut-largest",
                model=TWO,
                direction="within",
                margin=SPARED,
            ),
            Claim(
                id="mattered",
                statement="effect without weight: in layer 2 the last position gives the letter less than 1/100",
                metric="unseen-letter",
                a="clean",
                model=TWO,
                direction="less",
                margin=SMALL,
            ),
            _NEEDS_LETTER.model_copy(update={"statement": "effect without weight: " + _NEEDS_LETTER.statement}),
        ),
    ),
    "relation": (
        "Each head carries out a relation that can be named, over many inputs and under interventions",
        (
            _greater(
                "relation", "layer 1: each digit's weight on the letter before it", "clean", None, NAMEABLE, "prev"
            ),
            _greater("relation", "layer 2: the last position's weight on its digit", "clean", None, NAMEABLE, "match"),
            _NEEDS_LETTER.model_copy(update={"id": "relation"}),
            _NEEDS_DIGIT.model_copy(update={"id": "relation"}),
        ),
    ),
    "one-head": (
        "The last position's pattern in layer 2 is the whole computation: no weight of another head matters",
        (
            Claim(
                id="one-head",
                statement="cutting the matching digit's link to its letter in layer 1 changes under 1 answer in 100",
                metric="accuracy",
                a="clean",
                b="cut-hidden",
                model=TWO,
                direction="within",
                margin=SPARED,
            ),
        ),
    ),
}


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


def parts(frame: pd.DataFrame) -> pd.DataFrame:
    """The claims part by part: what is measured, the region it must lie in, and the verdict."""
    rows = []
    for id, (_, claims) in CLAIMS.items():
        for claim in claims:
            said = judge(claim, frame)
            low, high = claim.region
            rows.append(
                {
                    "claim": id,
                    "part": claim.statement,
                    "quantity": f"{claim.metric}: {claim.a}" + (f" − {claim.b}" if claim.b else ""),
                    "must lie": _region(low, high),
                    "estimate": said.estimate,
                    "low": said.low,
                    "high": said.high,
                    "interval": said.interval,
                    "verdict": said.verdict,
                }
            )
    return pd.DataFrame(rows)


def _region(low: float, high: float) -> str:
    if high == float("inf"):
        return f"above {low:.3g}"
    return f"below {high:.3g}" if low == float("-inf") else f"within ±{high:.3g}"


def claims(frame: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """claims.csv: the fifteen measurements, then the four claims; a claim's figures are those of its first part."""
    rows = measured[measured["id"].isin([row.id for row in ROWS])].assign(kind="measurement")
    made = []
    for id, (statement, several) in CLAIMS.items():
        verdicts = [judge(claim, frame) for claim in several]
        first = verdicts[0]
        made.append(
            {
                "id": id,
                "kind": "claim",
                "statement": statement,
                "lecture": float("nan"),
                "estimate": first.estimate,
                "low": first.low,
                "high": first.high,
                "n_models": first.n_models,
                "n_examples": first.n_examples,
                "verdict": together(verdicts),
            }
        )
    out = pd.concat([rows[CLAIMS_COLUMNS], pd.DataFrame(made)[CLAIMS_COLUMNS]], ignore_index=True)
    return out.astype({"n_models": "Int64", "n_examples": "Int64"})
