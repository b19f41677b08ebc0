"""Every architecture the lectures describe, trained small, under the same battery of interventions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analyses.finding import Finding, say, write

if TYPE_CHECKING:
    from workbench import Recipe
    from workbench.models.config import Config
    from workbench.task import Task

NAME = "architectures"
BEST_SHARE, OF_SEEDS = 0.99, 0.8
"""A kind trains to its task's ceiling where 4 of 5 seeds reach 99% of the generator's exact best rate."""
DATA_SEED = 1
EXAMINED = 200
"""Examples of the battery."""
QUICK = ("decoder, post-norm", "decoder, relative positions", "encoder", "encoder of patches", "encoder–decoder")


@dataclass(frozen=True)
class Kind:
    """A kind of model: the task that it is trained on, how it is built and trained, and the exact best rate of the
    task's generator (None for real images, which have none). test: the task that it is measured on, where that is
    another (images held back), with `most` examples."""

    task: Task
    config: Config
    recipe: Recipe
    best: float | None = 1.0
    test: Task | None = None
    most: int | None = None


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Trains every kind of model, runs the battery on each trained model, and writes `out/architectures/`.

    seeds: trained models of each kind (default 3; 2 with `quick`). quick: a third of the kinds, few steps and examples.
    """
    from analyses.architectures_battery import CHECKS, battery
    from workbench import Study, joined, run_study, train_each

    known, model_seeds = kinds(quick), list(range(seeds or (2 if quick else 3)))
    study = Study(conditions={"clean": ()}, n=100 if quick else 2000, data_seed=DATA_SEED)
    rows: list[dict[str, Any]] = []
    frames: list[pd.DataFrame] = []
    trained: dict[str, Any] = {}
    for label, kind in known.items():
        say(f"{label}: {len(model_seeds)} models on {kind.task.name}, {kind.recipe.steps} steps")
        several = train_each(kind.task, {label: kind.config}, kind.recipe, model_seeds, progress=progress)
        trained |= several
        seen = kind.test or kind.task
        own = study.model_copy(update={"n": min(study.n, kind.most or study.n)})
        frames.append(run_study(own, seen, several, progress=progress)[0])
        batch = seen.sample(EXAMINED, DATA_SEED)
        rows += [{"kind": label, "model_seed": one.seed} | battery(one.model, batch) for one in several[label]]
    frame, examined = joined(frames), pd.DataFrame(rows)
    table = summed(frame, examined, known, list(CHECKS))
    return write(
        out,
        Finding(
            name=NAME,
            quick=quick,
            verdicts=verdicts(table, list(CHECKS)),
            tables={"table": table, "models": examined},
            figures={"accuracy": _figure(frame)},
            frames={"results": frame},
            words={"shown": shown(table, list(CHECKS)), "checks": {name: one.__doc__ for name, one in CHECKS.items()},
                   "n": study.n, "steps": next(iter(known.values())).recipe.steps, "examined": EXAMINED,
                   "kinds": len(known)},
            trained=trained,
            studies={"clean": study},
            tasks={kind.task.name: kind.task for kind in known.values()}
            | {f"{kind.task.name}, measured": kind.test for kind in known.values() if kind.test is not None},
        ),
    )  # fmt: skip


def kinds(quick: bool) -> dict[str, Kind]:
    """Label → kind of model. All are of width 32; what is not said is as in the lecture's model."""
    from tasks.lookup import Lookup
    from tasks.masked import Masked
    from tasks.patches import Patches
    from tasks.translate import Translate
    from workbench import EncoderDecoderConfig, Mask, ModelConfig, Recipe

    def recipe(**more: Any) -> Recipe:
        return Recipe(**{**more, "steps": 20, "batch_size": 16, "warmup": 5} if quick else more)

    def decoder(**more: Any) -> Kind:
        regular = {name: more.pop(name) for name in ("dropout", "label_smoothing") if name in more}
        told = {"d_model": 32, "n_layers": 2, "n_heads": 1, **more}
        task = Lookup()
        return Kind(
            task, ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.length, **told), recipe(**regular), best=1.0
        )

    both, masked, patches, translate = (Mask(causal=False),), Masked(), Patches(), Translate()
    side = {"d_vocab": len(translate.vocabulary), "d_model": 32, "n_layers": 2, "n_heads": 2}
    out = {
        "decoder, post-norm": decoder(),
        "decoder, pre-norm": decoder(norm="pre"),
        "decoder, no norm": decoder(norm="none"),
        "decoder, 4 heads": decoder(n_heads=4),
        "decoder, 4 heads in 2 groups": decoder(n_heads=4, n_kv_heads=2),
        "decoder, attention only": decoder(attn_only=True),
        "decoder, dropout and label smoothing": decoder(dropout=0.1, label_smoothing=0.1),
        "decoder, sinusoidal positions": decoder(positions="sinusoidal"),
        "decoder, relative positions": decoder(positions="relative"),
        "decoder, rotary positions": decoder(positions="rotary"),
        "decoder, no positions": decoder(positions="none"),
        "decoder, windows of 3 in 4 layers": decoder(n_layers=4, masks=(Mask(window=3),)),
        "decoder, blocks, then all": decoder(masks=(Mask(block=2), Mask())),
        "decoder, window, dilated, then all": decoder(
            n_layers=3, masks=(Mask(window=2), Mask(window=5, dilation=2), Mask())
        ),
        "decoder, window and a global token, then all": decoder(masks=(Mask(window=2, n_global=1), Mask())),
        "encoder": Kind(
            masked,
            ModelConfig(
                d_vocab=len(masked.vocabulary), n_ctx=masked.length, d_model=32, n_layers=2, n_heads=2, masks=both
            ),
            recipe(),
        ),
        "encoder of patches": Kind(
            patches,
            ModelConfig(
                d_vocab=len(patches.vocabulary), n_ctx=patches.length, d_patch=patches.d_patch, d_model=32, n_layers=2,
                n_heads=2, masks=both,
            ),
            recipe(),
            best=None,
            test=Patches(part="test"),
            most=367,
        ),
        "encoder–decoder": Kind(
            translate,
            EncoderDecoderConfig(
                encoder=ModelConfig(**side, n_ctx=translate.context_length, masks=both),
                decoder=ModelConfig(**side, n_ctx=translate.length),
            ),
            recipe(),
        ),
    }  # fmt: skip
    return {label: kind for label, kind in out.items() if not quick or label in QUICK}


