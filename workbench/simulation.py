"""Simulated studies: how far the intervals keep what they promise. No model is trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.statistics import mean_interval

__all__ = ["Coverage", "coverage"]


@dataclass(frozen=True)
class Coverage:
    """How often each nominal interval held the true mean, and its mean width, in one simulated setting."""

    n_models: int
    accuracy: float
    between: float
    shared: float
    n_examples: int
    repeats: int
    resamples: int
    level: float
    student: float
    bootstrap: float
    student_width: float
    bootstrap_width: float


def coverage(
    *,
    n_models: int,
    accuracy: float,
    between: float,
    n_examples: int,
    repeats: int,
    seed: int,
    shared: float = 0.0,
    resamples: int = 500,
    level: float = 0.95,
) -> Coverage:
    """Simulate how often nominal intervals hold the true mean accuracy over models.

    Each model's true accuracy is drawn from the beta distribution with mean `accuracy` and standard deviation `between`
    (0: all the same). Whether it is right on an example is, on a share `shared` of them, one draw for all models: hard
    examples are hard for each, as in studies where every model sees the same ones. Compared on the same data:
    `mean_interval`, and the percentile bootstrap that resamples models, then each model's examples (Davison and
    Hinkley, Bootstrap Methods, 1997, 3.8).

    Raises ValueError where no beta distribution has that mean and standard deviation.

    >>> setting = coverage(n_models=3, accuracy=0.9, between=0.02, n_examples=500, repeats=400, seed=0)
    >>> setting.bootstrap < setting.student
    True
    """
    rng = np.random.default_rng(seed)
    true = _true_accuracies(rng, accuracy, between, (repeats, n_models))
    intervals, counts = [], np.empty((repeats, n_models))
    for index, row in enumerate(true):
        luck = rng.random((n_models, n_examples), dtype=np.float32)
        luck[:, : round(shared * n_examples)] = luck[0, : round(shared * n_examples)]
        right = luck < row[:, None]
        counts[index] = right.sum(1)
        intervals.append(mean_interval(list(right), level=level))
    student = np.array([(interval.low, interval.high) for interval in intervals])
    ends = [_two_level(rng, row / n_examples, n_examples, resamples, level) for row in counts]
    bootstrap = np.array(ends)
    return Coverage(
        n_models, accuracy, between, shared, n_examples, repeats, resamples, level,
        student=_share_holding(student, accuracy), bootstrap=_share_holding(bootstrap, accuracy),
        student_width=float(np.ptp(student, axis=1).mean()), bootstrap_width=float(np.ptp(bootstrap, axis=1).mean()),
    )  # fmt: skip


def _true_accuracies(rng: np.random.Generator, mean: float, sd: float, shape: tuple[int, int]) -> np.ndarray:
    if not 0 < mean < 1 or not 0 <= sd**2 < mean * (1 - mean):
        raise ValueError(
            f"no beta distribution has mean {mean} and standard deviation {sd}; "
            "the mean must lie inside (0, 1) and the squared standard deviation below mean × (1 − mean)"
        )
    if sd == 0:
        return np.full(shape, mean)
    size = mean * (1 - mean) / sd**2 - 1
    return rng.beta(mean * size, (1 - mean) * size, shape)


def _two_level(rng: np.random.Generator, shares: np.ndarray, n: int, resamples: int, level: float) -> np.ndarray:
    drawn = shares[rng.integers(len(shares), size=(resamples, len(shares)))]
    means = (rng.binomial(n, drawn) / n).mean(axis=1)
    return np.quantile(means, [(1 - level) / 2, (1 + level) / 2])


def _share_holding(ends: np.ndarray, truth: float) -> float:
    return float(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean())
