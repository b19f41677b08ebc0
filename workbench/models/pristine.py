"""Whether an own model is still made of this workbench's modules alone, so that its rows can be computed one by one."""

from __future__ import annotations

from torch import nn
from transformer_lens.hook_points import HookPoint

from workbench.models.attention import Attention
from workbench.models.layers import MLP, Block, CrossBlock, LayerNorm
from workbench.models.stack import Embed, PosEmbed, Stack

_KNOWN = (Attention, MLP, Block, CrossBlock, LayerNorm, Embed, PosEmbed, Stack, HookPoint, nn.Identity, nn.ModuleList)


def altered(model: nn.Module, known: tuple[type, ...]) -> str | None:
    """Which module is another than those that a model of this workbench is built of; None where none is."""
    for name, module in model.named_modules():
        where = name or "the model"
        if type(module) not in (*_KNOWN, *known):
            return f"{where} is a {type(module).__name__}, which is no module of this workbench"
        if own := [name for name, value in vars(module).items() if callable(value) and hasattr(type(module), name)]:
            return f"{where} has a method of its own, {own[0]}"
    return None
