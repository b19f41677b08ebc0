"""Lines in panels that share their axes: one value against another, a panel for each kind of thing."""

from collections.abc import Mapping
from math import ceil

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, PercentFormatter

from workbench.figures.frames import check_numbers, check_rows
from workbench.figures.style import ACCENT, BLUE, in_a_row, literal, settled, styled, wrapped

FEW = 8  # so many values of x are each named on the axis


@styled
def lines_by_panel(
    table: pd.DataFrame,
    *,
    x_label: str,
    value_label: str,
    references: Mapping[str, pd.Series] | None = None,
    share: bool = False,
    columns: int = 4,
    line: str = "one trained model",
    title: str | None = None,
) -> Figure:
    """A value against x: in each panel a thin line a trained model, and a thick one for their mean.

    table: columns panel, x, model_seed, value; one row each, panels in the order in which they first appear; a missing
    value breaks its line. references: what a dashed line means → its values, indexed by x, the same in every panel.
    x_label, value_label: what the axes say, with the unit. share: whether values are shares, drawn in percent.
    line: what the legend calls a thin line, where a panel has several.

    Raises ValueError for missing columns, no rows, rows given twice, infinite values and less than one column.

    >>> table = pd.DataFrame({"panel": "learned", "x": [4, 8], "model_seed": 0, "value": [1.0, 0.4]})
    >>> [axes.get_title(loc="left") for axes in lines_by_panel(table, x_label="pairs", value_label="accuracy").axes]
    ['learned']
    """
    check_rows(table, "table", ["panel", "x", "model_seed", "value"], ["panel", "x", "model_seed"])
    check_numbers(table, ["value"], ["panel", "x"])
    panels = list(dict.fromkeys(table["panel"]))
    columns = in_a_row(columns, len(panels))
    rows = ceil(len(panels) / columns)
    figure = Figure(figsize=(1.0 + 2.1 * columns, 0.9 + 2.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _lines(axes, table[table["panel"] == panel])
        for known in (references or {}).values():
            axes.plot(known.index, known, color="0.35", linewidth=1, linestyle=(0, (4, 3)), label="reference", zorder=1)
        axes.set_title(wrapped(panel, 2.0, 10), loc="left", parse_math=False)
        axes.grid(visible=True, color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(wrapped(x_label, 2.0, 9), parse_math=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    _axes(grid[0, 0], sorted(table["x"].unique()), share=share)
    figure.supylabel(literal(value_label), fontsize=9, parse_math=False)
    _legend(figure, grid[0, 0], references or {}, line if table["model_seed"].nunique() > 1 else "")
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


def _lines(axes: Axes, own: pd.DataFrame) -> None:
    for _, one in own.groupby("model_seed"):
        one = one.sort_values("x")
        axes.plot(one["x"], one["value"], "o-", label="one trained model", **_thin())
    if own["model_seed"].nunique() > 1:
        mean = own.groupby("x")["value"].mean()
        axes.plot(mean.index, mean, "-", color=ACCENT, linewidth=2.2, label="mean", zorder=3)


def _thin() -> dict:
    return {"color": BLUE, "linewidth": 0.9, "alpha": 0.75, "markersize": 2.6, "markeredgewidth": 0, "zorder": 2}


def _axes(axes: Axes, known: list, *, share: bool) -> None:
    if len(known) <= FEW:
        axes.xaxis.set_major_locator(FixedLocator(_apart(known)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    if share:
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _apart(known: list) -> list:
    """The values whose names have room beside each other, the first and the last among them."""
    room, kept = 0.12 * (known[-1] - known[0]), known[:1]
    for value in known[1:-1]:
        if value - kept[-1] >= room and known[-1] - value >= room:
            kept.append(value)
    return [*kept, *known[1:][-1:]]


def _legend(figure: Figure, axes: Axes, references: Mapping[str, pd.Series], line: str) -> None:
    known = [(*axes.plot([], [], "o-", **_thin()), literal(line))] if line else []
    known += [(*axes.plot([], [], color=ACCENT, linewidth=2.2), "mean of these")] if line else []
    known += [
        (*axes.plot([], [], color="0.35", linewidth=1, linestyle=(0, (4, 3))), literal(name)) for name in references
    ]
    if known:
        lines, names = zip(*known, strict=True)
        figure.legend(lines, names, loc="outside lower center", ncols=len(known))
