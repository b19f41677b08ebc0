"""Training: seeds a minute of the lookup model, ours and a plain PyTorch loop of the same model on the same data."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pandas as pd
import torch
import torch.nn.functional as F

from analyses.benchmark_cases import SEED
from analyses.benchmark_plain import PlainDecoder, plain
from analyses.benchmark_timing import Answers, Contestant
from tasks.lookup import Lookup
from workbench import ModelConfig, Recipe, Transformer, train_many
from workbench.devices import one_thread
from workbench.fitting import fit, fresh, training_batches

FIT, LOOP, LOOP_THREADS = "this workbench, one model", "plain PyTorch loop", "plain PyTorch loop, every thread"
TOLERANCE = 1e-3
"""Of the largest logit after a few steps: an optimiser that divides by a gradient's size makes much of rounding."""


def config() -> ModelConfig:
    """The two-layer lookup model."""
    task = Lookup()
    return ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.length, d_model=32, n_layers=2, n_heads=1, norm="post")


def contestants(steps: int) -> list[Contestant]:
    """The first steps of one model's training in the default recipe: ours, and the plain loop on one thread, as ours,
    and on all. Compared are the logits of the models that come out, on fresh sequences."""
    recipe = Recipe(steps=steps)
    return [
        Contestant(FIT, lambda: _ours(recipe), note="one thread"),
        Contestant(LOOP, lambda: _loop(recipe, one_thread), FIT, note="one thread"),
        Contestant(LOOP_THREADS, lambda: _loop(recipe, nullcontext), FIT, note=f"{torch.get_num_threads()} threads"),
    ]


def _ours(recipe: Recipe) -> Answers:
    state, _ = fit(Lookup(), config(), recipe, SEED)
    model = Transformer(config(), seed=0)
    model.load_state_dict(state)
    return _said(model)


def _loop(recipe: Recipe, threads: Callable[[], AbstractContextManager[None]]) -> Answers:
    """The loop as one writes it, with the recipe's optimiser and rate. Its data come from the same generator."""
    built = fresh(config(), SEED)
    assert isinstance(built, Transformer)
    model = plain(built).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay
    )
    with threads():
        for step, (parts, _, labels) in enumerate(training_batches(Lookup(), recipe, SEED)):
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate(step)
            loss = F.cross_entropy(model(parts["tokens"])[:, -1], labels[:, 0])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return _said(model.eval())


@torch.no_grad()
def _said(model: Transformer | PlainDecoder) -> Answers:
    return {"logits": model(Lookup().sample(64, seed=SEED).tokens)[:, -1]}


def per_minute(timings: pd.DataFrame, steps: int) -> pd.DataFrame:
    """The table of `contestants` with seeds a minute of the whole default recipe, its steps taken to cost what these
    did: an extrapolation."""
    whole = timings["seconds"] * Recipe().steps / steps
    return timings.assign(**{"seeds a minute, extrapolated": 60 / whole})


def processes(seeds: int, recipe: Recipe) -> float:
    """Seeds a minute where several models train at once, measured whole: processes are started, checkpoints kept."""
    with tempfile.TemporaryDirectory(prefix="benchmark-training-") as home:
        start = time.perf_counter()
        train_many(Lookup(), config(), recipe, range(seeds), device="cpu", home=home, progress=False)
        return 60 * seeds / (time.perf_counter() - start)
