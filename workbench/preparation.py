"""Everything between a list of interventions and the edits that a pass makes: donors recorded, contradictions
refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench import donors as lining
from workbench.anatomy import Sight, check_place, counted, last_layer
from workbench.batch import UNREAD, Batch
from workbench.donors import Donors
from workbench.edits import Edit, InertIntervention, undone
from workbench.hooks import Key, hook_point
from workbench.interventions import Intervention
from workbench.locations import Edges, Heads
from workbench.operations import Add, Custom, Freeze, Mean, Patch, Path, Resample, Scale
from workbench.paths import check_paths, path_edit
from workbench.resolution import edge_edit, is_empty, positions, selection, site_of
from workbench.sites import split


def check_places(model: Any, interventions: Sequence[Intervention]) -> None:
    """Every layer, head and site exists. Raises KeyError saying what there is, TypeError for what is no
    intervention."""
    if isinstance(interventions, Intervention):
        raise TypeError("interventions come as a list: [cut(...)], also when there is one")
    if not isinstance(interventions, Sequence):
        raise TypeError(f"interventions come as a list, not as a {type(interventions).__name__}")
    for one in interventions:
        if not isinstance(one, Intervention):
            raise TypeError(f"{one!r} is no intervention; build it with cut, uniform, patch, ... from workbench")
        places = [one.where] + ([one.what.receiver] if isinstance(one.what, Path) else [])
        for where in places:
            if where is not None:
                check_place(model, where, one)
        hook_point(model, *site_of(one))


def resolve(
    model: Any, batch: Batch, interventions: Sequence[Intervention], sight: Sight, donors: Donors
) -> list[Edit]:
    """The edits of a list of interventions, in order. Raises ValueError where one would undo another, InertIntervention
    where one selects nothing at all."""
    check_paths(interventions)
    donors.record_clean([site_of(one) for one in interventions if isinstance(one.what, Freeze)])
    edits = [_edit(one, model, batch, sight, donors) for one in interventions]
    for one, edit in zip(interventions, edits, strict=True):
        if edit.selected is not None and is_empty(one, edit.selected, batch, sight):
            raise InertIntervention(f"{edit.label}: nothing is selected in any of the {len(batch)} examples")
    if reason := undone(edits, lambda name: model.parts[split(name)[0]].heads_at(name)):
        raise ValueError(reason)
    return edits


def _edit(one: Intervention, model: Any, batch: Batch, sight: Sight, donors: Donors) -> Edit:
    what = one.what
    if isinstance(what, Custom):
        return Edit(str(one), what.site, what.layer, None, None, what.fn)
    if isinstance(what, Path):
        clean = replace(donors, positions="all", _values={})
        return path_edit(one, model, batch, partial(vector_edit, batch=batch, donors=clean), donors.chunk_size)
    if isinstance(one.where, Edges):
        if isinstance(what, Freeze | Patch):
            return _weights_edit(one, batch, sight, donors)
        return edge_edit(one, batch, sight, model.parts[one.where.in_model].n_heads)
    return vector_edit(one, batch, donors)


def _weights_edit(one: Intervention, batch: Batch, sight: Sight, donors: Donors) -> Edit:
    where, what = one.where, one.what
    assert isinstance(where, Edges)
    name, align = (what.donor, what.align) if isinstance(what, Patch) else (None, "position")
    donor = donors.matched(name, str(one))
    selected = selection(one, batch, sight)
    assert selected is not None
    key = site_of(one)
    rows, line_up = lining.aligned_edges(one, batch, donor, align)
    values = donors.value(name, donor, key, _needed(key, selected.any(-1), rows, batch, donors))
    seen = line_up(donors.model.sees(donor, where.in_model, where.layer)[:, None])[:, :, 0]
    if (hidden := selected & ~seen).any():
        examples = hidden.flatten(1).any(1).nonzero().flatten().tolist()
        raise ValueError(
            f"{one}: the donor cannot see some of these edges (padding, or its mask) in {len(examples)} examples "
            f"({', '.join(map(str, examples[:8]))}); its weight there is no measurement. Choose other edges or donors"
        )

    def change(target: Tensor, selected: Tensor, by_head: Tensor) -> Tensor:
        return torch.where(selected[:, None], by_head.movedim(2, 1), target)

    place = (str(one), *key, where.head, selected)
    return Edit(*place, change, {"by_head": line_up(values)}, erases=selected, restores=True, alike=what)


def _needed(key: Key, selected: Tensor, positions: Tensor, batch: Batch, donors: Donors) -> Tensor | None:
    """The donor's positions [batch pos] that are asked for at positions computed in this setting."""
    if not last_layer(donors.model, *key):
        return None
    wanted = selected & (batch.labels != UNREAD) if donors.positions == "read" else selected
    out = torch.zeros_like(selected, dtype=torch.int8)
    return out.scatter_reduce_(1, positions, wanted.to(torch.int8), "amax").bool()


def vector_edit(one: Intervention, batch: Batch, donors: Donors) -> Edit:
    """The edit of a head's vectors or of the residual stream."""
    where, what = one.where, one.what
    assert where is not None and not isinstance(where, Edges)
    selected = positions(where, batch)
    head = where.head if isinstance(where, Heads) else None
    place = (str(one), *site_of(one), head, selected)
    if isinstance(what, Scale):
        by = what.by
        return Edit(
            *place,
            lambda target, selected: torch.where(_wide(selected, target), target * by, target),
            erases=selected if by == 0 else None,
            alike=what,
        )
    if not isinstance(what, Mean | Resample | Patch | Add | Freeze):
        return Edit(
            *place,
            lambda target, selected: target.masked_fill(_wide(selected, target), 0.0),
            erases=selected,
            lasting=True,
            alike=what,
        )
    values = _values(one, selected, batch, donors)
    adding = isinstance(what, Add)

    def change(target: Tensor, selected: Tensor, by_head: Tensor) -> Tensor:
        return torch.where(_wide(selected, target), target + by_head if adding else by_head, target)

    erases = None if adding else selected
    return Edit(*place, change, {"by_head": values}, erases=erases, restores=not adding, alike=what)


def _wide(selected: Tensor, target: Tensor) -> Tensor:
    return selected.reshape(*selected.shape, *(1,) * (target.ndim - selected.ndim))


def _values(one: Intervention, selected: Tensor, batch: Batch, donors: Donors) -> Tensor:
    where, what, label = one.where, one.what, str(one)
    assert where is not None and not isinstance(where, Edges)
    key = site_of(one)
    name = None if isinstance(what, Freeze) else what.donor  # type: ignore[union-attr]
    if isinstance(what, Mean):
        reference = donors.whole(what.donor, label)
        mask = positions(where, reference)
        if not mask.any():
            raise ValueError(
                f"{label}: the role is empty in all {len(reference)} examples of the donor; there is no mean"
            )
        value = donors.value(name, reference, key, mask)
        average = value[mask].double().mean(0).to(value.dtype)
        return average.expand(*selected.shape, *average.shape)
    donor = donors.matched(name, label)
    if isinstance(what, Resample):
        order = lining.derangement(len(batch), what.seed).to(batch.device)
        taken = lining.partners(selected, positions(where, donor)[order], label)
        return lining.take(donors.value(name, donor, key, None)[order], taken)
    align = "position" if isinstance(what, Freeze) else what.align  # type: ignore[union-attr]
    taken = lining.aligned(selected, counted(donor, key[0]), where.pos, align, label)
    return lining.take(donors.value(name, donor, key, _needed(key, selected, taken, batch, donors)), taken)
