"""The command line: quick to answer, plain when it refuses, and it finds what is installed without running it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workbench import catalogue
from workbench.cli import app
from workbench.faults import paragraph

ROOT = Path(__file__).parents[1]
OTHERS = ("torch", "numpy", "pandas", "scipy", "matplotlib", "transformer_lens")
HEAVY = (*OTHERS, "pydantic")
POINTS = """\
[workbench.tasks]
copying = planted.tasks:Copying
broken = planted.syntax:Task
absent = planted.nowhere:Task
renamed = planted.tasks:Old
exploding = planted.explodes:Task

[workbench.analyses]
census = planted.census:main
refusing = planted.census:refuse
failing = planted.census:fail
stopped = planted.census:stop
"""
CENSUS = '''
"""Module line."""
def main(*, out, seeds=None, quick=False, progress=True):
    """Count things.

    At length.
    """
    print(f"{out} {seeds} {quick} {progress}")
    return out / "census"
def refuse(**asked):
    raise KeyError("no role 'anwser'. There are: answer,\\n last.")
def fail(**asked):
    return {}["answer"]
def stop(**asked):
    raise KeyboardInterrupt
'''


@pytest.fixture(autouse=True)
def planted(tmp_path, monkeypatch):
    """A distribution of its own on the path, with good and broken entry points."""
    package, info = tmp_path / "planted", tmp_path / "planted-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (package / "__init__.py").write_text("import torch_must_not_be_imported_to_list\n")
    (package / "tasks.py").write_text('class Copying:\n    """Say it again. Or not."""\n')
    (package / "syntax.py").write_text("class Task(:\n")
    (package / "explodes.py").write_text('"""A module that cannot be imported."""\nTask = 1 / 0\n')
    (package / "census.py").write_text(CENSUS)
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "planted"]:
        del sys.modules[name]


@pytest.fixture
def importable(planted):
    (planted / "__init__.py").write_text("")


def ask(*words: str):
    return CliRunner().invoke(app, words)


def lines(*words: str) -> dict[str, str]:
    return {line.split()[0]: line for line in ask(*words).stdout.splitlines()}


def refused(result, *said: str) -> None:
    """Exit code 2, one paragraph on stderr with all of this in it, no traceback."""
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1
    for words in said:
        assert words in result.stderr


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], HEAVY),
        # typer itself takes pydantic where it prints the options of a command
        (["train", "--help"], OTHERS),
        (["reproduce", "--help"], OTHERS),
        (["show", "--help"], OTHERS),
    ],
)
def test_help_loads_nothing_heavy(words, heavy):
    code = f"""
import sys
from workbench.cli import main
sys.argv = ["workbench", *{words!r}]
try:
    main()
