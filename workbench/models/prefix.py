"""What lies before the first edited layer of a Hugging Face model: computed once for many conditions on the same
examples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from workbench.hooks import Key, alone
from workbench.models.reuse import Block, blocks_of, refusal, reusable_from

__all__ = ["Prefix", "refusal", "reusable_from"]

Forward = Callable[..., Any]


class Prefix:
    """What a wrapped Hugging Face model computed of one chunk of examples without edits; passes of the same examples
    are resumed from it, and their logits are those of a whole pass, bit for bit.

    layers: where passes may be resumed, counted as `reusable_from` does; None: everywhere. A pass resumes at the
    nearest of them. Held is what left the layer before each, layers × batch × pos × d_model numbers (at the end of the
    encoder also, where a decoder's layer is named; T5's position bias [1|batch head dest source] besides, once a
    stack), and what each stack's first layer was called with, by which other examples are found out.

    why: why the last pass ran whole; empty where it was recorded or resumed. Nothing about the model changes but inside
    `recording` and `resuming`, one thread at a time; all is as before afterwards, whatever happens.

    Raises ValueError for a layer that the model does not have.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from workbench import wrap
    >>> config = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0)
    >>> model = wrap(GPT2LMHeadModel(config).eval())
    >>> prefix = Prefix(model)
    >>> with prefix.recording():
    ...     clean = model.logits(model.example, None)
    >>> with prefix.resuming(2):  # layers 0 and 1 are not computed
    ...     again = model.logits(model.example, None)
    >>> torch.equal(clean, again)
    True
    """

    def __init__(self, model: Any, layers: Collection[int] | None = None):
        self.model, self.why = model, refusal(model)
        self._blocks = blocks_of(model)
        n = len(self._blocks)
        if unknown := sorted(layer for layer in layers or () if not 0 <= layer <= n):
            raise ValueError(
                f"no pass resumes at layer {unknown[0]}; this model has layers 0 to {n - 1}, and {n} is its end"
            )
        self._points = sorted(set(range(1, n + 1) if layers is None else layers) - {0})
        ends = {block.ends for block in self._blocks}
        self._keep = {*self._points} | {end for end in ends if any(point > end for point in self._points)}
        self.forget()

    def forget(self) -> None:
        """Lets go of what is held, for the next chunk of examples."""
        self._left: dict[int, Any] = {}
        self._entered: dict[int, list[Tensor]] = {}
        self._weights: list[tuple[int, int, int]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, a pass without edits is recorded, in place of what was held; nothing is, where layers may not be left
        out (`why`) or where the pass fails."""
        with alone(self.model):
            self.forget()
            self.why = refusal(self.model)
            done = False
            try:
                with _in_place({} if self.why else {b.module: self._noting(n, b) for n, b in enumerate(self._blocks)}):
                    yield
                self._weights = _versions(self.model.inner)
                done = self._left.keys() == self._keep
            finally:
                if not done:
                    self.forget()

    @contextmanager
    def resuming(self, layer: int) -> Iterator[None]:
        """Inside, a pass of the recorded examples gives what was recorded at the layers before this one, or before the
        nearest below it that is held, without computing them; where layers may not be left out, it runs whole (`why`).

        Inside, the pass raises ValueError where other examples come than were recorded, and RuntimeError where a hook
        stands at a site of a layer that is left out. Raises RuntimeError where weights have changed since.
        """
        with alone(self.model):
            at = max((point for point in self._points if point <= layer), default=0)
            self.why = refusal(self.model) or self._missing(layer, at)
            if not self.why and self._weights != _versions(self.model.inner):
                raise RuntimeError("the model's weights changed after its layers were recorded; record them again")
            with _in_place({} if self.why else {b.module: self._leaving_out(n, b, at) for n, b in self._before(at)}):
                yield

    @contextmanager
    def shared(self, edited: Collection[Key], heard: Collection[Key] = ()) -> Iterator[None]:
        """One condition's pass, with edits at the sites `edited` and hooks that must fire at `heard`: recorded where
        there is no edit and nothing is held, else resumed at the first layer that has to be computed.

        Entered before hooks of ours are installed.
        """
        first = reusable_from(self.model, {*edited, *heard})
        fresh = not edited and not self._left
        with self.recording() if fresh else self.resuming(first or 0):
            yield

    def _missing(self, layer: int, at: int) -> str:
        if not self._left:
            return "nothing is recorded; run the examples once under recording()"
        return "" if at else f"nothing that is held lies before layer {layer}"

    def _before(self, at: int) -> Iterator[tuple[int, Block]]:
        return ((number, block) for number, block in enumerate(self._blocks) if number < at)

    def _noting(self, number: int, block: Block) -> Forward:
        """The layer's own forward, which writes down what it gives."""
        forward: Forward = block.module.forward

        def noted(*args: Any, **kwargs: Any) -> Any:
            if block.opens and number < max(self._keep, default=0):
                self._entered[number] = [tensor.detach().clone() for tensor in _tensors((args, kwargs))]
            out = forward(*args, **kwargs)
            if number + 1 in self._keep:
                self._left[number + 1] = _copied(out, but=_tensors((args, kwargs)))
            return out

        return noted

    def _leaving_out(self, number: int, block: Block, at: int) -> Forward:
        """What stands in the place of a layer's forward: all layers left out of a stack give what the last of them
        gave, which alone is read."""
        last = min(at, block.ends)

        def left_out(*args: Any, **kwargs: Any) -> Any:
            if any(point._forward_hooks or point._forward_pre_hooks for point in block.points):
                raise RuntimeError(
                    f"a hook stands at a site of layer {block.layer}{block.part and ' of the '}{block.part}, which is "
                    f"left out of this pass; resume at layer {number} or before"
                )
            if block.opens:
                _check_same(self._entered[number], _tensors((args, kwargs)), self.model.kind)
            out = self._left[last]
            # A copy, since what is computed from it may be written into it.
            return _copied(out) if number + 1 == last else out

        return left_out


@contextmanager
def _in_place(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """These forwards in the place of the modules' own; they go, whatever happens."""
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module in forwards:
            vars(module).pop("forward", None)


def _tensors(value: Any) -> list[Tensor]:
    """Every tensor in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return [value]
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for one in inside for tensor in _tensors(one)]


def _copied(value: Any, but: Collection[Tensor] = ()) -> Any:
    """What a layer gave, a tensor or a tuple or list of such, its tensors copied; but those that it only passes on."""
    if isinstance(value, Tensor):
        return value.detach() if any(value is one for one in but) else value.detach().clone()
    return type(value)(_copied(one, but) for one in value) if isinstance(value, (tuple, list)) else value


def _check_same(want: list[Tensor], got: list[Tensor], kind: str) -> None:
    if len(want) != len(got) or not all(map(_same, want, got)):
        raise ValueError(
            f"{kind}: what enters its first layer is not what was recorded; a pass is resumed for the same examples, "
            "in the same order. Record this chunk first"
        )


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    same = torch.equal(one, other)
    return same or (one.is_floating_point() and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True))


def _versions(model: nn.Module) -> list[tuple[int, int, int]]:
    """By what a change of weights is seen: which tensors there are, where, and how often each was written into."""
    found = (one for m in model.modules() for kind in (m._parameters, m._buffers) for one in kind.values())
    tensors = [one for one in found if one is not None]
    return [(id(one), one.data_ptr(), 0 if one.is_inference() else one._version) for one in tensors]
