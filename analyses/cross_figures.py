"""The figures of `cross`: the lecture's 7 × 5 grid, accuracy under each cut, and effect against weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analyses.cross import HEADS, ORDERS, WORDS
from analyses.cross_claims import LARGE, NONE, SMALL, STRONG, Seen, by_head
from analyses.cross_models import LAYERS
from tasks.translate import Translate
from workbench import record, summary
from workbench.figures import accuracy_under_intervention, effect_against_weight, pattern_grids, weights_by_role
from workbench.figures.effects import seed_means

if TYPE_CHECKING:
    from workbench.checkpoints import Trained

SENTENCE = "the small dog saw the red cats"
"""Seven source words, and five in the target."""
SAID = {
    "clean": "nothing cut",
    "cross: translated": "cross: the word translated",
    "cross: rival": "cross: its control",
    "cross: agreed": "cross: the noun agreed with",
    "cross: other": "cross: the other noun",
    "encoder: agreed": "encoder: the noun agreed with",
    "encoder: other": "encoder: the other noun",
    "target: agreed": "target: the noun agreed with",
    "target: other": "target: the other noun",
    "all: agreed": "everywhere: the noun agreed with",
    "all: other": "everywhere: the other noun",
}
SOURCES = {
    "translated": "the word translated",
    "rival": "its control",
    "agreed": "the noun agreed with",
    "other": "the other noun",
}


def figures(trained: dict[str, list[Trained]], seen: Seen) -> dict[str, Any]:
    """Every figure, by name."""
    drawn = {}
    for order in ORDERS:
        short = order.replace(" ", "-")
        drawn[f"grid-{short}"] = grid(trained[order][0], order)
        drawn[f"cuts-{short}"] = _cuts(seen.frame, order)
        drawn[f"weights-{short}"] = _weights(seen.weights, order)
        drawn[f"corners-{short}"] = _corners(seen, order)
    return drawn


def grid(one: Trained, order: str) -> Any:
    """Every cross head on one sentence: 7 keys in rows, 5 queries in columns, each named by the word that it
    predicts; the word translated is boxed."""
    task: Any = Translate(order=order)
    batch = task.encode(SENTENCE)
    recording = record(one.model, batch, [("cross.pattern", layer) for layer in range(LAYERS)])
    rows = batch.roles["words"][0]
    links = batch.alignments["aligned"][0][rows].nonzero().tolist()
    names = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    patterns = {f"layer {at}, head {head}": recording["cross.pattern", at][0, head][rows] for at, head in names}
    predicted = [f"▸{batch.word(int(token))}" for token in batch.labels[0][rows]]
    return pattern_grids(
        patterns,
        batch.context.words(0),
        predicted,
        boxed={name: [(dest, source) for dest, source in links] for name in patterns},
        title=f"Cross-attention, {order}, model seed {one.seed}: queries by the word they predict",
        columns=2,
    )


def _cuts(frame: pd.DataFrame, order: str) -> Any:
    table = summary(frame[frame["model"] == order])
    there = set(table["condition"].astype(str))
    every = {f"{word} · {cut}": f"{word}: {says}" for word in WORDS for cut, says in SAID.items()}
    said = {label: says for label, says in every.items() if label in there}
    seeds = seed_means(frame, "accuracy")
    return accuracy_under_intervention(
        table.astype({"condition": str}),
        seeds[seeds["model"] == order].drop(columns="model"),
        {"agreement guessed, all else right": 0.5},
        order=list(said),
        labels=said,
        interval="mean, 95% interval over models and sentences",
        title=f"Accuracy of one word under cuts, {order}",
    )


def _weights(weights: pd.DataFrame, order: str) -> Any:
    own = weights[weights["order"] == order]
    own = own[(own["word"] != "noun") | own["source"].isin(["translated", "rival"])]
    own = own[(own["word"] != "verb") | (own["source"] != "rival")]
    own = own.assign(source=own["source"].map(SOURCES))
    table = own.rename(columns={"word": "dest"})[["layer", "head", "dest", "source", "weight", "model_seed"]]
    return weights_by_role(
        table, title=f"Mean cross weight at the position that predicts a word, {order} (heads as they were trained)",
        columns=2,
    )  # fmt: skip


def _corners(seen: Seen, order: str) -> Any:
    """A dot a head, heads of a layer numbered from the one with the most weight, mean of the three kinds of word."""
    own = by_head(seen)
    own = own[own["order"] == order].groupby(["model_seed", "layer", "head"])[["weight", "effect"]].mean().reset_index()
    rank = own.groupby(["model_seed", "layer"])["weight"].rank(ascending=False, method="first").astype(int) - 1
    return effect_against_weight(
        own.assign(head=rank),
        weights=(SMALL, LARGE),
        effects=(NONE, STRONG),
        weight_label="mean weight on the word translated",
        effect_label="answers lost by cutting it in this head, and kept by cutting the control there",
        title=f"Cross heads, {order}: in each layer H0 is the head with the most weight on the word translated",
        marked=[(layer, head) for layer in range(LAYERS) for head in range(HEADS)],
    )
