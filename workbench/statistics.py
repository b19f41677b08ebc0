"""Intervals. The unit that varies is the trained model; examples vary within it.

Nothing here knows of tables or of tasks: arrays go in, frozen values come out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

__all__ = [
    "Interval",
    "bootstrap_interval",
    "clopper_pearson",
    "difference_interval",
    "mean_interval",
]

Bounds = tuple[float, float]
Range = tuple[float, float, str]

OVER_BOTH = "over models and examples"
WITHIN_EXACT = "within a model (exact)"
WITHIN_STUDENT = "within a model (Student's t)"
NO_INTERVAL = "no interval"

# Means closer than this share of the scale differ by rounding, not by training.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its interval; `kind` is the phrase a table prints beside it.

    Where `kind` is "no interval", both ends are NaN.
    """

    estimate: float
    low: float
    high: float
    kind: str


def mean_interval(
    values_by_model: Sequence[np.ndarray], *, level: float = 0.95, bounds: Bounds | None = (0.0, 1.0)
) -> Interval:
    """The mean over trained models of each model's mean, with its interval.

    values_by_model: one array `[example]` per trained model, in the metric's unit. `bounds`: the least and largest
    value that the metric can take; None where there are none.

    Two things vary: the models, and the examples, which all models share, so that their luck does not show in the
    spread of the model means. Each half of the interval is the square root of the sum of two squares: Student's t over
    the model means, and the half of the widest interval within a model; clipped to `bounds`. With one model, or where
    the model means are all equal, only the second is left. Within a model the examples of ONE model count, never pooled
    ones, since models that agree add no examples:

    - values only at the two bounds (0/1): Clopper and Pearson (Biometrika 26, 1934);
    - other values: Student's t over the examples, clipped;
    - all values equal to c, bounded: if a share q of the examples differs from c, n draws all show c with
      probability (1 − q)^n. So q ≤ u = 1 − (α/2)^(1/n), and the mean lies in [c − u(c − lowest), c + u(highest − c)]
      (the zero-numerator argument of Hanley and Lippman-Hand, JAMA 249, 1983, with every differing example moved to a
      bound). Below 6 examples (at 95%) more than one value could have shown n times: the interval is `bounds` itself;
    - all values equal, unbounded: "no interval", NaN ends.

    Raises ValueError for no models, an empty array, NaN or infinite values, values outside `bounds`.

    >>> interval = mean_interval([np.ones(100), np.ones(100)])
    >>> round(interval.low, 3), interval.high, interval.kind
    (0.964, 1.0, 'within a model (exact)')
    """
    _check_level(level)
    return _interval(checked(values_by_model, bounds), level, bounds, _within)


def difference_interval(
    pairs_by_model: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    level: float = 0.95,
    bounds: Bounds | None = (0.0, 1.0),
) -> Interval:
    """The mean over trained models of the mean paired difference a − b, with its interval.

    pairs_by_model: per trained model a pair of arrays a `[example]`, b `[example]` of the same examples. `bounds` are
    those of a and b: with (0, 1) the difference lies in (−1, 1).

    As `mean_interval`, on the differences. Within a model, 0/1 data use the discordant counts: Clopper–Pearson
    intervals of the shares P(a=1, b=0) and P(a=0, b=1), each at level 1 − α/2, hold together with at least the level
    (Bonferroni); the interval runs from the least to the largest difference they allow. It is conservative and never
    has zero width.

    Raises ValueError as `mean_interval` does, and where a and b differ in length.

    >>> interval = difference_interval([(np.ones(100), np.ones(100))])
    >>> round(interval.low, 3), interval.estimate, round(interval.high, 3)
    (-0.043, 0.0, 0.043)
    """
    _check_level(level)
    firsts = checked([a for a, _ in pairs_by_model], bounds)
    seconds = checked([b for _, b in pairs_by_model], bounds)
    for index, (a, b) in enumerate(zip(firsts, seconds, strict=True)):
        check_paired(a, b, f"model {index}")
    wide = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return _interval([a - b for a, b in zip(firsts, seconds, strict=True)], level, wide, _within_difference)


