"""What a GPU gives: many seeds trained at once against one, sweeps, and the share of the card's own matrix rate.

python -m analyses.gpu_benchmark --device cuda
python -m analyses.gpu_benchmark --device cpu --quick    # shows that the same code is right
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analyses.benchmark_machine import description
from analyses.training_benchmark import operations
from analyses.training_ways import config
from tasks.lookup import Lookup
from workbench import Edges, Recipe, Transformer, cut
from workbench.batch import Batch
from workbench.block_by_block import Engine
from workbench.devices import choose, one_thread
from workbench.engine import run_each
from workbench.fitting import ensemble_batches, fit, fit_ensemble
from workbench.report import write_report
from workbench.tables import to_markdown

COMMAND = "python -m analyses.gpu_benchmark --device cuda"
CHECKED = 20
"""Steps after which each seed of an ensemble is compared with the same seed trained alone on the CPU."""

_README = Path(__file__).with_name("gpu_benchmark.md")


@dataclass(frozen=True)
class Scale:
    """How much is measured: seeds of the ensemble, timed steps, sequences of the sweep, size of the square product."""

    seeds: int = 64
    steps: int = 200
    batch_size: int = 256
    sequences: int = 4000
    size: int = 8192
    repeats: int = 5


QUICK = Scale(seeds=3, steps=6, batch_size=32, sequences=32, size=256, repeats=2)


def main(*, device: str = "cuda", quick: bool = False, compiling: bool = True, out: Path = Path("reports")) -> Path:
    """Measures on a device, prints the tables, writes `out/benchmarks/gpu.md`, and returns that folder.

    quick: tiny sizes, to see that all of it runs and is right; its times mean nothing. compiling: whether the ensemble
    is timed compiled, too. Raises ValueError for a device that is not there.
    """
    there, scale = choose(device), QUICK if quick else Scale()
    rate = matrix_rate(there, scale)
    trained, drawing = training(there, scale, compiling, rate)
    apart, swept = agreement(there, scale, compiling), sweeps(there, scale)
    print(to_markdown(trained), to_markdown(swept), to_markdown(apart), sep="\n\n")
    said = _README.read_text(encoding="utf-8").format(
        measured=_measured(there, quick), command=COMMAND, machine=to_markdown(machine(there)), rate=rate / 1e12,
        size=scale.size, trained=to_markdown(trained), swept=to_markdown(swept), apart=to_markdown(apart),
        drawing=drawing, seeds=scale.seeds, batch_size=scale.batch_size, steps=CHECKED, device=device,
        quick=" --quick" * quick + " --no-compile" * (not compiling),
    )  # fmt: skip
    return write_report(Path(out) / "benchmarks", {"gpu.md": said})


def _measured(device: torch.device, quick: bool) -> str:
    if device.type == "cpu":
        return (
            "**Not measured on a GPU.** None was at hand. What follows is the same code on a CPU, to show\nthat its "
            "numbers are right. Its times say nothing of a GPU."
        )
    return "**A quick run: its times mean nothing.**" if quick else "Measured on the card that is described below."


def training(device: torch.device, scale: Scale, compiling: bool, rate: float) -> tuple[pd.DataFrame, float]:
    """A row a way of training: one seed, and all of them as one ensemble; and the milliseconds that a step's data of
    all seeds take to be drawn, which another thread does while a block of steps before is trained on."""
    ways = [(1, False), (scale.seeds, False)] + [(scale.seeds, True)] * compiling
    rows = []
    for seeds, compiles in ways:
        start, step = _steps(device, scale, seeds, compiles)
        per_minute = 60 * seeds / (step * Recipe().steps)
        flops = operations() * scale.batch_size / Recipe().batch_size * seeds
        rows.append({
            "seeds at once": seeds, "compiled": "yes" if compiles else "no", "start s": round(start, 2),
            "ms a step": round(1e3 * step, 3), "seeds a minute": round(per_minute, 2),
            "share of the matrix rate": float(f"{flops / step / rate:.3g}"),
        })  # fmt: skip
    table = pd.DataFrame(rows)
    times = table["seeds a minute"] / table["seeds a minute"].iloc[0]
    table.insert(5, "times one seed's", times.round(2))
    recipe = Recipe(steps=scale.steps, batch_size=scale.batch_size)
    drawn = _seconds(device, lambda: list(ensemble_batches(Lookup(), recipe, range(scale.seeds), device)))
    return table, 1e3 * drawn / scale.steps


def _steps(device: torch.device, scale: Scale, seeds: int, compiling: bool) -> tuple[float, float]:
    """Seconds to the end of the first step, and seconds a step after it."""
    ticks: list[float] = []

    def tick(_: int) -> None:
        if len(ticks) in (0, scale.steps - 1):
            _wait(device)
        ticks.append(time.perf_counter())

    begun = time.perf_counter()
    recipe = Recipe(steps=scale.steps, batch_size=scale.batch_size)
    fit_ensemble(Lookup(), config(), recipe, range(seeds), device, tick, compiling=compiling)
    return ticks[0] - begun, (ticks[-1] - ticks[0]) / (scale.steps - 1)


def agreement(device: torch.device, scale: Scale, compiling: bool = False) -> pd.DataFrame:
    """How far the weights of an ensemble's first and last seed are from the same seed's trained alone on the CPU. The
    keys' bias is left out: it has no gradient but rounding."""
    recipe, rows = Recipe(steps=CHECKED, batch_size=scale.batch_size), []
    known = {seed: fit(Lookup(), config(), recipe, seed) for seed in (0, scale.seeds - 1)}
    for compiles in [False] + [True] * compiling:
        states, curves = fit_ensemble(Lookup(), config(), recipe, range(scale.seeds), device, compiling=compiles)
        for seed, (alone, curve) in known.items():
            kept = [name for name in alone if not name.endswith("b_K")]
            each = torch.cat([(states[seed][name] - alone[name]).abs().flatten() for name in kept])
            rows.append({
                "seed": seed, "compiled": "yes" if compiles else "no",
                "largest difference of a weight": float(f"{float(each.max()):.3g}"),
                "median difference": float(f"{float(each.median()):.3g}"),
                "difference of the last loss": float(f"{abs(curves[seed][-1]['loss'] - curve[-1]['loss']):.3g}"),
            })  # fmt: skip
    return pd.DataFrame(rows)


