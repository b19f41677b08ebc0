"""Verdicts on an analysis' claims: from results frames, from one number a model, and from exact numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from workbench import Claim, judge

COLUMNS = ["id", "statement", "quantity", "estimate", "low", "high", "must lie", "n_models", "n_examples", "verdict"]
_ROUNDING = 1e-12
"""Numbers closer than this share of their size differ by rounding, not by training."""

Direction = Literal["greater", "less", "within"]


def from_claims(claims: Iterable[Claim], frame: pd.DataFrame) -> pd.DataFrame:
    """A row a claim, judged on a results frame."""
    rows = []
    for claim in claims:
        found = judge(claim, frame)
        quantity = f"{claim.metric}: {claim.a}" + ("" if claim.b is None else f" − {claim.b}")
        rows.append(
            (claim.id, claim.statement, quantity, found.estimate, found.low, found.high, _region(*claim.region),
             found.n_models, found.n_examples, found.verdict)
        )  # fmt: skip
    return _rows(rows)


def side_by_side(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with every kind of model as conditions of one: "one head · clean". Claims can then contrast kinds.

    Seed i of one kind is paired with seed i of the other, on the same examples. The kinds are trained apart, so that
    the pairing is arbitrary: it costs degrees of freedom, and misleads nobody. Raises ValueError where the frame says
    that kinds were measured on other examples.
    """
    measured = frame.attrs.get("measured", {})
    digests = {label: {one["examples"] for one in seeds.values()} for label, seeds in measured.items()}
    if len(set().union(*digests.values())) > 1:
        raise ValueError(
            f"{' and '.join(map(repr, digests))} were not all measured on the same examples; example i of one is not "
            "example i of the other. Give their studies one task, n and data seed"
        )
    labels = frame["model"].astype(str) + " · " + frame["condition"].astype(str)
    kinds = [str(one) for one in frame["model"].cat.categories]
    known = [f"{kind} · {one}" for kind in kinds for one in frame["condition"].cat.categories]
    there = set(labels)
    condition = pd.Categorical(labels, [one for one in known if one in there])
    return frame.assign(model=pd.Categorical(["every kind"] * len(frame)), condition=condition)


def from_seeds(
    id: str,
    statement: str,
    quantity: str,
    values: Sequence[float],
    direction: Direction,
    margin: float,
    reference: float = 0.0,
    level: float = 0.95,
) -> pd.DataFrame:
    """A row for a claim on one number per trained model: greater than the margin, less than it, or within it of the
    reference. The interval is Student's t over models; with one model, or none that varies, there is none.

    >>> from_seeds("late", "It comes late.", "step", [90.0, 110.0, 100.0], "greater", 50)["verdict"].item()
    'supported'
    """
    array = np.asarray(values, dtype=float)
    if not len(array) or not np.isfinite(array).all():
        raise ValueError(f"claim {id!r} wants one finite number per trained model; got {list(values)}")
    mean, low, high = float(array.mean()), math.nan, math.nan
    if len(array) > 1 and array.std() > _ROUNDING * max(1.0, abs(mean)):
        half = stats.t.ppf((1 + level) / 2, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array))
        low, high = mean - half, mean + half
    region = {
        "greater": (margin, math.inf),
        "less": (-math.inf, margin),
        "within": (reference - margin, reference + margin),
    }[direction]
    verdict = _outcome(low, high, region)
    return _rows([(id, statement, quantity, mean, low, high, _region(*region), len(array), None, verdict)])


def exact(id: str, statement: str, quantity: str, value: float, low: float, high: float) -> pd.DataFrame:
    """A row for a claim on a number that nothing random goes into: supported where it lies in [low, high]."""
    verdict = "supported" if low <= value <= high else "not supported"
    return _rows([(id, statement, quantity, value, value, value, f"{low:.6g} to {high:.6g}", 0, None, verdict)])


def joined(*tables: pd.DataFrame) -> pd.DataFrame:
    """Several such tables as one. Raises ValueError where an id is used twice."""
    out = pd.concat(tables, ignore_index=True).astype({"n_models": "Int64", "n_examples": "Int64"})
    if twice := sorted(out["id"][out["id"].duplicated()]):
        raise ValueError(f"two claims have the id {twice[0]!r}; give each its own")
    return out


def _rows(rows: Sequence[tuple]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS).astype({"n_models": "Int64", "n_examples": "Int64"})


def _outcome(low: float, high: float, region: tuple[float, float]) -> str:
    if low > region[0] and high < region[1]:
        return "supported"
    return "not supported" if high <= region[0] or low >= region[1] else "undecided"


def _region(low: float, high: float) -> str:
    if math.isinf(high):
        return f"above {low:.6g}"
    return f"below {high:.6g}" if math.isinf(low) else f"{low:.6g} to {high:.6g}"
