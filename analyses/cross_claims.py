"""What `cross` claims, the verdicts, and the tables of its page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from analyses.cross import HEADS, ORDERS, WORDS
from analyses.cross_models import LAYERS
from analyses.verdicts import from_claims, from_seeds, joined
from workbench import Claim, summary
from workbench.figures.effects import seed_means

LARGE, SMALL = 0.5, 0.1
"""A weight that is large: most of a row. One that is small: less than an even share of the shortest source (1/5)."""
STRONG, NONE = 0.1, 0.01
"""An effect that is large, and the largest that is none: shares of the answers."""
AGREEING = WORDS[1:]
ROUTES = {"cut in cross": "cross", "in the encoder": "encoder", "in the target": "target", "everywhere": "all"}
MATTERS = 0.25
"""A loss that makes a route one that the model goes: half of all that agreement is worth."""


@dataclass(frozen=True)
class Seen:
    """frame: the results frame. weights, alignments: as `cross_weights` makes them."""

    frame: pd.DataFrame
    weights: pd.DataFrame
    alignments: pd.DataFrame


def verdicts(seen: Seen) -> pd.DataFrame:
    """A row a claim."""
    return joined(_shown(seen), from_claims(claims(), seen.frame), _best_head(seen))


def claims() -> list[Claim]:
    """The claims about cuts of every cross head at once, and of the other ways to the noun agreed with."""
    out = []
    for order in ORDERS:
        for word in WORDS:
            out.append(_claim(
                f"mattered-{word}-{_short(order)}", f"{order}: cutting the word translated loses more than half of the "
                f"{word}s that cutting its control keeps", order, word, "cross: rival", "cross: translated", 0.5,
            ))  # fmt: skip
    for word in AGREEING:
        out += _agreement_of(word)
    return [*out, _guessed("verb", "nouns first"), _held()]


def _agreement_of(word: str) -> list[Claim]:
    """Where cutting takes away the noun agreed with, and where it does not."""
    last, first = "nouns last", "nouns first"
    return [
        _claim(
            f"agreement-{word}-last",
            f"{last}: cutting what cross-attention reads of the noun agreed with loses more than a quarter of the "
            f"{word}s that cutting the other noun keeps (half is all that agreement is worth)",
            *(last, word, "cross: other", "cross: agreed", 0.25),
        ),
        _claim(
            f"agreement-{word}-first",
            f"{first}: the same cut changes under 1 {word} in 100, since the noun is written already",
            *(first, word, "cross: other", "cross: agreed", 0.01, "within"),
        ),
        _claim(
            f"encoder-{word}-last",
            f"{last}: cutting what other source words read of that noun in the encoder loses more than a quarter of "
            f"the {word}s that the same cut of the other noun keeps",
            *(last, word, "encoder: other", "encoder: agreed", 0.25),
        ),
        _guessed(word, last),
    ]


def _held() -> Claim:
    return _claim(
        "all-adjective-first",
        "nouns first: with every edge from that source noun cut, under 1 adjective in 100 changes, since the noun "
        "stands at the position itself",
        *("nouns first", "adjective", "all: other", "all: agreed", 0.01, "within"),
    )


def _claim(
    id: str, says: str, model: str, word: str, a: str, b: str, margin: float, direction: Any = "greater"
) -> Claim:
    label = {"a": f"{word} · {a}", "b": f"{word} · {b}"}
    return Claim(id=id, statement=says, metric="accuracy", model=model, direction=direction, margin=margin, **label)


def _guessed(word: str, order: str) -> Claim:
    return Claim(
        id=f"all-{word}-{_short(order)}",
        statement=f"{order}: with every edge from the noun agreed with cut, in every part, agreement of the {word} is "
        "a guess",
        metric="accuracy",
        a=f"{word} · all: agreed",
        model=order,
        direction="within",
        margin=0.05,
        reference=0.5,
    )


def _shown(seen: Seen) -> pd.DataFrame:
    """What the weights show, from one number a trained model."""
    best = best_weights(seen.weights)
    every = seen.alignments.merge(best.reset_index()[["order", "model_seed", "layer", "head"]].astype(
        {"layer": str, "head": str}), on=["order", "model_seed", "layer", "head"])  # fmt: skip
    rows = []
    for order in ORDERS:
        rows += [from_seeds(
            f"shown-{_short(order)}", f"{order}: one cross head gives the word translated more than half of its weight",
            "mean weight over nouns, adjectives and verbs, in the model's head with the most",
            best.loc[order, "weight"], "greater", 0.5,
        ), from_seeds(
            f"aligned-{_short(order)}", f"{order}: the largest weight of that head is on the word translated for more "
            "than three words in four", "share of all words of the target",
            every.loc[every["order"] == order, "translated"], "greater", 0.75,
        )]  # fmt: skip
    table = pd.concat(rows, ignore_index=True)
    return table.assign(high=table["high"].clip(upper=1.0))  # of a share


def best_weights(weights: pd.DataFrame) -> pd.DataFrame:
    """Each trained model's best head, and its mean weight on the word translated over the three kinds of word."""
    rows = weights[weights["best"] & (weights["source"] == "translated")]
    return rows.groupby(["order", "model_seed", "layer", "head"])["weight"].mean().reset_index().set_index("order")


