"""What makes a batch one: shapes, types, devices and names that agree, and nothing that names padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from workbench.batch import Batch

_ROWS = {"position", "token", "label", "padding"}


def check(batch: Batch, unread: int) -> None:
    """Raises ValueError where shapes, types or names of a batch disagree; see `Batch`."""
    if batch.tokens.ndim != 2 or not _integers(batch.tokens):
        raise ValueError(f"tokens must be integers [batch pos]; got {batch.tokens.dtype} {list(batch.tokens.shape)}")
    for name, value in {"labels": batch.labels, "classes": batch.classes}.items():
        if value is not None and not _integers(value):
            raise ValueError(f"{name} must be integers [batch pos]; got {value.dtype} {list(value.shape)}")
    rows = {"labels": batch.labels, "valid": batch.valid}
    rows |= {f"role {name!r}": mask for name, mask in batch.roles.items()}
    if batch.classes is not None:
        rows["classes"] = batch.classes
    for name, value in rows.items():
        _same_shape(name, value, batch.tokens.shape, batch.tokens.device)
    for name, mask in batch.relations.items():
        _same_shape(f"relation {name!r}", mask, (*batch.tokens.shape, batch.tokens.shape[1]), batch.tokens.device)
    _check_context(batch)
    named = [*batch.roles.items(), *batch.relations.items(), *batch.alignments.items()]
    for name, mask in [("valid", batch.valid), *named]:
        if mask.dtype != torch.bool:
            raise ValueError(f"{name!r} must be a boolean mask; got {mask.dtype}")
    if taken := _ROWS & {name for name, _ in named}:
        raise ValueError(f"{sorted(taken)} cannot name a role or a relation: `show` has a row of that name")
    names = [name for name, _ in named]
    if both := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{sorted(both)} name a role and a relation or an alignment; a name must mean one thing")
    if ((batch.labels < 0) & (batch.labels != unread)).any():
        raise ValueError(f"labels are token ids, or {unread} where nothing is read; some are other negative numbers")
    if odd := sorted(name for name in names if name == "every" or "←" in name or not name):
        raise ValueError(f"{odd} cannot name a role or a relation: in labels 'every' and '←' mean something else")
    if not bool(batch.valid.all()):
        _check_padding(batch, unread)


def _check_context(batch: Batch) -> None:
    n, device = len(batch.tokens), batch.tokens.device
    if batch.context is not None and (len(batch.context) != n or batch.context.device != device):
        raise ValueError(
            f"the context has {len(batch.context)} examples on {batch.context.device}, the batch {n} on {device}; "
            "example i of the one goes with example i of the other"
        )
    if batch.alignments and batch.context is None:
        raise ValueError(f"alignments {sorted(batch.alignments)} lead to a context, and the batch has none")
    for name, mask in batch.alignments.items():
        assert batch.context is not None
        if name in batch.context.roles:
            raise ValueError(f"{name!r} names an alignment and a role of the context; a name must mean one thing")
        shape = (*batch.tokens.shape, batch.context.tokens.shape[1])
        _same_shape(f"alignment {name!r}", mask, shape, device)
        if (mask & ~(batch.valid[:, :, None] & batch.context.valid[:, None, :])).any():
            raise ValueError(f"{name!r} includes padding; an alignment may only name valid positions")
    for name, value in batch.inputs.items():
        if not isinstance(value, Tensor) or value.ndim < 1 or len(value) != n or value.device != device:
            got = f"{list(value.shape)} on {value.device}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"input {name!r} must be a tensor with {n} examples on {device}; got {got}")


def _check_padding(batch: Batch, unread: int) -> None:
    edges = batch.valid[:, :, None] & batch.valid[:, None, :]
    for name, mask in {**batch.roles, **batch.relations}.items():
        if (mask & ~(batch.valid if mask.ndim == 2 else edges)).any():
            raise ValueError(f"{name!r} includes padding; a role or relation may only name valid positions")
    if ((batch.labels != unread) & ~batch.valid).any():
        raise ValueError("labels are read at padding; set them to -100 there")


def _integers(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def _same_shape(name: str, value: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {list(value.shape)}; the tokens ask for {list(shape)}")
    if value.device != device:
        raise ValueError(f"{name} lies on {value.device}, the tokens on {device}; move the batch with batch.to(device)")
