"""Figures as bytes: the same figure always gives the same bytes, without dates or versions in them."""

from html import escape
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
    if isinstance(dpi, bool) or not isinstance(dpi, int | float):
        raise TypeError(f"dpi={dpi!r} is no number; to_png gives bytes: Path('x.png').write_bytes(to_png(figure))")
    return _saved(figure, format="png", dpi=dpi, metadata={"Software": None})


def to_pdf(figure: Figure) -> bytes:
    """The figure as PDF with TrueType fonts in it, so that its text can be selected.

    >>> to_pdf(Figure())[:4]
    b'%PDF'
    """
    return _saved(figure, format="pdf", metadata=dict.fromkeys(("Creator", "Producer", "CreationDate")))


def figure_files(name: str, figure: Figure) -> dict[str, bytes]:
    """The figure in all three formats, by file name: NAME.svg, NAME.pdf and NAME.png.

    >>> list(figure_files("accuracy", Figure()))
    ['accuracy.svg', 'accuracy.pdf', 'accuracy.png']
    """
    return {f"{name}.svg": to_svg(figure), f"{name}.pdf": to_pdf(figure), f"{name}.png": to_png(figure)}


def to_html(figure: Figure, title: str = "figure") -> str:
    """A page with the figure in it as SVG, that opens without a network and prints; `title` is escaped.

    >>> page = to_html(Figure(), "weights < 1")
    >>> "<title>weights &lt; 1</title>" in page and "<svg" in page
    True
    """
    drawing = to_svg(figure).decode()
    drawing = drawing[drawing.index("<svg") :]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<style>body { margin: 1rem; } svg { max-width: 100%; height: auto; }</style>\n</head>\n<body>\n"
        f"{drawing}</body>\n</html>\n"
    )


def _saved(figure: Figure, **options: Any) -> bytes:
    if not isinstance(figure, Figure):
        raise TypeError(f"a figure is drawn, and this is a {type(figure).__name__}; of a sweep, draw its heat_map()")
    buffer = BytesIO()
    with settings():
        figure.savefig(buffer, bbox_inches="tight", pad_inches=0.08, **options)
    return buffer.getvalue()
