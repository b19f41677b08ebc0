"""The clean run of some examples, as what is computed at a few rows needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from workbench.anatomy import last_layer
from workbench.groups import Rows
from workbench.hooks import Key
from workbench.scene import Scene
from workbench.sites import split

ROWS = ("scores", "pattern")


@dataclass(eq=False)
class Clean:
    """The clean run of the examples of a slice.

    logits [example read d_vocab]; read [example read]: the positions that the last layer holds, None where it holds
    all. record: what records sites of the whole run, for those that were not foreseen.
    """

    scene: Scene
    logits: Tensor
    read: Tensor | None
    values: dict[Key, Tensor]
    record: Callable[[Key], Tensor]
    examples: slice = field(default_factory=lambda: slice(None))
    _known: dict[Any, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.logits)

    def of(self, examples: slice) -> Clean:
        """Of some of the examples; what is recorded is shared."""
        return Clean(
            self.scene,
            self.logits[examples],
            None if self.read is None else self.read[examples],
            self.values,
            self.record,
            examples,
        )

    def value(self, key: Key) -> Tensor:
        """A site's tensor."""
        if key not in self.values:
            self.values[key] = self.record(key)
        return self.values[key][self.examples]

    @property
    def reading(self) -> Tensor:
        """The positions of the logits [example read]."""
        if self.read is not None:
            return self.read
        return torch.arange(self.logits.shape[1], device=self.logits.device).expand(len(self), -1)

    def at(self, key: Key, rows: Rows) -> Tensor:
        """A site's rows [example cell·row ...]; of scores and weights [example head cell·row source]."""
        value, index = self.value(key), rows.flat
        if self.read is not None and last_layer(self.scene.model, *key):
            index = self._slots(len(index)).gather(1, index)
        axis = 2 if split(key[0])[1] in ROWS else 1
        if len(index) == 1:
            return value.index_select(axis, index[0])
        taken = value.movedim(axis, 1)[torch.arange(len(value), device=index.device)[:, None], index]
        return taken.movedim(1, axis)

    def _slots(self, n: int) -> Tensor:
        """Where each position stands among those read [example pos]."""
        assert self.read is not None
        if "slots" not in self._known:
            length = self.scene.batch.tokens.shape[1]
            out = torch.zeros(len(self.read), length, dtype=torch.long, device=self.read.device)
            numbers = torch.arange(self.read.shape[1], device=self.read.device).expand_as(self.read)
            self._known["slots"] = out.scatter(1, self.read, numbers)
        return self._known["slots"][:n]

    def seen(self, part: str, layer: int, rows: Rows) -> Tensor:
        """Which sources rows read [example cell·row source]."""
        sees = self.scene.sight(part, layer)[self.examples][: _many(rows, self)]
        return _taken(sees, rows.flat)

    def seen_between(self, part: str, layer: int, rows: Rows, source: Rows) -> Tensor:
        """Which of some sources rows read [example cell row source]."""
        seen = rearrange(self.seen(part, layer, rows), "b (cell row) s -> b cell row s", cell=rows.index.shape[1])
        return seen.gather(3, source.index[:, :, None].expand(-1, -1, seen.shape[2], -1))

    def places(self, part: str, rows: Rows) -> Tensor | None:
        """Where rows stand, counted from 0 [example cell·row]; None in cross-attention."""
        return None if part == "cross" else _taken(self._places(part, rows), rows.flat)

    def _places(self, part: str, rows: Rows) -> Tensor:
        readers, _ = self.scene.batch.sides(part)
        valid = None if bool(readers.valid.all()) else readers.valid
        at: Tensor = self.scene.model.stack(part).places(readers.tokens, valid)
        return at.expand(len(readers), -1)[self.examples][: _many(rows, self)]

    def bias(self, part: str, attn: Any, rows: Rows) -> Tensor | None:
        """What relative positions add to rows [example head cell·row source]."""
        if not hasattr(attn, "W_rel"):
            return None
        at = self._places(part, rows)
        found: Tensor = attn.bias((_taken(at, rows.flat), at))
        return found

    def bias_between(self, part: str, attn: Any, rows: Rows, source: Rows) -> Tensor | None:
        """What relative positions add between rows and some sources [example head cell row source]."""
        if not hasattr(attn, "W_rel"):
            return None
        at, cells = self._places(part, rows), rows.index.shape[1]
        one, other = (rearrange(_taken(at, x.flat), "b (cell n) -> (b cell) n", cell=cells) for x in (rows, source))
        return rearrange(attn.bias((one, other)), "(b cell) head row s -> b head cell row s", cell=cells)


def _many(rows: Rows, clean: Clean) -> int:
    """One example where the rows are those of all."""
    return 1 if len(rows.index) == 1 else len(clean)


def _taken(value: Tensor, index: Tensor) -> Tensor:
    """value [example pos ...] at an index [example row]."""
    return value[torch.arange(len(index), device=index.device)[:, None], index]
