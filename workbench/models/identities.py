"""What the hooks of a foreign model carry, held against each other: a hook's name is no promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum, repeat
from torch import Tensor
from torch.nn import functional as F

from workbench import rows
from workbench.anatomy import Part
from workbench.proof import agree
from workbench.sites import SITES


@dataclass(frozen=True)
class Layer:
    """What one layer's hooks carried on a batch, in the shapes of `sites.SITES`, and what they are held against.

    seen [batch dest source]: what rows read; told: what they read by the model's own word, or None; enters: tensors of
    which `resid_pre` must equal one; attention, mlp: the layer's modules, for the weights that they show.
    """

    carried: Mapping[str, Tensor]
    seen: Tensor
    part: Part
    told: Tensor | None = None
    enters: Sequence[Tensor] = ()
    attention: Any = None
    mlp: Any = None
    parallel: bool = False
    attn_only: bool = False

    def __getitem__(self, site: str) -> Tensor:
        return self.carried[site]


@dataclass(frozen=True)
class Identity:
    """An identity in words, the sites that it needs, and whether it holds."""

    words: str
    needed: tuple[str, ...]
    holds: Callable[[Layer], bool]


PARALLEL = "attention and MLP read the same stream here (parallel), so that there is none between them"

_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu,
    F.gelu,
    F.silu,
    torch.tanh,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x * torch.sigmoid(1.702 * x),
)


def faults(layer: Layer) -> dict[str, str]:
    """The sites of a layer whose hook does not carry what its name says → the reason.

    A site that can be held against nothing is at fault too: what it carries is not known.
    """
    out = dict(_misshapen(layer))
    if layer.parallel and "resid_mid" in layer.carried:
        out["resid_mid"] = PARALLEL
    for sites, identities in _identities(layer):
        there = [site for site in sites if site in layer.carried and site not in out]
        if there and (why := _why_not(layer, identities, out)):
            out |= dict.fromkeys(there, why)
    return out


def _why_not(layer: Layer, identities: Sequence[Identity], out: Mapping[str, str]) -> str:
    """Why none of these identities holds; "" where one does."""
    broken, lacking = "", ""
    for one in identities:
        lacks = [name for name in one.needed if name not in layer.carried or name in out]
        if lacks:
            lacking = lacking or f"nothing to hold its hook against: {one.words} needs {', '.join(lacks)}"
        elif one.holds(layer):
            return ""
        else:
            broken = broken or f"its hook carries something else: {one.words} does not hold"
    return broken or lacking or "nothing to hold its hook against: the model does not show the weights behind it"


def _misshapen(layer: Layer) -> Iterator[tuple[str, str]]:
    batch, dest, source = layer.seen.shape
    for name, value in layer.carried.items():
        axes = SITES[name].axes.split()
        known = {"batch": batch, "pos": dest, "dest": dest, "source": source, "head": layer.part.heads_at(name)}
        fits = value.ndim == len(axes) and all(
            known.get(axis, size) == size for axis, size in zip(axes, value.shape, strict=True)
        )
        if not fits:
            want = ", ".join(f"{known[axis]} {axis}" if axis in known else axis for axis in axes)
            yield name, f"its hook carries {list(value.shape)}, and the site is [{want}]"


def _identities(layer: Layer) -> Iterator[tuple[tuple[str, ...], list[Identity]]]:
    """(sites, the identities of which one must hold), in the order of trust."""
    out, written = _weights(layer.attention, "W_O", 3), _weights(layer.mlp, "W_out", 2)
    result = Identity("result = z·W_O", ("z", "result"), _by_head)
    output = Identity("mlp_out = mlp_post·W_out + b_out", ("mlp_post", "mlp_out"), _written)
    activated = Identity("mlp_post = activation(mlp_pre)", ("mlp_pre", "mlp_post"), _activated)
    enters = Identity("resid_pre = what enters the layer", ("resid_pre",), _entered)
    yield ("pattern",), [Identity("every row of weights sums to 1 over what it sees", ("pattern",), _distribution)]
    if "scores" not in layer.carried:
        yield ("pattern",), [Identity("some head weighs every source that rows are said to read", ("pattern",), _used)]
    yield ("scores",), [Identity("pattern = softmax(scores)", ("scores", "pattern"), _weighed)]
    yield ("scores",), [Identity("scores are −∞ at every source that rows do not read", ("scores",), _hides)]
    yield ("q", "k"), [Identity("pattern = softmax(q·k)", ("q", "k", "pattern"), _scored)]
    yield ("v", "z"), [Identity("z = pattern·v", ("v", "z", "pattern"), _mixed)]
    yield ("result",), [] if out is None else [result]
    yield ("resid_pre",), [enters] if layer.enters else []
    yield from _stream(layer, out is not None)
    # What the MLP writes may be normed before it is added: its last map is no evidence of mlp_out, only of mlp_post.
    yield ("mlp_post",), [] if written is None else [output]
    yield ("mlp_pre",), [activated]


def _stream(layer: Layer, shows_output: bool) -> Iterator[tuple[tuple[str, ...], list[Identity]]]:
    """The sums of the residual stream. The sum over a whole layer holds for two terms that were swapped as well, so
    that the attention's output map is asked too."""
    terms = ("resid_pre", "attn_out") if layer.attn_only else ("resid_pre", "attn_out", "mlp_out")
    after = ("resid_mid",) if layer.attn_only else ("resid_mid", "mlp_out")
    middle = _sum("resid_pre", "attn_out", total="resid_mid")
    whole = _sum(*terms, total="resid_post")
    if not layer.attn_only:
        both = (lambda one: whole.holds(one) and _projected(one)) if shows_output else None
        words = f"{whole.words}, with attn_out = z·W_O + b_O,"
        whole = Identity(words, (*whole.needed, "z"), both or (lambda _: False))
    wholes = [whole] if layer.attn_only or shows_output else []
    yield ("attn_out",), wholes if layer.parallel else [middle, *wholes]
    yield ("resid_mid",), [middle]
    yield (
        ("mlp_out", "resid_post"),
        wholes if layer.parallel else [_sum(*after, total="resid_post"), *wholes],
    )


