"""One forward pass under hooks: edits made, tensors kept, every edit witnessed; no hook of ours survives it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from workbench import proof, rows
from workbench.batch import Batch
from workbench.nearest import nearest
from workbench.proof import Key
from workbench.resolution import Edit, InertIntervention
from workbench.sites import site

Moment = Literal["before", "after"]
N_WITNESSES = 8


@dataclass
class Pass:
    """What came out of one batch: logits [batch pos|read d_vocab], kept tensors and gradients by (site, layer)."""

    logits: Tensor
    kept: dict[Key, Tensor]
    gradients: dict[Key, Tensor]
    idle: list[bool]


@dataclass
class _Chunk:
    """The state of one chunk: what its hooks write down."""

    examples: slice
    witnesses: Tensor
    kept: dict[Key, Tensor] = field(default_factory=dict)
    left: dict[Key, Tensor] = field(default_factory=dict)
    arrived: dict[Key, Tensor] = field(default_factory=dict)
    fired: dict[Key, int] = field(default_factory=dict)


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
) -> Pass:
    """Runs the model over the batch in chunks, in eval mode, with these edits made and these sites kept.

    `moment`: kept tensors are copies of what was there "before" our edits, or of what was consumed "after" them. With
    an `objective`, gradients of its sum are taken at the kept sites. Restores the mode and removes its hooks, whatever
    happens.
    """
    for key in [edit.key for edit in edits] + list(keep):
        hook_point(model, *key)
    idle = [True] * len(edits)
    chunks: list[tuple[Tensor, dict[Key, Tensor], dict[Key, Tensor]]] = []
    with _evaluating(model), torch.set_grad_enabled(objective is not None):
        for start in range(0, len(batch), chunk_size):
            chunk = slice(start, min(start + chunk_size, len(batch)))
            chunks.append(_run_chunk(model, batch, edits, idle, read, keep, moment, objective, chunk))
    logits, kept, gradients = zip(*chunks, strict=True)
    return Pass(torch.cat(logits), _joined(kept), _joined(gradients), idle)


def _joined(parts: Sequence[dict[Key, Tensor]]) -> dict[Key, Tensor]:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def _run_chunk(
    model: Any,
    batch: Batch,
    edits: Sequence[Edit],
    idle: list[bool],
    read: Tensor | None,
    keep: Collection[Key],
    moment: Moment,
    objective: Callable[[Tensor, Batch], Tensor] | None,
    examples: slice,
) -> tuple[Tensor, dict[Key, Tensor], dict[Key, Tensor]]:
    here = batch.select(examples)
    reading = None if read is None else read[examples]
    state = _Chunk(examples, _witnesses(edits, examples, batch.device))

    def read_at(key: Key) -> Tensor | None:
        name, layer = key
        last = layer == model.config.n_layers - 1
        return reading if last and site(name).positions == "dest" else None

    hooks = _Hooks(state, edits, idle, set(keep), moment, objective is not None, read_at, model)
    with _installed(model, hooks.by_site()):
        logits = model(here.tokens, valid=None if bool(here.valid.all()) else here.valid, read=reading)
    for edit in edits:
        if state.fired.get(edit.key, 0) != 1:
            raise InertIntervention(
                f"{edit.label}: the site {edit.site!r} fired {state.fired.get(edit.key, 0)} times, not once"
            )
    if edits:
        some = state.witnesses
        proof.check(edits, model, state.left, state.arrived, logits.detach()[some],
                    lambda key: None if (at := read_at(key)) is None else at[some])  # fmt: skip
    gradients: dict[Key, Tensor] = {}
    if objective is not None and keep:
        names = list(state.kept)
        found = torch.autograd.grad(
            objective(logits, here).sum(), [state.kept[key] for key in names], allow_unused=True
        )
        gradients = {
            key: torch.zeros_like(state.kept[key]) if g is None else g for key, g in zip(names, found, strict=True)
        }
    return logits.detach(), {key: value.detach() for key, value in state.kept.items()}, gradients


def _witnesses(edits: Sequence[Edit], examples: slice, device: torch.device) -> Tensor:
    """The chunk's first examples in which every kind of edit selects something, some for each edit."""
    chosen: set[int] = set()
    for edit in edits:
        if edit.selected is None:
            chosen |= set(range(min(N_WITNESSES, examples.stop - examples.start)))
        else:
            chosen |= set(edit.selected[examples].flatten(1).any(1).nonzero().flatten()[:N_WITNESSES].tolist())
    return torch.tensor(sorted(chosen), dtype=torch.long, device=device)


