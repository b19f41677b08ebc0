"""Dropout, in training only: hooks of its own that draw from a generator, so that no model carries it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from workbench.sites import split


@contextmanager
def dropping(model: Any, rate: float, generator: torch.Generator) -> Iterator[None]:
    """While this lasts, a share `rate` of the numbers is put to 0, and the rest divided by 1 − rate, in what each
    attention and MLP adds to the residual stream and in what enters each stack's first layer (Vaswani et al. 2017,
    section 5.4; Srivastava et al. 2014)."""
    if not rate:
        yield
        return

    def drop(_module: Any, _inputs: Any, value: Tensor) -> Tensor:
        kept = torch.rand(value.shape, generator=generator, dtype=value.dtype) >= rate
        return value * kept / (1 - rate)

    handles = [point.register_forward_hook(drop) for name, point in model.hook_dict.items() if _drops(name)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _drops(name: str) -> bool:
    last = split(name)[1]
    return last in ("hook_attn_out", "hook_mlp_out") or name.endswith("blocks.0.hook_resid_pre")
