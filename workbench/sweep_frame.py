"""What was found in every model of a sweep, put together: the frame and what it says of itself, places and notes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from einops import rearrange

from workbench.assembly import labels
from workbench.checkpoints import Trained
from workbench.engine import Measured
from workbench.interventions import Intervention
from workbench.schema import check, check_columns
from workbench.sweep_places import ONLY, Cells
from workbench.sweep_plan import COORDINATES, Plan
from workbench.swept import CLEAN, UNCHANGED, ran_of
from workbench.work import NOTES, attributes

FEW = 8


@dataclass(frozen=True, eq=False)
class Found:
    """One trained model of a kind: its cells, condition → what is done, metric → [condition example], NaN where an
    example was skipped, and the notes by condition (None: on the whole sweep)."""

    label: str
    trained: Trained
    cells: Cells
    conditions: Mapping[str, Sequence[Intervention]]
    values: Mapping[str, np.ndarray]
    skipped: Mapping[int, str]
    notes: Sequence[tuple[str | None, str]]


def frame_of(found: Sequence[Found], n: int, examples: str) -> pd.DataFrame:
    """The results frame of `n` examples, put together from codes and arrays. examples: their digest."""
    kinds, conditions = _codes(one.label for one in found), _codes(name for one in found for name in one.conditions)
    reasons = _codes(sorted({reason for one in found for reason in one.skipped.values()}))

    def rows(each: Iterable[Any], dtype: type) -> np.ndarray:
        """What each model has [condition example], as a column."""
        shaped: list[np.ndarray] = [
            np.broadcast_to(np.asarray(own, dtype), (len(one.conditions), n))
            for one, own in zip(found, each, strict=True)
        ]
        return np.concatenate([rearrange(own, "condition example -> (condition example)") for own in shaped])

    def category(each: Iterable[Any], known: Mapping[str, int]) -> pd.Categorical:
        return pd.Categorical.from_codes(rows(each, np.int32), dtype=labels(list(known)))

    numbers = {name: rows((one.values[name] for one in found), np.float32) for name in found[0].values}
    columns: dict[str, Any] = {
        "model": category((kinds[one.label] for one in found), kinds),
        "model_seed": rows((one.trained.seed for one in found), np.int64),
        "condition": category(([[conditions[name]] for name in one.conditions] for one in found), conditions),
        "example": rows((range(n) for _ in found), np.int32),
        "skipped": category(([reasons.get(one.skipped.get(at, ""), -1) for at in range(n)] for one in found), reasons),
        **numbers,
    }
    frame = pd.DataFrame(columns, copy=False)
    check_columns(frame)
    ran = columns["skipped"].codes < 0
    if not all(np.isfinite(values[ran]).all() for values in numbers.values()):
        check(frame)  # says what is wrong, and where
    frame.attrs.update(_said(found, examples))
    return frame


def _codes(names: Iterable[str]) -> dict[str, int]:
    return {name: code for code, name in enumerate(dict.fromkeys(names))}


def _said(found: Sequence[Found], examples: str) -> dict[str, Any]:
    """What the frame says of itself, as a study's does."""
    models: dict[str, list[Trained]] = {}
    edits: dict[str, dict[str, str]] = {}
    for one in found:
        models.setdefault(one.label, []).append(one.trained)
        edits.setdefault(one.label, {}).update({name: _text(done) for name, done in one.conditions.items()})
    return attributes(models, examples, edits)


def _text(interventions: Sequence[Intervention]) -> str:
    told = [one.model_dump(mode="json") for one in interventions]
    return json.dumps(told, sort_keys=True, ensure_ascii=False, allow_nan=False)


def places_of(found: Sequence[Found], over: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Where the cells of all models lie, and the places that are a cell in none of them."""
    columns = ["condition", *COORDINATES[over]]
    places = {place["condition"]: place for one in found for place in one.cells.places}
    left = {place["condition"]: place for one in found for place in one.cells.left_out}
    gone = [place for name, place in left.items() if name not in places]
    return pd.DataFrame(places.values(), columns=columns), pd.DataFrame(gone, columns=[*columns, "why"])


def notes_of(found: Sequence[Found]) -> pd.DataFrame:
    """The notes of all models, those on a whole sweep first."""
    notes = [(one.label, one.trained.seed, *note) for one in found for note in one.notes]
    return pd.DataFrame(sorted(notes, key=lambda note: note[2] is not None), columns=NOTES)


def notes_of_each(measured: Mapping[str, Measured]) -> Iterator[tuple[str | None, str]]:
    """The notes on each condition of one model."""
    for name, one in measured.items():
        if name != CLEAN:
            yield from ((name, note.removeprefix(f"{name}: ")) for note in one.notes)
            yield from [(name, UNCHANGED)] * one.same


def notes_of_all(
    cells: Cells, plan: Plan, measured: Mapping[str, Measured], skipped: Mapping[int, str], n: int
) -> Iterator[tuple[str | None, str]]:
    """The notes on the whole sweep of one model: which examples did not run, which places were not swept, and what went
    through hooks."""
    if skipped:
        yield None, ran_of(n, skipped)
    if cells.left_out:
        left, names = len(cells.left_out), [place["condition"] for place in cells.left_out]
        mend = "say empty='no-update' or 'self' to sweep them"
        yield None, f"{left} of {left + len(cells.places)} cells were left out ({_few(names)}): {ONLY}; {mend}"
    if cells.hidden and plan.over == "roles":
        yield None, f"{len(cells.hidden)} pairs of roles have no edge in any example: {_few(cells.hidden)}"
    slow = Counter(measured[name].engine for name in cells.conditions if measured[name].engine != "rows")
    for engine, count in slow.items():
        yield None, f"{count} of {len(cells.conditions)} cells went through {engine}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW]) + (", ..." if len(names) > FEW else "")
