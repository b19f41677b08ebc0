"""Sparse attention: which masks suffice for `lookup` and `induction`, at which depth, and what crosses windows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench import ModelConfig, Recipe, Study
    from workbench.models.config import Mask

DATA_SEED = 0
SUFFICES = 0.99
"""The share of the best rate that a mask has to leave. Without a mask both tasks can be solved: the best rate is 1."""


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Trains a model of each mask and depth, measures, and writes `out/sparse/`; returns that folder.

    seeds: trained models of each setting (default 3; 2 with `quick`). quick: fewer steps and examples, to see that all
    of it runs; its figures mean nothing. Checkpoints are kept in `./runs` or `$WORKBENCH_HOME`.
    """
    from analyses.finding import say, write
    from analyses.sparse_report import finding
    from workbench import run_study, train_each

    model_seeds, n = list(range(seeds or (2 if quick else 3))), 100 if quick else 2000
    trained, results = {}, {}
    for name, one in tasks().items():
        known, made = configs(name), recipes(quick)[name]
        say(
            f"{name}: {len(known)} masks, {len(model_seeds)} models each, {made.steps} steps (kept ones are used again)"
        )
        trained[name] = train_each(one, known, made, model_seeds, device="cpu", progress=progress)
        results[name], _ = run_study(study(n), one, trained[name], progress=progress)
    return write(out, finding(trained, results, recipes(quick), quick))


def tasks() -> dict[str, Any]:
    """Both tasks, as they are by default: 9 positions and 24."""
    from tasks.induction import Induction
    from tasks.lookup import Lookup

    return {"lookup": Lookup(), "induction": Induction()}


def settings(task: str) -> dict[str, tuple[Mask, ...]]:
    """The masks of a task's models by label, one mask a layer."""
    from workbench.models.config import Mask

    every, before = Mask(), Mask(window=2)
    if task == "lookup":
        return {
            "full × 1": (every,),
            "full × 2": (every,) * 2,
            "window 2, then full": (before, every),
            "full, then window 2": (every, before),
            "window 3 × 2": (Mask(window=3),) * 2,
            "window 3 × 4": (Mask(window=3),) * 4,
            "every other × 2": (Mask(window=5, dilation=2),) * 2,
            "window 2 and first × 2": (Mask(window=2, n_global=1),) * 2,
        }
    return {
        "full × 1": (every,),
        "full × 2": (every,) * 2,
        "window 2, then full": (before, every),
        "window 8 × 2": (Mask(window=8),) * 2,
        "window 5 × 2": (Mask(window=5),) * 2,
        "window 5 × 4": (Mask(window=5),) * 4,
        "every other × 2": (Mask(window=12, dilation=2),) * 2,
        "block 8 × 2": (Mask(block=8),) * 2,
    }


def configs(task: str) -> dict[str, ModelConfig]:
    """A model of each setting: one head of width 32 a layer, norm before; for `induction` without MLPs, as in the
    analysis of that name, whose checkpoints serve here too."""
    from workbench import ModelConfig

    one = tasks()[task]
    return {
        label: ModelConfig(
            d_vocab=len(one.vocabulary), n_ctx=one.length, d_model=32, n_layers=len(masks), n_heads=1, norm="pre",
            masks=masks[:1] if len(set(masks)) == 1 else masks, attn_only=task == "induction",
        )
        for label, masks in settings(task).items()
    }  # fmt: skip


def recipes(quick: bool = False) -> dict[str, Recipe]:
    """Found on model seeds 100 to 102, which are in no report: two layers that see everything learn the task."""
    from workbench import Recipe

    if quick:
        return dict.fromkeys(("lookup", "induction"), Recipe(steps=20, warmup=5, batch_size=16))
    return {
        "lookup": Recipe(steps=600, batch_size=128, lr=5e-3),
        "induction": Recipe(steps=900, batch_size=128, lr=1.5e-2),
    }


def study(n: int) -> Study:
    """Accuracy, with nothing changed."""
    from workbench import Study

    return Study(conditions={"clean": ()}, n=n, data_seed=DATA_SEED)
