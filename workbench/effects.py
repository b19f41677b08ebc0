"""Effects between conditions, from the results frame: shares of the way from corrupt to clean, direct against total.

The unit that varies is the trained model, as in `workbench.results`; `workbench.conditions` builds the conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.nearest import nearest
from workbench.results import contrast
from workbench.schema import KEYS, check, check_columns, metrics
from workbench.statistics import Interval, mean_interval

__all__ = ["direct_against_total", "normalised", "normalised_examples"]

_ROUNDING = 5e-6
"""Values of a metric closer than this share of the largest differ by float32's rounding."""

UNITS = {
    "accuracy": "fraction",
    "exact_match": "fraction",
    "log_prob": "nats",
    "loss": "nats",
    "logit_margin": "logits",
    "logit_diff": "logits",
    "rank": "places",
    "kl_to_clean": "nats",
    "tv_to_clean": "fraction",
}
"""Metric of `workbench.metrics` → the unit of its values, and of differences of them."""

_TRAINED = ["model", "model_seed"]

Trained = dict[tuple[str, int], pd.DataFrame]


def normalised_examples(
    frame: pd.DataFrame, conditions: Sequence[str], *, clean: str, corrupt: str, metric: str
) -> pd.DataFrame:
    """One row per trained model × condition × example: `normalised` = (m − m_corrupt) / (m_clean − m_corrupt).

    m is the metric in the condition. 1: as clean; 0: as corrupt; not clipped. Unit: none (a share of the example's own
    distance). NaN where the example was skipped, and where its clean and corrupt values are no further apart than
    rounding (5e-6 of the trained model's largest |m|). Source: Wang et al. 2022; Zhang and Nanda 2024.

    Raises as `normalised` does.

    >>> frame = pd.DataFrame({"model": "m", "model_seed": 0, "condition": np.repeat(["clean", "corrupt", "cut"], 3),
    ...     "example": [0, 1, 2] * 3, "skipped": None, "log_prob": [4.0, 4, 1, 0, 0, 1, 2, 5, 1]})
    >>> frame = frame.astype(dict.fromkeys(["model", "condition", "skipped"], "category"))
    >>> normalised_examples(frame, ["cut"], clean="clean", corrupt="corrupt", metric="log_prob")["normalised"].tolist()
    [0.5, 1.25, nan]
    """
    tables = []
    for (kind, seed), wide in _wide(frame, conditions, clean, corrupt, metric).items():
        gap = _gap(wide, clean, corrupt)
        for condition in conditions:
            names = {"model": kind, "model_seed": seed, "condition": condition, "example": wide.index}
            values = ((wide[condition] - wide[corrupt]) / gap).to_numpy()
            tables.append(pd.DataFrame({**names, "skipped": wide["skipped"].to_numpy(), "normalised": values}))
    return pd.concat(tables, ignore_index=True).astype({key: frame[key].dtype for key in KEYS})


