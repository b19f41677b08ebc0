"""A run as a page: what it says, that what comes from data stays text, and which folders are no run."""

import base64
import hashlib
import json
import re
import shutil

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from tasks.lookup import Lookup
from tests.pages import ACCURACY, CUT, EVIL, MARKUP, MODEL, TRAINING, a_run, checkpoint, page_of, results, study
from workbench import page_grids
from workbench.cli import app
from workbench.page import write_page
from workbench.page_figures import Figures
from workbench.page_run import Finished
from workbench.page_tables import counts
from workbench.running import record


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Figures take seconds; what is drawn is tested in test_page_figures."""
    monkeypatch.setattr("workbench.page.figures_of", lambda *_: Figures())


@pytest.fixture
def run(tmp_path):
    return a_run(tmp_path / "run")


@pytest.fixture
def page(run, tmp_path):
    return page_of(run, home=tmp_path / "home")


def test_the_page_lies_in_the_runs_own_folder_or_where_it_is_asked_for(run, tmp_path):
    assert write_page(run) == run
    assert {"README.md", "index.html", "results.parquet"} <= {file.name for file in run.iterdir()}
    write_page(run, tmp_path / "elsewhere")
    there = {file.name for file in (tmp_path / "elsewhere").iterdir()}
    assert there == {"README.md", "index.html", "tables"}


def test_means_are_those_of_the_results(page):
    assert page.column("Means", "condition") == list(ACCURACY)
    assert page.column("Means", "mean") == ["75.0%", "25.0%", "0%", "100%"]
    assert page.column("Means", "model") == [MODEL] * 4


def test_a_label_that_looks_like_a_number_stays_text(page):
    assert page.column("Means", "condition")[3] == "0.10"
    assert page.having("data-number", "0.1") == []


def test_contrasts_are_the_condition_less_the_clean_one_with_the_family_they_are_corrected_in(page):
    assert page.column("Change", "condition") == list(ACCURACY)[1:]
    assert page.column("Change", "less") == ["clean"] * 3
    assert page.column("Change", "difference") == ["-50.0%", "-75.0%", "25.0%"]
    assert page.column("Change", "tests in family") == ["6"] * 3
    assert page.column("Change", "smallest p") == ["1"] * 3
    assert "6 tests of accuracy" in page.text


def test_a_study_without_a_clean_condition_says_why_it_has_no_contrasts(tmp_path):
    declared = study(conditions={"cut": [CUT], "again": [CUT]}, weights={})
    frame = results({"cut": (1, 0), "again": (1, 1)}).drop(columns="match")
    page = page_of(a_run(tmp_path / "run", declared=declared, frame=frame))
    assert "There are no contrasts: the study has no condition without interventions" in page.text
    assert "The study records no weights." in page.text


def test_a_lone_clean_condition_has_nothing_to_be_compared_with(tmp_path):
    declared, frame = study(conditions={"clean": []}), results({"clean": (1, 0, 1, 1)})
    page = page_of(a_run(tmp_path / "run", declared=declared, frame=frame))
    assert "There are no contrasts: no other condition was measured" in page.text


def test_weights_are_told_as_weights_with_their_edges(page):
    assert page.column("Mean attention", "weight") == ["match"]
    assert page.column("Mean attention", "edges") == ["L1 last←answer"]
    assert page.column("Mean attention", "mean") == ["0.2500"]
    assert "match" not in page.column("Means", "metric")


def test_every_count_is_told_and_what_was_skipped_says_why(tmp_path):
    page = page_of(a_run(tmp_path / "run", declared=study(on_missing="skip"), frame=results(skipped=(3,))))
    names = ("models declared", "models measured", "conditions", "examples each", "planned", "run", "skipped")
    assert [page.column("Measurements", name) for name in names] == [[n] for n in ["2", "2", "4", "4", "32", "24", "8"]]
    assert page.column("Measurements", "why skipped") == ["no 'answer': 8"]
    assert page.column("Means", "skipped") == ["2"] * 4


def test_models_that_are_declared_and_not_in_the_results_are_counted(tmp_path):
    declared = study(models={MODEL: TRAINING, "other": {**TRAINING, "seeds": 1}})
    page = page_of(a_run(tmp_path / "run", declared=declared))
    assert page.column("Measurements", "planned") == ["32", "16"]
    assert page.column("Measurements", "why skipped") == ["", "not in the results: 16"]


def test_models_handed_over_beside_declared_ones_leave_whole_numbers_whole():
    """A page's run has either; `counts` alone may have both."""
    frame = pd.concat([results(), results(model="handed over")]).astype({"model": "category", "condition": "category"})
    table = counts(Finished(study(), "", frame, pd.DataFrame(), {}))
    assert (table.columns[2].name, table.columns[2].cells) == ("models declared", ("2", ""))
    assert table.files("counts")["counts.csv"].splitlines()[2].startswith("handed over,handed over from Python,,2,")


