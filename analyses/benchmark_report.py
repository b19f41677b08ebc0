"""The report of the benchmarks: tables as they are printed, the figure of growth, and what the page says."""

from __future__ import annotations

import pandas as pd
import torch

from analyses import benchmark_growth, benchmark_training
from analyses.benchmark_cases import HOOKS, OURS
from analyses.benchmark_claims import verdicts
from analyses.benchmark_machine import REPEATS, SIZES, description
from analyses.benchmark_sweeps import Sweep, engines
from analyses.benchmark_timing import TOLERANCE, over_floor, ratios
from analyses.benchmarks import Measured
from analyses.finding import Finding
from workbench import Recipe
from workbench.figures.growth import growth_curves
from workbench.tables import to_markdown

NAMES = {
    "lookup": "Every single edge of the lookup model",
    "one thread": "The same on one thread",
    "large": "Every head's edge of the large model",
    "training": "Training the lookup model",
    "recording": "Recording every attention weight",
}

FILES = {"training": "training-loops", "one thread": "lookup-one-thread"}
"""Tables whose file has another name: `training.csv` beside this page is of another measurement."""


def finding(found: Measured, quick: bool) -> Finding:
    """All that the page needs."""
    grown = benchmark_growth.points(found.growth)
    fitted = benchmark_growth.fits(grown)
    rounds = [one.assign(benchmark=name) for name, one in found.times.items()]
    return Finding(
        name="benchmarks",
        quick=quick,
        verdicts=verdicts(found),
        tables={
            **{FILES.get(name, name): table for name, table in found.tables.items()},
            "rounds": pd.concat(rounds, ignore_index=True),
            "growth": grown,
            "slopes": fitted,
            "gains": benchmark_growth.gains(found.growth),
            "machine": description(),
        },
        figures={"growth": growth_curves(grown, fitted, title="Time of a sweep against its size")},
        words=_words(found, fitted),
    )


def _words(found: Measured, fitted: pd.DataFrame) -> dict[str, object]:
    lookup, large = found.sweeps["lookup"], found.sweeps["large"]
    gains = benchmark_growth.gains(found.growth)
    return {
        "scale": found.scale,
        "machine": description(),
        "threads": torch.get_num_threads(),
        "rate": pd.concat(found.times.values())["rate"].median(),
        "rate_sizes": SIZES,
        "rate_repeats": REPEATS,
        "shown": {name: shown(table) for name, table in found.tables.items()},
        "worst": max(float(one["difference"].max()) for name, one in found.differences.items() if name != "training"),
        "worst_training": float(found.differences["training"]["difference"].max()),
        "tolerance": TOLERANCE,
        "tolerance_training": benchmark_training.TOLERANCE,
        "sweeps": {name: _counts(found, name) for name in ("lookup", "large")},
        "alone": _compared(found.times["one thread"], lookup.flops()),
        "engines": {name: _ways(sweep) for name, sweep in found.sweeps.items()},
        "cells": {"lookup": len(lookup.cells), "large": len(large.cells)},
        "recipe": Recipe(),
        "together": found.together,
        "base": found.base,
        "growth_width": benchmark_growth.WIDTH,
        "slopes": fitted,
        "gains": gains,
        "slower": gains[gains["highest"] < 1].to_dict("records"),
        "coverage": {name: 1 - 2.0 ** (1 - one["round"].nunique()) for name, one in found.times.items()},
    }


def _ways(sweep: Sweep) -> str:
    return ", ".join(f"{count} by {way}" for way, count in engines(sweep).items())


def _counts(found: Measured, name: str) -> dict[str, float]:
    """Operations of a sweep, and what was measured of it, as the page says them."""
    sweep, times = found.sweeps[name], found.times[name]
    floor, whole = sweep.flops(), sweep.clean_flops(everywhere=True) * len(sweep.cells)
    return {
        "floor": floor / 1e9,
        "clean": sweep.clean_flops(everywhere=False) / 1e9,
        "whole": whole / 1e9,
        "saved": whole / floor,
        **_compared(times, floor),
    }


def _compared(times: pd.DataFrame, floor: int) -> dict[str, float]:
    return {
        "over floor": float(over_floor(times, OURS, floor).median()),
        "over loop": float(ratios(times, HOOKS, OURS).median()),
    }


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table as it is read: medians with quartiles in brackets."""
    out = table[["contestant", "rounds"]].copy()
    out["seconds"] = _spread(table, "seconds")
    out["times ours"] = _spread(table, "ratio")
    more = [name for name in table if name.startswith("seeds a minute")]
    return out.assign(**{name: [f"{value:.3g}" for value in table[name]] for name in more}, note=table["note"])


def _spread(table: pd.DataFrame, name: str) -> list[str]:
    columns = (table[name], table[f"{name} q1"], table[f"{name} q3"])
    return [f"{middle:.3g} ({low:.3g} to {high:.3g})" for middle, low, high in zip(*columns, strict=True)]


def printed(found: Measured) -> str:
    """All tables, as text."""
    parts = [f"{NAMES[name]}\n\n{to_markdown(shown(table), ['seconds', 'times ours'])}\n" for name, table in
             found.tables.items()]  # fmt: skip
    slopes = benchmark_growth.fits(benchmark_growth.points(found.growth))
    return "\n".join([*parts, f"Growth: fitted slopes\n\n{to_markdown(slopes)}\n", to_markdown(description())])
