"""What the checks share: the value of a behaviour, the batches they use, and what they ask of errors and hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from analyses.tools.protocol import D_VOCAB, LAYERS, LENGTH, Place
from workbench import Batch, Edges

UNREAD = -100
ROUNDING = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""What two computations of the same value may differ by, as a share of the largest."""


@dataclass(frozen=True)
class Behaviour:
    """One row: `check(tool)` raises AssertionError, or the tool's own error, where the behaviour does not hold."""

    id: str
    situation: str
    right: str
    check: Callable[[Any], None]


def behaviour(id: str, situation: str, right: str) -> Callable[[Callable[[Any], None]], Behaviour]:
    """Makes a behaviour of the check below it."""
    return lambda check: Behaviour(id, situation, right, check)


def batch_of(n: int = 4, d_vocab: int = D_VOCAB, seed: int = 0) -> Batch:
    """Examples of 8 tokens; roles first, last, and `answer`, which stands elsewhere in each; two token classes."""
    tokens = torch.randint(d_vocab, (n, LENGTH), generator=torch.Generator().manual_seed(seed))
    place = torch.arange(LENGTH).expand(n, -1)
    answer = place == (1 + torch.arange(n) % 5)[:, None]
    last = place == LENGTH - 1
    roles = {"first": place == 0, "last": last, "answer": answer, "fourth": place == 3}
    return Batch(tokens, torch.where(last, tokens, UNREAD), roles=roles, classes=place % 2)


def answer(layer: int, **more: Any) -> Edges:
    """The edge last ← answer."""
    return Edges(layer=layer, dest="last", source="answer", **more)


def rows(pattern: Tensor) -> Tensor:
    """The last destination's weights [batch head source], in double precision."""
    return pattern[:, :, -1].double()


def at_answer(values: Tensor, batch: Batch) -> Tensor:
    """Which of [batch head source] belong to `answer`."""
    return batch.roles["answer"][:, None].expand_as(values)


def pattern(tool: Any, batch: Batch, edits: Any = (), layer: int = 1) -> Tensor:
    return tool.record(batch, [("pattern", layer)], edits)["pattern", layer]


def noise(value: Tensor) -> Tensor:
    """x + noise that varies along every axis; a constant is invisible to softmax and LayerNorm."""
    drawn = torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    return value + drawn.to(value.dtype)


def hooks_of(module: nn.Module) -> dict[str, int]:
    """How many hooks stand on every module, forward and backward; modules without any are left out."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    counts = {name: sum(len(getattr(one, kind)) for kind in kinds) for name, one in module.named_modules()}
    return {name: count for name, count in counts.items() if count}


def error_of(act: Callable[[], Any], what: str) -> Exception:
    """The error that `act` ends in. Raises AssertionError, naming `what` should have been refused, where it ends in
    none."""
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError(f"{what} is accepted without an error")


def says(error: Exception, *words: str) -> None:
    """Raises AssertionError where the error leaves out one of these words."""
    text = str(error)
    for word in words:
        assert word in text, f"the error does not say {word!r}: {type(error).__name__}: {text}"


def equal(one: Tensor, other: Tensor, what: str) -> None:
    """Bit-equality."""
    assert torch.equal(one, other), f"{what}: not bit-equal"


def close(one: Tensor, other: Tensor, what: str, tolerance: float = 5e-6) -> None:
    """Equal within a share of the largest value; NaN is equal to nothing."""
    assert one.shape == other.shape, f"{what}: {list(one.shape)} is not {list(other.shape)}"
    difference = (one.double() - other.double()).abs().max()
    largest = other.double().abs().max().clamp_min(1.0)
    assert bool(difference <= tolerance * largest), f"{what}: differs by {float(difference):.1g}"


def named(tool: Any, place: Place) -> str:
    """A place as the tool spells it, with its layer."""
    return f"{tool.spelling(place)}" + ("" if place[1] is None else f" (layer {place[1]})")


EVERY_LAYER = range(LAYERS)


class Uneven:
    """A task in which `answer` is missing from every third example."""

    name: ClassVar[str] = "uneven"
    MEANING: ClassVar[int] = 1
    vocabulary = tuple("abcdefghijklmnop"[:D_VOCAB])
    length = LENGTH

    def sample(self, n: int, seed: int) -> Batch:
        batch = batch_of(n, seed=seed)
        there = batch.roles["answer"] & (torch.arange(n) % 3 > 0)[:, None]
        return batch.with_roles(answer=there)

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        return self.sample(len(batch), seed)

    def guessing(self) -> dict[str, float]:
        return {"any": 1 / D_VOCAB}

    def model_dump(self) -> dict[str, Any]:
        return {}
