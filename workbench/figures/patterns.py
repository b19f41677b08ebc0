"""Attention patterns as grids: one head and one example a grid, square or not, masked by whatever mask is given."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import seaborn as sns
from einops import rearrange
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from workbench.figures.grid import (
    LABELLED,
    Cells,
    Grid,
    Orientation,
    box_sides,
    label_step,
    laid_out,
    note,
    tiled,
)
from workbench.figures.style import ACCENT, GREY, heading, in_a_row, inches, literal, settled, styled

PRINTED = 16  # most tokens with their weights printed


@styled
def pattern_grid(
    pattern: Any,
    source_tokens: Sequence[str],
    dest_tokens: Sequence[str],
    *,
    visible: Any = None,
    boxed: Cells = (),
    title: str | None = None,
    orientation: Orientation = "lecture",
    ax: Axes | None = None,
) -> Figure:
    """One head's attention weights on one example, as a grid.

    pattern [dest source]: weights after the softmax, on a colour scale fixed at 0 to 1.
    visible [dest source]: True where the mask lets the query look; hidden cells are crossed out and left unfilled.
    Without it every cell is visible: no triangle is assumed.
    boxed: (dest, source) cells to draw a box around.
    orientation: "lecture" has sources in rows and queries in columns, "dest-rows" the transpose.
    ax: axes to draw in; without it a new figure is made.

    Up to 16 tokens, weights of 0.05 and more are printed. Beyond 64, tokens are labelled at intervals and hidden cells
    are grey, crossed in blocks; beyond 512, a square is the largest weight of a tile of cells. The figure says so.

    Raises ValueError for shapes that do not fit the tokens, NaN, weights outside 0..1, weight on a hidden cell and
    boxes outside the grid.

    >>> figure = pattern_grid([[1.0, 0.0], [0.3, 0.7]], "ab", "ab", visible=[[True, False], [True, True]])
    >>> figure.axes[0].get_xlabel()
    'destination (query)'
    """
    grid = laid_out(pattern, source_tokens, dest_tokens, visible, boxed, orientation)
    if ax is not None:
        cells = _draw(ax, grid, title)
        ax.figure.colorbar(cells, ax=ax, label="attention weight")
        figure = ax.get_figure(root=True)
        assert figure is not None
        return figure
    return _figure({"": grid}, [title], columns=1)


@styled
def pattern_grids(
    patterns: Mapping[str, Any],
    source_tokens: Sequence[str],
    dest_tokens: Sequence[str],
    *,
    visible: Any = None,
    boxed: Mapping[str, Cells] | None = None,
    title: str | None = None,
    orientation: Orientation = "lecture",
    columns: int = 4,
) -> Figure:
    """Several layers or heads on the same example, side by side, with one colour bar; see `pattern_grid`.

    patterns: name, written above the grid → pattern [dest source].
    visible [dest source]: one mask for all, or name → mask.
    boxed: name → (dest, source) cells.
    columns: grids in a row of the figure, at most.

    Raises ValueError for no pattern, for names that are not among the patterns, and as `pattern_grid` does.

    >>> figure = pattern_grids({"layer 1": [[1.0]], "layer 2": [[1.0]]}, "a", "a", boxed={"layer 2": [(0, 0)]})
    >>> [axes.get_title(loc="left") for axes in figure.axes[:2]]
    ['layer 1', 'layer 2']
    """
    if not patterns:
        raise ValueError("pattern_grids got no pattern; give at least one, as {name: pattern [dest source]}")
    masks = visible if isinstance(visible, Mapping) else dict.fromkeys(patterns, visible)
    boxes = boxed or {}
    for given, what in ((masks, "visible"), (boxes, "boxed")):
        if unknown := set(given) - set(patterns):
            raise ValueError(f"{what} names {sorted(unknown)}, which no pattern has; the patterns are {list(patterns)}")
    grids = {
        name: laid_out(pattern, source_tokens, dest_tokens, masks.get(name), boxes.get(name, ()), orientation)
        for name, pattern in patterns.items()
    }
    return _figure(grids, list(grids), columns=in_a_row(columns, len(grids)), title=title)


def _figure(
    grids: Mapping[str, Grid], titles: Sequence[str | None], *, columns: int, title: str | None = None
) -> Figure:
    first = next(iter(grids.values()))
    rows = ceil(len(grids) / columns)
    height, width = (_side(n, first.longer) for n in first.weights.shape)
    margins = [max(inches(token, 9) for token in tokens) + 0.6 for tokens in (first.columns.tokens, first.rows.tokens)]
    size = (columns * (width + margins[1]) + 1.1, rows * (height + margins[0] + 0.6) + (0.3 if title else 0))
    figure = Figure(figsize=size, layout="compressed")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, grid, name in zip(panels.flat, grids.values(), titles, strict=False):
        cells = _draw(axes, grid, name, width=max(width, 2.4))
    for axes in panels.flat[len(grids) :]:
        axes.remove()
    figure.colorbar(cells, ax=list(panels.flat[: len(grids)]), label="attention weight", pad=0.02, aspect=20 * rows)
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


def _side(cells: int, longer: int) -> float:
    return max(cells * _pitch(longer), 1.2)


def _pitch(longer: int) -> float:
    """How wide a square is, in inches."""
    return min(0.42, 6.8 / longer)


def _draw(axes: Axes, grid: Grid, title: str | None, *, width: float = 4.0) -> Collection:
    """Draws the grid and returns its cells, which a colour bar explains."""
    rows, columns = grid.weights.shape
    small, long = grid.longer <= PRINTED, grid.longer > LABELLED
    printed = np.where(grid.weights >= 0.05, np.char.mod("%.2f", grid.weights), "") if small else None
    sns.heatmap(
        grid.weights, mask=grid.hidden, vmin=0, vmax=1, square=0.25 <= rows / columns <= 4,
        cmap=colormaps["Blues"].with_extremes(bad="0.85" if long else "none"), rasterized=not small,
        annot=printed, fmt="", annot_kws={"fontsize": 7.5},
        xticklabels=False, yticklabels=False, cbar=False, ax=axes,
    )  # fmt: skip
    cells = axes.collections[-1]
    _cross_out(axes, grid.hidden)
    _draw_boxes(axes, grid)
    axes.spines[:].set_visible(True)
    axes.set(xlabel=grid.columns.name, ylabel=grid.rows.name)
    _label(axes, grid)
    heading(axes, title, note(grid), width=width)
    return cells


def _draw_boxes(axes: Axes, grid: Grid) -> None:
    height, width = box_sides(grid)
    line = 2.2 if grid.longer <= 2 * PRINTED else 1.3
    for row, column in grid.boxed:
        corner = (column + 0.5 - width / 2, row + 0.5 - height / 2)
        box = Rectangle(corner, width, height, fill=False, edgecolor=ACCENT, zorder=4)
        box.set(linewidth=line, label="boxed", clip_on=False)
        box.set_path_effects([withStroke(linewidth=2 * line, foreground="white")])
        axes.add_patch(box)


def _cross_out(axes: Axes, hidden: np.ndarray) -> None:
    """A cross for each hidden square, or for each wholly hidden block where squares are too small."""
    height, width = (ceil(n / 32) if n > LABELLED else 1 for n in hidden.shape)
    corners = np.argwhere(tiled(hidden, height, width, False, "min"))[:, ::-1]
    strokes = np.array([[(0.2, 0.2), (0.8, 0.8)], [(0.2, 0.8), (0.8, 0.2)]])  # [stroke end xy]
    points = rearrange(corners[:, None, None] + strokes, "cross stroke end xy -> (cross stroke end) xy")
    crosses = Path(points * (width, height), np.tile([Path.MOVETO, Path.LINETO], len(points) // 2))
    axes.add_patch(PathPatch(crosses, fill=False, edgecolor=GREY, linewidth=0.8, label="hidden"))


def _label(axes: Axes, grid: Grid) -> None:
    size = min(9.0, max(5.5, 0.8 * 72 * 6.8 / min(grid.longer, LABELLED)))
    for axis, tile, tokens in (
        (axes.xaxis, grid.columns.tile, grid.columns.tokens),
        (axes.yaxis, grid.rows.tile, grid.rows.tokens),
    ):
        step = label_step(len(tokens))
        kept = range(0, len(tokens), step)
        labels = [tokens[i] if step == 1 else f"{i}: {tokens[i]}" for i in kept]
        axis.set_ticks([i // tile + 0.5 for i in kept], labels, fontsize=size if step == 1 else 6.5, parse_math=False)
    if (
        any(inches(token, size) > 0.8 * _pitch(grid.longer) for token in grid.columns.tokens)
        or label_step(len(grid.columns.tokens)) > 1
    ):
        axes.tick_params(axis="x", rotation=90)
