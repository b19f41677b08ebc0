"""Sinusoidal positions: an offset as one matrix, wavelengths, and how alike the places are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from workbench.checkpoints import Trained
from workbench.models.positions import angles, sinusoids

WIDE, OFFSETS, EXACTLY = 512, (1, 3, 16, 100), torch.float64
SHOWN = 8


def table(n: int, width: int, dtype: torch.dtype = EXACTLY) -> Tensor:
    """The vectors of the places 0 .. n − 1, [place width]."""
    return sinusoids(torch.arange(n)[None], width, torch.zeros(1, dtype=dtype))[0]


def offset_matrix(k: int, width: int) -> Tensor:
    """The matrix M with M · p(n) = p(n + k) at every n, [width width]: each sine–cosine pair is turned by its angle.

    sin(a + b) = sin a cos b + cos a sin b, and cos(a + b) = cos a cos b − sin a sin b.
    """
    turn = angles(torch.tensor([[k]]), width, torch.zeros(1, dtype=EXACTLY))[0, 0]
    blocks = [torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]], dtype=EXACTLY) for a in turn]
    return torch.block_diag(*blocks)


def linear_error(k: int, width: int, n: int, dtype: torch.dtype = EXACTLY) -> float:
    """The largest |M · p(n) − p(n + k)| over places and numbers."""
    known = table(n + k, width, dtype)
    return float((known[:n] @ offset_matrix(k, width).to(dtype).T - known[k:]).abs().max())


def best_fit(vectors: Tensor, k: int = 1) -> float:
    """What the best single matrix from each place to the k-th after it misses: root mean square over root mean square.
    With fewer places than numbers a place, some matrix always fits."""
    here, there = vectors[:-k], vectors[k:]
    fitted = here @ torch.linalg.lstsq(here, there, driver="gelsd").solution
    return float(((fitted - there).square().mean() / there.square().mean()).sqrt())


def measured(seeds: int) -> dict:
    """The numbers that the claims are about."""
    long = table(2000, WIDE)
    distance = torch.cdist(long, long) + torch.eye(len(long), dtype=EXACTLY) * 1e9
    wavelengths = 2 * math.pi / angles(torch.tensor([[1]]), WIDE, long)[0, 0]
    alike = cosines(long)
    drawn = [
        torch.randn(200, 32, generator=torch.Generator().manual_seed(seed), dtype=EXACTLY) for seed in range(seeds)
    ]
    return {
        "linear": max(linear_error(k, WIDE, 1000) for k in OFFSETS),
        "linear32": max(linear_error(k, WIDE, 1000, torch.float32) for k in OFFSETS),
        "shortest": float(wavelengths[0] / (2 * math.pi)),
        "longest": float(wavelengths[-1] / (2 * math.pi)),
        "distance": float(distance.min()),
        "refused": refused(500, 1000),
        "nearest": float(alike[1] - alike[2:501].max()),
        "random": [best_fit(one) for one in drawn],
        "fitted": best_fit(table(200, 32)),
    }


def refused(places: int, tokens: int) -> bool:
    """Whether a model with so many learned positions refuses so many tokens."""
    from workbench import ModelConfig, Transformer

    model = Transformer(ModelConfig(d_vocab=2, n_ctx=places, d_model=2, n_layers=1, n_heads=1), seed=0)
    try:
        model(torch.zeros(1, tokens, dtype=torch.long))
    except ValueError:
        return True
    return False


def cosines(vectors: Tensor) -> Tensor:
    """The mean cosine between vectors [place width] that lie each offset apart, [offset]."""
    unit = vectors / vectors.norm(dim=-1, keepdim=True)
    products = unit @ unit.T
    return torch.stack([products.diagonal(k).mean() for k in range(len(unit))])


def likeness(trained: Mapping[str, Sequence[Trained]], most: int = 8) -> pd.DataFrame:
    """Cosine by offset, as the figure shows it: panel, model_seed, x (the offset), value."""
    from workbench import Transformer

    rows = [
        {"panel": f"sinusoidal, {width} wide", "model_seed": 0, "x": k, "value": float(one)}
        for width in (32, WIDE)
        for k, one in enumerate(cosines(table(200, width))[:60])
    ]
    for one in trained["learned"]:
        fresh = Transformer(one.model.config, seed=one.seed)
        for name, model in (("before training", fresh), ("trained", one.model)):
            used = cosines(model.pos_embed.W_pos.detach()[: most + 1])
            rows += [
                {"panel": f"learned, {name}", "model_seed": one.seed, "x": k, "value": float(value)}
                for k, value in enumerate(used)
            ]
    return pd.DataFrame(rows)


def shown_matrix() -> pd.DataFrame:
    """The matrix of offset 1 at width 8, as a table."""
    matrix = offset_matrix(1, SHOWN)
    numbers = [f"{'sin' if i % 2 == 0 else 'cos'} {i // 2}" for i in range(SHOWN)]
    shown = pd.DataFrame([[f"{float(x) + 0.0:.4f}" if x else "0" for x in row] for row in matrix], columns=numbers)
    shown.insert(0, "one place on", numbers)
    return shown
