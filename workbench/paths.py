"""Path patching: what one head's change does through one later head's q, k or v alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.anatomy import counted
from workbench.batch import Batch
from workbench.edits import Edit
from workbench.hooks import Key
from workbench.interventions import Intervention
from workbench.locations import Heads
from workbench.operations import Path
from workbench.passes import execute
from workbench.resolution import site_of
from workbench.sites import in_part, split

READS = {
    ("", ""): "qkv",
    ("encoder", "encoder"): "qkv",
    ("encoder", "cross"): "kv",
    ("decoder", "decoder"): "qkv",
    ("decoder", "cross"): "q",
    ("cross", "decoder"): "qkv",
    ("cross", "cross"): "q",
}
"""(sender's part, receiver's part) → which of the receiver's vectors read the sender through the residual stream."""

_SELF = {"q", "k", "v", "scores", "pattern", "z", "result", "attn_out"}


@dataclass(frozen=True, order=True)
class _Moment:
    """When a site is computed: the encoder before the decoder, then the layer, then the step within it."""

    reading: bool
    layer: int
    step: int


def _moment(key: Key) -> _Moment:
    (part, bare), layer = split(key[0]), -1 if key[1] is None else key[1]
    steps = {"resid_pre": 0, "resid_mid": 4 if part == "cross" else 2, "resid_post": 6}
    step = steps.get(bare, 5)
    if bare in _SELF:
        step = 3 if part == "cross" else 1
    return _Moment(part not in ("", "encoder"), layer, step)


def check_paths(interventions: Sequence[Intervention]) -> None:
    """Raises ValueError for a path between heads of which the one does not read the other, and for one beside an edit
    that changes what its receiver reads."""
    for one in interventions:
        if not isinstance(one.what, Path):
            continue
        receiver = _checked(one)
        moment = _moment(receiver)
        for other in interventions:
            if other is not one and _moment(site_of(other)) < moment:
                raise ValueError(
                    f"{one} is measured against the clean run, and {other!s} changes what its receiver reads. "
                    "Run them apart"
                )


def _checked(one: Intervention) -> Key:
    """The receiver's site. Raises ValueError where it does not read the sender."""
    assert isinstance(one.where, Heads) and isinstance(one.what, Path)
    sender, to = one.where, one.what.receiver
    reads = READS.get((sender.in_model, to.in_model), "")
    if to.part not in reads:
        known = ", ".join(f"{b or 'heads'} ({' '.join(r)})" for (a, b), r in READS.items() if a == sender.in_model)
        raise ValueError(
            f"{one}: a path runs along the residual stream to a head that reads it; heads of "
            f"{sender.in_model or 'this stack'} are read by {known}"
        )
    key = (in_part(to.in_model, to.part), to.layer)
    if _moment(key) <= _moment((in_part(sender.in_model, "z"), sender.layer)):
        raise ValueError(f"{one}: a path runs to a later head, and the receiver is computed before the sender writes")
    return key


def path_edit(one: Intervention, model: Any, batch: Batch, change: Callable[[Intervention], Edit], chunk: int) -> Edit:
    """The receiver's vectors as they are where the sender's change alone reaches them: other heads' z and all MLP
    outputs in between are held at their clean values, norms are recomputed. change: what makes the sender's edit."""
    assert isinstance(one.where, Heads) and isinstance(one.what, Path)
    sender, to = one.where, one.what.receiver
    key = (in_part(to.in_model, to.part), to.layer)
    start, end = _moment((in_part(sender.in_model, "z"), sender.layer)), _moment(key)
    held = [site for site in _components(model, sender.in_model) if start < _moment(site) < end]
    edits = [change(Intervention(where=sender, what=one.what.change))]
    known = execute(model, batch, keep=held, chunk_size=chunk).kept if held else {}
    for site in held:
        label, valid = f"{one} (holding {site[0]} of layer {site[1]})", counted(batch, site[0]).valid
        edits.append(Edit(label, *site, None, valid, put, {"by_head": known[site]}))
    values = execute(model, batch, edits, keep=[key], chunk_size=chunk).kept[key]
    selected = counted(batch, key[0]).role(to.pos)
    return Edit(
        str(one),
        *key,
        to.head,
        selected,
        put,
        {"by_head": values},
        erases=selected,
        lasting=True,
        restores=True,
        alike="path",
    )


def _components(model: Any, sender: str) -> list[Key]:
    """What writes into the residual stream of the sender's side: the heads' z and the MLP outputs."""
    sides = ("", "encoder") if sender in ("", "encoder") else ("decoder", "cross")
    out: list[Key] = []
    for part in sides:
        for layer in range(model.parts[part].n_layers if part in model.parts else 0):
            out.append((in_part(part, "z"), layer))
            if part != "cross" and not _without_mlp(model, part):
                out.append((in_part(part, "mlp_out"), layer))
    return out


def _without_mlp(model: Any, part: str) -> bool:
    stack = getattr(model, "stack", None)
    return model.attn_only if stack is None else stack(part).config.attn_only


def put(target: Tensor, selected: Tensor, by_head: Tensor) -> Tensor:
    """The values in the selected positions, whatever stood there."""
    return torch.where(selected.reshape(*selected.shape, *[1] * (target.ndim - selected.ndim)), by_head, target)
