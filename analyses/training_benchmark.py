"""How many seeds a minute are trained: one process, two, an ensemble, a plain PyTorch loop, compiled or not."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from analyses.benchmark_machine import description, matrix_rate
from analyses.training_optimiser import saving
from analyses.training_parts import parts
from analyses.training_verdict import verdict
from analyses.training_ways import ENSEMBLE, FIT, PROCESSES, Way, config, ways_of
from tasks.lookup import Lookup
from workbench import Recipe
from workbench.devices import one_thread
from workbench.fitting import fresh, training_batches
from workbench.report import write_report
from workbench.tables import to_csv, to_markdown
from workbench.workers import context

TOLERANCE = 1e-4
"""What the last losses of two ways may differ: they add in other orders."""

_README = Path(__file__).with_name("training_benchmark.md")


def seeds_per_minute(
    *, steps: int = 100, rounds: int = 3, together: int = 8, names: Sequence[str] | None = None
) -> pd.DataFrame:
    """A row a way of training the lecture's model, the ways taking turns; medians over rounds.

    way; cores: processes that train, each on one thread; start s: processor seconds before the first step is done, the
    most in a round (compiling, mostly); ms a step: processor milliseconds a step and seed, without the first; against
    fit: that over `fit`'s, the median of the rounds' ratios; seeds a minute: of whole trainings of 1,000 steps, each
    process on a core of its own; with the start: the same for `together` seeds trained once; loss: of the last step,
    seed 0.

    steps: how many are timed in a round. names: which of the ways; all where left out. Raises KeyError for a name that
    is none of them, and AssertionError where two ways of training do not end at the same loss.
    """
    recipe = Recipe(steps=steps)
    with one_thread(), _compiling_coldly(), ProcessPoolExecutor(2, context()) as pool:
        ways = _chosen(ways_of(pool, together), names)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        losses: dict[str, float] = {}
        for turn in range(rounds):
            for name in [*ways][turn % len(ways) :] + [*ways][: turn % len(ways)]:
                seeds = _seeds(name, together)
                found = ways[name](recipe, seeds)
                losses[name] = found[0][0]
                shared = len(seeds) / len(found)
                times[name] += [(ticks[0], (ticks[-1] - ticks[0]) / (len(ticks) - 1) / shared) for _, ticks in found]
    first = next(iter(losses))
    for name, loss in losses.items():
        assert abs(loss - losses[first]) <= TOLERANCE, (
            f"{name!r} ends at a loss of {loss}, {first!r} at {losses[first]}"
        )
    return pd.DataFrame([_row(name, times, losses[name], together) for name in ways])


def _row(name: str, times: Mapping[str, list[tuple[float, float]]], loss: float, together: int) -> dict[str, Any]:
    cores, start = _cores(name), max(begun for begun, _ in times[name])
    each = pd.Series([step for _, step in times[name]])
    whole = float(each.median()) * Recipe().steps
    ratio = float(each.median() / pd.Series([step for _, step in times[FIT]]).median()) if FIT in times else math.nan
    return {
        "way": name, "cores": cores, "start s": round(start, 1), "ms a step": round(1e3 * float(each.median()), 3),
        "lowest": round(1e3 * float(each.min()), 3), "highest": round(1e3 * float(each.max()), 3),
        "against fit": round(ratio, 3), "seeds a minute": round(60 * cores / whole, 2),
        f"with the start, {together} seeds": round(60 * together / (whole * together / cores + start), 2),
        "loss": round(loss, 4),
    }  # fmt: skip


def _chosen(ways: dict[str, Way], names: Sequence[str] | None) -> dict[str, Way]:
    for name in names or ():
        if name not in ways:
            raise KeyError(f"{name!r} is no way of training; there are: {', '.join(ways)}")
    return {name: way for name, way in ways.items() if names is None or name in names}


def _seeds(name: str, together: int) -> list[int]:
    return list(range(together if name.startswith(ENSEMBLE) else _cores(name)))


def _cores(name: str) -> int:
    return 2 if name == PROCESSES else 1


@contextmanager
def _compiling_coldly() -> Iterator[None]:
    """Nothing compiled before is used again, and the compiler runs where its processor time is seen."""
    asked = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    before = {name: os.environ.get(name) for name in asked}
    os.environ.update(asked)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def operations() -> int:
    """Floating-point operations of matrix products in one step and its gradient; a multiply-add counts as 2."""
    parts, read, labels = next(training_batches(Lookup(), Recipe(), 0))
    model = fresh(config(), 0).train()
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(**parts, read=read).flatten(0, 1), labels.flatten()).backward()
    return counter.get_total_flops()


def main(*, out: Path = Path("reports"), steps: int = 100, rounds: int = 3) -> Path:
    """Prints the table and writes it to `out/benchmarks/training.md` and `training.csv`; returns that folder."""
    with one_thread():
        rate, flops = matrix_rate(), operations()
        saved, where = saving(), parts()
    table = seeds_per_minute(steps=steps, rounds=rounds)
    print(to_markdown(table))
    own = float(table.set_index("way").loc[FIT, "ms a step"])
    said = _README.read_text(encoding="utf-8").format(
        table=to_markdown(table), steps=steps, rounds=rounds, machine=to_markdown(description()), rate=rate / 1e9,
        saved=saved, parts=to_markdown(where), verdict=verdict(table, FIT, PROCESSES),
        flops=flops / 1e9, floor=1e3 * flops / rate, over=own * rate / flops / 1e3, load=os.getloadavg()[0],
    )  # fmt: skip
    return write_report(Path(out) / "benchmarks", {"training.md": said, "training.csv": to_csv(table)})


if __name__ == "__main__":
    main(steps=int(sys.argv[1]) if sys.argv[1:] else 100, rounds=int(sys.argv[2]) if sys.argv[2:] else 3)
