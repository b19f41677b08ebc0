"""One forward pass of a Hugging Face model, with its sites' tensors led past the points at which hooks stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from workbench import rows
from workbench.edits import InertIntervention
from workbench.models.families import Stack, Sublayer
from workbench.models.interface import check_known, grouped, hidden_by, scored, weighed
from workbench.proof import agree
from workbench.sites import SITES, in_part

Place = tuple[str, int]
"""A part and a layer of it."""
Change = Callable[[int, Tensor], Tensor]
"""(which call of the module it is, its tensor) → what takes its place."""
Hooked = tuple[nn.Module, bool, Change]
"""A module, whether it is its input that is changed (or its output), and the change."""


@dataclass(eq=False)
class Passing:
    """What a pass writes down: calls of each module, masks seen [batch dest source], rows left empty [batch dest], and
    the stream before an attention's output is added to it."""

    model: Any
    calls: Counter[int] = field(default_factory=Counter)
    hidden: dict[Place, Tensor] = field(default_factory=dict)
    heads: dict[Place, tuple[int, int]] = field(default_factory=dict)
    emptied: dict[Place, Tensor] = field(default_factory=dict)
    widths: dict[Place, int] = field(default_factory=dict)
    stream: dict[Place, Tensor] = field(default_factory=dict)
    asked: dict[Place, Tensor] = field(default_factory=dict)
    size: dict[Place, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attentions: dict[int, list[Place]] = self.model.attentions
        self.single_softmax: bool = getattr(self.model, "single_softmax", False)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        position_bias: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """The attention function of this pass: query, key, value [batch head pos d_head] → z [batch pos head d_head],
        pattern [batch head dest source]."""
        check_known(kwargs)
        place = self._place(module)
        query, key, value = (self._vectors(name, place, x) for name, x in zip("qkv", (query, key, value), strict=True))
        raw = scored(query, key, scaling, position_bias)
        hidden = hidden_by(attention_mask, raw)
        self.widths[place] = query.shape[1] * value.shape[-1]
        self.hidden[place], self.heads[place] = hidden, (query.shape[1], key.shape[1])
        scores = self._through("scores", place, raw.masked_fill(hidden, rows.HIDDEN))
        self.emptied[place] = (scores == rows.HIDDEN).all(-1).all(1)
        pattern = self._through("pattern", place, weighed(scores, query, self.single_softmax))
        z = rearrange(torch.matmul(pattern, grouped(value, query)), "b head pos d_head -> b pos head d_head")
        return self._through("z", place, z.contiguous()), pattern

    def _vectors(self, name: str, place: Place, x: Tensor) -> Tensor:
        if not self._heard(name, place):
            return x
        shown = rearrange(x, "b head pos d_head -> b pos head d_head")
        out = self._through(name, place, shown)
        # The same values keep their layout in memory, on which the last bit of a product may depend.
        return x if out is shown else rearrange(out, "b pos head d_head -> b head pos d_head")

    def _point(self, name: str, place: Place) -> Any:
        part, layer = place
        return self.model.hook_dict.get(in_part(part, SITES[name].hook_name(layer)))

    def _heard(self, name: str, place: Place) -> bool:
        point = self._point(name, place)
        return point is not None and bool(point._forward_hooks)

    def _through(self, name: str, place: Place, tensor: Tensor) -> Tensor:
        """The tensor after the hooks at a site: itself where they changed nothing."""
        if not self._heard(name, place):
            return tensor
        # A copy, so that a hook that changes it in place makes an edit and nothing else.
        out = self._point(name, place)(tensor.clone())
        if not isinstance(out, Tensor) or out.shape != tensor.shape:
            got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"a hook at {in_part(place[0], name)} gave {got}; the site has {list(tensor.shape)}")
        return tensor if not out.requires_grad and torch.equal(out, tensor) else out

    def _place(self, module: nn.Module) -> Place:
        places = self.attentions.get(id(module))
        call = self.calls[id(module)]
        self.calls[id(module)] += 1
        if places is None or call >= len(places):
            raise RuntimeError(f"{type(module).__name__} called its attention where its family has none")
        return places[call]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The hooks of this pass on the model's modules, only where a point is heard; they go, whatever happens."""
        handles: list[Any] = []
        try:
            for part, stack, blocks in self.model.stacks:
                for block in dict.fromkeys(blocks):
                    places = [(part, layer) for layer, one in enumerate(blocks) if one is block]
                    handles += [_hooked(*change) for change in self._of_block(stack, block, places)]
            embedding, point = self.model.embedding, self.model.hook_dict.get("hook_embed")
            if embedding is not None and point is not None and point._forward_hooks:
                handles.append(_hooked(embedding, False, lambda _, x: point(x)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _of_block(self, stack: Stack, block: nn.Module, places: list[Place]) -> Iterator[Hooked]:
        """What becomes of the tensors of a block that stands for these layers, in the order of its calls."""
        crossing = places if stack.cross is not None else []
        heard, heard_in_cross = self._names_heard(places), self._names_heard([("cross", n) for _, n in crossing])
        followed = not stack.post and "resid_mid" in heard | heard_in_cross

        def enters(call: int, x: Tensor) -> Tensor:
            self.stream[places[call]] = out = self._through("resid_pre", places[call], x)
            return out

        if followed or "resid_pre" in heard:
            yield block, True, enters
        yield from self._of_attention(stack.attention, block, places, heard, followed)
        if stack.cross is not None:
            yield from self._of_attention(
                stack.cross, block, [("cross", n) for _, n in places], heard_in_cross, followed
            )
        rest = [("mlp_pre", stack.mlp_in, False), ("mlp_post", stack.mlp_out, True)]
        rest += [("mlp_out", stack.added or stack.mlp_out, False), ("resid_post", stack.post, bool(stack.post))]
        for name, path, at_input in rest:
            if name in heard:
                yield block.get_submodule(path or ""), at_input, self._passing(name, places)

    def _of_attention(
        self, sub: Sublayer, block: nn.Module, places: list[Place], heard: set[str], followed: bool
    ) -> Iterator[Hooked]:
        projection: Any = block.get_submodule(sub.out)
        mixed: dict[Place, Tensor] = {}

        def mixes(call: int, z: Tensor) -> Tensor:
            mixed[places[call]] = z
            return z

        def results(call: int, x: Tensor) -> Tensor:
            result = _results(projection, mixed.pop(places[call]), self.heads[places[call]][0])
            out = self._through("result", places[call], result)
            return x if out is result else x + (out - result).sum(2)

        if "result" in heard:
            yield projection, True, mixes
            yield projection, False, results
        if "scores" in heard:
            yield projection, False, lambda call, x: self._without_empty_bias(projection, places[call], x)
        added = block.get_submodule(sub.added or sub.out)
        if "attn_out" in heard:
            yield added, False, self._passing("attn_out", places)
        if followed:
            yield added, False, lambda call, x: self._added(places[call], x)
        if "resid_mid" in heard:
            yield (
                block.get_submodule(sub.mid),
                True,
                self._as_asked(places) if followed else self._passing("resid_mid", places),
            )

    def _names_heard(self, places: list[Place]) -> set[str]:
        return {name for name in SITES if any(self._heard(name, place) for place in places)}

    def _passing(self, name: str, places: list[Place]) -> Change:
        return lambda call, x: self._through(name, places[call], x)

    def _without_empty_bias(self, projection: Any, place: Place, x: Tensor) -> Tensor:
        """The output bias goes where an edit left every head's row empty."""
        empty = self.left_empty(place)
        if not empty.any():
            return x
        z = x.new_zeros(1, 1, self.widths[place])
        return x - torch.where(empty[..., None], projection.forward(z), 0.0)

    def left_empty(self, place: Place) -> Tensor:
        """Rows [batch dest] of which an edit left no source to any head."""
        return self.emptied[place] & ~self.hidden[place].all(-1).all(1)

    def _added(self, place: Place, x: Tensor) -> Tensor:
        """What a pre-norm block adds to its stream, so that the stream after it is what hooks at resid_mid make it."""
        part, layer = place
        stream = ("decoder" if part == "cross" else part, layer)
        before = self.stream[stream]
        middle = before + x
        self.stream[stream] = self.asked[place] = out = self._through("resid_mid", place, middle)
        self.size[place] = float(torch.maximum(before.detach().abs().max(), out.detach().abs().max()))
        if out is middle:
            return x
        # An unchanged stream keeps every bit, though its gradient flows through the hook.
        return x + (out - middle) if torch.equal(out, middle) else out - before

    def _as_asked(self, places: list[Place]) -> Change:
        """What the next component reads is compared with what the hooks at resid_mid made of the stream."""

        def check(call: int, x: Tensor) -> Tensor:
            asked, size = self.asked.pop(places[call]).detach(), self.size[places[call]]
            if not agree(x.detach(), asked, torch.full((), size, dtype=x.dtype)):
                raise InertIntervention(
                    f"{in_part(places[call][0], 'resid_mid')} of layer {places[call][1]}: the next component reads "
                    "another stream than was asked for; the site is not where this workbench takes it to be"
                )
            return x

        return check


def _hooked(module: nn.Module, at_input: bool, change: Change) -> Any:
    calls = iter(range(10**9))

    def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if args:
            return (change(next(calls), args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": change(next(calls), kwargs["hidden_states"])}

    def after(_: nn.Module, args: tuple, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(next(calls), output[0]), *output[1:])
        return change(next(calls), output)

    if at_input:
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)


def _results(projection: Any, z: Tensor, n_heads: int) -> Tensor:
    """What each head writes, [batch dest head d_model], from z [batch dest (head d_head)]: what the projection makes of
    this head's z alone, its bias taken away. Raises InertIntervention where the heads' parts are not the whole."""
    heads = rearrange(z, "b dest (head d_head) -> b dest head d_head", head=n_heads)
    alone = torch.eye(n_heads, dtype=z.dtype, device=z.device)
    each = einsum(heads, alone, "b dest head d_head, head other -> b dest head other d_head")
    # forward itself: the module's hooks have acted in this pass already.
    bias = projection.forward(torch.zeros_like(z[:1, :1]))
    out = projection.forward(rearrange(each, "b dest head other d_head -> b dest head (other d_head)")) - bias
    whole = projection.forward(z) - bias
    if not agree(out.sum(2).detach(), whole.detach(), out.abs().sum(2).detach() + bias.abs().max().detach()):
        raise InertIntervention(
            "an output projection is not linear: what single heads write is not defined in this model"
        )
    return out
