"""The figures of `heads`: accuracy by number of heads, what each head shows and is worth, and the gathering heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analyses.heads import SHAPES, TRANSLATORS
from analyses.heads_tables import FOUR, NONE, ONE, STRONG, TWO, Seen, by_head
from tasks.two_relations import TwoRelations
from workbench import record, summary
from workbench.figures import accuracy_under_intervention, effect_against_weight, pattern_grids, training_curves
from workbench.figures.effects import seed_means

if TYPE_CHECKING:
    from workbench.checkpoints import Trained

GUESSES = {
    "seen": "the answer for a random letter",
    "unordered": "both facts, not which is which",
    "first fact": "one fact",
}
MARKED = 6
"""Heads that a figure names: those whose loss costs most."""
SEQUENCE = "c 4 a 2 f 1 a 0 f 4 c 3 a"


def figures(trained: dict[str, list[Trained]], seen: Seen) -> dict[str, Any]:
    """Every figure, by name."""
    curves = seen.curves[seen.curves["model"].isin([ONE, TWO, FOUR])]
    return {
        "accuracy": _accuracy(seen),
        "training": training_curves(curves, title="Training on two-relations, two layers"),
        "patterns-one": _patterns(trained[ONE][0], ONE),
        "patterns-two": _patterns(trained[TWO][0], TWO),
        **{f"effects-{label.replace(', ', '-').replace(' ', '-')}": _effects(seen, label) for label in (TWO, FOUR)},
        **{f"effects-{label.replace(', ', '-').replace(' ', '-')}": _effects(seen, label) for label in TRANSLATORS},
    }


def _accuracy(seen: Seen) -> Any:
    """Every kind of model of two-relations with nothing cut, and one head with equal weights."""
    kept = seen.frame[seen.frame["model"].isin(list(SHAPES)) & seen.frame["condition"].isin(["clean", "equal"])]
    table, seeds = summary(kept), seed_means(kept, "accuracy")
    table, seeds = (
        frame.assign(condition=frame["model"].astype(str) + " · " + frame["condition"].astype(str))
        for frame in (table[table["metric"] == "accuracy"], seeds)
    )
    order = [f"{label} · {one}" for label in SHAPES for one in ("clean", "equal")]
    order = [label for label in order if label in set(table["condition"])]
    said = {
        label: label.replace(" · clean", "").replace(" · equal", ": the facts weighed alike in layer 1")
        for label in order
    }
    guess = TwoRelations().guessing()
    return accuracy_under_intervention(
        table,
        seeds.drop(columns="model"),
        {text: guess[name] for name, text in GUESSES.items()},
        order=order,
        labels=said,
        interval="mean, 95% interval over models and sequences",
        title="two-relations, width 32",
    )


def _patterns(one: Trained, label: str) -> Any:
    """Every head on one sequence; the two facts of the last position are boxed in the second layer."""
    batch = TwoRelations().encode(SEQUENCE)
    recording, words = record(one.model, batch, ["pattern"]), batch.words(0)
    facts = [tuple(edge) for name in ("first", "second") for edge in batch.relations[name][0].nonzero().tolist()]
    grids, boxed = {}, {}
    for layer in range(2):
        for head in range(recording["pattern", layer].shape[1]):
            name = f"layer {layer}, head {head}"
            grids[name] = recording["pattern", layer][0, head]
            boxed[name] = facts if layer else []
    visible = one.model.sees(batch, "", 0)[0]
    title = f"Attention weights, {label}, model seed {one.seed}"
    return pattern_grids(grids, words, words, visible=visible, boxed=boxed, title=title, columns=2)


def _effects(seen: Seen, label: str) -> Any:
    """A dot a head of a model: the weight of the relation that it shows best, and what the model loses without it."""
    own = by_head(seen)
    own = own[own["model"] == label].reset_index(drop=True)
    parts = {"": 0, "encoder": 0, "decoder": 2, "cross": 4}
    own["layer"] = own["layer"] + own["part"].map(parts)
    rank = own.groupby(["model_seed", "layer"])["effect"].rank(ascending=False, method="first").astype(int) - 1
    layers = " (L0–1 encoder, L2–3 decoder, L4–5 cross)" if label in TRANSLATORS else ""
    table = own[["model_seed", "layer", "weight", "effect"]].assign(head=rank)
    worth = table.groupby(["layer", "head"])["effect"].mean()
    return effect_against_weight(
        pd.DataFrame(table),
        weights=(0.25, 0.5),
        effects=(NONE, STRONG),
        weight_label="mean weight of the relation that the head shows best",
        effect_label="answers lost without the head",
        title=f"{label}{layers}: in each layer H0 is the head whose loss costs most",
        marked=list(worth.nlargest(MARKED).index),
    )
