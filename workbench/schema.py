"""The schema of the results frame: what a row is, and what makes a frame one that can be compared."""

from __future__ import annotations

import numpy as np
import pandas as pd

__all__ = ["KEYS", "check", "check_columns", "metrics"]

KEYS = ("model", "model_seed", "condition", "example", "skipped")

UNBOUNDED = ("loss", "log_prob", "logit_margin", "logit_diff", "rank", "kl_to_clean", "normalised")
"""Metrics with no natural bounds, whatever their values happen to be; any other is bounded if it lies in [0, 1]."""

_UP = float("inf")
NATURAL = {"loss": (0.0, _UP), "log_prob": (-_UP, 0.0), "rank": (1.0, _UP), "kl_to_clean": (0.0, _UP)}
"""Where a mean of these can lie at all; an interval ends there."""

_CELL = ["model", "condition", "model_seed"]
_ROW = [*_CELL, "example"]


def metrics(frame: pd.DataFrame) -> tuple[str, ...]:
    """The metric columns, in the frame's order: every column that is not one of `KEYS`.

    >>> metrics(pd.DataFrame(columns=[*KEYS, "accuracy", "prev"]))
    ('accuracy', 'prev')
    """
    return tuple(column for column in frame.columns if column not in KEYS)


def check(frame: pd.DataFrame) -> None:
    """Raise ValueError unless `frame` is a results frame.

    It needs every column of `KEYS` ("model", "condition" and "skipped" categories, "model_seed" and "example"
    integers), a float metric, no row twice, in each trained model the same examples in every condition, each skipped in
    all of them or in none. A metric is NaN where the example was skipped and, where it ran, measured for the whole cell
    (trained model × condition) or not at all; it is never infinite.

    >>> check(pd.DataFrame({"model": ["two layers"], "accuracy": [1.0]}))
    Traceback (most recent call last):
    ValueError: a results frame needs the columns model_seed, condition, example, skipped; there are model, accuracy
    """
    check_columns(frame)
    _check_pairing(frame)
    _check_values(frame)


def check_columns(frame: pd.DataFrame) -> None:
    """Raise ValueError unless the columns of `frame` are those of a results frame; a part of `check`, at no cost a row.

    >>> check_columns(pd.DataFrame(columns=["model", "accuracy"]))
    Traceback (most recent call last):
    ValueError: a results frame needs the columns model_seed, condition, example, skipped; there are model, accuracy
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(
            f"a results frame is a pandas frame; this is a {type(frame).__name__} (run_study gives two frames)"
        )
    missing = [key for key in KEYS if key not in frame.columns]
    if missing:
        there = ", ".join(map(str, frame.columns))
        raise ValueError(f"a results frame needs the columns {', '.join(missing)}; there are {there}")
    for key in ("model", "condition", "skipped"):
        if not isinstance(frame[key].dtype, pd.CategoricalDtype):
            raise ValueError(f"column {key!r} is {frame[key].dtype}; make it a category, whose order tables follow")
    for key in ("model_seed", "example"):
        if not pd.api.types.is_integer_dtype(frame[key]):
            raise ValueError(f"column {key!r} is {frame[key].dtype}; it must hold integers")
    if not metrics(frame) or not len(frame):
        raise ValueError(f"a results frame needs a row and a metric; there are {len(frame)} rows, {metrics(frame)}")
    for metric in metrics(frame):
        if not pd.api.types.is_float_dtype(frame[metric]):
            raise ValueError(f"metric {metric!r} is {frame[metric].dtype}; make it float (0/1 for right and wrong)")
    for key in KEYS[:4]:
        if frame[key].isna().any():
            raise ValueError(f"column {key!r} has {int(frame[key].isna().sum())} missing values; name every row")


def _check_pairing(frame: pd.DataFrame) -> None:
    twice = frame.duplicated(_ROW)
    if twice.any():
        raise ValueError(f"{int(twice.sum())} rows are there twice, the first {_place(frame[twice], _ROW)}; keep one")
    n_conditions = frame.groupby(["model", "model_seed"], observed=True)["condition"].nunique()
    keys = ["model", "model_seed", "example"]
    examples = frame["skipped"].notna().groupby([frame[key] for key in keys], observed=True).agg(["size", "sum"])
    examples = examples.reset_index()
    expected = n_conditions.loc[pd.MultiIndex.from_frame(examples[keys[:2]])].to_numpy()
    absent = examples["size"].to_numpy() != expected
    if absent.any():
        raise ValueError(
            f"conditions are not paired: {int(absent.sum())} examples are missing from some conditions of their "
            f"trained model, the first {_place(examples[absent], keys)}; run every condition on the same examples"
        )
    partly = ~examples["sum"].isin([0]) & (examples["sum"] != examples["size"])
    if partly.any():
        raise ValueError(
            f"{int(partly.sum())} examples are skipped in some conditions of their trained model and run in others, "
            f"the first {_place(examples[partly], keys)}; skip an example in every condition"
        )


def _check_values(frame: pd.DataFrame) -> None:
    skipped = frame["skipped"].notna()
    cells = [frame[key] for key in _CELL]
    ran = (~skipped).groupby(cells, observed=True).sum()
    for metric in metrics(frame):
        endless = np.isinf(frame[metric])
        if endless.any():
            raise ValueError(f"metric {metric!r} is infinite at {_place(frame[endless], _ROW)}; it has no mean")
        measured = frame[metric].notna()
        if (skipped & measured).any():
            first = _place(frame[skipped & measured], _ROW)
            raise ValueError(f"metric {metric!r} has a value where the example was skipped, at {first}; make it NaN")
        count = measured.groupby(cells, observed=True).sum()
        holed = count[(count > 0) & (count < ran)].index.to_frame(index=False)
        if len(holed):
            raise ValueError(
                f"metric {metric!r} is NaN for some examples that ran, at {_place(holed, _CELL)}; "
                "measure it for all of a condition's examples, or skip those it cannot be measured on"
            )


def _place(rows: pd.DataFrame, keys: list[str]) -> str:
    return ", ".join(f"{key} {rows[key].iloc[0]}" for key in keys)
