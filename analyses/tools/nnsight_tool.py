"""nnsight on a Hugging Face GPT-2 with eager attention: pre-norm, 3 heads. Tracing, `.source` and persistent edits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import nnsight
import torch
from einops import rearrange
from torch import Tensor

from analyses.tools import gpt2
from analyses.tools.protocol import LAYERS, ByHand, Edit, Moment, Objective, Place, padding_mask
from workbench import Batch

ORDER = (
    "resid_pre", "q", "k", "v", "scores", "pattern", "z", "attn_out", "resid_mid", "mlp_pre", "mlp_post", "mlp_out",
    "resid_post",
)  # fmt: skip
"""The sites of a layer in the order in which they are computed, which is the order in which nnsight must ask."""

SPLIT, JOIN = "b pos (head d) -> b pos head d", "b pos head d -> b pos (head d)"
THIRDS = {"q": 0, "k": 1, "v": 2}


class NNsightTool(ByHand):
    """`trace`, `.source` and `edit(inplace=True)`."""

    name = "nnsight"
    n_heads = gpt2.N_HEADS
    misspelt = (("atn", 0), "attn")

    def __init__(self, model: Any = None):
        self.module = gpt2.gpt2() if model is None else model
        self.traced = nnsight.NNsight(self.module)
        # A forward is rewritten when its source is first asked for, which must be before it is called.
        self.insides = [block.attn.source for block in self.traced.transformer.h]
        self.sources: dict[int, Any] = {}

    def fresh(self, **changes: Any) -> NNsightTool:
        return type(self)(gpt2.gpt2(**changes))

    def fused(self) -> NNsightTool:
        return type(self)(gpt2.gpt2(attention="sdpa"))

    def sharpen(self, by: float) -> None:
        gpt2.sharpen(self.module, by)

    def fold_value_bias(self) -> None:
        gpt2.fold_value_bias(self.module)

    @property
    def places(self) -> list[Place]:
        once: list[Place] = [("embed", None), ("pos_embed", None)]
        return once + [(name, layer) for layer in range(LAYERS) for name in ORDER]

    def spelling(self, place: Place) -> str:
        names = {"resid_pre": "h.{}", "resid_post": "h.{}", "resid_mid": "h.{}.ln_2", "mlp_pre": "h.{}.mlp.c_fc",
                 "mlp_post": "h.{}.mlp.act", "mlp_out": "h.{}.mlp", "z": "h.{}.attn.c_proj", "embed": "wte",
                 "pos_embed": "wpe", **dict.fromkeys("qkv", "h.{}.attn.c_attn")}  # fmt: skip
        return names.get(place[0], "h.{}.attn").format(place[1])

    def run(self, batch: Batch, edits: Sequence[Edit] = (), **more: Any) -> Tensor:
        return self._traced(batch, edits, (), "after", more)[0]

    def record(
        self, batch: Batch, places: Sequence[Place], edits: Sequence[Edit] = (), *, moment: Moment = "after"
    ) -> Mapping[Place, Tensor]:
        return self._traced(batch, edits, places, moment, {})[1]

    def gradients(self, batch: Batch, places: Sequence[Place], of: Objective) -> Mapping[Place, Tensor]:
        kept: dict[Place, Tensor] = {}
        self.sources = {}
        with self.traced.trace(batch.tokens, **_padding(batch)):
            for place in sorted(places, key=_when):
                value = self._value(place)
                value.retain_grad()
                self._put(place, value)
                kept[place] = value
            logits = self.traced.output.logits.save()
        of(logits, batch).sum().backward()
        self.module.zero_grad()
        return {place: value.grad for place, value in kept.items() if value.grad is not None}

    def add_hook(self, place: Place, fn: Callable[[Tensor], Tensor | None]) -> None:
        self.sources = {}
        with self.traced.edit(inplace=True):
            before = self._value(place)
            after = fn(before)
            if after is not None:
                self._put(place, after)

    def _traced(
        self, batch: Batch, edits: Sequence[Edit], places: Sequence[Place], moment: Moment, more: Mapping[str, Any]
    ) -> tuple[Tensor, dict[Place, Tensor]]:
        kept: dict[Place, Tensor] = {}
        self.sources = {}
        asked = sorted({*places, *(edit.place for edit in edits)}, key=_when)
        with torch.no_grad(), self.traced.trace(batch.tokens, **_padding(batch), **more):
            for place in asked:
                value = self._value(place)
                if place in places and moment == "before":
                    kept[place] = value.detach().clone()
                here = [edit for edit in edits if edit.place == place]
                for edit in here:
                    value = edit.fn(value, batch)
                if here:
                    self._put(place, value)
                if place in places and moment == "after":
                    kept[place] = self._value(place).detach().clone()
            logits = self.traced.output.logits.save()
        return logits, kept

    def _slot(self, place: Place) -> tuple[Any, str]:
        """The envoy of a place, and which of its tensors."""
        name, layer = place
        inner = self.traced.transformer
        if layer is None:
            return (inner.wte, "output") if name == "embed" else (inner.wpe, "output")
        block = inner.h[layer]
        if name in ("scores", "pattern"):
            softmax = self._attention(layer).nn_functional_softmax_0
            return softmax, "input" if name == "scores" else "output"
        if name in THIRDS:
            return block.attn.c_attn, "output"
        return {
            "resid_pre": lambda: (block, "input"), "z": lambda: (block.attn.c_proj, "input"),
            "attn_out": lambda: (block.attn, "output 0"), "resid_mid": lambda: (block.ln_2, "input"),
            "mlp_pre": lambda: (block.mlp.c_fc, "output"), "mlp_post": lambda: (block.mlp.act, "output"),
            "mlp_out": lambda: (block.mlp, "output"), "resid_post": lambda: (block, "output"),
        }.get(name, lambda: (getattr(block, name), "output"))()  # fmt: skip

    def _attention(self, layer: int) -> Any:
        """The source of a layer's attention function, asked for once a trace: it is found when it is called."""
        if layer not in self.sources:
            self.sources[layer] = self.insides[layer].attention_interface_1.source
        return self.sources[layer]

    def _value(self, place: Place) -> Tensor:
        envoy, which = self._slot(place)
        value = envoy.input if which == "input" else envoy.output
        if which == "output 0":
            return value[0]
        if place[0] in THIRDS:
            value = value.chunk(3, -1)[THIRDS[place[0]]]
        return rearrange(value, SPLIT, head=self.n_heads) if place[0] in ("z", *THIRDS) else value

    def _put(self, place: Place, value: Any) -> None:
        envoy, which = self._slot(place)
        if place[0] in ("z", *THIRDS):
            value = rearrange(value, JOIN)
        if place[0] in THIRDS:
            parts = list(envoy.output.chunk(3, -1))
            parts[THIRDS[place[0]]] = value
            value = torch.cat(parts, -1)
        if which == "input":
            envoy.input = value
        elif which == "output 0":
            envoy.output = (value, *envoy.output[1:])
        else:
            envoy.output = value


def _when(place: Place) -> tuple[int, int]:
    name, layer = place
    if layer is None:
        return -1, int(name == "pos_embed")
    return layer, ORDER.index(name) if name in ORDER else 0


def _padding(batch: Batch) -> dict[str, Tensor]:
    """As transformers documents it: a mask, and positions that count valid tokens."""
    given = padding_mask(batch)
    if given:
        given["position_ids"] = (batch.valid.long().cumsum(1) - 1).clamp_min(0)
    return given
