"""The tables of a run's page: each cell as it is printed, and the number by which its column is sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.declared import Training, number_of
from workbench.page_run import Finished
from workbench.study import Study, for_model
from workbench.tables import percent, table_files

Say = Callable[[float], str]

SHORT = 26
"""Most characters of a cell that is never broken."""


@dataclass(frozen=True)
class Column:
    """One column: what its cells say and, where they are numbers, the numbers (None where there is none)."""

    name: str
    cells: tuple[str, ...]
    numbers: tuple[float | None, ...] | None = None

    @property
    def look(self) -> str:
        """How the page sets it: "number", "short" (on one line) or "long"."""
        if self.numbers is not None:
            return "number"
        return "short" if max(map(len, self.cells), default=0) <= SHORT else "long"


@dataclass(frozen=True)
class Table:
    """Columns of one length under a caption."""

    caption: str
    columns: tuple[Column, ...]

    @property
    def rows(self) -> list[list[tuple[str, float | None, Column]]]:
        """Row by row: (text, number, column)."""
        cells = [
            [(text, number, one) for text, number in zip(one.cells, _numbers(one), strict=True)] for one in self.columns
        ]
        return [list(row) for row in zip(*cells, strict=True)]

    def frame(self) -> pd.DataFrame:
        """The cells as they are printed; whole numbers stay numbers."""
        return pd.DataFrame({one.name: _series(one) for one in self.columns})

    def files(self, name: str) -> dict[str, str]:
        """The table in four formats by file name: numbers as they are in the CSV, as they are printed in the others."""
        raw = {one.name: _raw(one) for one in self.columns}
        right = [one.name for one in self.columns if one.numbers is not None]
        return table_files(name, pd.DataFrame(raw), printed=self.frame(), right=right, title=self.caption)


def _raw(column: Column) -> pd.Series:
    """The numbers as they are, or the words; beside a missing one, pandas alone would make whole numbers floats."""
    if column.numbers is None:
        return pd.Series(column.cells, dtype=object)
    whole = all(number is None or pd.api.types.is_integer(number) for number in column.numbers)
    return pd.Series(column.numbers, dtype="Int64" if whole else "float64")


def _series(column: Column) -> pd.Series:
    if column.numbers is not None and all(cell == "" or cell.isdecimal() for cell in column.cells):
        return pd.Series([int(cell) if cell else None for cell in column.cells], dtype="Int64")
    return pd.Series(column.cells, dtype=object)


def _numbers(column: Column) -> Sequence[float | None]:
    return column.numbers or [None] * len(column.cells)


def text(name: str, values: Iterable[Any]) -> Column:
    """A column of words: a label "0.10" stays as it is."""
    return Column(name, tuple("" if pd.isna(value) else str(value) for value in values))


def number(name: str, values: Iterable[Any], say: Say | Sequence[Say] = str) -> Column:
    """A column of numbers, said by one function or by one a row."""
    known = [None if pd.isna(value) else value for value in values]
    says = [say] * len(known) if callable(say) else say
    cells = tuple("" if value is None else one(value) for value, one in zip(known, says, strict=True))
    return Column(name, cells, tuple(known))


def said_by(run: Finished, metric: str) -> Say:
    """How a value of this metric is printed: a weight as a weight, a share in percent, another with six digits."""
    if metric in run.study.weights:
        return "{:.4f}".format
    return percent if run.is_share(metric) else lambda x: f"{x + 0.0:.6g}"


def sums(run: Finished) -> dict[str, int]:
    """How much was measured in all: kinds of models, trained models, conditions, and planned, run and skipped."""
    rows = _counted(run)
    return {
        "kinds": len(rows), "models": sum(row["measured"] for row in rows), "conditions": len(run.study.conditions),
        **{name: sum(row[name] for row in rows) for name in ("planned", "run", "skipped")},
    }  # fmt: skip


def counts(run: Finished) -> Table:
    """What was planned, run and skipped of each kind of model, and why."""
    rows = pd.DataFrame(_counted(run), dtype=object)  # beside a missing one, pandas would make whole numbers floats
    return Table(
        "Measurements (trained model × condition × example) planned, run and skipped",
        (
            text("model", rows["model"]), text("made", rows["made"]), number("models declared", rows["declared"]),
            number("models measured", rows["measured"]), number("conditions", rows["conditions"]),
            number("examples each", rows["examples"]), number("planned", rows["planned"]), number("run", rows["run"]),
            number("skipped", rows["skipped"]), text("why skipped", rows["why"]),
        ),
    )  # fmt: skip


def _counted(run: Finished) -> list[dict[str, Any]]:
    study, out = run.study, []
    for label in dict.fromkeys([*study.models, *run.frame["model"].cat.categories]):
        own, source = run.frame[run.frame["model"] == label], study.models.get(label)
        n_conditions = len(for_model(study, label).conditions)
        declared = None if source is None else number_of(source)
        planned = len(own) if declared is None else declared * n_conditions * study.n
        ran, reasons = int(own["skipped"].isna().sum()), own["skipped"].value_counts(sort=False)
        why = [f"{reason}: {count}" for reason, count in reasons.items() if count]
        if planned > len(own):
            why.append(f"not in the results: {planned - len(own)}")
        out.append(
            {
                "model": label, "made": _made(source), "declared": declared,
                "measured": own["model_seed"].nunique(), "conditions": n_conditions, "examples": study.n,
                "planned": planned, "run": ran, "skipped": planned - ran, "why": "; ".join(why),
            }
        )  # fmt: skip
    return out


def _made(source: Any) -> str:
    if source is None:
        return "handed over from Python"
    if not isinstance(source, Training):
        return f"{source.kind}: {', '.join(source.folders)}"
    return "trained: " + ", ".join(f"{name} {value}" for name, value in {**source.config, **source.recipe}.items())


def conditions(study: Study) -> Table:
    """What each condition does, and which models it is for."""
    edits = ["; ".join(map(str, several)) or "nothing" for several in study.conditions.values()]
    meant = [[label for label, names in study.only.items() if name in names] for name in study.conditions]
    return Table(
        "Conditions: what is done to the model",
        (
            text("condition", study.conditions),
            text("interventions", edits),
            text("only in", [", ".join(labels) for labels in meant]),
        ),
    )


def means(run: Finished) -> Table:
    """Every metric's mean with its interval."""
    rows = run.summary[run.summary["metric"].isin(run.metrics)]
    return Table("Means over trained models, with 95% intervals", (*_places(rows), *estimates(run, rows, "mean")))


