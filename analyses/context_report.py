"""The report of `context`: its tables, its figures, and what its page says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analyses.context import DECODER, ENCODER, KINDS, LAYERS
from analyses.context_claims import verdicts
from analyses.context_measure import ROLES, Measured, kinds_of
from analyses.finding import Finding
from workbench import contrast, summary
from workbench.figures import accuracy_under_intervention, weights_by_role
from workbench.figures.panels import lines_by_panel
from workbench.tables import percent

if TYPE_CHECKING:
    from workbench import Recipe
    from workbench.figures import Figure

PRONOUN = {
    "clean": "nothing cut",
    "cut-last-referent": "last token: cut the noun meant, every layer",
    "cut-last-nearest": "last token: cut the nearest other noun, every layer",
    **{f"cut-last-{source}-{layer}": f"last token, layer {layer + 1}: cut {said}"
       for layer in range(LAYERS["pronoun"])
       for source, said in {"referent": "the noun meant", "nearest": "the nearest other noun"}.items()},
    "cut-it-referent": "it: cut the noun meant, every layer",
    "cut-it-nearest": "it: cut the nearest other noun, every layer",
    "hide-referent": "every row: cut the noun meant, every layer",
    "hide-nearest": "every row: cut the nearest other noun, every layer",
}  # fmt: skip
MASKED = {
    "clean": "nothing cut",
    **{f"cut-{side}": f"the mask's row: cut all on its {side}" for side in ("right", "left")},
    **{f"cut-{side}-{layer}": f"the mask's row, layer {layer + 1} alone: cut all on its {side}"
       for side in ("right", "left") for layer in range(LAYERS["masked"])},
    **{f"cut-near-{side}": f"the mask's row: cut equally many on its {side}" for side in ("right", "left")},
    **{f"all-{side}": f"every row: cut all on its {side}" for side in ("right", "left")},
    "cut-told": "the mask's row: cut the noun that tells it",
    "cut-other": "the mask's row: cut a noun of another clause",
}  # fmt: skip
WORDS = {
    "it": "it (left)", "nouns": "a noun (left)", "verb": "the verb (differs)", "last": "last token (right)",
    "mask before": "a mask (left)", "words before": "other words (left)", "clue": "the clues (differ)",
    "mask after": "a mask (right)",
}  # fmt: skip
"""Roles, and where they stand from what differs."""


def finding(found: Measured, recipe: Recipe, quick: bool) -> Finding:
    """Everything that is written."""
    return Finding(
        name="context",
        quick=quick,
        verdicts=verdicts(found),
        tables=tables(found.apart, found.pronoun, found.masked),
        figures=figures(found),
        frames={"apart": found.apart, "pronoun": found.pronoun, "masked": found.masked},
        words={
            "recipe": recipe,
            "sizes": found.sizes,
            "blind": 1 / found.tasks["masked"].kinds,
            "seen": found.tasks["pronoun"].guessing()["seen"],
            "verb": found.tasks["pronoun"].guessing()["verb"],
            "layers": LAYERS,
            **_figures_of_text(found),
        },
        trained={f"{task}, {kind}": several for task, of in found.trained.items() for kind, several in of.items()},
        studies=found.studies,
        tasks=found.tasks,
    )


def _figures_of_text(found: Measured) -> dict[str, Any]:
    """Functions with which the page's sentences take their figures from what was measured."""
    means = pd.concat([summary(found.pronoun), summary(found.masked)]).set_index(["model", "condition", "metric"])

    def value(model: str, condition: str) -> str:
        return percent(means.loc[(model, condition, "accuracy"), "estimate"])

    def spread(model: str, condition: str) -> str:
        return _range(*means.loc[(model, condition, "accuracy"), ["seed_low", "seed_high"]])

    def weight(model: str, name: str) -> str:
        return f"{means.loc[(model, 'clean', name), 'estimate']:.3f}"

    def distance(task: str, kind: str, role: str, stage: int) -> str:
        table = found.apart.set_index(["task", "kind", "role", "stage"]).sort_index()
        return f"{table.loc[(task, kind, role, stage), 'distance'].mean():.2f}"

    return {"value": value, "spread": spread, "weight": weight, "distance": distance}


