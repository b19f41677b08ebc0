"""Numbers as squares: colour and number say the mean over trained models, and every trained model is a dot inside."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from workbench.figures.style import GREY, wrapped

UNSIGNED = "cividis"  # as light as it is large, so that it reads the same in grey and to every eye
SIGNED = "PuOr"  # apart to every eye by hue; in grey both ends are dark, so that what is below 0 is hatched as well
MARKED = 0.05  # how far below 0, as a share of the scale, squares are hatched
LIGHT = 0.45  # on squares lighter than this, text is black
MOST = 24  # most squares along a side with a number and dots in each
WIDE, HIGH, SMALL = 0.66, 0.5, 0.2  # inches of a square: with a number and dots in it, and without
SPREAD = 0.09  # how far above and below its strip a dot may lie, so that equal ones are seen
STRIP = (-0.42, 0.42, 0.28)  # where a square's dots lie: from left to right of its middle, and how far below it


@dataclass(frozen=True)
class Scale:
    """What colours, and places along a square's strip of dots, stand for: from `low` to `high`."""

    low: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray, limits: tuple[float, float] | None = None) -> "Scale":
        """From 0 to the largest; the same on both sides of 0 where some value is below it, as numbers are written."""
        if limits is not None:
            return cls(*limits)
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        most = max(-low, high)
        return cls(-most, most) if round(low, decimals_of([values])) < 0 else cls(0.0, high or 1.0)

    @property
    def signed(self) -> bool:
        return self.low < 0

    @property
    def marked(self) -> float:
        """Below this, squares are hatched, as the two ends of a signed scale look the same in grey."""
        return MARKED * self.low

    @property
    def colours(self) -> Colormap:
        return colormaps[SIGNED if self.signed else UNSIGNED].with_extremes(bad="none")

    def along(self, values: np.ndarray) -> np.ndarray:
        """0 at the low end, 1 at the high end."""
        return (values - self.low) / ((self.high - self.low) or 1.0)


@dataclass(frozen=True)
class Squares:
    """Values by row and column of a grid.

    mean [row column]: NaN where nothing was measured. seeds [model row column]: of each trained model, none where a
    frame does not tell them apart. hidden [row column]: True where there is nothing to measure.
    """

    mean: np.ndarray
    seeds: np.ndarray
    hidden: np.ndarray

    @classmethod
    def of(cls, frame: pd.DataFrame, value: str, axes: tuple[str, str], order: tuple[Sequence, Sequence]) -> "Squares":
        """A frame's rows laid out by the two columns in `axes`, in the order given."""
        shape = tuple(map(len, order))
        index = pd.MultiIndex.from_product(order, names=axes)
        groups = [own for _, own in frame.groupby("model_seed")] if "model_seed" in frame else []
        placed = [own.set_index(list(axes))[value].reindex(index).to_numpy(float).reshape(shape) for own in groups]
        keys = [frame[name] for name in axes]
        mean = frame[value].astype(float).groupby(keys, observed=True).mean().reindex(index).to_numpy().reshape(shape)
        return cls(mean, np.array(placed).reshape(-1, *shape), np.zeros(shape, bool))

    @property
    def written(self) -> bool:
        """Whether there is room for a number and dots in each square."""
        return max(self.mean.shape) <= MOST

    @property
    def values(self) -> np.ndarray:
        return np.concatenate([self.mean.ravel(), self.seeds.ravel()])


def draw(axes: Axes, squares: Squares, scale: Scale, decimals: int) -> AxesImage:
    """Draws the squares and returns their image, which a colour bar explains."""
    norm = Normalize(scale.low, scale.high)
    shown = np.where(squares.hidden, np.nan, squares.mean)
    cells = axes.imshow(shown, cmap=scale.colours, norm=norm, aspect="auto", interpolation="nearest")
    if scale.signed:
        _hatch(axes, shown, cells, scale)
    if squares.written:
        several = len(squares.seeds) > 1
        _write(axes, squares, shown, cells, decimals, raised=0.14 if several else 0.0)
        if several:
            _dots(axes, squares, shown, scale, cells)
    _cross_out(axes, squares.hidden)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return cells


def side(squares: Squares) -> tuple[float, float]:
    """Inches that the squares take: across and down."""
    rows, columns = squares.mean.shape
    wide, high = (WIDE, HIGH if len(squares.seeds) > 1 else 0.36) if squares.written else (SMALL, SMALL)
    return max(columns * wide, 1.0), max(rows * high, 1.0)


