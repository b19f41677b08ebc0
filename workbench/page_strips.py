"""A metric under each condition as strips: every trained model a dot, their mean and interval above them.

Places along a strip are percentages of its width, so that the drawing narrows to a phone and its text does not.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from workbench.page_run import Finished
from workbench.page_tables import Say, said_by

LINE, BAND = 16, 30  # pixels of a line of text, and of the band that holds the dots
LONGEST = 26  # characters of a label on one line, beside the numbers on the narrowest screen


@dataclass(frozen=True)
class Strip:
    """One condition: its label in lines, what it says, where it starts, and its marks in percent of the width."""

    label: str
    lines: tuple[str, ...]
    said: str
    top: int
    band: int
    dots: tuple[tuple[str, float, int], ...]  # (place, height, model seed)
    mean: str | None
    span: tuple[str, str] | None


@dataclass(frozen=True)
class Plot:
    """A kind of model and a metric. ticks, references: (place, text)."""

    title: str
    about: str
    strips: tuple[Strip, ...]
    ticks: tuple[tuple[str, str], ...]
    references: tuple[tuple[str, str], ...]
    bottom: int
    height: int


def plots(run: Finished, guesses: Mapping[str, float]) -> list[Plot]:
    """A plot for each metric and kind of model that has it. guesses: accuracies to draw a dashed line at, by name."""
    table, ran = run.summary, run.frame[run.frame["skipped"].isna()]
    keys = ["model", "condition", "model_seed"]
    out = []
    for metric in run.metrics:
        seeds = ran.groupby(keys, observed=True)[metric].mean().dropna().rename("value").reset_index()
        for model, rows in table[table["metric"] == metric].groupby("model", observed=True, sort=False):
            known = guesses if metric == "accuracy" else {}
            own = seeds[seeds["model"] == model]
            if len(own):
                out.append(_plot(f"{metric}, {model}", rows, own, said_by(run, metric), run.is_share(metric), known))
    return out


def _plot(
    title: str, rows: pd.DataFrame, seeds: pd.DataFrame, say: Say, share: bool, guesses: Mapping[str, float]
) -> Plot:
    low, high = (0.0, 1.0) if share else _ends(rows, seeds)

    def place(value: float) -> str:
        return f"{100 * min(max((value - low) / (high - low), 0.0), 1.0):.2f}%"

    known = sorted(seeds["model_seed"].unique())
    heights = {seed: 12 + 15 * i / max(len(known) - 1, 1) for i, seed in enumerate(known)}
    strips, top = [], 0
    for row in rows.to_dict("records"):
        own = seeds[seeds["condition"] == row["condition"]]
        lines = tuple(textwrap.wrap(row["condition"], LONGEST)) or (row["condition"],)
        band = top + LINE * len(lines) + 4
        pairs = zip(own["value"], own["model_seed"], strict=True)
        dots = tuple((place(value), round(band + heights[seed], 1), seed) for value, seed in pairs)
        spanned, there = not pd.isna(row["low"]), not pd.isna(row["estimate"])
        span = (place(row["low"]), place(row["high"])) if spanned else None
        said = _value(row, say) if there else "not measured"
        strips.append(
            Strip(
                row["condition"], lines, said, top, band, dots, place(row["estimate"]) if there else None, span
            )
        )  # fmt: skip
        top = band + BAND + 8
    ticks = [low + (high - low) * i / 4 for i in range(5)]
    about = "; ".join(f"{strip.label}: {strip.said}" for strip in strips)
    return Plot(
        title, f"{len(known)} trained models. Mean and 95% interval: {about}.", tuple(strips),
        tuple((place(value), f"{value:.0%}" if share else f"{value:.3g}") for value in ticks),
        tuple((place(value), f"guess “{name}” {say(value)}") for name, value in guesses.items()), top, top + 20,
    )  # fmt: skip


def _ends(rows: pd.DataFrame, seeds: pd.DataFrame) -> tuple[float, float]:
    """The ends of an axis that holds every mark."""
    values = pd.concat([seeds["value"], rows["low"], rows["high"]]).dropna()
    low, high = float(values.min()), float(values.max())
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _value(row: Mapping[str, float], say: Say) -> str:
    interval = "" if pd.isna(row["low"]) else f" [{say(row['low'])}, {say(row['high'])}]"
    return f"{say(row['estimate'])}{interval}"
