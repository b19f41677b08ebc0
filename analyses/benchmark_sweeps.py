"""A sweep of cuts, one cell after the other or all at once: ours, and the loops that other tools offer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from analyses.benchmark_plain import native, plain
from analyses.benchmark_timing import Answers, Chunks, tried
from workbench import Batch, Edges, Intervention, Transformer, cut
from workbench.engine import run_each
from workbench.floor import LayerWork, Work, clean_work, cut_work

Index = int | Tensor
Forward = Callable[["Place", slice], Tensor]
"""Logits [batch pos d_vocab] of some examples, with a cut in force."""


@dataclass(frozen=True)
class Place:
    """A cell's edge: one layer, one head or all, and the destination and source of each example: a number where they
    are the same in all, else [batch]."""

    layer: int
    head: int | None
    dest: Index
    source: Index

    def of(self, examples: slice) -> tuple[Any, ...]:
        """The index of the edge in scores [batch head dest source] of these examples."""
        head: Any = slice(None) if self.head is None else self.head
        if isinstance(self.dest, int) and isinstance(self.source, int):
            return slice(None), head, self.dest, self.source
        dest, source = (one if isinstance(one, int) else one[examples] for one in (self.dest, self.source))
        n = len(dest) if isinstance(dest, Tensor) else len(source)  # type: ignore[arg-type]
        return torch.arange(n), head, dest, source

    def hide(self, scores: Tensor, examples: slice) -> Tensor:
        """The edge's score put to −∞, in place: nobody else holds this tensor."""
        scores[self.of(examples)] = -math.inf
        return scores

    def without(self, pattern: Tensor, examples: slice) -> Tensor:
        """The edge's weight put to 0 and its row's others scaled up to sum to 1, in place."""
        pattern[self.of(examples)] = 0.0
        row = self.of(examples)[:3]
        pattern[row] = pattern[row] / pattern[row].sum(-1, keepdim=True)
        return pattern


@dataclass(frozen=True, eq=False)
class Sweep:
    """What is asked: the logits at the last position with each cell's edges cut, one cell at a time.

    cells: each a dest and a source role of one position an example. Raises ValueError where there is none, and for a
    role of several positions.
    """

    model: Transformer
    batch: Batch
    cells: tuple[Edges, ...]

    def __post_init__(self) -> None:
        if not self.cells:
            raise ValueError("a sweep of no cells was asked; give one edge or more")

    @cached_property
    def places(self) -> list[Place]:
        return [
            Place(one.layer, one.head, _index(self.batch, one.dest), _index(self.batch, one.source))
            for one in self.cells
        ]

    @cached_property
    def plain(self) -> nn.Module:
        """The model in plain PyTorch, made once: every tool is given this one."""
        return plain(self.model)

    @cached_property
    def bridge(self) -> Any:
        """The model as TransformerLens' native bridge."""
        return native(self.model)

    def answers(self, logits: Sequence[Tensor]) -> Answers:
        """What a contestant has to say: each cell's logits [batch d_vocab] at the last position, by its number."""
        return {str(cell): one for cell, one in enumerate(logits)}

    def flops(self) -> int:
        """The operations that must be done for all cells and examples, beside the clean run that they share."""
        return self.work().flops(self.model.config)

    def clean_flops(self, everywhere: bool) -> int:
        """The operations of one run of the batch without a cut: at every position, or as the last one needs it."""
        config, length = self.model.config, self.batch.tokens.shape[1]
        one = clean_work(config, self._sees(), range(length) if everywhere else [length - 1])
        return one.flops(config) * len(self.batch)

    def work(self) -> Work:
        """Example by example where edges differ between them."""
        config, n = self.model.config, len(self.batch)
        counted = partial(cut_work, config, self._sees(), read=[self.batch.tokens.shape[1] - 1])
        total = Work(tuple(LayerWork() for _ in range(config.n_layers)))
        for place in self.places:
            heads = None if place.head is None else 1
            for dest, source, times in _counts(place, n):
                total += counted(layer=place.layer, dest=[dest], source=[source], heads=heads) * times
        return total

    def _sees(self) -> list[Tensor]:
        first = self.batch.select(slice(0, 1))
        return [self.model.sees(first, "", layer)[0] for layer in range(self.model.config.n_layers)]


