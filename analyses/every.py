"""All analyses of the lectures' claims, one after the other, and one page of all their verdicts."""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd

from analyses.finding import say
from workbench.report import write_report
from workbench.tables import markdown_text, to_csv

NAMES = (
    "lecture", "arithmetic", "order", "heads", "cross", "context", "sparse", "induction", "patches", "architectures"
)  # fmt: skip


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Runs every analysis into `out/NAME/` and writes `out/README.md`, all their verdicts; returns `out`.

    seeds, quick: as for each analysis. One that fails loses no other: the rest runs, the page says which failed, and
    the first failure is raised at the end. Killed and started again, trained models are found where they are.
    """
    from workbench.catalogue import load

    failed: dict[str, Exception] = {}
    rows = []
    for name in NAMES:
        start = time.monotonic()
        try:
            load("analysis", name)(out=out, seeds=seeds, quick=quick, progress=progress)
        except Exception as error:
            failed[name] = error
            say(f"{name} failed: {error}")
        else:
            rows.append(_verdicts(Path(out) / name).assign(analysis=name))
            say(f"{name}: {time.monotonic() - start:.0f} s")
    if rows:
        table = pd.concat(rows, ignore_index=True)[["analysis", "id", "statement", "verdict"]]
        write_report(Path(out), {"README.md": page(table, sorted(failed), quick), "verdicts.csv": to_csv(table)})
    for name, cause in failed.items():
        raise RuntimeError(f"{len(failed)} of {len(NAMES)} analyses failed, first {name!r}: {cause}") from cause
    return Path(out)


def _verdicts(folder: Path) -> pd.DataFrame:
    """An analysis' claims and verdicts; the lecture's rows that compare figures are no claims."""
    if (folder / "verdicts.csv").is_file():
        return pd.read_csv(folder / "verdicts.csv")
    claims = pd.read_csv(folder / "claims.csv")
    return claims[claims["kind"] == "claim"]


def page(table: pd.DataFrame, failed: list[str], quick: bool) -> str:
    """The page of all verdicts, an analysis a section."""
    lines = ["# What was claimed, and what was found", ""]
    if quick:
        lines += ["**A quick run: small and fast, to see that all of it runs. Its verdicts mean nothing.**", ""]
    counts = table["verdict"].value_counts()
    said = ", ".join(f"{counts.get(word, 0)} {word}" for word in ("supported", "not supported", "undecided"))
    lines += [f"{len(table)} claims: {said}. A claim that is not supported is a result. Each analysis says how it was "
              "measured.", ""]  # fmt: skip
    lines += [f"**{name} failed and has no verdicts here.**\n" for name in failed]
    for name, rows in table.groupby("analysis", sort=False):
        lines += [f"## [{name}]({name}/README.md)", "", "| claim | verdict |", "| --- | --- |"]
        lines += [f"| {_said(str(row.statement))} | {row.verdict} |" for row in rows.itertuples()]
        lines.append("")
    return "\n".join(lines)


def _said(statement: str) -> str:
    """Markdown of a statement, in which words between backticks stay code."""
    return markdown_text(statement).replace("\\`", "`")
