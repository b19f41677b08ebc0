"""Every head of a model in one picture: as a map of layers and heads, and as effect against weight."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from workbench.figures.frames import check_numbers, check_one_kind
from workbench.figures.squares import Scale, Squares, note, paint, side
from workbench.figures.style import ACCENT, BLUE, heading, settled, styled, wrapped

Heads = Iterable[tuple[int, int]]


@styled
def layer_head_map(
    frame: pd.DataFrame, *, value: str, label: str | None = None, title: str | None = None, marked: Heads = ()
) -> Figure:
    """A square a head, layers in rows and heads in columns, with its number written in it.

    frame: columns layer, head (from 0) and the one that `value` names, one row a head; with a column model_seed too,
    one row a head and trained model: the number is their mean, and each is a dot in the square. A head without a row,
    or with NaN, says "–" and is left white. Where some value is below 0, colours are the same on both sides of 0, and
    squares below it are hatched.
    label: what the colour bar says, `value` without it. marked: (layer, head) to draw a box around.

    Raises ValueError for missing columns, no rows, rows given twice, several kinds of model or edits (in columns model
    and edit), infinite values, no value at all, and marked heads that the frame lacks.

    >>> frame = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "effect": [0.0, 0.1, -0.02, 0.5]})
    >>> [text.get_text() for text in layer_head_map(frame, value="effect", marked=[(1, 1)]).axes[0].texts[:4]]
    ['0.000', '0.100', '−0.020', '0.500']
    """
    marks = _checked(frame, [value], marked)
    layers, heads = (sorted(frame[name].unique()) for name in ("layer", "head"))
    squares = Squares.of(frame, value, ("layer", "head"), (layers, heads))
    size = side(squares)
    figure = Figure(figsize=(size[0] + 1.9, size[1] + 1.4), layout="constrained")
    axes = figure.subplots()
    scale = Scale.of(squares.values)
    paint(figure, {axes: squares}, scale, label or value)
    for layer, head in marks:
        _box(axes, layers.index(layer), heads.index(head))
    axes.set_xticks(range(len(heads)), [str(head) for head in heads])
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set(xlabel="head", ylabel="layer")
    heading(axes, title, note([squares], scale), width=max(size[0] + 0.8, 2.4))
    return settled(figure)


def _box(axes: Axes, row: int, column: int) -> None:
    box = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=ACCENT, linewidth=2.2, label="marked")
    box.set(zorder=4, clip_on=False)
    box.set_path_effects([withStroke(linewidth=4.4, foreground="white")])
    axes.add_patch(box)


@styled
def effect_against_weight(
    frame: pd.DataFrame,
    *,
    weights: tuple[float, float],
    effects: tuple[float, float],
    weight: str = "weight",
    effect: str = "effect",
    weight_label: str | None = None,
    effect_label: str | None = None,
    title: str | None = None,
    marked: Heads = (),
) -> Figure:
    """A dot a head: what its weights show, and what cutting it does. The two corners in which the one does not tell the
    other are hatched, and the heads in them are named beneath.

    frame: columns layer, head and the two that `weight` and `effect` name, one row a head; with a column model_seed
    too, one row a head and trained model: each is a small dot, joined to the mark of the head's mean.
    weights: the largest weight that is small, the smallest that is large. effects: the largest size of an effect that
    is none, the smallest that is large; an effect counts as large whichever way it goes. Ends count.
    marked: (layer, head) to name beside the dot.

    Raises ValueError for missing columns, no rows, rows given twice, several kinds of model or edits (in columns model
    and edit), NaN or infinite values, marked heads that the frame lacks, and bounds that are not in order.

    >>> frame = pd.DataFrame({"layer": 0, "head": [0, 1], "weight": [0.9, 0.01], "effect": [0.0, 0.4]})
    >>> figure = effect_against_weight(frame, weights=(0.1, 0.5), effects=(0.01, 0.1))
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['large weight, no effect: 1 of 2 heads (L0H0)', 'small weight, large effect: 1 of 2 heads (L0H1)']
    """
    marks = _checked(frame, [weight, effect], marked)
    for bounds, what in ((weights, "weights"), (effects, "effects")):
        if not 0 <= bounds[0] < bounds[1]:
            raise ValueError(f"{what} is {bounds}; give what is small and what is large, as 0 ≤ small < large")
    if frame[[weight, effect]].isna().any(axis=None):
        raise ValueError(f"{weight!r} or {effect!r} is NaN for some heads; leave out heads that were not measured")
    seeds, note = frame, ""
    if "model_seed" in frame and (n := frame["model_seed"].nunique()):
        note = f"Marks: mean of {n} trained models. Small dots: one each." if n > 1 else "One trained model."
        frame = frame.groupby(["layer", "head"], observed=True)[[weight, effect]].mean().reset_index()
    x, y = frame[weight].to_numpy(float), frame[effect].to_numpy(float)
    idle = (x >= weights[1]) & (np.abs(y) <= effects[0])
    hidden = (x <= weights[0]) & (np.abs(y) >= effects[1])
    figure = Figure(figsize=(6.8, 4.9), layout="constrained")
    axes = figure.subplots()
    for which, (shape, color, label) in zip((~(idle | hidden), idle, hidden), _KINDS, strict=True):
        axes.scatter(x[which], y[which], marker=shape, label=label, **_dot(color))
    if len(seeds) > len(frame):
        _seeds(axes, seeds, frame, weight, effect)
    _limits(axes, seeds[weight].to_numpy(float), np.append(seeds[effect].to_numpy(float), effects[1]))
    _corners(axes, weights, effects, below=bool((y <= -effects[1]).any()))
    axes.set_xlabel(wrapped(weight_label or weight, 6, 9), parse_math=False)
    axes.set_ylabel(wrapped(effect_label or effect, 4, 9), parse_math=False)
    axes.axhline(0, color="0.35", linewidth=0.8, zorder=1)
    _name(axes, frame, x, y, marks)
    _legend(figure, axes, frame, idle, hidden)
    heading(axes, title, note, width=6)
    return settled(figure)


_KINDS = (
    ("o", BLUE, "other heads"),
    ("s", "0.35", "large weight, no effect"),
    ("^", ACCENT, "small weight, large effect"),
)


def _dot(color: Any) -> dict[str, Any]:
    return {"s": 30, "color": color, "edgecolors": "white", "linewidths": 0.6, "zorder": 3, "clip_on": False}


def _seeds(axes: Axes, seeds: pd.DataFrame, means: pd.DataFrame, weight: str, effect: str) -> None:
    """A small dot a head and trained model, and a hair from it to the head's mean."""
    both = seeds.merge(means, on=["layer", "head"], suffixes=("", " mean"))
    ends = both[[weight, effect, f"{weight} mean", f"{effect} mean"]].to_numpy(float)
    hairs = LineCollection(rearrange(ends, "row (end xy) -> row end xy", end=2), colors="0.6", linewidths=0.5)
    hairs.set(label="to the mean", zorder=2)
    axes.add_collection(hairs, autolim=False)
    axes.scatter(ends[:, 0], ends[:, 1], s=6, color="0.4", linewidths=0, label="one trained model", zorder=2.5)


