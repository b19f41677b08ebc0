"""Scores and sums of values in which a few sources are other ones than in the clean run."""

from __future__ import annotations

from einops import einsum, rearrange
from torch import Tensor

from workbench import rows as on_rows
from workbench.clean import Clean
from workbench.groups import Rows
from workbench.models.attention import Attention, shared
from workbench.models.lean import products_of_vectors


def changed_scores(
    scores: Tensor,
    attn: Attention,
    q: Tensor,
    k: Tensor | None,
    x: Tensor | None,
    rows: Rows,
    source: Rows,
    clean: Clean,
    place: tuple[str, int],
) -> Tensor:
    """Scores [example head cell·row source] with the columns of some sources put in place.

    q [example cell·row head d_head]; k [example cell·source head d_head], or x [example cell·source d_model], the
    vectors from which keys are made, where all rows are one.
    """
    cells = rows.index.shape[1]
    q = on_rows.exact(q)
    if k is None:
        assert x is not None
        by_cell = rearrange(x, "b (cell s) d_model -> b cell s d_model", cell=cells)
        products = products_of_vectors(attn, q[:, 0], by_cell)[:, :, :, None]
    else:
        k = rearrange(on_rows.exact(k), "b (cell s) head d_head -> b cell s head d_head", cell=cells)
        if q.stride(1) == 0:
            products = einsum(q[:, 0], k, "b head d_head, b cell s head d_head -> b head cell s")[:, :, :, None]
        else:
            products = _products(rearrange(q, "b (cell row) head d_head -> b cell row head d_head", cell=cells), k)
    new = attn.scaled(products, clean.bias_between(place[0], attn, rows, source))
    new = new.masked_fill(clean.hidden_between(*place, rows, source)[:, None], on_rows.HIDDEN)
    out = rearrange(scores, "b head (cell row) source -> b head cell row source", cell=cells)
    index = source.index[:, None, :, None, :].expand(*new.shape)
    # A clone keeps how rows lie in memory, and `scatter` does not.
    return rearrange(out.clone().scatter_(-1, index, new), "b head cell row source -> b head (cell row) source")


def _products(q: Tensor, k: Tensor) -> Tensor:
    """[example head cell row source] of q [example cell row head d_head] and k [example cell source head d_head]."""
    if q.shape[2] == 1 or k.shape[2] == 1:
        # A product of two vectors is no matrix product worth its call.
        return rearrange((q[:, :, :, None] * k[:, :, None]).sum(-1), "b cell row s head -> b head cell row s")
    return einsum(q, k, "b cell row head d_head, b cell s head d_head -> b head cell row s")


def mixed_with(attn: Attention, weights: Tensor, values: Tensor, new: Tensor, source: Rows) -> Tensor:
    """z [example cell·row head d_head] where the values of some sources are other ones than `values`.

    weights [example head cell·row source], values [example source kv_head d_head], new [example cell·source kv_head
    d_head].
    """
    cells = source.index.shape[1]
    by_cell = rearrange(weights, "b head (cell row) source -> b head cell row source", cell=cells)
    index = source.index[:, None, :, None, :].expand(*by_cell.shape[:-1], -1)
    taken = by_cell.gather(-1, index)
    # Where an example has no such source at all, what stands for one keeps its weight.
    some = source.real.any(-1)[:, None, :, None, None]
    rest = by_cell.scatter(-1, index, taken.masked_fill(some, 0.0))
    z = attn.mixed(rearrange(rest, "b head cell row source -> b head (cell row) source"), values)
    out = rearrange(z, "b (cell row) head d_head -> b cell row head d_head", cell=cells)
    added = rearrange(shared(new, weights.shape[1]), "b (cell s) head d_head -> b cell s head d_head", cell=cells)
    if taken.shape[-1] == 1 and bool(source.real.all()):
        out = out.addcmul_(rearrange(taken, "b head cell row 1 -> b cell row head 1"), added)
    else:
        taken = taken * source.real[:, None, :, None, :]
        out = out + einsum(taken, added, "b head cell row s, b cell s head d_head -> b cell row head d_head")
    return rearrange(out, "b cell row head d_head -> b (cell row) head d_head")
