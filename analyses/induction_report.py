"""The report on induction: claims, tables, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analyses.finding import Finding
from analyses.induction import EVERY, ONE, TWO, WATCHED, steps_of, task
from analyses.verdicts import from_claims, from_seeds, joined
from workbench import Claim, Recipe, Study, record, summary
from workbench.checkpoints import Trained
from workbench.figures import accuracy_under_intervention, pattern_grids
from workbench.figures.effects import seed_means
from workbench.figures.panels import lines_by_panel
from workbench.tables import percent

# Set before anything was measured: a model that "solves" the task says 19 answers of 20, "fails" fewer than half;
# what "matters" loses more than half of the answers, what "does not" fewer than 1 in 20; "together" is within 50 steps.
SOLVED, HALF, SPARED, TOGETHER = 0.95, 0.5, 0.05, 50
LABELS = {
    "clean": "two layers, nothing changed",
    "cut-match": "layer 2: cut the edge to the answer",
    "cut-match-control": "layer 2: cut another edge of the same row",
    "cut-previous": "layer 1, first copy: cut the token before",
    "cut-previous-control": "layer 1, first copy: cut another edge of the row",
    "cut-previous-second": "layer 1, second copy: cut the token before",
    "cut-same": "layer 1: cut the edge to the earlier copy",
    "cut-same-control": "layer 1: cut another edge of the same row",
    "zero-0": "layer 1's head removed",
    "zero-0-kept": "layer 1's head removed, layer 2's pattern kept",
    "zero-1": "layer 2's head removed",
    "path-q": "layer 1's head removed for layer 2's queries",
    "path-k": "layer 1's head removed for layer 2's keys",
    "path-v": "layer 1's head removed for layer 2's values",
}


def finding(
    trained: Mapping[str, Sequence[Trained]],
    asked: Mapping[str, Study],
    results: pd.DataFrame,
    training: pd.DataFrame,
    made: Recipe,
    quick: bool,
) -> Finding:
    """All that the report needs, from the models and what was measured."""
    return Finding(
        name="induction",
        quick=quick,
        verdicts=verdicts(results, training),
        tables=tables(results, training),
        figures={
            "accuracy": _accuracy(results),
            "training": _training(training),
            "around-the-drop": _around(training),
            "patterns": _patterns(trained[TWO][0]),
        },
        frames={"results": results, "training": training},
        words={"recipe": made, "n": asked[TWO].n, "seeds": len(trained[TWO]), "floor": training["floor"].iloc[0],
               "watched": WATCHED, "every": EVERY, "guess": task().guessing(), "printed": printed(results, training),
               "length": task().length, "parted": parted(by_seed(results))},
        trained=trained,
        studies=asked,
        tasks={"induction": task()},
    )  # fmt: skip


def verdicts(results: pd.DataFrame, training: pd.DataFrame) -> pd.DataFrame:
    """A row a claim."""
    steps = steps_of(training)
    return joined(
        from_claims(CLAIMS, results),
        from_seeds("together", "prefix matching appears when the loss drops", "steps from the drop to prefix matching",
                   list(steps["prefix"] - steps["drop"]), "within", TOGETHER),
        from_seeds("previous-first", "attention to the token before appears first", "steps from it to prefix matching",
                   list(steps["prefix"] - steps["previous"]), "greater", 0),
    )  # fmt: skip


def _claim(id: str, statement: str, a: str, b: str | None, direction: Any, margin: float, **more: Any) -> Claim:
    known: dict[str, Any] = {"metric": "accuracy", "model": TWO} | more
    return Claim(id=id, statement=statement, a=a, b=b, direction=direction, margin=margin, **known)


CLAIMS = (
    _claim("two-layers", "two layers solve the second copy", "clean", None, "greater", SOLVED),
    _claim("one-layer", "one layer does not", "clean", None, "less", HALF, model=ONE),
    _claim("prefix", "layer 2 matches prefixes: most weight goes to the token after the earlier copy", "clean", None,
           "greater", HALF, metric="prefix"),
    _claim("previous", "layer 1 gives most weight to the token before", "clean", None, "greater", HALF,
           metric="previous-weight"),
    _claim("match-edge", "layer 2's edge to the answer matters, another of its row does not", "cut-match-control",
           "cut-match", "greater", HALF),
    _claim("previous-edge", "layer 1's edges to the token before matter in the first copy, others of their rows do not",
           "cut-previous-control", "cut-previous", "greater", HALF),
    _claim("second-copy", "the same edges do not matter in the second copy", "clean", "cut-previous-second", "within",
           SPARED),
    _claim("head-1", "without layer 1's head the answers are lost", "clean", "zero-0", "greater", HALF),
    _claim("pattern-kept", "with layer 2's pattern kept, layer 1's head can go: it serves the pattern alone", "clean",
           "zero-0-kept", "within", SPARED),
    _claim("head-2", "without layer 2's head the answers are lost", "clean", "zero-1", "greater", HALF),
    _claim("by-keys", "layer 2 reads layer 1's head in its keys", "clean", "path-k", "greater", HALF),
    _claim("not-queries", "and not in its queries", "clean", "path-q", "within", SPARED),
    _claim("not-values", "and not in its values", "clean", "path-v", "within", SPARED),
)  # fmt: skip


def tables(results: pd.DataFrame, training: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables, as numbers: every condition's accuracy and weights, when things happen, and how sure that is."""
    shares = [0.25, 0.5, 0.75]
    moved = pd.concat([steps_of(training, share).assign(share=share) for share in shares], ignore_index=True)
    gaps = moved.assign(lag=moved["prefix"] - moved["drop"], lead=moved["prefix"] - moved["previous"])
    return {
        "accuracy": summary(results),
        "seeds": by_seed(results),
        "steps": steps_of(training),
        "sensitivity": gaps.groupby("share")[["drop", "prefix", "previous", "lag", "lead"]]
        .agg(["mean", "min", "max"])
        .pipe(lambda table: table.set_axis([f"{name} {of}" for name, of in table.columns], axis=1))
        .reset_index(),
    }


