"""Donor values: what `mean`, `resample`, `patch`, `add`, `freeze` put in place, lined up with where it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.anatomy import last_layer
from workbench.batch import UNREAD, Batch
from workbench.hooks import Key
from workbench.interventions import Intervention
from workbench.locations import Edges
from workbench.nearest import nearest
from workbench.passes import execute
from workbench.sites import site

Positions = Literal["all", "read"]


def derangement(n: int, seed: int) -> Tensor:
    """A permutation of `n` that moves every element, uniform over all of them (by rejection)."""
    if n < 2:
        raise ValueError(f"resample needs 2 or more examples, so that none is its own donor; there is {n}")
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(n, generator=generator)
        if not (order == torch.arange(n)).any():
            return order


def partners(mask: Tensor, donor_mask: Tensor, label: str) -> Tensor:
    """For each position of `mask` [batch pos], the donor's position: k-th of the role to k-th. Others get 0.

    Raises ValueError naming the examples whose counts differ.
    """
    unequal = mask.sum(1) != donor_mask.sum(1)
    if unequal.any():
        examples = unequal.nonzero().flatten().tolist()
        raise ValueError(
            f"{label}: the role has another number of positions in the donor, in {len(examples)} of "
            f"{len(mask)} examples "
            f"({', '.join(map(str, examples[:8]))}); choose a donor whose roles have equal sizes, or align='position'"
        )
    order = torch.argsort((~donor_mask).to(torch.int8), dim=1, stable=True)
    rank = (mask.cumsum(1) - 1).clamp_min(0)
    return torch.where(mask, order.gather(1, rank), 0)


def aligned(mask: Tensor, donor: Batch, role: str | None, align: str, label: str) -> Tensor:
    """The donor's position for each position of `mask` [batch pos], by role or by position."""
    if align == "role":
        return partners(mask, donor.role(role), label)
    if (mask & ~donor.valid).any():
        raise ValueError(f"{label}: the donor has padding at some positions asked for; align='role' may serve")
    if role is None and (donor.valid & ~mask).any():
        raise ValueError(
            f"{label}: the donor has more positions than the batch in some examples, and those would be lost; give one "
            "with padding in the same places, or name a role"
        )
    return torch.arange(mask.shape[1], device=mask.device).expand_as(mask)


def check_sizes(shape: tuple[int, int], donor: Batch, label: str) -> None:
    """Donors are matched example by example and position by position. Raises ValueError where the shapes differ."""
    if tuple(donor.tokens.shape) != shape:
        raise ValueError(
            f"{label}: the donor batch is {list(donor.tokens.shape)} [batch pos], the batch {list(shape)}; "
            "the donor's example i stands in for the batch's example i, so both must have the same shape. Texts are "
            "padded to one length when they are made into one batch, which `select` takes apart again"
        )


def take(values: Tensor, positions: Tensor) -> Tensor:
    """values [batch pos ...] at positions [batch pos] of the same example."""
    return values[torch.arange(len(values), device=values.device)[:, None], positions]


