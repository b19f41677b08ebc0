"""How the time of a sweep grows with cells, sequences, length, layers and heads: measured, and the fitted power."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analyses.benchmark_cases import OURS, PLAIN_PATH, SEED, random_batch, with_places
from analyses.benchmark_sweeps import Sweep, ours
from analyses.benchmark_timing import Contestant, agree, ratios, timed
from workbench import Edges, ModelConfig, Transformer

BASE: Mapping[str, int] = {"cells": 32, "sequences": 256, "length": 16, "layers": 2, "heads": 4}
"""What is not varied. Width is 64, in any number of heads."""

SIZES: Mapping[str, Sequence[int]] = {
    "cells": (4, 8, 16, 32, 64, 128),
    "sequences": (32, 64, 128, 256, 512, 1024),
    "length": (8, 16, 32, 64),
    "layers": (1, 2, 4, 8),
    "heads": (1, 2, 4, 8, 16),
}
WIDTH, D_VOCAB = 64, 50


def quick() -> tuple[Mapping[str, Sequence[int]], Mapping[str, int]]:
    """Few small sizes, and what is not varied."""
    return {"cells": (2, 4, 8), "sequences": (4, 8, 16)}, {**BASE, "cells": 4, "sequences": 8, "length": 8}


def sweep(cells: int, sequences: int, length: int, layers: int, heads: int) -> Sweep:
    """Single edges of every head in layer 0, spread evenly over the rows and their sources: all later layers have to be
    gone through, the most that a cut can cost."""
    config = ModelConfig(d_vocab=D_VOCAB, n_ctx=length, d_model=WIDTH, n_layers=layers, n_heads=heads, norm="pre")
    edges = [(dest, source) for dest in range(1, length) for source in range(dest + 1)]
    if cells > len(edges):
        raise ValueError(f"{cells} cells were asked, and {length} positions have {len(edges)} edges; ask for fewer")
    chosen = [edges[int(index)] for index in np.linspace(0, len(edges) - 1, cells)]
    where = tuple(Edges(layer=0, dest=str(dest), source=str(source)) for dest, source in chosen)
    return Sweep(Transformer(config, seed=SEED), with_places(random_batch(sequences, length, D_VOCAB)), where)


def measured(sizes: Mapping[str, Sequence[int]], base: Mapping[str, int], rounds: int) -> pd.DataFrame:
    """Seconds of both engines, a row each: axis, x, round, contestant, seconds. At each size both answers are compared
    first, and rounds go to both in turn."""
    parts = []
    for axis, several in sizes.items():
        for x in several:
            here: dict[str, Any] = {**base, axis: x}
            asked = sweep(**here)
            both = [
                Contestant(PLAIN_PATH, ours(asked, "hooks")),
                Contestant(OURS, ours(asked, "auto"), against=PLAIN_PATH),
            ]
            agree(both)
            parts.append(timed(both, rounds).drop(columns="rate").assign(axis=axis, x=x))
    return pd.concat(parts, ignore_index=True)[["axis", "x", "round", "contestant", "seconds"]]


def points(times: pd.DataFrame) -> pd.DataFrame:
    """Median seconds and quartiles, a row an axis, size and contestant, as the figure takes them."""
    rows = []
    for (axis, x, name), own in times.groupby(["axis", "x", "contestant"], sort=False):
        low, value, high = own["seconds"].quantile([0.25, 0.5, 0.75])
        rows.append({"panel": axis, "contestant": name, "x": x, "value": value, "low": low, "high": high})
    return pd.DataFrame(rows)


def fits(table: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """The straight line through the logarithms (base 2) of medians and sizes, a row an axis and contestant: slope with
    Student's interval from the points' scatter about the line, and constant. With two points there is no interval."""
    rows = []
    for (axis, name), own in table.groupby(["panel", "contestant"], sort=False):
        x, y = np.log2(own["x"].to_numpy(float)), np.log2(own["value"].to_numpy(float))
        if len(own) < 2:
            raise ValueError(f"a line through {len(own)} point of {axis!r} was asked; measure two sizes or more")
        found: Any = stats.linregress(x, y)
        half = found.stderr * stats.t.ppf((1 + level) / 2, len(own) - 2) if len(own) > 2 else math.nan
        rows.append(
            {"panel": axis, "contestant": name, "slope": found.slope, "low": found.slope - half,
             "high": found.slope + half, "constant": found.intercept, "points": len(own)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def gains(times: pd.DataFrame) -> pd.DataFrame:
    """How many times as long the plain path takes at each size, over rounds: lowest, median and highest."""
    rows = []
    for (axis, x), own in times.groupby(["axis", "x"], sort=False):
        ratio = ratios(own, PLAIN_PATH, OURS)
        rows.append({"axis": axis, "x": x, "lowest": ratio.min(), "ratio": ratio.median(), "highest": ratio.max()})
    return pd.DataFrame(rows)
