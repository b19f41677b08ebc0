"""Measurements over trained models as dot plots: every model seed is a dot, beside what they say together."""

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from workbench.figures.frames import check_rows, check_shares
from workbench.figures.style import ACCENT, BLUE, in_a_row, inches, literal, settled, styled, wrapped
from workbench.tables import percent

DOTS = (0.04, 0.34)  # the band of a row, below its middle, in which the seeds lie
MARK = -0.12  # the mean, above the middle


@styled
def accuracy_under_intervention(
    summary: pd.DataFrame,
    seeds: pd.DataFrame,
    references: Mapping[str, float],
    order: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    interval: str = "mean, with its interval over trained models",
    title: str | None = None,
) -> Figure:
    """Accuracy in each condition: a dot for each trained model, a diamond and bar for their mean and interval.

    summary: columns condition, estimate, low, high (0..1), one row a condition; NaN low and high draw no bar, NaN
    estimate draws "not measured".
    seeds: columns condition, model_seed, value (0..1), one row a condition and trained model; NaN draws no dot.
    references: what a dashed line means → its accuracy, as `Task.guessing()` gives them.
    order: the conditions to draw, from the top; all of the summary's without it.
    labels: condition → what its row says, the condition itself without it.
    interval: what the legend says the bar is.

    Raises ValueError for missing columns, conditions that one of the frames lacks, rows given twice, values outside
    0..1 and an interval that does not hold its estimate.

    >>> summary = pd.DataFrame({"condition": ["clean"], "estimate": [0.9], "low": [0.8], "high": [1.0]})
    >>> seeds = pd.DataFrame({"condition": ["clean", "clean"], "model_seed": [0, 1], "value": [0.85, 0.95]})
    >>> figure = accuracy_under_intervention(summary, seeds, {"guess: any digit": 0.125})
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['clean']
    """
    order = list(summary.get("condition", ())) if order is None else list(order)
    _check_accuracy(summary, seeds, references, order, labels or {})
    rows = [wrapped((labels or {}).get(condition, condition), 3.4, 9) for condition in order]
    per_row = max(0.46, 0.16 * max(row.count("\n") + 1 for row in rows) + 0.1)
    figure = Figure(figsize=(8.8, 1.7 + per_row * len(order)), layout="constrained")
    axes = figure.subplots()
    rows_of(axes, rows)
    offsets = heights_of(seeds["model_seed"])
    by_condition = summary.set_index("condition")
    for row, condition in enumerate(order):
        own = seeds[(seeds["condition"] == condition) & seeds["value"].notna()]
        axes.scatter(own["value"], row + own["model_seed"].map(offsets), **_dot("one trained model"))
        _mean(axes, row, *by_condition.loc[condition, ["estimate", "low", "high"]].astype(float))
    axes.set(xlim=(-0.01, 1.01), xticks=(0, 0.2, 0.4, 0.6, 0.8, 1), xlabel="accuracy")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _reference_lines(axes, references, width=8.8 - 1.6 - max(inches(row, 9) for row in rows))
    measured = by_condition.loc[order, "low"].notna().any()
    _legend(figure, axes, interval if measured else "mean over trained models", bar=measured)
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


@styled
def weights_by_role(
    table: pd.DataFrame, *, layer_names: Sequence[str] | None = None, title: str | None = None, columns: int = 3
) -> Figure:
    """The mean weight of each role ← role or relation, a panel for each layer and head, with every model seed a dot.

    table: columns layer, head (from 0, or "every"), dest, source (names of roles or relations), weight (a mean, 0..1),
    model_seed; one row each. Rows that a head lacks say "not measured"; the diamond is the mean over model seeds.
    layer_names: a name for each layer from 0 on; "layer 0" and so on without it.
    columns: panels in a row of the figure, at most.

    Raises ValueError for missing columns, no rows, rows given twice, weights outside 0..1 and too few layer names.

    >>> table = pd.DataFrame({"layer": 0, "head": 0, "dest": "digits", "source": "previous", "weight": [0.97, 0.99],
    ...                       "model_seed": [0, 1]})
    >>> [label.get_text() for label in weights_by_role(table).axes[0].get_yticklabels()]
    ['digits ← previous']
    """
    _check_weights(table, layer_names)
    edges = list(dict.fromkeys(zip(table["dest"], table["source"], strict=True)))
    panels = list(table.groupby(["layer", "head"], observed=True))
    columns = in_a_row(columns, len(panels))
    height = 1.0 + 0.36 * len(edges)
    figure = Figure(figsize=(2.3 + 2.6 * columns, height * ceil(len(panels) / columns) + 0.4), layout="constrained")
    grid = figure.subplots(ceil(len(panels) / columns), columns, squeeze=False, sharex=True, sharey=True)
    rows = [wrapped(f"{literal(dest)} ← {literal(source)}", 2.4, 9) for dest, source in edges]
    offsets = heights_of(table["model_seed"])
    for axes, ((layer, head), own) in zip(grid.flat, panels, strict=False):
        rows_of(axes, rows)
        name = f"layer {layer}" if layer_names is None else literal(layer_names[int(layer)])
        which = f"head {head}" if str(head).isdecimal() else f"{literal(head)} head"
        axes.set_title(f"{name}, {which}", loc="left", parse_math=False)
        for row, (dest, source) in enumerate(edges):
            cell = own[(own["dest"] == dest) & (own["source"] == source) & own["weight"].notna()]
            axes.scatter(cell["weight"], row + cell["model_seed"].map(offsets), **_dot("one trained model"))
            _mean(axes, row, cell["weight"].mean() if len(cell) else np.nan, np.nan, np.nan, written=False)
        axes.set(xlim=(-0.03, 1.03), xticks=(0, 0.25, 0.5, 0.75, 1), xlabel="mean attention weight")
        axes.xaxis.grid(visible=True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelbottom=True)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    _legend(figure, grid[0, 0], "mean over model seeds", bar=False)
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


