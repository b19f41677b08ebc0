"""Proof that an edit landed in a model that others built: the site is live by measurement, and what stands behind it
was computed from the tensor that was asked for.

Of such a model only some formulas are known. Sites that they do not reach are proved by the measurement alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import einsum, repeat
from torch import Tensor

from workbench import rows
from workbench.batch import Batch
from workbench.edits import Edit, InertIntervention
from workbench.hooks import Key
from workbench.liveness import check_others, measured
from workbench.proof import agree
from workbench.sites import SITES, in_part, split

ReadAt = Callable[[Key], Tensor | None]

_INPUTS: dict[str, tuple[str, ...]] = {
    "pattern": ("scores",),
    "z": ("pattern", "v"),
    "resid_mid": ("resid_pre", "attn_out"),
}
"""Site → the sites of the same layer that it is computed from, in every model."""

_SILENCED = {"pattern": {"pattern"}, "z": {"attn_out"}}
"""What is edited besides, where an edit of scores leaves a row empty: its weights, and the output's bias."""


def ready(model: Any, batch: Batch, edits: Sequence[Edit], chunk_size: int) -> None:
    """Raises InertIntervention for a site that is not live in this model, by measurement on its example, and for an
    edit that the user's own hooks throw away, by measurement on the batch."""
    for edit in edits:
        found = measured(model, edit.key)
        if found.status != "live":
            raise InertIntervention(
                f"{edit.label}: the site {edit.site!r} of layer {edit.layer} is {found.status} in this model: "
                f"{found.reason}"
            )
    check_others(model, batch, edits, chunk_size)


def _consumers(key: Key, model: Any) -> list[Key]:
    """What is known to be computed from a site; from scores, through the weights, also z and the stream after it."""
    part, bare = split(key[0])
    changed, out = {bare}, []
    for name, inputs in _INPUTS.items():
        there = all(_there(model, in_part(part, one), key[1]) for one in (name, *inputs))
        if changed & set(inputs) and there and (part, name) != ("cross", "resid_mid"):
            out.append((in_part(part, name), key[1]))
            changed |= _SILENCED.get(name, set()) if bare == "scores" else set()
    return out


def _there(model: Any, name: str, layer: int | None) -> bool:
    part, bare = split(name)
    usable = getattr(model, "usable", None)
    if usable is not None and not usable(name, layer):
        return False
    return in_part(part, SITES[bare].hook_name(layer)) in model.hook_dict


def watched(keys: Sequence[Key], model: Any) -> tuple[set[Key], set[Key]]:
    """The sites to be kept as they leave, and as they arrive, so that these edited sites can be checked."""
    leaving: set[Key] = set(keys)
    arriving: set[Key] = set()
    for key in keys:
        for consumer in _consumers(key, model):
            arriving.add(consumer)
            leaving |= _inputs(consumer)
    return leaving, arriving


def _inputs(consumer: Key) -> set[Key]:
    part, bare = split(consumer[0])
    return {(in_part(part, one), consumer[1]) for one in _INPUTS[bare]}


def consumers(edits: Sequence[Edit], model: Any) -> dict[Key, str]:
    """The sites that consume what these edits change → an edit's label."""
    return {key: edit.label for edit in edits for key in _consumers(edit.key, model)}


def check(
    edits: Sequence[Edit],
    model: Any,
    batch: Batch,
    left: dict[Key, Tensor],
    arrived: dict[Key, Tensor],
    logits: Tensor,
    read_at: ReadAt,
) -> None:
    """Raises InertIntervention where what was consumed is not what was asked for."""
    for consumer, label in consumers(edits, model).items():
        want, size = _expected(consumer, left, getattr(model, "single_softmax", False))
        if bool(want.isnan().any()):
            raise ValueError(f"{label}: the edit gives NaN at {consumer[0]}; it, or the weights, hold NaN or infinity")
        if not agree(arrived[consumer], want.to(arrived[consumer].dtype), size):
            raise InertIntervention(
                f"{label}: the edit did not reach {consumer[0]} of layer {consumer[1]}: what was consumed there is not "
                "what was asked for. The site is not live in this model"
            )


def _expected(consumer: Key, left: dict[Key, Tensor], single: bool = False) -> tuple[Tensor, Tensor]:
    part, bare = split(consumer[0])
    one, *others = (left[in_part(part, name), consumer[1]] for name in _INPUTS[bare])
    if bare == "pattern":
        want = rows.softmax(one.float() if single else one)
        return want, want
    if bare == "z":
        values = repeat(
            others[0], "b source kv d_head -> b source (kv times) d_head", times=one.shape[1] // others[0].shape[2]
        )
        terms = "b head dest source, b source head d_head -> b dest head d_head"
        return einsum(one, values, terms), einsum(one.abs(), values.abs(), terms)
    return one + others[0], torch.maximum(one.abs(), others[0].abs())


def summed(model: Any) -> tuple[set[Key], set[Key]]:
    """The sites to be kept as they leave, and as they arrive, for `check_sum`."""
    consumers = [
        (in_part(part, "resid_mid"), layer)
        for part, shape in model.parts.items()
        if part != "cross"
        for layer in range(shape.n_layers)
        if all(_there(model, in_part(part, name), layer) for name in ("resid_mid", "resid_pre", "attn_out"))
    ]
    return set().union(*map(_inputs, consumers)), set(consumers)


def check_sum(model: Any, left: dict[Key, Tensor], arrived: dict[Key, Tensor], read_at: ReadAt) -> None:
    """Raises ValueError unless resid_mid == resid_pre + attn_out in every layer that has all three."""
    for consumer in summed(model)[1]:
        want, size = _expected(consumer, left)
        if not agree(arrived[consumer], want, size):
            raise ValueError(
                f"{consumer[0]} is not resid_pre + attn_out in layer {consumer[1]} of this model: its sites do not "
                "mean what this workbench's words mean, and interventions on it would be mislabelled"
            )
