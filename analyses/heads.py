"""One attention head against several at equal parameters: what they can do, what each shows, and what each is worth."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyses.cross_models import LAYERS, recipe, translator
from analyses.finding import Finding, say, write

if TYPE_CHECKING:
    from tasks.two_relations import TwoRelations
    from workbench import ModelConfig, Recipe, Study
    from workbench.checkpoints import Trained

SHAPES = {
    "1 head, 2 layers": (1, 2),
    "1 head, 2 layers, longer": (1, 2),
    "2 heads, 2 layers": (2, 2),
    "4 heads, 2 layers": (4, 2),
    "1 head, 3 layers": (1, 3),
    "1 head, 1 layer": (1, 1),
    "4 heads, 1 layer": (4, 1),
}
"""Models of `two-relations`: heads, layers. Their width is 32 whatever the number of heads."""
LONGER = "1 head, 2 layers, longer"
"""Trained on three times as many batches: whether one head cannot, or had not yet."""
TRANSLATORS = {"translate, 1 head": 1, "translate, 2 heads": 2, "translate, 4 heads": 4}
ORDER = "nouns last"
"""Of the target's words: there the decoder cannot take agreement from what it has written."""
DATA_SEED = 0
COPIED = {
    "copy": {"dest": "facts", "source": "previous"},
    "copy control": {"dest": "others", "source": "previous"},
}
"""What a digit reads of its letter: the asked letter's digits, and another letter's."""
GATHERED = {
    "first": {"dest": "last", "source": "first_fact"},
    "first control": {"dest": "last", "source": "first_other"},
    "second": {"dest": "last", "source": "second_fact"},
    "second control": {"dest": "last", "source": "second_other"},
}
"""What the last position reads of a fact, and of another letter's digit in the same list."""


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Trains, cuts, measures, and writes `out/heads/`; returns that folder.

    seeds: trained models of each kind (default 3; 2 with `quick`). quick: fewer steps and examples, to see that all of
    it runs; its figures mean nothing. Checkpoints are kept in `./runs` or `$WORKBENCH_HOME`.
    """
    return write(Path(out), measured(range(seeds or (2 if quick else 3)), quick, progress))


def measured(seeds: range, quick: bool, progress: bool) -> Finding:
    """Everything that the report is written from."""
    from analyses import heads_claims, heads_figures, heads_tables
    from analyses.heads_facts import Facts
    from analyses.heads_names import names
    from tasks.translate import Translate
    from tasks.two_relations import TwoRelations
    from workbench import run_study, train_each
    from workbench.studies import joined

    n = 100 if quick else 2000
    two, translate = TwoRelations(), Translate(order=ORDER)
    say(f"{len(SHAPES)} kinds of model on two-relations, {len(TRANSLATORS)} on translate, {len(seeds)} models each")
    shapes = configs(two)
    longer = {LONGER: shapes.pop(LONGER)}
    trained = train_each(two, shapes, lookup_recipe(quick), list(seeds), progress=progress)
    trained |= train_each(two, longer, lookup_recipe(quick, times=3), list(seeds), progress=progress)
    translators = {label: translator(translate, heads) for label, heads in TRANSLATORS.items()}
    trained |= train_each(translate, translators, recipe(quick), list(seeds), progress=progress)
    studies = {label: facts_study(*shape, n) for label, shape in SHAPES.items()}
    studies |= {label: translate_study(heads, n) for label, heads in TRANSLATORS.items()}
    frames = [
        run_study(own, Facts() if label in SHAPES else translate, {label: trained[label]}, progress=progress)[0]
        for label, own in studies.items()
    ]
    seen = heads_tables.Seen(joined(frames), names(trained, two, translate, n), curves(trained))
    return Finding(
        name="heads",
        quick=quick,
        verdicts=heads_claims.verdicts(seen),
        tables=heads_tables.tables(seen),
        figures=heads_figures.figures(trained, seen),
        frames={"results": seen.frame, "names": seen.names, "curves": seen.curves},
        words=heads_tables.words(seen, parameters(trained)),
        trained=trained,
        studies=studies,
        tasks={"two-relations": two, "translate": translate},
    )


def configs(task: TwoRelations) -> dict[str, ModelConfig]:
    """A model of each kind, all of width 32."""
    from workbench import ModelConfig

    base = ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.length, d_model=32, n_layers=2, n_heads=1, norm="post")
    size = base.model_dump(exclude={"d_head", "n_kv_heads", "d_mlp"})
    return {
        label: ModelConfig(**{**size, "n_heads": heads, "n_layers": layers})
        for label, (heads, layers) in SHAPES.items()
    }


def lookup_recipe(quick: bool, times: int = 1) -> Recipe:
    """Long enough, three times over, for the models with two heads and two layers that were tried (on seeds that no
    report has) to give every answer."""
    from workbench import Recipe

    if quick:
        return Recipe(steps=60 * times, warmup=20, batch_size=32)
    return Recipe(steps=1000 * times, batch_size=128)


def facts_study(n_heads: int, n_layers: int, n: int) -> Study:
    """Each head removed, and each edge in question cut in it, beside the same edge of another letter: digits read
    their letter in the first layer, the last position reads the facts in later ones."""
    from workbench import Edges, Heads, Study, cut, uniform, zero

    layers = range(n_layers)
    conditions: dict[str, Any] = {"clean": ()}
    for layer, head in product(layers, range(n_heads)):
        place: dict[str, Any] = {"layer": layer, "head": head}
        conditions[f"L{layer}H{head}: no head"] = (zero(Heads(**place, part="z")),)
        for name, edges in (GATHERED if layer else COPIED).items() if n_layers > 1 else ():
            conditions[f"L{layer}H{head}: {name}"] = (cut(Edges(**place, **edges)),)
    if n_layers > 1:
        for name, edges in {**COPIED, **GATHERED}.items():
            conditions[name] = tuple(cut(Edges(layer=layer, **edges)) for layer in layers)
    if n_layers == 2:
        conditions["equal"] = (uniform(Edges(layer=1, dest="last", source="facts")),)
    return Study(conditions=conditions, n=n, data_seed=DATA_SEED)


def translate_study(n_heads: int, n: int) -> Study:
    """Each head removed: of the encoder, of the decoder's self-attention and of its cross-attention."""
    from workbench import Heads, Study, zero

    places: dict[str, dict[str, Any]] = {
        "encoder": {"stack": "encoder"},
        "decoder": {"stack": "decoder"},
        "cross": {"kind": "cross"},
    }
    conditions: dict[str, Any] = {"clean": ()}
    for part, place in places.items():
        for layer in range(LAYERS):
            for head in range(n_heads):
                label = f"{part} L{layer}H{head}: no head"
                conditions[label] = (zero(Heads(layer=layer, head=head, part="z", **place)),)
    return Study(conditions=conditions, metrics=("accuracy", "exact_match"), n=n, data_seed=DATA_SEED)


def curves(trained: dict[str, list[Trained]]) -> Any:
    """The training curves: model, model_seed, step, loss, accuracy."""
    import pandas as pd

    several = [
        pd.DataFrame(one.curve).assign(model=label, model_seed=one.seed)
        for label, own in trained.items()
        for one in own
    ]
    return pd.concat(several, ignore_index=True)


def parameters(trained: dict[str, list[Trained]]) -> dict[str, int]:
    """How many numbers each kind of model has learned."""
    return {label: sum(one.numel() for one in own[0].model.parameters()) for label, own in trained.items()}
