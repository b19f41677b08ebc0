"""A stack of layers: from tokens or patches to vectors. A decoder is one, an encoder–decoder has two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from workbench.models import masks, positions
from workbench.models.config import ModelConfig
from workbench.models.layers import Block, Crossing, LayerNorm


class Embed(nn.Module):
    """A vector per token, and a linear map of patches where the model reads them."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(config.d_vocab, config.d_model))
        if config.d_patch:
            self.W_patch = nn.Parameter(torch.empty(config.d_patch, config.d_model))
            self.b_patch = nn.Parameter(torch.empty(config.d_model))

    def forward(
        self, tokens: Int[Tensor, "batch pos"], patches: Float[Tensor, "batch patch d_patch"] | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """A vector per position; with patches, only the first position's is its token's."""
        if patches is None:
            return F.embedding(tokens, self.W_E)
        mapped = F.linear(patches.to(self.W_E.dtype), self.W_patch.T, self.b_patch)
        return torch.cat([F.embedding(tokens[:, :1], self.W_E), mapped], 1)


class PosEmbed(nn.Module):
    """A vector per position."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.W_pos = nn.Parameter(torch.empty(config.n_ctx, config.d_model))


class Stack(nn.Module):
    """Embedding, positions and `n_layers` blocks; in a pre-norm stack a last LayerNorm.

    hook_embed, hook_pos_embed [batch pos d_model]: what is summed into the first layer's resid_pre.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed, self.hook_embed = Embed(config), HookPoint()
        if config.positions == "learned":
            self.pos_embed = PosEmbed(config)
        if config.positions in ("learned", "sinusoidal"):
            self.hook_pos_embed = HookPoint()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        if config.norm == "pre":
            self.ln_final = LayerNorm(config.d_model)

    def vectors(
        self,
        tokens: Int[Tensor, "batch pos"],
        valid: Bool[Tensor, "batch pos"] | None = None,
        read: Int[Tensor, "batch read"] | None = None,
        patches: Float[Tensor, "batch patch d_patch"] | None = None,
        crossings: Sequence[Crossing] | None = None,
    ) -> Float[Tensor, "batch dest d_model"]:
        """The last layer's vectors [batch pos d_model], or [batch read d_model] at the positions `read`."""
        at = self.places(tokens, valid)
        x = self.hook_embed(self.embed(tokens, patches))
        if self.config.positions == "learned":
            x = x + self.hook_pos_embed(F.embedding(at.expand_as(tokens), self.pos_embed.W_pos))
        elif self.config.positions == "sinusoidal":
            fixed = positions.sinusoids(at, x.shape[-1], x)
            x = x + self.hook_pos_embed(fixed.expand_as(x))
        seen = [self.visible(layer, tokens, valid) for layer in range(len(self.config.masks))]
        for layer, block in enumerate(self.blocks):
            last = layer == len(self.blocks) - 1
            mask = seen[layer if len(seen) > 1 else 0]
            x = block(x, mask, read if last else None, at, crossings and crossings[layer])
        return self.normed(x)

    def normed(self, x: Float[Tensor, "batch dest d_model"]) -> Float[Tensor, "batch dest d_model"]:
        """The last layer's vectors as they are read out."""
        return self.ln_final(x) if self.config.norm == "pre" else x

    def places(
        self, tokens: Int[Tensor, "batch pos"], valid: Bool[Tensor, "batch pos"] | None
    ) -> Int[Tensor, "#batch pos"]:
        """Where each position stands, counted from 0 over valid ones; one row for all where all are valid."""
        if valid is None:
            return torch.arange(tokens.shape[1], device=tokens.device)[None]
        return masks.places(valid)

    def visible(
        self, layer: int, tokens: Int[Tensor, "batch pos"], valid: Bool[Tensor, "batch pos"] | None = None
    ) -> Bool[Tensor, "batch pos pos"]:
        """Which sources each destination reads in a layer, [batch dest source]; padding reads nothing and is not
        read."""
        mask = masks.visible(self.config.mask(layer), self.places(tokens, valid)).expand(len(tokens), -1, -1)
        return mask if valid is None else mask & valid[:, None, :] & valid[:, :, None]

    def bias(
        self,
        layer: int,
        tokens: Int[Tensor, "batch pos"],
        valid: Bool[Tensor, "batch pos"] | None,
        read: Int[Tensor, "batch dest"] | None,
    ) -> Float[Tensor, "#batch head dest source"] | None:
        """What relative positions add to the scores of a layer's rows; None where there is nothing."""
        at = self.places(tokens, valid)
        dest = at if read is None else at.expand(len(read), -1).gather(1, read)
        attn: Any = self.blocks[layer].attn
        return attn.bias((dest, at))

    def check_input(self, tokens: Tensor, patches: Tensor | None = None, what: str = "positions") -> None:
        """Raises ValueError for tokens of another shape, for more positions than there are, and for patches where none
        are read, or none where they are."""
        if tokens.ndim != 2:
            raise ValueError(f"tokens must be [batch pos]; got {list(tokens.shape)}")
        if tokens.shape[1] > self.config.n_ctx:
            raise ValueError(f"{tokens.shape[1]} {what}; this model has {self.config.n_ctx} (n_ctx)")
        want = [len(tokens), tokens.shape[1] - 1, self.config.d_patch]
        if self.config.d_patch and (patches is None or list(patches.shape) != want):
            got = "no such input" if patches is None else list(patches.shape)
            raise ValueError(f"this model reads patches, inputs['patches'] [batch pos-1 d_patch] {want}; got {got}")
        if patches is not None and not self.config.d_patch:
            raise ValueError("this model reads tokens, and the batch has patches; build it with d_patch=")


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Embeddings from N(0, 1), numbers per offset 0; every linear map, its bias included, uniform within ±1/√(inputs):
    PyTorch's defaults."""
    for name, parameter in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind in ("W_E", "W_pos"):
            parameter.normal_(generator=generator)
        elif kind == "W_rel":
            parameter.zero_()
        elif kind not in ("w", "b"):
            part = name.split(".")[0]
            bound = 1 / math.sqrt(_inputs(kind, _config_of(model, part)))
            parameter.uniform_(-bound, bound, generator=generator)


def _config_of(model: Any, part: str) -> ModelConfig:
    """The configuration of the stack that a parameter belongs to; cross-attention and output are the decoder's."""
    if isinstance(model.config, ModelConfig):
        return model.config
    return model.config.encoder if part == "encoder" else model.config.decoder


def _inputs(kind: str, config: ModelConfig) -> int:
    if kind in ("W_O", "b_O"):
        return config.n_heads * config.d_head
    if kind in ("W_patch", "b_patch"):
        return config.d_patch
    return config.d_mlp if kind in ("W_out", "b_out") else config.d_model
