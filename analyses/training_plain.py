"""The lecture's model as one writes it in PyTorch for speed: fused projections, and its fused attention."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from analyses.benchmark_plain import plain
from workbench import Transformer


class Plain(nn.Module):
    """A post-norm decoder with `F.scaled_dot_product_attention` and a model's weights.

    forward(tokens [batch pos], only_last) gives logits [batch pos d_vocab]; of the last position alone [batch 1
    d_vocab] where asked, and then the last layer computes no other.
    """

    def __init__(self, model: Transformer):
        super().__init__()
        if model.config.norm != "post":
            raise ValueError(f"this loop is of a post-norm model, and the model has norm={model.config.norm!r}")
        self.inner = plain(model)

    def forward(self, tokens: Tensor, only_last: bool) -> Tensor:
        x = self.inner.tokens(tokens) + self.inner.places.weight[: tokens.shape[1]]
        for layer, block in enumerate(self.inner.blocks):
            x = _layer(block, x, only_last and layer == len(self.inner.blocks) - 1)
        return self.inner.unembed(x)


def _layer(block: Any, x: Tensor, only_last: bool) -> Tensor:
    weights, biases = block.qkv.weight, block.qkv.bias
    width, heads = len(weights) // 3, block.config.n_heads
    dest = x[:, -1:] if only_last else x
    q = _heads(F.linear(dest, weights[:width], biases[:width]), heads)
    k, v = (_heads(one, heads) for one in F.linear(x, weights[width:], biases[width:]).chunk(2, -1))
    z = F.scaled_dot_product_attention(q, k, v, is_causal=not only_last)
    x = block.ln1(dest + block.out(rearrange(z, "b head pos d -> b pos (head d)")))
    return block.ln2(x + block.back(block.act(block.into(x))))


def _heads(x: Tensor, heads: int) -> Tensor:
    return rearrange(x, "b pos (head d) -> b head pos d", head=heads)
