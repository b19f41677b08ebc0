"""The report of `patches`: its tables, its figures, and what its page says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from einops import rearrange

from analyses.finding import Finding
from analyses.patches import LAYERS, PLACED, ROLES
from analyses.patches_claims import LARGE, MUCH, NONE, SMALL, corners, of_large, of_small, rank_correlations, verdicts
from analyses.patches_measure import KINDS, Measured
from workbench import contrast, summary
from workbench.figures import accuracy_under_intervention, weights_by_role
from workbench.figures.corners import effects_of_edges
from workbench.figures.images import maps_beside_images
from workbench.tables import percent

if TYPE_CHECKING:
    from workbench import Recipe
    from workbench.figures import Figure

LABELS = {
    "clean": "nothing cut",
    **{
        label: said.format(layer + 1)
        for layer in range(LAYERS)
        for label, said in {
            f"no-update-{layer}": "layer {}: no attention update",
            f"uniform-{layer}": "layer {}: even weights",
            f"cut-most-{layer}": "layer {}: cut its largest patch",
            f"cut-like-{layer}": "layer {}: cut the patch most like that in ink",
            f"cut-inked-{layer}": "layer {}: cut the patches with most ink",
            f"cut-pale-{layer}": "layer {}: cut as many with least ink",
        }.items()
    },
    "no-update": "both layers: no attention update",
    "uniform": "both layers: even weights",
    "cut-inked": "both layers: cut the patches with most ink",
    "cut-pale": "both layers: cut as many with least ink",
    "hide-inked": "hide the patches with most ink from every row",
    "hide-pale": "hide as many with least ink from every row",
}
"""What each condition says in tables and figures; where no other row is named, it is the class token's."""
PAIRS = {"cut in layer 1": ("weight-0", "cut-0"), "cut in layer 2": ("weight-1", "cut-1"),
         "hidden from every row": ("weight-1", "hide")}  # fmt: skip
"""What is done to single patches, and the weight beside which it is set."""
DRAWN = 5
"""Images drawn with their maps: the first of as many classes."""


def finding(found: Mapping[str, Measured], recipe: Recipe, quick: bool) -> Finding:
    """Everything that is written."""
    first = next(iter(found.values()))
    frames = {f"results-{source}": one.frame for source, one in found.items()}
    frames |= {f"places-{source}": one.places for source, one in found.items()}
    frames |= {f"edges-{source}": one.edges for source, one in found.items()}
    return Finding(
        name="patches",
        quick=quick,
        verdicts=verdicts(found),
        tables=tables(found),
        figures=figures(found),
        frames=frames,
        words={"recipe": recipe, "sources": {source: _words(one) for source, one in found.items()},
               "bounds": {"small": SMALL, "large": LARGE, "none": NONE, "much": MUCH},
               "n_seeds": len(first.trained[PLACED]), **_figures_of_text(found)},
        trained={f"{source}, {kind}": one.trained[kind] for source, one in found.items() for kind in one.trained},
        studies={source: one.study for source, one in found.items()},
        tasks={source: one.task for source, one in found.items()},
    )  # fmt: skip


def _figures_of_text(found: Mapping[str, Measured]) -> dict[str, Any]:
    """Functions with which the page's sentences take their figures from what was measured."""
    means = {source: summary(one.frame).set_index(["condition", "metric"]) for source, one in found.items()}
    kinds = {source: summary(one.places).set_index("model") for source, one in found.items()}

    def value(source: str, condition: str) -> str:
        return percent(means[source].loc[(condition, "accuracy"), "estimate"])

    def spread(source: str, condition: str) -> str:
        return _range(*means[source].loc[(condition, "accuracy"), ["seed_low", "seed_high"]])

    def weight(source: str, name: str) -> str:
        return f"{means[source].loc[('clean', name), 'estimate']:.3f}"

    def kind(source: str, name: str) -> str:
        return percent(kinds[source].loc[name, "estimate"])

    def order(source: str, weight: str, effect: str) -> str:
        return f"{_mean(rank_correlations(found[source].edges, weight, effect)):.2f}"

    def idle(source: str, weight: str, effect: str) -> str:
        return percent(_mean(of_large(found[source].edges, weight, effect)))

    def hidden(source: str, weight: str, effect: str) -> str:
        return percent(_mean(of_small(found[source].edges, weight, effect)))

    return {"value": value, "spread": spread, "weight": weight, "kind": kind, "order": order, "idle": idle,
            "hidden": hidden}  # fmt: skip


