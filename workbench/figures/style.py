"""What all figures share: settings, colours that survive colour blindness, and literal text."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import matplotlib.style
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

P = ParamSpec("P")

PALETTE = "colorblind"
BLUE, _, _, ACCENT, *_ = sns.color_palette(PALETTE)
GREY = "0.55"
LONGEST = 24

SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "attention-workbench",
    "pdf.fonttype": 42,
}


@contextmanager
def settings() -> Iterator[None]:
    """Matplotlib's defaults and ours, for the length of a `with`; the caller's are back afterwards."""
    with matplotlib.style.context(["default", SETTINGS]):
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """The function, run under `settings`."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with settings():
            return draw(*args, **kwargs)

    return drawn


def settled(figure: Figure) -> Figure:
    """The figure with its layout worked out once and kept, so that every export shows the same picture."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def literal(text: object, longest: int | None = None) -> str:
    """The text with unprintable characters written as escapes, cut to `longest` characters."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "…"


def inches(text: str, size: float) -> float:
    """About how wide the text is, on the generous side."""
    return max((len(line) for line in text.split("\n")), default=0) * 0.62 * size / 72


def wrapped(text: object, width: float, size: float) -> str:
    """The literal text, broken into lines of at most `width` inches."""
    return textwrap.fill(literal(text), max(int(width / inches("x", size)), 8))


def heading(axes: Axes, title: object | None, note: str = "", *, width: float) -> None:
    """A title at the left of the axes with a note in small type beneath it."""
    beneath = wrapped(note, width, 7)
    if beneath:
        axes.annotate(
            beneath, (0, 1), xytext=(0, 4), xycoords="axes fraction", textcoords="offset points", va="bottom",
            fontsize=7, color="0.25", parse_math=False,
        )  # fmt: skip
    if title is not None:
        lines = beneath.count("\n") + 1 if beneath else 0
        axes.set_title(wrapped(title, width, 10), loc="left", pad=5 + 9.5 * lines, parse_math=False)


def in_a_row(columns: int, panels: int) -> int:
    """How many panels stand side by side."""
    if columns < 1:
        raise ValueError(f"columns is {columns}; give the panels in a row of the figure, 1 or more")
    return min(columns, panels)


def as_array(values: Any) -> np.ndarray:
    """A numpy array of a tensor (of any dtype, on any device) or of anything array-like."""
    if not hasattr(values, "detach"):
        return np.asarray(values)
    tensor = values.detach().cpu()
    return np.asarray((tensor.double() if tensor.is_floating_point() else tensor).numpy())
