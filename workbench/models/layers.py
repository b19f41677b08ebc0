"""One layer of a stack: attention, cross-attention and MLP, each inside a residual, and where LayerNorm stands."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from workbench.models.attention import Attention
from workbench.models.config import ModelConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


HIDDEN = 2**19
"""Hidden numbers of an MLP that are held at once where no gradient is asked for: as many as fit into a cache."""


def together(d_mlp: int) -> int:
    """Rows that go through an MLP of this width together."""
    return max(256, HIDDEN // d_mlp)


class LayerNorm(nn.Module):
    """Layer normalisation (Ba et al. 2016); hook_normalized stands after scale and bias."""

    def __init__(self, width: int):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
        return self.hook_normalized(self.normalized(x))

    def normalized(self, x: Tensor) -> Tensor:
        """What is heard at hook_normalized."""
        return F.layer_norm(x, (x.shape[-1],), self.w, self.b)


class MLP(nn.Module):
    """Two linear layers and a nonlinearity between them; hook_pre and hook_post stand around it."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, hidden = config.d_model, config.d_mlp
        self.W_in, self.b_in = nn.Parameter(torch.empty(width, hidden)), nn.Parameter(torch.empty(hidden))
        self.W_out, self.b_out = nn.Parameter(torch.empty(hidden, width)), nn.Parameter(torch.empty(width))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()
        self.act = ACTIVATIONS[config.act_fn]

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        heard = self.hook_pre._forward_hooks or self.hook_post._forward_hooks
        if torch.is_grad_enabled() or heard or x.device.type != "cpu":
            pre = self.hook_pre(F.linear(x, self.W_in.T, self.b_in))
            return F.linear(self.hook_post(self.act(pre)), self.W_out.T, self.b_out)
        return self._in_parts(x)

    def _in_parts(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """The same for a few rows at a time, whose hidden numbers stay in the cache."""
        rows, n = rearrange(x, "b pos d_model -> (b pos) d_model"), together(len(self.b_in))
        out, room = torch.empty_like(rows), rows.new_empty(min(n, len(rows)), len(self.b_in))
        for at in range(0, len(rows), n):
            some = rows[at : at + n]
            pre = torch.addmm(self.b_in, some, self.W_in, out=room[: len(some)])
            post = pre.relu_() if self.act is F.relu else self.act(pre)
            torch.addmm(self.b_out, post, self.W_out, out=out[at : at + n])
        return rearrange(out, "(b pos) d_model -> b pos d_model", b=len(x))


Places = tuple[Int[Tensor, "#batch dest"], Int[Tensor, "#batch source"]]
Crossing = Callable[[Float[Tensor, "batch dest d_model"]], Float[Tensor, "batch dest d_model"]]


class Block(nn.Module):
    """One layer. Post-norm: the MLP reads LN1(resid_mid), resid_post = LN1(resid_mid) + mlp_out, LN2 comes after it.

    In a decoder that reads a context the cross-attention stands between: it reads, and adds to, what the MLP would read
    without it.
    """

    hook_resid_pre: HookPoint
    hook_attn_out: HookPoint
    hook_resid_mid: HookPoint
    hook_mlp_out: HookPoint
    hook_resid_post: HookPoint

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.norm = config.norm
        self.attn = Attention(config)
        self.mlp = None if config.attn_only else MLP(config)
        if config.norm != "none":
            self.ln1 = LayerNorm(config.d_model)
            self.ln2 = nn.Identity() if config.attn_only else LayerNorm(config.d_model)
        for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"):
            if name != "mlp_out" or self.mlp is not None:
                setattr(self, f"hook_{name}", HookPoint())

    def forward(
        self,
        x: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "batch source source"],
        read: Int[Tensor, "batch dest"] | None = None,
        at: Int[Tensor, "#batch source"] | None = None,
        crossing: Crossing | None = None,
    ) -> Float[Tensor, "batch dest d_model"]:
        """x [batch pos d_model], mask [batch dest source] → [batch pos d_model], or [batch read d_model].

        read [batch read]: the positions computed; sources stay all positions. at [batch pos]: the places of positions.
        crossing: what the cross-attention makes of the stream.
        """
        resid_pre = self.hook_resid_pre(x)
        source = dest = self.ln1(resid_pre) if self.norm == "pre" else resid_pre
        places = None if at is None else (at, at)
        if read is not None:
            resid_pre, dest, mask = picked(resid_pre, read), picked(dest, read), picked(mask, read)
            places = None if at is None else (at.expand(len(read), -1).gather(1, read), at)
        return self.behind(resid_pre + self.hook_attn_out(self.attn(dest, source, mask, places)), crossing)

    def behind(
        self, mid: Float[Tensor, "batch dest d_model"], crossing: Crossing | None = None
    ) -> Float[Tensor, "batch dest d_model"]:
        """What leaves the layer; mid: the stream with attention's output."""
        resid = self.hook_resid_mid(mid)
        if self.norm == "post":
            resid = self.ln1(resid)
        if crossing is not None:
            resid = crossing(resid)
        if self.mlp is not None:
            resid = resid + self.hook_mlp_out(self.mlp(self.ln2(resid) if self.norm == "pre" else resid))
        resid = self.hook_resid_post(resid)
        return self.ln2(resid) if self.norm == "post" else resid


class CrossBlock(nn.Module):
    """The cross-attention of a decoder's layer, inside a residual of its own; its norm stands where the layer's do."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.norm = config.norm
        self.attn = Attention(config, crossing=True)
        if config.norm != "none":
            self.ln1 = LayerNorm(config.d_model)
        self.hook_attn_out, self.hook_resid_mid = HookPoint(), HookPoint()

    def forward(
        self,
        x: Float[Tensor, "batch dest d_model"],
        context: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "batch dest source"],
    ) -> Float[Tensor, "batch dest d_model"]:
        """x [batch dest d_model], context [batch source d_model], mask [batch dest source] → [batch dest d_model]."""
        dest = self.ln1(x) if self.norm == "pre" else x
        resid = self.hook_resid_mid(x + self.hook_attn_out(self.attn(dest, context, mask)))
        return self.ln1(resid) if self.norm == "post" else resid


def picked(x: Tensor, index: Int[Tensor, "batch read"]) -> Tensor:
    """The rows [batch read ...] of x [batch pos ...] at an index."""
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[-1]))
