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
from workbench.models.built import Model, build
from workbench.models.config import Config
from workbench.models.dropout import dropping
from workbench.models.given import Given, given
from workbench.recipe import Recipe
from workbench.task import Task, derive_seed

MEANING = 2
STEPS_A_BLOCK = 50
Curve = list[dict[str, float]]


def training_batches(task: Task, recipe: Recipe, seed: int) -> Iterator[tuple[Given, Tensor, Tensor]]:
    """What a model seed is trained on: what the model is given, read [batch read], labels [batch read], one a step.

    A position that `read` repeats has its label once, and `UNREAD` after.
    """
    for block in range(math.ceil(recipe.steps / STEPS_A_BLOCK)):
        steps = min(STEPS_A_BLOCK, recipe.steps - block * STEPS_A_BLOCK)
        drawn = task.sample(steps * recipe.batch_size, derive_seed("train", seed, block))
        read = drawn.read_positions()
        repeated = read == read[:, :1]
        repeated[:, 0] = False
        labels = drawn.labels.gather(1, read).masked_fill(repeated, UNREAD)
        parts = given(drawn)
        for step in range(steps):
            here = slice(step * recipe.batch_size, (step + 1) * recipe.batch_size)
            yield {name: value[here] for name, value in parts.items()}, read[here], labels[here]


def fresh(config: Config, seed: int) -> Model:
    """The untrained model of a model seed."""
    return build(config, seed=derive_seed("init", seed))


def fit(
    task: Task, config: Config, recipe: Recipe, seed: int, tick: Callable[[int], Any] = lambda _: None
) -> tuple[dict[str, Tensor], Curve]:
    """Trains one model on the CPU, on one thread. Returns its weights and its curve."""
    model, curve = fresh(config, seed).train(), []
    optimiser = _optimiser(list(model.parameters()), recipe)
    dropped = torch.Generator().manual_seed(derive_seed("dropout", seed))
    with one_thread(), dropping(model, recipe.dropout, dropped):
        for step, (parts, read, labels) in enumerate(training_batches(task, recipe, seed)):
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate(step)
            logits = model(**parts, read=read)
            loss = _loss(logits, labels, recipe)
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


def _loss(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=recipe.label_smoothing)


def fit_ensemble(
    task: Task,
    config: Config,
    recipe: Recipe,
    seeds: Sequence[int],
    device: torch.device,
    tick: Callable[[int], Any] = lambda _: None,
) -> tuple[list[dict[str, Tensor]], list[Curve]]:
    """Trains all seeds as one model with a seed axis (torch.func). Each sees the data it would see alone.

    A recipe with `stop_at` or `dropout` is refused: seeds would end at different steps, and each seed's draws are its
    own.
    """
    for name in ("stop_at", "dropout"):
        if getattr(recipe, name):
            raise ValueError(
                f"an ensemble trains every seed for all steps and without dropout; leave {name} out, or train on "
                "device='cpu'"
            )
    models = [fresh(config, seed) for seed in seeds]
    skeleton = build(config, seed=0).to(device)
    states = [model.state_dict() for model in models]
    stacked = {
        name: torch.stack([state[name] for state in states]).to(device).requires_grad_(True) for name in states[0]
    }
    optimiser = _optimiser(list(stacked.values()), recipe)
    curves: list[Curve] = [[] for _ in seeds]

    def losses(weights: dict[str, Tensor], parts: Given, read: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.func.functional_call(skeleton, weights, (), {**parts, "read": read})
        right = ((logits.argmax(-1) == labels) & (labels >= 0)).sum() / (labels >= 0).sum()
        return _loss(logits, labels, recipe), right

    streams = [training_batches(task, recipe, seed) for seed in seeds]
    for step, drawn in enumerate(zip(*streams, strict=True)):
        parts, read, labels = _together(drawn, device)
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step)
        loss, right = torch.func.vmap(losses)(stacked, parts, read, labels)
        optimiser.zero_grad()
        loss.sum().backward()
        optimiser.step()
        tick(len(seeds))
        if _noted(recipe, step):
            for curve, one, share in zip(curves, loss.tolist(), right.tolist(), strict=True):
                curve.append({"step": step + 1, "loss": one, "accuracy": share})
    names = list(stacked)
    return [{name: stacked[name][i].detach().cpu().clone() for name in names} for i in range(len(seeds))], curves


def _together(drawn: Sequence[tuple[Given, Tensor, Tensor]], device: torch.device) -> tuple[Given, Tensor, Tensor]:
    """One step of every seed, along a seed axis. Where some seed's examples are padded, all are told what is valid;
    fewer reads than another's are filled with the first, unread."""
    names = dict.fromkeys(name for parts, *_ in drawn for name in parts)
    filled = [{name: _told(parts, name) for name in names} for parts, *_ in drawn]
    most = max(read.shape[1] for _, read, _ in drawn)
    reads = [torch.cat([read, read[:, :1].expand(-1, most - read.shape[1])], 1) for _, read, _ in drawn]
    labels = [F.pad(one, (0, most - one.shape[1]), value=UNREAD) for *_, one in drawn]
    parts = {name: torch.stack([one[name] for one in filled]).to(device) for name in names}
    return parts, torch.stack(reads).to(device), torch.stack(labels).to(device)


def _told(parts: Given, name: str) -> Tensor:
    if name in parts:
        return parts[name]
    return torch.ones_like(parts["tokens" if name == "valid" else "context"], dtype=torch.bool)


def _optimiser(parameters: list[Tensor], recipe: Recipe) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay, fused=True
    )


def _noted(recipe: Recipe, step: int) -> bool:
    return step % recipe.curve_every == recipe.curve_every - 1 or step == recipe.steps - 1 or step == 0