def summed(frame: pd.DataFrame, examined: pd.DataFrame, known: dict[str, Kind], checks: Sequence[str]) -> pd.DataFrame:
    """A row a kind: accuracy over its models, how many reach the ceiling, and of how many each check holds."""
    from analyses.architectures_battery import TOLERANCE
    from workbench import summary

    told = summary(frame).set_index("model")
    means = frame.groupby(["model", "model_seed"], observed=True)["accuracy"].mean()
    rows = []
    for label, of in examined.groupby("kind", sort=False):
        best, measured = known[str(label)].best, told.loc[label]
        row: dict[str, Any] = {"kind": label, "task": known[str(label)].task.name, "models": len(of)}
        row |= {name: measured[name] for name in ("estimate", "low", "high", "seed_low", "seed_high")}
        row["best"] = float("nan") if best is None else best
        row["at ceiling"] = pd.NA if best is None else int((means[label] >= BEST_SHARE * best).sum())
        row |= {name: int((of[name] <= TOLERANCE).sum()) for name in checks}
        rows.append(row | {f"{name}: worst": of[name].max() for name in checks})
    return pd.DataFrame(rows).astype({"at ceiling": "Int64"})


def shown(table: pd.DataFrame, checks: Sequence[str]) -> pd.DataFrame:
    """The table as the page prints it: "5 of 5" in each cell."""
    from workbench.tables import percent

    out, of = table[["kind", "task"]].copy(), table["models"]
    spans = zip(table["estimate"], table["seed_low"], table["seed_high"], strict=True)
    out["accuracy (lowest to highest seed)"] = [f"{percent(a)} ({percent(b)} to {percent(c)})" for a, b, c in spans]
    out["trains to the ceiling"] = [
        "no exact best rate" if pd.isna(k) else f"{k} of {n}" for k, n in zip(table["at ceiling"], of, strict=True)
    ]
    for name in checks:
        out[name] = [f"{k} of {n}" for k, n in zip(table[name], of, strict=True)]
    return out


def verdicts(table: pd.DataFrame, checks: Sequence[str]) -> pd.DataFrame:
    """A claim for each kind whose task has a best rate: it trains to it. And one of all: every check holds of every
    model."""
    from analyses.verdicts import exact, joined

    rows = []
    for row in table.to_dict("records"):
        if not pd.isna(row["at ceiling"]):
            said = f"{row['kind']}: at least 4 of 5 models reach 99% of the best possible rate on {row['task']}"
            share = row["at ceiling"] / row["models"]
            rows.append(exact(f"trains: {row['kind']}", said, "share of models at the ceiling", share, OF_SEEDS, 1.0))
    held = table[list(checks)].to_numpy().sum() / (table["models"].sum() * len(checks))
    said = "every check of the battery holds of every model of every kind"
    return joined(*rows, exact("interventions", said, "share of checks that hold", float(held), 1.0, 1.0))


def _figure(frame: pd.DataFrame) -> Any:
    """Accuracy with nothing cut, a row a kind, every trained model a dot."""
    from workbench import summary
    from workbench.figures import accuracy_under_intervention

    means = frame.groupby(["model", "model_seed"], observed=True)["accuracy"].mean().rename("value").reset_index()
    told = summary(frame)[["model", "estimate", "low", "high"]].rename(columns={"model": "condition"})
    seeds = means.rename(columns={"model": "condition"}).astype({"condition": str})
    return accuracy_under_intervention(told.astype({"condition": str}), seeds, {})
