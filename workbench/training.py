"""Training: a recipe, a model seed, and weights that are the same each time. Several seeds at once on both kinds of
device.

On a CPU each seed trains in a process of its own; on a GPU all train as one ensemble. Each seed sees the same data in
both.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from tqdm import tqdm

from workbench import checkpoints
from workbench.batch import UNREAD
from workbench.checkpoints import Trained
from workbench.devices import choose, one_thread
from workbench.models.config import ModelConfig
from workbench.models.transformer import Transformer
from workbench.task import Task, derive_seed, identity

STEPS_A_BLOCK = 50
GUARD = "put what it does under `if __name__ == '__main__':`"
MEANING = 1
Trainer = Literal["single", "ensemble"]
Curve = list[dict[str, float]]


class Recipe(BaseModel):
    """How a model is trained: AdamW, linear warm-up, cosine to zero, cross-entropy at the positions that are read.

    lr: the peak rate. warmup: steps in which the rate rises to it. curve_every: steps between points of the curve.
    stop_at: training ends at the first point of the curve whose batch reaches this accuracy (None: never early).

    >>> recipe = Recipe(steps=1000, lr=3e-3, warmup=100)
    >>> recipe.rate(0), recipe.rate(99), recipe.rate(1000)
    (3e-05, 0.003, 0.0)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(1000, ge=1)
    batch_size: int = Field(256, ge=1)
    lr: float = Field(3e-3, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    warmup: int = Field(100, ge=0)
    stop_at: float | None = Field(None, gt=0, le=1)
    curve_every: int = Field(10, ge=1)
    MEANING: ClassVar[int] = 1

    def rate(self, step: int) -> float:
        """The learning rate at a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        left = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.lr * 0.5 * (1 + math.cos(math.pi * left))


def training_batches(task: Task, recipe: Recipe, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """What a model seed is trained on: tokens [batch pos], read [batch read], labels [batch read], one a step.

    A position that `read` repeats has its label once, and `UNREAD` after. Raises ValueError for a task that pads.
    """
    for block in range(math.ceil(recipe.steps / STEPS_A_BLOCK)):
        steps = min(STEPS_A_BLOCK, recipe.steps - block * STEPS_A_BLOCK)
        drawn = task.sample(steps * recipe.batch_size, derive_seed("train", seed, block))
        if not drawn.valid.all():
            raise ValueError(
                f"task {task.name!r} draws padded sequences, and training reads every position as a token; "
                "make its sequences of one length"
            )
        read = drawn.read_positions()
        repeated = read == read[:, :1]
        repeated[:, 0] = False
        labels = drawn.labels.gather(1, read).masked_fill(repeated, UNREAD)
        for step in range(steps):
            here = slice(step * recipe.batch_size, (step + 1) * recipe.batch_size)
            yield drawn.tokens[here], read[here], labels[here]


def definition(
    task: Task, config: ModelConfig, recipe: Recipe, seed: int, trainer: Trainer, device: str
) -> dict[str, Any]:
    """What a checkpoint's key is the hash of."""
    return {
        "task": identity(task),
        "config": config.model_dump(),
        "recipe": recipe.model_dump(),
        "seed": seed,
        "trainer": trainer,
        "device": device,
        "dtype": "float32",
        "meaning": {"training": MEANING, "config": ModelConfig.MEANING, "recipe": Recipe.MEANING},
    }


def fresh(config: ModelConfig, seed: int) -> Transformer:
    """The untrained model of a model seed."""
    return Transformer(config, seed=derive_seed("init", seed))


def train(
    task: Task,
    config: ModelConfig,
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
    config: ModelConfig,
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    device: str = "auto",
    home: Path | str | None = None,
    progress: bool = True,
) -> list[Trained]:
    """A trained model per model seed, in order. A checkpoint that is there already is loaded, not trained again.

    device: "auto" (CUDA, then CPU), "cpu", "cuda", "mps"; any but the CPU passes a parity check first. home: the
    folder of runs. Raises ValueError where task and model do not fit. A script that defines the task itself trains
    several seeds under `if __name__ == "__main__":`, since worker processes import it.
    """
    _check(task, config, seeds)
    seeds = [int(seed) for seed in seeds]
    where = choose(device)
    trainer: Trainer = "single" if where.type == "cpu" else "ensemble"
    place = checkpoints.home(home) / "checkpoints"
    place.mkdir(parents=True, exist_ok=True)
    known = {seed: definition(task, config, recipe, seed, trainer, where.type) for seed in seeds}
    folders = {seed: place / checkpoints.key(known[seed]) for seed in seeds}
    with ExitStack() as locks:
        for folder in sorted(folder for folder in folders.values() if not folder.exists()):
            locks.enter_context(FileLock(f"{folder}.lock"))
        todo = [seed for seed in seeds if not folders[seed].exists()]

        def keep(seed: int, state: dict[str, Tensor], curve: Curve) -> None:
            model = Transformer(config, seed=0)
            model.load_state_dict(state)
            checkpoints.save(folders[seed], model, known[seed], curve)

        if todo:
            with tqdm(
                total=len(todo) * recipe.steps, desc="training", unit="step", disable=None if progress else True
            ) as bar:
                _fit_all(task, config, recipe, todo, where, keep, bar.update)
    return [checkpoints.load(folders[seed]) for seed in seeds]


def _check(task: Task, config: ModelConfig, seeds: Sequence[int]) -> None:
    if config.d_vocab < len(task.vocabulary) or config.n_ctx < task.length:
        raise ValueError(
            f"the model has d_vocab={config.d_vocab} and n_ctx={config.n_ctx}; task {task.name!r} needs "
            f"{len(task.vocabulary)} and {task.length}"
        )
    whole = all(isinstance(seed, Integral) and not isinstance(seed, bool) for seed in seeds)
    if not whole or not len(seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"model seeds must be one or more whole numbers, each once; got {list(seeds)}")
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(
            f"models are trained in float32, and torch's default is {torch.get_default_dtype()}; "
            "train before you change it, and convert the model"
        )
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker imports the script that started it: training again there would wait for its own parent for ever.
        raise RuntimeError(f"this script trains when it is imported; {GUARD}")


Keep = Callable[[int, dict[str, Tensor], Curve], None]


def _fit_all(
    task: Task,
    config: ModelConfig,
    recipe: Recipe,
    seeds: Sequence[int],
    device: torch.device,
    keep: Keep,
    tick: Callable[[int], Any],
) -> None:
    if device.type != "cpu":
        states, curves = fit_ensemble(task, config, recipe, seeds, device, tick)
        for seed, state, curve in zip(seeds, states, curves, strict=True):
            keep(seed, state, curve)
        return
    workers = min(len(seeds), os.cpu_count() or 1)
    if workers == 1:
        for seed in seeds:
            keep(seed, *fit(task, config, recipe, seed, tick))
        return
    _fit_in_processes(task, config, recipe, seeds, workers, keep, tick)


def _fit_in_processes(
    task: Task,
    config: ModelConfig,
    recipe: Recipe,
    seeds: Sequence[int],
    workers: int,
    keep: Keep,
    tick: Callable[[int], Any],
) -> None:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["workbench.training"])
    steps = context.Queue()
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(steps,)) as pool:
        with _script_left_alone(type(task).__module__):
            jobs = {pool.submit(_work, task, config, recipe, seed): seed for seed in seeds}
        pending = set(jobs)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_EXCEPTION)
                for job in done:
                    keep(jobs[job], *job.result())
                _drain(steps, tick)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise RuntimeError(
                    f"a training process ended before its model was trained: it was killed or ran out of memory, or "
                    f"the script that started it trains when it is imported: then {GUARD}"
                ) from error
            raise


