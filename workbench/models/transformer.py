"""Transformer: a decoder on HookedRootModule, post-norm, pre-norm or without norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from workbench import proof
from workbench.anatomy import Part
from workbench.batch import Batch
from workbench.models.attention import Attention, causal
from workbench.models.cache import PostNormCache
from workbench.models.config import ModelConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class LayerNorm(nn.Module):
    """Layer normalisation (Ba et al. 2016); hook_normalized stands after scale and bias."""

    def __init__(self, width: int):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
        return self.hook_normalized(F.layer_norm(x, (x.shape[-1],), self.w, self.b))


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
        pre = self.hook_pre(F.linear(x, self.W_in.T, self.b_in))
        return F.linear(self.hook_post(self.act(pre)), self.W_out.T, self.b_out)


class Block(nn.Module):
    """One layer. Post-norm: the MLP reads LN1(resid_mid), resid_post = LN1(resid_mid) + mlp_out, LN2 comes after it."""

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
    ) -> Float[Tensor, "batch dest d_model"]:
        """x [batch pos d_model], mask [batch dest source] → [batch pos d_model], or [batch read d_model].

        read [batch read]: the positions computed; sources stay all positions.
        """
        resid_pre = self.hook_resid_pre(x)
        source = dest = self.ln1(resid_pre) if self.norm == "pre" else resid_pre
        if read is not None:
            resid_pre, dest, mask = _at(resid_pre, read), _at(dest, read), _at(mask, read)
        resid = self.hook_resid_mid(resid_pre + self.hook_attn_out(self.attn(dest, source, mask)))
        if self.norm == "post":
            resid = self.ln1(resid)
        if self.mlp is not None:
            resid = resid + self.hook_mlp_out(self.mlp(self.ln2(resid) if self.norm == "pre" else resid))
        resid = self.hook_resid_post(resid)
        return self.ln2(resid) if self.norm == "post" else resid


class Embed(nn.Module):
    """A vector per token."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(config.d_vocab, config.d_model))


class PosEmbed(nn.Module):
    """A vector per position."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.W_pos = nn.Parameter(torch.empty(config.n_ctx, config.d_model))


class Unembed(nn.Module):
    """The linear output layer."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.W_U = nn.Parameter(torch.empty(config.d_model, config.d_vocab))
        self.b_U = nn.Parameter(torch.empty(config.d_vocab))

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        return F.linear(x, self.W_U.T, self.b_U)


