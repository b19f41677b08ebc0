"""What is known of positions besides a trained vector: sinusoids, turned queries and keys, offsets."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from workbench.rows import exact

BASE = 10000.0
"""The wavelengths stretch from 2π to BASE × 2π (Vaswani et al. 2017, section 3.5; Su et al. 2021, section 3.2.2)."""


def angles(at: Int[Tensor, "batch pos"], width: int, like: Tensor) -> Float[Tensor, "batch pos pair"]:
    """How far each pair of numbers is turned at each place, in radians: place × BASE^(−2i / width)."""
    steps = torch.arange(0, width, 2, device=like.device)
    return at[..., None].to(like.dtype) * BASE ** (-steps.to(like.dtype) / width)


def sinusoids(at: Int[Tensor, "batch pos"], width: int, like: Tensor) -> Float[Tensor, "batch pos width"]:
    """Sines and cosines of the places [batch pos], interleaved: number 2i is sin(angle i), number 2i + 1 its cosine.

    >>> sinusoids(torch.tensor([[0, 1]]), 4, torch.zeros(1)).round(decimals=2).tolist()
    [[[0.0, 1.0, 0.0, 1.0], [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]]]
    """
    turn = angles(at, width, exact(like))
    both = rearrange([turn.sin(), turn.cos()], "two b pos pair -> b pos (pair two)")
    return both[..., :width].to(like.dtype)


def turned(
    x: Float[Tensor, "batch pos head d_head"], at: Int[Tensor, "#batch pos"]
) -> Float[Tensor, "batch pos head d_head"]:
    """Queries or keys [batch pos head d_head], each pair of neighbouring numbers turned by its angle, so that a score
    depends on offsets alone (Su et al. 2021, equation 34)."""
    turn = angles(at, x.shape[-1], exact(x))[:, :, None]
    even, odd = exact(x)[..., 0::2], exact(x)[..., 1::2]
    both = [even * turn.cos() - odd * turn.sin(), even * turn.sin() + odd * turn.cos()]
    return rearrange(both, "two b pos head pair -> b pos head (pair two)").to(x.dtype)


def by_offset(
    table: Float[Tensor, "head offset"], dest: Int[Tensor, "batch dest"], source: Int[Tensor, "#batch source"]
) -> Float[Tensor, "batch head dest source"]:
    """A number per head and offset, laid over the scores; the table's middle is offset 0."""
    index = dest[:, :, None] - source[:, None, :] + table.shape[-1] // 2
    return rearrange(table[:, index], "head b dest source -> b head dest source")
