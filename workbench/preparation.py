"""Everything between a list of interventions and the edits that a pass makes: donors recorded, contradictions
refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from workbench import donors as lining
from workbench.batch import UNREAD, Batch
from workbench.hooks import Key, hook_point
from workbench.interventions import Add, Custom, Edges, Freeze, Heads, Intervention, Mean, Patch, Path, Resample, Scale
from workbench.nearest import nearest
from workbench.passes import execute
from workbench.resolution import Edit, InertIntervention, edge_edit, selection, site_of, undone
from workbench.sites import SITES

Positions = Literal["all", "read"]


@dataclass(eq=False)
class Donors:
    """Clean runs of the donor batches, and of the batch itself (under None), recorded once each."""

    model: Any
    batch: Batch
    named: Mapping[str, Batch]
    positions: Positions
    chunk_size: int
    _kept: dict[tuple, Tensor] = field(default_factory=dict)

    def get(self, name: str | None, label: str) -> Batch:
        """The donor batch of that name; None is the batch itself."""
        if name is None:
            return self.batch
        if name not in self.named:
            raise KeyError(
                f"{label}: no donor {name!r}; hand it over as donors={{{name!r}: batch}}. "
                f"{nearest(name, sorted(self.named))}"
            )
        return self.named[name]

    def value(self, name: str | None, key: Key, needed: Tensor | None) -> Tensor:
        """A site's clean value in the donor, [batch pos ...] or [batch head dest source], at all positions.

        With positions="read" it is recorded under that setting, so that a patch from the same run changes no bit,
        unless `needed` [batch pos] names a position that is not computed there.
        """
        donor = self.batch if name is None else self.named[name]
        read = self._reading(donor, key, needed)
        kept = self._kept.get((name, key, read is None))
        if kept is None:
            kept = execute(self.model, donor, read=read, keep=[key], chunk_size=self.chunk_size).kept[key]
            if read is not None and SITES[key[0]].positions == "dest" and key[1] == self.model.config.n_layers - 1:
                kept = _spread(kept, read, SITES[key[0]].position_axis, donor.tokens.shape[1])
            self._kept[name, key, read is None] = kept
        return kept

    def _reading(self, donor: Batch, key: Key, needed: Tensor | None) -> Tensor | None:
        if self.positions == "all":
            return None
        computed = donor.labels != UNREAD
        in_last = SITES[key[0]].positions == "dest" and key[1] == self.model.config.n_layers - 1
        if in_last and (needed is None or (needed & ~computed).any()):
            return None
        return donor.read_positions()


def _spread(values: Tensor, read: Tensor, axis: int, n_positions: int) -> Tensor:
    """Values at the read positions put back among all positions; the rest is 0 and never used."""
    by_position = values.movedim(axis, 1)
    out = by_position.new_zeros(len(values), n_positions, *by_position.shape[2:])
    out[torch.arange(len(values), device=read.device)[:, None], read] = by_position
    return out.movedim(1, axis)


def check_places(model: Any, interventions: Sequence[Intervention]) -> None:
    """Every layer, head and site exists. Raises KeyError saying what there is, TypeError for what is no
    intervention."""
    if isinstance(interventions, Intervention):
        raise TypeError("interventions come as a list: [cut(...)], also when there is one")
    for one in interventions:
        if not isinstance(one, Intervention):
            raise TypeError(f"{one!r} is no intervention; build it with cut, uniform, patch, ... from workbench")
        hook_point(model, *site_of(one))
        places = [one.where] + ([one.what.receiver] if isinstance(one.what, Path) else [])
        for where in places:
            head = getattr(where, "head", None)
            if where is not None and where.layer >= model.config.n_layers:
                raise KeyError(f"{one}: no layer {where.layer}; this model has layers 0 to {model.config.n_layers - 1}")
            if head is not None and head >= model.config.n_heads:
                raise KeyError(f"{one}: no head {head}; this model has heads 0 to {model.config.n_heads - 1}")


def resolve(
    model: Any, batch: Batch, interventions: Sequence[Intervention], visible: Tensor, donors: Donors
) -> list[Edit]:
    """The edits of a list of interventions, in order. Raises ValueError where one would undo another, InertIntervention
    where one selects nothing at all."""
    _check_paths(interventions)
    edits = [_edit(one, model, batch, visible, donors) for one in interventions]
    for edit in edits:
        if edit.selected is not None and not edit.selected.any():
            raise InertIntervention(f"{edit.label}: nothing is selected in any of the {len(batch)} examples")
    if reason := undone(edits):
        raise ValueError(reason)
    return edits


def _check_paths(interventions: Sequence[Intervention]) -> None:
    for one in interventions:
        if not isinstance(one.what, Path):
            continue
        for other in interventions:
            if other is not one and (layer := site_of(other)[1]) is not None and layer < one.what.receiver.layer:
                raise ValueError(
                    f"{one} is measured against the clean run; {other!s} changes a layer before its receiver. "
                    "Run them apart"
                )


def _edit(one: Intervention, model: Any, batch: Batch, visible: Tensor, donors: Donors) -> Edit:
    what = one.what
    if isinstance(what, Custom):
        return Edit(str(one), what.site, what.layer, None, None, what.fn)
    if isinstance(what, Path):
        return _path_edit(one, model, batch, donors)
    if isinstance(one.where, Edges):
        if isinstance(what, Freeze | Patch):
            return _weights_edit(one, batch, visible, donors)
        return edge_edit(one, batch, visible, model.config.n_heads)
    return vector_edit(one, batch, donors)


def _weights_edit(one: Intervention, batch: Batch, visible: Tensor, donors: Donors) -> Edit:
    where, what = one.where, one.what
    assert isinstance(where, Edges)
    name, align = (what.donor, what.align) if isinstance(what, Patch) else (None, "position")
    donor = donors.get(name, str(one))
    lining.check_sizes(batch, donor, str(one))
    selected = selection(one, batch, visible)
    assert selected is not None
    rows, line_up = lining.aligned_edges(one, batch, donor, align)
    values = donors.value(name, ("pattern", where.layer), _needed(selected.any(-1), rows, batch, donors))

    def change(target: Tensor, selected: Tensor, by_head: Tensor) -> Tensor:
        return torch.where(selected[:, None], by_head.movedim(2, 1), target)

    return Edit(
        str(one), "pattern", where.layer, where.head, selected, change, {"by_head": line_up(values)}, overwrites=True
    )


def _needed(selected: Tensor, positions: Tensor, batch: Batch, donors: Donors) -> Tensor:
    """The donor's positions [batch pos] that are asked for at positions computed in this setting."""
    wanted = selected & (batch.labels != UNREAD) if donors.positions == "read" else selected
    out = torch.zeros_like(selected, dtype=torch.int8)
    return out.scatter_reduce_(1, positions, wanted.to(torch.int8), "amax").bool()


