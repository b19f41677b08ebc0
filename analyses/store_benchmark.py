"""How long a store of many cells takes: written, listed, gone on from, read, and its index made anew."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.cells import TOGETHER
from workbench.holdings import holdings
from workbench.store import INDEX, Store
from workbench.tables import to_markdown

SIZES = (1_000, 10_000, 100_000)
EXAMPLES = 100


def main(sizes: tuple[int, ...] = SIZES) -> pd.DataFrame:
    """Prints and gives a table, a row a size; every number but the first is seconds.

    write: all cells, in blocks of 16. list: what `workbench runs list` says. resume: which of all cells are missing,
    asked by a process that knows nothing yet. read: all rows. rebuild: the listing where the index is lost.
    """
    table = pd.DataFrame([_row(size) for size in sizes])
    print(to_markdown(table))
    return table


def _row(size: int) -> dict[str, float]:
    home = Path(tempfile.mkdtemp(prefix="store-benchmark-"))
    try:
        keys = [f"{number:020x}" for number in range(size)]
        out: dict[str, float] = {"cells": size, "write": _seconds(lambda: _write(Store(home / "cells"), keys))}
        time.sleep(2.5)  # a store that is being written is looked through each time
        holdings(home)
        out["list"] = _seconds(lambda: holdings(home))
        out["resume"] = _seconds(lambda: Store(home / "cells").missing([*keys, "one that is not there"]))
        out["read"] = _seconds(lambda: _read(Store(home / "cells"), keys))
        (home / "cells" / INDEX).unlink()
        out["rebuild"] = _seconds(lambda: holdings(home))
        return out
    finally:
        shutil.rmtree(home)


def _write(store: Store, keys: list[str]) -> None:
    random = np.random.default_rng(0)
    for group in _groups(keys):
        rows = {
            key: pd.DataFrame(
                {
                    "example": np.arange(EXAMPLES, dtype=np.int32),
                    "skipped": pd.array([None] * EXAMPLES, dtype="str"),
                    "accuracy": random.random(EXAMPLES, dtype=np.float32),
                }
            )
            for key in group
        }
        said = {"task": "lookup", "model": "two layers", "model_seed": 0, "condition": "clean", "notes": []}
        store.add(rows, dict.fromkeys(group, said))


def _read(store: Store, keys: list[str]) -> None:
    for group in _groups(keys):
        assert len(store.read(group)) == len(group)


def _groups(keys: list[str]) -> Iterator[list[str]]:
    for at in range(0, len(keys), TOGETHER):
        yield keys[at : at + TOGETHER]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SIZES)
