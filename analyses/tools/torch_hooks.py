"""PyTorch's own module hooks on a Hugging Face GPT-2 with eager attention: pre-norm, 3 heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from analyses.tools import gpt2
from analyses.tools.protocol import LAYERS, ByHand, Edit, Moment, Objective, Place, padding_mask
from workbench import Batch, Edges

SEEN = {
    "embed": ("transformer.wte", "output"),
    "pos_embed": ("transformer.wpe", "output"),
    "resid_pre": ("transformer.h.{layer}", "input"),
    "q": ("transformer.h.{layer}.attn.c_attn", "third 0"),
    "k": ("transformer.h.{layer}.attn.c_attn", "third 1"),
    "v": ("transformer.h.{layer}.attn.c_attn", "third 2"),
    "pattern": ("transformer.h.{layer}.attn", "output 1"),
    "z": ("transformer.h.{layer}.attn.c_proj", "heads of input"),
    "attn_out": ("transformer.h.{layer}.attn", "output 0"),
    "resid_mid": ("transformer.h.{layer}.ln_2", "input"),
    "mlp_pre": ("transformer.h.{layer}.mlp.c_fc", "output"),
    "mlp_post": ("transformer.h.{layer}.mlp.act", "output"),
    "mlp_out": ("transformer.h.{layer}.mlp", "output"),
    "resid_post": ("transformer.h.{layer}", "output"),
}
"""Site → a module, and which of its tensors. Scores pass no module's boundary: they are reached by the mask alone."""

SPLIT, JOIN = "b pos (head d) -> b pos head d", "b pos head d -> b pos (head d)"
Change = Callable[[Tensor], Any]


class TorchHooks(ByHand):
    """`register_forward_hook` and `register_forward_pre_hook`."""

    name = "PyTorch hooks"
    n_heads = gpt2.N_HEADS
    misspelt = (("atn", 0), "attn")

    def __init__(self, model: Any = None):
        self.module = gpt2.gpt2() if model is None else model

    def fresh(self, **changes: Any) -> TorchHooks:
        return type(self)(gpt2.gpt2(**changes))

    def fused(self) -> TorchHooks:
        return type(self)(gpt2.gpt2(attention="sdpa"))

    def sharpen(self, by: float) -> None:
        gpt2.sharpen(self.module, by)

    def fold_value_bias(self) -> None:
        gpt2.fold_value_bias(self.module)

    @property
    def places(self) -> list[Place]:
        once: list[Place] = [("embed", None), ("pos_embed", None)]
        return once + [(name, layer) for layer in range(LAYERS) for name in list(SEEN)[2:]]

    def spelling(self, place: Place) -> str:
        path = SEEN[place[0]][0] if place[0] in SEEN else "transformer.h.{layer}." + place[0]
        return path.format(layer=place[1])

    def run(self, batch: Batch, edits: Sequence[Edit] = (), **more: Any) -> Tensor:
        with self._installed(batch, edits), torch.no_grad():
            return self.module(batch.tokens, **_padding(batch), **more).logits

    def record(
        self, batch: Batch, places: Sequence[Place], edits: Sequence[Edit] = (), *, moment: Moment = "after"
    ) -> Mapping[Place, Tensor]:
        kept: dict[Place, Tensor] = {}

        def keep(value: Tensor, _batch: Batch, place: Place) -> Tensor:
            kept[place] = value if value is None else value.detach().clone()
            return value

        keepers = [Edit(place, partial(keep, place=place)) for place in places]
        self.run(batch, [*edits, *keepers] if moment == "after" else [*keepers, *edits])
        return kept

    def gradients(self, batch: Batch, places: Sequence[Place], of: Objective) -> Mapping[Place, Tensor]:
        kept: dict[Place, Tensor] = {}

        def keep(value: Tensor, _batch: Batch, place: Place) -> Tensor:
            value.retain_grad()
            kept[place] = value
            return value

        with self._installed(batch, [Edit(place, partial(keep, place=place)) for place in places]):
            of(self.module(batch.tokens, **_padding(batch)).logits, batch).sum().backward()
        self.module.zero_grad()
        return {place: value.grad for place, value in kept.items() if value.grad is not None}

    def add_hook(self, place: Place, fn: Callable[[Tensor], Tensor | None]) -> None:
        self._install(place, lambda value: value if (out := fn(value)) is None else out)

    def cut(self, edges: Edges) -> Edit:
        """−∞ added to the attention mask of the layer."""

        def fn(mask: Tensor, batch: Batch) -> Tensor:
            chosen = batch.edges(edges.dest, edges.source)[:, None].repeat(1, self.n_heads, 1, 1)
            if edges.head is not None:
                chosen &= (torch.arange(self.n_heads) == edges.head)[:, None, None]
            return mask.masked_fill(chosen, -torch.inf)

        return Edit(("mask", edges.layer), fn)

    def uniform(self, edges: Edges) -> Edit:
        """Queries of 0 at the rows, so that every score there is 0."""
        return Edit(("q", edges.layer), lambda q, batch: q.masked_fill(batch.role(edges.dest)[..., None, None], 0.0))

    @contextmanager
    def _installed(self, batch: Batch, edits: Sequence[Edit]) -> Iterator[None]:
        handles = []
        try:
            for edit in edits:
                handles.append(self._install(edit.place, edit.bound(batch)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _install(self, place: Place, change: Change) -> Any:
        name, layer = place
        if name == "mask":
            return self._install_mask(f"transformer.h.{layer}.attn", change)
        module = self.module.get_submodule(self.spelling(place))
        which = SEEN[name][1]
        if which == "input":
            return module.register_forward_pre_hook(lambda _m, given: (change(given[0]), *given[1:]))
        if which == "heads of input":
            return module.register_forward_pre_hook(lambda _m, given: (self._by_head(given[0], change),))
        return module.register_forward_hook(lambda _m, _given, out: self._changed(out, which, change))

    def _changed(self, out: Any, which: str, change: Change) -> Any:
        kind, *index = which.split()
        if kind == "third":
            parts = list(out.chunk(3, -1))
            parts[int(index[0])] = self._by_head(parts[int(index[0])], change)
            return torch.cat(parts, -1)
        if index:
            return tuple(change(one) if i == int(index[0]) else one for i, one in enumerate(out))
        return change(out)

    def _by_head(self, value: Tensor, change: Change) -> Tensor:
        return rearrange(change(rearrange(value, SPLIT, head=self.n_heads)), JOIN)

    def _install_mask(self, path: str, change: Change) -> Any:
        def fn(_module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            mask = named["attention_mask"]
            tokens = given[0].shape[:2] if given else named["hidden_states"].shape[:2]
            wide = mask.expand(tokens[0], self.n_heads, -1, -1)
            return given, {**named, "attention_mask": change(wide)}

        return self.module.get_submodule(path).register_forward_pre_hook(fn, with_kwargs=True)


def _padding(batch: Batch) -> dict[str, Tensor]:
    """As transformers documents it: a mask, and positions that count valid tokens."""
    given = padding_mask(batch)
    if given:
        given["position_ids"] = (batch.valid.long().cumsum(1) - 1).clamp_min(0)
    return given
