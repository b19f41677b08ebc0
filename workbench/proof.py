"""Proof that an edit landed: what the next component consumed is recomputed from the tensor that was asked for.

For each site the table says which tensor consumes it, and computes that tensor anew from what left the sites before it.
An edit that is thrown away downstream, or replaced by something else, does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import einsum
from torch import Tensor

from workbench import rows
from workbench.batch import Batch
from workbench.edits import Edit, InertIntervention
from workbench.hooks import Key
from workbench.sites import SITES, in_part, split

ReadAt = Callable[[Key], Tensor | None]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def ready(model: Any, batch: Batch, edits: Sequence[Edit], chunk_size: int) -> None:
    """Nothing: of an own model every formula is known, and each run proves its edits by them."""


def watched(keys: Sequence[Key], model: Any) -> tuple[set[Key], set[Key]]:
    """The sites to be kept as they leave, and as they arrive, so that these edited sites can be checked."""
    leaving: set[Key] = set()
    arriving: set[Key] = set()
    for key in keys:
        inputs, consumer = _consumption(key, set(keys), model)
        leaving |= {key, *inputs}
        if consumer is not None:
            arriving.add(consumer)
        arriving |= {one for one in inputs if split(one[0])[1] == "result"}
    return leaving, arriving


def _consumption(key: Key, edited: set[Key], model: Any) -> tuple[list[Key], Key | None]:
    """What the consumer is computed from, and the consumer; None stands for the logits."""
    name, layer = key
    part, bare = split(name)
    if bare in ("embed", "pos_embed"):
        both = [in_part(part, one) for one in ("embed", "pos_embed") if _there(model, in_part(part, one))]
        return [(one, None) for one in both], (in_part(part, "resid_pre"), 0)
    assert layer is not None
    if bare == "resid_mid":
        return _after_attention(part, layer, model)
    if bare == "resid_post":
        return [key], _after_layer(part, layer, model)
    inputs, consumer = _WITHIN[bare]
    if (part, bare) == ("cross", "attn_out"):
        inputs = ("decoder.resid_mid", "cross.attn_out")
    elif (part, bare) == ("decoder", "mlp_out") and "cross" in model.parts:
        inputs = ("cross.resid_mid", "decoder.mlp_out")
    keys: list[Key] = [(one if split(one)[0] else in_part(part, one), layer) for one in inputs]
    if bare in ("z", "result") and (result := (in_part(part, "result"), layer)) in edited:
        keys.append(result)
    return keys, (in_part(part, consumer), layer)


_WITHIN: dict[str, tuple[tuple[str, ...], str]] = {
    "resid_pre": (("resid_pre", "attn_out"), "resid_mid"),
    "q": (("q", "k"), "scores"),
    "k": (("q", "k"), "scores"),
    "scores": (("scores",), "pattern"),
    "v": (("pattern", "v"), "z"),
    "pattern": (("pattern", "v"), "z"),
    "z": (("z", "scores"), "attn_out"),
    "result": (("z", "scores"), "attn_out"),
    "attn_out": (("resid_pre", "attn_out"), "resid_mid"),
    "mlp_out": (("resid_mid", "mlp_out"), "resid_post"),
    "mlp_pre": (("mlp_pre",), "mlp_post"),
    "mlp_post": (("mlp_post",), "mlp_out"),
}
"""Site → what its consumer is computed from, and the consumer, in the same layer and part."""


def _there(model: Any, name: str) -> bool:
    part, bare = split(name)
    return in_part(part, SITES[bare].hook_name(None)) in model.hook_dict


def _after_attention(part: str, layer: int, model: Any) -> tuple[list[Key], Key]:
    """What reads the stream behind attention: the cross-attention's residual where there is one, else the MLP's."""
    mid = (in_part(part, "resid_mid"), layer)
    if part == "decoder" and "cross" in model.parts:
        return [mid, ("cross.attn_out", layer)], ("cross.resid_mid", layer)
    stack = "decoder" if part == "cross" else part
    mlp = [(in_part(stack, "mlp_out"), layer)] if model.stack(part).blocks[layer].mlp is not None else []
    return [mid, *mlp], (in_part(stack, "resid_post"), layer)


def _after_layer(part: str, layer: int, model: Any) -> Key | None:
    if layer < model.parts[part].n_layers - 1:
        return in_part(part, "resid_pre"), layer + 1
    return ("cross.k", 0) if part == "encoder" else None


def expected(
    key: Key, model: Any, batch: Batch, left: dict[Key, Tensor], arrived: dict[Key, Tensor], read: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The consumer of a site, computed from the tensors that left the sites it reads; and the size of the terms that it
    is summed from, by which rounding is judged."""
    layer, (part, bare) = key[1], split(key[0])
    if layer is None:
        want = left[in_part(part, "embed"), None] + left.get((in_part(part, "pos_embed"), None), torch.zeros(()))
        return want, want
    block = model.block(part, layer)

    def get(one: str) -> Tensor:
        return left[in_part(part, one), layer]

    if bare in ("q", "k"):
        hidden = arrived[in_part(part, "scores"), layer] == rows.HIDDEN
        bias = _bias(model, batch, part, layer, read)
        size = block.attn.scores(get("q").abs(), get("k").abs(), None if bias is None else bias.abs())
        return block.attn.scores(get("q"), get("k"), bias).masked_fill(hidden, rows.HIDDEN), size
    if bare == "scores":
        want = rows.softmax(get("scores"))
        return want, want
    if bare in ("v", "pattern"):
        return block.attn.mixed(get("pattern"), get("v")), block.attn.mixed(get("pattern").abs(), get("v").abs())
    if bare in ("z", "result"):
        result = (in_part(part, "result"), layer)
        return _attn_out(block.attn, get("z"), get("scores"), left.get(result), arrived.get(result))
    if bare == "mlp_pre":
        want = block.mlp.act(get("mlp_pre"))
        return want, want
    if bare == "mlp_post":
        return _linear(get("mlp_post"), block.mlp.W_out, block.mlp.b_out)
    if bare == "resid_post":
        return _read_out(model, part, layer, get("resid_post"))
    want = _summed(key, model, left, read)
    return want, want


