"""The operations on attention rows: one pure function each, used by the attention core, hooks and engine alike.

A row is the last axis, `[... source]`. Scores carry the mask: a source that cannot be read has the score −∞, so that
"visible" is `scores > −∞`. Every function returns a new tensor.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

HIDDEN = -math.inf
Scores = Float[Tensor, "*row source"]
Weights = Float[Tensor, "*row source"]
Sources = Bool[Tensor, "*row source"]
Rows = Bool[Tensor, "*row"]


def visible(scores: Scores) -> Sources:
    """Which sources a row can still read, a mask of the scores' shape."""
    return scores > HIDDEN


def exact(values: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """The values in float32 or better."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def softmax(scores: Scores) -> Weights:
    """Weights of each row, in float32 or better; hidden sources get exactly 0, a row with none visible is all 0.

    scores, weights [... source]. Scaled dot-product attention: Vaswani et al. 2017, equation 1.
    """
    return softmax_and_empty(scores)[0]


def softmax_and_empty(scores: Scores) -> tuple[Weights, Rows | None]:
    """As `softmax`, and which rows have no visible source [...]; None where it is seen at once that none is such."""
    scores = exact(scores)
    if scores.device.type == "cpu" and not torch.is_grad_enabled():
        weights = torch.softmax(scores, -1)
        if not bool(torch.isnan(weights.sum())):
            return weights, None
    empty = (scores == HIDDEN).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    return weights, empty[..., 0]


SHORT = 64
"""Rows of so many sources or fewer are normalised side by side."""


def side_by_side(scores: Scores) -> bool:
    """Whether rows like these are normalised side by side."""
    return scores.device.type == "cpu" and scores.shape[-1] <= SHORT


def softmax_side_by_side(scores: Scores) -> tuple[Weights, bool]:
    """As `softmax` within rounding, and whether some row may be empty; for many short rows on a CPU, where it is
    several times as fast: all rows are normalised at once along an axis that comes first in memory."""
    if not side_by_side(scores):
        return softmax(scores), True
    weights = torch.softmax(exact(scores).movedim(-1, 0).contiguous(), 0)
    if bool(torch.isnan(weights.sum())):
        return softmax(scores), True
    return weights.movedim(0, -1), False


def cut(scores: Scores, selected: Sources) -> Scores:
    """The selected sources' scores become −∞, so that the rest renormalises: w'ₖ = wₖ / (1 − w_cut)."""
    return torch.where(selected, HIDDEN, scores)


def keep_only(scores: Scores, selected: Sources, rows: Rows) -> Scores:
    """In `rows` [...], every source but the selected ones is cut."""
    return torch.where(rows[..., None] & ~selected, HIDDEN, scores)


def uniform(scores: Scores, selected: Sources, rows: Rows) -> Scores:
    """In `rows` [...], equal weight on the selected sources that are visible and 0 elsewhere."""
    level = torch.zeros_like(scores).masked_fill(~(selected & visible(scores)), HIDDEN)
    return torch.where(rows[..., None], level, scores)


def scale(scores: Scores, selected: Sources, by: float | int) -> Scores:
    """The selected weights times `by` > 0, then the row renormalises: `log by` is added to the score."""
    return torch.where(selected, scores + math.log(by), scores)


def shuffle(scores: Scores, rows: Rows, order: Float[Tensor, "*row source"]) -> Scores:
    """In `rows` [...], the visible weights change places: visible sources, sorted by `order`, take each other's score.

    `order` [... source] holds random numbers; the permutation is uniform over the visible sources.
    """
    seen = visible(scores)
    places = torch.argsort((~seen).to(torch.int8), dim=-1, stable=True)
    drawn = torch.argsort(torch.where(seen, order, torch.full_like(order, math.inf)), dim=-1, stable=True)
    moved = torch.empty_like(scores).scatter_(-1, places, scores.gather(-1, drawn))
    return torch.where(rows[..., None], moved, scores)


def attend_to_self(scores: Scores, rows: Rows, own: Sources) -> Scores:
    """In `rows` [...], all the weight goes to the row's own position; `own` [... source] marks it."""
    level = torch.zeros_like(scores).masked_fill(~own, HIDDEN)
    return torch.where(rows[..., None], level, scores)


def zero(weights: Weights, selected: Sources) -> Weights:
    """The selected weights become 0 after the softmax; the row no longer sums to 1."""
    return weights.masked_fill(selected, 0.0)
