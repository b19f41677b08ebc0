"""Ways of training the lecture's lookup model, each telling when its steps were done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from analyses.training_plain import Plain
from tasks.lookup import Lookup
from workbench import ModelConfig, Recipe
from workbench.fitting import fit, fit_ensemble, fresh, training_batches

Timed = tuple[float, list[float]]
"""The last loss, and the processor seconds from the beginning to the end of each step."""

Way = Callable[[Recipe, Sequence[int]], list[Timed]]
"""Trains seeds by a recipe: one after the other, or several at once."""


FIT, PROCESSES, ENSEMBLE = "fit, one process", "fit, two processes", "ensemble"


def ways_of(pool: ProcessPoolExecutor, together: int) -> dict[str, Way]:
    """Every way by its name. pool: the processes of one way. together: seeds of an ensemble."""
    step_of.cache_clear()
    return {
        FIT: partial(_in_turn, _alone),
        PROCESSES: partial(_in_pool, pool),
        f"{ENSEMBLE} of {together}": partial(_ensemble, False),
        f"{ENSEMBLE} of {together}, compiled": partial(_ensemble, True),
        "our model, every position": partial(_in_turn, partial(_loop, _ours, False, False)),
        "our model, read positions": partial(_in_turn, partial(_loop, _ours, True, False)),
        "our model, read positions, compiled": partial(_in_turn, partial(_loop, _ours, True, True)),
        "plain PyTorch, every position": partial(_in_turn, partial(_loop, _plain, False, False)),
        "plain PyTorch, read positions": partial(_in_turn, partial(_loop, _plain, True, False)),
        "plain PyTorch, every position, compiled": partial(_in_turn, partial(_loop, _plain, False, True)),
        "plain PyTorch, read positions, compiled": partial(_in_turn, partial(_loop, _plain, True, True)),
    }


def config() -> ModelConfig:
    """The two-layer lookup model of the lecture."""
    task = Lookup()
    return ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.length, d_model=32, n_layers=2, n_heads=1, norm="post")


def _clock() -> float:
    """Processor seconds of this process and of those it has started and seen end, such as a compiler."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system


def _ticking() -> tuple[list[float], Callable[[int], None]]:
    """Processor seconds from now on, and what notes them."""
    begun, ticks = _clock(), list[float]()
    return ticks, lambda _: ticks.append(_clock() - begun)


def _alone(recipe: Recipe, seed: int) -> Timed:
    ticks, tick = _ticking()
    return fit(Lookup(), config(), recipe, seed, tick)[1][-1]["loss"], ticks


def _in_turn(train: Callable[[Recipe, int], Timed], recipe: Recipe, seeds: Sequence[int]) -> list[Timed]:
    return [train(recipe, seed) for seed in seeds]


def _in_pool(pool: ProcessPoolExecutor, recipe: Recipe, seeds: Sequence[int]) -> list[Timed]:
    return list(pool.map(_alone, [recipe] * len(seeds), seeds))


def _ensemble(compiling: bool, recipe: Recipe, seeds: Sequence[int]) -> list[Timed]:
    ticks, tick = _ticking()
    device = torch.device("cpu")
    curves = fit_ensemble(Lookup(), config(), recipe, seeds, device, tick, compiling=compiling)[1]
    return [(curves[0][-1]["loss"], ticks)]


def _ours(only_read: bool) -> Any:
    model = fresh(config(), 0).train()
    return model, lambda tokens: model(tokens, read=torch.full_like(tokens[:, :1], 8) if only_read else None)


def _plain(only_read: bool) -> Any:
    model = Plain(fresh(config(), 0)).train()
    return model, lambda tokens: model(tokens, only_read)


@cache
def step_of(make: Callable[[bool], Any], only_read: bool, compiling: bool) -> tuple[Any, Callable[..., Tensor]]:
    """A model, and its loss at the last position; compiled once for all seeds."""
    model, logits = make(only_read)

    def loss_of(tokens: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits(tokens)[:, -1], labels[:, 0])

    return model, torch.compile(loss_of) if compiling else loss_of


def _loop(make: Callable[[bool], Any], only_read: bool, compiling: bool, recipe: Recipe, seed: int) -> Timed:
    """The loop as one writes it, in which each seed's weights are put into the same model."""
    ticks, tick = _ticking()
    model, loss_of = step_of(make, only_read, compiling)
    model.load_state_dict((fresh(config(), seed) if make is _ours else Plain(fresh(config(), seed))).state_dict())
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay,
        fused=True,
    )  # fmt: skip
    loss = torch.zeros(())
    for step, (parts, _, labels) in enumerate(training_batches(Lookup(), recipe, seed)):
        optimiser.param_groups[0]["lr"] = recipe.rate(step)
        loss = loss_of(parts["tokens"], labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        tick(1)
    return float(loss.detach()), ticks