class Transformer(HookedRootModule):
    """A causal decoder: token embedding + positions, `n_layers` blocks, a linear output layer.

    `model(tokens)` gives logits [batch pos d_vocab]; with `read` [batch read] only those positions are computed in the
    last layer, and logits are [batch read d_vocab]. `valid` [batch pos] is False at padding, which no row attends to.
    Positions count valid tokens, so that padding on the left changes nothing.

    >>> model = Transformer(ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=2, n_heads=2), seed=0)
    >>> model(torch.zeros(3, 9, dtype=torch.long)).shape
    torch.Size([3, 9, 16])
    """

    def __init__(self, config: ModelConfig, seed: int):
        super().__init__()
        self.config = config
        self.embed, self.hook_embed = Embed(config), HookPoint()
        if config.positions == "learned":
            self.pos_embed, self.hook_pos_embed = PosEmbed(config), HookPoint()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        if config.norm == "pre":
            self.ln_final = LayerNorm(config.d_model)
        self.unembed = Unembed(config)
        self.setup()
        _initialise(self, torch.Generator().manual_seed(seed))
        self.eval()

    prover = proof
    reads_only = by_position = True

    @property
    def parts(self) -> dict[str, Part]:
        """Its only stack of layers."""
        return {"": Part(self.config.n_layers, self.config.n_heads, self.config.n_heads)}

    @property
    def d_vocab(self) -> int:
        return self.config.d_vocab

    @property
    def n_out(self) -> int:
        return self.config.d_vocab

    @property
    def attn_only(self) -> bool:
        return self.config.attn_only

    def check(self, batch: Batch) -> None:
        """Raises ValueError for more positions than the model has."""
        self._check(batch.tokens)

    def sees(self, batch: Batch, part: str, layer: int) -> Bool[Tensor, "batch pos pos"]:
        """Which sources each destination reads, [batch dest source]; the same in every layer."""
        return self.visible(batch.tokens, batch.valid)

    def logits(self, batch: Batch, read: Int[Tensor, "batch read"] | None) -> Float[Tensor, "batch read d_vocab"]:
        """The batch's logits, at every position or at `read` [batch read]."""
        return self(batch.tokens, valid=None if bool(batch.valid.all()) else batch.valid, read=read)

    @property
    def cfg(self) -> SimpleNamespace:
        """The configuration under TransformerLens' names."""
        weight = self.embed.W_E
        return SimpleNamespace(
            **self.config.model_dump(),
            n_key_value_heads=None,
            normalization_type=None if self.config.norm == "none" else "LN",
            device=weight.device,
            dtype=weight.dtype,
        )

    def forward(
        self,
        tokens: Int[Tensor, "..."],  # [batch pos]: `_check` says it in a sentence
        valid: Bool[Tensor, "batch pos"] | None = None,
        read: Int[Tensor, "batch read"] | None = None,
    ) -> Float[Tensor, "batch read d_vocab"]:
        self._check(tokens)
        x = self.hook_embed(F.embedding(tokens, self.embed.W_E))
        if self.config.positions == "learned":
            here = torch.ones_like(tokens) if valid is None else valid
            places = (here.cumsum(1) - 1).clamp_min(0)
            x = x + self.hook_pos_embed(F.embedding(places, self.pos_embed.W_pos))
        mask = self.visible(tokens, valid)
        for block in self.blocks[:-1]:
            x = block(x, mask)
        x = self.blocks[-1](x, mask, read)
        return self.unembed(self.ln_final(x) if self.config.norm == "pre" else x)

    def visible(
        self, tokens: Int[Tensor, "batch pos"], valid: Bool[Tensor, "batch pos"] | None = None
    ) -> Bool[Tensor, "batch pos pos"]:
        """Which sources each destination may read, [batch dest source]; rows and sources at padding read nothing."""
        mask = causal(tokens.shape[1], tokens.shape[1], tokens.device).expand(len(tokens), -1, -1)
        return mask if valid is None else mask & valid[:, None, :] & valid[:, :, None]

    def _check(self, tokens: Tensor) -> None:
        if tokens.ndim != 2:
            raise ValueError(f"tokens must be [batch pos]; got {list(tokens.shape)}")
        if tokens.shape[1] > self.config.n_ctx:
            raise ValueError(f"{tokens.shape[1]} positions; this model has {self.config.n_ctx} (n_ctx)")

    def run_with_cache(self, *args: Any, return_cache_object: bool = True, **kwargs: Any) -> Any:
        """As TransformerLens': logits and an `ActivationCache` (a plain dict when asked for)."""
        logits, cache = super().run_with_cache(*args, **kwargs)
        if not return_cache_object:
            return logits, cache
        kind = PostNormCache if self.config.norm == "post" else ActivationCache
        return logits, kind(cache, self, has_batch_dim=not kwargs.get("remove_batch_dim", False))


def _at(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[-1]))


@torch.no_grad()
def _initialise(model: Transformer, generator: torch.Generator) -> None:
    """Embeddings from N(0, 1); every linear map, its bias included, uniform within ±1/√(inputs): PyTorch's defaults."""
    for name, parameter in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind in ("W_E", "W_pos"):
            parameter.normal_(generator=generator)
        elif kind not in ("w", "b"):
            inputs = _inputs(kind, model.config)
            parameter.uniform_(-1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=generator)


def _inputs(kind: str, config: ModelConfig) -> int:
    if kind in ("W_O", "b_O"):
        return config.n_heads * config.d_head
    return config.d_mlp if kind in ("W_out", "b_out") else config.d_model
