"""What a model must offer to be run: its parts, what each row sees, and the logits of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from workbench.batch import Batch
from workbench.locations import Location
from workbench.sites import SITES, site, split


@dataclass(frozen=True)
class Part:
    """Layers of one kind: how many, with how many heads; `n_kv_heads` of them have keys and values of their own."""

    n_layers: int
    n_heads: int
    n_kv_heads: int

    def heads_at(self, name: str) -> int:
        """How many heads a site of this part counts."""
        return self.n_kv_heads if split(name)[1] in ("k", "v") else self.n_heads


class Runnable(Protocol):
    """A model that `run` and `record` take: an own one, or one made by `wrap`.

    parts: "" → its only stack, or "encoder", "decoder", "cross"; d_vocab: how many tokens it reads; n_out: how many its
    logits tell apart; attn_only: whether its layers have no MLP; reads_only: whether the last layer computes only the
    positions read; by_position: whether the logits at a position come from that position's last vector alone; prover:
    the module whose functions prove that edits landed (`proof`, `witness`); hook_dict: hook name → the module at which
    a site's tensor passes.
    """

    parts: Mapping[str, Part]
    d_vocab: int
    n_out: int
    prover: Any
    attn_only: bool
    reads_only: bool
    by_position: bool
    hook_dict: Mapping[str, Any]

    def check(self, batch: Batch) -> None:
        """Raises ValueError for a batch that the model cannot read."""

    def sees(self, batch: Batch, part: str, layer: int) -> Tensor:
        """Which sources each destination reads in a layer, [batch dest source]."""

    def logits(self, batch: Batch, read: Tensor | None) -> Tensor:
        """[batch pos d_vocab], or [batch read d_vocab] at the positions `read` [batch read]."""


@dataclass(eq=False)
class Sight:
    """What a batch's rows see in a model, part by part and layer by layer: `sight("", 0)` is [batch dest source]."""

    model: Any
    batch: Batch
    known: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    _kept: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, part: str, layer: int) -> Tensor:
        if (part, layer) not in self.known:
            self.known[part, layer] = self.model.sees(self.batch, part, layer)
        return self.known[part, layer]

    def found(self, name: Any) -> Any | None:
        """What was kept under a name; None where nothing was."""
        return self._kept.get(name)

    def kept(self, name: Any, find: Callable[[], Any]) -> Any:
        """What follows from the masks, found once."""
        if name not in self._kept:
            self._kept[name] = find()
        return self._kept[name]


def check_place(model: Any, where: Location, label: object) -> None:
    """The part, layer and head exist. Raises KeyError saying what there is."""
    parts = model.parts
    if where.in_model not in parts:
        raise KeyError(f"{label}: {_which_part(where.in_model, parts)}")
    part, head = parts[where.in_model], getattr(where, "head", None)
    inside = f" in its {where.in_model} part" if where.in_model else ""
    if where.layer >= part.n_layers:
        raise KeyError(f"{label}: no layer {where.layer}; this model has layers 0 to {part.n_layers - 1}{inside}")
    heads = part.heads_at(getattr(where, "part", "scores"))
    if head is not None and head >= heads:
        kind = "key–value heads" if heads < part.n_heads else "heads"
        raise KeyError(f"{label}: no head {head}; this model has {kind} 0 to {heads - 1}{inside}")


def _which_part(asked: str, parts: Mapping[str, Part]) -> str:
    if "" in parts:
        return f"this model has one stack of layers and no {asked} part; leave stack and kind out"
    said = {"encoder": "stack='encoder'", "decoder": "stack='decoder'", "cross": "kind='cross'"}
    known = ", ".join(said[name] for name in parts)
    return f"no {asked} part in this model; there are: {known}" if asked else f"say which part of this model: {known}"


def layers_of(model: Any, part: str) -> range:
    """The layers of a part. Raises KeyError saying which parts there are."""
    if part not in model.parts:
        raise KeyError(_which_part(part, model.parts))
    return range(model.parts[part].n_layers)


def counted(batch: Batch, name: str) -> Batch:
    """The batch whose positions a site's tensor counts: the context's, where it holds keys and values of it."""
    part, bare = split(name)
    readers, sources = batch.sides(part)
    return sources if SITES[bare].positions == "source" else readers


def last_layer(model: Any, name: str, layer: int | None) -> bool:
    """Whether a site counts destinations of the last layer that is read out."""
    part, _ = split(name)
    counts = part != "encoder" and site(name).positions == "dest"
    return counts and layer == model.parts[part].n_layers - 1
