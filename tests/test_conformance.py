"""The table of behaviours and tools: every cell measured, none left out, and the same bytes each time."""

import csv
import io
import sys

import pytest

from analyses import conformance
from analyses.behaviours import BEHAVIOURS
from analyses.conformance import TOOLS, judged, main, plain, tool_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return main(out=tmp_path_factory.mktemp("reports"), progress=False)


@pytest.fixture(scope="module")
def rows(folder):
    return list(csv.DictReader(io.StringIO((folder / "conformance.csv").read_text(encoding="utf-8"))))


def test_the_report_is_two_files_in_its_folder(folder):
    assert folder.name == "conformance"
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "conformance.csv"]


def test_columns_begin_with_id_and_situation_and_then_the_tools(rows):
    columns = list(rows[0])
    assert columns[: 2 + len(TOOLS)] == ["id", "situation", *TOOLS]
    assert columns[2 + len(TOOLS) :] == [f"{name}: what was found" for name in TOOLS]


def test_there_is_a_row_for_every_behaviour(rows):
    assert [(row["id"], row["situation"]) for row in rows] == [(one.id, one.situation) for one in BEHAVIOURS]


def test_every_cell_is_pass_or_fail_and_every_failure_says_why(rows):
    for row in rows:
        for name in TOOLS:
            assert row[name] in ("pass", "fail")
            assert (row[name] == "fail") == bool(row[f"{name}: what was found"])


def test_ours_passes_everything(rows):
    assert {row["id"]: row["ours: what was found"] for row in rows if row["ours"] != "pass"} == {}


def test_other_tools_pass_what_they_can(rows):
    """The table is no caricature: most tools keep their hooks in order, and compute as asked."""
    for name in TOOLS:
        assert {row["id"] for row in rows if row[name] == "pass"} >= {"H1", "H2", "H5", "H9", "M7", "N2", "N5", "R2"}


def test_the_readme_shows_every_row_and_the_versions(folder, rows):
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"| {row['id']} |" in text for row in rows)
    for name in ("torch", "transformer-lens", "transformers", "nnsight", "attention-workbench"):
        assert f"- {name} " in text


def test_nothing_that_differs_from_run_to_run_is_printed(rows):
    found = [row[f"{name}: what was found"] for row in rows for name in TOOLS]
    assert not [text for text in found if "0x7" in text or "/root" in text or "site-packages" in text]


class Fits:
    """A tool with no feature at all."""


def test_a_failure_is_written_down_and_no_tool_stops_the_table():
    table = judged({"empty": Fits})
    assert set(table["empty"]) == {"fail"}
    said = table["empty: what was found"]
    assert "offers no intervals" in set(said)
    assert all(said)


def test_a_missing_tool_is_refused_with_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nnsight", None)
    monkeypatch.delitem(sys.modules, "analyses.tools.nnsight_tool", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"nnsight is not installed.*attention-workbench\[conformance\]"):
        tool_of("nnsight")
    with pytest.raises(ModuleNotFoundError, match="nnsight"):
        main(out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_seeds_are_refused():
    with pytest.raises(ValueError, match="nothing is trained here"):
        main(out=None, seeds=3)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<HookPoint at 0x7f3a2b>", "<HookPoint at 0x…>"),
        ("in /home/someone/venv/lib/torch/nn.py", "in nn.py"),
        ("after 3.2 s", "after …"),
        ("w/(1 − w_cut) in layer 0", "w/(1 − w_cut) in layer 0"),
    ],
)
def test_what_differs_from_run_to_run_is_taken_out(text, kept):
    assert plain(text) == kept


def test_progress_is_a_line_per_tool(capsys, monkeypatch):
    monkeypatch.setattr("analyses.behaviours.BEHAVIOURS", BEHAVIOURS[:1])
    conformance.judged({"empty": Fits}, progress=True)
    assert capsys.readouterr().err == "conformance: empty fails 1 of 1\n"
