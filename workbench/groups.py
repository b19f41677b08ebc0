"""Conditions that are computed together: the same edits at the same sites, and as many affected rows in each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from workbench.affected import Affected, Masks
from workbench.edits import Edit
from workbench.hooks import Key
from workbench.sites import site


@dataclass(frozen=True, eq=False)
class Rows:
    """Some positions of each example in each cell. index, real [example cell row]: where an example has fewer, the
    first is repeated and is not real. Of one example where all are alike."""

    index: Tensor
    real: Tensor

    @cached_property
    def flat(self) -> Tensor:
        """[example cell·row]"""
        return rearrange(self.index, "b cell row -> b (cell row)")

    def among(self, others: Rows | None) -> Places | None:
        """Where each stands in `others`; None where none does."""
        if others is None:
            return None
        n = 1 + int(torch.maximum(self.index.max(), others.index.max()))
        places = torch.full((*others.index.shape[:2], n + 1), -1, dtype=torch.long, device=self.index.device)
        numbers = torch.arange(others.index.shape[2], device=self.index.device).expand_as(others.index)
        places.scatter_(2, torch.where(others.real, others.index, n), numbers)
        places[..., n] = -1
        found = places.gather(2, self.index)
        if not bool((found >= 0).any()):
            return None
        same = found.shape == numbers.shape and torch.equal(found, numbers)
        return Places(found, same)

    def of(self, examples: slice) -> Rows:
        """In some examples."""
        return self if len(self.index) == 1 else Rows(self.index[examples], self.real[examples])


@dataclass(frozen=True, eq=False)
class Places:
    """Where rows stand among others [example cell row], −1 where they do not; same: all of them, in the same order."""

    index: Tensor
    same: bool

    def of(self, examples: slice) -> Places:
        """In some examples."""
        return self if len(self.index) == 1 else Places(self.index[examples], self.same)

    def pick(self, new: Tensor, otherwise: Tensor | None) -> Tensor:
        """The rows' values [example cell·row ...]: of the others, `new`, where they stand among them, and `otherwise`
        elsewhere."""
        if self.same:
            return new
        cells = self.index.shape[1]
        by_cell = rearrange(new, "b (cell row) ... -> b cell row ...", cell=cells)
        index = self.index.clamp_min(0).expand(len(new), -1, -1)
        wide = index.reshape(*index.shape, *(1,) * (by_cell.ndim - 3)).expand(*index.shape, *by_cell.shape[3:])
        found = rearrange(by_cell.gather(2, wide), "b cell row ... -> b (cell row) ...")
        there = rearrange(self.index >= 0, "b cell row -> b (cell row)")
        if otherwise is None:
            return found
        return torch.where(there.reshape(*there.shape, *(1,) * (found.ndim - 2)), found, otherwise)

    @property
    def whole(self) -> bool:
        """Whether all of the rows stand there."""
        return self.same or bool((self.index >= 0).all())


def rows_of(mask: Masks) -> Rows | None:
    """The positions of a mask [cell example pos]; None where there are none at all."""
    most = int(mask.sum(-1).max())
    if most == 0:
        return None
    by_example = rearrange(mask, "cell b pos -> b cell pos")
    order = torch.argsort(~by_example, dim=2, stable=True)[..., :most]
    real = by_example.gather(2, order)
    return Rows(torch.where(real, order, order[..., :1]), real)


@dataclass(frozen=True, eq=False)
class LayerRows:
    """What of one layer is computed: vectors that enter, sources of attention and of cross-attention, vectors that
    leave; None where there are none. And where they stand: entering among the vectors that left the layer before,
    source and leaving among those that enter, crossed among those that left the encoder."""

    entering: Rows | None
    source: Rows | None
    crossed: Rows | None
    leaving: Rows | None
    entering_from: Places | None = None
    source_from: Places | None = None
    crossed_from: Places | None = None
    leaving_from: Places | None = None

    def of(self, examples: slice) -> LayerRows:
        """In some examples."""
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        return LayerRows(**{name: None if value is None else value.of(examples) for name, value in parts.items()})


@dataclass(frozen=True, eq=False)
class Stacked:
    """An edit of every cell of a group, made at once. index: its place in each cell's list."""

    index: int
    edits: Sequence[Edit]
    _known: dict[Any, Edit] = field(default_factory=dict)

    def on(self, target: Tensor, rows: Rows, examples: slice) -> Tensor:
        """A site's rows with the edit made, [example cell·row head width] or [example head cell·row source]."""
        edit = self._narrowed(rows, examples)
        axis, heads = site(edit.site).head_axis, {one.head for one in self.edits}
        if axis is None or len(heads) == 1:
            return edit.on(target, slice(None), None)
        after = edit.on(target, slice(None), None)
        number = torch.arange(target.shape[axis], device=target.device)
        own = torch.tensor([-1 if one.head is None else one.head for one in self.edits], device=target.device)
        chosen = ((own[:, None] == number) | (own[:, None] < 0)).repeat_interleave(rows.index.shape[2], 0)
        chosen = chosen[..., None] if axis == 2 else rearrange(chosen, "row head -> head row 1")
        return torch.where(chosen, after, target)

    def rows(self, rows: Rows, examples: slice) -> Tensor:
        """Which of the rows computed the edit is made in [example cell row]."""
        return rearrange(self._narrowed(rows, examples).rows, "b (cell row) -> b cell row", cell=len(self.edits))

    def everywhere(self, rows: Rows, examples: slice) -> bool:
        """Whether the edit is made at all of these rows."""
        n = len(rows.index)
        asked = [(edit.rows_of(1) if n == 1 else edit.rows[examples]) for edit in self.edits]
        return all(bool(mask.gather(1, rows.index[:, cell]).all()) for cell, mask in enumerate(asked))

    @cached_property
    def alike(self) -> bool:
        """Whether it is the same in every example."""
        return all(edit.spread for edit in self.edits)

    def _narrowed(self, rows: Rows, examples: slice) -> Edit:
        """One edit of all cells, at the rows computed; the same for every chunk where all examples are alike."""
        alike = len(rows.index) == 1 and self.alike
        if alike and id(rows) in self._known:
            return self._known[id(rows)]
        here = slice(0, 1) if alike else examples
        parts = [edit.narrowed(here, rows.index[:, cell]) for cell, edit in enumerate(self.edits)]
        selected = torch.cat([selected for selected, _ in parts], 1)
        if selected.ndim == 3:
            selected = selected.movedim(-1, 0).contiguous().movedim(0, -1)  # as rows computed side by side lie
        tensors = {name: torch.cat([more[name] for _, more in parts], 1) for name in parts[0][1]}
        heads = {edit.head for edit in self.edits}
        one = replace(
            self.edits[0],
            head=next(iter(heads)) if len(heads) == 1 else None,
            selected=selected,
            tensors=tensors,
            made=None,
            erases=None,
        )
        if alike:
            self._known[id(rows)] = one
        return one