def _best_head(seen: Seen) -> pd.DataFrame:
    heads = by_head(seen)
    rows = []
    for order in ORDERS:
        own = heads[heads["best"] & (heads["order"] == order)].groupby("model_seed")["effect"].mean()
        rows.append(
            from_seeds(
                f"one-head-{_short(order)}",
                f"{order}: cutting the word translated in that head alone loses more than half of the answers that "
                "cutting the control there keeps",
                "accuracy, mean of the three kinds of word",
                own.to_numpy(),
                "greater",
                0.5,
            )
        )
    return pd.concat(rows, ignore_index=True)


def by_head(seen: Seen) -> pd.DataFrame:
    """A row a word order, trained model, word, layer and head: its mean weight on the word translated, and the share of
    answers that cutting it there loses and cutting the control there keeps (`effect`)."""
    means = seed_means(seen.frame, "accuracy").set_index(["model", "model_seed", "condition"])["value"].to_dict()
    rows = seen.weights[seen.weights["source"] == "translated"].drop(columns="source").reset_index(drop=True)
    keys = ["order", "model_seed", "word", "layer", "head"]
    rows["effect"] = [
        means[order, seed, f"{word} · L{layer}H{head}: rival"]
        - means[order, seed, f"{word} · L{layer}H{head}: translated"]
        for order, seed, word, layer, head in rows[keys].itertuples(index=False)
    ]
    return rows


def tables(seen: Seen) -> dict[str, pd.DataFrame]:
    """What the page prints, and every head of every model beside it."""
    return {
        "cuts": summary(seen.frame),
        "heads": by_head(seen),
        "corners": corners(by_head(seen)),
        "agreement": _agreement(seen.alignments),
        "routes": routes(seen),
    }


def corners(heads: pd.DataFrame) -> pd.DataFrame:
    """How many heads, over trained models and words, are in the corners where the weight does not tell the effect."""
    weight, effect = heads["weight"], heads["effect"].abs()
    marked = heads.assign(**{
        "large weight": weight >= LARGE,
        "of these, no effect": (weight >= LARGE) & (effect <= NONE),
        "small weight": weight <= SMALL,
        "of these, large effect": (weight <= SMALL) & (effect >= STRONG),
    })  # fmt: skip
    counted = marked.groupby(["order", "word"], sort=False)
    return counted.agg(heads=("head", "size"), **{name: (name, "sum") for name in marked.columns[-4:]}).reset_index()


def _agreement(alignments: pd.DataFrame) -> pd.DataFrame:
    """Mean, and lowest to highest, over trained models: of the mean of all heads, and of each model's heads from the
    one that aligns most words to the one that aligns fewest."""
    single = alignments["layer"].str.isdigit()
    rank = alignments[single].groupby(["order", "model_seed"])["translated"].rank(ascending=False, method="first")
    which = rank.astype(int).map(lambda place: f"head, {place} of {LAYERS * HEADS} by this share")
    named = alignments.assign(what=which.reindex(alignments.index).fillna("mean of all heads and layers"))
    rows = []
    for (order, what), own in named.sort_values("what").groupby(["order", "what"]):
        row: dict[str, Any] = {"order": order, "attention": what}
        for name in ("translated", "agreed", "error"):
            row |= {name: own[name].mean(), f"{name}, seeds": f"{own[name].min():.2f} to {own[name].max():.2f}"}
        rows.append(row | {"models": len(own)})
    return pd.DataFrame(rows)


def routes(seen: Seen) -> pd.DataFrame:
    """How each trained model comes to know what a word agrees with: the share of answers that each cut loses and the
    same cut of the other noun keeps, beside the largest weight that a cross head gives the noun agreed with."""
    means = seed_means(seen.frame, "accuracy").set_index(["model", "model_seed", "condition"])["value"].to_dict()
    own = seen.weights[(seen.weights["source"] == "agreed") & seen.weights["word"].isin(AGREEING)]
    rows = []
    for (order, word, seed), table in own.groupby(["order", "word", "model_seed"]):
        row: dict[str, Any] = {
            "order": order,
            "word": word,
            "model_seed": seed,
            "largest weight": table["weight"].max(),
        }
        for name, where in ROUTES.items():
            at = [(order, seed, f"{word} · {where}: {noun}") for noun in ("other", "agreed")]
            row[name] = means[at[0]] - means[at[1]] if at[0] in means else None
        rows.append(row)
    return pd.DataFrame(rows).astype(dict.fromkeys(ROUTES, float))


def words(seen: Seen) -> dict[str, Any]:
    """What else the page says: numbers named in its text."""
    estimates = summary(seen.frame).set_index(["model", "condition"])["estimate"]
    sides = {order: seen.alignments.loc[seen.alignments["order"] == order, "even"].mean() for order in ORDERS}
    many = {
        f"{word}, {order}": {name: int((own[name] > MATTERS).sum()) for name in ROUTES} | {"models": len(own)}
        for (order, word), own in routes(seen).groupby(["order", "word"])
    }
    return {
        "accuracy": {f"{order}, {label}": value for (order, label), value in estimates.items()},
        "even": sides,
        "routes": many,
        "thresholds": {"large": LARGE, "small": SMALL, "strong": STRONG, "none": NONE, "matters": MATTERS},
    }


def _short(order: str) -> str:
    return order.removeprefix("nouns ")
