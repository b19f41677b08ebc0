"""Trained models, found where they were trained before: several at once, each once, and always the same bits.

On a CPU each model trains in a process of its own; on a GPU all seeds of a configuration train as one ensemble. Each
seed sees the same data in both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, groupby
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock
from torch import Tensor

from workbench import checkpoints, fitting, holdings
from workbench.checkpoints import Trained
from workbench.devices import choose
from workbench.fitting import Curve, fit, fit_ensemble
from workbench.models.built import build
from workbench.models.config import Config, EncoderDecoderConfig, ModelConfig
from workbench.progress import bar
from workbench.recipe import Recipe
from workbench.task import Task, identity
from workbench.workers import Job, Keep, fit_in_processes, refuse_inside_a_worker

Trainer = Literal["single", "ensemble"]


def definition(task: Task, config: Config, recipe: Recipe, seed: int, trainer: Trainer, device: str) -> dict[str, Any]:
    """What a checkpoint's key is the hash of."""
    return {
        "task": identity(task),
        "config": config.model_dump(mode="json"),
        "recipe": recipe.model_dump(),
        "seed": seed,
        "trainer": trainer,
        "device": device,
        "dtype": "float32",
        "meaning": {"training": fitting.MEANING, "config": type(config).MEANING, "recipe": Recipe.MEANING},
    }


def train(
    task: Task,
    config: Config,
    recipe: Recipe,
    seed: int,
    *,
    device: str = "auto",
    home: Path | str | None = None,
    progress: bool = True,
) -> Trained:
    """One trained model; as `train_many` with one seed."""
    return train_many(task, config, recipe, [seed], device=device, home=home, progress=progress)[0]


def train_many(
    task: Task,
    config: Config,
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    device: str = "auto",
    home: Path | str | None = None,
    progress: bool = True,
) -> list[Trained]:
    """A trained model per model seed, in order; as `train_each` with one configuration."""
    return train_each(task, {"": config}, recipe, seeds, device=device, home=home, progress=progress)[""]


def train_each(
    task: Task,
    configs: Mapping[str, Config],
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    device: str = "auto",
    home: Path | str | None = None,
    progress: bool = True,
) -> dict[str, list[Trained]]:
    """Trained models by the name of their configuration, one per model seed, in order. All that are missing train at
    once, the largest first. A checkpoint that is there already is loaded, not trained again.

    device: "auto" (CUDA, then CPU), "cpu", "cuda", "mps"; any but the CPU passes a parity check first. home: the
    folder of runs. Raises ValueError where the task and a model do not fit. A script that defines the task itself
    trains several models under `if __name__ == "__main__":`, since worker processes import it.
    """
    _check(task, configs, recipe, seeds)
    jobs = {name: [Job(config, int(seed)) for seed in seeds] for name, config in configs.items()}
    where = choose(device)
    trainer: Trainer = "single" if where.type == "cpu" else "ensemble"
    place = holdings.place(home) / "checkpoints"
    place.mkdir(parents=True, exist_ok=True)
    known = {job: definition(task, job.config, recipe, job.seed, trainer, where.type) for job in chain(*jobs.values())}
    folders = {job: place / checkpoints.key(known[job]) for job in known}

    def keep(job: Job, state: dict[str, Tensor], curve: Curve) -> None:
        model = build(job.config, seed=0)
        model.load_state_dict(state)
        checkpoints.save(folders[job], model, known[job], curve)

    with ExitStack() as locks:
        for folder in sorted({folder for folder in folders.values() if not folder.exists()}):
            locks.enter_context(FileLock(f"{folder}.lock"))
        todo = sorted((job for job in known if not folders[job].exists()), key=_size, reverse=True)
        if todo:
            named = " ".join(["training", ", ".join(filter(None, configs))]).strip()
            with bar(named, "step", len(todo) * recipe.steps, progress) as drawn:
                _fit_all(task, recipe, todo, where, keep, drawn.update)
    return {name: [found(folders[job], known[job]) for job in asked] for name, asked in jobs.items()}


