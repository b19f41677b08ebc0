"""The sums of attention and of a layer behind it, where nothing is heard, edited or differentiated, with as few passes
over memory as there can be: what a matrix product is added to is given to it, and hidden numbers stay in one place.

The formulas are those of `Attention` and `Block`, and the results the same within rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from workbench.models.attention import Attention
from workbench.models.layers import Block, together


class Onward:
    """From what a layer's heads mix to what leaves the layer. Its room for hidden numbers is used again and again."""

    def __init__(self, block: Block):
        attn: Attention = block.attn
        self.block: Any = block
        self.mixing, self.bias = rearrange(attn.W_O, "head d_head d_model -> (head d_head) d_model"), attn.b_O
        hidden = 0 if block.mlp is None else len(block.mlp.b_in)
        self.together = together(hidden or 4 * attn.W_O.shape[-1])
        self.room = attn.W_O.new_empty(self.together, hidden)

    def __call__(
        self, stream: Float[Tensor, "batch pos d_model"], z: Float[Tensor, "batch pos head d_head"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """stream: what the layer's attention is added to, which is overwritten; z: what its heads mixed; no row is
        empty."""
        rows = rearrange(stream, "b pos d_model -> (b pos) d_model")
        mixed = rearrange(z, "b pos head d_head -> (b pos) (head d_head)")
        for at in range(0, len(rows), self.together):
            some = slice(at, at + self.together)
            self._go(rows[some], mixed[some])
        return rearrange(rows, "(b pos) d_model -> b pos d_model", b=len(z))

    def _go(self, stream: Float[Tensor, "row d_model"], mixed: Float[Tensor, "row width"]) -> None:
        """A few rows, which stay in the cache."""
        block = self.block
        mid = stream.addmm_(mixed, self.mixing).add_(self.bias)
        if block.norm == "post":
            mid = block.ln1.normalized(mid)
        if block.mlp is not None:
            mlp, read = block.mlp, block.ln2.normalized(mid) if block.norm == "pre" else mid
            hidden = torch.addmm(mlp.b_in, read, mlp.W_in, out=self.room[: len(read)])
            mid.addmm_(hidden.relu_() if mlp.act is F.relu else mlp.act(hidden), mlp.W_out).add_(mlp.b_out)
            mid = block.ln2.normalized(mid) if block.norm == "post" else mid
        if block.norm == "post":
            stream.copy_(mid)
