"""What the table of ways of training says: which wins, and whether compiling pays."""

from __future__ import annotations

import pandas as pd

from workbench import Recipe


def verdict(table: pd.DataFrame, alone: str, processes: str) -> str:
    """What a table of all ways of training says, a sentence a line.

    alone, processes: the ways that are `fit` in one process and in several. Raises KeyError where one is missing.
    """
    rows = table.set_index("way")
    steps = rows["ms a step"]
    together = next(name for name in rows.index if name.startswith("ensemble") and "compiled" not in name)
    whole, read, every = steps[alone], steps["our model, read positions"], steps["our model, every position"]
    won = processes if rows.loc[processes, "seeds a minute"] > rows.loc[together, "seeds a minute"] else together
    fast = rows[rows.index.str.startswith("plain") & ~rows.index.str.contains("compiled")]["ms a step"]
    lines = [
        f"- Only read positions in the last layer: {read:.2f} ms a step against {every:.2f}, "
        f"{every / read:.2f} times as fast.",
        f"- The fastest of ours on this CPU is {won}: {rows.loc[processes, 'seeds a minute']:.1f} seeds a minute by "
        f"two processes, {rows.loc[together, 'seeds a minute']:.1f} by the {together}, "
        f"{rows.loc[alone, 'seeds a minute']:.1f} by one process.",
        f"- On one core, the {together} takes {steps[together] / whole:.2f} times `fit`'s time a step and seed "
        f"({_range(rows, together)} ms against {_range(rows, alone)}). `fit` is what a CPU's checkpoints are made by: "
        "an ensemble adds in another order.",
        f"- `fit` takes {whole / fast.min():.2f} times as long as the fastest plain loop that is not compiled. Fused "
        "projections and attention add in another order: with them every trained model would be another one, bit for "
        "bit, and reports rest on the ones there are.",
    ]
    for name in rows.index[rows.index.str.endswith(", compiled")]:
        lines.append(_paying(rows, name, name.removesuffix(", compiled")))
    return "\n".join([*lines, "\nHence `fit` compiles nothing, and an ensemble compiles where it is asked to."])


def _range(rows: pd.DataFrame, name: str) -> str:
    return f"{rows.loc[name, 'lowest']:.2f} to {rows.loc[name, 'highest']:.2f}"


def _paying(rows: pd.DataFrame, name: str, other: str) -> str:
    """Whether compiling pays in a training of the default recipe; its gain counts where no two rounds overlap."""
    compiled, plain = rows.loc[name], rows.loc[other]
    said = (
        f"- {name}: {compiled['ms a step']:.2f} ms a step and seed ({_range(rows, name)}) against "
        f"{plain['ms a step']:.2f} ({_range(rows, other)}), after {compiled['start s']:.0f} s"
    )
    if compiled["lowest"] > plain["highest"]:
        return f"{said}: slower, it never pays."
    if compiled["highest"] >= plain["lowest"]:
        return f"{said}: rounds overlap, no gain was seen."
    seeds = int(name.split()[2].rstrip(",")) if name.startswith("ensemble") else 1
    needed = 1e3 * compiled["start s"] / ((plain["ms a step"] - compiled["ms a step"]) * seeds)
    return f"{said}: paid back after {needed:,.0f} steps; a training has {Recipe().steps:,}."
