"""What one layer's hooks carried on a batch, and the equalities that hold among right ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum, repeat
from torch import Tensor
from torch.nn import functional as F

from workbench import rows
from workbench.anatomy import Part
from workbench.proof import TOLERANCE, agree

_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu,
    F.gelu,
    F.silu,
    torch.tanh,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x * torch.sigmoid(1.702 * x),
)


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


def weights_of(module: Any, name: str, ndim: int) -> Tensor | None:
    """The weights that a module shows under TransformerLens' name; None where it shows none."""
    value = getattr(module, name, None)
    return value if isinstance(value, Tensor) and value.ndim == ndim else None


def bias_of(module: Any, name: str, like: Tensor) -> Tensor:
    """The bias that a module shows, or 0."""
    value = getattr(module, name, None)
    return value if isinstance(value, Tensor) else torch.zeros((), dtype=like.dtype, device=like.device)


def distribution(layer: Layer) -> bool:
    """Rows of weights sum to 1, over what they see."""
    pattern, seen = layer["pattern"], layer.seen[:, None]
    total = pattern.double().sum(-1)
    full = layer.seen.any(-1)[:, None].expand_as(total)
    inside = bool((pattern.masked_fill(seen, 0.0) == 0).all())
    # Softmax is often taken in float32 whatever the model's type.
    return inside and bool(((total[full] - 1).abs() <= max(1e-5, TOLERANCE[pattern.dtype])).all())


def used(layer: Layer) -> bool:
    """A source that no head of any example weighs at all is hidden, by a mask that the configuration does not tell."""
    return bool(((layer["pattern"] > 0).any(1) | ~layer.seen).all())


def hides(layer: Layer) -> bool:
    """Finite numbers may stand for −∞: they are no scores, and a row with nothing else to read would read them."""
    weighed = (rows.softmax(layer["scores"].double()) > 0).any(1)
    beyond = False if layer.told is None else bool((layer.seen & ~layer.told).any())
    return bool((weighed | ~layer.seen).all()) and not beyond


def weighed(layer: Layer) -> bool:
    """Weights are the softmax of scores."""
    pattern = layer["pattern"]
    return agree(pattern, rows.softmax(layer["scores"]).to(pattern.dtype), torch.ones(()))


def scored(layer: Layer) -> bool:
    """Weights are the softmax of queries times keys, scaled or not."""
    q, k, pattern = layer["q"], layer["k"], layer["pattern"]
    if q.shape[-1] != k.shape[-1]:
        return False
    k = repeat(k, "b source kv d_head -> b source (kv times) d_head", times=q.shape[2] // k.shape[2])
    scores = einsum(q, k, "b dest head d_head, b source head d_head -> b head dest source")
    scores = scores.masked_fill(~layer.seen[:, None], rows.HIDDEN)
    scales = (1 / math.sqrt(q.shape[-1]), 1.0)
    return any(agree(pattern, rows.softmax(scores * by).to(pattern.dtype), torch.full((), 10.0)) for by in scales)


def mixed(layer: Layer) -> bool:
    """What heads mix is their weights times values."""
    pattern, v, z = layer["pattern"], layer["v"], layer["z"]
    v = repeat(v, "b source kv d_head -> b source (kv times) d_head", times=z.shape[2] // v.shape[2])
    terms = "b head dest source, b source head d_head -> b dest head d_head"
    return agree(z, einsum(pattern, v, terms).to(z.dtype), einsum(pattern.abs(), v.abs(), terms))


def by_head(layer: Layer) -> bool:
    """What each head writes is what it mixes, through its own output map."""
    z, weight = layer["z"], layer.attention.W_O
    if z.shape[2:] != weight.shape[:2]:
        return False
    terms = "b dest head d_head, head d_head d_model -> b dest head d_model"
    return agree(layer["result"], einsum(z, weight, terms), einsum(z.abs(), weight.abs(), terms))


def projected(layer: Layer) -> bool:
    """The attention's output is what heads mix, through the output map."""
    z, weight, got = layer["z"], layer.attention.W_O, layer["attn_out"]
    if z.shape[2:] != weight.shape[:2]:
        return False
    bias = bias_of(layer.attention, "b_O", got)
    terms = "b dest head d_head, head d_head d_model -> b dest d_model"
    return agree(got, einsum(z, weight, terms) + bias, einsum(z.abs(), weight.abs(), terms) + bias.abs())


def summed(layer: Layer) -> bool:
    """The attention's output is the sum of what heads write."""
    bias = bias_of(layer.attention, "b_O", layer["attn_out"])
    size = layer["result"].abs().sum(2) + bias.abs()
    return agree(layer["attn_out"], layer["result"].sum(2) + bias, size)


def entered(layer: Layer) -> bool:
    """The stream is what the layer below hands on."""
    return any(agree(layer["resid_pre"], one, one) for one in layer.enters)


def written(layer: Layer) -> bool:
    """The MLP's output is what its neurons say, through its last map."""
    post, weight, got = layer["mlp_post"], layer.mlp.W_out, layer["mlp_out"]
    if post.shape[-1] != weight.shape[0]:
        return False
    bias = bias_of(layer.mlp, "b_out", got)
    return agree(got, post @ weight + bias, post.abs() @ weight.abs() + bias.abs())


def activated(layer: Layer) -> bool:
    """What neurons say is a known activation of what they are told."""
    pre, post = layer["mlp_pre"], layer["mlp_post"]
    return any(agree(post, one(pre), pre) for one in _ACTIVATIONS)
