"""Which device computes, and whether it computes rightly: any device but the CPU is compared with it on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

TOLERANCE = 1e-4
"""Of the largest |logit| or |gradient|: what a device may differ from the CPU in the parity check (float32)."""


class WrongDevice(RuntimeError):
    """A device whose logits or gradients are not the CPU's."""


def choose(name: str) -> torch.device:
    """The device of that name: "auto" is CUDA where there is one, else the CPU; "cpu", "cuda", "mps" are themselves.

    Raises ValueError for one that is not there, `WrongDevice` for one that fails the parity check.
    """
    there = ["cpu"]
    if torch.cuda.is_available():
        there += ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        there += ["mps"]
    if name == "auto":
        name = "cuda" if "cuda" in there else "cpu"
    if name not in there:
        raise ValueError(f"no device {name!r} on this machine; there are: auto, {', '.join(there)}")
    if name != "cpu":
        _checked(name)
    return torch.device(name)


@cache
def _checked(name: str) -> None:
    check_parity(name)


def check_parity(device: str) -> None:
    """Compares logits and gradients of a small model on `device` with the CPU's. Raises `WrongDevice` where they
    differ."""
    for what, cpu, other in zip(("logits", "gradients"), _probe("cpu"), _probe(device), strict=True):
        worst = float((cpu - other).abs().max() / cpu.abs().max())
        if not worst <= TOLERANCE:
            raise WrongDevice(
                f"{device} computes other {what} than the CPU (relative difference {worst:.2g}, allowed "
                f"{TOLERANCE:g}); use device='cpu'"
            )


def _probe(device: str) -> tuple[Tensor, Tensor]:
    from workbench.models.config import ModelConfig
    from workbench.models.transformer import Transformer

    model = Transformer(ModelConfig(d_vocab=11, n_ctx=7, d_model=16, n_layers=2, n_heads=2), seed=0).to(device)
    tokens = torch.arange(35).reshape(5, 7) * 3 % 11
    logits = model(tokens.to(device))
    (logits**2).mean().backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return logits.detach().cpu(), torch.cat(gradients).cpu()


@contextmanager
def one_thread() -> Iterator[None]:
    """Small models are faster, and the same bits on every machine of a kind, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