@contextmanager
def _script_left_alone(module: str) -> Iterator[None]:
    """Workers that start in here do not import the running script, unless it is the module they need."""
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    if module == "__main__" or not kept:
        yield
        return
    try:
        vars(main).pop("__file__", None)
        main.__spec__ = None
        yield
    finally:
        vars(main).update(kept)


def _drain(steps: Any, tick: Callable[[int], Any]) -> None:
    while True:
        try:
            tick(steps.get_nowait())
        except queue.Empty:
            return


_steps: Any = None


def _start_worker(steps: Any) -> None:
    global _steps
    _steps = steps
    torch.set_num_threads(1)


def _work(task: Task, config: ModelConfig, recipe: Recipe, seed: int) -> tuple[dict[str, Tensor], Curve]:
    waiting = 0

    def tick(n: int) -> None:
        nonlocal waiting
        waiting += n
        if waiting >= 20:
            _steps.put(waiting)
            waiting = 0

    trained = fit(task, config, recipe, seed, tick)
    _steps.put(waiting)
    return trained


def _optimiser(parameters: list[Tensor], recipe: Recipe) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay, fused=True
    )


def fit(
    task: Task, config: ModelConfig, recipe: Recipe, seed: int, tick: Callable[[int], Any] = lambda _: None
) -> tuple[dict[str, Tensor], Curve]:
    """Trains one model on the CPU, on one thread. Returns its weights and its curve."""
    model, curve = fresh(config, seed).train(), []
    optimiser = _optimiser(list(model.parameters()), recipe)
    with one_thread():
        for step, (tokens, read, labels) in enumerate(training_batches(task, recipe, seed)):
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate(step)
            logits = model(tokens, read=read)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            tick(1)
            if _noted(recipe, step):
                right = (logits.argmax(-1) == labels)[labels >= 0].float().mean()
                curve.append({"step": step + 1, "loss": float(loss.detach()), "accuracy": float(right)})
                if recipe.stop_at is not None and float(right) >= recipe.stop_at:
                    break
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, curve


