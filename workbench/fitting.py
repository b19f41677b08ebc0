"""From a seed to weights: what a model is trained on, and the steps, for one model or for several as one ensemble."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workbench.batch import UNREAD
from workbench.devices import one_thread
from workbench.models.config import ModelConfig
from workbench.models.transformer import Transformer
from workbench.recipe import Recipe
from workbench.task import Task, derive_seed

MEANING = 1
STEPS_A_BLOCK = 50
Curve = list[dict[str, float]]


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


def fresh(config: ModelConfig, seed: int) -> Transformer:
    """The untrained model of a model seed."""
    return Transformer(config, seed=derive_seed("init", seed))


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


def _optimiser(parameters: list[Tensor], recipe: Recipe) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay, fused=True
    )


def _noted(recipe: Recipe, step: int) -> bool:
    return step % recipe.curve_every == recipe.curve_every - 1 or step == recipe.steps - 1 or step == 0
