"""One forward pass of a hooked model, its hooks' tensors led past the points at which ours stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from workbench import rows
from workbench.edits import InertIntervention
from workbench.models.passing import Passing
from workbench.proof import agree
from workbench.sites import SITES

ATTENTION = ("q", "k", "v", "scores", "pattern", "z")
"""Sites that transformers' attention interface shows, where a bridge delegates to it."""

Change = Callable[[Tensor], Tensor | None]


@dataclass(eq=False)
class Led:
    """What a pass of a `Hooked` model writes down: how often each hook fired, rows that scores leave without a source
    [batch head dest] and those of them that the model's mask left so, the stream before attention is added to it.

    valid [batch pos]: False at padding, which no row reads.
    """

    model: Any
    passing: Passing
    valid: Tensor
    fired: Counter[str] = field(default_factory=Counter)
    empty: dict[int | None, Tensor] = field(default_factory=dict)
    hidden: dict[int | None, Tensor] = field(default_factory=dict)
    stream: dict[int | None, Tensor] = field(default_factory=dict)
    asked: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The hooks of this pass on the model's own, where a point is heard; they go, whatever happens."""
        handles: list[Any] = []
        try:
            for site in SITES.values():
                for layer in self.model.layers(site):
                    for module, change in self._changes(site.name, layer):
                        handles.append(_hooked(module, change))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def check_fired(self) -> None:
        """Raises InertIntervention where a hook that is heard did not fire once."""
        for name, times in self.fired.items():
            if times != 1:
                raise InertIntervention(f"{name} fired {times} times in a pass, not once")

    def _point(self, name: str, layer: int | None) -> HookPoint | None:
        return self.model.hook_dict.get(SITES[name].hook_name(layer))

    def _heard(self, name: str, layer: int | None) -> bool:
        point = self._point(name, layer)
        return point is not None and bool(point._forward_hooks)

    def _module(self, name: str, layer: int | None) -> nn.Module:
        return self.model.inner.hook_dict[SITES[name].hook_name(layer)]

    def _changes(self, name: str, layer: int | None) -> Iterator[tuple[nn.Module, Change]]:
        """The model's hooks that have to act so that a site's tensor passes our point, and what each does."""
        heard = self._heard(name, layer)
        if name == "scores":
            padded = not bool(self.valid.all())
            if self._point(name, layer) is not None and (heard or (padded and not self.model.delegates)):
                yield from self._of_scores(layer)
        elif heard and name == "resid_mid" and layer in self.model.added_later:
            yield from self._of_middle(layer)
        elif heard and not (self.model.delegates and name in ATTENTION):
            self.fired[SITES[name].hook_name(layer)] = 0
            yield self._module(name, layer), lambda raw: self._through(name, layer, raw)

    def _of_scores(self, layer: int | None) -> Iterator[tuple[nn.Module, Change]]:
        """The model's own softmax would make NaN of an empty row, or look at the future: its weights are zeroed."""
        if self.model.delegates:
            if self._point("attn_out", layer) is not None:
                place = ("", layer or 0)
                yield (
                    self._module("attn_out", layer),
                    lambda raw: _silenced(raw, self.passing.left_empty(place)),
                )
            return
        self.fired[SITES["scores"].hook_name(layer)] = 0
        yield self._module("scores", layer), lambda raw: self._scores(layer, raw)
        if self._point("pattern", layer) is not None:
            yield self._module("pattern", layer), lambda raw: self._weights(layer, raw)
        if self._point("attn_out", layer) is not None:
            yield self._module("attn_out", layer), lambda raw: self._output(layer, raw)

    def _scores(self, layer: int | None, raw: Tensor) -> Tensor:
        point = self._count("scores", layer)
        hidden = masked(raw) | ~self.valid[:, None, None]
        before = raw.masked_fill(hidden, rows.HIDDEN)
        after = point(before.clone())
        self.hidden[layer], self.empty[layer] = hidden.all(-1), (after == rows.HIDDEN).all(-1)
        self.model.check_silenced(layer, self._emptied(layer))
        if not after.requires_grad and torch.equal(after, before):
            return raw
        return torch.where(self.empty[layer][..., None], raw, after)

    def _weights(self, layer: int | None, raw: Tensor) -> Tensor:
        empty = self.empty.get(layer)
        return raw if empty is None or not bool(empty.any()) else raw.masked_fill(empty[..., None], 0.0)

    def _output(self, layer: int | None, raw: Tensor) -> Tensor:
        return raw if layer not in self.empty else _silenced(raw, self._emptied(layer).all(1))

    def _emptied(self, layer: int | None) -> Tensor:
        """Rows [batch head dest] of which an edit left no source."""
        return self.empty[layer] & ~self.hidden[layer]

    def _of_middle(self, layer: int | None) -> Iterator[tuple[nn.Module, Change]]:
        """Where the hook stands on the MLP's way only, an edit of the stream is made where attention is added to it."""
        self.fired[SITES["resid_mid"].hook_name(layer)] = 0

        def enters(raw: Tensor) -> None:
            self.stream[layer] = raw

        def added(raw: Tensor) -> Tensor:
            before = self.stream.pop(layer)
            middle = before + raw
            out = self._count("resid_mid", layer)(middle.clone())
            self.asked[layer] = out, torch.maximum(before.detach().abs(), out.detach().abs())
            if torch.equal(out, middle):
                del self.asked[layer]
                # An unchanged stream keeps every bit, though its gradient flows through the hook.
                return raw + (out - middle) if out.requires_grad else raw
            return out - before

        def arrives(raw: Tensor) -> None:
            asked, size = self.asked.pop(layer, (raw, raw))
            if not agree(raw, asked, size):
                raise InertIntervention(
                    f"resid_mid of layer {layer}: the MLP reads another stream than was asked for; another hook there "
                    "changes what the MLP reads, and not the stream. Remove it"
                )

        yield self._module("resid_pre", layer), enters
        yield self._module("attn_out", layer), added
        yield self._module("resid_mid", layer), arrives

    def _count(self, name: str, layer: int | None) -> HookPoint:
        self.fired[SITES[name].hook_name(layer)] += 1
        point = self._point(name, layer)
        assert point is not None
        return point

    def _through(self, name: str, layer: int | None, raw: Tensor) -> Tensor:
        point = self._count(name, layer)
        split = name in ("q", "k", "v", "z") and raw.ndim == 3
        heads = self.model.parts[""].heads_at(name)
        shown = rearrange(raw, "b pos (head d_head) -> b pos head d_head", head=heads) if split else raw
        out = point(shown.clone())
        if not out.requires_grad and torch.equal(out, shown):
            return raw
        return rearrange(out, "b pos head d_head -> b pos (head d_head)") if split else out


def masked(raw: Tensor) -> Tensor:
    """Which scores a model's mask has hidden: −∞, or the huge negative numbers that stand for it."""
    return raw <= torch.finfo(raw.dtype).min / 2


def _silenced(raw: Tensor, empty: Tensor) -> Tensor:
    """The attention's output [batch dest d_model], nothing where every head's row is empty [batch dest]."""
    return raw.masked_fill(empty[..., None], 0.0) if bool(empty.any()) else raw


def _hooked(module: nn.Module, change: Change) -> Any:
    return module.register_forward_hook(lambda _module, _inputs, output: change(output))
