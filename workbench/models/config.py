"""The frozen description of a model: everything that defines its function but its weights."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ModelConfig(BaseModel):
    """A decoder of `n_layers` layers, each attention and (unless `attn_only`) an MLP inside a residual.

    norm: where LayerNorm stands. "post": after each residual sum (Vaswani et al. 2017, section 3.1). "pre": before
        attention, MLP and unembedding (Xiong et al. 2020). "none": nowhere.
    positions: "learned" adds a trained vector per position to the token's; "none" adds nothing.
    d_head, d_mlp: default to d_model / n_heads and 4 × d_model.

    Raises ValidationError (a ValueError) for widths that do not fit together and for unknown keys.

    >>> ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=2, n_heads=1).d_mlp
    128
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    MEANING: ClassVar[int] = 1

    d_vocab: int = Field(ge=2)
    n_ctx: int = Field(ge=1)
    d_model: int = Field(ge=1)
    n_layers: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    d_head: int = Field(0, ge=0)
    d_mlp: int = Field(0, ge=0)
    act_fn: Literal["relu", "gelu", "silu", "tanh"] = "relu"
    norm: Literal["post", "pre", "none"] = "post"
    positions: Literal["learned", "none"] = "learned"
    attn_only: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        width, heads = values.get("d_model"), values.get("n_heads")
        if isinstance(width, int) and isinstance(heads, int) and heads > 0:
            if not values.get("d_head"):
                if width % heads:
                    raise ValueError(f"d_model={width} does not divide by n_heads={heads}; give d_head yourself")
                values["d_head"] = width // heads
            if not values.get("d_mlp") and not values.get("attn_only"):
                values["d_mlp"] = 4 * width
        return values
