"""`workbench study plan|run` and `workbench runs`: what they print, leave behind and refuse; Ctrl-C and going on."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workbench.cli import app
from workbench.store import Store

STUDY = """
format = 1
n = 20
data_seed = 1
task = { name = "lookup" }

[models.two]
kind = "training"
seeds = 2
config = { n_layers = 2, n_heads = 1, d_model = 8 }
recipe = { steps = 3, warmup = 1, batch_size = 8 }

[conditions]
clean = []
cut = [{ where = { type = "edges", layer = 1, dest = "last", source = "answer" }, what = { op = "cut" } }]
"""
OUTCOME = {"results.parquet", "summary.csv", "summary.md", "notes.csv", "study.json", "provenance.json"}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "mine.toml").write_text(STUDY)
    return tmp_path


def call(*words, code=0):
    out = CliRunner().invoke(app, list(map(str, words)))
    assert out.exit_code == code, out.output
    return out.output


def run(place, *words, **kwargs):
    return call("study", "run", place / "mine.toml", "--home", place / "runs", "--executor", "local", *words, **kwargs)


def kept(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "provenance.json"}


def test_a_study_is_planned_run_and_not_run_again(place):
    planned = call("study", "plan", place / "mine.toml", "--home", place / "runs")
    assert "two: 2 models (0 there), 2 conditions, 4 cells (0 there)" in planned
    assert not (place / "runs").exists()
    folder = place / "runs" / "studies" / "mine"
    assert run(place).splitlines()[-1] == f"results: {folder}"
    assert {path.name for path in folder.iterdir()} == OUTCOME
    first = kept(folder)
    blocks = set((place / "runs" / "cells" / "blocks").iterdir())
    run(place)
    assert kept(folder) == first
    assert set((place / "runs" / "cells" / "blocks").iterdir()) == blocks
    assert "4 cells (4 there)" in call("study", "plan", place / "mine.toml", "--home", place / "runs")


def test_results_go_where_they_are_asked_for(place):
    assert f"results: {place / 'elsewhere'}" in run(place, "--out", place / "elsewhere")
    assert {path.name for path in (place / "elsewhere").iterdir()} == OUTCOME


@pytest.mark.slow
def test_the_pool_leaves_the_same_bytes(place):
    run(place, "--out", place / "local")
    call("runs", "prune", "--all", "--home", place / "runs")
    call("study", "run", place / "mine.toml", "--home", place / "runs", "--processes", 2, "--out", place / "pool")
    assert kept(place / "pool") == kept(place / "local")


def test_runs_are_listed_checked_and_pruned(place):
    run(place)
    home = ("--home", place / "runs")
    listed = call("runs", "list", *home)
    assert "2 trained models" in listed
    assert "4 cells in 2 blocks" in listed
    assert "    lookup, two: 4 cells" in listed
    assert call("runs", "check", *home) == "every block is whole\n"
    block = sorted((place / "runs" / "cells" / "blocks").glob("*.parquet"))[0]
    block.write_bytes(b"damaged")
    assert call("runs", "check", *home) == f"damaged, moved aside: {block.stem}\n"
    assert "2 cells in 1 blocks" in call("runs", "list", *home)
    run(place)
    assert "4 cells in 2 blocks" in call("runs", "list", *home)
    assert call("runs", "prune", *home).endswith("MB freed\n")
    assert not list((place / "runs" / "cells" / "damaged").iterdir())
    assert len(Store(place / "runs" / "cells").cells()) == 4
    call("runs", "prune", "--all", *home)
    assert len(Store(place / "runs" / "cells").cells()) == 0


def test_runs_that_are_not_there_are_none_and_none_are_made(place):
    home = ("--home", place / "none")
    assert "0 cells in 0 blocks, 0.0 MB" in call("runs", "list", *home)
    assert call("runs", "check", *home) == "every block is whole\n"
    assert call("runs", "prune", *home) == "0.0 MB freed\n"
    assert not (place / "none").exists()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('source = "answer"', 'source = "anwser"', "no role or relation 'anwser'|'anwser'"),
        ('name = "lookup"', 'name = "lokup"', "lookup"),
        ('task = { name = "lookup" }', "", "declares no task"),
        ("n_layers = 2", "n_layers = 0", "n_layers"),
        ("steps = 3", "stpes = 3", "stpes"),
    ],
)
def test_a_study_that_cannot_run_is_refused_in_one_paragraph(place, old, new, why):
    (place / "mine.toml").write_text(STUDY.replace(old, new))
    said = run(place, code=2)
    assert said.startswith("workbench: ")
    assert len(said.strip().splitlines()) == 1
    assert re.search(why, said)


def test_an_executor_that_is_not_there_is_refused(place):
    said = call("study", "run", place / "mine.toml", "--home", place / "runs", "--executor", "cloud", code=2)
    assert "no executor 'cloud'; there are: local, pool, ray" in said


@pytest.mark.parametrize("executor", [pytest.param("local", marks=pytest.mark.slow), "pool"])
def test_ctrl_c_says_how_to_go_on_and_leaves_no_process(place, executor):
    """Ctrl-C reaches every process of a terminal, so it is sent to the whole group."""
    more = STUDY.replace("seeds = 2", "seeds = 3").replace("n = 20", "n = 5000")
    (place / "mine.toml").write_text(more)
    words = [sys.executable, "-m", "workbench.cli", "study", "run", "mine.toml", "--home", "runs"]
    words += ["--executor", executor, "--processes", "2"]
    one = subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: list((place / "runs" / "cells" / "claims").glob("*.json")))
    os.killpg(one.pid, signal.SIGINT)
    _, said = one.communicate(timeout=30)
    assert one.returncode == 130
    assert said.splitlines() == [
        "what was measured is kept; the same command goes on from there", "workbench: stopped by Ctrl-C",
    ]  # fmt: skip
    until(lambda: not in_group(one.pid))
    assert not list((place / "runs" / "cells" / "claims").glob("*.json"))
    run(place)
    assert len(Store(place / "runs" / "cells").cells()) == 6


def in_group(group):
    """The living processes of a group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_lectures_study_is_planned():
    file = Path(__file__).parent.parent / "analyses" / "lecture.toml"
    from workbench import read_study
    from workbench.study import for_model

    study = read_study(file)
    assert list(for_model(study, "one layer").conditions) == ["clean"]
    assert len(for_model(study, "two layers").conditions) == 9
