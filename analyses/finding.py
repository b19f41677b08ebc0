"""What an analysis found, and its report: one page, tables, figures, the rows they came from, and provenance."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from workbench.report import write_report
from workbench.tables import markdown_text, percent, to_csv, to_markdown

if TYPE_CHECKING:
    from workbench.checkpoints import Trained
    from workbench.figures import Figure
    from workbench.study import Study
    from workbench.task import Task


@dataclass(frozen=True)
class Finding:
    """An analysis' results. `name` is its folder, and `NAME.md.j2` beside this file its page.

    verdicts: rows of `analyses.verdicts`, a claim each. tables, figures: by name, written as NAME.csv and NAME.svg.
    frames: results frames by name, written as NAME.parquet. words: what else the page says. trained, studies, tasks:
    what was measured, for `provenance.json`.
    """

    name: str
    quick: bool
    verdicts: pd.DataFrame
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    frames: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)
    trained: Mapping[str, Sequence[Trained]] = field(default_factory=dict)
    studies: Mapping[str, Study] = field(default_factory=dict)
    tasks: Mapping[str, Task] = field(default_factory=dict)


def write(out: Path, finding: Finding) -> Path:
    """Writes the report to `out/NAME` and returns that folder: README.md, verdicts.csv and the tables as CSV, figures
    as SVG, results as Parquet, provenance.json. The same results give the same bytes, provenance apart."""
    from workbench.figures import to_svg

    files: dict[str, str | bytes] = {"README.md": page(finding), "verdicts.csv": to_csv(finding.verdicts)}
    files |= {f"{name}.csv": to_csv(table) for name, table in finding.tables.items()}
    files |= {f"{name}.svg": to_svg(figure) for name, figure in finding.figures.items()}
    files |= {f"{name}.parquet": _parquet(frame) for name, frame in finding.frames.items()}
    files["provenance.json"] = json.dumps(_provenance(finding), indent=1, sort_keys=True, ensure_ascii=False)
    folder = write_report(Path(out) / finding.name, files)
    print(_told(finding))
    return folder


def page(finding: Finding) -> str:
    """README.md: the template, with the tables by name, `verdicts`, `models`, `examples` and the analysis' words."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    environment.filters |= {"text": markdown_text, "percent": percent, "table": to_markdown}
    return environment.get_template(f"{finding.name}.md.j2").render(
        name=finding.name,
        quick=finding.quick,
        tables=finding.tables,
        verdicts=finding.verdicts.to_dict("records"),
        models={label: len(several) for label, several in finding.trained.items()},
        n_models=min((len(several) for several in finding.trained.values()), default=0),
        counts=_counts(finding),
        command=_command(finding),
        **finding.words,
    )


def _counts(finding: Finding) -> dict[str, int]:
    """Runs (a model on an example under a condition) planned, run and skipped, over every results frame."""
    frames = [frame for frame in finding.frames.values() if "skipped" in frame]
    planned = sum(map(len, frames))
    skipped = sum(int(frame["skipped"].notna().sum()) for frame in frames)
    return {"planned": planned, "run": planned - skipped, "skipped": skipped}


def _parquet(frame: pd.DataFrame) -> bytes:
    from io import BytesIO

    sink = BytesIO()
    frame.to_parquet(sink, index=False)
    return sink.getvalue()


def _command(finding: Finding) -> str:
    seeds = sorted({len(several) for several in finding.trained.values()})
    asked = f" --seeds {seeds[0]}" if len(seeds) == 1 else ""
    return f"workbench reproduce {finding.name}{' --quick' if finding.quick else ''}{asked}"


def _provenance(finding: Finding) -> dict[str, Any]:
    from workbench.checkpoints import provenance

    return {
        "command": _command(finding),
        "made_with": provenance(),
        "tasks": {
            label: {"name": task.name, "arguments": task.model_dump(), "meaning": task.MEANING}
            for label, task in finding.tasks.items()
        },
        "studies": {label: study.model_dump(mode="json") for label, study in finding.studies.items()},
        "checkpoints": {
            label: [
                {"seed": one.seed, "key": one.folder.name}
                | {name: one.about[name] for name in ("weights_sha256", "made_with", "definition")}
                for one in several
            ]
            for label, several in finding.trained.items()
        },
    }


def _told(finding: Finding) -> str:
    """The verdicts as lines of text."""
    lines = [f"{finding.name}:"]
    for row in finding.verdicts.to_dict("records"):
        ends = f"{row['low']:.4g} to {row['high']:.4g}"
        lines.append(f"  {row['id']:<24}{row['estimate']:>10.4g}  {ends:<24}{row['verdict']}")
    return "\n".join(lines)


def say(text: str) -> None:
    """A line to whoever waits."""
    print(text, file=sys.stderr, flush=True)