def normalised(
    frame: pd.DataFrame,
    conditions: Sequence[str],
    *,
    clean: str,
    corrupt: str,
    metric: str,
    level: float = 0.95,
) -> pd.DataFrame:
    """One row per model × condition: how much of the way from corrupt to clean the metric is there.

    Within a trained model R = (M − M_corrupt) / (M_clean − M_corrupt), M the mean of the metric over its examples.
    1: as clean; 0: as corrupt; not clipped. Unit: none (a share). Source: Wang et al. 2022; Zhang and Nanda 2024. It is
    the ratio of means and not the mean of `normalised_examples`, which one example whose clean and corrupt values
    nearly agree would decide: here an example counts as much as corrupting it matters.

    `estimate low high interval level`: `statistics.mean_interval` over the trained models that have all conditions,
    without bounds; within one, examples vary as R + (d − R g) / G, where d and g are an example's numerator and
    denominator and G the mean of g (the ratio estimator's linearisation: Cochran 1977, chapter 6). The other columns
    are `summary`'s, and `undefined`: examples, summed over trained models, that have no ratio of their own; they count
    in the means.

    Where G cannot be told from 0 in some trained model (Student's t over its examples at `level` includes 0, or G is
    within rounding of it) there is no way to share: the row has NaN for numbers, and `interval` says why.

    Raises ValueError for an unknown condition or metric (it lists those there are), conditions that no trained model
    has together, `clean` equal to `corrupt`, and as `results.check` does for the rows compared.

    >>> frame = pd.DataFrame({"model": "m", "model_seed": 0, "condition": np.repeat(["clean", "corrupt", "cut"], 4),
    ...     "example": [0, 1, 2, 3] * 3, "skipped": None, "log_prob": [4.0, 3, 4, 1, 0, 0, 0, -1, 2, 2, 2, -0.5]})
    >>> frame = frame.astype(dict.fromkeys(["model", "condition", "skipped"], "category"))
    >>> table = normalised(frame, ["cut"], clean="clean", corrupt="corrupt", metric="log_prob")
    >>> table[["condition", "estimate", "n_models", "n_examples", "undefined"]].values.tolist()
    [['cut', 0.5, 1, 4, 0]]
    """
    trained = _wide(frame, conditions, clean, corrupt, metric)
    rows = []
    for kind in dict.fromkeys(kind for kind, _ in trained):
        cells = [wide for (model, _), wide in trained.items() if model == kind]
        ran = [wide[wide["skipped"].isna()] for wide in cells]
        ran = [wide for wide in ran if len(wide)]
        lost = sum(not _apart(wide, clean, corrupt, level) for wide in ran)
        undefined = sum(int(_gap(wide, clean, corrupt).isna().sum()) for wide in ran)
        for condition in conditions:
            values = [] if lost else [_ratio(wide, condition, clean, corrupt) for wide in ran]
            names = {"model": kind, "condition": condition, "clean": clean, "corrupt": corrupt, "metric": metric}
            numbers = _numbers(cells, ran, _interval(values, lost, len(ran), level), level)
            means = [float(one.mean()) for one in values]
            seeds = {"seed_low": min(means, default=np.nan), "seed_high": max(means, default=np.nan)}
            rows.append(names | numbers | {"undefined": undefined} | seeds)
    dtypes = {key: frame[key].dtype for key in ("model", "condition")}
    return pd.DataFrame(rows).astype({**dtypes, "n_examples": "Int64"})


def direct_against_total(
    frame: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], *, clean: str, metric: str, level: float = 0.95
) -> pd.DataFrame:
    """Three rows per model × label, `effect` total, direct and indirect; M is the metric's mean over examples.

    total = M_clean − M_edited; direct = M_clean − M_direct; indirect = total − direct = M_direct − M_edited. Above 0
    where the edit lowers the metric. Unit: the metric's, in the column `unit`. Source: Pearl 2001 (total and natural
    direct effect); Vig et al. 2020 (components as mediators); McGrath et al. 2023 (direct against total: later layers
    repair where total < direct). `indirect` is what the change does by way of later components, their interaction with
    the direct change included: Pearl's natural indirect effect of the reverse change, with the other sign.

    pairs: label → (condition with the edits, condition with `conditions.direct` of the same edits). Each row is
    `results.contrast` of two conditions, over the trained models that have all three, so that the three rows are of the
    same models and examples: `estimate low high interval level n_models n_examples planned run skipped seed_low
    seed_high`.

    Raises ValueError for no pairs, a label without a pair of two conditions, an unknown condition or metric (it lists
    those there are), three conditions that no trained model has together, and as `results.check` does.

    >>> frame = pd.DataFrame({"model": "m", "model_seed": 0, "condition": ["clean", "cut", "straight"], "example": 0,
    ...     "skipped": None, "log_prob": [0.0, -3.0, -1.0]})
    >>> frame = frame.astype(dict.fromkeys(["model", "condition", "skipped"], "category"))
    >>> table = direct_against_total(frame, {"answer": ("cut", "straight")}, clean="clean", metric="log_prob")
    >>> table[["label", "effect", "estimate", "unit"]].values.tolist()
    [['answer', 'total', 3.0, 'nats'], ['answer', 'direct', 1.0, 'nats'], ['answer', 'indirect', 2.0, 'nats']]
    """
    if not isinstance(pairs, Mapping) or not pairs:
        raise ValueError(f"pairs are {pairs!r}; give label → (condition with the edits, condition with direct(edits))")
    rows = []
    for label, pair in pairs.items():
        if isinstance(pair, str) or len(pair) != 2 or len({clean, *pair}) != 3:
            raise ValueError(f"{label!r} pairs {pair!r} with clean {clean!r}; give two conditions, all three different")
        edited, straight = pair
        trained = _wide(frame, [edited, straight], clean, None, metric)
        mine = pd.MultiIndex.from_frame(frame[_TRAINED].astype({"model": object})).isin(list(trained))
        kept = frame[mine | ~frame["condition"].isin([clean, edited, straight])]
        for kind in dict.fromkeys(kind for kind, _ in trained):
            effects = {"total": (clean, edited), "direct": (clean, straight), "indirect": (straight, edited)}
            for effect, (a, b) in effects.items():
                row = contrast(kept, a, b, metric, kind, level)
                row.insert(1, "label", label)
                row.insert(2, "effect", effect)
                row.insert(row.columns.get_loc("metric") + 1, "unit", UNITS.get(metric, ""))
                rows.append(row)
    return pd.concat(rows, ignore_index=True)


