"""Many single edges in one picture: what each one's weight is, and what cutting it does."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from workbench.figures.frames import check_numbers
from workbench.figures.style import ACCENT, literal, settled, styled, wrapped
from workbench.tables import percent

CELLS = 36  # hexagons across a panel


@styled
def effects_of_edges(
    frame: pd.DataFrame,
    panels: dict[str, tuple[str, str]],
    *,
    weights: tuple[float, float],
    effects: tuple[float, float],
    weight_label: str = "weight",
    effect_label: str = "effect",
    title: str | None = None,
) -> Figure:
    """How many edges lie where, by weight and effect: a panel for each pair of columns in `panels` (heading → weight,
    effect), a row of the frame an edge. Boxes are drawn around the two corners in which the one does not tell the
    other, with the share of all edges that lies in them, as `corner_shares` gives it.

    weights: the largest weight that is small, the smallest that is large; effects: the largest effect that is none, the
    smallest that is large; ends count. Weights and effects lie in 0..1.

    Raises ValueError for missing columns, no rows, NaN or infinite values, and bounds that are not in order.

    >>> frame = pd.DataFrame({"w": [0.5, 0.01, 0.2], "e": [0.0, 0.4, 0.2]})
    >>> figure = effects_of_edges(frame, {"cut": ("w", "e")}, weights=(0.02, 0.12), effects=(0.01, 0.1))
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['33.3%', '33.3%']
    """
    shares = {name: corner_shares(frame, *pair, weights=weights, effects=effects) for name, pair in panels.items()}
    figure = Figure(figsize=(1.2 + 3.5 * len(panels), 3.9), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    norm = LogNorm(1, max(len(frame) / 4, 2))
    for axes, (name, (weight, effect)) in zip(grid, panels.items(), strict=True):
        x, y = frame[weight].to_numpy(float), frame[effect].to_numpy(float)
        top = max(float(x.max()), 1.2 * weights[1]), max(float(y.max()), 1.2 * effects[1])
        cells = axes.hexbin(x, y, gridsize=CELLS, extent=(0, top[0], 0, top[1]), mincnt=1, norm=norm,
                            cmap=colormaps["Blues"], linewidths=0.1)  # fmt: skip
        _corners(axes, weights, effects, top, shares[name])
        axes.set(xlim=(-0.02 * top[0], 1.02 * top[0]), ylim=(-0.02 * top[1], 1.02 * top[1]))
        axes.set_xlabel(literal(weight_label), parse_math=False)
        axes.set_title(wrapped(name, 3.2, 9), loc="left", fontsize=9, parse_math=False)
    grid[0].set_ylabel(literal(effect_label), parse_math=False)
    bar = figure.colorbar(cells, ax=list(grid), label="edges, on a logarithmic scale", pad=0.02)
    # Plain numbers: powers are written as mathematics, which these figures leave out.
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


def corner_shares(
    frame: pd.DataFrame, weight: str, effect: str, *, weights: tuple[float, float], effects: tuple[float, float]
) -> tuple[float, float]:
    """Of all edges, which share has a large weight and no effect, and which a small weight and a large effect.

    Raises ValueError as `effects_of_edges` does.
    """
    check_numbers(frame.assign(edge=range(len(frame))).drop(columns="model_seed", errors="ignore"),
                  [weight, effect], ["edge"])  # fmt: skip
    if frame[[weight, effect]].isna().any(axis=None):
        raise ValueError(f"{weight!r} or {effect!r} is NaN for some edges; leave out edges that were not measured")
    for bounds, what in ((weights, "weights"), (effects, "effects")):
        if not 0 <= bounds[0] < bounds[1]:
            raise ValueError(f"{what} is {bounds}; give what is small and what is large, as 0 ≤ small < large")
    idle = (frame[weight] >= weights[1]) & (frame[effect] <= effects[0])
    hidden = (frame[weight] <= weights[0]) & (frame[effect] >= effects[1])
    return float(idle.mean()), float(hidden.mean())


def _corners(
    axes: Axes, weights: Sequence[float], effects: Sequence[float], top: Sequence[float], shares: Sequence[float]
) -> None:
    (small, large), (none, much) = weights, effects
    boxes: list[tuple[tuple[float, float, float, float], Any]] = [
        ((large, 0, top[0], none), ((large + top[0]) / 2, none, "center", "bottom", 3, 3)),
        ((0, much, small, top[1]), (small, (much + top[1]) / 2, "left", "center", 4, 0)),
    ]
    for ((left, low, right, high), (x, y, ha, va, dx, dy)), share in zip(boxes, shares, strict=True):
        box = Rectangle((left, low), right - left, high - low, fill=False, edgecolor=ACCENT, linewidth=1.6)
        box.set(clip_on=False, zorder=4)
        axes.add_patch(box)
        axes.annotate(percent(share), (x, y), xytext=(dx, dy), textcoords="offset points", ha=ha, va=va, fontsize=8,
                      color="black", zorder=5)  # fmt: skip