def bootstrap_interval(
    values_by_model: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], float],
    seed: int,
    *,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """A percentile interval for a statistic other than a mean: models and examples are resampled independently.

    values_by_model: one array `[example]` per trained model, the same examples in each. `statistic` maps values
    `[model example]` to a number. Models crossed with examples: the pigeonhole bootstrap (Owen, Annals of Applied
    Statistics 1, 2007). It covers too little with few models (`simulation.coverage`): for means use `mean_interval`.

    Raises ValueError as `mean_interval` does, and where the models' arrays differ in length.

    >>> bootstrap_interval([np.arange(9.0), np.arange(9.0) + 1], np.median, seed=0, resamples=100).estimate
    4.5
    """
    _check_level(level)
    models = checked(values_by_model, None)
    if len({len(values) for values in models}) > 1:
        lengths = [len(values) for values in models]
        raise ValueError(f"models crossed with examples need the same examples in each; lengths are {lengths}")
    values, rng = np.stack(models), np.random.default_rng(seed)
    n_models, n_examples = values.shape
    draws = np.empty(resamples)
    for index in range(resamples):
        rows, columns = rng.integers(n_models, size=n_models), rng.integers(n_examples, size=n_examples)
        draws[index] = statistic(values[np.ix_(rows, columns)])
    estimate = float(statistic(values))
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    if not low < high:
        return Interval(estimate, np.nan, np.nan, NO_INTERVAL)
    where = "models crossed with examples" if n_models > 1 else "within a model"
    return Interval(estimate, float(low), float(high), f"{where} (bootstrap, {resamples} resamples)")


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share: `successes` in `n` (Clopper and Pearson, Biometrika 26, 1934).

    Raises ValueError unless 0 ≤ successes ≤ n and n ≥ 1.

    >>> low, high = clopper_pearson(0, 10)
    >>> low, round(high, 3)
    (0.0, 0.308)
    """
    _check_level(level)
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"asked for the interval of {successes} successes in {n}; it needs 0 ≤ successes ≤ n, n ≥ 1")
    tail = (1 - level) / 2
    low = special.betaincinv(successes, n - successes + 1, tail) if successes else 0.0
    high = special.betaincinv(successes + 1, n - successes, 1 - tail) if successes < n else 1.0
    return float(low), float(high)


def _interval(
    models: list[np.ndarray],
    level: float,
    bounds: Bounds | None,
    within: Callable[[np.ndarray, float, Bounds | None], Range],
) -> Interval:
    means = np.array([values.mean() for values in models])
    estimate = float(means.mean())
    own = [within(values, level, bounds) for values in models]
    low, high, kind = max(own, key=lambda ends: ends[1] - ends[0])
    if len(means) > 1 and _vary(means, bounds):
        kind = OVER_BOTH
        bounded = [(mean, ends) for mean, ends in zip(means, own, strict=True) if ends[2] != NO_INTERVAL]
        over_models = _half(means, level)
        low = estimate - np.hypot(over_models, max((mean - ends[0] for mean, ends in bounded), default=0.0))
        high = estimate + np.hypot(over_models, max((ends[1] - mean for mean, ends in bounded), default=0.0))
        low, high = _clipped(low, high, bounds)
    if kind == NO_INTERVAL:
        return Interval(estimate, np.nan, np.nan, kind)
    return Interval(estimate, min(low, estimate), max(high, estimate), kind)


def _within(values: np.ndarray, level: float, bounds: Bounds | None) -> Range:
    if bounds is not None and np.isin(values, bounds).all():
        low, high = clopper_pearson(int((values == bounds[1]).sum()), len(values), level)
        span = bounds[1] - bounds[0]
        return bounds[0] + span * low, bounds[0] + span * high, WITHIN_EXACT
    if len(values) > 1 and _vary(values, bounds):
        return _student(values, level, bounds, WITHIN_STUDENT)
    return (-np.inf, np.inf, NO_INTERVAL) if bounds is None else _constant(values, level, bounds)


def _within_difference(differences: np.ndarray, level: float, bounds: Bounds | None) -> Range:
    if bounds is None or not np.isin(differences, (*bounds, 0.0)).all():
        return _within(differences, level, bounds)
    wider, n = (1 + level) / 2, len(differences)
    up = clopper_pearson(int((differences > 0).sum()), n, wider)
    down = clopper_pearson(int((differences < 0).sum()), n, wider)
    return bounds[1] * max(up[0] - down[1], -1.0), bounds[1] * min(up[1] - down[0], 1.0), WITHIN_EXACT


def _constant(values: np.ndarray, level: float, bounds: Bounds) -> Range:
    """The bound of `mean_interval`'s third case; it needs that no two values can each have share (α/2)^(1/n)."""
    agreeing = ((1 - level) / 2) ** (1 / len(values))
    moved = 1 - agreeing if agreeing >= 0.5 else 1.0
    value = float(values[0])
    return value - moved * (value - bounds[0]), value + moved * (bounds[1] - value), WITHIN_EXACT


def _student(values: np.ndarray, level: float, bounds: Bounds | None, kind: str) -> Range:
    half, mean = _half(values, level), values.mean()
    return *_clipped(mean - half, mean + half, bounds), kind


def _half(values: np.ndarray, level: float) -> float:
    """Half the width of Student's t interval for the mean."""
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return float(special.stdtrit(len(values) - 1, (1 + level) / 2) * spread)


def _clipped(low: float, high: float, bounds: Bounds | None) -> tuple[float, float]:
    lowest, highest = bounds if bounds is not None else (-np.inf, np.inf)
    return float(max(low, lowest)), float(min(high, highest))


def _vary(values: np.ndarray, bounds: Bounds | None) -> bool:
    scale = np.abs(values).max() if bounds is None else bounds[1] - bounds[0]
    return bool(np.ptp(values) > _ROUNDING * scale)


def checked(values_by_model: Sequence[np.ndarray], bounds: Bounds | None) -> list[np.ndarray]:
    models = [np.asarray(values, dtype=float) for values in values_by_model]
    if not models:
        raise ValueError("an interval was asked for over no models; give one 1-D array of values per trained model")
    if bounds is not None and not bounds[0] < bounds[1]:
        raise ValueError(f"bounds are {bounds}; the first must be below the second, or None where there are none")
    for index, values in enumerate(models):
        if values.ndim != 1 or not len(values):
            raise ValueError(f"array {index} has shape {values.shape}; give a 1-D array with at least one example")
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            raise ValueError(f"array {index} has {bad} NaN or infinite of {len(values)} values; drop skipped examples")
        if bounds is not None and (values.min() < bounds[0] or values.max() > bounds[1]):
            raise ValueError(
                f"array {index} has values from {values.min()} to {values.max()}, outside the bounds {bounds}; "
                "give the metric's own bounds, or None where it has none"
            )
    return models


def check_paired(a: np.ndarray, b: np.ndarray, where: str) -> None:
    if len(a) != len(b):
        raise ValueError(f"{where} pairs {len(a)} values with {len(b)}; give the same examples, in the same order")


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"the level is {level}; it must lie inside (0, 1), as 0.95 does")
