"""What the hooks of a foreign model carry, held against each other: a hook's name is no promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from einops import einsum, repeat
from torch import Tensor

from workbench import rows
from workbench.proof import agree

Carried = Mapping[str, Tensor]
"""Site → what its hook carried in one layer, in the shapes of `sites.SITES`."""


def faults(carried: Carried, seen: Tensor, attention: Any, parallel: bool, attn_only: bool) -> dict[str, str]:
    """The sites of a layer whose hook does not carry what its name says → the reason.

    seen [batch dest source]: what rows may read. attention: the layer's attention, for its W_O and b_O where it shows
    them. A site that can be held against nothing is at fault too: what it carries is not known.
    """
    out: dict[str, str] = {}
    for sites, needed, why, holds in _identities(seen, attention, parallel, attn_only):
        there = [site for site in sites if site in carried and site not in out]
        if not there:
            continue
        if lacking := [name for name in needed if name not in carried or name in out]:
            out |= {site: f"nothing to hold its hook against: {why} needs {', '.join(lacking)}" for site in there}
        elif not holds(carried):
            out |= {site: f"its hook carries something else: {why} does not hold" for site in there}
    return out


def _identities(
    seen: Tensor, attention: Any, parallel: bool, attn_only: bool
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str, Callable[[Carried], bool]]]:
    """(sites, what they are held against, the identity in words, whether it holds), in the order of trust."""
    yield (
        ("pattern",),
        ("pattern",),
        "every row of weights sums to 1 over what it sees",
        lambda c: _distribution(c, seen),
    )
    yield ("scores",), ("scores", "pattern"), "pattern = softmax(scores)", _weighed
    yield ("q", "k"), ("q", "k", "pattern"), "pattern = softmax(q·k)", lambda c: _scored(c, seen)
    yield ("v", "z"), ("v", "z", "pattern"), "z = pattern·v", _mixed
    output = getattr(attention, "W_O", None)
    if isinstance(output, Tensor) and output.ndim == 3:
        yield ("attn_out",), ("z", "attn_out"), "attn_out = z·W_O + b_O", lambda c: _projected(c, attention)
    else:
        needed = ("resid_pre", "attn_out", "resid_mid")
        yield ("attn_out",), needed, "resid_mid = resid_pre + attn_out", lambda c: _sum(c, *needed)
    stream = ("resid_pre", "attn_out", "resid_mid")
    yield ("resid_mid",), stream, "resid_mid = resid_pre + attn_out", lambda c: _sum(c, *stream)
    if attn_only:
        yield (
            ("resid_post",),
            ("resid_mid", "resid_post"),
            "resid_post = resid_mid",
            lambda c: _sum(c, "resid_mid", "resid_post"),
        )
        return
    terms = ("resid_pre", "attn_out", "mlp_out") if parallel else ("resid_mid", "mlp_out")
    yield (
        ("mlp_out", "resid_post"),
        (*terms, "resid_post"),
        f"resid_post = {' + '.join(terms)}",
        lambda c: _sum(c, *terms, "resid_post"),
    )


def _distribution(carried: Carried, seen: Tensor) -> bool:
    pattern = carried["pattern"]
    if pattern.ndim != 4 or pattern.shape[-2:] != seen.shape[-2:]:
        return False
    total = pattern.double().sum(-1)
    hidden = pattern.masked_fill(seen[:, None], 0.0)
    full = seen.any(-1)[:, None].expand_as(total)
    return bool((hidden == 0).all()) and agree(total[full], torch.ones_like(total[full]), torch.full((), 1e5))


def _weighed(carried: Carried) -> bool:
    pattern = carried["pattern"]
    weights = rows.softmax(carried["scores"]).to(pattern.dtype)
    return agree(pattern, weights, torch.ones(()))


def _scored(carried: Carried, seen: Tensor) -> bool:
    q, k, pattern = carried["q"], carried["k"], carried["pattern"]
    if q.ndim != 4 or k.ndim != 4:
        return False
    k = repeat(k, "b source kv d_head -> b source (kv times) d_head", times=q.shape[2] // k.shape[2])
    scores = einsum(q, k, "b dest head d_head, b source head d_head -> b head dest source")
    scores = scores.masked_fill(~seen[:, None], rows.HIDDEN)
    scales = (1 / math.sqrt(q.shape[-1]), 1.0)
    return any(agree(pattern, rows.softmax(scores * by).to(pattern.dtype), torch.full((), 10.0)) for by in scales)


def _mixed(carried: Carried) -> bool:
    pattern, v, z = carried["pattern"], carried["v"], carried["z"]
    if v.ndim != 4 or z.ndim != 4:
        return False
    v = repeat(v, "b source kv d_head -> b source (kv times) d_head", times=z.shape[2] // v.shape[2])
    terms = "b head dest source, b source head d_head -> b dest head d_head"
    return agree(z, einsum(pattern, v, terms).to(z.dtype), einsum(pattern.abs(), v.abs(), terms))


def _projected(carried: Carried, attention: Any) -> bool:
    z, got = carried["z"], carried["attn_out"]
    terms = "b dest head d_head, head d_head d_model -> b dest d_model"
    bias = getattr(attention, "b_O", None)
    bias = torch.zeros((), dtype=got.dtype) if not isinstance(bias, Tensor) else bias
    want = einsum(z, attention.W_O, terms) + bias
    return agree(got, want, einsum(z.abs(), attention.W_O.abs(), terms) + bias.abs())


def _sum(carried: Carried, *names: str) -> bool:
    *terms, total = (carried[name] for name in names)
    size = torch.stack([term.abs() for term in terms]).sum(0)
    return agree(total, torch.stack(terms).sum(0), size)
