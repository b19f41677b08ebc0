"""What a study will do, before it does it: models, cells, what is there already, and about how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench import cells
from workbench.checkpoints import home as place
from workbench.checkpoints import key
from workbench.declared import Training, config_of, definitions_of, number_of
from workbench.measuring import Shared, shared
from workbench.running import run
from workbench.store import Store
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
    task, store, out = study.task.made(), Store(place(home) / "cells"), []
    for label, models in study.models.items():
        own = for_model(study, label)
        common = shared(own, task)
        if isinstance(models, Training):
            known = definitions_of(models, task)
            folders = [place(home) / "checkpoints" / key(one) for one in known]
            there = sum(folder.is_dir() for folder in folders)
            asked = [cells.definitions(common, {"definition": one}, "float32", "cpu") for one in known]
            a_step, model = _timed_training(models, task)
            waiting = (len(known) - there) * a_step
        else:
            from workbench.declared import models_of
            from workbench.studies import as_trained

            trained = as_trained(models_of({label: models}, task, home=home))[label]
            asked = [cells.of(common, one) for one in trained]
            model, there, waiting = trained[0].model, len(trained), 0.0
        wanted = [key(one) for each in asked for one in each.values()]
        left = len(store.missing(wanted))
        out.append(
            Planned(
                label, number_of(models), there, tuple(own.conditions), len(wanted), len(wanted) - left, waiting,
                left * _timed_pass(common, model),
            )
        )  # fmt: skip
    return out


def _timed_pass(common: Shared, model: Any) -> float:
    """Seconds that one condition takes of one model, from a pass over some of the examples."""
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
