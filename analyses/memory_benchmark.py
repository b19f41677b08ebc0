"""How much memory sweeps, measurements and recordings take beside their batch and their result, by number of
examples."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from analyses.benchmark_cases import SEED, lookup_sweep, with_places
from analyses.benchmark_machine import description
from tasks.lookup import Lookup
from workbench import Batch, Edges, Heads, Intervention, cut, mean, measure_each, patch, record, resample, sweep
from workbench.devices import one_thread
from workbench.report import write_report
from workbench.tables import to_csv, to_markdown

SIZES = (4_000, 20_000, 100_000)
FEW = 16
"""Examples that are run before the baseline, so that what is imported late is in it."""

MIB = 2**20
LISTS = {
    "cuts": "measure_each, 88 cuts of one edge",
    "roles": "measure_each, 8 cuts by role",
    "patch": "measure_each, 6 patches by role from a matched donor",
    "mean": "measure_each, 6 means over a donor",
    "resample": "measure_each, 6 resamples from a donor",
    "sweep": "sweep over edges, 88 cells",
    "record": 'record(["pattern"])',
}
HELD = {
    "cuts": "a block of examples",
    "roles": "a block of examples",
    "patch": "a block of examples and of the donor",
    "mean": "a block of examples; the donor's values at the sites",
    "resample": "all examples, which are one block",
    "sweep": "a block of examples; the metrics of one model",
    "record": "what was asked for once more, while it is put together",
}
"""What is held at once beside the batch and the result."""

STREAMING = ("cuts", "roles", "patch", "sweep")


@dataclass(frozen=True)
class _Given:
    """The lookup model, a batch with a role for each position, and a donor matched to it."""

    model: Any
    batch: Batch
    donors: Mapping[str, Batch]
    cells: tuple[Edges, ...]


def memory(
    sizes: Sequence[int] = SIZES, names: Sequence[str] | None = None, *, tell: Callable[[Any], object] = print
) -> pd.DataFrame:
    """A row a measurement and number of examples, each made in a process of its own.

    peak MiB: the highest resident memory over that after the imports and a run on 16 examples; batch MiB and result
    MiB: the bytes of the tensors or the frame, computed; beside MiB: the peak less these two. seconds: of the
    measurement alone, on one thread.

    names: which of `LISTS`; all where left out. Raises KeyError for one that is none of them.
    """
    for name in names or ():
        if name not in LISTS:
            raise KeyError(f"{name!r} is no measurement; there are: {', '.join(LISTS)}")
    rows = []
    for name in LISTS if names is None else names:
        for n in sizes:
            rows.append(_apart(name, n))
            tell(rows[-1])
    return pd.DataFrame(rows)


def _apart(name: str, n: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "analyses.memory_benchmark", "--one", name, str(n)]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return found


def one(name: str, n: int) -> dict[str, Any]:
    """The row of one measurement on `n` examples, in this process, which must have made no other before."""
    with one_thread():
        _work(name, _given(FEW))
        before = _highest()
        given = _given(n)
        start = time.perf_counter()
        found = _work(name, given)
        seconds = time.perf_counter() - start
    peak = (_highest() - before) / MIB
    batch = _bytes(tensor for each in (given.batch, *given.donors.values()) for tensor in _tensors(each)) / MIB
    result = _size(found) / MIB
    return {
        "what": LISTS[name], "examples": n, "peak MiB": round(peak, 1), "batch MiB": round(batch, 1),
        "result MiB": round(result, 1), "beside MiB": round(peak - batch - result, 1), "seconds": round(seconds, 2),
        "held beside": HELD[name],
    }  # fmt: skip


def _given(n: int) -> _Given:
    swept, task = lookup_sweep(n), Lookup()
    return _Given(swept.model, swept.batch, {"other": with_places(task.corrupt(swept.batch, SEED))}, swept.cells)


def _work(name: str, given: _Given) -> Any:
    """The measurement: what `measure_each`, `sweep` or `record` gives."""
    if name == "record":
        return record(given.model, given.batch, ["pattern"])
    if name == "sweep":
        plain = Lookup().sample(len(given.batch), seed=SEED)
        return sweep(given.model, plain, cut, over="edges", metrics="log_prob", progress=False)
    conditions = {str(each): [each] for each in _interventions(name, given.cells)}
    donors = given.donors if name in ("patch", "mean", "resample") else None
    return measure_each(given.model, given.batch, conditions, ["log_prob"], donors=donors)


def _interventions(name: str, cells: Sequence[Edges]) -> list[Intervention]:
    layers, roles = (0, 1), ("answer", "match", "other")
    if name == "cuts":
        return [cut(cell) for cell in cells]
    if name == "roles":
        pairs = [*(("last", role) for role in roles), ("answer", "match")]
        return [cut(Edges(layer=layer, dest=dest, source=source)) for layer in layers for dest, source in pairs]
    made: dict[str, Callable[[Heads], Intervention]] = {
        "patch": lambda where: patch(where, donor="other", align="role"),
        "mean": lambda where: mean(where, donor="other"),
        "resample": lambda where: resample(where, donor="other", seed=SEED),
    }
    places = [Heads(layer=layer, head=0, part=part, pos=role) for layer, part in _PARTS for role in roles]
    return [made[name](place) for place in places]


_PARTS = ((0, "z"), (1, "v"))


def _highest() -> int:
    """The highest resident memory of this process so far, in bytes.

    Linux tells it of the process's own memory in /proc; `ru_maxrss` would begin with that of the process that started
    it, which may be larger.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(text for text in status.read_text(encoding="utf-8").splitlines() if text.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _tensors(batch: Batch) -> Iterator[Tensor]:
    yield from (batch.tokens, batch.labels, batch.valid, *batch.roles.values(), *batch.relations.values())


def _size(found: Any) -> int:
    """Bytes of what a measurement gives."""
    if hasattr(found, "frame"):
        return int(found.frame.memory_usage(deep=True).sum())
    if hasattr(found, "run"):
        return _bytes([*found.values.values(), found.run.logits])
    return _bytes(tensor for each in found.values() for tensor in (*each.values.values(), each.kept))


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of what the tensors lie in, each piece of memory counted once."""
    pieces = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(pieces.values())


def growth(table: pd.DataFrame) -> pd.DataFrame:
    """How `beside MiB` grows from the second smallest number of examples, which is several blocks, to the largest: in
    bytes an example, a row a measurement, and whether it streams, as `workbench` says of it."""
    rows = []
    for what, each in table.sort_values("examples").groupby("what", sort=False):
        low, high = each.iloc[min(1, len(each) - 1)], each.iloc[-1]
        more = int(high["examples"] - low["examples"])
        slope = (high["beside MiB"] - low["beside MiB"]) * MIB / more if more else float("nan")
        streams = any(LISTS[name] == what for name in STREAMING)
        rows.append({"what": what, "streams": "yes" if streams else "no", "bytes an example": round(slope, 0)})
    return pd.DataFrame(rows)


def main(*, out: Path = Path("reports"), sizes: Sequence[int] = SIZES, names: Sequence[str] | None = None) -> Path:
    """Prints the table and writes it to `out/benchmarks/memory.md` and `memory.csv`; returns that folder."""
    table = memory(sizes, names)
    print(to_markdown(table))
    return write_report(Path(out) / "benchmarks", {"memory.md": page(table), "memory.csv": to_csv(table)})


def page(table: pd.DataFrame) -> str:
    """The report, in Markdown."""
    with one_thread():
        return _PAGE.format(table=to_markdown(table), growth=to_markdown(growth(table)),
                            machine=to_markdown(description()))  # fmt: skip


_PAGE = """# Memory

Does a measurement hold more where there are more examples? The lookup model (two layers of one head, width 32,
untrained), each measurement in a process of its own, on one thread.

{table}

- `peak MiB`: the highest resident memory over that after the imports and a run on 16 examples. `batch MiB` (with its
  donor) and `result MiB` are computed. `beside MiB` is the peak less these two, with what the
  allocator keeps for later.
- A block is at most 4,096 examples, so that 4,000 are one block and more are several.

How `beside MiB` grows from several blocks to many:

{growth}

Where a measurement streams, what grows with the examples is what is known of each: one value a condition and metric
once more while the blocks' are put together (4 bytes each), a mask [dest source] of who reads whom, and for `sweep` the
columns of its frame while they are put together. A `mean`'s donor is held whole at its sites, `resample` and `shuffle`
draw over the whole batch, which is one block, and `record` holds what it was asked for.

## The machine

{machine}

To measure it anew: `python -m analyses.memory_benchmark`.
"""


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("--one", nargs=2)
    given = asked.parse_args().one
    if given:
        print(json.dumps(one(given[0], int(given[1]))))
    else:
        main()
