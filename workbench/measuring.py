"""One model under some conditions of a study: the values of every example, and what must be noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from workbench.batch import Batch
from workbench.block_by_block import Engine
from workbench.edits import InertIntervention
from workbench.engine import measure_each
from workbench.interventions import donor_names
from workbench.locations import Edges
from workbench.patterns import derive, edge_weights
from workbench.running import MissingExamples, absent
from workbench.study import Study
from workbench.task import Task


@dataclass(frozen=True, eq=False)
class Shared:
    """What every model of a study is measured on: the study, its task, the examples and the donors; and by which
    engine (see `run_each`)."""

    study: Study
    task: Task
    batch: Batch
    donors: Mapping[str, Batch]
    engine: Engine = "auto"


@dataclass(frozen=True, eq=False)
class Cell:
    """A model under a condition: a row an example (example, skipped, metrics, weights), and notes."""

    rows: pd.DataFrame
    notes: tuple[str, ...]


def shared(study: Study, task: Task, engine: Engine = "auto") -> Shared:
    """The study's examples and donors, drawn."""
    batch = task.sample(study.n, study.data_seed)
    return Shared(study, task, batch, {name: _donor(study, task, batch, name) for name in study.donors}, engine)


def _donor(study: Study, task: Task, batch: Batch, name: str) -> Batch:
    spec = study.donors[name]
    drawn = batch if spec.data_seed is None else task.sample(study.n, spec.data_seed)
    return drawn if spec.corrupt_seed is None else task.corrupt(drawn, spec.corrupt_seed)


def rehearse(common: Shared, model: Any, n: int = 4) -> None:
    """Measures every condition on the first examples, so that what none could be measured in is told before models are
    trained for it. Raises what `measure` raises, but for examples that lack something: others may not."""
    few, conditions = slice(0, n), list(common.study.conditions)
    donors = {name: donor.select(few) for name, donor in common.donors.items()}
    small = replace(common, batch=common.batch.select(few), donors=donors)
    lacking = (MissingExamples, InertIntervention)
    try:
        measure(small, model, conditions)
    except lacking:
        for condition in conditions:
            alone = common.study.model_copy(update={"conditions": {condition: common.study.conditions[condition]}})
            with suppress(*lacking):
                measure(replace(small, study=alone), model, [condition])


def measure(
    common: Shared,
    model: Any,
    conditions: Sequence[str],
    tick: Callable[[int], Any] = lambda _: None,
) -> dict[str, Cell]:
    """The cells of one model under these conditions; all examples that any condition of the study lacks are left out.

    Raises what `run` raises, with the condition's and the task's name before it.
    """
    study, task = common.study, common.task
    try:
        batch = derive(model, common.batch, study.derived, on_missing=study.on_missing)
    except (KeyError, ValueError) as error:
        raise named(error, "derived relations", task) from error
    skipped = _missing(study, task, model, batch)
    keep = torch.tensor([i for i in range(len(batch)) if i not in skipped], dtype=torch.long)
    if not len(keep):
        raise MissingExamples(f"task {task.name!r}: no example is left; first: {next(iter(skipped.values()))}")
    asked = {condition: study.conditions[condition] for condition in conditions}
    found = measure_each(
        model,
        batch,
        asked,
        study.metrics,
        donors={name: common.donors[name] for several in asked.values() for name in donor_names(several)},
        left_out=skipped,
        engine=common.engine,
        say=lambda condition: f"condition {condition!r} of task {task.name!r}",
    )
    cells: dict[str, Cell] = {}
    for condition, one in found.items():
        values = {name: value.cpu().numpy() for name, value in one.values.items()}
        if not asked[condition] and study.weights:
            weighed = edge_weights(model, batch.select(keep), study.weights)
            values |= {name: weight.cpu().numpy() for name, weight in weighed.items()}
        notes = list(one.notes)
        if asked[condition] and one.same:
            notes.append("the logits are those without interventions, bit for bit, in every example")
        cells[condition] = Cell(_rows(values, keep.numpy(), skipped, len(batch)), tuple(notes))
        tick(1)
    return cells


def _missing(study: Study, task: Task, model: Any, batch: Batch) -> dict[int, str]:
    """Examples in which some condition has nothing to act on, or a weight no edge: example → the first reason."""
    out: dict[int, str] = {}
    for where, find in _needs(study, model, batch):
        try:
            found = find()
        except (KeyError, ValueError) as error:
            raise named(error, where, task) from error
        if found and study.on_missing == "raise":
            example, reason = next(iter(found.items()))
            say = (
                f"{reason} in example {example} ({len(found)} of {len(batch)} examples are missing something); say "
                "on_missing='skip' in the study to drop them from every condition and count them"
            )
            raise named(MissingExamples(say), where, task)
        out |= {example: reason for example, reason in found.items() if example not in out}
    return out


def _needs(study: Study, model: Any, batch: Batch) -> Iterator[tuple[str, Callable[[], dict[int, str]]]]:
    """What of the study needs something in each example, and a function that finds those without: example → reason."""
    for condition, interventions in study.conditions.items():
        yield f"condition {condition!r}", partial(absent, model, batch, interventions)
    for name, edges in study.weights.items():
        yield f"weight {name!r}", partial(_unweighed, model, batch, name, edges)


def _unweighed(model: Any, batch: Batch, name: str, edges: Edges) -> dict[int, str]:
    mask = batch.edges(edges.dest, edges.source, edges.in_model) & model.sees(batch, edges.in_model, edges.layer)
    none = (~mask.flatten(1).any(1)).nonzero().flatten().tolist()
    return dict.fromkeys(none, f"weight {name!r}: no visible edge {edges}")


def named(error: Exception, where: str, task: Task) -> Exception:
    """The error with the place in the study before its words."""
    return type(error)(f"{where} of task {task.name!r}: {error.args[0] if error.args else error}")


def _rows(values: Mapping[str, np.ndarray], keep: np.ndarray, skipped: Mapping[int, str], n: int) -> pd.DataFrame:
    columns: dict[str, Any] = {"example": np.arange(n, dtype=np.int32)}
    columns["skipped"] = pd.array([skipped.get(example) for example in range(n)], dtype="str")
    for name, found in values.items():
        spread = np.full(n, np.nan, dtype=np.float32)
        spread[keep] = found
        columns[name] = spread
    return pd.DataFrame(columns)
