"""The figures of a run: those that its conditions allow, each in three formats, and what is not drawn and why."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures import (
    accuracy_under_intervention,
    contrast_forest,
    dest_source_map,
    dose_curve,
    effects_by_edge,
    effects_by_head,
    figure_files,
    layer_head_map,
    values_by_dose,
    weights_by_role,
)
from workbench.figures.effects import seed_means, there, untouched
from workbench.page_contrasts import Changes
from workbench.page_run import Finished

if TYPE_CHECKING:
    from workbench.figures import Figure

MOST_ROWS = 60
"""Most conditions in one figure that has a row for each; the tables hold them all."""

UNITS = {"loss": "nats", "log_prob": "nats", "kl_to_clean": "nats", "logit_margin": "logits", "rank": "places"}
"""Of metrics that are no shares."""

FEWEST = 4
"""Fewest heads in a map: of fewer, contrasts say as much."""

SHOWN = ("contrasts", "heads", "edges", "dose")
"""Kinds of figure that stand on the page itself; what the others show is on it in another form."""


@dataclass(frozen=True)
class Drawn:
    """A figure: its name, what it shows, and its files by ending."""

    name: str
    caption: str
    files: Mapping[str, bytes]

    @property
    def shown(self) -> bool:
        return self.name.rpartition("-")[0] in SHOWN

    @property
    def address(self) -> str:
        """The figure as SVG in an address of its own, which a page needs no other file for."""
        return "data:image/svg+xml;base64," + b64encode(self.files[f"{self.name}.svg"]).decode()


@dataclass(frozen=True)
class Figures:
    """All figures of a run, and sentences that say what was not drawn."""

    drawn: tuple[Drawn, ...] = ()
    left_out: tuple[str, ...] = field(default=())

    @property
    def files(self) -> dict[str, bytes]:
        return {name: content for one in self.drawn for name, content in one.files.items()}


def figures_of(run: Finished, changes: Changes, guesses: Mapping[str, float]) -> Figures:
    """The figures that the run's conditions allow.

    Always: a metric under each condition where it is accuracy, contrasts, recorded weights. Where several conditions
    do the same to one head after another: a map of layers and heads. Where they cut one edge after another: a map of
    dests and sources. Where they scale one place by several factors: a dose curve. guesses: accuracies by name.
    """
    drawn, left_out, counts = [], [], dict[str, int]()
    for kind, caption, figure in _all(run, changes, guesses):
        if figure is None:
            left_out.append(caption)
            continue
        counts[kind] = counts.get(kind, 0) + 1
        name = f"{kind}-{counts[kind]}"
        drawn.append(Drawn(name, caption, figure_files(name, figure)))
    return Figures(tuple(drawn), tuple(left_out))


Found = Iterator[tuple[str, str, "Figure | None"]]


def _all(run: Finished, changes: Changes, guesses: Mapping[str, float]) -> Found:
    for metric in run.metrics:
        rows = run.summary[(run.summary["metric"] == metric) & (run.summary["run"] > 0)]
        for model in rows["model"].astype(str).unique():
            own = rows[rows["model"] == model]
            if metric == "accuracy":
                yield _accuracy(run, own, model, guesses)
            yield from _contrasts(run, changes, metric, model)
            yield from _effects(run, metric, model)
            yield from _doses(run, own, metric, model, guesses)
    yield from _weights(run)


def _accuracy(run: Finished, rows: pd.DataFrame, model: str, guesses: Mapping[str, float]) -> tuple[str, str, Any]:
    caption = f"Accuracy in each condition, {model}"
    if len(rows) > MOST_ROWS:
        return "accuracy", _too_many(caption, len(rows)), None
    seeds = seed_means(run.frame, "accuracy")
    table = rows.assign(condition=rows["condition"].astype(str))
    known = {f"guess “{name}”": value for name, value in guesses.items()}
    figure = accuracy_under_intervention(
        table, seeds[seeds["model"] == model], known, interval="mean, with its 95% interval", title=_title(run, caption)
    )
    return "accuracy", caption, figure


def _contrasts(run: Finished, changes: Changes, metric: str, model: str) -> Found:
    if metric not in changes.tests:
        return
    found, tests = changes.found, changes.tests[metric]
    table = found[(found["metric"] == metric) & (found["model"] == model)]
    caption = f"Change of {metric} from the clean run, {model}"
    if len(table) > MOST_ROWS:
        yield "contrasts", _too_many(caption, len(table)), None
    elif len(table):
        own = tests[tests["model"] == model]
        figure = contrast_forest(
            table, own, label=_said(metric), share=run.is_share(metric), title=_title(run, caption)
        )
        yield "contrasts", caption, figure


def _effects(run: Finished, metric: str, model: str) -> Found:
    kinds, label = there(run.study), f"change of {_said(metric)}"
    if "head" in kinds:
        for edit, own in _own(effects_by_head(run.study, run.frame, metric), model):
            if len(own[["layer", "head"]].drop_duplicates()) < FEWEST:
                continue
            caption = f"{edit}: change of {metric}, {model}"
            yield "heads", caption, layer_head_map(own, value="effect", label=label, title=_title(run, caption))
    if "edge" in kinds:
        for edit, own in _own(effects_by_edge(run.study, run.frame, metric), model):
            panels = [rows for _, rows in own.groupby(["layer", "head"]) if _square(rows)]
            caption = f"{edit}: change of {metric}, {model}"
            if panels:
                figure = dest_source_map(pd.concat(panels), label=label, title=_title(run, caption))
                yield "edges", caption, figure


def _own(table: pd.DataFrame, model: str) -> Iterator[tuple[str, pd.DataFrame]]:
    for edit, rows in table[table["model"] == model].groupby("edit", sort=False):
        yield str(edit), rows


def _square(rows: pd.DataFrame) -> bool:
    """Whether the edges of a head are most of a grid, and no mere list."""
    dests, sources = rows["dest"].nunique(), rows["source"].nunique()
    edges = len(rows[["dest", "source"]].drop_duplicates())
    return min(dests, sources) > 1 and 2 * edges >= dests * sources


def _doses(run: Finished, rows: pd.DataFrame, metric: str, model: str, guesses: Mapping[str, float]) -> Found:
    if "dose" not in there(run.study):
        return
    values = seed_means(run.frame, metric)
    clean = values[(values["model"] == model) & (values["condition"].isin(untouched(run.study)[:1]))]
    known = guesses if metric == "accuracy" else {}
    table = rows.assign(condition=rows["condition"].astype(str))
    for edit, own in _own(values_by_dose(run.study, run.frame, metric), model):
        caption = f"{edit}: {metric} by the factor, {model}"
        if own["dose"].nunique() < 2:
            continue
        summary = own[["condition", "dose"]].drop_duplicates().merge(table, on="condition")
        figure = dose_curve(
            own, summary, clean=clean if len(clean) else None, value_label=_said(metric), share=run.is_share(metric),
            references={f"guess “{name}”": value for name, value in known.items()},
            interval="mean, with its 95% interval", title=_title(run, caption),
        )  # fmt: skip
        yield "dose", caption, figure


def _weights(run: Finished) -> Found:
    named = run.study.weights
    if any(edges.in_model for edges in named.values()) or not named:
        return
    rows = [
        one | {"weight": one["value"], "layer": edges.layer, "head": "every" if edges.head is None else str(edges.head),
               "dest": edges.dest or "every", "source": edges.source or "every"}
        for name, edges in named.items() if name in run.frame
        for one in seed_means(run.frame, name).to_dict("records")
    ]  # fmt: skip
    if not rows:
        return
    table = pd.DataFrame(rows).drop_duplicates(["model", "model_seed", "layer", "head", "dest", "source"])
    for model, own in table.groupby("model", sort=False):
        caption = f"Mean recorded weights, {model}"
        yield "weights", caption, weights_by_role(own, title=_title(run, caption))


def _said(metric: str) -> str:
    """A metric with its unit, where it has one."""
    return f"{metric} ({UNITS[metric]})" if metric in UNITS else metric


def _title(run: Finished, caption: str) -> str:
    return f"{caption} ({run.study.n} examples)"


def _too_many(caption: str, rows: int) -> str:
    return f"{caption}: {rows} conditions, and a figure holds {MOST_ROWS}; the tables hold all of them"
