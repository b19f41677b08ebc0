"""What the class token of an image model attends to, against what cutting patches does; and its positions removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.patches import Patches
    from workbench import ModelConfig, Recipe, Study

PLACED, UNPLACED = "positions", "no positions"
SOURCES = ("digits", "fashion")
LAYERS = 2
DATA_SEED = 0
IMAGES = {"digits": 367, "fashion": 1000}
"""Images for testing that are measured: all of the digits, so many of fashion's 10,000."""
MAPPED = {"digits": 367, "fashion": 200}
"""Images of these in which every single patch is cut."""


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Trains, intervenes, measures, and writes `out/patches/`; returns that folder.

    seeds: trained models of each kind and source (default 3; 2 with `quick`). quick: the digits alone, few steps and
    images, to see that all of it runs; its figures mean nothing. Checkpoints are kept in `./runs` or `$WORKBENCH_HOME`.
    Where the clothes are not installed the digits stand alone, and the page says so.
    """
    from analyses.finding import say, write
    from analyses.patches_measure import Measured, measured
    from analyses.patches_report import finding
    from workbench import train_each

    found: dict[str, Measured] = {}
    recipe, model_seeds = recipe_of(quick), list(range(seeds or (2 if quick else 3)))
    for source in SOURCES[: 1 if quick else None]:
        if not _installed(source):
            say(f"{source}: not installed, left out")
            continue
        task = task_of(source, "train")
        say(f"{source}: {len(model_seeds)} models with positions, {len(model_seeds)} without, {recipe.steps} steps")
        trained = train_each(task, configs(task), recipe, model_seeds, progress=progress)
        sizes = (60, 20) if quick else (IMAGES[source], MAPPED[source])
        found[source] = measured(task_of(source, "test"), trained, sizes, progress=progress)
    return write(out, finding(found, recipe, quick))


def recipe_of(quick: bool) -> Recipe:
    """How every model is trained."""
    from workbench import Recipe

    return Recipe(steps=100, warmup=20, batch_size=64) if quick else Recipe(steps=600, warmup=100, batch_size=128)


def task_of(source: Any, part: Any) -> Patches:
    """Images in 4 × 4 patches, of either source."""
    from tasks.patches import Patches

    return Patches(source=source, part=part)


def configs(task: Patches) -> dict[str, ModelConfig]:
    """Two layers of one head, every row seeing every source; with learned positions and with none."""
    from workbench import ModelConfig
    from workbench.models.config import Mask

    placed = ModelConfig(
        d_vocab=len(task.vocabulary), n_ctx=task.length, d_patch=task.d_patch, d_model=32, n_layers=LAYERS, n_heads=1,
        masks=(Mask(causal=False),),
    )  # fmt: skip
    return {PLACED: placed, UNPLACED: placed.model_copy(update={"positions": "none"})}


def study(n: int) -> Study:
    """What is done to the models with positions. Layers count from 0 here, from 1 in what is written.

    The class token's row: cut in one layer, or in both; "hide" cuts the patches from every row of both layers. The
    roles `inked` and `pale`, and the relations `most-0` and `like-0` (and so on), are those of `patches_measure`.
    """
    from workbench import Edges, Stream, Study, cut, uniform, zero

    layers = range(LAYERS)

    def row(layer: int, source: str | None = None) -> Edges:
        return Edges(layer=layer, dest="class", source=source)

    conditions: dict[str, Any] = {"clean": ()}
    for layer in layers:
        conditions |= {f"cut-{what}-{layer}": (cut(row(layer, f"{what}-{layer}")),) for what in ("most", "like")}
        conditions |= {f"cut-{what}-{layer}": (cut(row(layer, what)),) for what in ("inked", "pale")}
        conditions[f"uniform-{layer}"] = (uniform(row(layer)),)
        conditions[f"no-update-{layer}"] = (zero(Stream(layer=layer, pos="class", part="attn_out")),)
    for what in ("inked", "pale"):
        conditions[f"cut-{what}"] = tuple(cut(row(layer, what)) for layer in layers)
        conditions[f"hide-{what}"] = tuple(cut(Edges(layer=layer, source=what)) for layer in layers)
    conditions["uniform"] = tuple(uniform(row(layer)) for layer in layers)
    conditions["no-update"] = tuple(zero(Stream(layer=layer, pos="class", part="attn_out")) for layer in layers)
    weights = {
        f"{what}-{layer}": row(layer, role)
        for layer in layers
        for what, role in {**{role: role for role in ROLES}, "most": f"most-{layer}", "like": f"like-{layer}"}.items()
    }
    return Study(conditions=conditions, weights=weights, n=n, data_seed=DATA_SEED)


ROLES = ("ink", "blank", "centre", "border", "class")
"""Sources of the class token whose mean weight is recorded."""


def _installed(source: str) -> bool:
    from tasks.images import ImagesMissing

    try:
        task_of(source, "test").sample(1, seed=0)
    except ImagesMissing:
        return False
    return True
