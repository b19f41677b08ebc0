"""The sums of attention and of a layer behind it, where nothing is heard, edited or differentiated, with as few passes
over memory as there can be: what a matrix product is added to is given to it, and hidden numbers stay in one place.

The formulas are those of `Attention` and `Block`, and the results the same within rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from workbench.models.attention import Attention
from workbench.models.layers import Block, together


def products_of_vectors(
    attn: Attention,
    q: Float[Tensor, "batch head d_head"],
    x: Float[Tensor, "batch cell source d_model"],
) -> Float[Tensor, "batch head cell source"]:
    """Products of one query an example with the keys of many vectors: the query is taken through W_K, not they."""
    per_head = attn.W_Q.shape[0] // attn.W_K.shape[0]
    weight, bias = attn.W_K.repeat_interleave(per_head, 0), attn.b_K.repeat_interleave(per_head, 0)
    asked = einsum(q, weight, "b head d_head, head d_model d_head -> b head d_model")
    products = einsum(asked, x, "b head d_model, b cell s d_model -> b head cell s")
    return products.add_((q * bias).sum(-1)[:, :, None, None])


class Onward:
    """From what a layer's heads mix to what leaves the layer. Its room for hidden numbers is used again and again.

    Where there is one head, values can be taken through W_O before they are mixed, once for each source and not for
    each row that is mixed: `writing`, `written`.
    """

    def __init__(self, block: Block):
        attn: Attention = block.attn
        self.block: Any = block
        self.mixing, self.bias = rearrange(attn.W_O, "head d_head d_model -> (head d_head) d_model"), attn.b_O
        hidden = 0 if block.mlp is None else len(block.mlp.b_in)
        self.together = together(hidden or 4 * attn.W_O.shape[-1])
        self.room = attn.W_O.new_empty(self.together, hidden)
        self._through: tuple[Tensor, Tensor] | None = None

    def writing(self, values: Float[Tensor, "batch source 1 d_head"]) -> Float[Tensor, "batch source 1 d_model"]:
        """What a head writes for each source's value that it reads with weight 1."""
        return values @ self.mixing

    def written(self, x: Float[Tensor, "batch source d_model"]) -> Float[Tensor, "batch source 1 d_model"]:
        """The same of sources by the vectors from which their values are made."""
        attn = self.block.attn
        if self._through is None:
            self._through = attn.W_V[0] @ self.mixing, attn.b_V[0] @ self.mixing
        weight, bias = self._through
        flat = torch.addmm(bias, rearrange(x, "b source d_model -> (b source) d_model"), weight)
        return rearrange(flat, "(b source) d_model -> b source 1 d_model", b=len(x))

    def __call__(
        self, stream: Float[Tensor, "batch pos d_model"], z: Float[Tensor, "batch pos head width"], written: bool
    ) -> Float[Tensor, "batch pos d_model"]:
        """stream: what the layer's attention is added to, which is overwritten; z: what its heads mixed, of values or
        of what is `written`; no row is empty."""
        rows = rearrange(stream, "b pos d_model -> (b pos) d_model")
        mixed = rearrange(z, "b pos head width -> (b pos) (head width)")
        for at in range(0, len(rows), self.together):
            some = slice(at, at + self.together)
            self._go(rows[some], mixed[some], written)
        return rearrange(rows, "(b pos) d_model -> b pos d_model", b=len(z))

    def _go(self, stream: Float[Tensor, "row d_model"], mixed: Float[Tensor, "row width"], written: bool) -> None:
        """A few rows, which stay in the cache."""
        block = self.block
        mid = (stream.add_(mixed) if written else stream.addmm_(mixed, self.mixing)).add_(self.bias)
        if block.norm == "post":
            mid = block.ln1.normalized(mid)
        if block.mlp is not None:
            mlp, read = block.mlp, block.ln2.normalized(mid) if block.norm == "pre" else mid
            hidden = torch.addmm(mlp.b_in, read, mlp.W_in, out=self.room[: len(read)])
            mid.addmm_(hidden.relu_() if mlp.act is F.relu else mlp.act(hidden), mlp.W_out).add_(mlp.b_out)
            mid = block.ln2.normalized(mid) if block.norm == "post" else mid
        if block.norm == "post":
            stream.copy_(mid)
