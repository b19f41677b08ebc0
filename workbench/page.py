"""A finished run as one page: README.md and a self-contained index.html, from the files that the run left behind, with
every table in four formats and every figure in three beside it.

The page needs no network, holds no date and no path of this machine, and is the same bytes whenever the same run is
reported with the same checkpoints at hand.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from workbench.figures.effects import seed_means
from workbench.page_contrasts import contrasts
from workbench.page_figures import figures_of
from workbench.page_grids import Grids, grids, shades
from workbench.page_run import Finished, read_run
from workbench.page_strips import plots
from workbench.page_tables import conditions, counts, means, notes_table, sums, weights
from workbench.report import write_report
from workbench.schema import metrics
from workbench.study import Study
from workbench.tables import markdown_text, table_files, to_markdown

__all__ = ["write_page"]

TEMPLATES = Path(__file__).parent / "templates"


def write_page(run: Path | str, out: Path | str | None = None, *, home: Path | str | None = None) -> Path:
    """Write README.md, index.html, tables/ and figures/ of the run in the folder `run` to `out` (the run's own folder),
    and return it.

    tables/: every table of the page, and each trained model's means and tests, as CSV, Markdown, LaTeX (booktabs) and
    HTML. figures/: what the run's conditions allow, see `page_figures.figures_of`, as SVG, PDF and PNG.

    home: the folder of runs (`$WORKBENCH_HOME`, or ./runs), where the checkpoints of trained models are looked for, to
    draw their attention on one example. Nothing is trained; without a checkpoint the page says what is missing.

    Raises FileNotFoundError or ValueError, naming the file and the fault, for a folder that is no run, a damaged file,
    and results that are not those of the study beside them.

    >>> write_page("no-such-run")
    Traceback (most recent call last):
    FileNotFoundError: no-such-run: no such folder; a run is the folder that `workbench study run` writes
    """
    finished = read_run(run)
    task, why = _task(finished.study)
    drawn = grids(finished.study, task, why, home)
    said = _said(finished, task, drawn)
    files: dict[str, str | bytes] = {"README.md": _markdown(said), "index.html": _html(said)}
    files |= {f"tables/{name}": content for name, content in _tables(finished, said).items()}
    files |= {f"figures/{name}": content for name, content in said["figures"].files.items()}
    return write_report(Path(run if out is None else out), files)


def _tables(run: Finished, said: Mapping[str, Any]) -> dict[str, str]:
    """Every table in four formats, by file name."""
    files: dict[str, str] = {}
    for name in ("counts", "conditions", "means", "contrasts", "weights", "notes"):
        if said[name] is not None:
            files |= said[name].files(name)
    seeds = [seed_means(run.frame, metric).assign(metric=metric) for metric in metrics(run.frame)]
    names = ["model", "model_seed", "condition", "metric", "value"]
    files |= table_files("seeds", pd.concat(seeds)[names], title="Mean of each trained model")
    tests = said["tests"]
    return files | (table_files("tests", tests, title="Paired tests of each trained model") if len(tests) else {})


def _task(study: Study) -> tuple[Any | None, str]:
    """The study's task, or why it is not there."""
    if study.task is None:
        return None, "the study declares no task: it was handed to `run_study` from Python"
    try:
        return study.task.made(), ""
    except (LookupError, ValueError):
        return (
            None,
            f"the task {study.task.name!r} is not installed, or not with these arguments, where this was written",
        )


def _said(run: Finished, task: Any | None, drawn: Grids) -> dict[str, Any]:
    """Everything that the two templates say."""
    changes, guesses = contrasts(run), _guesses(task)
    return {
        "title": _title(run.study),
        "study": run.study,
        "sums": sums(run),
        "counts": counts(run),
        "conditions": conditions(run.study),
        "means": means(run),
        "contrasts": changes.table,
        "tests": pd.concat(changes.tests.values(), ignore_index=True) if changes.tests else pd.DataFrame(),
        "figures": figures_of(run, changes, guesses),
        "families": changes.families,
        "no_contrasts": changes.why_not,
        "weights": weights(run),
        "plots": plots(run, guesses),
        "notes": notes_table(run),
        "grids": drawn,
        "study_text": run.study_text,
        "provenance": list(_flat(run.provenance)),
        "made_by": _made_by(run.provenance),
        "commands": _commands(run.study),
    }


def _title(study: Study) -> str:
    named = "A study" if study.task is None else f"A study of the task {study.task.name}"
    return f"{named}: {', '.join(study.models)}" if study.models else named


def _guesses(task: Any | None) -> dict[str, float]:
    """Accuracies of guessers by name; none where the task cannot tell them."""
    return {} if task is None or not hasattr(task, "guessing") else dict(task.guessing())


def _flat(values: Any, name: str = "") -> Any:
    """(dotted name, text) of everything in nested JSON."""
    if isinstance(values, dict) and values:
        for key in sorted(values):
            yield from _flat(values[key], f"{name}.{key}" if name else key)
    else:
        yield name, values if isinstance(values, str) else json.dumps(values, ensure_ascii=False)


def _made_by(provenance: dict[str, Any]) -> str:
    """The version and commit to repeat the run with."""
    versions = provenance.get("versions")
    version = versions.get("attention-workbench") if isinstance(versions, dict) else None
    commit = provenance.get("commit")
    return f"attention-workbench {version or 'of an unknown version'}" + (f", commit {commit}" if commit else "")


def _commands(study: Study) -> str:
    if study.task is None or not study.models:
        return ""
    return "workbench study run study.json --out run\nworkbench report run"


def _html(said: dict[str, Any]) -> str:
    """The page. Its only script and style are known by their hashes: nothing else on it can run, or be fetched."""
    environment = _environment(autoescape=True)
    style = f"{(TEMPLATES / 'run.css').read_text(encoding='utf-8')}{shades()}"
    script = (TEMPLATES / "run.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    download = "data:application/json;base64," + b64encode(said["study_text"].encode()).decode()
    return environment.get_template("run.html.j2").render(
        **said, style=Markup(style), script=Markup(script), policy=policy, download=download
    )


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def _markdown(said: dict[str, Any]) -> str:
    environment = _environment(autoescape=False)
    environment.filters["text"] = lambda text: markdown_text(str(text))
    environment.filters["table"] = lambda table: to_markdown(table.frame())
    return environment.get_template("run.md.j2").render(**said)


def _environment(*, autoescape: bool) -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=autoescape,
    )  # fmt: skip