def rows_of(axes: Axes, labels: Sequence[str]) -> None:
    """A labelled row for each label, from the top down, with rules between them."""
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for edge in range(1, len(labels)):
        axes.axhline(edge - 0.5, color="0.9", linewidth=0.8, zorder=0)


def heights_of(seeds: pd.Series) -> dict[int, float]:
    """A height for each seed, the same in every row, so that a trained model can be followed down the figure."""
    known = sorted(seeds.unique())
    heights = np.linspace(*DOTS, len(known)) if len(known) > 1 else [float(np.mean(DOTS))]
    return dict(zip(known, heights, strict=True))


def _dot(label: str) -> dict:
    return {"s": 11, "color": BLUE, "alpha": 0.75, "linewidths": 0, "clip_on": False, "label": label, "zorder": 3}


def _mean(axes: Axes, row: int, estimate: float, low: float, high: float, *, written: bool = True) -> None:
    if np.isnan(estimate):
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(0.02, row, "not measured", va="center", fontsize=8, color="0.35", style="italic", bbox=ground)
        return
    text = percent(estimate)
    if not np.isnan(low):
        axes.plot([low, high], [row + MARK] * 2, color="black", linewidth=1.8, label="interval", clip_on=False)
        text += f"  [{percent(low)}, {percent(high)}]"
    axes.plot(
        [estimate], [row + MARK], "D", markersize=6, color=ACCENT, markeredgecolor="black", markeredgewidth=0.8,
        label="mean", clip_on=False, zorder=4,
    )  # fmt: skip
    if written:
        axes.annotate(
            text, (1, row), xytext=(10, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center", fontsize=8, annotation_clip=False,
        )  # fmt: skip


def _reference_lines(axes: Axes, references: Mapping[str, float], width: float) -> None:
    """Dashed lines named above the axes, on as many levels as keep the names and their leaders apart."""
    levels: list[tuple[float, int]] = []
    for name, value in sorted(references.items(), key=lambda item: -item[1]):
        text = f"{literal(name)} {percent(value)}"
        reach = value + (inches(text, 8) + 0.1) / width
        level = max((taken + 1 for start, taken in levels if start < reach), default=0)
        levels.append((value, level))
        axes.axvline(value, color="0.35", linewidth=1, linestyle=(0, (4, 3)), label="reference", zorder=1)
        axes.annotate(
            text, (value, 1), xytext=(3, 4 + 13 * level), xycoords=("data", "axes fraction"),
            textcoords="offset points", va="bottom", fontsize=8, color="0.2", parse_math=False,
            annotation_clip=False,
        )  # fmt: skip
        axes.annotate(
            "", (value, 1), xytext=(0, 14 + 13 * level), xycoords=("data", "axes fraction"),
            textcoords="offset points", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "0.35", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip


def _legend(figure: Figure, axes: Axes, mean: str, *, bar: bool) -> None:
    dot = axes.scatter([], [], **_dot("one trained model"))
    (mark,) = axes.plot([], [], "D", color="black", markerfacecolor=ACCENT, markersize=6, linewidth=1.8)
    mark.set_linestyle("-" if bar else "none")
    figure.legend([dot, mark], ["one trained model", literal(mean)], loc="outside lower center", ncols=2)


def _check_accuracy(
    summary: pd.DataFrame,
    seeds: pd.DataFrame,
    references: Mapping[str, float],
    order: Sequence[str],
    labels: Mapping[str, str],
) -> None:
    check_rows(summary, "summary", ["condition", "estimate", "low", "high"], ["condition"])
    check_rows(seeds, "seeds", ["condition", "model_seed", "value"], ["condition", "model_seed"])
    if not order:
        raise ValueError("there is no condition to draw; give a summary with rows, or name conditions in order")
    for frame, name in ((summary, "summary"), (seeds, "seeds")):
        if missing := [condition for condition in order if condition not in set(frame["condition"])]:
            raise ValueError(f"{name} lacks the conditions {missing}; it has {list(dict.fromkeys(frame['condition']))}")
    if unknown := set(labels) - set(summary["condition"]):
        raise ValueError(f"labels names {sorted(unknown)}, which summary lacks; it has {list(summary['condition'])}")
    for column in ("estimate", "low", "high"):
        check_shares(summary[column], f"summary's {column}")
    check_shares(seeds["value"], "seeds' value")
    check_shares(pd.Series(dict(references), dtype=float), "references")
    outside = (summary["estimate"] < summary["low"] - 1e-9) | (summary["estimate"] > summary["high"] + 1e-9)
    if outside.any():
        raise ValueError(f"summary's estimate lies outside low..high for {list(summary.loc[outside, 'condition'])}")


def _check_weights(table: pd.DataFrame, layer_names: Sequence[str] | None) -> None:
    key = ["layer", "head", "dest", "source", "model_seed"]
    check_rows(table, "table", [*key, "weight"], key)
    check_shares(table["weight"], "table's weight")
    if layer_names is not None and len(layer_names) <= table["layer"].max():
        raise ValueError(f"layer_names has {len(layer_names)} names, and table has layers up to {table['layer'].max()}")
