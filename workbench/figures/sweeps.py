"""Every cell of a sweep as a square, in a panel for each head, part or position."""

from collections.abc import Mapping
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.figures.frames import check_numbers, check_one_kind
from workbench.figures.grid import DEST, SOURCE
from workbench.figures.squares import MARKED, WIDE, Scale, Squares, note, paint, side
from workbench.figures.style import LONGEST, heading, in_a_row, inches, literal, settled, styled, wrapped
from workbench.sweep_plan import COORDINATES

PANELS = 40
ACROSS = 6  # most panels of a layer's heads in a row
OTHERS = 3  # most panels of other kinds in a row
TALL = 1.6  # inches of squares at the least, so that the colour bar has room for its label
LINE = 0.14  # inches of a line beneath the panels
NAMES = {"source": SOURCE, "dest": DEST, "part": "site", "pos": "position"}
DOTTED = "Dotted: the logits stay the same bit for bit."
TICKS = "Beside a position: the “token” or else the role that stands there in every example."

Words = Mapping[str, Mapping[int, str]]


@styled
def sweep_map(
    frame: pd.DataFrame,
    *,
    over: str,
    left_out: pd.DataFrame | None = None,
    words: Words | None = None,
    value: str = "effect",
    label: str | None = None,
    title: str | None = None,
    columns: int | None = None,
    part: str = "",
    remark: str = "",
) -> Figure:
    """A square a cell of a sweep; `Swept.heat_map` draws it.

    frame: one row a cell and trained model (each a dot): model_seed, the number that `value` names, unchanged (whether
    the logits stayed the same), and the places. over: "edges" and "roles" (source in rows, dest in columns, a panel for
    each layer and head), "heads" (layer in rows, head in columns, a panel for each part and position), "stream" (layer
    in rows; positions in columns and a panel for each part, or the parts in columns where there is one position).
    left_out: places that were not swept; other squares without a row, of edges and roles, are hidden by the mask.
    words: "dest" or "source" → position → what its axis says. columns: panels in a row of the figure, at most; without
    it 3, or where there are several heads up to 6 of a layer, each of which begins a row. part: of a model that has
    several, named in every panel's title. remark: a sentence beneath the panels.

    Raises ValueError for missing columns, no rows, rows given twice, several kinds of model, and more than 40 panels.

    >>> frame = pd.DataFrame({"layer": [0, 0], "head": 0, "dest": [0, 1], "source": 0, "effect": [0.0, -0.5],
    ...                       "unchanged": [True, False], "model_seed": 0})
    >>> [text.get_text() for text in sweep_map(frame, over="edges").axes[0].texts[:2]]
    ['0.000', '−0.500']
    """
    check_one_kind({"frame": frame})
    check_numbers(frame, [value], COORDINATES[over])
    axes_of, apart = _axes(frame, over)
    gone = frame.iloc[:0] if left_out is None else left_out
    order = tuple(_ordered(pd.concat([frame[name], gone[name]])) for name in axes_of)
    groups = list(frame.groupby(apart, observed=True, sort=False))
    if len(groups) > PANELS:
        raise ValueError(
            f"{len(groups)} panels, one for each {' and '.join(apart)}, do not fit; draw {PANELS} at most, "
            f"chosen by {' or '.join(f'{name}=' for name in apart)}"
        )
    panels, same = [], []
    for place, own in groups:
        missing = gone[(gone[apart] == list(place)).all(axis=1)]
        panels.append(_squares(own, missing, value, axes_of, order, masked="dest" in COORDINATES[over]))
        same.append(_unchanged(own, axes_of, order))
    names = [[_said(one, name, words) for one in several] for several, name in zip(order, axes_of, strict=True)]
    scale = Scale.of(np.concatenate([one.values for one in panels]))
    told = [remark, _explained(panels, scale), *([DOTTED] if any(same) else []), *([TICKS] if _worded(names) else [])]
    where = _layout([place for place, _ in groups], apart, columns)
    figure, axes = _figure(panels[0], names, where, title, " ".join(filter(None, told)))
    paint(figure, dict(zip(axes, panels, strict=True)), scale, label or value)
    for one, (place, _), dots in zip(axes, groups, same, strict=True):
        _dot(one, dots)
        _label(one, names, *axes_of)
        heading(one, f"{part} {_place(apart, place)}".strip(), width=max(side(panels[0])[0], 2.4))
    return settled(figure)


def _explained(panels: list[Squares], scale: Scale) -> str:
    """What the squares show, in words that fit trained models and others."""
    told = note(panels, scale).replace("trained model", "model")
    hatched = f"Hatched: below {scale.marked:.2g}.".replace("-", "−")
    return told.replace(hatched, f"Hatched: below 0 by more than {MARKED:.0%} of the scale's end.")