def sweeps(device: torch.device, scale: Scale) -> pd.DataFrame:
    """Every single-edge cut of the lookup model, by the fast path and by hooks: cells × sequences a second, and how far
    the logits are from the CPU's."""
    task = Lookup()
    batch = task.sample(scale.sequences, seed=0)
    rows = range(1, task.length)
    edges = [(layer, dest, source) for layer in range(2) for dest in rows for source in range(dest + 1)]
    roles = {f"at {place}": (torch.arange(task.length) == place).expand_as(batch.tokens) for place in range(9)}
    named = Batch(batch.tokens, batch.labels, roles=roles, vocabulary=batch.vocabulary)
    conditions = {
        str(edge): [cut(Edges(layer=edge[0], dest=f"at {edge[1]}", source=f"at {edge[2]}"))] for edge in edges
    }
    model = Transformer(config(), seed=0)
    want = run_each(model, named.select(slice(0, 8)), conditions, positions="read")
    here, there = model.to(device), named.to(device)
    found_by = []
    engines: tuple[Engine, ...] = ("auto", "hooks")
    for engine in engines:
        work = partial(run_each, here, there, conditions, positions="read", engine=engine)
        found, times = work(), [_seconds(device, work) for _ in range(scale.repeats)]
        apart = max(float((found[k].logits[:8].cpu() - one.logits).abs().max()) for k, one in want.items())
        largest = max(float(one.logits.abs().max()) for one in want.values())
        found_by.append({
            "engine": "fast path" if engine == "auto" else "hooks", "cells": len(edges), "sequences": len(batch),
            "seconds": round(statistics.median(times), 4),
            "cells × sequences a second": round(len(edges) * len(batch) / statistics.median(times)),
            "largest difference from the CPU, of the largest logit": float(f"{apart / largest:.3g}"),
        })  # fmt: skip
    return pd.DataFrame(found_by)


def matrix_rate(device: torch.device, scale: Scale) -> float:
    """Operations a second of a square float32 product; a multiply-add counts as 2. Tensor cores' shorter numbers are
    not used, as in training."""
    a = torch.randn(scale.size, scale.size, device=device)
    times = [_seconds(device, lambda: a @ a) for _ in range(scale.repeats + 1)]
    return 2 * scale.size**3 / statistics.median(times[1:])


def machine(device: torch.device) -> pd.DataFrame:
    """The machine, a row a property, with its card."""
    table = description()
    if device.type != "cuda":
        return table
    card = torch.cuda.get_device_properties(device)
    rows = [("card", card.name), ("memory of the card", f"{card.total_memory / 2**30:.0f} GiB")]
    rows += [("CUDA of torch", str(torch.version.cuda))]
    return pd.concat([pd.DataFrame(rows, columns=table.columns), table], ignore_index=True)


def _seconds(device: torch.device, work: Callable[[], Any]) -> float:
    _wait(device)
    begun = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def command(arguments: list[str] | None = None) -> None:
    """The command line. Ends with a sentence on standard error where the device is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, mps or cpu")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that all of it runs")
    parser.add_argument("--no-compile", dest="compiling", action="store_false", help="leave the compiled ensemble out")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="the folder of reports")
    try:
        with one_thread():
            main(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        raise SystemExit(f"gpu_benchmark: {error}") from error


if __name__ == "__main__":
    command()
