"""The results frame, one row per model × condition × example: its summary, contrasts and tests over trained models.

Its schema is in `workbench.schema`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from workbench.nearest import nearest
from workbench.paired import PairedTest, holm, paired_test
from workbench.schema import KEYS, NATURAL, UNBOUNDED, check, check_columns, metrics
from workbench.statistics import Interval, difference_interval, mean_interval

__all__ = ["KEYS", "check", "contrast", "metrics", "paired_tests", "summary"]

_CELL = ["model", "condition", "model_seed"]
_NOTHING_RAN = Interval(np.nan, np.nan, np.nan, "no interval (no example ran)")


def summary(frame: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """One row per model × condition × metric measured there, in the order of categories and columns.

    `estimate low high interval level`: `statistics.mean_interval` over trained models. `n_models`: trained models with
    a measured example. `n_examples`: examples run in each of them, missing where they differ. `planned run skipped`:
    examples, summed over trained models (one whose examples were all skipped included). `seed_low seed_high`: the
    smallest and the largest model mean.

    A metric whose values all lie in [0, 1], over the whole frame, is taken as bounded by 0 and 1, unless it is one of
    `schema.UNBOUNDED`; another as unbounded.
    A kind of model none of whose examples ran has a row for every metric, with NaN for numbers.

    Raises ValueError as `check` does. The order of the rows of `frame` does not matter.

    >>> frame = pd.DataFrame({"model": ["m"] * 2, "model_seed": 0, "condition": ["clean"] * 2, "example": [0, 1],
    ...     "skipped": [None, None], "accuracy": [1.0, 0.0]}).astype(dict.fromkeys(["model", "condition", "skipped"],
    ...     "category"))
    >>> summary(frame)[["condition", "metric", "estimate", "n_models", "n_examples"]].values.tolist()
    [['clean', 'accuracy', 0.5, 1, 2]]
    """
    check(frame)
    bounds = {metric: bounds_of(frame, metric) for metric in metrics(frame)}
    rows = []
    for (model, condition), cells in _cells(frame).items():
        for metric in metrics(frame):
            kept = [cell for cell in cells.values() if not _ran(cell) or cell[metric].notna().any()]
            values = [_values(cell, metric) for cell in kept if _ran(cell)]
            if not values and any(map(_ran, cells.values())):
                continue
            interval = mean_interval(values, level=level, bounds=bounds[metric]) if values else _NOTHING_RAN
            interval = _possible(metric, interval)
            names = {"model": model, "condition": condition, "metric": metric}
            rows.append(names | numbers_of(sum(map(len, kept)), values, interval, level))
    if not rows:
        raise ValueError(f"examples ran, yet no metric of {metrics(frame)} has a value; measure at least one")
    return _table(rows, {"model": frame["model"].dtype, "condition": frame["condition"].dtype})


def contrast(
    frame: pd.DataFrame,
    a: str,
    b: str | None,
    metric: str = "accuracy",
    model: str | None = None,
    level: float = 0.95,
) -> pd.DataFrame:
    """One row: the metric in condition `a` minus in condition `b`, paired by example; with b=None, its mean in `a`.

    The columns of `summary`, with `a` and `b` for the condition. The interval is `statistics.difference_interval` over
    the trained models that have both conditions. `model` may be left out where one kind of model has both.

    Raises ValueError for an unknown condition, metric or model (it lists those there are), where several kinds of model
    have the conditions and none is named, and as `check` does for the rows compared.

    >>> frame = pd.DataFrame({"model": "m", "model_seed": 0, "condition": ["clean", "cut"], "example": 0,
    ...     "skipped": [None, None], "accuracy": [1.0, 0.0]}).astype(dict.fromkeys(["model", "condition", "skipped"],
    ...     "category"))
    >>> contrast(frame, "clean", "cut")[["a", "b", "estimate", "n_models"]].values.tolist()
    [['clean', 'cut', 1.0, 1]]
    """
    check_columns(frame)
    wanted = [a] if b is None else [a, b]
    if a == b:
        raise ValueError(f"a contrast of condition {a!r} with itself was asked; name two conditions, or b=None")
    cells = _compared(frame, wanted, metric)
    kind = _one_model(cells, wanted, metric, model)
    firsts, seconds = cells[kind, wanted[0]], cells[kind, wanted[-1]]
    seeds = [seed for seed in firsts if seed in seconds]
    kept = [firsts[seed] for seed in seeds]
    ran = [seed for seed in seeds if _ran(firsts[seed])]
    pairs = [(_values(firsts[seed], metric), _values(seconds[seed], metric)) for seed in ran]
    values = [first if b is None else first - second for first, second in pairs]
    bounds = bounds_of(frame, metric)
    if not values:
        interval = _NOTHING_RAN
    elif b is None:
        interval = _possible(metric, mean_interval(values, level=level, bounds=bounds))
    else:
        interval = difference_interval(pairs, level=level, bounds=bounds)
    names = {"model": kind, "a": a, "b": b, "metric": metric}
    return _table([names | numbers_of(sum(map(len, kept)), values, interval, level)], {"model": frame["model"].dtype})


def paired_tests(frame: pd.DataFrame, pairs: Sequence[tuple[str, str]], metric: str) -> pd.DataFrame:
    """One row per trained model × pair of conditions that it has: `difference p p_holm family test n_examples`.

    `difference` is the mean of a − b over examples, `test` and `p` are `statistics.paired_test`'s; `p_holm` is adjusted
    over all the rows returned, whose number is `family`. A trained model none of whose examples ran has no row.

    Raises ValueError for a pair given twice (either way round), an unknown condition or metric, a pair that no trained
    model has, and as `check` does for the rows compared.

    >>> frame = pd.DataFrame({"model": "m", "model_seed": 0, "condition": ["clean", "cut"], "example": 0,
    ...     "skipped": [None, None], "accuracy": [1.0, 0.0]}).astype(dict.fromkeys(["model", "condition", "skipped"],
    ...     "category"))
    >>> paired_tests(frame, [("clean", "cut")], "accuracy")[["test", "difference", "p_holm", "family"]].values.tolist()
    [['McNemar, exact', 1.0, 1.0, 1]]
    """
    check_columns(frame)
    if not pairs or len({frozenset(pair) for pair in pairs}) < len(pairs) or any(a == b for a, b in pairs):
        raise ValueError(f"the pairs are {list(pairs)}; give at least one, each of two conditions, each once")
    cells = _compared(frame, list(dict.fromkeys(label for pair in pairs for label in pair)), metric)
    kinds = list(dict.fromkeys(kind for kind, _ in cells))
    rows = []
    for a, b in pairs:
        sides = [(kind, cells.get((kind, a), {}), cells.get((kind, b), {})) for kind in kinds]
        found = [row for kind, firsts, seconds in sides for row in _tests(kind, firsts, seconds, metric)]
        if not found:
            raise ValueError(f"no trained model has {metric!r} in both {a!r} and {b!r}; leave the pair out")
        rows += [names | {"a": a, "b": b, "metric": metric, **_fields(test)} for names, test in found]
    table = pd.DataFrame(rows).astype({"model": frame["model"].dtype})
    table["p_holm"], table["family"] = holm(table["p"].to_numpy()), len(table)
    order = ["model", "model_seed", "a", "b", "metric", "difference", "p", "p_holm", "family", "test", "n_examples"]
    return table[order]


Cells = dict[tuple[str, str], dict[int, pd.DataFrame]]


def _tests(
    kind: str, firsts: dict[int, pd.DataFrame], seconds: dict[int, pd.DataFrame], metric: str
) -> Iterable[tuple[dict[str, Any], PairedTest]]:
    for seed in firsts:
        if seed in seconds and _ran(firsts[seed]):
            a, b = _values(firsts[seed], metric), _values(seconds[seed], metric)
            yield {"model": kind, "model_seed": seed, "n_examples": len(a)}, paired_test(a, b)


def _fields(test: PairedTest) -> dict[str, Any]:
    return {"difference": test.difference, "p": test.p, "test": test.test}


def _cells(frame: pd.DataFrame) -> Cells:
    """(model, condition) → model seed → the rows of that cell by example; sums then ignore the order of rows."""
    cells: Cells = {}
    for (model, condition, seed), rows in frame.sort_values([*_CELL, "example"]).groupby(_CELL, observed=True):
        cells.setdefault((model, condition), {})[int(seed)] = rows
    return cells


def _compared(frame: pd.DataFrame, conditions: list[str], metric: str) -> Cells:
    """The checked cells of these conditions where `metric` was measured, or where nothing ran."""
    _known("condition", conditions, list(frame["condition"].cat.remove_unused_categories().cat.categories))
    _known("metric", [metric], metrics(frame))
    rows = frame.loc[frame["condition"].isin(conditions), [*KEYS, metric]]
    check(rows)
    found: Cells = {}
    for key, cells in _cells(rows).items():
        kept = {seed: cell for seed, cell in cells.items() if not _ran(cell) or cell[metric].notna().any()}
        if kept:
            found[key] = kept
    return found


def _one_model(cells: Cells, conditions: list[str], metric: str, model: str | None) -> str:
    kinds = list(dict.fromkeys(kind for kind, _ in cells))
    able = [kind for kind in kinds if set.intersection(*(set(cells.get((kind, label), {})) for label in conditions))]
    where = " and ".join(map(repr, conditions))
    if model is not None:
        if model not in able:
            raise ValueError(f"model {model!r} has no {metric!r} in {where}; models that do: {able}")
        return model
    if len(able) != 1:
        mend = "name one with model=" if able else "choose conditions that one kind of model has"
        raise ValueError(f"{metric!r} in {where} is measured in the models {able}; {mend}")
    return able[0]


def _ran(cell: pd.DataFrame) -> bool:
    return bool(cell["skipped"].isna().any())


def _values(cell: pd.DataFrame, metric: str) -> np.ndarray:
    return cell.loc[cell["skipped"].isna(), metric].to_numpy(dtype=float)


def _possible(metric: str, interval: Interval) -> Interval:
    """The interval without what a mean of this metric cannot be."""
    low, high = NATURAL.get(metric, (-np.inf, np.inf))
    return replace(interval, low=np.clip(interval.low, low, high), high=np.clip(interval.high, low, high))


def bounds_of(frame: pd.DataFrame, metric: str) -> tuple[float, float] | None:
    """The bounds that a metric is taken to have; None without any."""
    if metric in UNBOUNDED:
        return None
    return (0.0, 1.0) if frame[metric].min() >= 0 and frame[metric].max() <= 1 else None


def numbers_of(planned: int, values: list[np.ndarray], interval: Interval, level: float) -> dict[str, Any]:
    """The columns of numbers of one row. planned: examples over all trained models; values: of those that ran, an array
    a trained model."""
    means, sizes = [float(one.mean()) for one in values], {len(one) for one in values}
    run = sum(map(len, values))
    return {
        "estimate": interval.estimate, "low": interval.low, "high": interval.high, "interval": interval.kind,
        "level": level, "n_models": len(values), "n_examples": sizes.pop() if len(sizes) == 1 else pd.NA,
        "planned": planned, "run": run, "skipped": planned - run,
        "seed_low": min(means, default=np.nan), "seed_high": max(means, default=np.nan),
    }  # fmt: skip


def _table(rows: list[dict[str, Any]], dtypes: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows).astype({**dtypes, "n_examples": "Int64"})


def _known(what: str, asked: Iterable[str], there: Sequence[str]) -> None:
    for name in asked:
        if name not in there:
            raise ValueError(f"{what} {name!r} is not in the results. {nearest(name, there)}")