def _limits(axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
    for set_limits, values in ((axes.set_xlim, np.append(x, 0)), (axes.set_ylim, np.append(y, 0))):
        room = 0.06 * float(np.ptp(values)) or 0.06
        set_limits(float(values.min()) - room, float(values.max()) + room)


def _corners(axes: Axes, weights: tuple[float, float], effects: tuple[float, float], *, below: bool) -> None:
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    spans = [(weights[1], -effects[0], right, effects[0], "\\\\\\\\", "corner: large weight, no effect")]
    spans += [(left, effects[1], weights[0], top, "////", "corner: small weight, large effect")]
    if below:
        spans += [(left, bottom, weights[0], -effects[1], "////", "corner: small weight, large effect")]
    for x, y, to_x, to_y, hatch, label in spans:
        if x < to_x and y < to_y:
            corner = Rectangle((x, y), to_x - x, to_y - y, facecolor="0.94", edgecolor="0.7", hatch=hatch, linewidth=0)
            corner.set(label=label, zorder=0)
            axes.add_patch(corner)


def _name(axes: Axes, frame: pd.DataFrame, x: np.ndarray, y: np.ndarray, marks: Sequence[tuple[int, int]]) -> None:
    at = {(int(a), int(b)): n for n, (a, b) in enumerate(zip(frame["layer"], frame["head"], strict=True))}
    for mark in marks:
        point = x[at[mark]], y[at[mark]]
        axes.scatter(*point, s=90, facecolors="none", edgecolors="black", linewidths=1.4, label="marked", zorder=4)
        leftward = point[0] > sum(axes.get_xlim()) / 2
        axes.annotate(
            f"L{mark[0]}H{mark[1]}", point, xytext=(-8 if leftward else 8, 7), textcoords="offset points",
            ha="right" if leftward else "left", fontsize=9, annotation_clip=False,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip


def _legend(figure: Figure, axes: Axes, frame: pd.DataFrame, idle: np.ndarray, hidden: np.ndarray) -> None:
    handles, texts = [], []
    for which, (shape, color, label) in zip((idle, hidden), _KINDS[1:], strict=True):
        names = [f"L{layer}H{head}" for layer, head in frame.loc[which, ["layer", "head"]].to_numpy(int)]
        named = f" ({', '.join(names)})" if names else ""
        texts.append(wrapped(f"{label}: {len(names)} of {len(frame)} heads{named}", 6, 8))
        handles.append(axes.scatter([], [], marker=shape, **_dot(color)))
    figure.legend(handles, texts, loc="outside lower left", fontsize=8)


def _checked(frame: pd.DataFrame, values: Sequence[str], marked: Heads) -> list[tuple[int, int]]:
    check_one_kind({"frame": frame})
    check_numbers(frame, values, ["layer", "head"])
    there = set(zip(frame["layer"], frame["head"], strict=True))
    marks = [(int(layer), int(head)) for layer, head in marked]
    if missing := [mark for mark in marks if mark not in there]:
        raise ValueError(f"marked names {missing}, as (layer, head), which the frame lacks; it has {len(there)} heads")
    return marks