def ours(sweep: Sweep, engine: Literal["auto", "hooks"]) -> Callable[[], Answers]:
    """By one call."""
    conditions = _conditions(sweep)

    def work() -> Answers:
        runs = run_each(sweep.model, sweep.batch, conditions, positions="read", engine=engine)
        return sweep.answers([one.logits[:, -1] for one in runs.values()])

    return work


def engines(sweep: Sweep) -> dict[str, int]:
    """How many cells went which way in one call with engine="auto": "rows", or why not."""
    runs = run_each(sweep.model, sweep.batch.select(slice(0, 1)), _conditions(sweep), positions="read")
    return dict(Counter(one.engine for one in runs.values()))


def looped(sweep: Sweep, forward: Forward, sizes: Sequence[int]) -> tuple[Callable[[], Answers], Chunks]:
    """A whole forward pass a cell, over chunks of the size that serves best; the loop, and the trials."""
    n = len(sweep.batch)

    def through(size: int, places: Sequence[Place]) -> list[Tensor]:
        with torch.inference_mode():
            return [torch.cat([forward(place, at)[:, -1] for at in _chunks(n, size)]) for place in places]

    trial = [sweep.places[0], sweep.places[-1]]
    chunks = tried(lambda size: lambda: through(size, trial), [min(one, n) for one in sizes])
    return lambda: sweep.answers(through(chunks.best, sweep.places)), chunks


def torch_hooks(sweep: Sweep) -> Forward:
    """PyTorch's forward hooks on the plain decoder."""
    model, tokens = sweep.plain, sweep.batch.tokens
    blocks: Any = model.blocks

    def forward(place: Place, examples: slice) -> Tensor:
        handle = blocks[place.layer].scores.register_forward_hook(lambda _m, _i, out: place.hide(out, examples))
        try:
            return model(tokens[examples])
        finally:
            handle.remove()

    return forward


def lens_on_ours(sweep: Sweep) -> Forward:
    """TransformerLens' `run_with_hooks` on our own model."""
    model, tokens = sweep.model, sweep.batch.tokens

    def forward(place: Place, examples: slice) -> Tensor:
        hook = (f"blocks.{place.layer}.attn.hook_attn_scores", lambda scores, hook: place.hide(scores, examples))
        return model.run_with_hooks(tokens[examples], fwd_hooks=[hook])

    return forward


def lens_bridge(sweep: Sweep) -> Forward:
    """TransformerLens' `run_with_hooks` on its native bridge, whose scores cannot be edited: at the pattern."""
    bridge, tokens = sweep.bridge, sweep.batch.tokens

    def forward(place: Place, examples: slice) -> Tensor:
        hook = (f"blocks.{place.layer}.attn.hook_pattern", lambda weights, hook: place.without(weights, examples))
        return bridge.run_with_hooks(tokens[examples], fwd_hooks=[hook])

    return forward


def nnsight_trace(sweep: Sweep) -> Forward:
    """nnsight's `trace` of the plain decoder."""
    import nnsight

    traced, tokens = nnsight.NNsight(sweep.plain), sweep.batch.tokens

    def forward(place: Place, examples: slice) -> Tensor:
        with traced.trace(tokens[examples]):
            place.hide(traced.blocks[place.layer].scores.output, examples)
            logits = traced.output.save()
        return logits

    return forward


def _conditions(sweep: Sweep) -> dict[str, list[Intervention]]:
    return {f"{index}: {cut(one)}": [cut(one)] for index, one in enumerate(sweep.cells)}


def _index(batch: Batch, role: str | None) -> Index:
    mask = batch.role(role)
    if not bool((mask.sum(1) == 1).all()):
        raise ValueError(f"role {role!r} is to be one position in each example; a cell is one edge an example")
    at = mask.int().argmax(1)
    return int(at[0]) if bool((at == at[0]).all()) else at


def _counts(place: Place, n: int) -> Iterator[tuple[int, int, int]]:
    """Each pair of destination and source that occurs, and in how many examples."""
    both = torch.stack([torch.as_tensor(one).expand(n) for one in (place.dest, place.source)], 1)
    pairs, times = both.unique(dim=0, return_counts=True)
    yield from ((dest, source, count) for (dest, source), count in zip(pairs.tolist(), times.tolist(), strict=True))


def _chunks(n: int, size: int) -> Iterator[slice]:
    return (slice(at, min(at + size, n)) for at in range(0, n, size))