def test_a_run_of_which_every_example_was_skipped_is_still_told(tmp_path):
    page = page_of(a_run(tmp_path / "run", frame=results(skipped=(0, 1, 2, 3))))
    assert page.column("Means", "mean") == [""] * 4
    assert "Nothing was run, so there is nothing to draw." in page.text


def test_notes_are_kept_as_text(tmp_path):
    notes = [(MODEL, 0, "0.10", EVIL), ("NA", 1, "every", "a\nb")]
    page = page_of(a_run(tmp_path / "run", notes=notes))
    assert page.table("Notes")[1:] == [[MODEL, "0", "0.10", EVIL], ["NA", "1", "every", "a\nb"]]


def test_nothing_from_the_data_becomes_markup(page):
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert [tag for tag, _ in page.tags].count("style") == 1
    assert EVIL not in page.markup and MARKUP not in page.markup
    assert page.raw["b"] == ["lookup"]  # and nothing of the model's label
    assert page.raw["title"][0] == f"A study of the task lookup: {MODEL}"


def test_nothing_from_the_data_becomes_markdown(run):
    lines = (write_page(run) / "README.md").read_text(encoding="utf-8").splitlines()
    row = next(line for line in lines if line.startswith(r"| \</svg"))
    bare = row.replace(r"\|", "")
    assert bare.count("|") == lines[lines.index(row) - 4].count("|")
    assert not any(EVIL in line for line in lines)
    assert lines[0] == r'# A study of the task lookup: two \<b\> "layers" \& more'


def test_the_provenance_stays_in_its_table_of_the_readme(run):
    (run / "provenance.json").write_text(json.dumps({"a|b": "<i>\n# no heading"}))
    lines = (write_page(run) / "README.md").read_text(encoding="utf-8").splitlines()
    assert r"| a\|b | \<i\><br># no heading |" in lines


def test_the_study_is_there_byte_for_byte_to_read_and_to_download(run, page):
    exact = (run / "study.json").read_text(encoding="utf-8")
    assert page.raw["pre"][0] == exact
    (link,) = page.having("download", "study.json")
    assert base64.b64decode(link["href"].removeprefix("data:application/json;base64,")).decode() == exact


def test_the_only_script_and_style_are_those_the_policy_names(page):
    policy = page.having("http-equiv", "Content-Security-Policy")[0]["content"]
    for tag in ("script", "style"):
        (text,) = page.raw[tag]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_nothing_on_the_page_points_outside(page):
    links = [a[name] for _, a in page.tags for name in ("href", "src", "action", "srcset") if name in a]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert "url(" not in page.markup and "@import" not in page.markup and "http" not in page.text


def test_the_same_run_gives_the_same_bytes_wherever_it_lies(run, tmp_path):
    shutil.copytree(run, tmp_path / "copied")
    checkpoint(tmp_path / "home")
    home, runs = tmp_path / "home", (run, tmp_path / "copied")
    pages = [write_page(one, tmp_path / f"out-{one.name}", home=home) for one in runs]
    for name in ("README.md", "index.html"):
        assert len({(folder / name).read_bytes() for folder in pages}) == 1
        assert str(tmp_path) not in (pages[0] / name).read_text(encoding="utf-8")


