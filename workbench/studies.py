"""Studies run: every cell measured once, kept in a store, and put together as the results frame."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from workbench import cells as cells_of
from workbench.batch import Batch
from workbench.checkpoints import Trained
from workbench.checkpoints import home as place
from workbench.declared import models_of
from workbench.executors import Order, execute_orders
from workbench.interventions import donor_names
from workbench.measuring import Cell, Shared, named, shared
from workbench.metrics import METRICS
from workbench.nearest import nearest
from workbench.schema import check
from workbench.store import Store
from workbench.study import Study, for_model
from workbench.task import Task

NOTES = ["model", "model_seed", "condition", "note"]


def run_study(
    study: Study,
    task: Task,
    models: Mapping[str, Sequence[Trained]],
    *,
    store: Store | Path | str | None = None,
    executor: str = "local",
    processes: int | None = None,
    address: str | None = None,
    progress: bool = True,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The results frame of a study, and its notes (model, model_seed, condition, note).

    models: label → trained models, each with a model seed of its own, or wrapped ones, numbered in order. Every
    condition of a model sees the same examples. A condition that cannot run raises the error of `run` with the
    condition's and the task's name before it; an example without any edge of a weight counts as missing, as one that a
    condition cannot act on does.
    store: where cells are kept; those that are there are not measured again, and a study that was stopped goes on.
    executor: "local", "pool" (in `processes` worker processes) or "ray" (on the cluster at `address`).

    Raises KeyError for an unknown metric or donor, ValueError where there is no model.
    """
    if not hasattr(task, "sample"):
        mend = 'make it Examples("name", batch)' if isinstance(task, Batch) else "a task has name, sample(n, seed), ..."
        raise TypeError(f"the task is a {type(task).__name__}: {mend}")
    _check(study, task)
    if study.only:
        raise ValueError("conditions for some models only are run by run_declared; leave `only` out")
    known = as_trained(models)
    common = shared(study, task)
    kept = store if isinstance(store, Store) or store is None else Store(store)
    work = _Work(common, known, kept, progress)
    with ExitStack() as open_things:
        open_things.callback(work.let_go)
        work.bar = open_things.enter_context(
            tqdm(total=work.n_cells, desc="measuring", unit="cell", disable=None if progress else True)
        )
        execute_orders(executor, common, work.orders(), work.begin, work.measured, processes=processes, address=address)
    return work.frame()


