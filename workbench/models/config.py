"""The frozen description of a model: everything that defines its function but its weights."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from workbench.fields import Named


class Frozen(Named):
    """A value that refuses unknown keys and changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Mask(Frozen):
    """Which sources a destination may read.

    causal: only sources at or before it. window: only sources fewer than `window` steps away, a step being `dilation`
    positions (dilation 2: every other position; Beltagy et al. 2020, section 3.1). block: only sources of its own block
    of so many positions. With a window and a block, sources of either. n_global: the first so many positions read every
    source and are read by all, beside the window and the block ("global attention", the same section). With neither
    window nor block every source is read. `causal` holds over all of these.

    >>> import torch
    >>> from workbench.models.masks import visible
    >>> visible(Mask(window=2), torch.arange(4)[None])[0].int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """

    causal: bool = True
    window: int | None = Field(None, ge=1)
    dilation: int = Field(1, ge=1)
    block: int | None = Field(None, ge=1)
    n_global: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _means_something(self) -> Mask:
        if self.dilation > 1 and self.window is None:
            raise ValueError(f"dilation={self.dilation} spreads a window; say window= too")
        if self.n_global and self.window is None and self.block is None:
            raise ValueError(f"n_global={self.n_global} adds to a window or a block; without either all is read anyway")
        return self


class ModelConfig(Frozen):
    """A stack of `n_layers` layers, each attention and (unless `attn_only`) an MLP inside a residual.

    masks: what rows may read: one mask for every layer, or one a layer. The default is a decoder's; an encoder's is
        `(Mask(causal=False),)`.
    norm: where LayerNorm stands. "post": after each residual sum (Vaswani et al. 2017, section 3.1). "pre": before
        attention, MLP and unembedding (Xiong et al. 2020). "none": nowhere.
    positions: "learned" adds a trained vector per position to the token's. "sinusoidal" adds a fixed one (Vaswani et
        al. 2017, section 3.5). "relative" adds a trained number per head and offset to the score (Raffel et al. 2020,
        section 2.1, an offset a bucket). "rotary" turns queries and keys by their position (Su et al. 2021). "none"
        adds nothing.
    n_kv_heads: heads with keys and values of their own, each shared by n_heads / n_kv_heads query heads (Ainslie et al.
        2023); n_heads where left out.
    d_patch: where above 0, positions after the first are patches of so many numbers, handed as `inputs["patches"]`
        [batch pos−1 d_patch]; the first is a class token (Dosovitskiy et al. 2021).
    d_head, d_mlp: default to d_model / n_heads and 4 × d_model.

    Raises ValidationError (a ValueError) for widths that do not fit together, TypeError for a field that is not there.

    >>> ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=2, n_heads=1).d_mlp
    128
    """

    MEANING: ClassVar[int] = 2

    d_vocab: int = Field(ge=2)
    n_ctx: int = Field(ge=1)
    d_model: int = Field(ge=1)
    n_layers: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    n_kv_heads: int = Field(0, ge=0)
    d_head: int = Field(0, ge=0)
    d_mlp: int = Field(0, ge=0)
    d_patch: int = Field(0, ge=0)
    act_fn: Literal["relu", "gelu", "silu", "tanh"] = "relu"
    norm: Literal["post", "pre", "none"] = "post"
    positions: Literal["learned", "sinusoidal", "relative", "rotary", "none"] = "learned"
    masks: tuple[Mask, ...] = Field((Mask(),), min_length=1, strict=False)
    attn_only: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if isinstance(values.get("masks"), Mask | dict):
            raise ValueError(f"masks are one or more, in a list: masks=[{values['masks']!r}]")
        width, heads = values.get("d_model"), values.get("n_heads")
        if isinstance(width, int) and isinstance(heads, int) and heads > 0:
            if not values.get("d_head"):
                if width % heads:
                    raise ValueError(f"d_model={width} does not divide by n_heads={heads}; give d_head yourself")
                values["d_head"] = width // heads
            if not values.get("d_mlp") and not values.get("attn_only"):
                values["d_mlp"] = 4 * width
            if not values.get("n_kv_heads"):
                values["n_kv_heads"] = heads
        return values

    @model_validator(mode="after")
    def _fits(self) -> ModelConfig:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads={self.n_heads} does not divide into groups by n_kv_heads={self.n_kv_heads}")
        if self.positions == "rotary" and self.d_head % 2:
            raise ValueError(f"rotary positions turn pairs of numbers; d_head={self.d_head} is odd")
        if len(self.masks) not in (1, self.n_layers):
            raise ValueError(f"{len(self.masks)} masks for {self.n_layers} layers; give one for all, or one a layer")
        return self

    def mask(self, layer: int) -> Mask:
        """The mask of a layer."""
        return self.masks[layer if len(self.masks) > 1 else 0]


class EncoderDecoderConfig(Frozen):
    """An encoder that reads a context, and a decoder that reads its own tokens and, by cross-attention in every layer,
    the encoder's last vectors (Vaswani et al. 2017, section 3.1).

    Raises ValidationError (a ValueError) where the two do not fit together: another width or place of the norm, an
    encoder of patches or with a causal mask, a decoder whose mask is not causal.

    >>> side = {"d_vocab": 9, "n_ctx": 6, "d_model": 8, "n_layers": 1, "n_heads": 2}
    >>> both = EncoderDecoderConfig(encoder={**side, "masks": [{"causal": False}]}, decoder=side)
    >>> both.decoder.n_ctx, both.encoder.mask(0).causal
    (6, False)
    """

    # What its two sides mean is part of what it means: raising theirs raises this.
    MEANING: ClassVar[int] = ModelConfig.MEANING - 1

    encoder: ModelConfig
    decoder: ModelConfig

    @model_validator(mode="after")
    def _fits(self) -> EncoderDecoderConfig:
        one, other = self.encoder, self.decoder
        if one.d_model != other.d_model or one.norm != other.norm:
            raise ValueError(
                f"the encoder has d_model={one.d_model} and norm={one.norm!r}, the decoder {other.d_model} and "
                f"{other.norm!r}; they must agree, since the one reads what the other writes"
            )
        if any(mask.causal for mask in one.masks):
            raise ValueError("an encoder reads in both directions: masks=[{'causal': False}]")
        if not all(mask.causal for mask in other.masks):
            raise ValueError("a decoder must not see what it is to say: causal=True in each of its masks")
        if one.d_patch or other.d_patch:
            raise ValueError("patches are read by a model of one stack; leave d_patch out")
        return self

    @property
    def d_vocab(self) -> int:
        return self.decoder.d_vocab

    @property
    def n_ctx(self) -> int:
        return self.decoder.n_ctx

    @property
    def n_layers(self) -> int:
        return self.encoder.n_layers + self.decoder.n_layers

    @property
    def d_model(self) -> int:
        return self.decoder.d_model


Config = ModelConfig | EncoderDecoderConfig
"""What the own models are built from; a recurrent encoder with attention will be a third."""


def read_config(values: Any) -> Config:
    """The configuration that a mapping describes: of one stack, or of an encoder and a decoder.

    Raises ValidationError (a ValueError) naming the field at fault.
    """
    if isinstance(values, dict) and ({"encoder", "decoder"} & set(values)):
        return EncoderDecoderConfig.model_validate(values)
    return ModelConfig.model_validate(values)
