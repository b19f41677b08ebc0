"""Paired tests within a trained model, and the correction of a family of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.statistics import check_paired, checked

__all__ = ["PairedTest", "holm", "paired_test"]


@dataclass(frozen=True)
class PairedTest:
    """The mean of a − b, the two-sided p, and the name of the test that gave it."""

    difference: float
    p: float
    test: str


def paired_test(a: np.ndarray, b: np.ndarray) -> PairedTest:
    """Two-sided test that a paired change has no direction, within one trained model.

    a `[example]`, b `[example]`: the same examples. 0/1 values: McNemar's test, exact (binomial on the discordant
    pairs; McNemar, Psychometrika 12, 1947). Other values: Wilcoxon's signed-rank test, zero differences dropped
    (Biometrics Bulletin 1, 1945). Where nothing differs, p is 1.

    Raises ValueError for empty, NaN or infinite values, and where a and b differ in length.

    >>> paired_test(np.array([1, 1, 1, 1, 1, 0]), np.zeros(6))
    PairedTest(difference=0.8333333333333334, p=0.0625, test='McNemar, exact')
    """
    from scipy import stats

    a, b = checked([a, b], None)
    check_paired(a, b, "the test")
    difference = a - b
    mean, changed = float(difference.mean()), int(np.count_nonzero(difference))
    if np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        wins = int(np.count_nonzero(difference > 0))
        return PairedTest(mean, float(stats.binomtest(wins, changed).pvalue) if changed else 1.0, "McNemar, exact")
    return PairedTest(mean, float(stats.wilcoxon(difference).pvalue) if changed else 1.0, "Wilcoxon signed-rank")


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Adjusted p-values `[test]` of one family, in the order given (Holm, Scandinavian Journal of Statistics 6, 1979).

    Raises ValueError for NaN or anything outside [0, 1].

    >>> holm([0.04, 0.01, 0.03]).tolist()
    [0.06, 0.03, 0.06]
    """
    p = np.asarray(p_values, dtype=float)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"Holm's procedure was given {p.tolist()}; it needs a flat list of p-values in [0, 1], no NaN")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
