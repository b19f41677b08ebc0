"""The lecture's table: what the weights of a two-layer lookup model show, and what interventions show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from analyses.lecture_evidence import Evidence
from analyses.lecture_report import write

if TYPE_CHECKING:
    from tasks.lookup import Lookup
    from workbench import Recipe, Study

TWO, ONE = "two layers", "one layer"
DATA_SEED = 0


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Trains, intervenes, measures, and writes `out/lecture/`; returns that folder.

    seeds: trained models of each depth (default 3, the lecture's; 2 with `quick`). quick: fewer steps and examples, to
    see that all of it runs; its figures mean nothing. Checkpoints are kept in `./runs` or `$WORKBENCH_HOME`.
    """
    from workbench import ModelConfig, train_each

    task, recipe = _task(), _recipe(quick)
    model_seeds = range(seeds or (2 if quick else 3))
    deep = ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.length, d_model=32, n_layers=2, n_heads=1, norm="post")
    configs = {TWO: deep, ONE: deep.model_copy(update={"n_layers": 1})}
    _say(f"{TWO}, {ONE}: {len(model_seeds)} models each, {recipe.steps} steps (kept checkpoints are used again)")
    trained = train_each(task, configs, recipe, list(model_seeds), progress=progress)
    studies = {TWO: study(200 if quick else 4000), ONE: base(200 if quick else 4000)}
    return write(Path(out) / "lecture", Evidence.measured(task, recipe, trained, studies, quick, progress))


def study(n: int) -> Study:
    """What is done to the two-layer model. The lecture's layer 1 is `layer=0`."""
    from workbench import Edges, Stream, Study, control_of, cut, top_source, uniform, zero

    largest = Edges(layer=0, dest="last", source="largest")
    return Study(
        conditions={
            "clean": (),
            "cut-answer": (cut(Edges(layer=1, dest="last", source="answer")),),
            "cut-other": (cut(Edges(layer=1, dest="last", source="other")),),
            "cut-largest": (cut(largest),),
            "cut-largest-control": (cut(Edges(layer=0, dest="last", source="largest-control")),),
            "uniform": (uniform(Edges(layer=0, dest="last")),),
            "no-update": (zero(Stream(layer=0, pos="last", part="attn_out")),),
            "cut-hidden": (cut(Edges(layer=0, dest="answer", source="match")),),
            "cut-hidden-control": (cut(Edges(layer=0, dest="other", source="previous")),),
        },
        derived={"largest": top_source(0, dest="last"), "largest-control": control_of("largest", seed=0)},
        weights={
            "prev": Edges(layer=0, source="previous"),
            "match": Edges(layer=1, dest="last", source="answer"),
            "spread": Edges(layer=0, dest="last", source="digits"),
            "unseen-letter": Edges(layer=1, dest="last", source="match"),
            "largest-weight": largest,
            "hidden-weight": Edges(layer=0, dest="answer", source="match"),
        },
        n=n,
        data_seed=DATA_SEED,
    )


def base(n: int) -> Study:
    """The one-layer model, with nothing cut, on the same sequences."""
    from workbench import Study

    return Study(conditions={"clean": ()}, n=n, data_seed=DATA_SEED)


def _task() -> Lookup:
    from tasks.lookup import Lookup

    return Lookup()


def _recipe(quick: bool) -> Recipe:
    from workbench import Recipe

    return Recipe(steps=150, warmup=30, batch_size=64) if quick else Recipe()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