def _bias(model: Any, batch: Batch, part: str, layer: int, read: Tensor | None) -> Tensor | None:
    if part == "cross":
        return None
    readers, _ = batch.sides(part)
    valid = None if bool(readers.valid.all()) else readers.valid
    return model.stack(part).bias(layer, readers.tokens, valid, read)


def _summed(key: Key, model: Any, left: dict[Key, Tensor], read: Tensor | None) -> Tensor:
    """The residual sum that a site's tensor goes into: what entered it, normed where that is, and what was added."""
    layer, (part, bare) = key[1], split(key[0])
    assert layer is not None
    if bare in ("resid_pre", "attn_out") and part != "cross":
        return _read(left[in_part(part, "resid_pre"), layer], read) + left[in_part(part, "attn_out"), layer]
    crossed = "cross" in model.parts and part != "encoder"
    if (part, bare) == ("cross", "attn_out") or (crossed and (part, bare) == ("decoder", "resid_mid")):
        mid, added = ("decoder.resid_mid", layer), ("cross.attn_out", layer)
    else:
        stack = "decoder" if part == "cross" else part
        mid = ("cross.resid_mid" if crossed else in_part(stack, "resid_mid"), layer)
        added = (in_part(stack, "mlp_out"), layer)
    block = model.block(split(mid[0])[0], layer)
    stream = block.ln1(left[mid]) if block.norm == "post" else left[mid]
    return stream + left[added] if added in left else stream


def _read_out(model: Any, part: str, layer: int, resid_post: Tensor) -> tuple[Tensor, Tensor]:
    """What the next layer, the cross-attention's first keys or the logits make of a layer's stream."""
    block, stack = model.block(part, layer), model.stack(part)
    want = block.ln2(resid_post) if block.norm == "post" else resid_post
    if layer < len(stack.blocks) - 1:
        return want, want
    if part == "encoder":
        attn, known = model.block("cross", 0).attn, stack.normed(want)
        size = einsum(known.abs(), attn.W_K.abs(), "b pos d_model, kv d_model d_head -> b pos kv d_head")
        return attn.keys(known), size + attn.b_K.abs()
    return _linear(stack.normed(want), model.unembed.W_U, model.unembed.b_U)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return x @ weight + bias, x.abs() @ weight.abs() + bias.abs()


