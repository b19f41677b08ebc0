"""P1–P4: pictures that show the pattern as it is, at any size, as files that need nothing else."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from analyses.behaviours.cases import behaviour
from analyses.tools.protocol import feature

AXES = {"source (key)", "destination (query)"}
WHAT = "pictures of patterns"


def rows_of(n_dest: int, n_source: int) -> np.ndarray:
    """Weights [dest source] that differ everywhere, every row summing to 1."""
    weights = np.random.default_rng(0).random((n_dest, n_source)) + 0.1
    return weights / weights.sum(1, keepdims=True)


@behaviour("P1", "cross-attention 5 × 7", "a rectangular grid, axes named source (key) and destination (query)")
def cross_attention_is_a_rectangle(tool: Any) -> None:
    grid = feature(tool, "grid", WHAT)
    for n_dest, n_source in ((5, 7), (7, 5), (1, 8)):
        sources, dests = [f"s{i}" for i in range(n_source)], [f"d{i}" for i in range(n_dest)]
        weights = rows_of(n_dest, n_source)
        axes = grid(weights, sources, dests).axes[0]
        drawn = _cells(axes)
        turned = axes.get_xlabel() == "destination (query)"
        assert {axes.get_xlabel(), axes.get_ylabel()} == AXES, f"the axes are {axes.get_xlabel()}, {axes.get_ylabel()}"
        want = weights.T if turned else weights
        assert drawn.shape == want.shape and np.allclose(drawn, want), f"{n_dest} × {n_source}: another grid is drawn"
        assert _labels(axes.xaxis) == (dests if turned else sources), "the columns bear other tokens"
        assert _labels(axes.yaxis) == (sources if turned else dests), "the rows bear other tokens"


@behaviour("P2", "bidirectional model", "nothing hidden by an assumed triangle")
def nothing_is_hidden_unasked(tool: Any) -> None:
    grid = feature(tool, "grid", WHAT)
    for n in (3, 8):
        drawn = _cells(grid(rows_of(n, n), list("abcdefgh"[:n]), list("abcdefgh"[:n])).axes[0])
        assert not np.ma.getmaskarray(drawn).any() and (np.asarray(drawn) > 0).all(), "a cell is hidden"


@behaviour("P3", "512 tokens", "tiled or thinned with a note; never blank, never unreadable")
def a_long_pattern_is_readable(tool: Any) -> None:
    grid, exported = feature(tool, "grid", WHAT), feature(tool, "exported", "export of pictures")
    for n in (512, 700):
        weights = rows_of(n, n)
        weights[-1], weights[-1, 0] = 0.0, 1.0
        axes = (figure := grid(weights, ["word"] * n, ["word"] * n)).axes[0]
        drawn = np.asarray(_cells(axes))
        assert drawn.size and drawn.max() == 1, f"{n} tokens: the largest weight is not drawn"
        assert max(drawn.shape) <= 512, f"{n} tokens: {drawn.shape} squares are drawn"
        count = len(_labels(axes.xaxis))
        assert 0 < count <= 64, f"{n} tokens: {count} labels on an axis"
        svg = exported(figure)["svg"].decode()
        assert f"{n} tokens" in re.sub(r"<[^>]+>", "", svg), f"{n} tokens: no note of what is left out"


@behaviour("P4", "export", "SVG and PDF with text as text; one HTML file that opens with no network")
def exports_are_whole(tool: Any) -> None:
    grid, exported = feature(tool, "grid", WHAT), feature(tool, "exported", "export of pictures")
    files = exported(grid(rows_of(3, 3), ["ab", "cd", "ef"], ["ab", "cd", "ef"]))
    assert {"svg", "pdf"} <= set(files), f"there are {sorted(files)}"
    svg = files["svg"].decode()
    for text in ("ab", "source (key)"):
        assert re.search(rf"<text[^>]*>\s*{re.escape(text)}\s*</text>", svg), f"SVG: {text!r} is no text"
    assert b"/FontFile2" in files["pdf"] or b"/TrueType" in files["pdf"], "PDF: no font in it, so no text"
    assert "html" in files, f"there is no HTML file; there are {', '.join(sorted(files))}"
    page = files["html"].decode() if isinstance(files["html"], bytes) else str(files["html"])
    loaded = re.findall(r"""(?:src|href)\s*=\s*["'](?:https?:)?//[^"']*|@import[^;]*//|url\(\s*["']?https?:""", page)
    assert "<html" in page.lower() and not loaded, f"HTML: the page loads {loaded[:1]}"


def _cells(axes: Any) -> np.ndarray:
    """The drawn values [row column], the first row on top."""
    mesh = next(one for one in axes.collections if one.get_array() is not None)
    values = mesh.get_array()
    if values.ndim == 1:
        height, width = (size - 1 for size in mesh.get_coordinates().shape[:2])
        values = values.reshape(height, width)
    return values


def _labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


PICTURES = (
    cross_attention_is_a_rectangle,
    nothing_is_hidden_unasked,
    a_long_pattern_is_readable,
    exports_are_whole,
)
