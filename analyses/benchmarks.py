"""How long sweeps, trainings and recordings take: ours, other tools' loops, and the floor that arithmetic sets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from analyses.benchmark_sweeps import Sweep


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    sequences: of the lookup sweep and of the recording. rounds: of everything but growth and the large sweep, with
    `growth_rounds` and `large_rounds`. large_sequences, layers, heads, width, length: of the large sweep. steps: of the
    trainings that are timed. together: models that train at once, measured whole, for `whole_steps`.
    """

    sequences: int = 4000
    rounds: int = 5
    growth_rounds: int = 3
    large_sequences: int = 2
    large_rounds: int = 2
    layers: int = 12
    heads: int = 12
    width: int = 768
    length: int = 64
    steps: int = 100
    together: int = 4
    whole_steps: int = 1000


QUICK = Scale(
    sequences=64, rounds=2, growth_rounds=2, large_rounds=2, layers=2, heads=2, width=32, length=16, steps=5,
    together=2, whole_steps=5,
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What was measured, by name of the benchmark: "lookup", "one thread" (the same there), "large", "training",
    "recording".

    times: a row a round and contestant. tables: a row a contestant. differences: of the answers, before anything was
    timed. sweeps: "lookup" and "large". growth: seconds by axis, size, round and engine; base: what it does not vary.
    together: seeds a minute with several models at once.
    """

    scale: Scale
    times: dict[str, pd.DataFrame]
    tables: dict[str, pd.DataFrame]
    differences: dict[str, pd.DataFrame]
    sweeps: dict[str, Sweep]
    growth: pd.DataFrame
    base: Mapping[str, int]
    together: float


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Measures and writes `out/benchmarks/`: README.md, a CSV a table, the figure of growth; returns that folder. Its
    tables are printed. Other programs on the machine make its seconds mean little; let it run alone.

    seeds: must stay None. quick: everything small, to see that all of it runs; its figures mean nothing.

    Raises ValueError for seeds, ModuleNotFoundError where nnsight is missing, and WrongAnswer where a contestant's
    answers differ.
    """
    if seeds is not None:
        raise ValueError(f"benchmarks over {seeds} seeds were asked; rounds are repeated, not seeds: leave --seeds out")
    _check_nnsight()
    from analyses.benchmark_report import finding, printed
    from analyses.finding import write

    found = measured(QUICK if quick else Scale(), quick, progress)
    print(printed(found))
    return write(Path(out), finding(found, quick))


def measured(scale: Scale, quick: bool = False, progress: bool = True) -> Measured:
    """All benchmarks, one after the other; within each, contestants take turns."""
    from analyses import benchmark_growth, benchmark_training
    from analyses.benchmark_cases import cases
    from analyses.benchmark_machine import matrix_rate
    from analyses.benchmark_timing import agree, on_threads, table, timed
    from workbench import Recipe

    def say(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)

    sweeps, known = cases(scale)
    times, tables, differences = {}, {}, {}
    for name, case in known.items():
        say(f"{name}: {len(case.contestants)} contestants, {case.rounds} rounds")
        with on_threads(case.threads):
            differences[name] = agree(case.contestants, case.tolerance)
            times[name] = timed(case.contestants, case.rounds, matrix_rate)
        tables[name] = table(times[name], case.contestants, case.base, case.flops)
    tables["training"] = benchmark_training.per_minute(tables["training"], scale.steps)
    say(f"training: {scale.together} models at once")
    together = benchmark_training.processes(scale.together, Recipe(steps=scale.whole_steps))
    say("growth")
    sizes, base = benchmark_growth.quick() if quick else (benchmark_growth.SIZES, benchmark_growth.BASE)
    grown = benchmark_growth.measured(sizes, base, scale.growth_rounds)
    return Measured(scale, times, tables, differences, sweeps, grown, base, together)


def _check_nnsight() -> None:
    from importlib.util import find_spec

    if find_spec("nnsight") is None:
        raise ModuleNotFoundError(
            "nnsight is not installed, and it is one of the tools that are timed; "
            "pip install 'attention-workbench[conformance]'",
            name="nnsight",
        )


if __name__ == "__main__":
    main(out=Path("reports"), quick="--quick" in sys.argv[1:])
