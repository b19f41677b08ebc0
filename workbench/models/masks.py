"""Which sources a row may read, by the places of both."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from workbench.models.config import Mask


def places(valid: Bool[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """Where each position stands among the valid ones, counted from 0; padding has the place before it."""
    return (valid.cumsum(1) - 1).clamp_min(0)


def visible(mask: Mask, at: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos pos"]:
    """Which sources each destination may read, [batch dest source]; at [batch pos] says where each position stands."""
    dest, source = at[:, :, None], at[:, None, :]
    local = [] if mask.window is None else [_near(dest - source, mask.window, mask.dilation)]
    if mask.block is not None:
        local.append(dest // mask.block == source // mask.block)
    seen = torch.ones_like(dest == source) if not local else local[0]
    for more in local[1:]:
        seen = seen | more
    if mask.n_global:
        seen = seen | (dest < mask.n_global) | (source < mask.n_global)
    return seen & (source <= dest) if mask.causal else seen


def _near(offset: Tensor, window: int, dilation: int) -> Tensor:
    return (offset.abs() < window * dilation) & (offset % dilation == 0)
