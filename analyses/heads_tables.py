"""The tables of `heads`: what each kind of model can do, and what each head shows and is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from analyses.heads import SHAPES, TRANSLATORS
from analyses.heads_names import best
from tasks.two_relations import TwoRelations
from workbench import summary
from workbench.figures.effects import seed_means

NAMED = 0.5
"""A head has a nameable pattern where one relation takes more than this share of the weight, in some kind of row."""
STRONG, NONE = 0.1, 0.01
"""An effect that is large, and the largest that is none: shares of the answers."""
LEARNED = 0.99
ONE, TWO, FOUR = "1 head, 2 layers", "2 heads, 2 layers", "4 heads, 2 layers"
FACTS = ("first", "second")


@dataclass(frozen=True)
class Seen:
    """frame: the results frame. names: as `heads_names` makes them. curves: the training curves of every model."""

    frame: pd.DataFrame
    names: pd.DataFrame
    curves: pd.DataFrame


def first_right(curves: pd.DataFrame) -> pd.Series:
    """The first step at which a training batch is right, by kind of model and model seed; the last where none is."""
    reached = curves[curves["accuracy"] >= LEARNED].groupby(["model", "model_seed"])["step"].min()
    return reached.reindex(curves.groupby(["model", "model_seed"])["step"].max().index).fillna(
        curves.groupby(["model", "model_seed"])["step"].max()
    )


def by_head(seen: Seen) -> pd.DataFrame:
    """A row a kind of model, trained model and head: its best name and weight over kinds of row, whether that is a
    nameable pattern, its spread there, and the share of answers lost without the head."""
    keys = ["model", "model_seed", "part", "layer", "head"]
    found = best(seen.names)
    found = found.loc[found.groupby(keys, sort=False)["weight"].idxmax()].reset_index(drop=True)
    means = seed_means(seen.frame, "accuracy").set_index(["model", "model_seed", "condition"])["value"].to_dict()
    found["effect"] = [
        means[model, seed, "clean"] - means[model, seed, f"{part} L{layer}H{head}: no head".strip()]
        for model, seed, part, layer, head in found[keys].itertuples(index=False)
    ]
    return found.assign(nameable=found["weight"] > NAMED)


def tables(seen: Seen) -> dict[str, pd.DataFrame]:
    """What the page prints, and every head of every model beside it."""
    heads = by_head(seen)
    return {"conditions": summary(seen.frame), "models": _models(seen), "heads": heads, "counts": counts(heads),
            "named": _named(heads), "gathering": _gathering(seen)}  # fmt: skip


def _models(seen: Seen) -> pd.DataFrame:
    """Accuracy of each kind of model with nothing cut, and when it was learned."""
    table = summary(seen.frame[seen.frame["condition"] == "clean"])
    table = table[(table["metric"] == "accuracy") | table["model"].isin(TRANSLATORS)]
    steps = first_right(seen.curves).groupby("model").agg(["min", "median", "max"]).astype(int)
    kept = table[["model", "metric", "estimate", "low", "high", "seed_low", "seed_high", "n_models"]]
    kept = kept.assign(model=kept["model"].astype(str))
    return kept.merge(steps.add_prefix("step, "), left_on="model", right_index=True, how="left")


def counts(heads: pd.DataFrame) -> pd.DataFrame:
    """Heads by whether their pattern can be named and what they are worth, over trained models."""
    effect = heads["effect"]
    marked = heads.assign(**{
        "nameable, large effect": heads["nameable"] & (effect >= STRONG),
        "nameable, no effect": heads["nameable"] & (effect.abs() <= NONE),
        "not nameable, large effect": ~heads["nameable"] & (effect >= STRONG),
        "not nameable, no effect": ~heads["nameable"] & (effect.abs() <= NONE),
    })  # fmt: skip
    known = {name: (name, "sum") for name in marked.columns[-4:]}
    return (
        marked.groupby("model", sort=False)
        .agg(heads=("head", "size"), nameable=("nameable", "sum"), **known)
        .reset_index()
    )


def _named(heads: pd.DataFrame) -> pd.DataFrame:
    """By kind of model, part and layer: the names that heads have, how many over trained models, and their effects."""
    own = heads.assign(
        name=heads["name"].where(heads["nameable"], "(none)"), rows=heads["rows"].where(heads["nameable"], "")
    )
    found = own.groupby(["model", "part", "layer", "rows", "name"], sort=False)
    known = {"least": "min", "mean": "mean", "most": "max"}
    effects = {name: ("effect", how) for name, how in known.items()}
    table = found.agg(heads=("head", "size"), weight=("weight", "mean"), spread=("spread", "mean"), **effects)
    table = table.reset_index()
    order = {label: place for place, label in enumerate((*SHAPES, *TRANSLATORS))}
    key = table["model"].map(order)
    table = table.assign(key=key).sort_values(["key", "part", "layer", "heads"], ascending=[True, True, True, False])
    return table.drop(columns="key").reset_index(drop=True)


def _gathering(seen: Seen) -> pd.DataFrame:
    """What the last position reads in the layers after the first, head by head and seed by seed."""
    own = seen.names[(seen.names["rows"] == "last") & (seen.names["layer"] > 0)]
    own = own[own["name"].isin(["the first fact", "the second fact"])]
    wide = own.pivot(
        index=["model", "model_seed", "layer", "head", "spread"], columns="name", values="weight"
    ).reset_index()
    wide.columns.name = None
    means = seed_means(seen.frame, "accuracy").set_index(["model", "model_seed", "condition"])["value"].to_dict()
    for fact in FACTS:
        wide[f"lost by cutting the {fact}"] = [
            means[model, seed, f"L{layer}H{head}: {fact} control"] - means[model, seed, f"L{layer}H{head}: {fact}"]
            for model, seed, layer, head in wide[["model", "model_seed", "layer", "head"]].itertuples(index=False)
        ]
    return wide


def words(seen: Seen, parameters: dict[str, int]) -> dict[str, Any]:
    """What else the page says."""
    means = summary(seen.frame).set_index(["model", "condition", "metric"])["estimate"]
    accuracy = {f"{model} · {label}": value for (model, label, metric), value in means.items() if metric == "accuracy"}
    clean = seed_means(seen.frame[seen.frame["condition"] == "clean"], "accuracy")
    unlearned = clean[(clean["value"] < LEARNED) & ~clean["model"].str.contains("1 layer")]
    gathering = _gathering(seen)
    return {
        "accuracy": accuracy,
        "parameters": parameters,
        "guess": TwoRelations().guessing(),
        "threshold": NAMED,
        "gathering": gathering[gathering["model"] != FOUR],
        "unlearned": unlearned[["model", "model_seed", "value"]].to_dict("records"),
    }
