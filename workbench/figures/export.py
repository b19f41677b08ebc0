"""Figures as bytes: the same figure always gives the same bytes, without dates or versions in them."""

from io import BytesIO
from typing import Any

from matplotlib.figure import Figure

from workbench.figures.style import settings


def to_svg(figure: Figure) -> bytes:
    """The figure as SVG, its text kept as `<text>` elements: it can be searched, read aloud and edited.

    >>> figure = Figure()
    >>> text = figure.text(0.5, 0.5, "attention")
    >>> b"<text" in to_svg(figure)
    True
    """
    return _saved(figure, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))


def to_png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as PNG, at `dpi` dots an inch.

    >>> to_png(Figure())[1:4]
    b'PNG'
    """
    return _saved(figure, format="png", dpi=dpi, metadata={"Software": None})


def to_pdf(figure: Figure) -> bytes:
    """The figure as PDF with TrueType fonts in it, so that its text can be selected.

    >>> to_pdf(Figure())[:4]
    b'%PDF'
    """
    return _saved(figure, format="pdf", metadata=dict.fromkeys(("Creator", "Producer", "CreationDate")))


def _saved(figure: Figure, **options: Any) -> bytes:
    buffer = BytesIO()
    with settings():
        figure.savefig(buffer, bbox_inches="tight", pad_inches=0.08, **options)
    return buffer.getvalue()
