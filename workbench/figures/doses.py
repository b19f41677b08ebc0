"""Dose curves: a metric against the factor by which an edge's weight, or a vector, is scaled."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from workbench.figures.frames import check_one_kind, check_rows
from workbench.figures.style import ACCENT, BLUE, heading, literal, settled, styled, wrapped
from workbench.tables import percent

SPAN = 16  # from this ratio of the largest to the smallest dose on, doses are drawn on a logarithmic axis


@styled
def dose_curve(
    seeds: pd.DataFrame,
    summary: pd.DataFrame,
    *,
    clean: pd.DataFrame | None = None,
    value_label: str = "metric",
    dose_label: str = "scaled by a factor of",
    references: Mapping[str, float] | None = None,
    share: bool = False,
    interval: str = "mean, with its interval over trained models",
    title: str | None = None,
) -> Figure:
    """A metric against the dose: a thin line a trained model, a thick one for their mean, with its interval.

    seeds: columns dose (the factor), model_seed, value; one row a dose and trained model (see `values_by_dose`).
    summary: columns dose, estimate, low, high; one row a dose. NaN low and high draw no bar.
    clean: columns model_seed, value: without the intervention, drawn as a level across.
    value_label, dose_label: what the axes say, with the unit. share: whether values are shares, drawn in percent.
    references: what a dashed line means → its value. interval: what the legend says the bar is.

    Doses from which some are above 0 and others 16 times as large are drawn on a logarithmic axis.

    Raises ValueError for missing columns, no rows, rows given twice, several kinds of model or edits (in columns model
    and edit of the frames), values that are not finite, a single dose, doses that only one of the two frames has, and
    an interval that does not hold its estimate.

    >>> seeds = pd.DataFrame({"dose": [0.5, 1.0, 2.0], "model_seed": 0, "value": [0.4, 0.9, 1.0]})
    >>> summary = seeds[["dose"]].assign(estimate=seeds["value"], low=float("nan"), high=float("nan"))
    >>> [label.get_text() for label in dose_curve(seeds, summary).axes[0].get_xticklabels()]
    ['0.5', '1', '2']
    """
    _check(seeds, summary, clean)
    summary = summary.sort_values("dose")
    doses = summary["dose"].to_numpy(float)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for _, own in seeds.groupby("model_seed"):
        own = own.sort_values("dose")
        axes.plot(own["dose"], own["value"], "o-", label="one trained model", **_thin())
    (mean,) = axes.plot(doses, summary["estimate"], "D-", color=ACCENT, linewidth=2.6, markersize=6, label="mean")
    mean.set(markeredgecolor="black", markeredgewidth=0.8, zorder=4)
    bars = summary[summary["low"].notna()]
    axes.vlines(bars["dose"], bars["low"], bars["high"], color="black", linewidth=1.8, label="interval", zorder=3)
    if clean is not None:
        axes.axhline(clean["value"].mean(), color="0.25", linewidth=1.2, linestyle=(0, (5, 3)), label="clean", zorder=1)
    _axes(axes, doses, share=share)
    _references(axes, references or {})
    axes.set_xlabel(wrapped(dose_label, 5.4, 9), parse_math=False)
    axes.set_ylabel(wrapped(value_label, 3.4, 9), parse_math=False)
    _legend(figure, seeds, clean, interval if len(bars) else "mean", share=share)
    heading(axes, title, width=5.6)
    return settled(figure)


def _thin() -> dict:
    return {"color": BLUE, "linewidth": 0.9, "alpha": 0.7, "markersize": 2.6, "markeredgewidth": 0, "zorder": 2}


def _axes(axes: Axes, doses: np.ndarray, *, share: bool) -> None:
    if doses.min() > 0 and doses.max() >= SPAN * doses.min():
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(_apart(axes, doses)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda dose, _: f"{dose:.4g}"))
    if share:
        axes.set(ylim=(-0.02, 1.02), yticks=(0, 0.2, 0.4, 0.6, 0.8, 1))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(visible=True, axis="y", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)


def _references(axes: Axes, references: Mapping[str, float]) -> None:
    """Dotted levels, named at the right of the axes, from the bottom up and far enough apart to be read."""
    for level in references.values():
        axes.axhline(level, color="0.45", linewidth=1, linestyle=(0, (1, 2)), label="reference", zorder=1)
    low, high = axes.get_ylim()
    place = -np.inf
    for name, level in sorted(references.items(), key=lambda item: item[1]):
        place = max(level, place + 0.05 * (high - low))
        axes.annotate(
            literal(name), (1, place), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8, color="0.3", parse_math=False, annotation_clip=False,
        )  # fmt: skip


def _apart(axes: Axes, doses: np.ndarray) -> list[float]:
    """The doses whose labels have room beside each other, the first and the last among them."""
    log = axes.get_xscale() == "log"
    places = np.log(doses) if log else doses
    room = 0.075 * (places.max() - places.min())
    kept = [0]
    for number in range(1, len(doses) - 1):
        if places[number] - places[kept[-1]] >= room and places[-1] - places[number] >= room:
            kept.append(number)
    return [float(doses[number]) for number in [*kept, len(doses) - 1]]


def _legend(figure: Figure, seeds: pd.DataFrame, clean: pd.DataFrame | None, mean: str, *, share: bool) -> None:
    axes, models = figure.axes[0], seeds["model_seed"].nunique()
    (thin,) = axes.plot([], [], "o-", **_thin())
    (thick,) = axes.plot([], [], "D-", color=ACCENT, linewidth=2.6, markersize=6, markeredgecolor="black")
    handles, texts = [thin, thick], [f"one trained model ({models} of them)", literal(mean)]
    if clean is not None:
        (line,) = axes.plot([], [], color="0.25", linewidth=1.2, linestyle=(0, (5, 3)))
        level = clean["value"].mean()
        handles.append(line)
        texts.append(f"without it: {percent(level)}" if share else f"without it: {level:.4g}")
    figure.legend(handles, texts, loc="outside lower center", ncols=len(handles), fontsize=8)


def _check(seeds: pd.DataFrame, summary: pd.DataFrame, clean: pd.DataFrame | None) -> None:
    check_one_kind({"seeds": seeds, "summary": summary} | ({} if clean is None else {"clean": clean}))
    check_rows(seeds, "seeds", ["dose", "model_seed", "value"], ["dose", "model_seed"])
    check_rows(summary, "summary", ["dose", "estimate", "low", "high"], ["dose"])
    if clean is not None:
        check_rows(clean, "clean", ["model_seed", "value"], ["model_seed"])
    for frame, columns in ((seeds, ["dose", "value"]), (summary, ["dose", "estimate"]), (clean, ["value"])):
        if frame is not None and not np.isfinite(frame[columns].to_numpy(float)).all():
            raise ValueError(f"one of the columns {columns} is NaN or infinite; leave out what was not measured")
    one, other = set(seeds["dose"]), set(summary["dose"])
    if one != other:
        raise ValueError(f"the doses {sorted(one ^ other)} are in one of seeds and summary only; give both the same")
    if len(one) < 2:
        raise ValueError(f"a curve needs two doses or more, and there is {sorted(one)}; scale by several factors")
    outside = (summary["estimate"] < summary["low"] - 1e-9) | (summary["estimate"] > summary["high"] + 1e-9)
    if outside.any():
        raise ValueError(f"summary's estimate lies outside low..high at the doses {list(summary.loc[outside, 'dose'])}")
