"""One forward pass: edits made, tensors kept, every edit witnessed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor

from workbench import rows
from workbench.anatomy import last_layer
from workbench.batch import Batch
from workbench.edits import Edit, InertIntervention
from workbench.hooks import Hook, Key, evaluating, has_other_hooks, hook_point, installed
from workbench.models.prefix import Prefix
from workbench.sites import split

Moment = Literal["before", "after"]


@dataclass(frozen=True)
class Pass:
    """What came out of a batch: logits [batch pos|read d_vocab], kept tensors and gradients by (site, layer), and for
    each edit whether it left every value as it was."""

    logits: Tensor
    kept: dict[Key, Tensor]
    gradients: dict[Key, Tensor]
    idle: list[bool]


@dataclass(frozen=True)
class _Request:
    model: Any
    batch: Batch
    edits: Sequence[Edit] = ()
    read: Tensor | None = None
    keep: frozenset[Key] = frozenset()
    moment: Moment = "after"
    objective: Callable[[Tensor, Batch], Tensor] | None = None
    watch: frozenset[Key] = frozenset()
    resume: Prefix | None = None
    untouched: bool = False


_known_sums: WeakSet[Any] = WeakSet()
"""Models whose residual stream was found to be the sum that it should be, on first use."""


def execute(
    model: Any,
    batch: Batch,
    edits: Sequence[Edit] = (),
    *,
    read: Tensor | None = None,
    keep: Collection[Key] = (),
    moment: Moment = "after",
    objective: Callable[[Tensor, Batch], Tensor] | None = None,
    chunk_size: int = 4096,
    examples: slice = slice(None),
    resume: Prefix | None = None,
    untouched: bool = False,
) -> Pass:
    """Runs the model over the batch in chunks, in eval mode, with these edits made and these sites kept.

    moment: kept tensors are copies of what was there "before" our edits, or of what was consumed "after" them. With an
    `objective`, gradients of its sum are taken at the kept sites. Restores the mode and removes its hooks, whatever
    happens. examples: only these. resume: what a wrapped model computed of them, one chunk, before the first edited
    layer; a first pass without edits is recorded there. untouched: nobody writes into a tensor that passed, so that it
    is kept without a copy. Raises InertIntervention where an edit did not land, in any example.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}; it counts examples, 1 or more")
    if moment not in ("before", "after"):
        raise ValueError(f"moment={moment!r}; there are: 'before', 'after'")
    for key in [edit.key for edit in edits] + list(keep):
        hook_point(model, *key)
    prover = model.prover
    prover.ready(model, batch, edits, chunk_size)
    watch = set().union(*prover.watched([edit.key for edit in edits], model))
    if new := model not in _known_sums:
        watch |= set().union(*prover.summed(model))
    start, stop, _ = examples.indices(len(batch))
    if resume is not None and stop - start > chunk_size:
        raise ValueError(f"resume holds one chunk of examples, at most {chunk_size}; these are {stop - start}")
    whole = _Request(model, batch, edits, read, frozenset(keep), moment, objective, frozenset(watch), resume, untouched)
    with evaluating(model), torch.set_grad_enabled(objective is not None):
        chunks = [_Chunk(whole, slice(at, min(at + chunk_size, stop)), new) for at in range(start, stop, chunk_size)]
        passes = [Pass(chunk.run(), chunk.kept, chunk.gradients, chunk.idle) for chunk in chunks]
    _known_sums.add(model)
    return together(passes)


def together(passes: Sequence[Pass]) -> Pass:
    """Passes over some examples after others, as one."""
    idle = [all(each) for each in zip(*(one.idle for one in passes), strict=True)]
    logits = _cat([one.logits for one in passes])
    return Pass(logits, _joined([one.kept for one in passes]), _joined([one.gradients for one in passes]), idle)


def _joined(parts: Sequence[dict[Key, Tensor]]) -> dict[Key, Tensor]:
    return {key: _cat([part[key] for part in parts]) for key in parts[0]}


def _cat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0].contiguous()


