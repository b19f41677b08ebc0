"""A small batch that a model can read, made from its configuration: what sites are probed on."""

from __future__ import annotations

from typing import Any

import torch

from workbench.batch import UNREAD, Batch
from workbench.models.config import Config, ModelConfig

EXAMPLES, POSITIONS, CONTEXT = 2, 6, 5


def specimen(config: Any, main_input: str, d_vocab: int, two_sequences: bool) -> Batch:
    """Two seeded examples: six tokens, or the patches of a picture; a context of five tokens, or of all sound frames.

    config: a Hugging Face configuration. Raises ValueError for a model that reads something else.
    """
    generator = torch.Generator().manual_seed(0)
    if main_input == "pixel_values":
        return _patches(config, generator)
    if main_input == "input_features":
        frames = config.max_source_positions
        sound = torch.randn(EXAMPLES, config.num_mel_bins, 2 * frames, generator=generator)
        context = _blank(torch.zeros(EXAMPLES, frames, dtype=torch.long))
        spoken = _tokens(POSITIONS, d_vocab, generator)
        return Batch(spoken, torch.full_like(spoken, UNREAD), context=context, inputs={"input_features": sound})
    if main_input != "input_ids":
        raise ValueError(f"a model that reads {main_input!r} is not known here; hand over wrap(..., example=batch)")
    most = getattr(config, "max_position_embeddings", None) or POSITIONS
    tokens = _tokens(min(POSITIONS, most), d_vocab, generator)
    read = _blank(_tokens(min(CONTEXT, most), d_vocab, generator)) if two_sequences else None
    return Batch(tokens, torch.full_like(tokens, UNREAD), context=read)


def own_specimen(config: Config) -> Batch:
    """Two seeded examples that an own model reads: six tokens, or a class token and patches; a context of five tokens.

    >>> config = ModelConfig(d_vocab=5, n_ctx=4, d_model=8, n_layers=1, n_heads=2, d_patch=3)
    >>> own_specimen(config).inputs["patches"].shape
    torch.Size([2, 3, 3])
    """
    generator, context = torch.Generator().manual_seed(0), None
    side = config if isinstance(config, ModelConfig) else config.decoder
    tokens = torch.randint(side.d_vocab, (EXAMPLES, min(POSITIONS, side.n_ctx)), generator=generator)
    if not isinstance(config, ModelConfig):
        length = min(CONTEXT, config.encoder.n_ctx)
        context = _blank(torch.randint(config.encoder.d_vocab, (EXAMPLES, length), generator=generator))
    inputs = {}
    if side.d_patch:
        inputs["patches"] = torch.randn(*tokens[:, 1:].shape, side.d_patch, generator=generator)
    return Batch(tokens, torch.full_like(tokens, UNREAD), context=context, inputs=inputs)


def _tokens(length: int, d_vocab: int, generator: torch.Generator) -> torch.Tensor:
    """Random tokens; the first few of a vocabulary are often padding and other special ones."""
    low = min(4, d_vocab - 2)
    return torch.randint(low, d_vocab, (EXAMPLES, length), generator=generator)


def _blank(tokens: torch.Tensor) -> Batch:
    return Batch(tokens, torch.full_like(tokens, UNREAD))


def _patches(config: Any, generator: torch.Generator) -> Batch:
    """Random pixels; positions are the class token and the patches, in order, and their number is the token."""
    height, width = _pair(config.image_size)
    down, across = _pair(config.patch_size)
    n = (height // down) * (width // across) + 1
    pixels = torch.randn(EXAMPLES, config.num_channels, height, width, generator=generator)
    places = torch.arange(n).expand(EXAMPLES, n)
    return Batch(places, torch.full_like(places, UNREAD), inputs={"pixel_values": pixels})


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def shortened(batch: Batch) -> Batch:
    """The tokens without the last position, and nothing else of the batch but its context."""
    return Batch(batch.tokens[:, :-1], batch.labels[:, :-1], batch.valid[:, :-1], context=batch.context)
