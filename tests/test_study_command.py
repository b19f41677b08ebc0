"""`workbench study plan|run` and `workbench runs`: what they print, leave behind and refuse; Ctrl-C and going on."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
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
EDIT = '{ where = { type = "edges", layer = 1, dest = "last", source = "answer" }, what = { op = "cut" } }'
OF_A_DONOR = (
    '{ where = { type = "heads", layer = 0, pos = "last", part = "z" }, '
    'what = { op = "patch", donor = "other", align = "role" } }'
)
SUMMARY = {"summary.csv", "summary.md", "summary.tex", "summary.html"}
OUTCOME = {"results.parquet", *SUMMARY, "notes.csv", "study.json", "provenance.json"}


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


def test_the_summary_says_the_same_in_every_format(place):
    run(place)
    folder = place / "runs" / "studies" / "mine"
    first = (folder / "summary.csv").read_text().splitlines()[1].split(",")
    for name in SUMMARY:
        text = (folder / name).read_text()
        assert all(cell.replace("_", r"\_") in text or cell in text for cell in first), name


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


@pytest.mark.parametrize("word", ["list", "check", "prune"])
def test_looking_into_runs_loads_neither_torch_nor_pandas(place, word):
    run(place)
    code = f"""
import sys
from workbench.cli import app
app(["runs", {word!r}, "--home", "runs"], standalone_mode=False)
print([name for name in ("torch", "pandas", "numpy", "transformers") if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"
    assert len(out.stdout.splitlines()) > 1


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
        ("n = 20", 'n = 20\nmetrics = ["acc"]', "no metric 'acc'.*accuracy"),
        ("layer = 1, dest", "layer = 5, dest", "layer 5"),
        (EDIT, OF_A_DONOR, "no donor 'other' is declared"),
    ],
)
def test_a_study_that_cannot_run_is_refused_in_one_paragraph(place, old, new, why):
    """Planned as well as run, and before anything is trained for it."""
    assert old in STUDY
    (place / "mine.toml").write_text(STUDY.replace(old, new))
    planned = call("study", "plan", place / "mine.toml", "--home", place / "runs", code=2)
    for said in (run(place, code=2), planned):
        assert said.startswith("workbench: ")
        assert len(said.strip().splitlines()) == 1
        assert re.search(why, said)
    assert not list((place / "runs").glob("checkpoints/*/model.json"))



def test_an_executor_that_is_not_there_is_refused(place):
    said = call("study", "run", place / "mine.toml", "--home", place / "runs", "--executor", "cloud", code=2)
    assert "no executor 'cloud'; there are: local, pool, ray" in said


@pytest.mark.parametrize("executor", [pytest.param("local", marks=pytest.mark.slow), "pool"])
def test_ctrl_c_says_how_to_go_on_and_leaves_no_process(place, executor):
    """Ctrl-C reaches every process of a terminal, so it is sent to the whole group."""
    more = STUDY.replace("seeds = 2", "seeds = 3").replace("n = 20", "n = 40000")
    (place / "mine.toml").write_text(more)
    words = [sys.executable, "-m", "workbench.cli", "study", "run", "mine.toml", "--home", "runs"]
    words += ["--executor", executor, "--processes", "2"]
    one = subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: list((place / "runs" / "cells" / "claims").glob("*.json")))
    os.killpg(one.pid, signal.SIGINT)
    _, said = one.communicate(timeout=30)
    assert one.returncode == 130, said
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


# Progress, on a terminal


def on_a_terminal(place, words, until_seen=None):
    """Runs a command on a terminal, stopped by Ctrl-C once it has written something; gives all it wrote."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 120))
    one = subprocess.Popen(words, cwd=place, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    said, stopped = "", False
    while True:
        try:
            said += os.read(master, 4096).decode()
        except OSError:  # the other end is closed
            break
        if until_seen and until_seen in said and not stopped:
            os.killpg(one.pid, signal.SIGINT)
            stopped = True
    os.close(master)
    one.wait(60)
    return one.returncode, said


def screen(said):
    """The lines that are left on a terminal, and the line on which the cursor stands."""
    lines, row, column = [""], 0, 0
    for sign in re.findall(r"\x1b\[A|\r|\n|[^\r\n\x1b]", said):
        if sign == "\x1b[A":
            row -= 1
        elif sign == "\r":
            column = 0
        elif sign == "\n":
            row, column = row + 1, 0 if row + 1 < len(lines) else column
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] = lines[row].ljust(column)[:column] + sign + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines], row


def words(place, more=STUDY, *also):
    (place / "mine.toml").write_text(more)
    return [sys.executable, "-m", "workbench.cli", "study", "run", "mine.toml", "--home", "runs", *also]


LOCAL = ("--executor", "local")
ONE = STUDY.replace("seeds = 2", "seeds = 1")


def test_a_bar_of_cells_stays_and_that_of_training_below_it_is_gone(place):
    code, said = on_a_terminal(place, words(place, ONE, *LOCAL))
    assert code == 0
    assert "training two:" in said and "step/s" in said
    lines, _ = screen(said)
    bars = [line for line in lines if "|" in line]
    assert len(bars) == 1
    assert re.fullmatch(r"measuring: 100%\|█+\| 2/2 \[\d\d:\d\d<00:00, .*cell.*\]", bars[0])
    assert not [line for line in lines if "training" in line]


def test_cells_that_are_there_are_no_part_of_the_rate(place):
    run(place)
    code, said = on_a_terminal(place, words(place, STUDY, *LOCAL))
    assert (code, "training" in said) == (0, False)
    assert re.search(r"measuring: 100%\|█+\| 4/4 \[00:00<\?, \?cell/s\]|4/4 \[00:00<00:00", said)


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_nothing_half_drawn(place, seeds):
    longer = STUDY.replace("steps = 3", "steps = 20000").replace("seeds = 2", f"seeds = {seeds}")
    code, said = on_a_terminal(place, words(place, longer, *LOCAL), "step/s")
    assert code in (130, -signal.SIGINT)  # a shell says 130 of both; Python dies of it where it was in an `exec`
    lines, row = screen(said)
    kept = [line for line in lines if line and "^C" not in line]
    assert len([line for line in kept if "|" in line]) == 1
    assert kept[-2:] == [
        "what was measured is kept; the same command goes on from there", "workbench: stopped by Ctrl-C",
    ]  # fmt: skip
    assert row == len(lines) - 1 and lines[-1] == ""


def test_there_is_no_bar_where_there_is_no_terminal(place):
    out = subprocess.run(words(place, STUDY, *LOCAL), cwd=place, capture_output=True, text=True, check=True)
    assert out.stderr == ""


def test_the_lectures_study_is_planned():
    file = Path(__file__).parent.parent / "analyses" / "lecture.toml"
    from workbench import read_study
    from workbench.study import for_model

    study = read_study(file)
    assert list(for_model(study, "one layer").conditions) == ["clean"]
    assert len(for_model(study, "two layers").conditions) == 9