def tables(found: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Every table, by name: from the results frames alone, so that they can be made again from the files."""
    out = {}
    for source, one in found.items():
        out[f"accuracy-{source}"] = accuracy(one.frame)
        out[f"positions-{source}"] = positions(one.places)
    out["weights"] = pd.concat([weights(source, one.frame) for source, one in found.items()], ignore_index=True)
    out["edges"] = pd.concat([edges(source, one.edges) for source, one in found.items()], ignore_index=True)
    return out


def accuracy(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a condition: its accuracy, and what it lost, paired with nothing cut."""
    means = summary(frame).query("metric == 'accuracy'").set_index("condition")
    rows = []
    for condition, said in LABELS.items():
        lost = None if condition == "clean" else contrast(frame, "clean", condition, "accuracy", PLACED).iloc[0]
        own = means.loc[condition]
        rows.append({
            "condition": condition, "what": said, "accuracy": percent(own["estimate"]),
            "95% interval": _range(own["low"], own["high"]), "seeds": _range(own["seed_low"], own["seed_high"]),
            "lost": "" if lost is None else percent(lost["estimate"]),
            "lost, 95% interval": "" if lost is None else _range(lost["low"], lost["high"]),
        })  # fmt: skip
    return pd.DataFrame(rows)


def positions(places: pd.DataFrame) -> pd.DataFrame:
    """A row a kind of model: its accuracy."""
    means = summary(places).query("metric == 'accuracy'").set_index("model")
    return pd.DataFrame([
        {"model": kind, "accuracy": percent(means.loc[kind, "estimate"]),
         "95% interval": _range(*means.loc[kind, ["low", "high"]]),
         "seeds": _range(*means.loc[kind, ["seed_low", "seed_high"]])}
        for kind in KINDS
    ])  # fmt: skip


def weights(source: str, frame: pd.DataFrame) -> pd.DataFrame:
    """A row a layer and role: the class token's mean weight on one such source, with its interval."""
    means = summary(frame).set_index("metric")
    return pd.DataFrame([
        {"images": source, "layer": layer + 1, "class token ←": said, "weight": round(float(own["estimate"]), 4),
         "95% interval": f"{own['low']:.3f} to {own['high']:.3f}",
         "seeds": f"{own['seed_low']:.3f} to {own['seed_high']:.3f}"}
        for layer in range(LAYERS)
        for role, said in {**dict(zip(ROLES, SAID, strict=True)), "most": "its largest patch",
                           "like": "the patch most like that in ink"}.items()
        for own in [means.loc[f"{role}-{layer}"]]
    ])  # fmt: skip


SAID = ("a patch with ink", "a blank patch", "a patch of the centre", "a patch of the border", "itself")


def edges(source: str, frame: pd.DataFrame) -> pd.DataFrame:
    """A row a thing done to single patches: how its effect goes with the weight, and what lies in the two corners."""
    rows = []
    for what, (weight, effect) in PAIRS.items():
        idle, hidden = corners(frame, weight, effect)
        rows.append({
            "images": source, "each patch is": what, "weight of": f"layer {int(weight[-1]) + 1}",
            "rank correlation": round(_mean(rank_correlations(frame, weight, effect)), 3),
            "large weight, no effect": percent(idle), "small weight, large effect": percent(hidden),
            "of large weights, no effect": percent(_mean(of_large(frame, weight, effect))),
            "of small weights, large effect": percent(_mean(of_small(frame, weight, effect))),
            "edges": len(frame),
        })  # fmt: skip
    return pd.DataFrame(rows)


def figures(found: Mapping[str, Measured]) -> dict[str, Figure]:
    """Every figure, by name."""
    out = {}
    for source, one in found.items():
        guess = {"guess: the commonest class": one.task.guessing()["majority"]}
        out[f"accuracy-{source}"] = _dots(one.frame, "condition", LABELS, guess, f"The class token's row ({source})")
        kinds = {kind: kind for kind in KINDS}
        out[f"positions-{source}"] = _dots(one.places, "model", kinds, guess, f"Positions removed ({source})")
        out[f"weights-{source}"] = weights_by_role(
            _by_role(one.frame), layer_names=("layer 1", "layer 2"), title=f"Weight on one source ({source})"
        )
        out[f"edges-{source}"] = effects_of_edges(
            one.edges, {f"{what} (weight: layer {int(pair[0][-1]) + 1})": pair for what, pair in PAIRS.items()},
            weights=(SMALL, LARGE), effects=(NONE, MUCH), weight_label="class token's weight on a patch",
            effect_label="change of the prediction", title=f"Single patches ({source})",
        )  # fmt: skip
        out[f"maps-{source}"] = _maps(source, one)
    return out


def _dots(frame: pd.DataFrame, by: str, labels: Mapping[str, str], guess: Mapping[str, float], title: str) -> Figure:
    means = summary(frame).query("metric == 'accuracy'")
    keys = ["model", "model_seed", "condition"]
    seeds = frame.groupby(keys, observed=True)["accuracy"].mean().rename("value").reset_index()
    if by == "model":
        means, seeds = (one.drop(columns="condition").rename(columns={"model": "condition"}) for one in (means, seeds))
    return accuracy_under_intervention(means, seeds, guess, list(labels), labels, title=title)


def _by_role(frame: pd.DataFrame) -> pd.DataFrame:
    clean = frame[frame["condition"] == "clean"]
    rows = []
    for layer in range(LAYERS):
        for role in ROLES:
            for seed, value in clean.groupby("model_seed")[f"{role}-{layer}"].mean().items():
                rows.append({"layer": layer, "head": 0, "dest": "class", "source": role, "weight": value,
                             "model_seed": seed})  # fmt: skip
    return pd.DataFrame(rows)


def _maps(source: str, one: Measured) -> Figure:
    """The first image of each of the first classes, in the first trained model."""
    classes = one.batch.labels[: one.edges["image"].max() + 1, 0].tolist()
    images = [classes.index(kind) for kind in sorted(set(classes))[:DRAWN]]
    side = one.task.per_side
    first = one.edges[one.edges["model_seed"] == one.edges["model_seed"].min()].set_index("image")
    columns = {"weight, layer 1": "weight-0", "weight, layer 2": "weight-1", "effect: cut in layer 2": "cut-1",
               "effect: hidden from every row": "hide"}  # fmt: skip
    maps = {
        said: rearrange(first.loc[images, name].to_numpy(), "(image y x) -> image y x", y=side, x=side)
        for said, name in columns.items()
    }
    names = [one.task.vocabulary[classes[image]] for image in images]
    return maps_beside_images(one.task.pixels(one.batch)[images], maps, names=names, title=f"Single images ({source})")


def _words(one: Measured) -> dict[str, Any]:
    ink = one.batch.roles["inked"].sum(1).double()
    return {"n": len(one.batch), "mapped": int(one.edges["image"].max()) + 1, "patch": one.task.patch,
            "majority": one.task.guessing()["majority"], "halves": float(ink.mean())}  # fmt: skip


def _range(low: float, high: float) -> str:
    return "none" if pd.isna(low) else f"{percent(low)} to {percent(high)}"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
