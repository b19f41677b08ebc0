"""The same token in two contexts: where its vectors part in an encoder and in a decoder; and the right context cut."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.masked import Masked
    from tasks.pronoun import Pronoun
    from workbench import ModelConfig, Recipe, Study

DECODER, ENCODER = "decoder", "encoder"
KINDS = (DECODER, ENCODER)
LAYERS = {"pronoun": 3, "masked": 2}
"""Three for the pronoun: `it` could learn its verb in layer 1, find the noun in layer 2, and be read in layer 3."""
DATA_SEED = 0


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Trains, intervenes, measures, and writes `out/context/`; returns that folder.

    seeds: trained models of each kind and task (default 3; 2 with `quick`). quick: few steps and sentences, to see that
    all of it runs; its figures mean nothing. Checkpoints are kept in `./runs` or `$WORKBENCH_HOME`.
    """
    from analyses.context_measure import measured
    from analyses.context_report import finding
    from analyses.finding import say, write
    from workbench import train_each

    recipe, model_seeds = recipe_of(quick), list(range(seeds or (2 if quick else 3)))
    trained = {}
    for name, task in tasks().items():
        say(f"{name}: {len(model_seeds)} decoders, {len(model_seeds)} encoders, {recipe.steps} steps")
        trained[name] = train_each(task, configs(task), recipe, model_seeds, progress=progress)
    return write(out, finding(measured(tasks(), trained, 300 if quick else 4000, progress=progress), recipe, quick))


def recipe_of(quick: bool) -> Recipe:
    """How every model is trained."""
    from workbench import Recipe

    return Recipe(steps=60, warmup=20, batch_size=64) if quick else Recipe(steps=1000, warmup=100, batch_size=128)


def tasks() -> dict[str, Any]:
    """The two tasks, by name, with what they usually have."""
    from tasks.masked import Masked
    from tasks.pronoun import Pronoun

    return {"pronoun": Pronoun(), "masked": Masked()}


def configs(task: Pronoun | Masked) -> dict[str, ModelConfig]:
    """The same layers of one head, once with a causal mask and once without."""
    from workbench import ModelConfig
    from workbench.models.config import Mask

    decoder = ModelConfig(
        d_vocab=len(task.vocabulary), n_ctx=task.length, d_model=32, n_layers=LAYERS[task.name], n_heads=1
    )
    return {DECODER: decoder, ENCODER: decoder.model_copy(update={"masks": (Mask(causal=False),)})}


def of_pronoun(n: int) -> Study:
    """What is done to the rows of the last token and of `it`: the noun meant is cut, or the nearest not meant."""
    from workbench import Edges, Study, cut

    layers = range(LAYERS["pronoun"])
    conditions: dict[str, Any] = {"clean": ()}
    for dest in ("last", "it"):
        for source in ("referent", "nearest"):
            edges = [Edges(layer=layer, dest=dest, source=source) for layer in layers]
            conditions[f"cut-{dest}-{source}"] = tuple(map(cut, edges))
            if dest == "last":
                conditions |= {f"cut-{dest}-{source}-{layer}": (cut(one),) for layer, one in enumerate(edges)}
    for source in ("referent", "nearest"):
        conditions[f"hide-{source}"] = tuple(cut(Edges(layer=layer, source=source)) for layer in layers)
    weights = {
        f"{dest}-{source}-{layer}": Edges(layer=layer, dest=dest, source=source)
        for layer in layers
        for dest, sources in {"last": ("referent", "nearest", "distractors", "verb", "it"),
                              "it": ("referent", "nearest", "distractors")}.items()
        for source in sources
    }  # fmt: skip
    return Study(conditions=conditions, weights=weights, n=n, data_seed=DATA_SEED)


def of_masked(kind: str, n: int) -> Study:
    """What is done to the row of the mask that is read (`asked`), or to every row, in both layers.

    `right`, `left`: all positions on that side; `near_right`, `near_left`: equally many on both; `told_by`, `other`:
    the noun that tells the mask, and one of another clause. What a decoder's mask hides cannot be cut there.
    """
    from workbench import Edges, Study, cut

    layers = range(LAYERS["masked"])

    def done(source: str, dest: str | None = "asked") -> tuple[Any, ...]:
        return tuple(cut(Edges(layer=layer, dest=dest, source=source)) for layer in layers)

    conditions: dict[str, Any] = {"clean": (), "cut-left": done("left"), "cut-near-left": done("near_left")}
    if kind == ENCODER:
        conditions |= {"cut-right": done("right"), "cut-near-right": done("near_right"),
                       "all-right": done("right", None), "all-left": done("left", None), "cut-told": done("told_by"),
                       "cut-other": done("other")}  # fmt: skip
        for side in ("right", "left"):
            for layer in layers:
                conditions[f"cut-{side}-{layer}"] = (cut(Edges(layer=layer, dest="asked", source=side)),)
    return Study(conditions=conditions, n=n, data_seed=DATA_SEED)
