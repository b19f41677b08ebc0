"""The own models by the kind of their configuration."""

from __future__ import annotations

from workbench.models.config import Config, EncoderDecoderConfig
from workbench.models.encoder_decoder import EncoderDecoder
from workbench.models.transformer import Transformer

Model = Transformer | EncoderDecoder


def build(config: Config, seed: int) -> Model:
    """The untrained model of a configuration, its weights drawn with this seed."""
    return EncoderDecoder(config, seed) if isinstance(config, EncoderDecoderConfig) else Transformer(config, seed)
