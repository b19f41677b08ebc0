"""What a behaviour asks of a tool. Features that only some tools have are asked for with `feature`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from workbench import Batch, Edges

Place = tuple[str, int | None]
"""A site of `workbench.sites` and its layer; None where the site stands once in the model."""

Moment = Literal["before", "after"]
Objective = Callable[[Tensor, Batch], Tensor]

D_MODEL, D_VOCAB, LENGTH, LAYERS = 12, 16, 8, 2
"""The size of every model: width, tokens, positions, layers."""


PAST = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
"""What a decoder reads, [dest source]."""


class Tool(Protocol):
    """A tool around one model of two layers; `fresh` gives the same tool around a new model with the same weights. A
    tool whose model is no plain decoder says in `reads` [dest source] which sources each destination may read.

    An edit is whatever `function`, `cut`, `uniform`, `zero` and `ablate` return. `record` keeps what stands at a place
    "before" the edits of the same call, or "after" them. `misspelt`: a place that is not there, and the name that an
    error should suggest. `idle_keyword`: keywords of a run that have no effect in it.
    """

    name: str
    module: nn.Module
    n_heads: int
    misspelt: tuple[Place, str]
    idle_keyword: Mapping[str, Any]

    @property
    def places(self) -> Sequence[Place]: ...

    def fresh(self, **changes: Any) -> Tool: ...

    def spelling(self, place: Place) -> str: ...

    def run(self, batch: Batch, edits: Sequence[Any] = (), **more: Any) -> Tensor: ...

    def record(
        self, batch: Batch, places: Sequence[Place], edits: Sequence[Any] = (), *, moment: Moment = "after"
    ) -> Mapping[Place, Tensor]: ...

    def gradients(self, batch: Batch, places: Sequence[Place], of: Objective) -> Mapping[Place, Tensor]: ...

    def add_hook(self, place: Place, fn: Callable[[Tensor], Tensor | None]) -> None: ...

    def function(self, place: Place, fn: Callable[[Tensor], Any]) -> Any: ...

    def cut(self, edges: Edges, **options: Any) -> Any: ...

    def uniform(self, edges: Edges) -> Any: ...

    def zero(self, edges: Edges) -> Any: ...

    def ablate(self, layer: int, head: int) -> Any: ...


class Unoffered(Exception):
    """A behaviour needs a feature that the tool does not have."""


def feature(tool: Any, name: str, what: str) -> Any:
    """The tool's method of that name. Raises `Unoffered`, "offers no ...", where it has none."""
    if not hasattr(tool, name):
        raise Unoffered(f"offers no {what}")
    return getattr(tool, name)


def reads(tool: Any) -> Tensor:
    """Which sources each destination may read in the tool's model, [dest source]; a decoder's where it does not say."""
    return getattr(tool, "reads", PAST)


def hidden(tool: Any) -> Tensor:
    """Which sources the mask of the tool's model hides, [dest source]. Raises `Unoffered` where it hides none."""
    if bool(reads(tool).all()):
        raise Unoffered("offers no hidden source: every row reads every source")
    return ~reads(tool)


def stands(tool: Any, *places: Place) -> None:
    """Raises `Unoffered` where the tool has no such place."""
    for name, layer in places:
        if (name, layer) not in tool.places:
            raise Unoffered(f"offers no {name} that a hook can stand at")


@dataclass(frozen=True)
class Edit:
    """A function of a place's tensor and of the batch, which it learns when it runs."""

    place: Place
    fn: Callable[[Tensor, Batch], Any]

    def bound(self, batch: Batch) -> Callable[[Tensor], Any]:
        return lambda value: self.fn(value, batch)


class ByHand(ABC):
    """Tools without operations of their own: what their user writes, as functions of scores, weights and vectors."""

    idle_keyword: Mapping[str, Any] = {}

    @abstractmethod
    def run(self, batch: Batch, edits: Sequence[Edit] = (), **more: Any) -> Tensor: ...

    def function(self, place: Place, fn: Callable[[Tensor], Any]) -> Edit:
        return Edit(place, lambda value, _batch: fn(value))

    def cut(self, edges: Edges) -> Edit:
        """Scores of −∞ at the selected edges, before the softmax."""
        return self._edges("scores", edges, lambda scores, chosen, _rows: scores.masked_fill(chosen, -torch.inf))

    def uniform(self, edges: Edges) -> Edit:
        """Equal scores at all sources of the rows that are not masked."""

        def level(scores: Tensor, _chosen: Tensor, rows: Tensor) -> Tensor:
            hidden = scores <= torch.finfo(scores.dtype).min
            return torch.where(rows, scores.masked_fill(~hidden, 0.0), scores)

        return self._edges("scores", edges, level)

    def zero(self, edges: Edges) -> Edit:
        """Weights of 0 at the selected edges, after the softmax."""
        return self._edges("pattern", edges, lambda weights, chosen, _rows: weights.masked_fill(chosen, 0.0))

    def ablate(self, layer: int, head: int) -> Edit:
        def without(z: Tensor) -> Tensor:
            z = z.clone()
            z[:, :, head] = 0.0
            return z

        return self.function(("z", layer), without)

    def _edges(self, site: str, edges: Edges, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Edit:
        def fn(value: Tensor, batch: Batch) -> Tensor:
            chosen = batch.edges(edges.dest, edges.source)[:, None]
            rows = batch.role(edges.dest)[:, None, :, None]
            if edges.head is not None:
                head = (torch.arange(value.shape[1]) == edges.head)[None, :, None, None]
                chosen, rows = chosen & head, rows & head
            return change(value, chosen, rows)

        return Edit((site, edges.layer), fn)


def padding_mask(batch: Batch) -> dict[str, Tensor]:
    """The keyword that Hugging Face models and bridges take for padding; none where there is none."""
    return {} if bool(batch.valid.all()) else {"attention_mask": batch.valid.long()}


@torch.no_grad()
def randomised(module: nn.Module) -> None:
    """Weights and biases all away from 0, drawn by a seed, so that no bias or scale is idle."""
    generator = torch.Generator().manual_seed(0)
    for _, parameter in sorted(module.named_parameters()):
        drawn = torch.randn(parameter.shape, generator=generator)
        centre = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
        parameter.copy_(centre + 0.35 * drawn)
