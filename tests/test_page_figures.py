"""What a report draws without being asked, and that its tables go out in four formats."""

import base64
import io
from xml.etree import ElementTree

import pandas as pd
import pytest

from tests.pages import EVIL, Page, a_run, page_of, results, study
from workbench import page_figures
from workbench.grids import grid
from workbench.interventions import Edges, Heads, cut, scale, zero

HEADS = grid(zero, Heads, layer=[0, 1], head=[0, 1], part="z")
EDGES = grid(cut, Edges, layer=1, dest=["last", "digits"], source=["answer", "match"], empty="self")
DOSES = grid(scale, Edges, layer=1, dest="last", source="answer", by=[0.5, 2.0])
TABLES = ("counts", "conditions", "means", "contrasts", "weights", "seeds", "tests")


def ran(folder, conditions):
    """A run in which what is done costs one right answer of four."""
    declared = study(conditions={"clean": [], **conditions})
    accuracy = {"clean": (1, 1, 1, 0), **dict.fromkeys(conditions, (1, 0, 1, 0))}
    return a_run(folder, declared=declared, frame=results(accuracy))


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reported")
    page_of(ran(folder / "run", {**HEADS, **EDGES, **DOSES}), out=folder / "out", home=folder / "home")
    return folder / "out"


def test_what_the_conditions_allow_is_drawn_in_three_formats(reported):
    names = {path.name for path in (reported / "figures").iterdir()}
    kinds = ("accuracy", "contrasts", "heads", "edges", "dose", "weights")
    assert names == {f"{kind}-1.{ending}" for kind in kinds for ending in ("svg", "pdf", "png")}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("heads-1", "zero each head.z every: change of accuracy"),
        ("edges-1", "cut one edge (empty rows: self): change of accuracy"),
        ("dose-1", "scale L1 last←answer: accuracy by the factor"),
        ("contrasts-1", "in a family of 20 tests"),
    ],
)
def test_each_figure_says_what_was_done_and_on_how_many_examples(reported, name, said):
    drawing = ElementTree.parse(reported / "figures" / f"{name}.svg").getroot()
    written = " ".join(" ".join(drawing.itertext()).split())
    assert said in written and "(4 examples)" in written


def test_the_page_shows_the_same_drawings_and_needs_no_file_for_them(reported):
    page = Page((reported / "index.html").read_text(encoding="utf-8"))
    shown = [tag for name, tag in page.tags if name == "img"]
    assert len(shown) == 4 and all(tag["alt"] for tag in shown)
    drawings = [base64.b64decode(tag["src"].removeprefix("data:image/svg+xml;base64,")) for tag in shown]
    assert drawings == [
        (reported / "figures" / f"{name}-1.svg").read_bytes() for name in ("contrasts", "heads", "edges", "dose")
    ]


def test_the_readme_links_every_figure(reported):
    readme = (reported / "README.md").read_text(encoding="utf-8")
    for name in ("accuracy", "contrasts", "heads", "edges", "dose", "weights"):
        assert f"](figures/{name}-1.svg)" in readme


def test_every_table_goes_out_in_four_formats(reported):
    names = {path.name for path in (reported / "tables").iterdir()}
    assert names == {f"{name}.{ending}" for name in TABLES for ending in ("csv", "md", "tex", "html")}


def test_tables_to_compute_with_hold_raw_numbers_and_those_to_read_what_the_page_says(reported):
    means = pd.read_csv(reported / "tables" / "means.csv").set_index("condition")
    assert means.loc["clean", "mean"] == 0.75 and means.loc["clean", "models"] == 2
    assert "75.0%" in (reported / "tables" / "means.md").read_text(encoding="utf-8")
    assert r"75.0\%" in (reported / "tables" / "means.tex").read_text(encoding="utf-8")


def test_each_trained_models_mean_and_test_is_in_a_table(reported):
    seeds = pd.read_csv(reported / "tables" / "seeds.csv")
    assert seeds[seeds["condition"] == "clean"].query("metric == 'accuracy'")["value"].tolist() == [0.75, 0.75]
    tests = pd.read_csv(reported / "tables" / "tests.csv")
    assert len(tests) == 20 and (tests["difference"] == -0.25).all() and (tests["family"] == 20).all()


def test_a_metric_with_a_unit_is_drawn_with_it(tmp_path):
    frame = results({"clean": (3, 2, 1, 0), "cut": (1, 0, 0, 0)}).rename(columns={"accuracy": "logit_margin"})
    declared = study(conditions={"clean": [], "cut": next(iter(EDGES.values()))}, metrics=["logit_margin"])
    page_of(a_run(tmp_path / "run", declared=declared, frame=frame), home=tmp_path)
    drawing = (tmp_path / "run" / "figures" / "contrasts-1.svg").read_text(encoding="utf-8")
    assert "logit_margin (logits): difference from clean" in drawing


def test_conditions_that_are_no_grid_get_no_map(tmp_path):
    few = {**grid(zero, Heads, layer=0, head=[0, 1], part="z"),
           **grid(cut, Edges, layer=1, dest="last", source=["answer", "match"])}  # fmt: skip
    page_of(ran(tmp_path / "run", few), home=tmp_path)
    names = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    assert names == {"accuracy-1", "contrasts-1", "weights-1"}


def test_too_many_conditions_for_a_figure_are_said_and_stay_in_the_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(page_figures, "MOST_ROWS", 2)
    page = page_of(ran(tmp_path / "run", {**HEADS}), home=tmp_path)
    assert "4 conditions, and a figure holds 2; the tables hold all of them" in page.text
    assert len(pd.read_csv(tmp_path / "run" / "tables" / "contrasts.csv")) == 4
    assert not (tmp_path / "run" / "figures" / "contrasts-1.svg").exists()


def test_hostile_labels_are_drawn_and_stay_text(tmp_path):
    page = page_of(a_run(tmp_path / "run"), home=tmp_path)
    assert EVIL not in page.markup
    assert EVIL not in (tmp_path / "run" / "tables" / "means.html").read_text(encoding="utf-8")
    svg = (tmp_path / "run" / "figures" / "contrasts-1.svg").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in svg and EVIL not in svg


def test_a_run_of_which_nothing_ran_draws_nothing(tmp_path):
    page = page_of(a_run(tmp_path / "run", frame=results(skipped=(0, 1, 2, 3))), home=tmp_path)
    assert "Nothing is drawn here" in page.text
    assert not (tmp_path / "run" / "figures").exists()
    assert pd.read_csv(io.StringIO((tmp_path / "run" / "tables" / "seeds.csv").read_text())).empty


def test_the_same_run_gives_the_same_figures_and_tables(reported, tmp_path):
    page_of(ran(tmp_path / "run", {**HEADS, **EDGES, **DOSES}), out=tmp_path / "out", home=tmp_path)
    for folder in ("figures", "tables"):
        for path in (reported / folder).iterdir():
            assert (tmp_path / "out" / folder / path.name).read_bytes() == path.read_bytes(), path.name
