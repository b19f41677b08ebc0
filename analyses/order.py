"""What tells a transformer the order of its tokens: nothing, the mask, and each kind of position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from tasks.lookup import Lookup
    from workbench import ModelConfig, Study
    from workbench.checkpoints import Trained

POSITIONED = ("learned", "sinusoidal", "relative", "rotary")
DECODERS = (*POSITIONED, "none")
ENCODERS = ("encoder, learned", "encoder, none")
PAIRS, LONGER = 4, (5, 6, 8)
N_CTX = 18
"""Room for 8 pairs and the asked letter, 17 positions, of which training uses the first 9."""
DATA_SEED = 0


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Trains a model of each kind, permutes, intervenes, lengthens, and writes `out/order/`; returns that folder.

    seeds: trained models of each kind (default 3; 2 with `quick`). quick: fewer steps and examples, to see that all of
    it runs; its figures mean nothing. Checkpoints are kept in `./runs` or `$WORKBENCH_HOME`.
    """
    from analyses.finding import say, write
    from analyses.order_report import finding
    from workbench import Recipe, train_each

    recipe = Recipe(steps=60, warmup=10, batch_size=32) if quick else Recipe()
    model_seeds = list(range(seeds or (2 if quick else 3)))
    known = configs()
    say(f"{len(known)} kinds, {len(model_seeds)} models each, {recipe.steps} steps (kept checkpoints are used again)")
    trained = train_each(task(), known, recipe, model_seeds, progress=progress)
    results = measured(trained, 100 if quick else 2000, progress)
    return write(out, finding(trained, results, recipe, quick))


def task(pairs: int = PAIRS) -> Lookup:
    """The lookup task with so many pairs; letters and digits are the same for every length."""
    from tasks.lookup import Lookup

    return Lookup(pairs=pairs)


def configs() -> dict[str, ModelConfig]:
    """The lecture's two-layer model with each kind of position, and two encoders as a control for the mask."""
    from workbench import ModelConfig
    from workbench.models.config import Mask

    base = ModelConfig(
        d_vocab=len(task().vocabulary), n_ctx=N_CTX, d_model=32, n_layers=2, n_heads=1, norm="post"
    )  # fmt: skip
    kinds = {kind: base.model_copy(update={"positions": kind}) for kind in DECODERS}
    both_ways = {"masks": (Mask(causal=False),)}
    return kinds | {
        label: base.model_copy(update={"positions": label.removeprefix("encoder, "), **both_ways}) for label in ENCODERS
    }


def study(n: int) -> Study:
    """What is done on sequences as long as the trained ones: both steps of the lookup cut, each beside its control."""
    from workbench import Edges, Study, cut

    return Study(
        conditions={
            "clean": (),
            "cut-answer": (cut(Edges(layer=1, dest="last", source="answer")),),
            "cut-other": (cut(Edges(layer=1, dest="last", source="other")),),
            "cut-hidden": (cut(Edges(layer=0, dest="answer", source="match")),),
            "cut-hidden-control": (cut(Edges(layer=0, dest="other", source="previous")),),
        },
        weights=weights(),
        n=n,
        data_seed=DATA_SEED,
    )


def longer(pairs: int, n: int) -> Study:
    """What is measured on longer sequences."""
    from workbench import Study

    return Study(conditions={f"{pairs} pairs": ()}, weights=weights(), n=n, data_seed=DATA_SEED)


def weights() -> dict:
    """The weights of the lookup's two steps."""
    from workbench import Edges

    return {
        "prev": Edges(layer=0, source="previous"),
        "match": Edges(layer=1, dest="last", source="answer"),
    }


def measured(trained: dict[str, list[Trained]], n: int, progress: bool = False) -> pd.DataFrame:
    """The results of every length in one frame; "clean" has the length of training. Examples of different lengths are
    different sequences: their numbers pair nothing."""
    import pandas as pd

    from workbench import run_study

    frames = [run_study(study(n), task(), trained, progress=progress)[0]]
    frames += [run_study(longer(pairs, n), task(pairs), trained, progress=progress)[0] for pairs in LONGER]
    conditions = [name for frame in frames for name in frame["condition"].cat.categories]
    kinds = {"model": pd.CategoricalDtype(list(trained)), "condition": pd.CategoricalDtype(conditions)}
    joined = pd.concat([frame.astype(kinds) for frame in frames], ignore_index=True)
    return joined.astype({"skipped": "category"})