def run_declared(
    study: Study,
    *,
    home: Path | str | None = None,
    executor: str = "local",
    processes: int | None = None,
    address: str | None = None,
    progress: bool = True,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """As `run_study`, on the task and the models that the study itself declares; models that are missing are trained.

    Cells are kept in `home` (`$WORKBENCH_HOME`, or ./runs). Raises ValueError for a study that declares no task or no
    models.
    """
    if study.task is None or not study.models:
        raise ValueError("this study declares no task or no models; hand them to run_study, or declare task and models")
    task = study.task.made()
    models = models_of(study.models, task, home=home, progress=progress)
    store = Store(place(home) / "cells")
    found = [
        run_study(
            for_model(study, label), task, {label: several}, store=store, executor=executor, processes=processes,
            address=address, progress=progress,
        )
        for label, several in models.items()
    ]  # fmt: skip
    frame = joined([one for one, _ in found])
    return frame, pd.concat([notes for _, notes in found], ignore_index=True)


def _check(study: Study, task: Task) -> None:
    unknown = [name for name in study.metrics if name not in METRICS]
    if unknown:
        raise KeyError(f"no metric {unknown[0]!r}. {nearest(unknown[0], list(METRICS))}")
    for condition, interventions in study.conditions.items():
        if undeclared := sorted(donor_names(interventions) - set(study.donors)):
            say = f"no donor {undeclared[0]!r} is declared in the study. {nearest(undeclared[0], sorted(study.donors))}"
            raise named(KeyError(say), f"condition {condition!r}", task)


def as_trained(models: Mapping[str, Sequence[Any]]) -> dict[str, list[Trained]]:
    """The models as trained ones, a bare model numbered by its place; checked."""
    if not isinstance(models, Mapping) or not all(isinstance(several, Sequence) for several in models.values()):
        raise TypeError("models come as lists by label, as {'two layers': [trained, ...]}, also when there is one")
    known = {label: [_numbered(i, one) for i, one in enumerate(several)] for label, several in models.items()}
    _check_models(known)
    return known


def _numbered(number: int, one: Any) -> Any:
    if not all(hasattr(one, name) for name in ("parts", "sees", "logits")):
        return one
    digest = hashlib.sha256()
    for name, value in one.state_dict().items():
        digest.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return Trained(one, number, Path(), [], {"weights_sha256": digest.hexdigest()})


def _check_models(models: Mapping[str, Sequence[Trained]]) -> None:
    if not any(models.values()):
        raise ValueError(f"no trained models to study: {dict(models)}; give at least one under some label")
    for label, several in models.items():
        if wrong := [one for one in several if not isinstance(one, Trained)]:
            raise TypeError(f"{label!r} holds a {type(wrong[0]).__name__}; give what `train`, `load` and `wrap` return")
        for what, values in {
            "model seed": [one.seed for one in several],
            "weights": [one.about["weights_sha256"] for one in several if "weights_sha256" in one.about],
        }.items():
            if len(set(values)) < len(values):
                raise ValueError(f"two models under {label!r} have the same {what}; each trained model counts once")


class _Work:
    """What is to be measured, what is done, and what is in hand."""

    bar: Any

    def __init__(self, common: Shared, models: Mapping[str, list[Trained]], store: Store | None, progress: bool):
        self.common, self.models, self.store = common, models, store
        self.cells: dict[tuple[str, int, str], Cell] = {}
        self.keys: dict[tuple[str, int], dict[str, str]] = {}
        self.held: dict[int, set[str]] = {}
        self.n_cells = len(common.study.conditions) * sum(map(len, models.values()))

    def orders(self) -> list[Order]:
        """A block for each model and group of conditions."""
        return [
            Order(label, trained, group)
            for label, several in self.models.items()
            for trained in several
            for group in cells_of.groups(self.common.study.conditions)
        ]

    def _keys(self, order: Order) -> dict[str, str]:
        place = (order.label, order.trained.seed)
        if place not in self.keys:
            self.keys[place] = cells_of.keys(self.common, order.trained)
        return {condition: self.keys[place][condition] for condition in order.conditions}

    def begin(self, order: Order, waiting: bool) -> Sequence[str] | None:
        """The conditions of an order that are still to be measured; None where another process has one in hand."""
        if self.store is None:
            return order.conditions
        keys = self._keys(order)
        self._found(order, keys)
        if not (wanted := self._left(order, keys)):
            return []
        if not self.store.take(wanted, waiting):
            return None
        self.held[id(order)] = wanted
        self._found(order, keys)
        return [condition for condition, key in keys.items() if key in self._left(order, keys)]

    def _left(self, order: Order, keys: Mapping[str, str]) -> set[str]:
        """The keys of the cells of an order that are neither in the store nor measured."""
        return {key for name, key in keys.items() if (order.label, order.trained.seed, name) not in self.cells}

    def _found(self, order: Order, keys: Mapping[str, str]) -> None:
        """Takes over the cells that are in the store; those of the same definition that were measured on other weights
        than these are measured again."""
        assert self.store is not None
        weights, about = order.trained.about.get("weights_sha256"), self.store.about(list(keys.values()))
        if old := [key for key, said in about.items() if said.get("weights_sha256") != weights]:
            self.store.set_aside(old)
        found = self.store.read([key for key in about if key not in old])
        for condition, key in keys.items():
            if key in found:
                cell = Cell(found[key], tuple(about[key].get("notes", ())))
                self.cells[order.label, order.trained.seed, condition] = cell

    def let_go(self) -> None:
        """Leaves what is in hand to others."""
        for keys in self.held.values():
            assert self.store is not None
            self.store.give(keys)
        self.held.clear()

    def measured(self, order: Order, cells: dict[str, Cell]) -> None:
        """Keeps the cells of an order, and lets others at it."""
        for condition, cell in cells.items():
            self.cells[order.label, order.trained.seed, condition] = cell
        if self.store is not None:
            if cells:
                keys = self._keys(order)
                said = {
                    keys[condition]: {
                        "task": self.common.task.name,
                        "model": order.label,
                        "model_seed": order.trained.seed,
                        "condition": condition,
                        "weights_sha256": order.trained.about.get("weights_sha256"),
                        "notes": list(cell.notes),
                    }
                    for condition, cell in cells.items()
                }
                self.store.add({keys[condition]: cell.rows for condition, cell in cells.items()}, said)
            self.store.give(self.held.pop(id(order), ()))
        self.bar.update(len(order.conditions))

    def frame(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The results frame and the notes, in the study's order whatever was done first."""
        blocks, notes = [], []
        for label, several in self.models.items():
            for trained in several:
                for condition in self.common.study.conditions:
                    cell = self.cells[label, trained.seed, condition]
                    blocks.append(cell.rows.assign(model=label, model_seed=trained.seed, condition=condition))
                    notes += [(label, trained.seed, condition, note) for note in cell.notes]
                if elsewhere := _trained_elsewhere(trained, self.common.task):
                    notes.append((label, trained.seed, "every", elsewhere))
        frame = _frame(blocks, list(self.models), self.common.study)
        frame.attrs["examples"] = self.common.batch.digest()
        frame.attrs["measured"] = {
            label: {
                str(one.seed): {"examples": frame.attrs["examples"], "weights": one.about.get("weights_sha256")}
                for one in several
            }
            for label, several in self.models.items()
        }
        frame.attrs["dtypes"] = {
            label: sorted({_dtype(one.model) for one in several}) for label, several in self.models.items()
        }
        return frame, pd.DataFrame(notes, columns=NOTES)


def _trained_elsewhere(trained: Trained, task: Task) -> str | None:
    """A note where a model was trained on another task than it is studied on."""
    known = trained.about.get("definition", {}).get("task")
    if known is None:
        return None
    if (known.get("name"), known.get("arguments")) == (task.name, task.model_dump()):
        return None
    return f"trained on task {known.get('name')!r} with {known.get('arguments')}, studied on another"


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Several results frames as one, categories in the order in which they first appear.

    Raises ValueError where one model (label and seed) was measured on other examples, or has other weights, in one
    frame than in another: they would be paired though they are not the same.
    """
    known: dict[str, dict[str, dict[str, Any]]] = {}
    dtypes: dict[str, list[str]] = {}
    for frame in frames:
        for label, seeds in frame.attrs.get("measured", {}).items():
            for seed, said in seeds.items():
                _check_same(label, seed, known.setdefault(label, {}).setdefault(seed, said), said)
        for label, several in frame.attrs.get("dtypes", {}).items():
            dtypes[label] = sorted({*dtypes.get(label, ()), *several})
    labels = {
        name: list(dict.fromkeys(c for f in frames for c in f[name].cat.categories))
        for name in ("model", "condition", "skipped")
    }
    out = pd.concat([f.astype({name: object for name in labels}) for f in frames], ignore_index=True)
    out = out.astype({name: _labels(values) for name, values in labels.items()})
    examples = {said["examples"] for seeds in known.values() for said in seeds.values()}
    out.attrs = {"measured": known, "dtypes": dtypes, **({"examples": examples.pop()} if len(examples) == 1 else {})}
    return out


def _check_same(label: str, seed: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    if one["examples"] != other["examples"]:
        raise ValueError(
            f"{label!r}, model seed {seed}, was measured on other examples in one frame than in another; "
            "join studies of one task, n and data seed"
        )
    if one["weights"] != other["weights"]:
        raise ValueError(
            f"{label!r}, model seed {seed}, has other weights in one frame than in another: they are two models; give "
            "them labels or seeds of their own (bare models are numbered by their place in the list)"
        )


def _labels(known: Sequence[str]) -> pd.CategoricalDtype:
    """A category of text even where there is none yet: Parquet forgets a category of nothing in particular."""
    return pd.CategoricalDtype(pd.Index(known, dtype="str"))


def _dtype(model: Any) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def _frame(blocks: Sequence[pd.DataFrame], models: Sequence[str], study: Study) -> pd.DataFrame:
    """The columns are in the study's order, whatever the order in which stored cells were once measured."""
    frame = pd.concat(blocks, ignore_index=True)
    reasons = sorted({reason for reason in frame["skipped"] if isinstance(reason, str)})
    labels = {"model": _labels(models), "condition": _labels(list(study.conditions)), "skipped": _labels(reasons)}
    frame = frame.astype(labels | {"model_seed": np.int64})
    frame = frame[["model", "model_seed", "condition", "example", "skipped", *study.metrics, *study.weights]]
    check(frame)
    return frame