def _sum(*terms: str, total: str) -> Identity:
    def holds(layer: Layer) -> bool:
        parts = torch.stack([layer[term] for term in terms])
        return agree(layer[total], parts.sum(0), parts.abs().sum(0))

    return Identity(f"{total} = {' + '.join(terms)}", (*terms, total), holds)


def _weights(module: Any, name: str, ndim: int) -> Tensor | None:
    value = getattr(module, name, None)
    return value if isinstance(value, Tensor) and value.ndim == ndim else None


def _bias(module: Any, name: str, like: Tensor) -> Tensor:
    value = getattr(module, name, None)
    return value if isinstance(value, Tensor) else torch.zeros((), dtype=like.dtype, device=like.device)


def _distribution(layer: Layer) -> bool:
    pattern, seen = layer["pattern"], layer.seen[:, None]
    total = pattern.double().sum(-1)
    full = layer.seen.any(-1)[:, None].expand_as(total)
    inside = bool((pattern.masked_fill(seen, 0.0) == 0).all())
    return inside and agree(total[full], torch.ones_like(total[full]), torch.full((), 1e5))


def _used(layer: Layer) -> bool:
    """A source that no head of any example weighs at all is hidden, by a mask that the configuration does not tell."""
    return bool(((layer["pattern"] > 0).any(1) | ~layer.seen).all())


def _hides(layer: Layer) -> bool:
    """Finite numbers may stand for −∞: they are no scores, and a row with nothing else to read would read them."""
    weighed = (rows.softmax(layer["scores"].double()) > 0).any(1)
    beyond = False if layer.told is None else bool((layer.seen & ~layer.told).any())
    return bool((weighed | ~layer.seen).all()) and not beyond


def _weighed(layer: Layer) -> bool:
    pattern = layer["pattern"]
    return agree(pattern, rows.softmax(layer["scores"]).to(pattern.dtype), torch.ones(()))


def _scored(layer: Layer) -> bool:
    q, k, pattern = layer["q"], layer["k"], layer["pattern"]
    if q.shape[-1] != k.shape[-1]:
        return False
    k = repeat(k, "b source kv d_head -> b source (kv times) d_head", times=q.shape[2] // k.shape[2])
    scores = einsum(q, k, "b dest head d_head, b source head d_head -> b head dest source")
    scores = scores.masked_fill(~layer.seen[:, None], rows.HIDDEN)
    scales = (1 / math.sqrt(q.shape[-1]), 1.0)
    return any(agree(pattern, rows.softmax(scores * by).to(pattern.dtype), torch.full((), 10.0)) for by in scales)


def _mixed(layer: Layer) -> bool:
    pattern, v, z = layer["pattern"], layer["v"], layer["z"]
    v = repeat(v, "b source kv d_head -> b source (kv times) d_head", times=z.shape[2] // v.shape[2])
    terms = "b head dest source, b source head d_head -> b dest head d_head"
    return agree(z, einsum(pattern, v, terms).to(z.dtype), einsum(pattern.abs(), v.abs(), terms))


def _by_head(layer: Layer) -> bool:
    z, weight = layer["z"], layer.attention.W_O
    if z.shape[2:] != weight.shape[:2]:
        return False
    terms = "b dest head d_head, head d_head d_model -> b dest head d_model"
    return agree(layer["result"], einsum(z, weight, terms), einsum(z.abs(), weight.abs(), terms))


def _projected(layer: Layer) -> bool:
    z, weight, got = layer["z"], layer.attention.W_O, layer["attn_out"]
    if z.shape[2:] != weight.shape[:2]:
        return False
    bias = _bias(layer.attention, "b_O", got)
    terms = "b dest head d_head, head d_head d_model -> b dest d_model"
    return agree(got, einsum(z, weight, terms) + bias, einsum(z.abs(), weight.abs(), terms) + bias.abs())


def _entered(layer: Layer) -> bool:
    return any(agree(layer["resid_pre"], one, one) for one in layer.enters)


def _written(layer: Layer) -> bool:
    post, weight, got = layer["mlp_post"], layer.mlp.W_out, layer["mlp_out"]
    if post.shape[-1] != weight.shape[0]:
        return False
    bias = _bias(layer.mlp, "b_out", got)
    return agree(got, post @ weight + bias, post.abs() @ weight.abs() + bias.abs())


def _activated(layer: Layer) -> bool:
    pre, post = layer["mlp_pre"], layer["mlp_post"]
    return any(agree(post, one(pre), pre) for one in _ACTIVATIONS)