def vector_edit(one: Intervention, batch: Batch, donors: Donors) -> Edit:
    """The edit of a head's vectors or of the residual stream."""
    where, what = one.where, one.what
    assert where is not None and not isinstance(where, Edges)
    selected = batch.role(where.pos)
    head = where.head if isinstance(where, Heads) else None
    place = (str(one), where.part, where.layer, head, selected)
    if isinstance(what, Scale):
        by = what.by
        return Edit(
            *place,
            lambda target, selected: torch.where(_wide(selected, target), target * by, target),
            overwrites=by == 0,
        )
    if not isinstance(what, Mean | Resample | Patch | Add | Freeze):
        return Edit(*place, lambda target, selected: target.masked_fill(_wide(selected, target), 0.0), overwrites=True)
    values = _values(one, selected, batch, donors)
    adding = isinstance(what, Add)

    def change(target: Tensor, selected: Tensor, by_head: Tensor) -> Tensor:
        return torch.where(_wide(selected, target), target + by_head if adding else by_head, target)

    return Edit(*place, change, {"by_head": values}, overwrites=not adding)


def _wide(selected: Tensor, target: Tensor) -> Tensor:
    return selected.reshape(*selected.shape, *(1,) * (target.ndim - selected.ndim))


def _values(one: Intervention, selected: Tensor, batch: Batch, donors: Donors) -> Tensor:
    where, what, label = one.where, one.what, str(one)
    assert where is not None and not isinstance(where, Edges)
    key = (where.part, where.layer)
    name = None if isinstance(what, Freeze) else what.donor  # type: ignore[union-attr]
    donor = donors.get(name, label)
    if isinstance(what, Mean):
        mask = donor.role(where.pos)
        if not mask.any():
            raise ValueError(f"{label}: the role is empty in all {len(donor)} examples of the donor; there is no mean")
        value = donors.value(name, key, mask)
        average = value[mask].double().mean(0).to(value.dtype)
        return average.expand(*selected.shape, *average.shape)
    lining.check_sizes(batch, donor, label)
    if isinstance(what, Resample):
        order = lining.derangement(len(batch), what.seed).to(batch.device)
        positions = lining.partners(selected, donor.role(where.pos)[order], label)
        return lining.take(donors.value(name, key, None)[order], positions)
    align = "position" if isinstance(what, Freeze) else what.align  # type: ignore[union-attr]
    positions = lining.aligned(selected, donor, where.pos, align, label)
    return lining.take(donors.value(name, key, _needed(selected, positions, batch, donors)), positions)


def _path_edit(one: Intervention, model: Any, batch: Batch, donors: Donors) -> Edit:
    sender, what = one.where, one.what
    assert isinstance(sender, Heads) and isinstance(what, Path)
    to = what.receiver
    between = range(sender.layer + 1, to.layer)
    held: list[tuple[str, int]] = [("z", layer) for layer in between]
    if not model.config.attn_only:
        held += [("mlp_out", layer) for layer in range(sender.layer, to.layer)]
    clean = Donors(model, batch, donors.named, "all", donors.chunk_size)
    edits = [vector_edit(Intervention(where=sender, what=what.change), batch, clean)]
    for name, layer in held:
        values = clean.value(None, (name, layer), None)
        edits.append(
            Edit(f"{one} (holding {name} of layer {layer})", name, layer, None, batch.valid, _put, {"by_head": values})
        )
    key = (to.part, to.layer)
    values = execute(model, batch, edits, keep=[key], chunk_size=donors.chunk_size).kept[key]
    return Edit(str(one), *key, to.head, batch.role(to.pos), _put, {"by_head": values}, overwrites=True)


def _put(target: Tensor, selected: Tensor, by_head: Tensor) -> Tensor:
    return torch.where(_wide(selected, target), by_head, target)
