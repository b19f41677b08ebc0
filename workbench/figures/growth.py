"""Growth: how long a piece of work takes against its size, on logarithmic axes, with the fitted power."""

from math import ceil

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from workbench.figures.frames import check_rows
from workbench.figures.style import PALETTE, in_a_row, literal, settled, styled, wrapped

MARKS = "osD^vP"


@styled
def growth_curves(
    points: pd.DataFrame,
    fits: pd.DataFrame,
    *,
    value_label: str = "seconds",
    columns: int = 3,
    title: str | None = None,
) -> Figure:
    """A value against sizes on two logarithmic axes: a panel for each size that is varied, a colour for each
    contestant, its fitted line dashed, and beneath the panel's name the fitted slopes with their intervals.

    points: columns panel, contestant, x, value, low, high: one row a point; low and high are its bar, or NaN.
    fits: columns panel, contestant, slope, low, high, constant: log₂ value = slope × log₂ x + constant.

    Raises ValueError for missing columns, no rows, rows given twice, a value or size that is not above 0, and points
    without a fit or more contestants than there are marks.

    >>> points = pd.DataFrame({"panel": "cells", "contestant": "ours", "x": [1, 2, 4], "value": [0.1, 0.2, 0.4]})
    >>> points = points.assign(low=float("nan"), high=float("nan"))
    >>> fits = pd.DataFrame([{"panel": "cells", "contestant": "ours", "slope": 1.0, "low": 0.9, "high": 1.1,
    ...                       "constant": -3.32}])
    >>> growth_curves(points, fits).axes[0].get_title(loc="left")
    'cells\\nours: 1.00 (0.90 to 1.10)'
    """
    _check(points, fits)
    panels, names = (list(dict.fromkeys(points[one])) for one in ("panel", "contestant"))
    columns = in_a_row(columns, len(panels))
    rows = ceil(len(panels) / columns)
    figure = Figure(figsize=(1.0 + 2.9 * columns, 0.8 + 2.9 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    looks = dict(zip(names, zip(sns.color_palette(PALETTE), MARKS, strict=False), strict=False))
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, points[points["panel"] == panel], fits[fits["panel"] == panel], looks)
        axes.set_title(_said(panel, fits[fits["panel"] == panel]), loc="left", fontsize=8, parse_math=False)
        axes.set_xlabel(wrapped(panel, 2.6, 9), parse_math=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    figure.supylabel(literal(value_label), fontsize=9, parse_math=False)
    handles = [
        *(grid[0, 0].plot([], [], mark, color=colour)[0] for colour, mark in looks.values()),
        grid[0, 0].plot([], [], color="0.35", linestyle=(0, (4, 3)), linewidth=1)[0],
    ]
    figure.legend(handles, [*map(literal, names), "fitted power"], loc="outside lower center", ncols=len(handles))
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


def _panel(axes: Axes, own: pd.DataFrame, fits: pd.DataFrame, looks: dict) -> None:
    for name, rows in own.groupby("contestant", sort=False):
        colour, mark = looks[name]
        rows = rows.sort_values("x")
        barred = rows[rows["low"].notna()]
        axes.vlines(barred["x"], barred["low"], barred["high"], color=colour, linewidth=1.2)
        axes.plot(rows["x"], rows["value"], mark, color=colour, markersize=4)
        fit = fits[fits["contestant"] == name].iloc[0]
        ends = rows["x"].to_numpy(float)[[0, -1]]
        line = 2.0 ** (fit["slope"] * np.log2(ends) + fit["constant"])
        axes.plot(ends, line, color=colour, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(own["x"].unique())))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.6g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)


def _said(panel: object, fits: pd.DataFrame) -> str:
    slopes = []
    for one in fits.to_dict("records"):
        interval = "" if np.isnan(one["low"]) else f" ({one['low']:.2f} to {one['high']:.2f})"
        slopes.append(f"{literal(one['contestant'])}: {one['slope']:.2f}{interval}")
    return "\n".join([literal(panel), *slopes])


def _check(points: pd.DataFrame, fits: pd.DataFrame) -> None:
    check_rows(points, "points", ["panel", "contestant", "x", "value", "low", "high"], ["panel", "contestant", "x"])
    check_rows(fits, "fits", ["panel", "contestant", "slope", "low", "high", "constant"], ["panel", "contestant"])
    numbers = points[["x", "value"]].to_numpy(float)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        raise ValueError("points holds sizes or values that are not above 0; they have no place on a logarithmic axis")
    known = set(zip(fits["panel"], fits["contestant"], strict=True))
    if unfitted := sorted(set(zip(points["panel"], points["contestant"], strict=True)) - known):
        raise ValueError(f"points of {unfitted[0]} have no fit; give a row of fits for each panel and contestant")
    if (n := points["contestant"].nunique()) > len(MARKS):
        raise ValueError(f"{n} contestants, and there are {len(MARKS)} marks to tell them apart; draw fewer")
