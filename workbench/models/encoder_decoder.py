"""EncoderDecoder: an encoder that reads the context, and a decoder whose every layer also reads the encoder."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.HookedRootModule import HookedRootModule

from workbench import proof
from workbench.anatomy import Part
from workbench.batch import Batch
from workbench.models.cache import as_lens
from workbench.models.config import EncoderDecoderConfig
from workbench.models.given import given, padded
from workbench.models.layers import Block, CrossBlock, picked
from workbench.models.pristine import altered
from workbench.models.specimen import own_specimen
from workbench.models.stack import Stack, initialise
from workbench.models.transformer import Unembed


class Cross(nn.Module):
    """The cross-attention of every decoder layer."""

    def __init__(self, config: EncoderDecoderConfig):
        super().__init__()
        self.blocks = nn.ModuleList(CrossBlock(config.decoder) for _ in range(config.decoder.n_layers))


class EncoderDecoder(HookedRootModule):
    """An encoder–decoder (Vaswani et al. 2017). Its hooks are named after their part: "encoder.blocks.0.attn.hook_z",
    "decoder.blocks.0.hook_resid_mid", "cross.blocks.0.attn.hook_pattern" [batch head dest context_pos].

    `model(tokens, context)` gives logits [batch pos d_vocab] of the decoder's tokens [batch pos] after a context
    [batch context_pos]; with `read` [batch read] only those positions of its last layer.

    >>> side = {"d_vocab": 9, "n_ctx": 8, "d_model": 8, "n_layers": 1, "n_heads": 2}
    >>> config = EncoderDecoderConfig(encoder={**side, "masks": [{"causal": False}]}, decoder=side)
    >>> model = EncoderDecoder(config, seed=0)
    >>> model(torch.zeros(3, 5, dtype=torch.long), torch.zeros(3, 7, dtype=torch.long)).shape
    torch.Size([3, 5, 9])
    """

    def __init__(self, config: EncoderDecoderConfig, seed: int):
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Stack(config.encoder), Stack(config.decoder)
        self.cross = Cross(config)
        self.unembed = Unembed(config.decoder)
        self.setup()
        initialise(self, torch.Generator().manual_seed(seed))
        self.eval()

    prover = proof
    reads_only = by_position = True

    @property
    def parts(self) -> dict[str, Part]:
        """Encoder, decoder, and the attention from the one to the other."""
        sides = {"encoder": self.config.encoder, "decoder": self.config.decoder, "cross": self.config.decoder}
        return {name: Part(side.n_layers, side.n_heads, side.n_kv_heads) for name, side in sides.items()}

    def stack(self, part: str) -> Stack:
        """The stack of a part; of "cross", whose layers are the decoder's, the decoder."""
        return self.encoder if part == "encoder" else self.decoder

    def block(self, part: str, layer: int) -> Block | CrossBlock:
        """A layer of a part."""
        return (self.cross if part == "cross" else self.stack(part)).blocks[layer]  # type: ignore[return-value]

    @property
    def d_vocab(self) -> int:
        """How many tokens the side reads that knows more; `check` refuses those that one side does not know."""
        return max(self.config.encoder.d_vocab, self.config.decoder.d_vocab)

    @property
    def example(self) -> Batch:
        """The batch on which its sites are probed."""
        return own_specimen(self.config)

    @property
    def n_out(self) -> int:
        return self.config.decoder.d_vocab

    @property
    def attn_only(self) -> bool:
        """Whether the layers that are read out, the decoder's, have no MLP."""
        return self.config.decoder.attn_only

    def check(self, batch: Batch) -> None:
        """Raises ValueError for more positions than the model has, a batch without a context, and other inputs."""
        if batch.context is None:
            raise ValueError("this model reads a context, and the batch has none: Batch(context=...)")
        if batch.inputs:
            raise ValueError(f"this model reads tokens alone, not {sorted(batch.inputs)}; leave these inputs out")
        self._check(batch.tokens, batch.context.tokens)
        for tokens, side, said in (
            (batch.context.tokens, self.config.encoder, "the context has token {}; the encoder knows 0 to {}"),
            (batch.tokens, self.config.decoder, "the batch has token {}; the decoder knows 0 to {}"),
        ):
            if (top := int(tokens.max())) >= side.d_vocab:
                raise ValueError(said.format(top, side.d_vocab - 1))

    def _check(self, tokens: Tensor, context: Tensor) -> None:
        self.decoder.check_input(tokens, what="positions of the decoder")
        self.encoder.check_input(context, what="positions of the context")

    def sees(self, batch: Batch, part: str, layer: int) -> Bool[Tensor, "batch dest source"]:
        """Which sources each destination reads in a layer of a part, [batch dest source]."""
        readers, sources = batch.sides(part)
        if part == "cross":
            return _crossed(readers.valid, sources.valid)
        return self.stack(part).visible(layer, readers.tokens, padded(readers.valid))

    def row_by_row(self) -> str | None:
        """Why its rows cannot be computed one by one; None where they can."""
        return altered(self, (EncoderDecoder, Cross, Unembed))

    def logits(self, batch: Batch, read: Int[Tensor, "batch read"] | None) -> Float[Tensor, "batch read d_vocab"]:
        """The batch's logits, at every position or at `read` [batch read]."""
        return self(**given(batch), read=read)

    @property
    def cfg(self) -> SimpleNamespace:
        """The decoder's configuration under TransformerLens' names."""
        return as_lens(self.config.decoder, self.unembed.W_U)

    def forward(
        self,
        tokens: Int[Tensor, "..."],  # [batch pos]: `check` says it in a sentence
        context: Int[Tensor, "..."],  # [batch context_pos]
        valid: Bool[Tensor, "batch pos"] | None = None,
        context_valid: Bool[Tensor, "batch context_pos"] | None = None,
        read: Int[Tensor, "batch read"] | None = None,
    ) -> Float[Tensor, "batch read d_vocab"]:
        self._check(tokens, context)
        known = self.encoder.vectors(context, context_valid)
        here = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        there = torch.ones_like(context, dtype=torch.bool) if context_valid is None else context_valid
        whole = _crossed(here, there)
        last = whole if read is None else picked(whole, read)
        n = len(self.cross.blocks)
        crossings = [
            partial(block, context=known, mask=last if layer == n - 1 else whole)
            for layer, block in enumerate(self.cross.blocks)
        ]
        return self.unembed(self.decoder.vectors(tokens, valid, read, crossings=crossings))

    def run_with_cache(self, *args: Any, return_cache_object: bool = False, **kwargs: Any) -> Any:
        """As TransformerLens', with a plain dict. Raises ValueError where its `ActivationCache` is asked for, which
        knows of one stack alone."""
        if return_cache_object:
            raise ValueError("an ActivationCache knows of one stack alone, and this model has two; take the plain dict")
        return super().run_with_cache(*args, **kwargs)


def _crossed(dest: Tensor, source: Tensor) -> Tensor:
    """Every valid position reads every valid one of the context, [batch dest source]."""
    return dest[:, :, None] & source[:, None, :]
