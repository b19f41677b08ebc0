"""Edges as squares: what each single edge does when it is cut, or the weight that it carries."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.figures.frames import check_numbers, check_one_kind, check_rows, check_shares
from workbench.figures.grid import DEST, SOURCE, Orientation, check_orientation
from workbench.figures.squares import WIDE, Scale, Squares, note, paint, side
from workbench.figures.style import LONGEST, as_array, heading, in_a_row, inches, literal, settled, styled, wrapped

Pairs = Iterable[tuple[Any, Any]]
Labels = Mapping[Any, str] | Sequence[str] | None


@styled
def dest_source_map(
    effects: Any,
    *,
    value: str = "effect",
    label: str | None = None,
    title: str | None = None,
    hidden: Pairs = (),
    limits: tuple[float, float] | None = None,
    orientation: Orientation = "lecture",
    dest_labels: Labels = None,
    source_labels: Labels = None,
    columns: int = 3,
) -> Figure:
    """A square an edge: what cutting each single edge does, or the weight that it carries on the mean.

    effects: a frame with the columns dest, source (roles, relations or positions) and the one that `value` names, one
    row an edge, as `effects_by_edge` gives it; with a column model_seed, one row an edge and trained model, each a dot;
    with the columns layer and head, a panel for each. Or an array [dest source] or [model dest source], of positions,
    NaN where nothing was measured.
    hidden: (dest, source) that the mask hides, crossed out. limits: the ends of the colour bar.
    label: what the colour bar says. dest_labels, source_labels: what an axis says, by dest or source.
    orientation: "lecture" has sources in rows and queries in columns, "dest-rows" the transpose.
    columns: panels in a row of the figure, at most.

    Raises ValueError for missing columns, no rows, rows given twice, several kinds of model or edits (in columns model
    and edit), infinite values, no value at all, hidden edges with a value, edges hidden that are not on the axes,
    values beyond the limits and an unknown orientation.

    >>> frame = pd.DataFrame({"dest": "last", "source": ["answer", "other"], "effect": [-0.87, 0.01]})
    >>> axes = dest_source_map(frame).axes[0]
    >>> [text.get_text() for text in axes.texts[:2]], [label.get_text() for label in axes.get_yticklabels()]
    (['−0.870', '0.010'], ['answer', 'other'])
    """
    check_orientation(orientation)
    frame = effects if isinstance(effects, pd.DataFrame) else _rows_of(effects, value)
    places = [name for name in ("layer", "head") if name in frame]
    check_one_kind({"frame": frame})
    check_numbers(frame, [value], [*places, "dest", "source"])
    dests, sources = (list(dict.fromkeys(frame[name])) for name in ("dest", "source"))
    names = {"dest": _named(dests, dest_labels), "source": _named(sources, source_labels)}
    order = {"dest": dests, "source": sources}
    row, column = ("source", "dest") if orientation == "lecture" else ("dest", "source")
    cells = _hidden(frame, value, hidden, order, (row, column))
    groups = list(frame.groupby(places, observed=True, sort=False)) if places else [((), frame)]
    squares = [_squares(own, value, (row, column), order, cells) for _, own in groups]
    scale = _scale(squares, limits, value)
    figure, panels = _figure(squares[0], names[row], names[column], len(groups), columns, title)
    paint(figure, dict(zip(panels, squares, strict=True)), scale, label or value)
    beneath = note(squares, scale)
    for axes, (place, _), one in zip(panels, groups, squares, strict=True):
        _label(axes, names[row], names[column], dest_rows=row == "dest")
        heading(axes, _place(places, place), "" if len(groups) > 1 else beneath, width=max(side(one)[0], 2.4))
    if len(groups) > 1:
        said = wrapped(beneath, figure.get_figwidth() - 0.3, 7)
        figure.supxlabel(said, x=0.01, ha="left", fontsize=7, color="0.25", parse_math=False)
    return settled(figure)


def role_weights_map(table: pd.DataFrame, *, title: str | None = None, columns: int = 3) -> Figure:
    """The mean weight of each role ← role as a map, a panel for each layer and head, with every model seed a dot.

    table: as for `weights_by_role`, which draws the same as rows of dots. Columns layer, head (from 0), dest, source
    (names of roles or relations), weight (a mean, 0..1), model_seed; one row each.

    Raises ValueError for missing columns, no rows, rows given twice, several kinds of model and weights outside 0..1.

    >>> table = pd.DataFrame({"layer": 0, "head": 0, "dest": "last", "source": ["answer", "other"],
    ...                       "weight": [0.97, 0.01], "model_seed": 0})
    >>> [text.get_text() for text in role_weights_map(table).axes[0].texts[:2]]
    ['0.970', '0.010']
    """
    key = ["layer", "head", "dest", "source", "model_seed"]
    check_one_kind({"table": table})
    check_rows(table, "table", [*key, "weight"], key)
    check_shares(table["weight"], "table's weight")
    return dest_source_map(
        table, value="weight", label="mean attention weight", title=title, limits=(0.0, 1.0), columns=columns
    )


def _rows_of(values: Any, value: str) -> pd.DataFrame:
    """An array [dest source] or [model dest source] as rows."""
    array = as_array(values).astype(float)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ValueError(
            f"effects has shape {list(array.shape)}; give [dest source], [model dest source], or a frame with the "
            "columns dest and source"
        )
    several = array if array.ndim == 3 else array[None]
    models, dests, sources = (rearrange(places, "... -> (...)") for places in np.indices(several.shape))
    rows = pd.DataFrame({"dest": dests, "source": sources, value: rearrange(several, "m d s -> (m d s)")})
    return rows.assign(model_seed=models) if array.ndim == 3 else rows


def _named(there: Sequence[Any], labels: Labels) -> list[str]:
    known = labels if isinstance(labels, Mapping) else dict(enumerate(labels or ()))
    return [literal(known.get(one, one), LONGEST) for one in there]


def _hidden(
    frame: pd.DataFrame, value: str, hidden: Pairs, order: Mapping[str, list], axes: tuple[str, str]
) -> list[tuple[int, int]]:
    """(row, column) of each hidden edge."""
    edges = set(hidden)
    if unknown := [edge for edge in edges if edge[0] not in order["dest"] or edge[1] not in order["source"]]:
        raise ValueError(f"hidden names {unknown[0]}, as (dest, source), which is not on the axes: {dict(order)}")
    measured = frame[frame[value].notna()]
    if clash := edges & set(zip(measured["dest"], measured["source"], strict=True)):
        raise ValueError(f"the edge {min(clash, key=str)}, as (dest, source), is hidden and has a value; make it NaN")
    at = [dict(zip(("dest", "source"), edge, strict=True)) for edge in edges]
    return [(order[axes[0]].index(edge[axes[0]]), order[axes[1]].index(edge[axes[1]])) for edge in at]


def _squares(
    own: pd.DataFrame, value: str, axes: tuple[str, str], order: Mapping[str, list], hidden: Sequence[tuple[int, int]]
) -> Squares:
    found = Squares.of(own, value, axes, (order[axes[0]], order[axes[1]]))
    for row, column in hidden:
        found.hidden[row, column] = True
    return found


def _scale(squares: Sequence[Squares], limits: tuple[float, float] | None, value: str) -> Scale:
    values = np.concatenate([one.values for one in squares])
    if limits is not None and not (limits[0] <= np.nanmin(values) and np.nanmax(values) <= limits[1]):
        raise ValueError(f"{value!r} runs from {np.nanmin(values):.3g} to {np.nanmax(values):.3g}, beyond {limits}")
    return Scale.of(values, limits)


def _figure(
    first: Squares, rows: list[str], columns: list[str], panels: int, most: int, title: str | None
) -> tuple[Figure, list[Axes]]:
    across = in_a_row(most, panels)
    down = ceil(panels / across)
    wide, high = side(first)
    left, below = (max(inches(name, 9) for name in names) for names in (rows, columns))
    size = (across * (max(wide, 2.4) + left + 0.5) + 1.2, down * (high + (below if below > WIDE else 0.2) + 1.2))
    figure = Figure(figsize=(size[0], size[1] + (0.3 if title else 0)), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[panels:]:
        axes.remove()
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return figure, list(grid.flat[:panels])


def _label(axes: Axes, rows: list[str], columns: list[str], *, dest_rows: bool) -> None:
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_xticks(range(len(columns)), columns, parse_math=False)
    if any(inches(name, 9) > WIDE for name in columns):
        axes.tick_params(axis="x", rotation=90)
    axes.set(xlabel=SOURCE if dest_rows else DEST, ylabel=DEST if dest_rows else SOURCE)


def _place(names: Sequence[str], place: Sequence[Any]) -> str | None:
    """A panel's title: "layer 0, head 1"; a head that is no number is "every head"."""
    said = [
        f"{name} {one}" if str(one).isdecimal() else f"{one} {name}" for name, one in zip(names, place, strict=True)
    ]
    return ", ".join(said) or None
