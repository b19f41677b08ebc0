"""Transformer: one stack of layers on HookedRootModule, decoder or encoder by its masks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache
from transformer_lens.HookedRootModule import HookedRootModule

from workbench import proof
from workbench.anatomy import Part
from workbench.batch import Batch
from workbench.models.cache import PostNormCache, as_lens
from workbench.models.config import ModelConfig
from workbench.models.given import given, padded
from workbench.models.layers import Block
from workbench.models.pristine import altered
from workbench.models.specimen import own_specimen
from workbench.models.stack import Stack, initialise


class Unembed(nn.Module):
    """The linear output layer."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.W_U = nn.Parameter(torch.empty(config.d_model, config.d_vocab))
        self.b_U = nn.Parameter(torch.empty(config.d_vocab))

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        return F.linear(x, self.W_U.T, self.b_U)


class Transformer(Stack, HookedRootModule):
    """Token (or patch) embedding + positions, `n_layers` blocks, a linear output layer: a decoder with causal masks, an
    encoder with others.

    `model(tokens)` gives logits [batch pos d_vocab]; with `read` [batch read] only those positions are computed in the
    last layer, and logits are [batch read d_vocab]. `valid` [batch pos] is False at padding, which no row attends to.
    Positions count valid tokens, so that padding on the left changes nothing.

    >>> model = Transformer(ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=2, n_heads=2), seed=0)
    >>> model(torch.zeros(3, 9, dtype=torch.long)).shape
    torch.Size([3, 9, 16])
    """

    def __init__(self, config: ModelConfig, seed: int):
        super().__init__(config)
        self.unembed = Unembed(config)
        self.setup()
        initialise(self, torch.Generator().manual_seed(seed))
        self.eval()

    prover = proof
    reads_only = by_position = True

    @property
    def parts(self) -> dict[str, Part]:
        """Its only stack of layers."""
        return {"": Part(self.config.n_layers, self.config.n_heads, self.config.n_kv_heads)}

    def stack(self, part: str) -> Stack:
        """The stack of a part."""
        return self

    def block(self, part: str, layer: int) -> Block:
        """A layer of a part."""
        return self.blocks[layer]  # type: ignore[return-value]

    @property
    def d_vocab(self) -> int:
        return self.config.d_vocab

    @property
    def example(self) -> Batch:
        """The batch on which its sites are probed."""
        return own_specimen(self.config)

    @property
    def n_out(self) -> int:
        return self.config.d_vocab

    @property
    def attn_only(self) -> bool:
        return self.config.attn_only

    def check(self, batch: Batch) -> None:
        """Raises ValueError for more positions than the model has, and for inputs that it does not read."""
        if batch.context is not None:
            raise ValueError("this model has one stack and reads no context; hand over the batch without it")
        if unknown := sorted(set(batch.inputs) - {"patches"}):
            raise ValueError(f"this model reads tokens or patches, not {unknown}; leave these inputs out")
        self.check_input(batch.tokens, batch.inputs.get("patches"))

    def sees(self, batch: Batch, part: str, layer: int) -> Bool[Tensor, "batch pos pos"]:
        """Which sources each destination reads in a layer, [batch dest source]."""
        return self.visible(layer, batch.tokens, padded(batch.valid))

    def row_by_row(self) -> str | None:
        """Why its rows cannot be computed one by one; None where they can."""
        return altered(self, (Transformer, Unembed))

    def logits(self, batch: Batch, read: Int[Tensor, "batch read"] | None) -> Float[Tensor, "batch read d_vocab"]:
        """The batch's logits, at every position or at `read` [batch read]."""
        return self(**given(batch), read=read)

    @property
    def cfg(self) -> SimpleNamespace:
        """The configuration under TransformerLens' names."""
        return as_lens(self.config, self.embed.W_E)

    def forward(
        self,
        tokens: Int[Tensor, "..."],  # [batch pos]: `check` says it in a sentence
        valid: Bool[Tensor, "batch pos"] | None = None,
        read: Int[Tensor, "batch read"] | None = None,
        patches: Float[Tensor, "batch patch d_patch"] | None = None,
    ) -> Float[Tensor, "batch read d_vocab"]:
        self.check_input(tokens, patches)
        return self.unembed(self.vectors(tokens, valid, read, patches))

    def run_with_cache(self, *args: Any, return_cache_object: bool = True, **kwargs: Any) -> Any:
        """As TransformerLens': logits and an `ActivationCache` (a plain dict when asked for)."""
        logits, cache = super().run_with_cache(*args, **kwargs)
        if not return_cache_object:
            return logits, cache
        kind = PostNormCache if self.config.norm == "post" else ActivationCache
        return logits, kind(cache, self, has_batch_dim=not kwargs.get("remove_batch_dim", False))
