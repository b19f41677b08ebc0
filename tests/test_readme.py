"""README's scripts run as written, and print what it says they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PRINTED = re.findall(r"```text\n(.*?)```", README, re.DOTALL)


def printed_by(script: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(script, "README.md", "exec"), {"__name__": "readme"})
    return out.getvalue()


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_a_script_of_the_readme_runs_and_prints(script):
    assert printed_by(script).strip()


def test_the_first_script_prints_the_table_that_follows_it():
    assert printed_by(SCRIPTS[0]) == PRINTED[0]


def test_the_readme_has_the_scripts_it_promises():
    assert len(SCRIPTS) == 7 and len(PRINTED) == 1
    assert len(SCRIPTS[0].strip().splitlines()) <= 15


@pytest.mark.parametrize("path", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_what_the_readme_links_to_is_there(path):
    assert (Path(__file__).parent.parent / path).exists(), path


def test_the_study_of_the_readme_can_be_read(tmp_path):
    from workbench import read_study

    (text,) = re.findall(r"```toml\n(format = 1.*?)```", README, re.DOTALL)
    (tmp_path / "study.toml").write_text(text)
    study = read_study(tmp_path / "study.toml")
    assert len(study.conditions) == 13 and list(study.models) == ["two layers"]
