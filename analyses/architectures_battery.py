"""The battery that every trained model goes through, whatever its architecture: the same checks, written once.

A check edits a model's last layer with attention (of each part it has), and compares what was recorded with what the
operation means. It gives the worst deviation; a check holds where that is at most `TOLERANCE` and the edit changed the
logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from einops import einsum
from torch import Tensor

from workbench import Batch, Edges, Heads, InertIntervention, Stream, cut, path, record, run, uniform, zero
from workbench.batch import UNREAD

TOLERANCE = 5e-6
"""DESIGN.md's tolerance for float32, here on weights (at most 1) and on logits relative to the largest."""

ASKED = "asked"


class Untouched(Exception):
    """An edit that landed and changed no logit, in any example."""


def battery(model: Any, batch: Batch) -> dict[str, float]:
    """Check → the worst deviation found, over every part of the model; infinity where a check does not hold at all."""
    asked = batch.with_roles(**{ASKED: batch.labels != UNREAD})
    out = {}
    for name, check in CHECKS.items():
        try:
            out[name] = check(model, asked)
        except (Untouched, InertIntervention):
            out[name] = float("inf")
    return out


def clean(model: Any, batch: Batch) -> float:
    """without edits, a run gives the model's own logits bit for bit, and at the read positions alone within rounding"""
    own, ran = model.logits(batch, None), run(model, batch)
    if not torch.equal(own.detach(), ran.logits):
        return float("inf")
    read = run(model, batch, positions="read").logits
    index = batch.read_positions()
    return _relative(read, own.detach().gather(1, index[..., None].expand(-1, -1, own.shape[-1])))


def scores(model: Any, batch: Batch) -> float:
    """scores are recorded in every part and layer: their softmax over what a row sees is the weights, hidden ones −∞"""
    worst = 0.0
    for part, shape in model.parts.items():
        for layer in range(shape.n_layers):
            told = record(model, batch, [(_site(part, "scores"), layer), (_site(part, "pattern"), layer)])
            raw, weights = told[_site(part, "scores"), layer], told[_site(part, "pattern"), layer]
            seen = model.sees(batch, part, layer)[:, None].expand_as(raw)
            if not torch.equal(raw == -torch.inf, ~seen):
                return float("inf")
            level = raw.double().exp().masked_fill(~seen, 0.0)
            worst = max(worst, _far(weights, level / level.sum(-1, keepdim=True).clamp_min(1e-300)))
    return worst


def cutting(model: Any, batch: Batch) -> float:
    """each read row's largest source is cut in one head: the rest becomes w / (1 − w cut), other heads' weights stay"""
    worst = 0.0
    for part in model.parts:
        layer, weights = _weights(model, batch, part)
        rows = _rows(model, batch, part, layer)
        top = weights[:, 0].argmax(-1)
        largest = torch.nn.functional.one_hot(top, weights.shape[-1]).bool() & rows[:, :, None]
        edit = cut(Edges(layer=layer, head=0, source="largest", **_where(part)))
        edited = _related(batch, part, largest)
        after = record(model, edited, [(_site(part, "pattern"), layer)], [edit])[_site(part, "pattern"), layer]
        # 1 − w is the sum of the others; of weights in 32 bits the difference would be rounding where w is nearly 1.
        site = (_site(part, "scores"), layer)
        others = record(model, batch, [site])[site][:, 0].double().exp().masked_fill(largest, 0.0)
        want = weights.double().clone()
        want[:, 0] = torch.where(rows[:, :, None], others / others.sum(-1, keepdim=True).clamp_min(1e-300), want[:, 0])
        _changed(model, edited, edit)
        worst = max(worst, _far(after, want))
    return worst


def evened(model: Any, batch: Batch) -> float:
    """one head's rows are made uniform: each visible source gets one over their number, other heads' weights stay"""
    worst = 0.0
    for part in model.parts:
        layer, weights = _weights(model, batch, part)
        rows = _rows(model, batch, part, layer)
        edit = uniform(Edges(layer=layer, head=0, dest="several", **_where(part)))
        edited = _with_role(batch, part, several=rows)
        after = record(model, edited, [(_site(part, "pattern"), layer)], [edit])[_site(part, "pattern"), layer]
        seen = model.sees(batch, part, layer).double()
        want = weights.double().clone()
        even = seen / seen.sum(-1, keepdim=True).clamp_min(1)
        want[:, 0] = torch.where(rows[:, :, None], even, want[:, 0])
        _changed(model, edited, edit)
        worst = max(worst, _far(after, want))
    return worst


