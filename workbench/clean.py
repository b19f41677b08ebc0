"""The clean run of some examples, as what is computed at a few rows needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from workbench.anatomy import last_layer
from workbench.arguments import is_finite
from workbench.groups import Rows
from workbench.hooks import Key
from workbench.rows import side_by_side
from workbench.scene import Scene
from workbench.sites import split

ROWS = ("scores", "pattern")


@dataclass(eq=False)
class Clean:
    """The clean run of the examples of a slice.

    logits [example read d_vocab]; read [example read]: the positions that the last layer holds, None where it holds
    all. record: what records sites of the whole run that were not foreseen.
    """

    scene: Scene
    logits: Tensor
    read: Tensor | None
    values: dict[Key, Tensor]
    record: Callable[[Key], Tensor]
    examples: slice = field(default_factory=lambda: slice(None))
    _own: dict[Any, Any] = field(default_factory=dict)
    shared: dict[Any, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.logits)

    def of(self, examples: slice) -> Clean:
        """Of some of the examples; what is recorded is shared."""
        read = None if self.read is None else self.read[examples]
        return replace(self, logits=self.logits[examples], read=read, examples=examples, _own={})

    def value(self, key: Key) -> Tensor:
        """A site's tensor."""
        if key not in self.values:
            self.values[key] = self.record(key)
        return self.values[key][self.examples]

    def made(self, key: Key, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What is made of a site's tensor, once for all examples."""
        if ("made", key) not in self.shared:
            self.value(key)
            self.shared["made", key] = make(self.values[key])
        found: Tensor = self.shared["made", key][self.examples]
        return found

    @cached_property
    def finite(self) -> bool:
        """Whether no logit is NaN or infinite."""
        return is_finite(self.logits)

    @property
    def reading(self) -> Tensor:
        """The positions of the logits [example read]."""
        if self.read is not None:
            return self.read
        return torch.arange(self.logits.shape[1], device=self.logits.device).expand(len(self), -1)

    def at(self, key: Key, rows: Rows) -> Tensor:
        """A site's rows [example cell·row ...]; of scores and weights [example head cell·row source]."""
        value = self.value(key)
        index = self.once(("index", key), rows, lambda: self._index(key, rows))
        weighed = split(key[0])[1] in ROWS
        axis = 2 if weighed else 1
        if len(index) == 1 and weighed and side_by_side(value):
            by_source = self._source_first(key)
            if self.single(key, rows):
                one = by_source.narrow(3, self._one(key, rows), 1)
                return one.expand(-1, -1, -1, index.shape[1]).contiguous().movedim(0, -1)
            return by_source.index_select(3, index[0]).movedim(0, -1)
        if len(index) == 1:
            return value.index_select(axis, index[0])
        taken = value.movedim(axis, 1)[torch.arange(len(value), device=index.device)[:, None], index]
        return taken.movedim(1, axis)

    def _source_first(self, key: Key) -> Tensor:
        """Scores or weights [source example head row], as rows that are normalised side by side lie in memory."""
        name = "source first", key
        if name not in self._own:
            self._own[name] = self.value(key).movedim(-1, 0).contiguous()
        found: Tensor = self._own[name]
        return found

    def viewed(self, key: Key, rows: Rows) -> Tensor:
        """As `at`, but where all rows are the same one it is a view of it, which must not be written to."""
        if not self.single(key, rows):
            return self.at(key, rows)
        n_rows, axis = rows.flat.shape[1], 2 if split(key[0])[1] in ROWS else 1
        value = self.value(key).narrow(axis, self._one(key, rows), 1)
        return value.expand(*value.shape[:axis], n_rows, *value.shape[axis + 1 :])

    def _one(self, key: Key, rows: Rows) -> int:
        """Where the row stands that all rows are."""
        found: int = self.once(("one", key), rows, lambda: int(self._index(key, rows)[0, 0]))
        return found

    def single(self, key: Key, rows: Rows) -> bool:
        """Whether all rows are the same one, in all examples."""

        def find() -> bool:
            index = self.once(("index", key), rows, lambda: self._index(key, rows))
            return len(index) == 1 and bool((index == index[0, 0]).all())

        found: bool = self.once(("single", key), rows, find)
        return found

    def once(self, name: Any, rows: Rows, find: Callable[[], Any]) -> Any:
        """What follows from rows and masks: found once where all examples are alike, else once for these examples."""
        known = self.shared if len(rows.index) == 1 else self._own
        if (name, id(rows)) not in known:
            known[name, id(rows)] = (rows, find())  # the rows are kept, so that no others take their number
        return known[name, id(rows)][1]

    def _index(self, key: Key, rows: Rows) -> Tensor:
        """Where rows stand in a site's tensor [example cell·row]."""
        index = rows.flat
        if self.read is None or not last_layer(self.scene.model, *key):
            return index
        read = self.read[: len(index)]
        slots = torch.zeros(len(index), self.scene.batch.tokens.shape[1], dtype=torch.long, device=index.device)
        slots.scatter_(1, read, torch.arange(read.shape[1], device=index.device).expand_as(read))
        return slots.gather(1, index)

    def seen(self, part: str, layer: int, rows: Rows) -> Tensor:
        """Which sources rows read [example cell·row source]."""
        return self.once(("seen", part, layer), rows, lambda: self._seen(part, layer, rows))

    def _seen(self, part: str, layer: int, rows: Rows) -> Tensor:
        return _taken(self.scene.sight(part, layer)[self.examples][: self._many(rows)], rows.flat)

    def hidden_between(self, part: str, layer: int, rows: Rows, source: Rows) -> Tensor:
        """Which of some sources rows do not read [example cell row source]."""

        def find() -> Tensor:
            seen = rearrange(self.seen(part, layer, rows), "b (cell row) s -> b cell row s", cell=rows.index.shape[1])
            return ~seen.gather(3, source.index[:, :, None].expand(-1, -1, seen.shape[2], -1))

        return self.once(("hidden", part, layer, id(source)), rows, find)

    def places(self, part: str, rows: Rows) -> Tensor | None:
        """Where rows stand, counted from 0 [example cell·row]; None in cross-attention."""
        if part == "cross":
            return None
        return self.once(("places", part), rows, lambda: _taken(self._places(part, rows), rows.flat))

    def _places(self, part: str, rows: Rows) -> Tensor:
        readers, _ = self.scene.batch.sides(part)
        valid = None if bool(readers.valid.all()) else readers.valid
        at: Tensor = self.scene.model.stack(part).places(readers.tokens, valid)
        return at.expand(len(readers), -1)[self.examples][: self._many(rows)]

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

    def _many(self, rows: Rows) -> int:
        """One example where the rows are those of all."""
        return 1 if len(rows.index) == 1 else len(self)


def _taken(value: Tensor, index: Tensor) -> Tensor:
    """value [example pos ...] at an index [example row]."""
    return value[torch.arange(len(index), device=index.device)[:, None], index]