def aligned_edges(
    one: Intervention, batch: Batch, donor: Batch, align: str
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The donor's rows [batch dest] that are used, and a function from its weights [batch head dest source] to weights
    lined up with the batch's, [batch dest head source]."""
    where = one.where
    assert isinstance(where, Edges)
    if align == "role" and (where.dest is None or where.source not in batch.sides(where.in_model)[1].roles):
        raise ValueError(f"{one}: align='role' lines up a dest role and a source role; {where} does not name both")
    (readers, sources), (their_readers, their_sources) = batch.sides(where.in_model), donor.sides(where.in_model)
    rows = aligned(readers.role(where.dest), their_readers, where.dest, align, str(one))
    columns = None
    if align == "role":
        columns = partners(sources.role(where.source), their_sources.role(where.source), str(one))

    def line_up(pattern: Tensor) -> Tensor:
        by_dest = take(pattern.movedim(1, 2), rows)
        if columns is None:
            return by_dest
        return by_dest.gather(3, columns[:, None, None, :].expand_as(by_dest))

    return rows, line_up


@dataclass(eq=False)
class Donors:
    """Clean runs of the donor batches, and of the batch itself (under None), recorded once each.

    batch: the examples that run; kept [batch]: their indices in the batch handed in, of `n` examples. A donor that is
    matched with the batch example by example is cut down to the same ones; a reference for means is used whole, and
    what is known of one that is whole holds for other examples too. read [batch read]: the positions that the batch's
    runs compute in the last layer, where it is a part of a larger one.
    """

    model: Any
    batch: Batch
    kept: Tensor
    n: int
    named: Mapping[str, Batch]
    positions: Positions
    chunk_size: int
    read: Tensor | None = None
    _values: dict[tuple, Tensor] = field(default_factory=dict)
    _whole: dict[tuple, Tensor] = field(default_factory=dict)

    def whole(self, name: str, label: str) -> Batch:
        """The donor batch of that name, as it was handed in."""
        if name not in self.named:
            raise KeyError(
                f"{label}: no donor {name!r}; hand it over as donors={{{name!r}: batch}}. "
                f"{nearest(name, sorted(self.named))}"
            )
        return self.named[name]

    def matched(self, name: str | None, label: str) -> Batch:
        """The donor batch of that name, example i standing in for example i; None is the batch itself."""
        if name is None:
            return self.batch
        donor = self.whole(name, label)
        check_sizes((self.n, self.batch.tokens.shape[1]), donor, label)
        if self.batch.context is not None and donor.context is not None:
            check_sizes((self.n, self.batch.context.tokens.shape[1]), donor.context, f"{label}, context")
        return donor if len(self.kept) == self.n else donor.select(self.kept)

    def value(self, name: str | None, donor: Batch, key: Key, needed: Tensor | None) -> Tensor:
        """A site's clean value in the donor, [batch pos ...] or [batch head dest source], at all positions.

        With positions="read" it is recorded under that setting, so that a patch from the same run changes no bit,
        unless `needed` [batch pos] names a position that is not computed there.
        """
        read = self._reading(donor, key, needed)
        kept = (name, len(donor), key, read is None)
        values = self._whole if name is not None and donor is self.named.get(name) else self._values
        if kept not in values:
            value = execute(self.model, donor, read=read, keep=[key], chunk_size=self.chunk_size).kept[key]
            if read is not None and self._only_read(key):
                value = _spread(value, read, site(key[0]).position_axis, donor.tokens.shape[1])
            values[kept] = value
        return values[kept]

    def record_clean(self, keys: Sequence[Key]) -> None:
        """Records several sites of the batch's own clean run in one pass, instead of one each when they are asked
        for."""
        if len(set(keys)) < 2:
            return
        computed = self.batch.labels != UNREAD
        read = self.batch.read_positions() if self.positions == "read" and bool(computed.any()) else None
        together = [key for key in dict.fromkeys(keys) if read is None or not self._only_read(key)]
        if len(together) < 2:
            return
        values = execute(self.model, self.batch, read=read, keep=together, chunk_size=self.chunk_size).kept
        self._values |= {(None, len(self.batch), key, read is None): values[key] for key in together}

    def _only_read(self, key: Key) -> bool:
        return self.model.reads_only and last_layer(self.model, *key)

    def _reading(self, donor: Batch, key: Key, needed: Tensor | None) -> Tensor | None:
        computed = donor.labels != UNREAD
        if self.positions == "all" or not computed.any():
            return None
        if self._only_read(key) and (needed is None or (needed & ~computed).any()):
            return None
        return self.read if donor is self.batch and self.read is not None else donor.read_positions()


def _spread(values: Tensor, read: Tensor, axis: int, n_positions: int) -> Tensor:
    """Values at the read positions put back among all positions; the rest is 0 and never used."""
    by_position = values.movedim(axis, 1)
    out = by_position.new_zeros(len(values), n_positions, *by_position.shape[2:])
    out[torch.arange(len(values), device=read.device)[:, None], read] = by_position
    return out.movedim(1, axis)
