"""The attention core: scores → position bias → mask → hook_attn_scores → softmax → hook_pattern → hook_z →
hook_result → output. Encoders, decoders and cross-attention all use it."""

from __future__ import annotations

import math

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from workbench import rows
from workbench.models.config import ModelConfig
from workbench.models.positions import by_offset, turned


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2), TransformerLens' parameter layout.

    Shapes:
        W_Q [head d_model d_head], W_K, W_V [kv_head d_model d_head], W_O [head d_head d_model]
        W_rel [head 2·n_ctx−1]: what is added to the score at each offset, with relative positions
        hook_q, hook_z [batch dest head d_head]; hook_k, hook_v [batch source kv_head d_head]
        hook_attn_scores, hook_pattern [batch head dest source]; scores are −∞ where masked
        hook_result [batch dest head d_model]

    A row whose scores are all −∞ gives weight 0 to everything: its head adds nothing there, and the output bias is left
    out where that holds for every head. With rotary positions hook_q and hook_k carry what is multiplied: the turned
    vectors. crossing: destinations and sources are of two sequences, so that no offset means anything.
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

    def __init__(self, config: ModelConfig, crossing: bool = False):
        super().__init__()
        width, d_head = config.d_model, config.d_head
        for name, heads in (("Q", config.n_heads), ("K", config.n_kv_heads), ("V", config.n_kv_heads)):
            setattr(self, f"W_{name}", nn.Parameter(torch.empty(heads, width, d_head)))
            setattr(self, f"b_{name}", nn.Parameter(torch.empty(heads, d_head)))
        self.W_O = nn.Parameter(torch.empty(config.n_heads, d_head, width))
        self.b_O = nn.Parameter(torch.empty(width))
        self.turning = config.positions == "rotary" and not crossing
        if config.positions == "relative" and not crossing:
            self.W_rel = nn.Parameter(torch.empty(config.n_heads, 2 * config.n_ctx - 1))
        for name in ("q", "k", "v", "attn_scores", "pattern", "z", "result"):
            setattr(self, f"hook_{name}", HookPoint())

    def forward(
        self,
        dest: Float[Tensor, "batch dest d_model"],
        source: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "batch dest source"],
        at: tuple[Int[Tensor, "#batch dest"], Int[Tensor, "#batch source"]] | None = None,
    ) -> Float[Tensor, "batch dest d_model"]:
        """dest [batch dest d_model], source [batch source d_model], mask [batch dest source] → [batch dest d_model].

        at: the places of destinations and of sources, which relative and rotary positions read.
        """
        q, k = self.hook_q(self.queries(dest, at and at[0])), self.hook_k(self.turn(self.keys(source), at and at[1]))
        v = self.hook_v(self.values(source))
        scores = self.scores(q, k, self.bias(at))
        scores = self.hook_attn_scores(scores.masked_fill(~mask[:, None], rows.HIDDEN))
        weights, empty = rows.softmax_and_empty(scores)
        pattern = self.hook_pattern(weights.to(v.dtype))
        z = self.hook_z(self.mixed(pattern, v))
        return self.output(z, None if empty is None else empty.all(1))

    def queries(
        self, dest: Float[Tensor, "batch dest d_model"], at: Int[Tensor, "#batch dest"] | None
    ) -> Float[Tensor, "batch dest head d_head"]:
        """The destinations' queries, turned by their places where positions are rotary."""
        return self.turn(_project(dest, self.W_Q, self.b_Q), at)

    def turn(
        self, x: Float[Tensor, "batch pos head d_head"], at: Int[Tensor, "#batch pos"] | None
    ) -> Float[Tensor, "batch pos head d_head"]:
        """Queries or keys turned by their places, where positions are rotary."""
        if not self.turning:
            return x
        assert at is not None
        return turned(x, at)

    def values(self, source: Float[Tensor, "batch source d_model"]) -> Float[Tensor, "batch source kv_head d_head"]:
        """The sources' values."""
        return _project(source, self.W_V, self.b_V)

    def keys(self, source: Float[Tensor, "batch source d_model"]) -> Float[Tensor, "batch source kv_head d_head"]:
        """The sources' keys, before they are turned."""
        return _project(source, self.W_K, self.b_K)

    def bias(
        self, at: tuple[Int[Tensor, "#batch dest"], Int[Tensor, "#batch source"]] | None
    ) -> Float[Tensor, "#batch head dest source"] | None:
        """What relative positions add to the scores, by the places of destinations and sources."""
        if not hasattr(self, "W_rel"):
            return None
        assert at is not None
        return by_offset(self.W_rel, *at)

    def scores(
        self,
        q: Float[Tensor, "batch dest head d_head"],
        k: Float[Tensor, "batch source kv_head d_head"],
        bias: Float[Tensor, "#batch head dest source"] | None = None,
    ) -> Float[Tensor, "batch head dest source"]:
        """Scores [batch head dest source] before the mask: q·k / √d_head + bias, in float32 or better (float16
        overflows)."""
        q, k = rows.exact(q), rows.exact(shared(k, q.shape[2]))
        return self.scaled(einsum(q, k, "b dest head d_head, b source head d_head -> b head dest source"), bias)

    def scaled(self, products: Tensor, bias: Tensor | None) -> Tensor:
        """Scores of products q·k."""
        scores = products / math.sqrt(self.W_Q.shape[-1])
        return scores if bias is None else scores + rows.exact(bias)

    def mixed(
        self, pattern: Float[Tensor, "batch head dest source"], v: Float[Tensor, "batch source kv_head d_head"]
    ) -> Float[Tensor, "batch dest head d_head"]:
        """The values mixed by the weights: z."""
        v = shared(v, pattern.shape[1])
        return einsum(pattern, v, "b head dest source, b source head d_head -> b dest head d_head")

    def output(
        self, z: Float[Tensor, "batch dest head d_head"], empty: Bool[Tensor, "batch dest"] | None
    ) -> Float[Tensor, "batch dest d_model"]:
        """z [batch dest head d_head], empty [batch dest] → the heads' sum and the output bias, where not empty (None:
        nowhere)."""
        out = self._written(z, empty)
        if self.hook_result._forward_hooks:
            # The difference is exactly 0 for an untouched result, so that recording it changes no bit of the output.
            result = self.results(z)
            out = out + (self.hook_result(result.clone()) - result).sum(2)
        return out

    def _written(self, z: Tensor, empty: Tensor | None) -> Tensor:
        if torch.is_grad_enabled():
            out = einsum(z, self.W_O, "b dest head d_head, head d_head d_model -> b dest d_model")
            return out + (self.b_O if empty is None else self.b_O.masked_fill(empty[..., None], 0.0))
        flat = rearrange(self.W_O, "head d_head d_model -> (head d_head) d_model")
        return self.biased(_product(rearrange(z, "b dest head d_head -> b dest (head d_head)"), flat), empty)

    def biased(
        self, written: Float[Tensor, "batch dest d_model"], empty: Bool[Tensor, "batch dest"] | None
    ) -> Float[Tensor, "batch dest d_model"]:
        """What the heads write, which may be overwritten, and the output bias, where not empty."""
        return _plus(written, self.b_O if empty is None else self.b_O.masked_fill(empty[..., None], 0.0))

    def results(self, z: Float[Tensor, "batch dest head d_head"]) -> Float[Tensor, "batch dest head d_model"]:
        """What each head writes into the residual stream."""
        return einsum(z, self.W_O, "b dest head d_head, head d_head d_model -> b dest head d_model")


def _project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return einsum(x, weight, "b pos d_model, head d_model d_head -> b pos head d_head") + bias
    out = _product(x, rearrange(weight, "head d_model d_head -> d_model (head d_head)"))
    return _plus(rearrange(out, "b pos (head d_head) -> b pos head d_head", head=len(bias)), bias)


def _plus(out: Tensor, bias: Tensor) -> Tensor:
    """out + bias, in place unless autocast made them of two kinds."""
    return out.add_(bias) if out.dtype == bias.dtype else out + bias


def _product(x: Float[Tensor, "batch pos width"], weight: Float[Tensor, "width out"]) -> Float[Tensor, "batch pos out"]:
    """x · weight as one product of matrices, in a tensor of its own."""
    return rearrange(rearrange(x, "b pos width -> (b pos) width") @ weight, "(b pos) out -> b pos out", b=len(x))


def shared(x: Tensor, heads: int) -> Tensor:
    """Keys or values of a group, once for each of its query heads."""
    if x.shape[2] == heads:
        return x
    return repeat(x, "b source kv d_head -> b source (kv group) d_head", group=heads // x.shape[2])
