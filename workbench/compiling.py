"""torch.compile where it can be had: otherwise the function as it is, with a warning that says why."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class NotCompiled(UserWarning):
    """A function runs as it is, since it could not be compiled."""


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """The function, compiled at its first call; the function itself, with the warning `NotCompiled`, where the device
    has no compiler (on a CPU: no g++ or clang), or where compiling this function fails.

    >>> with warnings.catch_warnings(record=True, action="always") as said:
    ...     double = compiled(lambda x: 2 * x, torch.device("meta"))
    >>> double(torch.ones(3)).tolist(), str(said[0].message)
    ([2.0, 2.0, 2.0], "not compiled, and run as it is: nothing is compiled for 'meta', only for a CPU and for CUDA")
    """
    if why := refusal(device):
        return _said(function, why)
    made, usable = torch.compile(function), True

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal usable
        if usable:
            try:
                return made(*args, **kwargs)
            except Exception as error:
                usable = False
                # What is wrong with the call itself is raised by the function, and no fault of the compiler.
                out = function(*args, **kwargs)
                _said(function, _line(error))
                return out
        return function(*args, **kwargs)

    return call


def refusal(device: torch.device) -> str | None:
    """Why a device cannot compile, found by compiling a small function and its gradient; None where it can."""
    if device.type not in ("cpu", "cuda"):
        return f"nothing is compiled for {device.type!r}, only for a CPU and for CUDA"
    try:
        numbers = torch.ones(8, device=device, requires_grad=True)
        torch.compile(_probe)(numbers).backward()
    except Exception as error:
        return _line(error)
    return None


def _probe(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


def _said(function: Callable[..., Any], why: str) -> Callable[..., Any]:
    warnings.warn(f"not compiled, and run as it is: {why}", NotCompiled, stacklevel=3)
    return function


def _line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
