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
        if ("result", key[1]) in inputs:
            arriving.add(("result", key[1]))
    return leaving, arriving


def _consumption(key: Key, edited: set[Key], model: Any) -> tuple[list[Key], Key | None]:
    """What the consumer is computed from, and the consumer; None stands for the logits."""
    name, layer = key
    if name in ("embed", "pos_embed"):
        both = [("embed", None)] + ([("pos_embed", None)] if model.config.positions == "learned" else [])
        return both, ("resid_pre", 0)  # type: ignore[return-value]
    assert layer is not None
    result = [("result", layer)] if ("result", layer) in edited else []
    last = layer == model.config.n_layers - 1
    inputs, consumer = {
        "resid_pre": (["resid_pre", "attn_out"], "resid_mid"),
        "q": (["q", "k"], "scores"),
        "k": (["q", "k"], "scores"),
        "scores": (["scores"], "pattern"),
        "v": (["pattern", "v"], "z"),
        "pattern": (["pattern", "v"], "z"),
        "z": (["z", "scores"], "attn_out"),
        "result": (["z", "scores"], "attn_out"),
        "attn_out": (["resid_pre", "attn_out"], "resid_mid"),
        "resid_mid": (["resid_mid", *([] if model.config.attn_only else ["mlp_out"])], "resid_post"),
        "mlp_out": (["resid_mid", "mlp_out"], "resid_post"),
        "mlp_pre": (["mlp_pre"], "mlp_post"),
        "mlp_post": (["mlp_post"], "mlp_out"),
        "resid_post": (["resid_post"], None if last else "resid_pre"),
    }[name]
    keys: list[Key] = [(one, layer) for one in inputs]
    if name in ("z", "result"):
        keys += result
    return keys, None if consumer is None else (consumer, layer + 1 if name == "resid_post" else layer)


def expected(
    key: Key, model: Any, left: dict[Key, Tensor], arrived: dict[Key, Tensor], read: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The consumer of a site, computed from the tensors that left the sites it reads; and the size of the terms that it
    is summed from, by which rounding is judged."""
    name, layer = key
    if layer is None:
        want = left["embed", None] + left.get(("pos_embed", None), torch.zeros(()))
        return want, want
    block = model.blocks[layer]

    def get(one: str) -> Tensor:
        return left[one, layer]

    if name in ("q", "k"):
        hidden = arrived["scores", layer] == rows.HIDDEN
        return block.attn.scores(get("q"), get("k")).masked_fill(hidden, rows.HIDDEN), block.attn.scores(
            get("q").abs(), get("k").abs()
        )
    if name == "scores":
        want = rows.softmax(get("scores"))
        return want, want
    if name in ("v", "pattern"):
        return block.attn.mixed(get("pattern"), get("v")), block.attn.mixed(get("pattern").abs(), get("v").abs())
    if name in ("z", "result"):
        return _attn_out(block.attn, get("z"), get("scores"), left.get(key_ := ("result", layer)), arrived.get(key_))
    if name in ("resid_pre", "attn_out"):
        want = _read(get("resid_pre"), read) + get("attn_out")
    elif name in ("resid_mid", "mlp_out"):
        mid = block.ln1(get("resid_mid")) if block.norm == "post" else get("resid_mid")
        want = mid + left["mlp_out", layer] if ("mlp_out", layer) in left else mid
    elif name == "mlp_pre":
        want = block.mlp.act(get("mlp_pre"))
    elif name == "mlp_post":
        return _linear(get("mlp_post"), block.mlp.W_out, block.mlp.b_out)
    else:
        want = block.ln2(get("resid_post")) if block.norm == "post" else get("resid_post")
        if layer == model.config.n_layers - 1:
            final = model.ln_final(want) if model.config.norm == "pre" else want
            return _linear(final, model.unembed.W_U, model.unembed.b_U)
    return want, want


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
    left: dict[Key, Tensor],
    arrived: dict[Key, Tensor],
    logits: Tensor,
    read_at: ReadAt,
) -> None:
    """Raises InertIntervention where what was consumed is not what was asked for ."""
    keys = {edit.key: edit.label for edit in edits}
    for key, label in keys.items():
        consumer = _consumption(key, set(keys), model)[1]
        name = "the logits" if consumer is None else f"{consumer[0]} of layer {consumer[1]}"
        got = logits if consumer is None else arrived[consumer]
        want, size = expected(key, model, left, arrived, read_at(consumer or key))
        if bool(want.isnan().any()):
            raise ValueError(f"{label}: the edit gives NaN at {name}; it, or the weights, hold NaN or infinity")
        if not agree(got, want.to(got.dtype), size):
            raise InertIntervention(
                f"{label}: the edit of {key[0]} did not reach {name}: what was consumed there is not what was asked "
                "for. The site is not live in this model"
            )


def summed(model: Any) -> tuple[set[Key], set[Key]]:
    """The sites to be kept as they leave, and as they arrive, for `check_sum`."""
    layers = range(model.config.n_layers)
    return {(name, layer) for name in ("resid_pre", "attn_out") for layer in layers}, {("resid_mid", i) for i in layers}


def check_sum(model: Any, left: dict[Key, Tensor], arrived: dict[Key, Tensor], read_at: ReadAt) -> None:
    """Raises ValueError unless resid_mid == resid_pre + attn_out in every layer."""
    for layer in range(model.config.n_layers):
        at = read_at(("resid_mid", layer))
        total = _read(left["resid_pre", layer], at) + left["attn_out", layer]
        if not agree(arrived["resid_mid", layer], total, total):
            raise ValueError(
                f"resid_mid is not resid_pre + attn_out in layer {layer} of this {type(model).__name__}: its sites do "
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