def tables(apart: pd.DataFrame, pronoun: pd.DataFrame, masked: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Every table, by name, from what is beside the page as Parquet."""
    return {
        "distances": distances(apart),
        "answers": pd.concat([accuracy(pronoun, kind, PRONOUN) for kind in KINDS], ignore_index=True),
        "masks": pd.concat([accuracy(masked, kind, MASKED) for kind in _there(masked)], ignore_index=True),
        "weights": pd.concat([weights(pronoun, kind) for kind in KINDS], ignore_index=True),
    }


def distances(apart: pd.DataFrame) -> pd.DataFrame:
    """A row a task, kind and role: the distance at each stage, mean over models, and the largest difference of all."""
    rows = []
    for task, roles in ROLES.items():
        for kind in KINDS:
            for role in roles:
                own = apart[(apart["task"] == task) & (apart["kind"] == kind) & (apart["role"] == role)]
                means = own.groupby("stage")[["distance", "cosine"]].mean()
                last = own[own["stage"] == own["stage"].max()]
                rows.append({
                    "task": task, "model": kind, "position": WORDS[role],
                    **{("embedding" if stage == 0 else f"layer {stage}"): round(float(value), 3) + 0.0
                       for stage, value in means["distance"].items()},
                    "1 − cosine, last layer": round(float(means["cosine"].iloc[-1]), 3) + 0.0,
                    "seeds, last layer": f"{last['distance'].min():.3f} to {last['distance'].max():.3f}",
                    "largest difference of a number": float(own["largest"].max()),
                })  # fmt: skip
    table = pd.DataFrame(rows)
    layers = [f"layer {layer + 1}" for layer in range(max(LAYERS.values()))]
    return table[["task", "model", "position", "embedding", *layers, *table.columns.drop(
        ["task", "model", "position", "embedding", *layers])]]  # fmt: skip


def accuracy(frame: pd.DataFrame, model: str, labels: dict[str, str]) -> pd.DataFrame:
    """A row a condition of one kind of model: its accuracy, and what it lost, paired with nothing cut."""
    means = summary(frame[frame["model"] == model]).query("metric == 'accuracy'").set_index("condition")
    rows = []
    for condition, said in labels.items():
        if condition not in means.index:
            continue
        own = means.loc[condition]
        lost = None if condition == "clean" else contrast(frame, "clean", condition, "accuracy", model).iloc[0]
        rows.append({
            "model": model, "what": said, "accuracy": percent(own["estimate"]),
            "95% interval": _range(own["low"], own["high"]), "seeds": _range(own["seed_low"], own["seed_high"]),
            "lost": "" if lost is None else percent(lost["estimate"]),
            "lost, 95% interval": "" if lost is None else _range(lost["low"], lost["high"]),
        })  # fmt: skip
    return pd.DataFrame(rows)


def weights(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    """A row a layer and pair of roles: the mean weight on one source."""
    table = _by_role(frame, kind)
    grouped = table.groupby(["layer", "dest", "source"], sort=False)["weight"]
    rows = []
    for (layer, dest, source), values in grouped:
        rows.append(
            {
                "model": kind,
                "layer": layer + 1,
                "row": dest,
                "source": SAID[source],
                "weight": round(float(values.mean()), 4),
                "seeds": f"{values.min():.3f} to {values.max():.3f}",
            }
        )
    return pd.DataFrame(rows)


SAID = {"referent": "the noun meant", "nearest": "the nearest other noun", "distractors": "another noun",
        "verb": "the verb", "it": "it"}  # fmt: skip


def figures(found: Measured) -> dict[str, Figure]:
    """Every figure, by name."""
    out = {f"apart-{task}": _lines(found.apart, task) for task in ROLES}
    known = found.tasks["pronoun"].guessing()
    guess = {"guess: a noun of the sentence": known["seen"], "guess: a noun that the verb fits": known["verb"]}
    for kind in KINDS:
        out[f"pronoun-{kind}"] = _dots(found.pronoun, kind, PRONOUN, guess, f"Which noun is meant: {kind}")
        out[f"weights-{kind}"] = weights_by_role(
            _by_role(found.pronoun, kind), layer_names=[f"layer {n + 1}" for n in range(LAYERS["pronoun"])],
            title=f"Weights of the last token and of it: {kind}",
        )  # fmt: skip
    blind = {"guess: a word of the right form": 1 / found.tasks["masked"].kinds}
    for kind in kinds_of(found):
        name = "masked-" + kind.replace(", told by the ", "-")
        out[name] = _dots(found.masked, kind, MASKED, blind, f"Masked words: {kind}")
    return out


def _lines(apart: pd.DataFrame, task: str) -> Figure:
    own = apart[apart["task"] == task]
    panels = [
        own[(own["kind"] == kind) & (own["role"] == role)].assign(panel=f"{kind}: {WORDS[role]}")
        for kind in (DECODER, ENCODER)
        for role in ROLES[task]
    ]
    table = pd.concat(panels, ignore_index=True).rename(columns={"stage": "x", "distance": "value"})
    return lines_by_panel(
        table[["panel", "x", "model_seed", "value"]], x_label="layer (0: embedding)", value_label="relative distance",
        title=f"One position in a sentence and in its counterfactual ({task})",
    )  # fmt: skip


def _dots(frame: pd.DataFrame, model: str, labels: dict[str, str], guess: dict[str, float], title: str) -> Figure:
    own = frame[frame["model"] == model]
    means = summary(own).query("metric == 'accuracy'")
    there = set(means["condition"])
    seeds = own.groupby(["model_seed", "condition"], observed=True)["accuracy"].mean().rename("value").reset_index()
    shown = {label: said for label, said in labels.items() if label in there}
    return accuracy_under_intervention(means, seeds, guess, list(shown), shown, title=title)


def _by_role(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    clean = frame[(frame["model"] == kind) & (frame["condition"] == "clean")]
    named = [name for name in frame.columns if name.rsplit("-", 1)[-1].isdecimal()]
    rows: list[dict[str, Any]] = []
    for name in named:
        dest, source, layer = name.split("-")
        for seed, value in clean.groupby("model_seed")[name].mean().items():
            rows.append({"layer": int(layer), "head": 0, "dest": dest, "source": source, "weight": value,
                         "model_seed": seed})  # fmt: skip
    return pd.DataFrame(rows)


def _there(masked: pd.DataFrame) -> list[str]:
    kinds = list(dict.fromkeys(masked["model"].astype(str)))
    return sorted(kinds, key=lambda kind: (not kind.startswith(ENCODER), "left" in kind))


def _range(low: float, high: float) -> str:
    return "none" if pd.isna(low) else f"{percent(low)} to {percent(high)}"
