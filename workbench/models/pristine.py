"""Whether an own model is still made of this workbench's modules alone, so that its rows can be computed one by one,
and is what its configuration builds."""

from __future__ import annotations

from typing import Any

import torch
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
        if isinstance(module, Block | CrossBlock) and (bare := _unnormed(module)):
            return f"{where}.{bare} is an Identity, which its norm {module.norm!r} does not ask for"
    return None


def _unnormed(block: Block | CrossBlock) -> str | None:
    """Which of a layer's norms was taken out."""
    asked = [] if block.norm == "none" else ["ln1", "ln2"] if getattr(block, "mlp", None) is not None else ["ln1"]
    return next((name for name in asked if isinstance(getattr(block, name), nn.Identity)), None)


STATES = ("training", "mod_dict", "hook_dict", "is_caching", "context_level")
"""What a module holds that tells nothing of what it computes, TransformerLens' own."""


def other_than_built(model: Any) -> str | None:
    """What in a model is another module, function or number than its configuration builds; None where nothing is."""
    from workbench.models.built import build

    fresh = dict(build(model.config, seed=0).named_modules())
    for name, module in model.named_modules():
        if name not in fresh or type(module) is not type(fresh[name]):
            return f"{name or 'the model'} is a {type(module).__name__}, which its configuration does not build"
        for what, value in _numbers_and_functions(fresh[name]).items():
            if not _same(value, getattr(module, what, None)):
                return f"{f'{name}.' if name else ''}{what} is not what its configuration builds"
    return None


def _numbers_and_functions(module: Any) -> dict[str, Any]:
    """What a module computes with that is no weight."""
    own = {} if isinstance(module, HookPoint) else vars(module)
    kept = {name: value for name, value in own.items() if not name.startswith("_") and name not in STATES}
    return {**kept, **dict(module.named_buffers(recurse=False))}


def _same(built: Any, value: Any) -> bool:
    if isinstance(built, torch.Tensor) and isinstance(value, torch.Tensor):
        return torch.equal(built.to(value), value)
    return built is value or bool(built == value)
