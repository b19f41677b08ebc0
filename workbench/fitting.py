"""From a seed to weights: what a model is trained on, and the steps, for one model or for several as one ensemble."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workbench.batch import UNREAD
from workbench.compiling import compiled
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
Drawn = tuple[Given, Tensor, Tensor]


def training_batches(task: Task, recipe: Recipe, seed: int) -> Iterator[Drawn]:
    """What a model seed is trained on: what the model is given, read [batch read], labels [batch read], one a step.

    A position that `read` repeats has its label once, and `UNREAD` after.
    """
    for block in training_blocks(task, recipe, seed):
        yield from _steps(block, recipe, axis=0)


def training_blocks(task: Task, recipe: Recipe, seed: int) -> Iterator[Drawn]:
    """The same, several steps at once, in the order of the steps: given, read and labels [step·batch ...]."""
    for block in range(math.ceil(recipe.steps / STEPS_A_BLOCK)):
        steps = min(STEPS_A_BLOCK, recipe.steps - block * STEPS_A_BLOCK)
        drawn = task.sample(steps * recipe.batch_size, derive_seed("train", seed, block))
        read = drawn.read_positions()
        repeated = read == read[:, :1]
        repeated[:, 0] = False
        labels = drawn.labels.gather(1, read).masked_fill(repeated, UNREAD)
        yield given(drawn), read, labels


def ensemble_batches(task: Task, recipe: Recipe, seeds: Sequence[int], device: torch.device) -> Iterator[Drawn]:
    """`training_batches` of several seeds, each along a first axis of seeds, on a device.

    A thread of its own draws a block of steps, and brings it to the device, while the block before is trained on. One
    thread for all seeds: a task may use what threads share, such as PyTorch's own generator.
    """
    streams = [training_blocks(task, recipe, seed) for seed in seeds]
    together = (_together(blocks, device) for blocks in zip(*streams, strict=True))
    for block in _ahead(together):
        yield from _steps(block, recipe, axis=1)


def _ahead(items: Iterable[Drawn]) -> Iterator[Drawn]:
    """The same items in the same order, the next made by a thread while one is used."""
    left = iter(items)
    with ThreadPoolExecutor(1, "drawing") as thread:
        coming = thread.submit(next, left, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, left, None)
            yield item


def _steps(block: Drawn, recipe: Recipe, axis: int) -> Iterator[Drawn]:
    """A block's steps, one after the other; examples lie along an axis."""
    parts, read, labels = block
    for start in range(0, read.shape[axis], recipe.batch_size):
        here = (slice(None),) * axis + (slice(start, start + recipe.batch_size),)
        # Laid out alike in every block, so that what was compiled for one serves the next.
        given_here = {name: value[here].contiguous() for name, value in parts.items()}
        yield given_here, read[here].contiguous(), labels[here].contiguous()


def fresh(config: Config, seed: int) -> Model:
    """The untrained model of a model seed."""
    return build(config, seed=derive_seed("init", seed))


def fit(
    task: Task, config: Config, recipe: Recipe, seed: int, tick: Callable[[int], Any] = lambda _: None
) -> tuple[dict[str, Tensor], Curve]:
    """Trains one model on the CPU, on one thread. Returns its weights and its curve."""
    model, curve = fresh(config, seed).train(), []
    optimiser = AdamW(list(model.parameters()), recipe)
    dropped = torch.Generator().manual_seed(derive_seed("dropout", seed))
    with one_thread(), dropping(model, recipe.dropout, dropped):
        for step, (parts, read, labels) in enumerate(training_batches(task, recipe, seed)):
            logits = model(**parts, read=read)
            loss = _loss(logits, labels, recipe)
            optimiser.descend(loss, recipe.rate(step))
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
    compiling: bool = False,
) -> tuple[list[dict[str, Tensor]], list[Curve]]:
    """Trains all seeds as one model with a seed axis (torch.func). Each sees the data it would see alone.

    compiling: whether `torch.compile` makes kernels of the step first. That takes longer than a training of a small
        model on a CPU does (reports/benchmarks/training.md); where it cannot be done, it warns and goes on without.

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
    optimiser = AdamW(list(stacked.values()), recipe)
    curves: list[Curve] = [[] for _ in seeds]

    def losses(weights: dict[str, Tensor], parts: Given, read: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.func.functional_call(skeleton, weights, (), {**parts, "read": read})
        right = ((logits.argmax(-1) == labels) & (labels >= 0)).sum() / (labels >= 0).sum()
        return _loss(logits, labels, recipe), right

    step_of = torch.func.vmap(losses)
    step_of = compiled(step_of, device) if compiling else step_of
    for step, (parts, read, labels) in enumerate(ensemble_batches(task, recipe, seeds, device)):
        loss, right = step_of(stacked, parts, read, labels)
        optimiser.descend(loss.sum(), recipe.rate(step))
        tick(len(seeds))
        if _noted(recipe, step):
            for curve, one, share in zip(curves, loss.tolist(), right.tolist(), strict=True):
                curve.append({"step": step + 1, "loss": one, "accuracy": share})
    names = list(stacked)
    return [{name: stacked[name][i].detach().cpu().clone() for name in names} for i in range(len(seeds))], curves


def _together(drawn: Sequence[Drawn], device: torch.device) -> Drawn:
    """A block of every seed, along a seed axis. Where some seed's examples are padded, all are told what is valid;
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


class AdamW:
    """The steps of `torch.optim.AdamW(fused=True)`, bit for bit, without what it looks up and checks before each, which
    for models as small as these takes several times as long as the step itself. A parameter has a gradient in every
    step or in none."""

    def __init__(self, parameters: list[Tensor], recipe: Recipe):
        self.parameters, self.recipe = parameters, recipe
        self.means = [torch.zeros_like(one) for one in parameters]
        self.squares = [torch.zeros_like(one) for one in parameters]
        self.count = torch.zeros((), device=parameters[0].device)

    def descend(self, loss: Tensor, rate: float) -> None:
        """One step down the gradient of a loss, at a learning rate."""
        for one in self.parameters:
            one.grad = None
        loss.backward()
        self.move(rate)

    @torch.no_grad()
    def move(self, rate: float) -> None:
        """Moves the parameters that have a gradient."""
        moved = [place for place, one in enumerate(self.parameters) if one.grad is not None]
        parameters, means, squares = (
            [several[place] for place in moved] for several in (self.parameters, self.means, self.squares)
        )
        grads = [one.grad for one in parameters if one.grad is not None]
        self.count += 1
        torch._fused_adamw_(
            parameters, grads, means, squares, [], [self.count] * len(moved), lr=rate, beta1=self.recipe.beta1,
            beta2=self.recipe.beta2, weight_decay=self.recipe.weight_decay, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


def _noted(recipe: Recipe, step: int) -> bool:
    return step % recipe.curve_every == recipe.curve_every - 1 or step == recipe.steps - 1 or step == 0
