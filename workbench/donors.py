"""Donor values: what `mean`, `resample`, `patch`, `add`, `freeze` put in place, lined up with where it goes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from workbench.batch import Batch
from workbench.interventions import Edges, Intervention


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
    return torch.arange(mask.shape[1], device=mask.device).expand_as(mask)


def check_sizes(shape: tuple[int, int], donor: Batch, label: str) -> None:
    """Donors are matched example by example and position by position. Raises ValueError where the shapes differ."""
    if tuple(donor.tokens.shape) != shape:
        raise ValueError(
            f"{label}: the donor batch is {list(donor.tokens.shape)} [batch pos], the batch {list(shape)}; "
            "the donor's example i stands in for the batch's example i, so both must have the same shape"
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
    if align == "role" and (where.dest is None or where.source not in batch.roles):
        raise ValueError(f"{one}: align='role' lines up a dest role and a source role; {where} does not name both")
    rows = aligned(batch.role(where.dest), donor, where.dest, align, str(one))
    columns = None
    if align == "role":
        columns = partners(batch.role(where.source), donor.role(where.source), str(one))

    def line_up(pattern: Tensor) -> Tensor:
        by_dest = take(pattern.movedim(1, 2), rows)
        if columns is None:
            return by_dest
        return by_dest.gather(3, columns[:, None, None, :].expand_as(by_dest))

    return rows, line_up
