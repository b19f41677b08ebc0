"""A training looked at on the way: the same steps as `workbench.train`'s, and the same weights bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from analyses.induction import EVERY, WATCHED, WATCHED_SEED
from workbench import Batch, Edges, ModelConfig, Recipe, Transformer, edge_weights, run
from workbench.checkpoints import Trained
from workbench.devices import one_thread
from workbench.fitting import fresh, training_batches
from workbench.metrics import accuracy, loss
from workbench.task import Task
from workbench.workers import context, script_left_alone


def snapshots(
    task: Task, config: ModelConfig, recipe: Recipe, seed: int, every: int
) -> Iterator[tuple[int, Transformer]]:
    """A model in training, before the first step, after every so many, and after the last: (steps done, model).

    The model goes on training; whoever looks at it must not change it. Raises ValueError for a recipe with dropout,
    label smoothing or an early end, which these steps do not have.
    """
    if recipe.dropout or recipe.label_smoothing or recipe.stop_at is not None:
        raise ValueError(f"{recipe!r} is not followed here; leave dropout, label_smoothing and stop_at out")
    model = fresh(config, seed)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay,
        fused=True,
    )  # fmt: skip
    with one_thread():
        yield 0, model.eval()
        for step, (parts, read, labels) in enumerate(training_batches(task, recipe, seed)):
            model.train()
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate(step)
            error = F.cross_entropy(model(**parts, read=read).flatten(0, 1), labels.flatten())
            optimiser.zero_grad()
            error.backward()
            optimiser.step()
            if (step + 1) % every == 0 or step + 1 == recipe.steps:
                yield step + 1, model.eval()


def looked_at(model: Transformer, batch: Batch) -> dict[str, float]:
    """Loss, accuracy, and mean weights: `previous` (on the token before) and `same` (on the earlier copy) in the first
    layer, `prefix` (from a token that is read to the one after its earlier copy) in the last, which is the
    prefix-matching score of Olsson et al. 2022."""
    logits = run(model, batch, positions="read").logits
    last = model.config.n_layers - 1
    edges = {
        "previous": Edges(layer=0, source="previous"),
        "same": Edges(layer=0, source="same"),
        "prefix": Edges(layer=last, source="match"),
    }
    weights = edge_weights(model, batch, edges)
    values = {"loss": loss(logits, batch), "accuracy": accuracy(logits, batch), **weights}
    return {name: float(value.double().mean()) for name, value in values.items()}


def watched(task: Task, recipe: Recipe, trained: Sequence[Trained], every: int = EVERY) -> pd.DataFrame:
    """Each model trained once more and looked at: model_seed, step, loss, accuracy, and the weights.

    Raises RuntimeError where it ends in other weights than the checkpoint: then it was another training.
    """
    workers = min(len(trained), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, context()) as pool:
        with script_left_alone(__name__):
            asked = [pool.submit(_watched, task, recipe, one.model.config, one.seed, every) for one in trained]
        done = [each.result() for each in asked]
    for one, (_, weights) in zip(trained, done, strict=True):
        known = one.model.state_dict()
        if any(not torch.equal(known[name], value) for name, value in weights.items()):
            raise RuntimeError(
                f"model seed {one.seed} ends in other weights when it is watched than in {one.folder}; the checkpoint "
                "was trained on another device or version: remove that folder, and it is trained again"
            )
    return pd.concat([rows for rows, _ in done], ignore_index=True)


def _watched(
    task: Task, recipe: Recipe, config: ModelConfig, seed: int, every: int
) -> tuple[pd.DataFrame, dict[str, Tensor]]:
    batch, rows = task.sample(WATCHED, WATCHED_SEED), []
    for step, model in snapshots(task, config, recipe, seed, every):
        rows.append({"model_seed": seed, "step": step, **looked_at(model, batch)})
    return pd.DataFrame(rows), {name: value.detach().clone() for name, value in model.state_dict().items()}