finally:
    print([name for name in {heavy!r} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "Usage" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [["tasks"], ["analyses"]])
def test_listing_loads_neither_torch_nor_what_it_lists(words, planted):
    code = f"""
import sys
sys.path.insert(0, {str(planted.parent)!r})
from workbench.cli import app
app({words!r}, standalone_mode=False)
print([name for name in ("torch", "planted", "tasks", "analyses", "pandas") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.splitlines()[-1] == "[]"
    assert len(result.stdout.splitlines()) > 1


def test_tasks_are_listed_with_their_first_line():
    assert lines("tasks")["copying"].endswith("planted.tasks:Copying  Say it again. Or not.")


def test_analyses_are_listed_with_their_first_line():
    assert lines("analyses")["census"].endswith("planted.census:main  Count things.")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("broken", "SyntaxError"),
        ("absent", "there is no module 'planted.nowhere'"),
        ("renamed", "planted.tasks defines no 'Old'"),
    ],
)
def test_broken_entry_point_is_listed_with_its_fault(name, fault):
    assert f"cannot be used: {'ImportError: ' if 'Error' not in fault else ''}{fault}" in lines("tasks")[name]


def test_target_made_by_assignment_is_described_by_its_module():
    assert lines("tasks")["exploding"].endswith("A module that cannot be imported.")


@pytest.mark.parametrize(("kind", "group"), list(catalogue.GROUPS.items()))
def test_our_own_entry_points_are_there_and_described(kind, group, monkeypatch):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][group]
    points = [catalogue.metadata.EntryPoint(name, target, group) for name, target in declared.items()]
    monkeypatch.setattr(catalogue.metadata, "entry_points", lambda group: points)
    found = catalogue.entries(kind)
    assert {entry.name for entry in found} == set(declared)
    assert [entry.fault for entry in found] == [""] * len(found)
    assert all(entry.line for entry in found)


@pytest.mark.parametrize("words", [["train", "copyin"], ["show", "copyin", "--tokens", "a"]])
def test_unknown_task_is_answered_with_the_nearest(words):
    refused(ask(*words), "no task is named 'copyin'", "absent, broken, copying", "Did you mean copying?")


def test_unknown_analysis_is_answered_with_the_nearest():
    refused(ask("reproduce", "sensus"), "no analysis is named 'sensus'", "Did you mean census?")


def test_task_that_cannot_be_imported_is_refused_with_the_reason(importable):
    refused(ask("train", "exploding"), "planted.explodes:Task", "ZeroDivisionError: division by zero")


def test_name_claimed_twice_is_refused(planted):
    other = planted.parent / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[workbench.tasks]\ncopying = other:Copying\n")
    refused(ask("train", "copying"), "other:Copying", "planted.tasks:Copying", "uninstall one")


def test_reproduce_hands_its_options_to_the_analysis(importable):
    result = ask("reproduce", "census", "--seeds", "3", "--out", "here", "--quick")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["here 3 True False", "report: here/census"]


def test_reproduce_leaves_the_seeds_to_the_analysis(importable):
    assert ask("reproduce", "census").stdout.splitlines()[0] == "reports None False False"


def test_zero_seeds_are_refused_before_anything_runs(importable):
    result = ask("reproduce", "census", "--seeds", "0")
    assert result.exit_code == 2
    assert "here" not in result.stdout
    assert "--seeds" in result.stderr


def test_refusal_is_one_paragraph(importable):
    refused(ask("reproduce", "refusing"), "workbench: no role 'anwser'. There are: answer, last.")


def test_refusal_shows_its_traceback_where_asked(importable, monkeypatch):
    monkeypatch.setenv("WORKBENCH_TRACEBACK", "1")
    assert isinstance(ask("reproduce", "refusing").exception, KeyError)


def test_defect_keeps_its_traceback(importable):
    result = ask("reproduce", "failing")
    assert result.exit_code == 1
    assert isinstance(result.exception, KeyError)


def test_interrupt_is_one_line_and_130(importable):
    result = ask("reproduce", "stopped")
    assert result.exit_code == 130
    assert result.stderr == "workbench: stopped by Ctrl-C\n"


def test_no_command_shows_the_help():
    assert "reproduce" in ask().output


def test_validation_error_names_each_field_and_no_address():
    from workbench.models.config import ModelConfig

    with pytest.raises(ValueError) as raised:
        ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=0, n_heads=1, norm="both")
    text = paragraph(raised.value)
    assert text.startswith("ModelConfig: n_layers: ")
    assert "(got 0); norm: " in text
    assert "http" not in text
    assert "\n" not in text


class Refusal(RuntimeError):
    __module__ = "workbench.running"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (KeyError("no role 'x'"), "no role 'x'"),
        (FileNotFoundError(2, "No such file or directory", "x.pt"), "[Errno 2] No such file or directory: 'x.pt'"),
        (Refusal("this edit did not land"), "this edit did not land"),
        (KeyError("x"), None),
        (IndexError("list index out of range"), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (TypeError("f() missing 1 required argument"), None),
    ],
)
def test_what_is_raised_on_purpose_is_readable_and_a_defect_is_not(error, text):
    assert paragraph(error) == text