def test_provenance_is_that_of_the_run_and_no_other(run):
    made = {"commit": "c0ffee", "versions": {"attention-workbench": "9.9", "a<b": "1"}, "dtypes": {}}
    (run / "provenance.json").write_text(json.dumps(made))
    page = page_of(run)
    said = [["commit", "c0ffee"], ["dtypes", "{}"], ["versions.a<b", "1"], ["versions.attention-workbench", "9.9"]]
    assert page.table("Provenance")[1:] == said
    assert "With attention-workbench 9.9, commit c0ffee" in page.text


def test_a_declared_study_is_repeated_by_commands_and_another_from_python(page, tmp_path):
    assert page.raw["pre"][1] == "workbench study run study.json --out run\nworkbench report run"
    bare = page_of(a_run(tmp_path / "bare", declared=study(task=None, models={})))
    assert "run_study(read_study" in bare.text and "workbench report run" not in bare.text
    assert "There are no grids: the study declares no task" in bare.text


def test_every_trained_model_is_a_dot_at_its_accuracy(page):
    places = [f"{place}.00%" for place in (75, 25, 0, 100) for _ in range(2)]
    assert [dot["cx"] for dot in page.having("class", "seed")] == places
    (drawing,) = page.having("class", "plot")
    assert (drawing["role"], drawing["aria-labelledby"]) == ("img", "plot1-title plot1-about")
    assert page.having("id", "plot1-title") and page.having("id", "plot1-about")


def test_a_metric_without_bounds_is_drawn_from_its_least_to_its_most(tmp_path):
    frame = results({"clean": (-3, -3), "0.10": (5, 5)}).rename(columns={"accuracy": "logit_margin"})
    declared = study(conditions={"clean": [], "0.10": [CUT]}, metrics=["logit_margin"], n=2)
    page = page_of(a_run(tmp_path / "run", declared=declared, frame=frame))
    assert [dot["cx"] for dot in page.having("class", "seed")] == ["0.00%"] * 2 + ["100.00%"] * 2
    assert page.column("Means", "mean") == ["-3", "5"]


def test_grids_hold_the_recorded_weights_sources_in_rows(run, tmp_path):
    model = checkpoint(tmp_path / "home", seed=1)
    page = page_of(run, home=tmp_path / "home")
    batch = Lookup().sample(4, 0).select(slice(0, 1))
    pattern = record(model, batch, ["pattern"])["pattern", 0][0, 0]
    cells = [a for tag, a in page.tags if tag == "td" and ("data-weight" in a or a.get("class") == "hidden")]
    first = [cells[9 * i : 9 * i + 9] for i in range(9)]  # the first of two heads, 9 × 9
    assert len(cells) == 2 * 81
    for dest in range(9):
        for source in range(9):
            cell = first[source][dest]
            if source > dest:
                assert cell == {"class": "hidden"}
            else:
                assert float(cell["data-weight"]) == pytest.approx(float(pattern[dest, source]), abs=5e-5)
    assert "model seed 1" in page.text  # seed 0 is not there
    words = batch.words(0)
    assert [head["data-name"] for head in page.having("data-name")[:9]] == [f"{i} “{w}”" for i, w in enumerate(words)]


def test_without_a_checkpoint_the_page_says_what_is_missing(page):
    assert "Not drawn: none of its checkpoints was in the folder of runs" in page.text


