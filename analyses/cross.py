"""The alignment that cross-attention shows when a model translates, against cuts of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyses.cross_models import LAYERS, recipe, translator
from analyses.finding import Finding, say, write

if TYPE_CHECKING:
    import pandas as pd

    from workbench import Intervention, Study
    from workbench.checkpoints import Trained

ORDERS = ("nouns first", "nouns last")
WORDS = ("noun", "adjective", "verb")
HEADS = 2
DATA_SEED, CHOOSING = 0, 1
"""The sentences that are measured, and those on which each model's head with the most weight is chosen."""


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Trains, cuts, measures, and writes `out/cross/`; returns that folder.

    seeds: trained models of each word order (default 3; 2 with `quick`). quick: fewer steps and examples, to see that
    all of it runs; its figures mean nothing. Checkpoints are kept in `./runs` or `$WORKBENCH_HOME`.
    """
    return write(Path(out), measured(range(seeds or (2 if quick else 3)), quick, progress))


def measured(seeds: range, quick: bool, progress: bool) -> Finding:
    """Everything that the report is written from."""
    from analyses import cross_claims, cross_figures
    from analyses.cross_weights import alignments, weights
    from tasks.translate import Translate
    from workbench import train_each

    n = 100 if quick else 2000
    trained: dict[str, list[Trained]] = {}
    for order in ORDERS:
        task = Translate(order=order)
        say(f"{order}: {len(seeds)} models (kept checkpoints are used again)")
        label = {order: translator(task, HEADS)}
        trained |= train_each(task, label, recipe(quick), list(seeds), progress=progress)
    frame = results(trained, n, progress)
    shown, aligned = weights(trained, n), alignments(trained, n)
    seen = cross_claims.Seen(frame, shown, aligned)
    return Finding(
        name="cross",
        quick=quick,
        verdicts=cross_claims.verdicts(seen),
        tables=cross_claims.tables(seen),
        figures=cross_figures.figures(trained, seen),
        frames={"results": frame, "weights": shown, "alignments": aligned},
        words=cross_claims.words(seen),
        trained=trained,
        studies={f"{word}, {order}": study(word, order, n) for order in ORDERS for word in WORDS},
        tasks={order: Translate(order=order) for order in ORDERS},
    )


def results(trained: dict[str, list[Trained]], n: int, progress: bool) -> pd.DataFrame:
    """The results frame, the conditions of each word named after it: "verb · cross: agreed"."""
    import pandas as pd

    from analyses.cross_words import Asked
    from workbench import run_study

    frames = []
    for order in ORDERS:
        for word in WORDS:
            task = Asked(word=word, order=order)
            frame, _ = run_study(study(word, order, n), task, {order: trained[order]}, progress=progress)
            frames.append(frame.assign(condition=word + " · " + frame["condition"].astype(str)))
    conditions = list(dict.fromkeys(label for frame in frames for label in frame["condition"]))
    whole = pd.concat([frame.astype({"model": str, "skipped": object}) for frame in frames], ignore_index=True)
    kinds = {"model": list(ORDERS), "condition": conditions, "skipped": None}
    return whole.assign(**{name: pd.Categorical(whole[name], known) for name, known in kinds.items()})


def study(word: str, order: str, n: int) -> Study:
    """What is cut while one word is asked for. Each cut has its control beside it."""
    from workbench import Study

    conditions: dict[str, Any] = {"clean": ()}
    for name in ("translated", "rival"):
        conditions[f"cross: {name}"] = _cross(name)
        for layer in range(LAYERS):
            for head in range(HEADS):
                conditions[f"L{layer}H{head}: {name}"] = _cross(name, [layer], head)
    if word != "noun":
        for name, noun in (("agreed", "agreed"), ("other", "other")):
            inside = _encoder(noun)
            conditions |= {f"cross: {name}": _cross(noun), f"encoder: {name}": inside}
            conditions[f"all: {name}"] = (*_cross(noun, dest=None), *inside, *_target(word, order, name))
        if _written(word, order):
            conditions |= {f"target: {name}": _target(word, order, name) for name in ("agreed", "other")}
    return Study(conditions=conditions, n=n, data_seed=DATA_SEED)


def _cross(
    source: str, layers: Any = range(LAYERS), head: int | None = None, dest: str | None = "asked"
) -> tuple[Intervention, ...]:
    """What the position that predicts the word (or every one) reads of a source word, in these layers of
    cross-attention."""
    from workbench import Edges, cut

    return tuple(cut(Edges(layer=layer, head=head, kind="cross", dest=dest, source=source)) for layer in layers)


def _encoder(noun: str) -> tuple[Intervention, ...]:
    """What every other source word reads of a noun, in every layer of the encoder."""
    from workbench import Edges, cut

    place = {"stack": "encoder", "dest": f"but_{noun}", "source": noun}
    return tuple(cut(Edges(layer=layer, **place)) for layer in range(LAYERS))


def _target(word: str, order: str, name: str) -> tuple[Intervention, ...]:
    """What later positions of the decoder read of the noun's translation, where it stands there."""
    from workbench import Edges, cut

    if not _written(word, order):
        return ()
    spoken = {"agreed": "spoken", "other": "unspoken"}[name]
    place = {"stack": "decoder", "dest": f"after_{spoken}", "source": spoken}
    return tuple(cut(Edges(layer=layer, **place)) for layer in range(LAYERS))


def _written(word: str, order: str) -> bool:
    """Whether the noun agreed with stands in the target before the position that predicts the word."""
    return word == "verb" and order == "nouns first"