def _wide(frame: pd.DataFrame, conditions: Sequence[str], clean: str, corrupt: str | None, metric: str) -> Trained:
    """Trained model → its examples: a column of the metric per condition, and `skipped`; of those that have all."""
    check_columns(frame)
    if isinstance(conditions, str) or not len(conditions) or len(set(conditions)) < len(conditions):
        raise ValueError(f"the conditions are {conditions!r}; give a list of one or more, each once")
    if clean == corrupt:
        raise ValueError(f"clean and corrupt are both {clean!r}; there is no way between them. Name two conditions")
    wanted = list(dict.fromkeys([clean, *([] if corrupt is None else [corrupt]), *conditions]))
    for what, asked, there in (
        ("condition", wanted, frame["condition"].unique()),
        ("metric", [metric], metrics(frame)),
    ):
        if unknown := [name for name in asked if name not in there]:
            raise ValueError(f"{what} {unknown[0]!r} is not in the results. {nearest(unknown[0], map(str, there))}")
    rows = frame.loc[frame["condition"].isin(wanted), [*KEYS, metric]]
    check(rows)
    found: Trained = {}
    for (kind, seed), cell in rows.groupby(_TRAINED, observed=True):
        wide = cell.astype({"condition": str, metric: float}).pivot(index="example", columns="condition", values=metric)
        skipped = cell.drop_duplicates("example").set_index("example")["skipped"].reindex(wide.index)
        ran = skipped.isna()
        if set(wanted) <= set(wide) and (not ran.any() or wide.loc[ran, wanted].notna().all(axis=None)):
            found[str(kind), int(seed)] = wide[wanted].assign(skipped=skipped)
    if not found:
        where = ", ".join(map(repr, wanted))
        raise ValueError(f"no trained model has {metric!r} in all of {where}; run them on the same models")
    return found


def _gap(wide: pd.DataFrame, clean: str, corrupt: str) -> pd.Series:
    """m_clean − m_corrupt of each example, NaN within rounding of 0."""
    gap, scale = wide[clean] - wide[corrupt], np.nanmax(np.append(wide[[clean, corrupt]].abs(), 0.0))
    return gap.where(gap.abs() > _ROUNDING * scale)


def _apart(wide: pd.DataFrame, clean: str, corrupt: str, level: float) -> bool:
    """Whether the mean distance from clean to corrupt differs from 0, in one trained model."""
    gap, scale = (wide[clean] - wide[corrupt]).to_numpy(), wide[[clean, corrupt]].abs().max(axis=None)
    if abs(gap.mean()) <= _ROUNDING * scale or len(gap) < 2:
        return False
    interval = mean_interval([gap], level=level, bounds=None)
    return not interval.low <= 0 <= interval.high


def _ratio(wide: pd.DataFrame, condition: str, clean: str, corrupt: str) -> np.ndarray:
    """Values whose mean is the ratio of means, and whose spread is what examples contribute to its error."""
    share, gap = (wide[condition] - wide[corrupt]).to_numpy(), (wide[clean] - wide[corrupt]).to_numpy()
    ratio = share.mean() / gap.mean()
    return ratio + (share - ratio * gap) / gap.mean()


def _interval(values: list[np.ndarray], lost: int, n_models: int, level: float) -> Interval:
    if values:
        return mean_interval(values, level=level, bounds=None)
    why = f"clean and corrupt are not told apart in {lost} of {n_models} models" if lost else "no example ran"
    return Interval(np.nan, np.nan, np.nan, f"no interval ({why})")


def _numbers(cells: list[pd.DataFrame], ran: list[pd.DataFrame], interval: Interval, level: float) -> dict[str, Any]:
    planned, run, sizes = sum(map(len, cells)), sum(map(len, ran)), {len(one) for one in ran}
    return {
        "estimate": interval.estimate, "low": interval.low, "high": interval.high, "interval": interval.kind,
        "level": level, "n_models": len(ran), "n_examples": sizes.pop() if len(sizes) == 1 else pd.NA,
        "planned": planned, "run": run, "skipped": planned - run,
    }  # fmt: skip
