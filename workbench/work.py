"""A study being run: what is to be measured, what is in the store, what is in hand, and the frames at the end."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench import cells as cells_of
from workbench.assembly import Rows, piece_of
from workbench.blocks import Piece
from workbench.checkpoints import Trained
from workbench.executors import Order
from workbench.genuine import check_words, departure
from workbench.measuring import Cell, Shared
from workbench.store import Store
from workbench.task import Task
from workbench.workers import unbroken

NOTES = ["model", "model_seed", "condition", "note"]
WEIGHTS = "weights_sha256"


@dataclass(frozen=True, eq=False)
class Part:
    """What ends in one frame: trained models by label, and what all of them are measured on."""

    common: Shared
    models: Mapping[str, Sequence[Trained]]


class Work:
    """The cells of a study by key, each measured once however many labels it has, and which of them are done.

    What is missing is found by the store's index alone; rows are read at the end, each block once. A cell that the
    store cannot keep (there is none, or it keeps the key for the same definition trained to other weights) stays in
    memory.
    """

    def __init__(self, parts: Sequence[Part], store: Store | None, bar: Any):
        self.parts, self.store, self.bar = parts, store, bar
        self.rows = [Rows(part.common, part.models) for part in parts]
        self.keys: list[list[str]] = [[] for _ in parts]
        self.places: dict[str, list[tuple[int, int]]] = {}
        self.weights: dict[str, str | None] = {}
        self.apart: set[str] = set()
        self.done: set[str] = set()
        self.cells: dict[str, Cell] = {}
        self.notes: dict[str, Sequence[str]] = {}
        self.held: dict[int, set[str]] = {}
        self.departs: dict[int, str | None] = {}
        self.again = False
        self._all = [order for number in range(len(parts)) for order in self._orders(number)]
        if store is not None:
            self.done |= self._recorded(self.weights.keys() - self.apart)[0]
        self._show(sum(map(len, self.keys)), sum(len(self.places[key]) for key in self.done))

    def _show(self, total: int, done: int) -> None:
        """What is there already says nothing of how fast the rest is measured."""
        self.bar.reset(total)
        self.bar.initial = self.bar.n = done
        self.bar.refresh()

    def _orders(self, number: int) -> list[Order]:
        """A block for each model and group of conditions, without conditions that are the same as earlier ones."""
        part, out = self.parts[number], []
        naming = None if self.store is None else cells_of.Naming(part.common)
        same = cells_of.edits(part.common.study)
        for label, several in part.models.items():
            for trained in several:
                check_words(label, trained, part.common.batch)
                local = {condition: f"{number} {label} {trained.seed} {text}" for condition, text in same.items()}
                first = self._entered(number, trained, naming.keys(trained) if naming else local, naming is None)
                out += [
                    Order(number, label, trained, {condition: first[condition] for condition in group})
                    for group in cells_of.groups(first)
                ]
        return out

    def _entered(self, number: int, trained: Trained, named: Mapping[str, str], apart: bool) -> dict[str, str]:
        """Enters the cells of a model in the order of its frame; gives those that are new."""
        weights, first = trained.about.get(WEIGHTS), {}
        departs = self.departs[id(trained.model)] = departure(trained.model)
        for condition, cell in named.items():
            key = f"{cell} as it stands in {number} {trained.seed} {id(trained.model)}" if departs else cell
            name = key if self.weights.setdefault(key, weights) == weights else f"{key} in the weights {weights}"
            if apart or departs or name != key:
                self.apart.add(name)
            if name not in self.places:
                first[condition] = name
            self.places.setdefault(name, []).append((number, len(self.keys[number])))
            self.keys[number].append(name)
        return first

    def orders(self) -> list[Order]:
        """The blocks of which something is still to be measured."""
        return [order for order in self._all if self._left(order)]

    def _left(self, order: Order) -> dict[str, str]:
        return {condition: key for condition, key in order.cells.items() if key not in self.done}

    def _recorded(self, keys: Collection[str]) -> tuple[set[str], list[str]]:
        """The cells that are in the store, and those there of the same definition that were measured on other
        weights."""
        assert self.store is not None
        found = self.store.recorded(keys, WEIGHTS)
        return (
            {key for key, weights in found.items() if weights == self.weights[key]},
            [key for key, weights in found.items() if weights != self.weights[key]],
        )

    def _finish(self, keys: Iterable[str]) -> None:
        new = set(keys) - self.done
        self.done |= new
        self.bar.update(sum(len(self.places[key]) for key in new))

    def begin(self, order: Order, waiting: bool) -> Sequence[str] | None:
        """The conditions of an order that are still to be measured; None where another process has one in hand."""
        left = self._left(order)
        wanted = set(left.values()) - self.apart
        if self.store is None or not wanted:
            return list(left)
        while not self._take(order, wanted):
            if not waiting:
                return None
            time.sleep(0.05)
        there, old = self._recorded(wanted)
        if old:
            self.store.set_aside(old)
        self._finish(there)
        return list(self._left(order))

    def _take(self, order: Order, wanted: set[str]) -> bool:
        """Whether these cells are in hand now; never taken and not noted, or the other way round."""
        assert self.store is not None
        with unbroken():
            if taken := self.store.take(wanted):
                self.held[id(order)] = wanted
        return taken

    def _give(self, orders: Collection[int]) -> None:
        with unbroken():
            for order in orders:
                assert self.store is not None
                self.store.give(self.held.pop(order, ()))

    def let_go(self) -> None:
        """Leaves what is in hand to others."""
        self._give(tuple(self.held))

    def measured(self, order: Order, cells: Mapping[str, Cell]) -> None:
        """Keeps the cells of an order, and lets others at it."""
        found = {order.cells[condition]: cell for condition, cell in cells.items()}
        self.cells |= {key: cell for key, cell in found.items() if self.again or key in self.apart}
        if self.store is not None:
            named = {key: condition for condition, key in order.cells.items()}
            kept = {key: cell for key, cell in found.items() if key not in self.apart}
            if kept:
                said = {key: self._said(order, named[key], cell) for key, cell in kept.items()}
                self.store.add({key: cell.rows for key, cell in kept.items()}, said)
            self._give([id(order)])
        self._finish(found)

    def _said(self, order: Order, condition: str, cell: Cell) -> dict[str, Any]:
        return {
            "task": self.parts[order.part].common.task.name,
            "model": order.label,
            "model_seed": order.trained.seed,
            "condition": condition,
            WEIGHTS: order.trained.about.get(WEIGHTS),
            "notes": list(cell.notes),
        }

    def collect(self) -> bool:
        """Puts the rows of every cell in their place; False where some were lost since they were found: they are to be
        measured again, and are then kept in memory, so that this ends."""
        self._read(self.done - self.notes.keys() - self.cells.keys())
        for key, cell in self.cells.items():
            self._put(key, piece_of(cell.rows), cell.notes)
        lost = self.done - self.notes.keys()
        self.done -= lost
        self.bar.update(-sum(len(self.places[key]) for key in lost))
        self.again = True
        return not lost

    def _read(self, wanted: Collection[str]) -> None:
        """Puts what is in the store in its place. Cells of other weights, which another process has put there since,
        are left; `begin` moves them aside."""
        if self.store is None or not wanted:
            return
        unfit = []
        for key, said, piece in self.store.scan(list(wanted)):
            if not all(self.rows[number].fits(piece) for number, _ in self.places[key]):
                unfit.append(key)
            elif said.get(WEIGHTS) == self.weights[key]:
                self._put(key, piece, said.get("notes", ()))
        if unfit:
            self.store.set_aside(unfit)

    def _put(self, key: str, piece: Piece, notes: Sequence[str]) -> None:
        for number, cell in self.places[key]:
            self.rows[number].fill(cell, piece)
        self.notes[key] = notes

    def frame(self, number: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The results frame and the notes of a part, in the study's order whatever was done first."""
        common, models = self.parts[number].common, self.parts[number].models
        notes, keys = [], iter(self.keys[number])
        for label, several in models.items():
            for trained in several:
                for condition in common.study.conditions:
                    notes += [(label, trained.seed, condition, note) for note in self.notes[next(keys)]]
                if elsewhere := _trained_elsewhere(trained, common.task):
                    notes.append((label, trained.seed, "every", elsewhere))
                if departs := self.departs[id(trained.model)]:
                    notes.append((label, trained.seed, "every", departs))
        frame = self.rows[number].frame()
        edits = cells_of.edits(common.study)
        frame.attrs.update(attributes(models, common.batch.digest(), dict.fromkeys(models, edits)))
        return frame, pd.DataFrame(notes, columns=NOTES)


def attributes(
    models: Mapping[str, Sequence[Trained]], examples: str, edits: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """What a results frame says in its `attrs` of what was measured: examples and weights of each trained model, what
    the conditions of each label are, and in which dtypes.

    examples: the digest of the batch. edits: label → condition → its interventions as text.
    """
    return {
        "examples": examples,
        "measured": {
            label: {str(one.seed): {"examples": examples, "weights": one.about.get(WEIGHTS)} for one in several}
            for label, several in models.items()
        },
        "conditions": dict(edits),
        "dtypes": {label: sorted({_dtype(one.model) for one in several}) for label, several in models.items()},
    }


def _trained_elsewhere(trained: Trained, task: Task) -> str | None:
    """A note where a model was trained on another task than it is studied on."""
    known = trained.about.get("definition", {}).get("task")
    if known is None:
        return None
    if (known.get("name"), known.get("arguments")) == (task.name, task.model_dump()):
        return None
    return f"trained on task {known.get('name')!r} with {known.get('arguments')}, studied on another"


def _dtype(model: Any) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")
