"""Training curves: every trained model is a line of its own."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from workbench.figures.frames import check_rows, check_shares
from workbench.figures.style import COLOURS, LINES, literal, settled, styled


@styled
def training_curves(curves: pd.DataFrame, *, title: str | None = None) -> Figure:
    """Loss and accuracy over training, one line for each trained model.

    curves: columns model, model_seed, step, loss (nats), accuracy (0..1); one row a trained model and step. NaN means
    not measured at that step: the line joins the steps that were. Kinds of model differ in colour and in line style.

    Raises ValueError for a missing column, no rows, infinite values, a step given twice and accuracy outside 0..1.

    >>> curves = pd.DataFrame({"model": "a", "model_seed": 0, "step": [0, 1], "loss": [2.1, 0.4], "accuracy": [0, 1]})
    >>> [axes.get_ylabel() for axes in training_curves(curves).axes]
    ['loss (nats)', 'accuracy']
    """
    _check(curves)
    figure = Figure(figsize=(7.6, 3.3), layout="constrained")
    losses, accuracies = figure.subplots(1, 2)
    handles, names = [], []
    for number, (model, of_model) in enumerate(curves.groupby("model", observed=True, sort=False)):
        look: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": LINES[number % len(LINES)],
        }
        seeds = [rows.sort_values("step") for _, rows in of_model.groupby("model_seed")]
        for rows in seeds:
            _line(losses, rows, "loss", look)
            _line(accuracies, rows, "accuracy", look)
        handles.append(Line2D([], [], linewidth=1.6, **look))
        names.append(f"{literal(model)} ({len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'})")
    losses.set(xlabel="training step", ylabel="loss (nats)", ylim=(0, None))
    accuracies.set(xlabel="training step", ylabel="accuracy", ylim=(-0.02, 1.02), yticks=(0, 0.2, 0.4, 0.6, 0.8, 1))
    accuracies.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend = figure.legend(handles, [""] * len(handles), loc="outside lower center", ncols=min(len(handles), 3))
    for text, name in zip(legend.get_texts(), names, strict=True):  # a label given to legend() may not start with "_"
        text.set_text(name)
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


def _line(axes: Axes, rows: pd.DataFrame, column: str, look: dict[str, Any]) -> None:
    measured = rows[rows[column].notna()]
    axes.plot(measured["step"], measured[column], linewidth=1.1, alpha=0.75, **look)


def _check(curves: pd.DataFrame) -> None:
    key = ["model", "model_seed", "step"]
    check_rows(curves, "curves", [*key, "loss", "accuracy"], key)
    if np.isinf(curves[["step", "loss", "accuracy"]].to_numpy(float)).any():
        raise ValueError("curves holds infinite values; give NaN where a step was not measured")
    check_shares(curves["accuracy"], "curves' accuracy")
