"""The machine that benchmarks run on: what it is, and how fast it multiplies matrices."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pandas as pd
import torch

SIZES = (1024, 2048)
"""Of the square products by which the rate is measured."""

REPEATS = 3
PACKAGES = ("torch", "transformer-lens", "transformers", "nnsight", "numpy", "attention-workbench")


def matrix_rate(sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> float:
    """Operations a second of square float32 products on the threads in use: of each size's median over repeats the
    best. A multiply-add counts as 2."""
    return max(_rate(size, repeats) for size in sizes)


def _rate(size: int, repeats: int) -> float:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
    out = a @ b
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.matmul(a, b, out=out)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds)


def description() -> pd.DataFrame:
    """The machine, a row a property; nothing in it names the machine or a folder."""
    rows = [
        ("processor", _processor()),
        (
            "processors in use",
            str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        ),
        ("threads of torch", str(torch.get_num_threads())),
        ("memory", _memory()),
        ("vector instructions", torch.backends.cpu.get_cpu_capability()),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("Python", platform.python_version()),
        *((name, _version(name)) for name in PACKAGES),
    ]
    return pd.DataFrame(rows, columns=["property", "value"])


def _processors() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _processor() -> str:
    """The processor's model as Linux tells it, else what Python knows."""
    return next(_told("/proc/cpuinfo", "model name"), platform.processor() or platform.machine())


def _memory() -> str:
    return next((f"{int(text.split()[0]) / 2**20:.0f} GiB" for text in _told("/proc/meminfo", "MemTotal")), "unknown")


def _told(file: str, name: str) -> Iterator[str]:
    place = Path(file)
    lines = place.read_text(encoding="utf-8").splitlines() if place.is_file() else []
    return (line.split(":", 1)[1].strip() for line in lines if line.startswith(name))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
