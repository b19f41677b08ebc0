"""TransformerLens' own decoder, `TransformerBridge.boot_native`: pre-norm, 3 heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformer_lens.model_bridge import TransformerBridge

from analyses.tools.bridge import Bridge
from analyses.tools.protocol import D_MODEL, D_VOCAB, LAYERS, LENGTH, randomised


class NativeBridge(Bridge):
    """TransformerLens around a model of its own."""

    name = "TransformerLens native bridge"

    def __init__(self, module: Any = None):
        super().__init__(native() if module is None else module)

    def fresh(self, **changes: Any) -> NativeBridge:
        return NativeBridge(native(**changes))

    @torch.no_grad()
    def sharpen(self, by: float) -> None:
        for attn in self._attentions():
            for part in (attn.q, attn.k):
                part.weight.mul_(by)
                part.bias.mul_(by)

    @torch.no_grad()
    def fold_value_bias(self) -> None:
        for attn in self._attentions():
            attn.o.bias += attn.o.weight @ attn.v.bias
            attn.v.bias.zero_()

    def adopt(self, model: nn.Module) -> Bridge:
        from analyses.tools.gpt2_bridge import bridged

        return Bridge(bridged(model))

    def _attentions(self) -> list[Any]:
        return [block.attn for block in self.module.blocks]


def native(*, dtype: torch.dtype = torch.float32, d_vocab: int = D_VOCAB, dropout: float = 0.0) -> TransformerBridge:
    """The native decoder with weights drawn by a seed, in eval mode. It has no dropout."""
    boot: Any = TransformerBridge.boot_native  # type: ignore[attr-defined]  # TransformerLens sets it on import
    bridge = boot(
        {
            "n_layers": LAYERS, "d_model": D_MODEL, "n_ctx": LENGTH, "d_head": D_MODEL // 3, "n_heads": 3,
            "d_vocab": d_vocab, "act_fn": "gelu", "normalization_type": "LN",
        }
    )  # fmt: skip
    bridge.eval()
    randomised(bridge)
    if dropout:
        for block in bridge.blocks:
            block.mlp.register_forward_hook(
                lambda module, _i, out: nn.functional.dropout(out, dropout, module.training)
            )
    return bridge if dtype == torch.float32 else bridge.to(dtype)