@dataclass
class _Hooks:
    """Builds, for each site involved, the functions that run there in order: arrival, the edits, departure."""

    state: _Chunk
    edits: Sequence[Edit]
    idle: list[bool]
    keep: set[Key]
    moment: Moment
    differentiate: bool
    read_at: Callable[[Key], Tensor | None]
    model: Any

    def by_site(self) -> dict[Key, Callable[[Tensor], Tensor]]:
        leaving, arriving = proof.watched([edit.key for edit in self.edits], self.model)
        return {key: self._at(key, key in leaving, key in arriving) for key in leaving | arriving | self.keep}

    def _at(self, key: Key, leaving: bool, arriving: bool) -> Callable[[Tensor], Tensor]:
        state, some = self.state, self.state.witnesses

        def hook(tensor: Tensor) -> Tensor:
            if arriving:
                state.arrived[key] = tensor.detach()[some].clone()
            if key in self.keep and self.moment == "before":
                tensor = self._kept(key, tensor)
            for index, edit in enumerate(self.edits):
                if edit.key == key:
                    tensor = self._edited(index, edit, tensor)
            state.fired[key] = state.fired.get(key, 0) + 1
            if key in self.keep and self.moment == "after":
                tensor = self._kept(key, tensor)
            if leaving:
                state.left[key] = tensor.detach()[some].clone()
            return tensor

        return hook

    def _kept(self, key: Key, tensor: Tensor) -> Tensor:
        if not self.differentiate:
            self.state.kept[key] = tensor.detach().clone()
            return tensor
        tensor = tensor.clone() if tensor.requires_grad else tensor.detach().clone().requires_grad_(True)
        self.state.kept[key] = tensor
        return tensor.clone()

    def _edited(self, index: int, edit: Edit, tensor: Tensor) -> Tensor:
        given = tensor.clone() if edit.selected is None else tensor
        out = edit.on(given, self.state.examples, self.read_at(edit.key))
        _check_same_kind(edit, tensor, out)
        if self.idle[index] and not _changed_nothing(edit, tensor, out):
            self.idle[index] = False
        return out


def _changed_nothing(edit: Edit, before: Tensor, after: Tensor) -> bool:
    if edit.site == "scores":
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


def hook_point(model: Any, name: str, layer: int | None) -> nn.Module:
    """The module at which a site's tensor passes. Raises KeyError naming near sites, or the layers there are."""
    row = site(name)
    if row.layered and layer is None:
        raise KeyError(f"site {name!r} stands in every layer: say ({name!r}, layer)")
    if not row.layered and layer is not None:
        raise KeyError(f"site {name!r} stands once in the model; it has no layer {layer}")
    if layer is not None and not 0 <= layer < model.config.n_layers:
        raise KeyError(f"no layer {layer} at site {name!r}: this model has layers 0 to {model.config.n_layers - 1}")
    hook_name = row.hook_name(layer)
    if hook_name not in model.hook_dict:
        raise KeyError(f"this model has no site {name!r} ({hook_name}). {nearest(hook_name, list(model.hook_dict))}")
    return model.hook_dict[hook_name]


@contextmanager
def _installed(model: Any, hooks: dict[Key, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    handles = []
    try:
        for (name, layer), function in hooks.items():
            point = hook_point(model, name, layer)
            handles.append(
                point.register_forward_hook(lambda _module, _inputs, output, function=function: function(output))
            )
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
