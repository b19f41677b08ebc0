"""What the benchmarks are to show, and whether they do."""

from __future__ import annotations

import math

import pandas as pd

from analyses.benchmark_cases import BRIDGE, BRIDGE_WHOLE, HOOKS, LENS, OURS, TWIN
from analyses.benchmark_growth import gains
from analyses.benchmark_timing import TOLERANCE, over_floor, ratios
from analyses.benchmarks import Measured
from analyses.verdicts import COLUMNS, exact, joined

SEQUENCES = 4000
"""Of the sweep whose floor is known beforehand."""


def verdicts(found: Measured) -> pd.DataFrame:
    """A row a claim. A ratio's estimate is the median over rounds, its interval the lowest and the highest round."""
    lookup, alone, large = (found.times[name] for name in ("lookup", "one thread", "large"))
    sweep, n = found.sweeps["lookup"], found.scale.sequences
    known = found.differences["lookup"].set_index("contestant")["difference"]
    slowest = float(gains(found.growth)["highest"].min())
    rows = [
        *_of_the_lookup_sweep(lookup, sweep.flops(), "", "on every thread"),
        *_of_the_lookup_sweep(alone, sweep.flops(), "-one", "on one thread"),
        exact("count", "The sweep's floor is 8.0 to 8.5 GFLOP for 4,000 sequences.", "GFLOP",
              sweep.flops() / n * SEQUENCES / 1e9, 8.0, 8.5),
        exact("equal", "The fast path gives what the plain path gives.", "largest difference, as a share",
              float(known[OURS]), 0.0, TOLERANCE),
        over_rounds("large", "Every head's cut in the large model takes the loop with PyTorch's hooks at least 3 times "
                    "as long as ours.", "seconds over ours", ratios(large, HOOKS, OURS), low=3.0),
        exact("never-slower", "At no size of the figure is the fast path slower than the plain one in every round.",
              "smallest over sizes of the best round's ratio", slowest, 1.0, math.inf),
    ]  # fmt: skip
    return joined(*rows)


def _of_the_lookup_sweep(times: pd.DataFrame, flops: int, suffix: str, where: str) -> list[pd.DataFrame]:
    loops = {
        "bridge": ("TransformerLens' native bridge on the same weights", BRIDGE, TWIN),
        "bridge-whole": ("TransformerLens' native bridge, given all sequences at once,", BRIDGE_WHOLE, TWIN),
        "lens": ("a loop of TransformerLens' hooks on our own model", LENS, OURS),
    }
    rows = [
        over_rounds(id + suffix, f"The whole sweep takes {who} at least 25 times as long as ours, {where}.",
                    "seconds over ours", ratios(times, one, ours), low=25.0)
        for id, (who, one, ours) in loops.items()
    ]  # fmt: skip
    statement = f"Ours takes at most 3 times what its arithmetic alone would, {where}."
    return [*rows, over_rounds("floor" + suffix, statement, "seconds over the floor's", over_floor(times, OURS, flops),
                               high=3.0)]  # fmt: skip


def over_rounds(
    id: str, statement: str, quantity: str, values: pd.Series, low: float = -math.inf, high: float = math.inf
) -> pd.DataFrame:
    """A row for a claim on one number a round: supported where all rounds lie within, not supported where none does."""
    if values.empty or not values.map(math.isfinite).all():
        raise ValueError(f"claim {id!r} wants one finite number a round; got {list(values)}")
    inside = values.between(low, high)
    verdict = "supported" if inside.all() else "undecided" if inside.any() else "not supported"
    region = f"at least {low:g}" if math.isinf(high) else f"at most {high:g}"
    row = (id, statement, quantity, values.median(), values.min(), values.max(), region, 0, None, verdict)
    return pd.DataFrame([row], columns=COLUMNS).astype({"n_models": "Int64", "n_examples": "Int64"})
