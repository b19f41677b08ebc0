import doctest
import importlib
import json
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from drawn import coarse_png, digests, every_figure, summary_and_seeds, tick_labels, training, weights
from matplotlib.figure import Figure

from workbench import figures

MODULES = (
    "contrasts", "curves", "doses", "edges", "effects", "export", "frames", "grid", "heads",
    "measured", "patterns", "route", "style",
)  # fmt: skip


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    return every_figure()


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module):
    assert doctest.testmod(importlib.import_module(f"workbench.figures.{module}")).failed == 0


@pytest.mark.parametrize("name", ["grids", "route", "curves"])  # each lays itself out in a way of its own
def test_an_export_leaves_the_figure_as_it_was(drawn, name):
    once = coarse_png(drawn[name])
    figures.to_svg(drawn[name])
    assert coarse_png(drawn[name]) == once


def test_what_is_no_figure_and_no_number_of_dots_is_refused_in_words():
    with pytest.raises(TypeError, match=r"dpi='x\.png' is no number.*write_bytes"):
        figures.to_png(Figure(), "x.png")
    with pytest.raises(TypeError, match=r"this is a str.*heat_map"):
        figures.to_svg("x.svg")


@pytest.mark.parametrize("export", [figures.to_svg, figures.to_png, figures.to_pdf])
def test_exports_hold_no_date_and_no_version(drawn, export):
    exported = export(drawn["route"])
    for trace in (b"matplotlib v", b"matplotlib.org", b"dc:date", b"creationdate", b"producer", b"software"):
        assert trace not in exported.lower(), trace


def test_svg_and_pdf_keep_text_as_text():
    figure = figures.pattern_grid(np.eye(2), ["$x_1$", "<b>&"], ["a", "b"])
    svg = figures.to_svg(figure).decode()
    found = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    assert {"$x_1$", "&lt;b&gt;&amp;", "source (key)", "attention weight"} <= set(found)
    assert b"/Type3" not in figures.to_pdf(figure) and b"/FontFile2" in figures.to_pdf(figure)


def test_text_from_data_is_never_read_as_mathematics():
    summary, seeds = summary_and_seeds()
    odd = "$\\frac"
    drawn = [
        figures.pattern_grids({odd: np.eye(2)}, [odd, "a_b"], [odd, "^"], title=odd),
        figures.route([odd, "_"], [[(1, 0, odd)]], layer_names=[odd], title=odd),
        figures.accuracy_under_intervention(summary, seeds, {odd: 0.1}, labels={"clean": odd}, interval=odd, title=odd),
        figures.training_curves(training().query("model == 'two layers'").assign(model=odd), title=odd),
        figures.weights_by_role(weights().assign(dest=odd), layer_names=[odd], title=odd),
    ]
    for figure in drawn:
        figure.savefig(BytesIO(), format="svg")  # under the caller's own settings, which parse mathematics
        found = [text for text in figure.findobj(matplotlib.text.Text) if "$" in text.get_text()]
        assert found and not any(text.get_parse_math() for text in found)


def test_unprintable_characters_are_written_as_escapes():
    axes = figures.pattern_grid(np.eye(2), ["\n", "\x00"], ["a", "b"]).axes[0]
    assert tick_labels(axes.yaxis) == ["\\n", "\\x00"]


def test_the_callers_settings_neither_change_nor_matter():
    plain = figures.to_svg(figures.training_curves(training()))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "figure.dpi": 40}):
        before = dict(matplotlib.rcParams)
        assert figures.to_svg(figures.training_curves(training())) == plain
        assert dict(matplotlib.rcParams) == before


def test_nothing_is_cut_off(drawn):
    for name, figure in drawn.items():
        taken, page = figure.get_tightbbox(), figure.bbox_inches.padded(0.01)
        assert page.contains(taken.x0, taken.y0) and page.contains(taken.x1, taken.y1), name


def test_figures_set_no_theme_open_no_window_and_come_out_the_same_in_another_process(drawn):
    code = (
        "import json, matplotlib; before = dict(matplotlib.rcParams); import workbench.figures; "
        "assert dict(matplotlib.rcParams) == before; from drawn import digests, every_figure; "
        "print(json.dumps(digests(every_figure()))); assert dict(matplotlib.rcParams) == before; "
        "from matplotlib import pyplot; assert not pyplot.get_fignums()"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=Path(__file__).parent)
    assert json.loads(ran.stdout) == digests(drawn)