@dataclass
class _Chunk:
    """Some of the examples, and what the hooks write down of them.

    arrived, passed, left: a site's tensor as the model computed it, after the hooks that are not ours, and as it was
    consumed.
    """

    whole: _Request
    examples: slice
    new: bool = False
    kept: dict[Key, Tensor] = field(default_factory=dict)
    gradients: dict[Key, Tensor] = field(default_factory=dict)
    arrived: dict[Key, Tensor] = field(default_factory=dict)
    passed: dict[Key, Tensor] = field(default_factory=dict)
    left: dict[Key, Tensor] = field(default_factory=dict)
    fired: dict[Key, int] = field(default_factory=dict)
    idle: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.idle = [True] * len(self.whole.edits)
        self.batch = self.whole.batch.select(self.examples)
        self.read = None if self.whole.read is None else self.whole.read[self.examples]

    def run(self) -> Tensor:
        """The chunk's logits."""
        whole, batch = self.whole, self.batch
        logits = self._forward()
        with torch.no_grad():
            self._prove(logits.detach())
        if whole.objective is not None and self.kept:
            values = whole.objective(logits, batch)
            if not isinstance(values, Tensor) or tuple(values.shape) != (len(batch),):
                shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise ValueError(
                    f"gradients are taken of one value per example, [batch] = [{len(batch)}]; the metric gave {shape}"
                )
            if not values.requires_grad:
                raise ValueError(
                    "this metric has no gradient: it counts or compares, and does not change with small changes of the "
                    "logits; take the gradient of loss, log_prob or logit_margin"
                )
            self._differentiate(values.sum())
        self.kept = {key: value.detach() for key, value in self.kept.items()}
        self.arrived, self.passed, self.left = {}, {}, {}
        return logits.detach()

    def _forward(self) -> Tensor:
        whole, batch = self.whole, self.batch
        first: dict[Key, Hook] = {key: partial(self._arrive, key) for key in whole.watch}
        last: dict[Key, Hook] = {key: partial(self._act, key) for key in whole.watch | whole.keep}
        edited = {edit.key for edit in whole.edits}
        shared = nullcontext() if whole.resume is None else whole.resume.shared(edited, whole.watch | whole.keep)
        # Before hooks of ours are installed, so that those of others are told from them.
        with shared, installed(whole.model, first, last):
            return whole.model.logits(batch, self.read)

    def _read_at(self, key: Key) -> Tensor | None:
        """The positions that a site holds [batch read]; None where it holds all."""
        model = self.whole.model
        return self.read if model.reads_only and last_layer(model, *key) else None

    def _arrive(self, key: Key, tensor: Tensor) -> None:
        self.arrived[key] = tensor.detach().clone()

    def _act(self, key: Key, tensor: Tensor) -> Tensor:
        watched, kept = key in self.whole.watch, key in self.whole.keep
        if watched:
            self.passed[key] = tensor.detach().clone()
        if kept and self.whole.moment == "before":
            tensor = self._keep(key, tensor)
        for index, edit in enumerate(self.whole.edits):
            if edit.key == key:
                tensor = self._edit(index, edit, tensor)
        self.fired[key] = self.fired.get(key, 0) + 1
        if kept and self.whole.moment == "after":
            tensor = self._keep(key, tensor)
        if watched:
            self.left[key] = tensor.detach().clone()
        return tensor

    def _keep(self, key: Key, tensor: Tensor) -> Tensor:
        if self.whole.objective is None:
            self.kept[key] = tensor.detach() if self.whole.untouched else tensor.detach().clone()
            return tensor
        tensor = tensor.clone() if tensor.requires_grad else tensor.detach().clone().requires_grad_(True)
        self.kept[key] = tensor
        return tensor.clone()

    def _edit(self, index: int, edit: Edit, tensor: Tensor) -> Tensor:
        given = tensor.clone() if edit.selected is None else tensor
        out = edit.on(given, self.examples, self._read_at(edit.key))
        _check_same_kind(edit, tensor, out)
        if self.idle[index] and not _changed_nothing(edit, tensor, out):
            self.idle[index] = False
        return out

    def _prove(self, logits: Tensor) -> None:
        whole, prover = self.whole, self.whole.model.prover
        if self.new:
            prover.check_sum(whole.model, self.left, self.arrived, self._read_at)
        for edit in whole.edits:
            if (times := self.fired.get(edit.key, 0)) != 1:
                raise InertIntervention(f"{edit.label}: the site {edit.site!r} fired {times} times, not once")
        prover.check(whole.edits, whole.model, self.batch, self.left, self.arrived, logits, self._read_at)
        consumers = prover.consumers(whole.edits, whole.model)
        if any(has_other_hooks(whole.model, key) for key in consumers):
            self._check_other_hooks(consumers)

    def _check_other_hooks(self, consumers: dict[Key, str]) -> None:
        """Runs the chunk once more without edits: a hook that passes on the same either way throws the edit away."""
        clean = replace(self.whole, edits=(), keep=frozenset(), objective=None, watch=frozenset(consumers))
        without = _Chunk(clean, self.examples)
        without._forward()
        for key, label in consumers.items():
            changed = (self.arrived[key] != without.arrived[key]).flatten(1).any(1)
            passed = (self.passed[key] != without.passed[key]).flatten(1).any(1)
            if (changed & ~passed).any():
                raise InertIntervention(
                    f"{label}: a hook that is not ours, at {key[0]} of layer {key[1]}, throws the edit away: "
                    "what it passes on is the same with the edit and without. Remove the hook, or the edit"
                )

    def _differentiate(self, total: Tensor) -> None:
        names = list(self.kept)
        found = torch.autograd.grad(total, [self.kept[key] for key in names], allow_unused=True)
        for key, gradient in zip(names, found, strict=True):
            self.gradients[key] = torch.zeros_like(self.kept[key]) if gradient is None else gradient


def _changed_nothing(edit: Edit, before: Tensor, after: Tensor) -> bool:
    if split(edit.site)[1] == "scores":
        return torch.equal(rows.softmax(before), rows.softmax(after))
    return torch.equal(before, after)


def _check_same_kind(edit: Edit, before: Tensor, after: Any) -> None:
    if not isinstance(after, Tensor):
        raise TypeError(
            f"{edit.label}: the function at {edit.site!r} returned {type(after).__name__}; it must return a tensor"
        )
    if after.shape != before.shape or after.dtype != before.dtype or after.device != before.device:
        raise ValueError(
            f"{edit.label}: {edit.site!r} expects {list(before.shape)} {before.dtype} on {before.device}; "
            f"the edit gave {list(after.shape)} {after.dtype} on {after.device}"
        )
