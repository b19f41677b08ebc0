"""A pattern checked against its tokens and laid out as rows and columns, in tiles where it is too long to draw."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, Literal

import numpy as np
from einops import rearrange, reduce

from workbench.figures.style import LONGEST, as_array, literal

Orientation = Literal["lecture", "dest-rows"]
Cells = Iterable[tuple[int, int]]
SOURCE, DEST = "source (key)", "destination (query)"
LABELLED, DRAWN = 64, 512  # most tokens with every label, with a square a cell


@dataclass(frozen=True)
class Side:
    """One axis of a grid: its name, its tokens as they are written, and how many of them a square stands for."""

    name: str
    tokens: tuple[str, ...]
    tile: int

    @classmethod
    def of(cls, name: str, tokens: Sequence[str]) -> "Side":
        return cls(
            name, tuple(literal(token, LONGEST) for token in tokens), 2 ** max(ceil(log2(len(tokens) / DRAWN)), 0)
        )


@dataclass(frozen=True)
class Grid:
    """One checked pattern, with rows and columns as they are drawn."""

    weights: np.ndarray  # [row column], the largest of each tile
    hidden: np.ndarray  # [row column], True where a tile holds no visible cell
    boxed: tuple[tuple[int, int], ...]  # (row, column)
    rows: Side
    columns: Side

    @property
    def longer(self) -> int:
        """Squares along the longer axis."""
        return max(self.weights.shape)


def laid_out(
    pattern: Any, sources: Sequence[str], dests: Sequence[str], visible: Any, boxed: Cells, orientation: str
) -> Grid:
    """The checked grid; tile sizes are powers of two. The errors are those of `pattern_grid`."""
    check_orientation(orientation)
    weights = as_array(pattern)
    hidden = np.zeros(weights.shape, bool) if visible is None else ~_mask(visible)
    cells = [(int(dest), int(source)) for dest, source in boxed]
    _check(weights, hidden, cells, len(sources), len(dests))
    rows, columns = Side.of(DEST, dests), Side.of(SOURCE, sources)
    weights = np.where(hidden, 0.0, weights)
    if orientation == "lecture":
        rows, columns = columns, rows
        weights, hidden = (rearrange(values, "dest source -> source dest") for values in (weights, hidden))
        cells = [(source, dest) for dest, source in cells]
    return Grid(
        weights=tiled(weights, rows.tile, columns.tile, 0.0, "max"),
        hidden=tiled(hidden, rows.tile, columns.tile, True, "min"),
        boxed=tuple((row // rows.tile, column // columns.tile) for row, column in cells),
        rows=rows,
        columns=columns,
    )


def check_orientation(orientation: str) -> None:
    """Raises ValueError for an orientation that there is not."""
    if orientation not in ("lecture", "dest-rows"):
        raise ValueError(f"orientation {orientation!r} is not known; use 'lecture' (sources in rows) or 'dest-rows'")


def _mask(visible: Any) -> np.ndarray:
    mask = as_array(visible)
    if mask.dtype != bool:
        raise ValueError(f"visible holds {mask.dtype}, not booleans; give True where the query may look (mask > -inf)")
    return mask


def _check(weights: np.ndarray, hidden: np.ndarray, boxed: list[tuple[int, int]], sources: int, dests: int) -> None:
    if weights.shape != (dests, sources) or 0 in weights.shape:
        raise ValueError(
            f"pattern has shape {list(weights.shape)}, and there are {dests} dest and {sources} source tokens; "
            f"give one head of one example as [dest source] = [{dests} {sources}], with at least one token each"
        )
    if hidden.shape != weights.shape:
        raise ValueError(f"visible has shape {list(hidden.shape)}; give [dest source] = {list(weights.shape)}")
    if bad := np.argwhere(~np.isfinite(weights)).tolist():
        raise ValueError(f"pattern is NaN or infinite in {len(bad)} cells, the first at dest, source = {bad[0]}")
    if weights.min() < -1e-6 or weights.max() > 1 + 1e-6:
        raise ValueError(
            f"pattern runs from {weights.min():.3g} to {weights.max():.3g}, outside 0..1; give weights after the "
            "softmax, not scores"
        )
    if bad := np.argwhere(hidden & (weights > 1e-6)).tolist():
        raise ValueError(
            f"pattern has weight on {len(bad)} hidden cells, the first at dest, source = {bad[0]}; "
            "give the mask this pattern was computed with"
        )
    for dest, source in boxed:
        if not (0 <= dest < dests and 0 <= source < sources):
            raise ValueError(f"boxed cell (dest {dest}, source {source}) is outside the grid of {dests} x {sources}")


def tiled(values: np.ndarray, height: int, width: int, fill: Any, how: Literal["max", "min"]) -> np.ndarray:
    """The largest or smallest value of each tile; an incomplete tile is filled up with `fill`."""
    padding = [(0, -n % tile) for n, tile in zip(values.shape, (height, width), strict=True)]
    padded = np.pad(values, padding, constant_values=fill)
    return np.asarray(reduce(padded, "(row h) (column w) -> row column", how, h=height, w=width))


def label_step(tokens: int) -> int:
    """One token in how many is labelled."""
    return 1 if tokens <= LABELLED else 2 ** ceil(log2(tokens / 32))


def box_sides(grid: Grid) -> tuple[float, float]:
    """Rows and columns that a box spans: more than one where it would hide the square it is around."""
    rows, columns = (max(1.0, 1.5 * n / LABELLED) if n > LABELLED else 1.0 for n in grid.weights.shape)
    return rows, columns


def note(grid: Grid) -> str:
    """What the figure leaves out, in words."""
    sides = (grid.rows, grid.columns)
    notes = []
    for length, tile in dict.fromkeys((len(side.tokens), side.tile) for side in sides):
        if (step := label_step(length)) > 1:
            names = " and ".join(side.name for side in sides if len(side.tokens) == length)
            tiles = f" {tile} to a square," if tile > 1 else ""
            notes.append(f"{names}: {length} tokens,{tiles} one in {step} labelled, as position: token.")
    if any(side.tile > 1 for side in sides):
        notes.append("A square is the largest weight of its tile, and hidden only where the whole tile is.")
    if grid.longer > LABELLED and grid.hidden.any():
        notes.append("Grey, crossed in blocks: hidden by the mask.")
    if grid.boxed and max(box_sides(grid)) > 1:
        notes.append("A box is larger than the square at its middle.")
    if any(token.endswith("…") and len(token) == LONGEST for side in sides for token in side.tokens):
        notes.append(f"Tokens of more than {LONGEST} characters end in ….")
    return " ".join(notes)
