"""The report on order: tables, figures, words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analyses import order_permutations, order_places, order_sinusoids
from analyses.finding import Finding
from analyses.order import DATA_SEED, DECODERS, ENCODERS, LONGER, PAIRS, longer, study, task
from analyses.order_claims import verdicts
from workbench import Recipe, summary
from workbench.checkpoints import Trained
from workbench.figures import accuracy_under_intervention
from workbench.figures.panels import lines_by_panel
from workbench.tables import percent

LENGTHS = {PAIRS: "clean"} | {pairs: f"{pairs} pairs" for pairs in LONGER}
CUTS = ("clean", "cut-answer", "cut-other", "cut-hidden", "cut-hidden-control")
SAID = {
    "cut-answer": "layer 2: cut the matching digit",
    "cut-other": "layer 2: cut a different digit",
    "cut-hidden": "layer 1: cut the matching digit ← its letter",
    "cut-hidden-control": "layer 1: cut a different digit ← its letter",
}


def finding(trained: Mapping[str, Sequence[Trained]], results: pd.DataFrame, recipe: Recipe, quick: bool) -> Finding:
    """All that the report needs, from the models and their results."""
    n, seeds = int(results["example"].nunique()), len(trained["learned"])
    permuted = order_permutations.measured(trained, task().sample(64, DATA_SEED))
    sinusoids = order_sinusoids.measured(max(seeds, 2))
    likeness = order_sinusoids.likeness(trained)
    places = order_places.measured(trained, n)
    return Finding(
        name="order",
        quick=quick,
        verdicts=verdicts(results, permuted, sinusoids, task().guessing()["mode"]),
        tables=tables(results, permuted, places),
        figures=figures(results, likeness),
        frames={"results": results, "permutations": permuted, "likeness": likeness, "places": places},
        words={
            "recipe": recipe, "n": n, "seeds": seeds, "sinusoids": sinusoids, "accuracy": _accuracies(results),
            "mode": percent(task().guessing()["mode"]),
        },
        trained=trained,
        studies={"4 pairs": study(n), **{f"{pairs} pairs": longer(pairs, n) for pairs in LONGER}},
        tasks={f"{pairs} pairs": task(pairs) for pairs in LENGTHS},
    )  # fmt: skip


def _accuracies(results: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Mean accuracy as the page writes it, by kind and condition."""
    means = results.groupby(["model", "condition"], observed=True)["accuracy"].mean().unstack()
    return {str(kind): {str(name): percent(value) for name, value in row.items()} for kind, row in means.iterrows()}


def tables(results: pd.DataFrame, permuted: pd.DataFrame, places: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables of the page."""
    known = summary(results)
    accuracy = known[known["metric"] == "accuracy"]
    lengths = {name: f"{pairs} pairs" for pairs, name in LENGTHS.items()}
    return {
        "lengths": _wide(accuracy[accuracy["condition"].isin(lengths)], lengths, _ranged),
        "cuts": _wide(accuracy[accuracy["condition"].isin(CUTS)], {"clean": "nothing cut", **SAID}, _ranged),
        "prev": _wide(known[known["metric"] == "prev"], lengths, _ranged),
        "match": _wide(known[known["metric"] == "match"], lengths, _ranged),
        "guesses": _guesses(),
        "permutations": _permutations(permuted),
        "matrix": order_sinusoids.shown_matrix(),
        "places": order_places.table(places),
        "seeds": _seeds(results),
    }


def figures(results: pd.DataFrame, likeness: pd.DataFrame) -> dict[str, Any]:
    """Accuracy against length, accuracy under each cut, and how alike position vectors are."""
    return {
        "lengths": lines_by_panel(
            lengths(results), x_label="letter–digit pairs (trained on 4)", value_label="accuracy", share=True,
            references={"guess: the most frequent digit": pd.Series({p: task(p).guessing()["mode"] for p in LENGTHS})},
        ),
        "cuts": _cuts(results),
        "likeness": lines_by_panel(
            likeness, x_label="offset between two places", value_label="cosine of their vectors, mean", columns=4
        ),
    }  # fmt: skip


def lengths(results: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by kind (panel), pairs (x) and model seed."""
    by_name = {name: pairs for pairs, name in LENGTHS.items()}
    kept = results[results["condition"].isin(by_name)]
    means = kept.groupby(["model", "condition", "model_seed"], observed=True)["accuracy"].mean().reset_index()
    means["x"] = means["condition"].map(by_name).astype(int)
    means["panel"] = means["model"].astype(str)
    return means.rename(columns={"accuracy": "value"})[["panel", "x", "model_seed", "value"]]


def _cuts(results: pd.DataFrame) -> Any:
    """Accuracy under each of the four cuts in each decoder, every trained model a dot."""
    kept = results[results["model"].isin(DECODERS) & results["condition"].isin(SAID)]
    named = kept["condition"].astype(str) + " · " + kept["model"].astype(str)
    order = [f"{cut} · {kind}" for cut in SAID for kind in DECODERS]
    bare = kept.assign(condition=pd.Categorical(named, order), model=pd.Categorical(["every kind"] * len(kept)))
    whole = summary(bare[["model", "model_seed", "condition", "example", "skipped", "accuracy"]])
    seeds = bare.groupby(["condition", "model_seed"], observed=True)["accuracy"].mean().reset_index(name="value")
    labels = {f"{cut} · {kind}": f"{SAID[cut]}: {kind}" for cut in SAID for kind in DECODERS}
    modes = {"guess: the most frequent digit": task().guessing()["mode"]}
    return accuracy_under_intervention(whole, seeds, modes, order=order, labels=labels)


def _wide(known: pd.DataFrame, names: Mapping[str, str], said: Any) -> pd.DataFrame:
    """A row a kind, a column a condition."""
    rows = []
    for kind in (*DECODERS, *ENCODERS):
        own = known[known["model"] == kind].set_index("condition")
        rows.append({"positions": kind} | {names[name]: said(own.loc[name]) for name in names if name in own.index})
    return pd.DataFrame(rows)


def _ranged(row: pd.Series) -> str:
    ends = f"{percent(row['seed_low'])} to {percent(row['seed_high'])}"
    return f"{percent(row['estimate'])} ({ends})" if row["seed_low"] != row["seed_high"] else percent(row["estimate"])


def _guesses() -> pd.DataFrame:
    said = {"any": "any digit", "seen": "the digit of a random pair", "mode": "the most frequent digit"}
    known = {pairs: task(pairs).guessing() for pairs in LENGTHS}
    rows = [{"guess": said[name], **{f"{p} pairs": percent(known[p][name]) for p in LENGTHS}} for name in said]
    return pd.DataFrame(rows)


def _permutations(permuted: pd.DataFrame) -> pd.DataFrame:
    """The least and the most that anything changed, over models and permutations."""
    rows = []
    for (label, trained), own in permuted.groupby(["model", "trained"], observed=True, sort=False):
        ends = {"least": f"{own['smallest'].min():.2g}", "most": f"{own['largest'].max():.2g}"}
        rows.append({"model": str(label), "trained": "yes" if trained else "no"} | ends)
    return pd.DataFrame(rows)


def _seeds(results: pd.DataFrame) -> pd.DataFrame:
    means = results.groupby(["model", "model_seed", "condition"], observed=True)["accuracy"].mean()
    table = means.unstack().reset_index()
    table.columns = [str(name) for name in table.columns]
    return table.astype({"model": str}).rename(columns={"model": "positions", "clean": "4 pairs"})
