"""Figures that several test files draw, the frames they are drawn from, and what is read off a figure."""

from hashlib import sha256

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from workbench import figures

TOKENS = list("c5a2f7b0a")
CAUSAL = np.tril(np.ones((9, 9), bool))


def lookup(dest: int, source: int) -> np.ndarray:
    """A causal pattern that is uniform but for one row, which gives one source 0.97."""
    weights = CAUSAL / CAUSAL.sum(1, keepdims=True)
    weights[dest] = np.where(CAUSAL[dest], 0.03 / dest, 0.0)
    weights[dest, source] = 0.97
    return weights


def labelled(figure: Figure, label: str, axes: int = 0) -> list:
    return [artist for artist in figure.axes[axes].get_children() if artist.get_label() == label]


def texts(figure: Figure) -> str:
    found = figure.findobj(matplotlib.text.Text)
    return " ".join(text.get_text().replace("\n", " ") for text in found)


def tick_labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def summary_and_seeds() -> tuple[pd.DataFrame, pd.DataFrame]:
    means = {"clean": 1.0, "cut-answer": 0.13, "cut-hidden": 0.36}
    seeds = pd.DataFrame(
        [(c, s, min(m + 0.004 * s, 1.0)) for c, m in means.items() for s in range(10)],
        columns=["condition", "model_seed", "value"],
    )
    grouped = seeds.groupby("condition", sort=False)["value"]
    return pd.DataFrame({"estimate": grouped.mean(), "low": grouped.min(), "high": grouped.max()}).reset_index(), seeds


def training() -> pd.DataFrame:
    return pd.DataFrame(
        [
            (model, seed, step, 2.0 / (1 + step), step / 4)
            for model, seeds in (("two layers", 3), ("_one $layer$", 2))
            for seed in range(seeds)
            for step in range(4)
        ],
        columns=["model", "model_seed", "step", "loss", "accuracy"],
    )


def weights() -> pd.DataFrame:
    return pd.DataFrame(
        [(0, h, d, s, 0.9 - 0.01 * seed, seed) for h in (0, 1) for d, s in (("digits", "previous"), ("last", "answer"))
         for seed in range(10)],
        columns=["layer", "head", "dest", "source", "weight", "model_seed"],
    )  # fmt: skip


def every_figure() -> dict[str, Figure]:
    return {
        "grid": figures.pattern_grid(lookup(3, 2), TOKENS, TOKENS, visible=CAUSAL, boxed=[(3, 2)], title="layer 1"),
        "grids": figures.pattern_grids({"a": lookup(3, 2), "b": lookup(8, 3)}, TOKENS, TOKENS, visible=CAUSAL),
        "route": figures.route(TOKENS, [[(3, 2, "carries a")], [(8, 3, "2")]]),
        "accuracy": figures.accuracy_under_intervention(*summary_and_seeds(), {"guess: any digit": 0.125}),
        "curves": figures.training_curves(training()),
        "weights": figures.weights_by_role(weights()),
    }


def coarse_png(figure: Figure) -> bytes:
    return figures.to_png(figure, dpi=40)


def digests(drawn: dict[str, Figure]) -> dict[str, str]:
    """A hash of each figure as SVG and PNG, and of two as PDF, by file name."""
    exports = {f"{name}.svg": figures.to_svg(figure) for name, figure in drawn.items()}
    exports |= {f"{name}.png": coarse_png(figure) for name, figure in drawn.items()}
    exports |= {f"{name}.pdf": figures.to_pdf(drawn[name]) for name in ("route", "curves")}
    return {name: sha256(exported).hexdigest() for name, exported in exports.items()}
