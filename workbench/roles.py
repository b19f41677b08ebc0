"""Relations computed from a recorded pattern: each row's top source, and its control."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import ConfigDict, Discriminator, Field
from torch import Tensor

from workbench.fields import Named


class TopSource(Named):
    """The relation of each row's largest weight, from a clean run, anew for each model. `head` may be left out where
    there is one."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["top source"] = "top source"
    layer: int = Field(ge=0)
    head: int | None = Field(None, ge=0)
    dest: str | None = None

    def __str__(self) -> str:
        return (
            f"top source of L{self.layer}" + ("" if self.head is None else f"H{self.head}") + f" {self.dest or 'every'}"
        )


class Control(Named):
    """The relation that controls for another: in each row, another visible source of the same token class, drawn by
    a seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["control"] = "control"
    of: str
    seed: int

    def __str__(self) -> str:
        return f"control of {self.of}, seed {self.seed}"


Derived = Annotated[TopSource | Control, Discriminator("kind")]


def top_source(layer: int, head: int | None = None, dest: str | None = None) -> TopSource:
    """Each row's largest source in one head, as a relation; ties go to the lowest position."""
    return TopSource(layer=layer, head=head, dest=dest)


def control_of(relation: str, *, seed: int) -> Control:
    """A seeded draw among the same row's other visible sources of the same token class."""
    return Control(of=relation, seed=seed)


def top_relation(
    pattern: Float[Tensor, "batch dest source"],
    dest: Bool[Tensor, "batch dest"],
    visible: Bool[Tensor, "batch dest source"],
) -> Bool[Tensor, "batch dest source"]:
    """pattern [batch dest source] of one head, dest [batch dest], visible [batch dest source] → [batch dest source].

    >>> weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    >>> causal = torch.tensor([[[True, False], [True, True]]])
    >>> top_relation(weights, torch.tensor([[True, True]]), causal).int().tolist()
    [[[1, 0], [1, 0]]]
    """
    seen = pattern.masked_fill(~visible, -1.0)
    # The first of equal maxima: positions are compared by hand, since argmax promises no order among ties.
    best = seen == seen.amax(-1, keepdim=True)
    first = best & (best.cumsum(-1) == 1)
    return first & visible & dest[:, :, None]


def control_relation(
    relation: Bool[Tensor, "batch dest source"],
    visible: Bool[Tensor, "batch dest source"],
    classes: Int[Tensor, "batch source"],
    seed: int,
) -> Bool[Tensor, "batch dest source"]:
    """relation, visible [batch dest source], classes [batch pos] → [batch dest source]; a row with no candidate gets
    none.

    Raises ValueError where a row of the relation has several sources: a control stands in for one.
    """
    if (relation.sum(-1) > 1).any():
        raise ValueError("a control is drawn for relations with one source a row; this one has rows with several")
    # One source a row at the most, so its class is the sum over sources.
    wanted = (relation * classes[:, None, :]).sum(-1)
    candidates = visible & ~relation & (classes[:, None, :] == wanted[:, :, None]) & relation.any(-1, keepdim=True)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(relation.shape, generator=generator).to(relation.device).masked_fill(~candidates, -1.0)
    choice = torch.zeros_like(relation).scatter_(-1, drawn.argmax(-1, keepdim=True), True)
    return choice & candidates