def _attn_out(
    attn: Any, z: Tensor, scores: Tensor, after: Tensor | None, before: Tensor | None
) -> tuple[Tensor, Tensor]:
    terms = "b dest head d_head, head d_head d_model -> b dest d_model"
    out, size = einsum(z, attn.W_O, terms), einsum(z.abs(), attn.W_O.abs(), terms)
    if after is not None and before is not None:
        out, size = out + (after - before).sum(2), size + (after.abs() + before.abs()).sum(2)
    empty = (scores == rows.HIDDEN).all(-1).all(1)
    return out + attn.b_O.masked_fill(empty[..., None], 0.0), size + attn.b_O.abs()


def _read(value: Tensor, read: Tensor | None) -> Tensor:
    return value if read is None else value[torch.arange(len(value), device=value.device)[:, None], read]


def consumers(edits: Sequence[Edit], model: Any) -> dict[Key, str]:
    """The sites that consume what these edits change → an edit's label; the logits are no site."""
    keys = {edit.key: edit.label for edit in edits}
    found = {_consumption(key, set(keys), model)[1]: label for key, label in keys.items()}
    return {key: label for key, label in found.items() if key is not None}


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
    keys = {edit.key: edit.label for edit in edits}
    for key, label in keys.items():
        consumer = _consumption(key, set(keys), model)[1]
        name = "the logits" if consumer is None else f"{consumer[0]} of layer {consumer[1]}"
        got = logits if consumer is None else arrived[consumer]
        want, size = expected(key, model, batch, left, arrived, read_at(consumer or key))
        if bool(want.isnan().any()):
            raise ValueError(f"{label}: the edit gives NaN at {name}; it, or the weights, hold NaN or infinity")
        if not agree(got, want.to(got.dtype), size):
            raise InertIntervention(
                f"{label}: the edit of {key[0]} did not reach {name}: what was consumed there is not what was asked "
                "for. The site is not live in this model"
            )


def summed(model: Any) -> tuple[set[Key], set[Key]]:
    """The sites to be kept as they leave, and as they arrive, for `check_sum`."""
    layers = [(part, layer) for part, shape in model.parts.items() for layer in range(shape.n_layers)]
    mids: set[Key] = {(in_part(part, "resid_mid"), layer) for part, layer in layers}
    return {one for mid in mids for one in _terms(mid)}, mids


def _terms(mid: Key) -> list[Key]:
    """What a resid_mid is the sum of: the stream that attention read, and its output."""
    part, _ = split(mid[0])
    before = "decoder.resid_mid" if part == "cross" else in_part(part, "resid_pre")
    return [(before, mid[1]), (in_part(part, "attn_out"), mid[1])]


def check_sum(model: Any, left: dict[Key, Tensor], arrived: dict[Key, Tensor], read_at: ReadAt) -> None:
    """Raises ValueError unless resid_mid == resid_pre + attn_out in every layer, in cross-attention too, where what is
    read is the decoder's stream behind its own attention."""
    for mid in sorted(summed(model)[1]):
        added = _terms(mid)[1]
        total = _summed(added, model, left, read_at(mid))
        if not agree(arrived[mid], total, total):
            raise ValueError(
                f"{mid[0]} is not resid_pre + attn_out in layer {mid[1]} of this {type(model).__name__}: its sites do "
                "not mean what this workbench's words mean, and interventions on it would be mislabelled"
            )


def agree(got: Tensor, want: Tensor, size: Tensor) -> bool:
    """Equal within rounding: the dtype's tolerance × the largest of `size`, the terms summed; infinities must stand in
    the same places."""
    if got.shape != want.shape or not torch.equal(got.isinf(), want.isinf()):
        return False
    got, want, size = got.detach(), want.detach(), size.detach()
    one, other = got.masked_fill(got.isinf(), 0).double(), want.masked_fill(want.isinf(), 0).double()
    largest = float(size.masked_fill(size.isinf(), 0).abs().max()) if size.numel() else 0.0
    return bool(((one - other).abs() <= TOLERANCE[got.dtype] * largest).all())