def found(folder: Path, asked: Mapping[str, Any]) -> Trained:
    """The checkpoint in a folder, which must be the one that its key says."""
    trained = checkpoints.load(folder)
    if checkpoints.key(trained.about["definition"]) != checkpoints.key(asked):
        raise ValueError(
            f"{folder}: this checkpoint was made by another definition (task, config, recipe, seed) than asked; "
            "it was moved or altered. Remove the folder, and it is trained again"
        )
    return trained


def _size(job: Job) -> int:
    return job.config.n_layers * job.config.d_model


def _check(task: Task, configs: Mapping[str, Config], recipe: Recipe, seeds: Sequence[int]) -> None:
    if isinstance(task, type) or not hasattr(task, "sample"):
        raise TypeError(f"the task is {task!r}; make one, as Lookup() is")
    if not isinstance(recipe, Recipe):
        raise TypeError(f"the recipe is a {type(recipe).__name__}; make it a Recipe, as Recipe(steps=1000)")
    if isinstance(seeds, int):
        raise TypeError(f"model seeds come as a list: range({seeds}) for so many, [{seeds}] for this one")
    if not isinstance(configs, Mapping) or not configs:
        raise ValueError(f"configs are one or more ModelConfig by name, as {{'two layers': config}}; got {configs!r}")
    for name, config in configs.items():
        if not isinstance(config, ModelConfig | EncoderDecoderConfig):
            raise TypeError(f"the configuration is a {type(config).__name__}; make it a ModelConfig: ModelConfig(**it)")
        if wrong := _unfit(task, config):
            raise ValueError(f"the model{f' {name!r}' if name else ''} has {wrong[0]}; task {task.name!r} {wrong[1]}")
    whole = all(isinstance(seed, Integral) and not isinstance(seed, bool) for seed in seeds)
    if not whole or not len(seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"model seeds must be one or more whole numbers, each once; got {list(seeds)}")
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(
            f"models are trained in float32, and torch's default is {torch.get_default_dtype()}; "
            "train before you change it, and convert the model"
        )
    refuse_inside_a_worker()


def _unfit(task: Task, config: Config) -> tuple[str, str] | None:
    """What of a model does not fit a task, and what the task needs; None where all does."""
    if config.d_vocab < len(task.vocabulary) or config.n_ctx < task.length:
        return f"d_vocab={config.d_vocab} and n_ctx={config.n_ctx}", f"needs {len(task.vocabulary)} and {task.length}"
    context = getattr(task, "context_length", None)
    if isinstance(config, ModelConfig):
        if context is not None:
            return "one stack", "has a context, which an encoder–decoder reads (EncoderDecoderConfig)"
        wanted = getattr(task, "d_patch", 0)
        return (f"d_patch={config.d_patch}", f"has d_patch={wanted}") if config.d_patch != wanted else None
    if context is None:
        return "an encoder", "has no context for it to read"
    if config.encoder.n_ctx < context or config.encoder.d_vocab < len(task.vocabulary):
        said = f"an encoder with d_vocab={config.encoder.d_vocab} and n_ctx={config.encoder.n_ctx}"
        return said, f"needs {len(task.vocabulary)} and {context}"
    return None


def _fit_all(
    task: Task,
    recipe: Recipe,
    jobs: Sequence[Job],
    device: torch.device,
    keep: Keep,
    tick: Callable[[int], Any],
) -> None:
    workers = min(len(jobs), os.cpu_count() or 1)
    if device.type != "cpu":
        for config, group in groupby(jobs, key=lambda job: job.config):
            together = list(group)
            states, curves = fit_ensemble(task, config, recipe, [job.seed for job in together], device, tick)
            for job, state, curve in zip(together, states, curves, strict=True):
                keep(job, state, curve)
    elif workers == 1:
        for job in jobs:
            keep(job, *fit(task, job.config, recipe, job.seed, tick))
    else:
        fit_in_processes(task, recipe, jobs, workers, keep, tick)
