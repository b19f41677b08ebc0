"""Contrasts as a forest: a row a contrast, every trained model a dot, and what they say together."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from workbench.figures.frames import check_one_kind, check_rows
from workbench.figures.measured import MARK, heights_of, rows_of
from workbench.figures.style import ACCENT, BLUE, inches, literal, settled, styled, wrapped
from workbench.tables import p_value


@styled
def contrast_forest(
    table: pd.DataFrame,
    tests: pd.DataFrame,
    *,
    labels: Mapping[tuple[str, str], str] | None = None,
    label: str | None = None,
    share: bool = False,
    title: str | None = None,
) -> Figure:
    """Each contrast a − b: a dot a trained model, filled where its own corrected p is below 0.05; a diamond and bar for
    their mean and interval, with their numbers and the largest p beside.

    table: columns a, b, estimate, low, high; one row a contrast, as `contrast_table` gives it for one kind of model;
    NaN low and high draw no bar, NaN estimate draws "not measured".
    tests: columns a, b, model_seed, difference, p_holm, family; one row a contrast and trained model, as
    `paired_tests` gives them.
    labels: (a, b) → what the row says; without it "a − b", or a where all have one b, which the axis then names.
    label: what is compared, with its unit. share: whether differences are of shares, drawn in percentage points.

    Raises ValueError for missing columns, no rows, rows given twice, several kinds of model (in the column model of the
    frames), contrasts without tests, labels of no contrast, tests of several families and an interval that does not
    hold its estimate.

    >>> table = pd.DataFrame({"a": ["cut"], "b": ["clean"], "estimate": [-0.5], "low": [-0.6], "high": [-0.4]})
    >>> tests = pd.DataFrame({"a": "cut", "b": "clean", "model_seed": [0, 1], "difference": [-0.45, -0.55],
    ...                       "p_holm": [0.001, 0.2], "family": 2})
    >>> contrast_forest(table, tests).axes[0].get_xlabel()
    'difference from clean'
    """
    _check(table, tests, labels or {})
    pairs = list(zip(table["a"].astype(str), table["b"].astype(str), strict=True))
    base = pairs[0][1] if len({b for _, b in pairs}) == 1 else None
    names = {(a, b): f"{a} − {b}" if base is None else a for a, b in pairs} | dict(labels or {})
    said = [wrapped(names[pair], 3.4, 9) for pair in pairs]
    per_row = max(0.46, 0.16 * max(row.count("\n") + 1 for row in said) + 0.1)
    width = 4.4 + max(inches(row, 9) for row in said) + 2.6
    figure = Figure(figsize=(width, 1.6 + per_row * len(said)), layout="constrained")
    axes = figure.subplots()
    rows_of(axes, said)
    heights = heights_of(tests["model_seed"])
    for row, (pair, one) in enumerate(zip(pairs, table.to_dict("records"), strict=True)):
        own = tests[(tests["a"].astype(str) == pair[0]) & (tests["b"].astype(str) == pair[1])]
        _dots(axes, row, own, heights)
        _mean(axes, row, one, own["p_holm"].max(), share=share)
    axes.axvline(0, color="0.35", linewidth=1, zorder=1, label="no difference")
    if share:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:g}".replace("-", "−")))
    against = "difference a − b" if base is None else f"difference from {base}"
    unit = " (percentage points)" if share else ""
    axes.set_xlabel(wrapped(f"{label}: {against}{unit}" if label else f"{against}{unit}", 4.4, 9), parse_math=False)
    axes.margins(x=0.06)
    _legend(figure, axes, tests, bar=bool(table["low"].notna().any()))
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


def _dots(axes: Axes, row: int, own: pd.DataFrame, heights: Mapping[int, float]) -> None:
    for below in (True, False):
        some = own[(own["p_holm"] < 0.05) == below]
        axes.scatter(some["difference"], row + some["model_seed"].map(heights), **_dot(filled=below))


def _dot(*, filled: bool) -> dict[str, Any]:
    name = "one trained model, p < 0.05" if filled else "one trained model, p ≥ 0.05"
    face = BLUE if filled else "white"
    return {"s": 14, "facecolors": [face], "edgecolors": [BLUE], "linewidths": 0.8, "label": name, "zorder": 3}


def _mean(axes: Axes, row: int, one: Mapping[str, float], largest: float, *, share: bool) -> None:
    estimate, low, high = (float(one[name]) for name in ("estimate", "low", "high"))
    if np.isnan(estimate):
        text = "not measured"
    else:
        decimals = _decimals(estimate, low, high) if share else None
        bar = "" if np.isnan(low) else f"  [{_said(low, decimals)}, {_said(high, decimals)}]"
        text = f"{_said(estimate, decimals)}{bar}   {_largest(largest)}"
        if not np.isnan(low):
            axes.plot([low, high], [row + MARK] * 2, color="black", linewidth=1.8, label="interval", zorder=3)
        axes.plot(
            [estimate], [row + MARK], "D", markersize=6, color=ACCENT, markeredgecolor="black", markeredgewidth=0.8,
            label="mean", zorder=4,
        )  # fmt: skip
    axes.annotate(
        text, (1, row), xytext=(10, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
        fontsize=8, annotation_clip=False,
    )  # fmt: skip


def _decimals(estimate: float, low: float, high: float) -> int:
    """Decimals of percentage points: one, or as many as keep what is not 0 from reading 0, and the interval's ends
    apart. Differences below 1e-12 are those of rounding."""
    sizes = [100 * abs(value) for value in (estimate, low, high) if abs(value) > 1e-12]
    apart = high - low > 1e-12
    for decimals in range(1, 12):
        ends = {round(100 * low, decimals), round(100 * high, decimals)}
        if all(round(size, decimals) for size in sizes) and (len(ends) == 2 or not apart):
            break
    return decimals


def _said(value: float, decimals: int | None) -> str:
    """The number with its sign, in percentage points where it has decimals; adding 0.0 turns a rounded −0 into 0."""
    number = f"{value + 0.0:+.3g}" if decimals is None else f"{round(100 * value, decimals) + 0.0:+.{decimals}f}"
    return number.removeprefix("+") if float(number) == 0 else number.replace("-", "−")


def _largest(p: float) -> str:
    if np.isnan(p):
        return "no test"
    return "p < 1e-300" if p < 1e-300 else "p < 0.001" if p < 0.001 else f"p = {p_value(p)}"


def _legend(figure: Figure, axes: Axes, tests: pd.DataFrame, *, bar: bool) -> None:
    (mark,) = axes.plot([], [], "D", color="black", markerfacecolor=ACCENT, markersize=6, linewidth=1.8)
    mark.set_linestyle("-" if bar else "none")
    filled, hollow = (axes.scatter([], [], **_dot(filled=filled)) for filled in (True, False))
    models, family = tests["model_seed"].nunique(), int(tests["family"].max()) if len(tests) else 0
    texts = [
        f"one trained model ({models} of them): its own p < 0.05",
        "p ≥ 0.05",
        "mean, with its interval over trained models" if bar else "mean over trained models",
    ]
    figure.legend([filled, hollow, mark], texts, loc="outside lower center", ncols=3, fontsize=8)
    note = f"p: the largest of the trained models' own, corrected by Holm in a family of {family} tests."
    axes.annotate(
        note, (0, 1), xytext=(0, 4), xycoords="axes fraction", textcoords="offset points", va="bottom", fontsize=7,
        color="0.25",
    )  # fmt: skip


def _check(table: pd.DataFrame, tests: pd.DataFrame, labels: Mapping[tuple[str, str], str]) -> None:
    check_one_kind({"table": table, "tests": tests})
    check_rows(table, "table", ["a", "b", "estimate", "low", "high"], ["a", "b"])
    check_rows(tests, "tests", ["a", "b", "model_seed", "difference", "p_holm", "family"], ["a", "b", "model_seed"])
    pairs, tested = (set(zip(frame["a"].astype(str), frame["b"].astype(str), strict=True)) for frame in (table, tests))
    measured = table[table["estimate"].notna()]
    needed = set(zip(measured["a"].astype(str), measured["b"].astype(str), strict=True))
    if missing := sorted(needed - tested):
        raise ValueError(f"tests lack the contrasts {missing}; give paired_tests the pairs of the table")
    if unknown := sorted(set(labels) - pairs):
        raise ValueError(f"labels names {unknown}, as (a, b), which the table lacks; it has {sorted(pairs)}")
    if tests["family"].nunique() > 1:
        raise ValueError(f"tests are of families of {sorted(tests['family'].unique())}; correct them all together")
    outside = (table["estimate"] < table["low"] - 1e-9) | (table["estimate"] > table["high"] + 1e-9)
    if outside.any():
        raise ValueError(f"table's estimate lies outside low..high for {list(table.loc[outside, 'a'])}")
