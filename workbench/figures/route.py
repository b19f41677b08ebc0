"""The route a prediction takes, as the patterns suggest it: which source is copied to which dest in each layer."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from workbench.figures.style import ACCENT, BLUE, LONGEST, inches, literal, settled, styled, wrapped

Arrow = tuple[int, int, str]
Colour = tuple[float, float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top
HALF, GAP, MOST = 0.15, 1.35, 40  # half a token box and a layer's height in inches; most tokens
KEY = "arrow: copied from source to destination; grey line: the residual stream"


@styled
def route(
    tokens: Sequence[str],
    arrows_by_layer: Sequence[Sequence[Arrow]],
    *,
    layer_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Tokens in a row for the inputs and one for each layer, from the bottom up, with arrows for what is copied.

    arrows_by_layer: for each layer, (dest, source, label): an arrow from `source` before the layer to `dest` after it.
    layer_names: a name for each layer; "layer 0" and so on without it.

    Raises ValueError for no token, more than 40, no layer, positions that are not among the tokens and layer names
    that do not match the layers.

    >>> figure = route("a2a", [[(1, 0, "a")], [(2, 1, "2")]])
    >>> [text.get_text() for text in figure.axes[0].texts if "layer" in text.get_text()]
    ['after layer 0', 'after layer 1']
    """
    _check(tokens, arrows_by_layer, layer_names)
    names = [f"layer {layer}" for layer in range(len(arrows_by_layer))] if layer_names is None else layer_names
    shown = [literal(token, LONGEST) for token in tokens]
    rows = ["inputs", *(f"after {literal(name)}" for name in names)]
    pitch = max(0.72, max(inches(token, 11) for token in shown) + 0.35)
    left = max(inches(row, 9) for row in rows) + 0.25
    size = (max(left + pitch * len(shown) + 0.15, inches(KEY, 7.5) + 0.3), 0.95 + GAP * len(names))
    columns = left + pitch * (np.arange(len(shown)) + 0.5)
    axes, figure = _canvas(size, title)
    boxes = [0.6 + GAP * row for row in range(len(rows))]
    for below, above in pairwise(boxes):
        axes.vlines(columns, below + HALF, above - HALF, color="0.8", linewidth=1, label="residual", zorder=1)
    for layer, arrows in enumerate(arrows_by_layer):
        _draw_arrows(axes, columns, boxes[layer], arrows, BLUE if layer % 2 == 0 else ACCENT)
    for row, (height, name) in enumerate(zip(boxes, rows, strict=True)):
        axes.text(left - 0.12, height, name, ha="right", va="center", color="0.25", parse_math=False)
        reached = {dest for dest, _, _ in arrows_by_layer[row - 1]} if row else set()
        for position, token in enumerate(shown):
            _token(axes, columns[position], height, token, pitch - 0.22, bold=position in reached)
    axes.text(0.1, 0.15, KEY, fontsize=7.5, color="0.25", va="center")
    return settled(figure)


def _canvas(size: tuple[float, float], title: str | None) -> tuple[Axes, Figure]:
    """Axes over the whole figure whose units are inches, so that text can be kept apart by its size."""
    heading = "" if title is None else wrapped(title, size[0] - 0.2, 10)
    height = size[1] + 0.2 * (heading.count("\n") + 1 if heading else 0)
    figure = Figure(figsize=(size[0], height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, size[0]), ylim=(0, height))
    axes.set_axis_off()
    axes.text(0.1, height - 0.08, heading, fontsize=10, va="top", parse_math=False)
    return axes, figure


def _token(axes: Axes, x: float, y: float, token: str, width: float, *, bold: bool) -> None:
    corner = (x - width / 2, y - HALF)
    box = FancyBboxPatch(corner, width, 2 * HALF, boxstyle="round,pad=0,rounding_size=0.06", label="token", zorder=3)
    box.set(facecolor="white", edgecolor="black" if bold else "0.6", linewidth=1.8 if bold else 1)
    axes.add_patch(box)
    axes.text(x, y, token, ha="center", va="center_baseline", fontsize=11, zorder=4, parse_math=False)


def _draw_arrows(axes: Axes, columns: np.ndarray, height: float, arrows: Sequence[Arrow], colour: Colour) -> None:
    lines = [((columns[s], height + HALF), (columns[d], height + GAP - HALF)) for d, s, _ in arrows]
    placed: list[Box] = []
    for number, (start, end) in enumerate(lines):
        arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, shrinkA=0, shrinkB=0)
        arrow.set(linewidth=1.8, color=colour, zorder=2, label="arrow")
        axes.add_patch(arrow)
        text = literal(arrows[number][2])
        if not text:
            continue
        box = _free_place(text, (start, end), placed, lines[:number] + lines[number + 1 :])
        placed.append(box)
        ground = {"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none"}
        middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        axes.text(*middle, text, ha="center", va="center", fontsize=8, bbox=ground, zorder=5)


def _free_place(text: str, line: tuple, placed: Sequence[Box], others: Sequence[tuple]) -> Box:
    """The place along the arrow where its label covers least of the other labels and arrows."""
    half = (inches(text, 8) / 2 + 0.04, 0.09)
    places = []
    for order, along in enumerate((0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78)):
        x, y = np.array(line[0]) * (1 - along) + np.array(line[1]) * along
        box = (x - half[0], y - half[1], x + half[0], y + half[1])
        crossed = sum(_covers(box, other) for other in others)
        places.append((sum(_overlap(box, taken) for taken in placed) * 100 + crossed, order, box))
    return min(places)[2]


def _overlap(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


def _covers(box: Box, line: tuple) -> float:
    points = np.linspace(line[0], line[1], 50)
    inside = (points[:, 0] > box[0]) & (points[:, 0] < box[2]) & (points[:, 1] > box[1]) & (points[:, 1] < box[3])
    return float(inside.mean())


def _check(tokens: Sequence[str], arrows_by_layer: Sequence[Sequence[Arrow]], names: Sequence[str] | None) -> None:
    if not 1 <= len(tokens) <= MOST:
        raise ValueError(f"route got {len(tokens)} tokens and draws 1 to {MOST}; give the part that matters")
    if not arrows_by_layer:
        raise ValueError("route got no layer; give a list of (dest, source, label) for each layer, empty where none")
    if names is not None and len(names) != len(arrows_by_layer):
        raise ValueError(f"layer_names has {len(names)} names, and arrows_by_layer has {len(arrows_by_layer)} layers")
    for layer, arrows in enumerate(arrows_by_layer):
        for dest, source, _ in arrows:
            if not (0 <= dest < len(tokens) and 0 <= source < len(tokens)):
                raise ValueError(
                    f"the arrow from source {source} to dest {dest} in layer {layer} leaves the tokens, "
                    f"whose positions are 0 to {len(tokens) - 1}"
                )
