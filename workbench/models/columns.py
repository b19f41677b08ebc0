"""Scores and sums of values in which a few sources are other ones than in the clean run."""

from __future__ import annotations

import torch
from einops import einsum, rearrange
from torch import Tensor

from workbench import rows as on_rows
from workbench.clean import Clean
from workbench.groups import Rows
from workbench.models.attention import Attention, shared


def changed_scores(
    scores: Tensor,
    attn: Attention,
    q: Tensor,
    k: Tensor,
    rows: Rows,
    source: Rows,
    clean: Clean,
    place: tuple[str, int],
) -> Tensor:
    """Scores [example head cell·row source] with the columns of some sources put in place.

    q [example cell·row head d_head], k [example cell·source head d_head].
    """
    cells = rows.index.shape[1]
    by_cell = "b (cell row) head d_head -> b cell row head d_head"
    q, k = rearrange(on_rows.exact(q), by_cell, cell=cells), rearrange(on_rows.exact(k), by_cell, cell=cells)
    if q.shape[2] == 1 or k.shape[2] == 1:
        # A product of two vectors is no matrix product worth its call.
        products = rearrange((q[:, :, :, None] * k[:, :, None]).sum(-1), "b cell row s head -> b head cell row s")
    else:
        products = einsum(q, k, "b cell row head d_head, b cell s head d_head -> b head cell row s")
    new = attn.scaled(products, clean.bias_between(place[0], attn, rows, source))
    new = new.masked_fill(clean.hidden_between(*place, rows, source)[:, None], on_rows.HIDDEN)
    out = rearrange(scores, "b head (cell row) source -> b head cell row source", cell=cells)
    index = source.index[:, None, :, None, :].expand(*new.shape)
    return rearrange(out.scatter(-1, index, new), "b head cell row source -> b head (cell row) source")


def add_changed(z: Tensor, weights: Tensor, new: Tensor, old: Tensor, source: Rows) -> Tensor:
    """z [example cell·row head d_head] with what other values of some sources add to it.

    weights [example head cell·row source], new, old [example cell·source kv_head d_head].
    """
    cells = source.index.shape[1]
    change = shared(new - old, weights.shape[1])
    if not bool(source.real.all()):
        change = change * rearrange(source.real, "b cell s -> b (cell s) 1 1")
    change = rearrange(change, "b (cell s) head d_head -> b cell s head d_head", cell=cells)
    by_cell = rearrange(weights, "b head (cell row) source -> b head cell row source", cell=cells)
    index = source.index[:, None, :, None, :].expand(*by_cell.shape[:-1], -1)
    taken = by_cell.gather(-1, index)
    out = rearrange(z, "b (cell row) head d_head -> b cell row head d_head", cell=cells)
    if taken.shape[-1] == 1:
        out = torch.addcmul(out, rearrange(taken, "b head cell row 1 -> b cell row head 1"), change)
    else:
        out = out + einsum(taken, change, "b head cell row s, b cell s head d_head -> b cell row head d_head")
    return rearrange(out, "b cell row head d_head -> b (cell row) head d_head")
