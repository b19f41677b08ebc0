"""What a mask lets through: which positions can reach which after each layer, and the best rate that this leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from tasks.induction import Induction
from tasks.lookup import Lookup
from workbench import Batch, Transformer, record
from workbench.batch import UNREAD
from workbench.models.config import Mask
from workbench.models.masks import visible


class Ask(NamedTuple):
    """A position that is read: how much of the accuracy it is, and the two steps by which it can be answered. `start`
    and `size` are the repeated block's."""

    weight: float
    read: int
    answer: int
    key: int
    start: int = 0
    size: int = 0


def asks(task: Lookup | Induction) -> Iterator[Ask]:
    """Every way in which a position is read: the answer stands after the `key`, the earlier copy of the token read."""
    if isinstance(task, Lookup):
        for pair in range(task.pairs):
            yield Ask(1 / task.pairs, task.length - 1, 2 * pair + 1, 2 * pair)
        return
    sizes = range(task.shortest, task.longest + 1)
    for size in sizes:
        starts = range(task.length - 2 * size + 1)
        for start, k in product(starts, range(size - 1)):
            weight = 1 / (len(sizes) * len(starts) * (size - 1))
            yield Ask(weight, start + size + k, start + k + 1, start + k, start, size)


def seen(masks: Sequence[Mask], length: int) -> list[Tensor]:
    """Which sources each row may read, [dest source] a layer."""
    return [visible(mask, torch.arange(length)[None])[0] for mask in masks]


def reach(masks: Sequence[Mask], length: int) -> list[Tensor]:
    """Which sources can have reached each position after each layer, [dest source] a layer: powers of the masks. The
    residual stream keeps what was there.

    >>> [int(after[8].sum()) for after in reach([Mask(window=3)] * 4, 9)]
    [3, 5, 7, 9]
    """
    reached, after = torch.eye(length, dtype=torch.bool), []
    for layer in seen(masks, length):
        reached = reached | (layer.float() @ reached.float() > 0)
        after.append(reached)
    return after


def two_steps(task: Lookup | Induction, masks: Sequence[Mask]) -> float:
    """The share of the accuracy that two steps can give: in some layer the answer reads its key, and in a later one the
    position that is read reads the answer.

    >>> two_steps(Lookup(), [Mask(), Mask(window=4)]), two_steps(Lookup(), [Mask()])
    (0.5, 0)
    """
    layers = seen(masks, task.length)
    pairs = [(first, second) for index, second in enumerate(layers) for first in layers[:index]]
    both = [
        ask.weight
        for ask in asks(task)
        if any(first[ask.answer, ask.key] and second[ask.read, ask.answer] for first, second in pairs)
    ]
    return round(sum(both), 12)


def best_rate(task: Lookup | Induction, reached: Tensor) -> float:
    """The exact accuracy of the best guesser that knows, at each position that is read, no token but those that can
    reach it; reached [dest source]. No model with such masks can be better.

    >>> best_rate(Lookup(), reach([Mask(window=3)] * 2, 9)[-1])
    0.5625
    """
    rate = _best_lookup(task, reached[-1]) if isinstance(task, Lookup) else _best_induction(task, reached)
    return round(rate, 12)


def _best_lookup(task: Lookup, known: Tensor) -> float:
    pairs = range(task.pairs)
    certain = [pair for pair in pairs if known[2 * pair]]
    hidden = [pair for pair in pairs if not known[2 * pair]]
    blind = 1 / task.digits
    right = sum(1.0 if known[2 * pair + 1] else blind for pair in certain)
    shown = [pair for pair in hidden if known[2 * pair + 1]]
    if hidden:
        # Any of the hidden letters may be the one asked for: say the digit that most of their digits are.
        draws = list(product(range(task.digits), repeat=len(shown)))
        most = sum(max((draw.count(value) for value in draw), default=0) for draw in draws) / len(draws)
        right += most + (len(hidden) - len(shown)) * blind
    return right / task.pairs


def _best_induction(task: Induction, reached: Tensor) -> float:
    """What is known of the block is which of the tokens in reach are the same; over all blocks that look alike, the
    token that is most often next is said."""
    groups: dict[tuple, dict[int | None, float]] = {}
    for ask in asks(task):
        end = ask.start + ask.size
        # Tokens by the place of their first copy: alike where these are alike.
        token = [place if place < end else place - ask.size for place in range(task.length)]
        order: dict[int, int] = {}
        looks = tuple(
            order.setdefault(token[place], len(order)) for place in reached[ask.read].nonzero().flatten().tolist()
        )
        said = groups.setdefault((ask.read, looks), {})
        label = order.get(token[ask.answer])
        said[label] = said.get(label, 0.0) + ask.weight
    total = 0.0
    for (_, looks), said in groups.items():
        unknown = said.pop(None, 0.0) / max(task.words - len(set(looks)), 1)
        total += max([unknown, *said.values()])
    return total


def influence(model: Transformer, task: Lookup | Induction, batch: Batch) -> Tensor:
    """How far the vector at each position moves after each layer when one token is another,
    [layer dest source batch]: the length of the change by the length of the vector, exactly 0 where it is the same.
    """
    clean = _streams(model, batch, batch.tokens)
    moved = []
    for source in range(task.length):
        tokens = batch.tokens.clone()
        tokens[:, source] = _another(task, tokens[:, source])
        change = _streams(model, batch, tokens) - clean
        moved.append(change.norm(dim=-1) / clean.norm(dim=-1))
    return rearrange(moved, "source layer batch dest -> layer dest source batch")


def _streams(model: Transformer, batch: Batch, tokens: Tensor) -> Tensor:
    """The residual stream after each layer, [layer batch pos d_model]."""
    labels = torch.full_like(tokens, UNREAD)
    labels[:, -1] = 0
    recorded = record(model, Batch(tokens, labels), ["resid_post"])
    return torch.stack([recorded["resid_post", layer] for layer in range(model.config.n_layers)])


def _another(task: Lookup | Induction, tokens: Tensor) -> Tensor:
    """The next token of the same class, round and round."""
    if isinstance(task, Induction):
        return (tokens + 1) % task.words
    digit = tokens >= task.letters
    return torch.where(digit, task.letters + (tokens - task.letters + 1) % task.digits, (tokens + 1) % task.letters)