def removed(model: Any, batch: Batch) -> float:
    """the attention update is removed from the residual stream: what attention adds is 0, and the stream goes on"""
    worst = 0.0
    for part in model.parts:
        layer = model.parts[part].n_layers - 1
        edit = zero(Stream(layer=layer, part="attn_out", **_where(part)))
        names = [_site(part, "attn_out"), _site(part, "resid_mid")]
        before = _site(part, "resid_pre") if part != "cross" else None
        told = record(model, batch, [(name, layer) for name in [*names, *([before] if before else [])]], [edit])
        _changed(model, batch, edit)
        worst = max(worst, float(told[names[0], layer].abs().max()))
        if before:
            worst = max(worst, _relative(told[names[1], layer], told[before, layer]))
    return worst


def along_a_path(model: Any, batch: Batch) -> float:
    """a first-layer head is removed along one path, to a later head's values: these are as computed by hand"""
    worst = 0.0
    for part, shape in model.parts.items():
        if part == "cross" or shape.n_layers < 2:
            continue
        sender = Heads(layer=0, head=0, part="z", **_where(part))
        receiver = Heads(layer=1, head=0, part="v", **_where(part))
        edit = path(zero, sender, receiver)
        site = (_site(part, "v"), 1)
        got = record(model, batch, [site], [edit])[site]
        clean_values = record(model, batch, [site])[site]
        want = clean_values.clone()
        want[:, :, 0] = _by_hand(model, batch, part)[:, :, 0]
        _changed(model, batch, edit)
        worst = max(worst, _relative(got, want))
    return worst


CHECKS: dict[str, Callable[[Any, Batch], float]] = {
    "clean run": clean,
    "scores recorded": scores,
    "cut": cutting,
    "uniform": evened,
    "residual ablation": removed,
    "path": along_a_path,
}


def _by_hand(model: Any, batch: Batch, part: str) -> Tensor:
    """Layer 1's values where layer 0's stream lacks one head, and all else that is added to the stream is as it was."""
    block, later = model.block(part, 0), model.block(part, 1)
    names = [_site(part, name) for name in ("resid_mid", "z")]
    names += [_site(part, "mlp_out")] if block.mlp is not None else []
    names += ["cross.attn_out"] if part == "decoder" else []
    told = {name: value for (name, _), value in record(model, batch, [(name, 0) for name in names]).values.items()}
    with torch.no_grad():
        lost = einsum(
            told[_site(part, "z")][:, :, 0], block.attn.W_O[0], "b pos d_head, d_head d_model -> b pos d_model"
        )
        stream = _after(block, "ln1", told[_site(part, "resid_mid")] - lost)
        if part == "decoder":
            stream = _after(model.block("cross", 0), "ln1", stream + told["cross.attn_out"])
        if block.mlp is not None:
            stream = stream + told[_site(part, "mlp_out")]
        stream = _after(block, "ln2", stream)
        source = later.ln1(stream) if later.norm == "pre" else stream
        values = einsum(source, later.attn.W_V, "b pos d_model, kv d_model d_head -> b pos kv d_head")
        return values + later.attn.b_V


def _after(block: Any, norm: str, stream: Tensor) -> Tensor:
    """The stream behind a residual sum: normed in a post-norm layer."""
    return getattr(block, norm)(stream) if block.norm == "post" else stream


def _weights(model: Any, batch: Batch, part: str) -> tuple[int, Tensor]:
    layer = model.parts[part].n_layers - 1
    site = (_site(part, "pattern"), layer)
    return layer, record(model, batch, [site])[site]


def _rows(model: Any, batch: Batch, part: str, layer: int) -> Tensor:
    """The rows that are edited [batch dest]: those that are read (of an encoder all), where they see two sources."""
    readers, _ = batch.sides(part)
    of = readers.valid if part == "encoder" else readers.roles[ASKED]
    return of & (model.sees(batch, part, layer).sum(-1) > 1)


def _related(batch: Batch, part: str, edges: Tensor) -> Batch:
    """The batch with these edges under the name "largest"."""
    if part == "encoder":
        assert batch.context is not None
        return batch.with_context(batch.context.with_relations(largest=edges))
    if part == "cross":
        assert batch.context is not None
        return batch.with_context(batch.context, largest=edges)
    return batch.with_relations(largest=edges)


def _with_role(batch: Batch, part: str, **roles: Tensor) -> Batch:
    if part != "encoder":
        return batch.with_roles(**roles)
    assert batch.context is not None
    return batch.with_context(batch.context.with_roles(**roles))


def _changed(model: Any, batch: Batch, edit: Any) -> None:
    """Raises Untouched where an edit left every logit as it was."""
    clean_logits = run(model, batch, positions="read").logits
    if torch.equal(clean_logits, run(model, batch, [edit], positions="read", on_missing="skip").logits):
        raise Untouched(str(edit))


def _where(part: str) -> dict[str, Any]:
    if not part:
        return {}
    return {"kind": "cross"} if part == "cross" else {"stack": part}


def _site(part: str, name: str) -> str:
    return f"{part}.{name}" if part else name


def _far(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).abs().max())


def _relative(got: Tensor, want: Tensor) -> float:
    return _far(got, want) / max(float(want.abs().max()), 1e-30)