@dataclass(frozen=True, eq=False)
class Group:
    """Cells computed together. layers: (part, layer) → what is computed there; edits: site → the edits made there, in
    the order of the lists; at: site → the rows that are affected before its edits [cell example pos]."""

    cells: Sequence[int]
    layers: dict[tuple[str, int], LayerRows]
    edits: dict[Key, list[Stacked]]
    at: dict[Key, Masks]

    @property
    def most(self) -> int:
        """The most rows of a cell that a layer computes."""
        every = [rows for one in self.layers.values() for rows in (one.entering, one.source, one.leaving, one.crossed)]
        return max((rows.index.shape[2] for rows in every if rows), default=1)

    @property
    def n_edits(self) -> int:
        return sum(map(len, self.edits.values()))


def grouped(cells: Sequence[Sequence[Edit]], found: Affected, most: int) -> list[Group]:
    """The cells by what they have in common, at most `most` rows of a layer's cells together.

    Cells of which nothing that matters leaves the last layer are in no group.
    """
    counts = _counts(found)
    reading = max((key for key in found.layers if key[0] != "encoder"), key=lambda key: key[1])
    reached = found.layers[reading].leaving.any(-1).any(-1).tolist()
    alike: dict[Any, list[int]] = {}
    for cell, edits in enumerate(cells):
        if reached[cell]:
            signature = (tuple((edit.key, edit.alike) for edit in edits), tuple(counts[cell]))
            alike.setdefault(signature, []).append(cell)
    out = []
    for (_, rows), members in alike.items():
        size = max(1, most // max(1, *rows))
        out += [_group(cells, found, members[at : at + size]) for at in range(0, len(members), size)]
    return out


def _counts(found: Affected) -> list[list[int]]:
    """For each cell, how many rows of each kind each layer has at the most, and whether those that leave entered."""
    columns = []
    for one in found.layers.values():
        for mask in (one.entering, one.source, one.leaving, one.crossed):
            if mask is not None:
                columns.append(mask.sum(-1).amax(1))
        columns.append((one.entering & one.leaving).flatten(1).any(1).long())
    return torch.stack(columns, 1).tolist()


def _group(cells: Sequence[Sequence[Edit]], found: Affected, members: Sequence[int]) -> Group:
    layers, left, known = {}, None, None
    for (part, layer), one in found.layers.items():
        if part == "decoder" and layer == 0:
            known, left = left, None
        masks = (one.entering, one.source, one.crossed, one.leaving)
        entering, source, crossed, leaving = (None if one is None else rows_of(one[list(members)]) for one in masks)
        layers[part, layer] = _placed(entering, source, crossed, leaving, left, known)
        left = leaving
    edits: dict[Key, list[Stacked]] = {}
    for index, edit in enumerate(cells[members[0]]):
        edits.setdefault(edit.key, []).append(Stacked(index, [cells[cell][index] for cell in members]))
    at = {key: found.at[key][list(members)] for key in edits}
    return Group(members, layers, edits, at)


def _placed(
    entering: Rows | None,
    source: Rows | None,
    crossed: Rows | None,
    leaving: Rows | None,
    left: Rows | None,
    known: Rows | None,
) -> LayerRows:
    """left: what left the layer before; known: what left the encoder."""
    return LayerRows(
        entering,
        source,
        crossed,
        leaving,
        entering_from=entering.among(left) if entering else None,
        source_from=source.among(entering) if source else None,
        crossed_from=crossed.among(known) if crossed else None,
        leaving_from=leaving.among(entering) if leaving else None,
    )