def _noted(recipe: Recipe, step: int) -> bool:
    return step % recipe.curve_every == recipe.curve_every - 1 or step == recipe.steps - 1 or step == 0


def fit_ensemble(
    task: Task,
    config: ModelConfig,
    recipe: Recipe,
    seeds: Sequence[int],
    device: torch.device,
    tick: Callable[[int], Any] = lambda _: None,
) -> tuple[list[dict[str, Tensor]], list[Curve]]:
    """Trains all seeds as one model with a seed axis (torch.func). Each sees the data it would see alone.

    A recipe with `stop_at` is refused: seeds would end at different steps.
    """
    if recipe.stop_at is not None:
        raise ValueError("an ensemble trains every seed for all steps; leave stop_at out, or train on device='cpu'")
    models = [fresh(config, seed) for seed in seeds]
    skeleton = Transformer(config, seed=0).to(device)
    states = [model.state_dict() for model in models]
    stacked = {
        name: torch.stack([state[name] for state in states]).to(device).requires_grad_(True) for name in states[0]
    }
    optimiser = _optimiser(list(stacked.values()), recipe)
    curves: list[Curve] = [[] for _ in seeds]

    def losses(weights: dict[str, Tensor], tokens: Tensor, read: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.func.functional_call(skeleton, weights, (tokens,), {"read": read})
        right = ((logits.argmax(-1) == labels) & (labels >= 0)).sum() / (labels >= 0).sum()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), right

    streams = [training_batches(task, recipe, seed) for seed in seeds]
    for step, drawn in enumerate(zip(*streams, strict=True)):
        tokens, read, labels = (torch.stack(parts).to(device) for parts in zip(*drawn, strict=True))
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step)
        loss, right = torch.func.vmap(losses)(stacked, tokens, read, labels)
        optimiser.zero_grad()
        loss.sum().backward()
        optimiser.step()
        tick(len(seeds))
        if _noted(recipe, step):
            for curve, one, share in zip(curves, loss.tolist(), right.tolist(), strict=True):
                curve.append({"step": step + 1, "loss": one, "accuracy": share})
    names = list(stacked)
    return [{name: stacked[name][i].detach().cpu().clone() for name in names} for i in range(len(seeds))], curves