def by_seed(results: pd.DataFrame) -> pd.DataFrame:
    """What each two-layer model gives its weight to in layer 1, and what it loses by, a row a model seed."""
    two = results[results["model"] == TWO]
    clean = two[two["condition"] == "clean"].groupby("model_seed")[["previous-weight", "same-0", "prefix"]].mean()
    right = two.pivot_table("accuracy", "model_seed", "condition", observed=True)
    lost = [label for label in LABELS if label.startswith(("cut-previous", "cut-same", "path"))]
    return clean.join(right[["clean", *lost]]).reset_index()


def parted(seeds: pd.DataFrame) -> dict[str, int]:
    """In how many models more than half of the answers are lost without layer 1's head in layer 2's keys, and so on."""
    names = {"queries": "path-q", "keys": "path-k", "values": "path-v"}
    return {name: int((seeds["clean"] - seeds[label] > HALF).sum()) for name, label in names.items()}


def printed(results: pd.DataFrame, training: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What the page shows: accuracy by condition, mean weights, and how the steps change with the share."""
    known = summary(results)
    known["mean"] = known["estimate"].map(percent)
    for name, ends in (("95% interval", ("low", "high")), ("seeds", ("seed_low", "seed_high"))):
        both = zip(*(known[end].map(percent) for end in ends), strict=True)
        known[name] = [f"{low} to {high}" for low, high in both]
    columns = ["mean", "95% interval", "seeds"]
    right = known[known["metric"] == "accuracy"]
    weights = known[(known["metric"] != "accuracy") & known["estimate"].notna()]
    said = [ONE if one.model == ONE else LABELS[str(one.condition)] for one in right.itertuples()]
    wide = tables(results, training)["sensitivity"]
    names = ("drop", "prefix", "previous", "lag", "lead")
    spread = {
        name: [f"{mean:.0f} ({low:.0f} to {high:.0f})" for mean, low, high in
               wide[[f"{name} {of}" for of in ("mean", "min", "max")]].to_numpy()]
        for name in names
    }  # fmt: skip
    return {
        "accuracy": right[columns].assign(condition=said)[["condition", *columns]],
        "weights": weights[["model", "metric", *columns]],
        "seeds": by_seed(results).pipe(
            lambda table: table.assign(**{name: table[name].map(percent) for name in table.columns[1:]})
        ),
        "sensitivity": pd.DataFrame({"share": wide["share"].map(percent)} | spread),
    }


def _accuracy(results: pd.DataFrame) -> Any:
    """Each condition of two layers, and one layer with nothing changed."""
    kept = results.assign(
        condition=[
            ONE if model == ONE else label for model, label in zip(results["model"], results["condition"], strict=True)
        ]
    ).astype({"condition": "category"})
    table, guess = summary(kept), task().guessing()
    order = [label for label in [*LABELS, ONE] if label in set(kept["condition"])]
    return accuracy_under_intervention(
        table[table["metric"] == "accuracy"],
        seed_means(kept, "accuracy").drop(columns="model"),
        {"guess: a token seen once": guess["once"], "guess: by position": guess["position"]},
        order=order,
        labels={**LABELS, ONE: "one layer, nothing changed"},
        interval="mean, 95% interval over models and sequences",
        title="Accuracy on the second copy",
    )


PANELS = {
    "accuracy": "accuracy",
    "prefix": "layer 2: weight on the token after the earlier copy",
    "previous": "layer 1: weight on the token before",
    "same": "layer 1: weight on the earlier copy",
}


def _training(training: pd.DataFrame) -> Any:
    """Accuracy and weights over training."""
    long = training.melt(["model_seed", "step"], list(PANELS), "panel").rename(columns={"step": "x"})
    long["panel"] = long["panel"].map(PANELS)
    return lines_by_panel(
        long, x_label="training step", value_label="share", share=True, columns=4, title="Two layers in training"
    )


def _around(training: pd.DataFrame) -> Any:
    """The loss (of where one layer ends) and the prefix weight (of where it ends) from each model's own drop on."""
    drop = steps_of(training).set_index("model_seed")["drop"]
    own = training.assign(x=training["step"] - training["model_seed"].map(drop))
    own = own[own["x"].abs() <= 2 * TOGETHER]
    long = pd.concat([
        own.assign(panel="loss, of where one layer ends", value=own["loss"] / own["floor"]),
        own.assign(panel="prefix matching: weight in layer 2", value=own["prefix"]),
        own.assign(panel="token before: weight in layer 1", value=own["previous"]),
    ])  # fmt: skip
    return lines_by_panel(
        long[["panel", "x", "model_seed", "value"]], x_label="steps from the drop of the loss", value_label="share",
        columns=3, title="Around the drop",
    )  # fmt: skip


def _patterns(one: Trained) -> Any:
    """Both layers on one sequence: a block of five twice."""
    batch = next(
        sample for sample in (task().sample(1, seed) for seed in range(99)) if int(sample.roles["second"].sum()) == 5
    )
    recording = record(one.model, batch, ["pattern"])
    boxed = {0: "previous", 1: "match"}
    names = {layer: f"layer {layer + 1}" for layer in boxed}
    return pattern_grids(
        {names[layer]: recording["pattern", layer][0, 0] for layer in boxed},
        batch.words(0),
        batch.words(0),
        boxed={names[layer]: _boxed(batch, relation) for layer, relation in boxed.items()},
        visible=one.model.sees(batch, "", 0)[0],
        title=f"One sequence, model seed {one.seed}",
    )


def _boxed(batch: Any, relation: str) -> list[tuple[int, int]]:
    edges = batch.relations[relation][0]
    rows = batch.roles["first" if relation == "previous" else "second"][0]
    return [tuple(edge) for edge in (edges & rows[:, None]).nonzero().tolist()]
