"""The edges that locations name in a single example, found for many locations at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.anatomy import Sight
from workbench.batch import Batch
from workbench.locations import Edges


@dataclass(frozen=True, eq=False)
class NamedEdges:
    """The edges that a location names in a single example. seen [1 dest source]: those that the mask does not hide, and
    how many these are; n_asked: how many are named."""

    seen: Tensor
    n_seen: int
    n_asked: int


def name_edges(wheres: Iterable[Edges], batch: Batch, sight: Sight) -> None:
    """Finds the edges of many locations in a batch of one example, all at once, and keeps them for `edges_named`."""
    new: dict[tuple[str, int], dict[Any, Edges]] = {}
    for where in wheres:
        if sight.found(name := _name(where)) is None:
            new.setdefault(name[:2], {})[name] = where
    for (part, layer), several in new.items():
        asked = torch.stack([batch.edges(where.dest, where.source, part) for where in several.values()])
        seen = asked & sight(part, layer)
        counts = zip(*(masks.flatten(1).sum(1).tolist() for masks in (seen, asked)), strict=True)
        for name, mask, (n_seen, n_asked) in zip(several, seen, counts, strict=True):
            sight.kept(name, partial(NamedEdges, mask, n_seen, n_asked))


def edges_named(where: Edges, batch: Batch, sight: Sight) -> NamedEdges:
    """The edges of a location in a batch of one example."""
    name = _name(where)
    if sight.found(name) is None:
        name_edges([where], batch, sight)
    found = sight.found(name)
    assert isinstance(found, NamedEdges)
    return found


def _name(where: Edges) -> tuple[str, int, str | None, str | None]:
    return where.in_model, where.layer, where.dest, where.source
