"""What a study will do, before it does it: models, cells, what is there already, and about how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench import cells
from workbench.declared import Training, config_of, definitions_of, models_of, number_of, trained_before
from workbench.holdings import place
from workbench.measuring import Shared
from workbench.running import run
from workbench.store import Store
from workbench.studies import as_trained, rehearsed
from workbench.study import Study, for_model

TIMED = 256
"""Examples on which a pass is timed."""

STEPS = 3
"""Training steps that are timed, after one that is not."""


@dataclass(frozen=True)
class Planned:
    """One label of a study: models declared and there already, conditions, cells and those there already, and about how
    many seconds of one processor the rest takes, by a measurement."""

    label: str
    models: int
    trained: int
    conditions: Sequence[str]
    cells: int
    measured: int
    training_seconds: float
    measuring_seconds: float


def plan(study: Study, *, home: Path | str | None = None) -> list[Planned]:
    """What `run_declared` would do. Nothing is trained or measured but a few steps and a pass, to tell the time.

    Raises ValueError for a study that declares no task or no models.
    """
    if study.task is None or not study.models:
        raise ValueError("this study declares no task or no models: there is nothing to plan")
    task, store, out, seen = study.task.made(), Store(place(home) / "cells"), [], set[str]()
    common = rehearsed(study, task, home=home)
    for label, models in study.models.items():
        own = replace(common, study=for_model(study, label))
        naming = cells.Naming(own)
        if isinstance(models, Training):
            known = definitions_of(models, task, home=home)
            there = trained_before(models, task, home=home)
            named = [naming.keys_in({"definition": one}, "float32", "cpu") for one in known]
            a_step, model = _timed_training(models, task)
            waiting = (len(known) - there) * a_step
        else:
            trained = as_trained(models_of({label: models}, task, home=home))[label]
            named = [naming.keys(one) for one in trained]
            model, there, waiting = trained[0].model, len(trained), 0.0
        wanted = [name for each in named for name in each.values()]
        left = store.missing(wanted)
        n_passes = sum(passes(own.study, each, set(left) - seen) for each in named)
        seen |= set(wanted)
        out.append(
            Planned(
                label, number_of(models), there, tuple(own.study.conditions), len(wanted), len(wanted) - len(left),
                waiting, n_passes * _timed_pass(own, model),
            )
        )  # fmt: skip
    return out


def passes(study: Study, named: Mapping[str, str], missing: Collection[str]) -> int:
    """How often a model runs, at the most, for those of its cells (condition → key) that are missing: each block once
    without interventions, once more for derived relations and for weights, and once for each condition with
    interventions (of which the engine computes only what they can change)."""
    first = {name: condition for condition, name in reversed(list(named.items()))}
    total = 0
    for group in cells.groups(condition for condition, name in named.items() if first[name] == condition):
        edits = [study.conditions[condition] for condition in group if named[condition] in missing]
        if edits:
            total += 1 + bool(study.derived) + bool(study.weights and () in edits) + sum(map(bool, edits))
    return total


def _timed_pass(common: Shared, model: Any) -> float:
    """Seconds that a model takes for all examples, from a pass over some of them."""
    n = min(TIMED, len(common.batch))
    batch = common.batch.select(slice(0, n))
    return _seconds(lambda: run(model, batch, positions="read")) * len(common.batch) / n


def _timed_training(models: Training, task: Any) -> tuple[float, Any]:
    """Seconds that one model trains, from a few steps; and a model of its kind."""
    from workbench.fitting import fit, fresh
    from workbench.recipe import Recipe

    recipe, config = Recipe.model_validate(models.recipe), config_of(models, task)
    few = recipe.model_copy(update={"steps": STEPS, "warmup": 1, "stop_at": None})
    return _seconds(lambda: fit(task, config, few, 0)) / STEPS * recipe.steps, fresh(config, 0)


def _seconds(work: Callable[[], Any]) -> float:
    work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def told(planned: Sequence[Planned]) -> str:
    """The plan as text, a block a label and a line of sums."""
    lines = []
    for one in planned:
        lines.append(
            f"{one.label}: {one.models} models ({one.trained} there), {len(one.conditions)} conditions, {one.cells} "
            f"cells ({one.measured} there); about {_span(one.training_seconds)} of training and "
            f"{_span(one.measuring_seconds)} of measuring on one processor"
        )
        lines += [f"  {condition}" for condition in one.conditions]
    total = sum(one.cells for one in planned)
    left = total - sum(one.measured for one in planned)
    seconds = sum(one.training_seconds + one.measuring_seconds for one in planned)
    lines.append(f"{total} cells, {left} of them to be measured; about {_span(seconds)} on one processor")
    return "\n".join(lines)


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