def test_a_damaged_checkpoint_is_said_without_naming_folders_of_this_machine(run, tmp_path):
    checkpoint(tmp_path / "home")
    (weights,) = (tmp_path / "home").rglob("model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    page = page_of(run, home=tmp_path / "home")
    assert "Not drawn: its model could not be read, or not on this task's examples (ValueError)" in page.text
    assert str(tmp_path) not in page.markup


def test_heads_beyond_what_a_page_holds_are_counted(run, tmp_path, monkeypatch):
    checkpoint(tmp_path / "home")
    monkeypatch.setattr(page_grids, "MOST_CELLS", 100)
    page = page_of(run, home=tmp_path / "home")
    assert "1 of 2 heads are left out" in page.text
    assert [grid["aria-label"][:25] for grid in page.having("role", "grid")] == ["attention weights of L0H0"]


def test_a_folder_of_checkpoints_that_is_gone_is_said(tmp_path):
    declared = study(models={MODEL: {"kind": "checkpoints", "folders": ["gone", "away"]}})
    page = page_of(a_run(tmp_path / "run", declared=declared))
    assert "Not drawn: none of the folders that the study names was there" in page.text


def test_a_task_that_is_not_installed_leaves_grids_and_guesses_out(tmp_path):
    page = page_of(a_run(tmp_path / "run", declared=study(task={"name": "gone"})))
    assert "There are no grids: the task 'gone' is not installed" in page.text
    assert "what guessing gives" not in page.text


def test_text_on_every_shade_of_a_cell_can_be_read():
    rules = re.findall(r"background: rgb\((\d+), (\d+), (\d+)\); color: (#\w+)", page_grids.shades())
    assert len(rules) == 2 * (page_grids.LEVELS + 1)
    for *ground, ink in rules:
        low, high = sorted([page_grids._luminance([int(c) for c in ground]), float(ink == "#fff")])
        assert (high + 0.05) / (low + 0.05) >= 4.5


@pytest.mark.parametrize("name", ["results.parquet", "study.json", "notes.csv", "provenance.json"])
def test_a_folder_that_lacks_a_file_is_no_run(run, name):
    (run / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}; a run is the folder that `workbench study run`"):
        write_page(run)


@pytest.mark.parametrize("name", ["results.parquet", "study.json", "notes.csv", "provenance.json"])
@pytest.mark.parametrize("content", [b"", b"[1]\n", b"\xff\xfe"])
def test_a_damaged_file_is_named_and_nothing_is_written(run, name, content):
    (run / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        write_page(run)
    assert not (run / "index.html").exists()


def test_a_truncated_parquet_file_is_named(run):
    whole = (run / "results.parquet").read_bytes()
    for kept in range(0, len(whole), 97):
        (run / "results.parquet").write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=r"results\.parquet cannot be read"):
            write_page(run)


def test_a_file_is_no_run(run):
    with pytest.raises(FileNotFoundError, match=r"study\.json: a file; a run is the folder"):
        write_page(run / "study.json")


@pytest.mark.parametrize(
    ("what", "changed"), [("condition", {"conditions": {"clean": []}}), ("model", {"models": {"x": TRAINING}})]
)
def test_results_of_another_study_are_refused(tmp_path, what, changed):
    run = a_run(tmp_path / "run", declared=study(**changed))
    with pytest.raises(ValueError, match=rf"has the {what} .* which study\.json lacks .* of different studies"):
        write_page(run)


def test_results_with_a_row_twice_are_refused_with_the_file_named(tmp_path):
    frame = results()
    run = a_run(tmp_path / "run")
    pd.concat([frame, frame.head(1)], ignore_index=True).to_parquet(run / "results.parquet")
    with pytest.raises(ValueError, match=r"results\.parquet: 1 rows are there twice"):
        write_page(run)


def test_the_command_writes_the_page_and_says_where(run, tmp_path):
    done = CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "page"), "--home", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, f"report: {tmp_path / 'page'}\n")
    assert (tmp_path / "page" / "index.html").is_file()


def test_the_command_refuses_what_is_no_run(tmp_path):
    done = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "no such folder; a run is the folder that `workbench study run` writes" in done.output


def test_the_random_state_is_left_alone(run, tmp_path):
    checkpoint(tmp_path / "home")
    before = torch.random.get_rng_state()
    write_page(run, home=tmp_path / "home")
    assert torch.equal(before, torch.random.get_rng_state())
