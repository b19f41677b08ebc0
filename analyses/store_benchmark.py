"""How long a store of many cells takes: listed, planned from, gone on from, read, and its index made anew."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from tasks.lookup import Lookup
from workbench import Edges, ModelConfig, Store, Study, Transformer, scale
from workbench.cells import Naming, groups
from workbench.checkpoints import Trained
from workbench.holdings import holdings
from workbench.measuring import measure, shared
from workbench.store import INDEX
from workbench.studies import as_trained
from workbench.tables import to_markdown
from workbench.work import Part, Work

SIZES = (1_000, 10_000, 100_000)
CONDITIONS = 500
EXAMPLES = 100


def main(sizes: tuple[int, ...] = SIZES) -> pd.DataFrame:
    """Prints and gives a table, a row a size; numbers are seconds but for cells and rows per second.

    A study of 500 conditions whose cells are in a store, but for the last model's last block. write: all other cells.
    list: what `workbench runs list` says. plan: what is missing, known by a process that knows nothing yet. first: from
    nothing to where the first missing cell is measured, models and examples made ready. read: all rows, each block once
    and checked. frame: the results frame of them, checked. rebuild: the listing where the index is lost.
    """
    table = pd.DataFrame([_row(size) for size in sizes])
    print(to_markdown(table))
    return table


def _row(size: int) -> dict[str, float]:
    home = Path(tempfile.mkdtemp(prefix="store-benchmark-"))
    try:
        study, models = _study(), _models(size // CONDITIONS)
        store = Store(home / "cells")
        out: dict[str, float] = {"cells": size, "write": _seconds(lambda: _write(store, study, models))}
        time.sleep(2.5)  # a store that is being written is looked through each time
        holdings(home)
        out["list"] = _seconds(lambda: holdings(home))
        out |= _gone_on(Store(home / "cells"), study, models)
        (home / "cells" / INDEX).unlink()
        out["rebuild"] = _seconds(lambda: holdings(home))
        return out
    finally:
        shutil.rmtree(home)


def _study() -> Study:
    where = Edges(layer=1, dest="last", source="answer")
    edited = {f"times {by}": (scale(where, by=by),) for by in np.linspace(0.5, 2, CONDITIONS - 1).tolist()}
    return Study(conditions={"clean": (), **edited}, metrics=("accuracy", "loss"), n=EXAMPLES, data_seed=0)


def _models(number: int) -> dict[str, list[Any]]:
    task = Lookup()
    config = ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.length, d_model=8, n_layers=2, n_heads=1, norm="post")
    return {"two layers": [Transformer(config, seed=seed).eval() for seed in range(number)]}


def _write(store: Store, study: Study, models: dict[str, list[Any]]) -> None:
    random = np.random.default_rng(0)
    some = cycle(_cell(random) for _ in range(97))
    known: list[Trained] = as_trained(models)["two layers"]
    naming = Naming(shared(study, Lookup()))
    for trained in known:
        keys, several = naming.keys(trained), groups(study.conditions)
        for group in several[:-1] if trained is known[-1] else several:
            said = {"task": "lookup", "model": "two layers", "model_seed": trained.seed, "notes": []}
            said["weights_sha256"] = trained.about["weights_sha256"]
            rows = {keys[condition]: next(some) for condition in group}
            store.add(rows, {keys[condition]: {**said, "condition": condition} for condition in group})


def _cell(random: np.random.Generator) -> pd.DataFrame:
    numbers = {name: random.random(EXAMPLES, dtype=np.float32) for name in ("accuracy", "loss")}
    example, skipped = np.arange(EXAMPLES, dtype=np.int32), pd.array([None] * EXAMPLES, dtype="str")
    return pd.DataFrame({"example": example, "skipped": skipped, **numbers})


def _gone_on(store: Store, study: Study, models: dict[str, list[Any]]) -> dict[str, float]:
    """What `run_study` does, one step after the other."""
    start = time.perf_counter()
    part = Part(shared(study, Lookup()), as_trained(models))
    planning = time.perf_counter()
    work = Work([part], store, SimpleNamespace(reset=id, refresh=int, update=id))
    (order,) = work.orders()
    planned = time.perf_counter()
    missing = work.begin(order, False)
    begun = time.perf_counter()
    assert missing
    work.measured(order, measure(part.common, order.trained.model, missing))
    out = {"plan": planned - planning, "first": begun - start, "read": _seconds(work.collect)}
    reading = time.perf_counter()
    frame, _ = work.frame(0)
    out["frame"] = time.perf_counter() - reading
    return {**out, "rows per s": len(frame) / (out["read"] + out["frame"])}


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SIZES)
