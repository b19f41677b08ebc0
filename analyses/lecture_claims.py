"""The lecture's four claims, each in parts that an interval decides."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from analyses.lecture_table import ROWS, TWO
from workbench import Claim, judge, together

CLAIMS_COLUMNS = ["id", "kind", "statement", "lecture", "estimate", "low", "high", "n_models", "n_examples", "verdict"]


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
