"""Training curves: every trained model is a line of its own."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from workbench.figures.frames import check_rows, check_shares
from workbench.figures.style import PALETTE, literal, settled, styled


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
    numbers, models = pd.factorize(curves["model"], use_na_sentinel=False)
    numbered = curves.assign(model=numbers).reset_index(drop=True)
    for axes, column in ((losses, "loss"), (accuracies, "accuracy")):
        sns.lineplot(
            numbered, x="step", y=column, hue="model", style="model", units="model_seed",
            estimator=None, palette=PALETTE, linewidth=1.1, alpha=0.75, legend="full", ax=axes,
        )  # fmt: skip
        handles = axes.get_legend().legend_handles
        axes.get_legend().remove()
    for handle in handles:
        handle.set(linewidth=1.6, alpha=1)
    losses.set(xlabel="training step", ylabel="loss (nats)", ylim=(0, None))
    accuracies.set(xlabel="training step", ylabel="accuracy", ylim=(-0.02, 1.02), yticks=(0, 0.2, 0.4, 0.6, 0.8, 1))
    accuracies.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend = figure.legend(handles, [""] * len(models), loc="outside lower center", ncols=min(len(models), 3))
    seeds = numbered.groupby("model")["model_seed"].nunique()
    for text, model, count in zip(legend.get_texts(), models, seeds, strict=True):  # a label may not start with "_"
        text.set_text(f"{literal(model)} ({count} {'seed' if count == 1 else 'seeds'})")
    if title is not None:
        figure.suptitle(literal(title), parse_math=False)
    return settled(figure)


def _check(curves: pd.DataFrame) -> None:
    key = ["model", "model_seed", "step"]
    check_rows(curves, "curves", [*key, "loss", "accuracy"], key)
    if np.isinf(curves[["step", "loss", "accuracy"]].to_numpy(float)).any():
        raise ValueError("curves holds infinite values; give NaN where a step was not measured")
    check_shares(curves["accuracy"], "curves' accuracy")