def paint(figure: Figure, panels: Mapping[Axes, Squares], scale: Scale, label: str) -> None:
    """Draws the squares of each panel on one scale, with one colour bar that says `label`."""
    decimals = decimals_of(one.mean for one in panels.values())
    for axes, squares in panels.items():
        cells = draw(axes, squares, scale, decimals)
    room = 0.6 * figure.get_figheight()
    figure.colorbar(cells, ax=list(panels), pad=0.03).set_label(wrapped(label, room, 9), parse_math=False)


def decimals_of(means: Iterable[np.ndarray]) -> int:
    """As many as give the largest number three digits."""
    largest = max(float(np.nanmax(np.abs(mean))) for mean in means if not np.isnan(mean).all())
    return min(max(2 - floor(log10(largest)), 0), 6) if largest else 0


def said(value: float, decimals: int) -> str:
    """The number as it is written; adding 0.0 turns a rounded −0 into 0."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def note(several: Sequence[Squares], scale: Scale) -> str:
    """What the squares of all panels show, in words."""
    models = max(int((~np.isnan(one.seeds)).any((1, 2)).sum()) for one in several)
    written = all(one.written for one in several)
    shown = np.concatenate([one.mean[~one.hidden] for one in several])
    notes = [f"Number and colour: mean of {models} trained models."] if models > 1 else []
    notes += ["One trained model."] if models == 1 else []
    if models > 1 and written:
        ends = f"from {scale.low:.2g} at a square's left to {scale.high:.2g} at its right"
        notes.append(f"Dots: one a trained model, {ends}.")
    notes += [] if written else [f"Numbers are left out beyond {MOST} squares a side."]
    notes += [f"Hatched: below {scale.marked:.2g}."] if scale.signed and (shown < scale.marked).any() else []
    notes += ["–: not measured."] if np.isnan(shown).any() and written else []
    notes += ["Crossed: hidden by the mask."] if any(one.hidden.any() for one in several) else []
    return " ".join(notes).replace("-", "−")


def _ink(cells: AxesImage, value: float) -> str:
    light = np.isnan(value) or np.dot(cells.to_rgba(np.array(value))[:3], (0.2126, 0.7152, 0.0722)) > LIGHT
    return "black" if light else "white"


def _ground(cells: AxesImage, value: float) -> Any:
    return "white" if np.isnan(value) else cells.to_rgba(np.array(value))


def _write(axes: Axes, squares: Squares, shown: np.ndarray, cells: AxesImage, decimals: int, *, raised: float) -> None:
    for (row, column), value in np.ndenumerate(shown):
        if squares.hidden[row, column]:
            continue
        if np.isnan(value):  # no stroke around the dash: it would be wider than the dash
            axes.text(column, row, "–", ha="center", va="center", fontsize=12, weight="bold", color="black", zorder=3)
            continue
        axes.text(
            column, row - raised, said(value, decimals), ha="center", va="center", fontsize=7.5,
            color=_ink(cells, value), path_effects=[withStroke(linewidth=2.2, foreground=_ground(cells, value))],
            zorder=3,
        )  # fmt: skip


def _dots(axes: Axes, squares: Squares, shown: np.ndarray, scale: Scale, cells: AxesImage) -> None:
    left, right, below = STRIP
    apart = np.linspace(-SPREAD, SPREAD, len(squares.seeds))  # a height a model, the same in every square
    for (row, column), value in np.ndenumerate(shown):
        own = squares.seeds[:, row, column]
        known = ~np.isnan(own)
        if np.isnan(value) or not known.any():
            continue
        ink = _ink(cells, value)
        places = column + left + (right - left) * scale.along(own[known])
        axes.hlines(row + below, column + left, column + right, color=ink, linewidth=0.4, alpha=0.6, zorder=2)
        if scale.signed:
            axes.vlines(column, row + below - 0.07, row + below + 0.07, color=ink, linewidth=0.6, zorder=2)
        axes.scatter(
            places, row + below + apart[known], s=9, facecolors=ink, alpha=0.65, linewidths=0.3,
            edgecolors=[_ground(cells, value)], label="one trained model", zorder=3,
        )  # fmt: skip


def _hatch(axes: Axes, shown: np.ndarray, cells: AxesImage, scale: Scale) -> None:
    for row, column in np.argwhere(shown < scale.marked):
        ink = _ink(cells, shown[row, column])
        square = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", linewidth=0, label="below 0")
        square.set(edgecolor=ink, alpha=0.28, zorder=1)
        axes.add_patch(square)


def _cross_out(axes: Axes, hidden: np.ndarray) -> None:
    strokes = np.array([[(-0.3, -0.3), (0.3, 0.3)], [(-0.3, 0.3), (0.3, -0.3)]])  # [stroke end xy]
    lines = [stroke + np.array((column, row)) for row, column in np.argwhere(hidden) for stroke in strokes]
    if lines:
        axes.add_collection(LineCollection(lines, colors=GREY, linewidths=0.8, label="hidden"))
