"""The attention core: scores → mask → hook_attn_scores → softmax → hook_pattern → hook_z → hook_result → output."""

from __future__ import annotations

import math

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from workbench import rows
from workbench.models.config import ModelConfig


def causal(n_dest: int, n_source: int, device: torch.device) -> Bool[Tensor, "dest source"]:
    """The causal mask [dest source]: True where a destination may read a source at or before it."""
    return torch.ones(n_dest, n_source, dtype=torch.bool, device=device).tril()


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2), TransformerLens' parameter layout.

    Shapes:
        W_Q, W_K, W_V [head d_model d_head], W_O [head d_head d_model]
        hook_q, hook_z [batch dest head d_head]; hook_k, hook_v [batch source head d_head]
        hook_attn_scores, hook_pattern [batch head dest source]; scores are −∞ where masked
        hook_result [batch dest head d_model]

    A row whose scores are all −∞ gives weight 0 to everything: its head adds nothing there, and the output bias is left
    out where that holds for every head.
    """

    W_Q: nn.Parameter
    W_K: nn.Parameter
    W_V: nn.Parameter
    b_Q: nn.Parameter
    b_K: nn.Parameter
    b_V: nn.Parameter
    hook_q: HookPoint
    hook_k: HookPoint
    hook_v: HookPoint
    hook_attn_scores: HookPoint
    hook_pattern: HookPoint
    hook_z: HookPoint
    hook_result: HookPoint

    def __init__(self, config: ModelConfig):
        super().__init__()
        heads, width, d_head = config.n_heads, config.d_model, config.d_head
        for name in "QKV":
            setattr(self, f"W_{name}", nn.Parameter(torch.empty(heads, width, d_head)))
            setattr(self, f"b_{name}", nn.Parameter(torch.empty(heads, d_head)))
        self.W_O = nn.Parameter(torch.empty(heads, d_head, width))
        self.b_O = nn.Parameter(torch.empty(width))
        for name in ("q", "k", "v", "attn_scores", "pattern", "z", "result"):
            setattr(self, f"hook_{name}", HookPoint())

    def forward(
        self,
        dest: Float[Tensor, "batch dest d_model"],
        source: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "batch dest source"],
    ) -> Float[Tensor, "batch dest d_model"]:
        """dest [batch dest d_model], source [batch source d_model], mask [batch dest source] → [batch dest d_model]."""
        q = self.hook_q(_project(dest, self.W_Q, self.b_Q))
        k = self.hook_k(_project(source, self.W_K, self.b_K))
        v = self.hook_v(_project(source, self.W_V, self.b_V))
        scores = self.hook_attn_scores(self.scores(q, k).masked_fill(~mask[:, None], rows.HIDDEN))
        pattern = self.hook_pattern(rows.softmax(scores).to(v.dtype))
        z = self.hook_z(self.mixed(pattern, v))
        return self.output(z, empty=(scores == rows.HIDDEN).all(-1).all(1))

    def scores(
        self, q: Float[Tensor, "batch dest head d_head"], k: Float[Tensor, "batch source head d_head"]
    ) -> Float[Tensor, "batch head dest source"]:
        """Scores [batch head dest source] before the mask: q·k / √d_head, in float32 or better (float16 overflows)."""
        q, k = rows.exact(q), rows.exact(k)
        return einsum(q, k, "b dest head d_head, b source head d_head -> b head dest source") / math.sqrt(q.shape[-1])

    def mixed(
        self, pattern: Float[Tensor, "batch head dest source"], v: Float[Tensor, "batch source head d_head"]
    ) -> Float[Tensor, "batch dest head d_head"]:
        """The values mixed by the weights: z."""
        return einsum(pattern, v, "b head dest source, b source head d_head -> b dest head d_head")

    def output(
        self, z: Float[Tensor, "batch dest head d_head"], empty: Bool[Tensor, "batch dest"]
    ) -> Float[Tensor, "batch dest d_model"]:
        """z [batch dest head d_head], empty [batch dest] → the heads' sum and the output bias, where not empty."""
        out = einsum(z, self.W_O, "b dest head d_head, head d_head d_model -> b dest d_model")
        if self.hook_result._forward_hooks:
            # The difference is exactly 0 for an untouched result, so that recording it changes no bit of the output.
            result = einsum(z, self.W_O, "b dest head d_head, head d_head d_model -> b dest head d_model")
            out = out + (self.hook_result(result.clone()) - result).sum(2)
        return out + self.b_O.masked_fill(empty[..., None], 0.0)


def _project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return einsum(x, weight, "b pos d_model, head d_model d_head -> b pos head d_head") + bias
