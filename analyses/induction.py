"""Induction: one layer against two, when prefix matching appears, and what cuts, ablations and paths leave."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from tasks.induction import Induction
    from workbench import ModelConfig, Recipe, Study
    from workbench.checkpoints import Trained

TWO, ONE = "two layers", "one layer"
EVERY = 10
"""Steps between two looks at a model in training."""
DATA_SEED, WATCHED_SEED, WATCHED = 0, 1, 256


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Trains, watches the training, intervenes, and writes `out/induction/`; returns that folder.

    seeds: trained models of each depth (default 3; 2 with `quick`). quick: fewer steps and examples, to see that all of
    it runs; its figures mean nothing. Checkpoints are kept in `./runs` or `$WORKBENCH_HOME`. Models are trained on the
    CPU: one is then trained again, the same bits, to be looked at on the way.
    """
    from analyses.finding import say, write
    from analyses.induction_report import finding
    from analyses.induction_training import watched
    from workbench import joined, run_study, train_each

    model_seeds, made = list(range(seeds or (2 if quick else 3))), recipe(quick)
    say(f"{TWO}, {ONE}: {len(model_seeds)} models each, {made.steps} steps (kept checkpoints are used again)")
    trained = train_each(task(), configs(), made, model_seeds, device="cpu", progress=progress)
    say(f"{TWO}: trained once more, looked at every {EVERY} steps")
    training = watched(task(), made, trained[TWO]).assign(floor=floor(trained[ONE]))
    n = 100 if quick else 2000
    asked = {TWO: study(n), ONE: base(n)}
    found = [run_study(asked[label], task(), {label: trained[label]}, progress=progress) for label in asked]
    results = joined([frame for frame, _ in found])
    return write(out, finding(trained, asked, results, training, made, quick))


def task() -> Induction:
    """24 positions; a block of 4 to 8 tokens comes twice, anywhere."""
    from tasks.induction import Induction

    return Induction()


def configs() -> dict[str, ModelConfig]:
    """Attention alone, norm before it, as in Olsson et al. 2022; one head a layer."""
    from workbench import ModelConfig

    two = ModelConfig(
        d_vocab=len(task().vocabulary), n_ctx=task().length, d_model=32, n_layers=2, n_heads=1, norm="pre",
        attn_only=True,
    )  # fmt: skip
    return {TWO: two, ONE: two.model_copy(update={"n_layers": 1})}


def recipe(quick: bool = False) -> Recipe:
    """Found on model seeds 100 to 102, which are in no report: it trains two layers to above 95%."""
    from workbench import Recipe

    if quick:
        return Recipe(steps=60, warmup=10, batch_size=32, lr=1.5e-2)
    return Recipe(steps=900, warmup=100, batch_size=128, lr=1.5e-2)


def study(n: int) -> Study:
    """What is done to two layers."""
    from workbench import Edges, Heads, Study, control_of, cut, freeze, path, zero

    first, second = Heads(layer=0, part="z"), Heads(layer=1, part="z")
    conditions = {
        "clean": (),
        "cut-match": (cut(Edges(layer=1, source="match")),),
        "cut-match-control": (cut(Edges(layer=1, source="match-control")),),
        "cut-previous": (cut(Edges(layer=0, dest="first", source="previous")),),
        "cut-previous-control": (cut(Edges(layer=0, dest="first", source="previous-control")),),
        "cut-previous-second": (cut(Edges(layer=0, dest="second", source="previous")),),
        "cut-same": (cut(Edges(layer=0, source="same")),),
        "cut-same-control": (cut(Edges(layer=0, source="same-control")),),
        "zero-0": (zero(first),),
        "zero-0-kept": (zero(first), freeze(Edges(layer=1))),
        "zero-1": (zero(second),),
        **{f"path-{part}": (path(zero, first, Heads(layer=1, part=part)),) for part in "qkv"},
    }
    derived = {f"{name}-control": control_of(name, seed=0) for name in ("match", "previous", "same")}
    weights = base(n).weights | {"prefix": Edges(layer=1, source="match"), "same": Edges(layer=1, source="same")}
    return Study(conditions=conditions, derived=derived, weights=weights, n=n, data_seed=DATA_SEED)


def base(n: int) -> Study:
    """One layer, with nothing changed, on the same sequences."""
    from workbench import Edges, Study

    weights = {
        "previous-weight": Edges(layer=0, source="previous"),
        "same-0": Edges(layer=0, source="same"),
        "prefix-0": Edges(layer=0, source="match"),
    }
    return Study(conditions={"clean": ()}, weights=weights, n=n, data_seed=DATA_SEED)


def floor(shallow: list[Trained]) -> float:
    """The loss at which one layer ends, in nats, on the sequences that training is watched on: the mean over models."""
    from analyses.induction_training import looked_at

    batch = task().sample(WATCHED, WATCHED_SEED)
    losses: list[float] = [looked_at(one.model, batch)["loss"] for one in shallow]
    return sum(losses) / len(losses)


def steps_of(training: pd.DataFrame, share: float = 0.5) -> pd.DataFrame:
    """When things happen, a row a model seed: `drop`, `prefix`, `previous`, in steps.

    drop: the first step from which the loss stays below the point `share` of the way from where one layer ends
    (`floor`) to where this model ends. prefix, previous: the first from which the weight stays above `share` of where
    it ends. One that never comes to stay has the last step.
    """
    import pandas as pd

    rows = []
    for seed, own in training.groupby("model_seed"):
        ends, steps = own.iloc[-1], own["step"].to_numpy()
        passed = {
            "drop": own["loss"] < ends["floor"] + share * (ends["loss"] - ends["floor"]),
            "prefix": own["prefix"] > share * ends["prefix"],
            "previous": own["previous"] > share * ends["previous"],
        }
        found = {name: steps[min(_last(~there.to_numpy()) + 1, len(steps) - 1)] for name, there in passed.items()}
        rows.append({"model_seed": seed} | found)
    return pd.DataFrame(rows)


def _last(failed) -> int:  # type: ignore[no-untyped-def]
    """The index of the last that failed, −1 where none did."""
    places = failed.nonzero()[0]
    return int(places[-1]) if len(places) else -1
