"""The files of a finished run, read back and checked against each other."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.results import summary
from workbench.schema import UNBOUNDED, check, metrics
from workbench.study import Study
from workbench.study_file import read_study
from workbench.work import NOTES

FILES = ("results.parquet", "study.json", "notes.csv", "provenance.json")


@dataclass(frozen=True)
class Finished:
    """A run: its study with the text of its file, the results frame, the notes, and what made them."""

    study: Study
    study_text: str
    frame: pd.DataFrame
    notes: pd.DataFrame
    provenance: dict[str, Any]

    @cached_property
    def summary(self) -> pd.DataFrame:
        """`results.summary` of the results, worked out once."""
        return summary(self.frame)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What was measured of the answers: every column that is not a weight."""
        return tuple(name for name in metrics(self.frame) if name not in self.study.weights)

    def is_share(self, metric: str) -> bool:
        """Whether all values of a metric lie in [0, 1] by what it is."""
        values = self.frame[metric]
        return metric not in UNBOUNDED and bool(values.min() >= 0 and values.max() <= 1)


def read_run(folder: Path | str) -> Finished:
    """The run in a folder, as `workbench study run` wrote it.

    Raises FileNotFoundError or ValueError naming the file and the fault: no run, a damaged file, results with
    conditions or models that the study does not have.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise FileNotFoundError(f"{folder}: {what}; a run is the folder that `workbench study run` writes")
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise FileNotFoundError(
            f"{folder} has no {', '.join(missing)}; a run is the folder that `workbench study run` writes, run it again"
        )
    run = Finished(
        read_study(folder / "study.json"),
        (folder / "study.json").read_text(encoding="utf-8"),
        _read(folder / "results.parquet", lambda raw: pd.read_parquet(io.BytesIO(raw))),
        _read(folder / "notes.csv", _notes),
        _read(folder / "provenance.json", _object),
    )
    _check(folder, run)
    return run


def _read(path: Path, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:  # pyarrow's errors are of these kinds
        raise ValueError(f"{path} cannot be read ({error}); the file is damaged, run the study again") from error


def _notes(raw: bytes) -> pd.DataFrame:
    """Text stays text: a model labelled NA or 0.10 is no missing value and no number."""
    table = pd.read_csv(io.BytesIO(raw), dtype=str, keep_default_na=False)
    if list(table.columns) != NOTES:
        raise ValueError(f"notes have the columns {NOTES}; there are {list(table.columns)}")
    return table


def _object(raw: bytes) -> dict[str, Any]:
    values = json.loads(raw)
    if not isinstance(values, dict):
        raise ValueError(f"an object was expected; there is a {type(values).__name__}")
    return values


def _check(folder: Path, run: Finished) -> None:
    """The results are a results frame, and this study's."""
    try:
        check(run.frame)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / 'results.parquet'}: {error}") from error
    known = {"condition": list(run.study.conditions), "model": list(run.study.models)}
    for what, declared in known.items():
        strange = [label for label in run.frame[what].unique() if label not in declared]
        if strange and declared:
            raise ValueError(
                f"{folder}: results.parquet has the {what} {strange[0]!r}, which study.json lacks (it has "
                f"{', '.join(declared)}): the two are of different studies; run the study again"
            )
