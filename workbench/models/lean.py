"""The sums of attention and of a layer behind it, where nothing is heard, edited or differentiated, with as few passes
over memory as there can be: what a matrix product is added to is given to it, and hidden numbers stay in one place.

The formulas are those of `Attention` and `Block`, and the results the same within rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from workbench.models.attention import Attention
from workbench.models.layers import TOGETHER, Block


def projected(
    x: Float[Tensor, "batch pos d_model"], weight: nn.Parameter, bias: nn.Parameter
) -> Float[Tensor, "batch pos head d_head"]:
    """Queries, keys or values: x · weight [head d_model d_head] + bias [head d_head]."""
    flat = rearrange(weight, "head d_model d_head -> d_model (head d_head)")
    out = torch.addmm(
        rearrange(bias, "head d_head -> (head d_head)"), rearrange(x, "b pos d_model -> (b pos) d_model"), flat
    )
    return rearrange(out, "(b pos) (head d_head) -> b pos head d_head", b=len(x), head=len(bias))


class Onward:
    """From what a layer's heads mix to what leaves the layer. Its room for hidden numbers is used again and again."""

    def __init__(self, block: Block):
        attn: Attention = block.attn
        self.block = block
        self.mixing, self.bias = rearrange(attn.W_O, "head d_head d_model -> (head d_head) d_model"), attn.b_O
        self.room = attn.W_O.new_empty((0, 0) if block.mlp is None else (TOGETHER, len(block.mlp.b_in)))

    def __call__(
        self, stream: Float[Tensor, "batch pos d_model"], z: Float[Tensor, "batch pos head d_head"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """stream: what the layer's attention is added to, which is overwritten; z: what its heads mixed; no row is
        empty."""
        block, n = self.block, len(stream)
        mid = rearrange(stream, "b pos d_model -> (b pos) d_model")
        mid = mid.addmm_(rearrange(z, "b pos head d_head -> (b pos) (head d_head)"), self.mixing).add_(self.bias)
        if block.norm == "post":
            mid = block.ln1(mid)
        if block.mlp is not None:
            self._add_mlp(mid, block.ln2(mid) if block.norm == "pre" else mid)
        out = block.ln2(mid) if block.norm == "post" else mid
        return rearrange(out, "(b pos) d_model -> b pos d_model", b=n)

    def _add_mlp(self, stream: Float[Tensor, "row d_model"], read: Float[Tensor, "row d_model"]) -> None:
        """Adds to the stream what the MLP makes of what it reads, which may be the stream itself."""
        mlp = self.block.mlp
        assert mlp is not None
        for at in range(0, len(read), TOGETHER):
            some = slice(at, at + TOGETHER)
            hidden = torch.addmm(mlp.b_in, read[some], mlp.W_in, out=self.room[: len(read[some])])
            stream[some].addmm_(hidden.relu_() if mlp.act is F.relu else mlp.act(hidden), mlp.W_out)
        stream.add_(mlp.b_out)