def weights(run: Finished) -> Table | None:
    """The recorded weights, and which edges each is the mean over; None where the study records none."""
    rows = run.summary[run.summary["metric"].isin(run.study.weights)]
    if not len(rows):
        return None
    edges = [str(run.study.weights[name]) for name in rows["metric"]]
    places = (text("weight", rows["metric"]), text("edges", edges), *_places(rows)[:2])
    return Table("Mean attention weights recorded in clean runs (0 to 1)", (*places, *estimates(run, rows, "mean")))


def _places(rows: pd.DataFrame) -> tuple[Column, ...]:
    return tuple(text(name, rows[name]) for name in ("condition", "model", "metric"))


def estimates(run: Finished, rows: pd.DataFrame, what: str) -> tuple[Column, ...]:
    """The estimate, its interval, the range of seeds, and the counts."""
    say = [said_by(run, metric) for metric in rows["metric"]]
    named = {"estimate": what, "low": "low", "high": "high", "seed_low": "lowest seed", "seed_high": "highest seed"}
    counted = {"n_models": "models", "n_examples": "examples each"}
    counted |= {name: name for name in ("planned", "run", "skipped")}
    return (
        *(number(name, rows[column], say) for column, name in named.items()),
        *(number(name, rows[column]) for column, name in counted.items()),
        text("interval", rows["interval"]),
    )


def notes_table(run: Finished) -> Table | None:
    """The notes, where there are any."""
    if not len(run.notes):
        return None
    return Table("Notes", tuple(text(name.replace("_", " "), run.notes[name]) for name in run.notes.columns))
