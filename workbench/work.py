"""A study being run: what is to be measured, what is in the store, what is in hand, and the frame at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench import cells as cells_of
from workbench.checkpoints import Trained
from workbench.executors import Order
from workbench.measuring import Cell, Shared
from workbench.schema import check
from workbench.store import Store
from workbench.study import Study
from workbench.task import Task

NOTES = ["model", "model_seed", "condition", "note"]


class Work:
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


def labels(known: Sequence[str]) -> pd.CategoricalDtype:
    """A category of text even where there is none yet: Parquet forgets a category of nothing in particular."""
    return pd.CategoricalDtype(pd.Index(known, dtype="str"))


def _dtype(model: Any) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def _frame(blocks: Sequence[pd.DataFrame], models: Sequence[str], study: Study) -> pd.DataFrame:
    """The columns are in the study's order, whatever the order in which stored cells were once measured."""
    frame = pd.concat(blocks, ignore_index=True)
    reasons = sorted({reason for reason in frame["skipped"] if isinstance(reason, str)})
    named = {"model": labels(models), "condition": labels(list(study.conditions)), "skipped": labels(reasons)}
    frame = frame.astype(named | {"model_seed": np.int64})
    frame = frame[["model", "model_seed", "condition", "example", "skipped", *study.metrics, *study.weights]]
    check(frame)
    return frame
