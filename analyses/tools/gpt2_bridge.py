"""TransformerLens around a Hugging Face GPT-2: pre-norm, 3 heads."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module

from analyses.tools import gpt2
from analyses.tools.bridge import Bridge


class GPT2Bridge(Bridge):
    """TransformerLens around a GPT-2."""

    name = "TransformerLens gpt2 bridge"

    def __init__(self, model: Any = None):
        self.inner = gpt2.gpt2() if model is None else model
        super().__init__(bridged(self.inner))

    def fresh(self, **changes: Any) -> GPT2Bridge:
        return GPT2Bridge(gpt2.gpt2(**changes))

    def sharpen(self, by: float) -> None:
        weights = gpt2.gpt2()
        gpt2.sharpen(weights, by)
        self._rebuilt(weights)

    def fold_value_bias(self) -> None:
        weights = gpt2.gpt2()
        gpt2.fold_value_bias(weights)
        self._rebuilt(weights)

    def fused(self) -> GPT2Bridge:
        return GPT2Bridge(gpt2.gpt2(attention="sdpa"))

    def adopt(self, model: nn.Module) -> Bridge:
        return Bridge(bridged(model))

    def _rebuilt(self, weights: Any) -> None:
        self.__init__(weights)  # type: ignore[misc]


def bridged(model: Any) -> TransformerBridge:
    """A bridge around a model; a bridge as it is."""
    if isinstance(model, TransformerBridge):
        return model
    return build_bridge_from_module(model, type(model).__name__, hf_config=model.config)