def _worded(names: list[list[str]]) -> bool:
    """Whether an axis says more of a position than its number."""
    return any(name.split(" ")[0].isdigit() and " " in name for several in names for name in several)


def _layout(places: list[tuple[Any, ...]], apart: list[str], columns: int | None) -> list[tuple[int, int]]:
    """The row and column of each panel: a layer begins a row where several of its heads are drawn."""
    layers: dict[Any, int] = {}
    for place in places:
        layers[place[0]] = layers.get(place[0], 0) + 1
    if apart != ["layer", "head"] or max(layers.values()) == 1:
        across = in_a_row(OTHERS if columns is None else columns, len(places))
        return [divmod(at, across) for at in range(len(places))]
    most = in_a_row(ACROSS if columns is None else columns, max(layers.values()))
    rows = ceil(max(layers.values()) / most)
    across, out = ceil(max(layers.values()) / rows), []
    for number, panels in enumerate(layers.values()):
        out += [(number * rows + at // across, at % across) for at in range(panels)]
    return out


def _axes(frame: pd.DataFrame, over: str) -> tuple[tuple[str, str], list[str]]:
    """What is in rows and in columns, and what in panels."""
    if over in ("edges", "roles"):
        return ("source", "dest"), ["layer", "head"]
    if over == "heads":
        return ("layer", "head"), ["part", "pos"]
    return (("layer", "pos"), ["part"]) if frame["pos"].nunique() > 1 else (("layer", "part"), ["pos"])


def _ordered(values: pd.Series) -> list[Any]:
    """As they were swept; numbers by size."""
    there = list(dict.fromkeys(values))
    return sorted(there) if all(isinstance(one, int | np.integer) for one in there) else there


def _squares(
    own: pd.DataFrame, missing: pd.DataFrame, value: str, axes: tuple[str, str], order: tuple, *, masked: bool
) -> Squares:
    found = Squares.of(own, value, axes, order)
    if masked:
        found.hidden[:] = np.isnan(found.mean)
        for one in missing[list(axes)].itertuples(index=False):
            found.hidden[order[0].index(one[0]), order[1].index(one[1])] = False
    return found


def _unchanged(own: pd.DataFrame, names: tuple[str, str], order: tuple) -> list[tuple[int, int]]:
    """Column and row of the squares whose cells changed no logit in any model."""
    same = own.groupby(list(names), observed=True)["unchanged"].all()
    return [(order[1].index(column), order[0].index(row)) for row, column in same[same].index]


def _dot(axes: Axes, squares: list[tuple[int, int]]) -> None:
    for column, row in squares:
        square = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="..", linewidth=0, label="unchanged")
        square.set(edgecolor="0.7", zorder=1)
        axes.add_patch(square)


def _said(one: Any, name: str, words: Words | None) -> str:
    side = (words or {}).get("dest" if name == "pos" else name, {})
    return literal(one if isinstance(one, str) else side.get(one, one), LONGEST)


def _figure(
    first: Squares, names: list[list[str]], places: list[tuple[int, int]], title: str | None, told: str
) -> tuple[Figure, list[Axes]]:
    """A figure with the axes of each panel, and room for what is told beneath them."""
    down, across = (max(ends) + 1 for ends in zip(*places, strict=True))
    wide, high = side(first)
    left, below = (max(inches(name, 9) for name in own) for own in names)
    width = across * (max(wide, 2.4) + left + 0.5) + 1.2
    beneath = wrapped(told, width - 0.3, 7)
    height = down * (max(high, TALL / down) + (below if below > WIDE else 0.2) + 1.0) + 0.4
    height += LINE * beneath.count("\n") + (0.3 if title else 0)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for at, axes in np.ndenumerate(grid):
        if at not in places:
            axes.remove()
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    figure.supxlabel(beneath, x=0.01, ha="left", fontsize=7, color="0.25", parse_math=False)
    return figure, [grid[at] for at in places]


def _label(axes: Axes, names: list[list[str]], row: str, column: str) -> None:
    axes.set_yticks(range(len(names[0])), names[0], parse_math=False)
    axes.set_xticks(range(len(names[1])), names[1], parse_math=False)
    if any(inches(name, 9) > WIDE for name in names[1]):
        axes.tick_params(axis="x", rotation=90)
    axes.set(xlabel=NAMES.get(column, column), ylabel=NAMES.get(row, row))


def _place(names: list[str], place: tuple[Any, ...]) -> str:
    """A panel's title: "layer 0, head 1", or "z, last"."""
    said = []
    for name, one in zip(names, place, strict=True):
        number = isinstance(one, int | np.integer)
        said.append(f"{'position' if name == 'pos' else name} {one}" if number else str(one))
        if one == "every":
            said[-1] = f"every {'position' if name == 'pos' else name}"
    return ", ".join(said)
