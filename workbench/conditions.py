"""Conditions made from other conditions' edits: only their direct effect, and the corrupt run to measure against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from workbench.interventions import Intervention, freeze, patch
from workbench.locations import Edges, Heads, Stream
from workbench.operations import Custom, Path, Scale

__all__ = ["corrupted", "direct"]

_STEPS = ("resid_pre", "attn_out", "resid_mid", "cross.attn_out", "cross.resid_mid", "mlp_out", "resid_post")
"""What happens in a layer, in order."""


def corrupted(donor: str, stack: Literal["encoder", "decoder"] | None = None) -> list[Intervention]:
    """The batch read as the donor batch: what enters layer 0 is the donor's, at every position.

    The logits are those of a run on the donor, while labels and roles stay the batch's own: the corrupt run that
    `effects.normalised` measures against. Donor and batch need the same padding. stack: in a model with two, each is
    corrupted by its own list.

    With `freeze` of a place after it, the condition restores the clean value there and nowhere else (activation
    patching from clean into corrupt: Zhang and Nanda 2024, "denoising"); without it, a `patch` of a place from the
    donor alone is the other direction ("noising").

    >>> [str(one) for one in [*corrupted("other"), freeze(Heads(layer=1, head=0, part="z"))]]
    ['patch L0.resid_pre every from other by position', 'freeze L1H0.z every']
    """
    return [patch(Stream(layer=0, part="resid_pre", stack=stack), donor=donor, align="position")]


def direct(model: Any, interventions: Sequence[Intervention]) -> list[Intervention]:
    """The edits, with everything held clean by which they could reach the logits but the residual stream itself.

    What every later component writes (`attn_out`, `mlp_out`) is frozen at its clean value at every position: the later
    layers', and the same layer's MLP where attention is edited. A later component that the list edits too is edited as
    it would be in the clean run: its `q`, `k`, `v` are frozen, or its `mlp_out` before the edit. A change of the metric
    is then the natural direct effect (Pearl 2001; with components as mediators, Vig et al. 2020), and against the
    effect of the edits alone it shows what later layers add or repair (McGrath et al. 2023); see
    `effects.direct_against_total`.

    Norms are recomputed. With norm="none" a change reaches the unembedding as it is; with "pre" the last norm sees it;
    with "post" every norm on its way rescales it, the frozen outputs that were added before it included.

    model: one that `run` takes, or the configuration of an own one. Raises ValueError for no edits, a path, a custom
    function, an edit in an encoder that a decoder reads (its only way to the logits is a later component), KeyError for
    a layer or part that the model lacks.

    >>> from workbench import ModelConfig, cut
    >>> config = ModelConfig(d_vocab=8, n_ctx=3, d_model=8, n_layers=2, n_heads=2)
    >>> [str(one) for one in direct(config, [cut(Edges(layer=1, dest="last", source="first"))])]
    ['freeze L1.mlp_out every', 'cut L1 last←first']
    """
    if isinstance(interventions, Intervention) or not list(interventions):
        raise ValueError(f"the direct effect of {interventions!s}: interventions come as a list of one edit or more")
    heads, n_layers, attn_only = _about(model)
    edited: dict[tuple[int, str], list[Intervention]] = {}
    for one in interventions:
        where = _possible(one, heads, n_layers)
        edited.setdefault((where.layer, _step(where)), []).append(one)
    first = min(map(_order, edited))
    held = []
    for component in _components(n_layers, "decoder" in heads, attn_only):
        if _order(component) > first:
            held += _held(component, edited.get(component, []), heads)
    return [*held, *interventions]


def _about(model: Any) -> tuple[Mapping[str, tuple[int, int]], int, bool]:
    """Part → (heads, key–value heads); the number of layers that are read out; whether they have no MLPs."""
    parts = getattr(model, "parts", None)
    if isinstance(parts, Mapping):
        heads = {part: (found.n_heads, found.n_kv_heads) for part, found in parts.items()}
        return heads, parts["decoder" if "decoder" in parts else next(iter(parts))].n_layers, model.attn_only
    stacks = {part: getattr(model, part) for part in ("encoder", "decoder") if hasattr(model, part)} or {"": model}
    if not all(hasattr(stack, name) for stack in stacks.values() for name in ("n_layers", "n_kv_heads", "attn_only")):
        mend = "give one that `run` takes (of a loaded one its `.model`), or the configuration of an own one"
        raise TypeError(f"the layers of a {type(model).__name__} are unknown; {mend}")
    read = stacks.get("decoder", model)
    stacks |= {"cross": read} if "decoder" in stacks else {}
    return {part: (one.n_heads, one.n_kv_heads) for part, one in stacks.items()}, read.n_layers, read.attn_only


def _possible(one: Intervention, heads: Mapping[str, Any], n_layers: int) -> Edges | Heads | Stream:
    """Where an edit acts. Raises where it has no direct effect that could be asked for."""
    if not isinstance(one, Intervention):
        raise TypeError(f"{one!r} is no intervention; build it with cut, uniform, patch, ... from workbench")
    if isinstance(one.what, Path):
        raise ValueError(f"{one}: a path ends in a later head, whose output is held: its direct effect is 0")
    if one.where is None or isinstance(one.what, Custom):
        raise ValueError(f"{one}: a custom function has no location after which to hold; use an operation by name")
    if one.where.in_model == "encoder":
        raise ValueError(f"{one}: an encoder reaches the logits through cross-attention only; it has no direct effect")
    if one.where.in_model not in heads:
        known = ", ".join(map(repr, heads))
        raise KeyError(f"{one}: this model has the parts {known}, not {one.where.in_model!r}; name stack or kind")
    if one.where.layer >= n_layers:
        raise KeyError(f"{one}: no layer {one.where.layer}; this model has layers 0 to {n_layers - 1}")
    return one.where


def _step(where: Edges | Heads | Stream) -> str:
    part = where.part if isinstance(where, Stream) else "attn_out"
    return f"cross.{part}" if where.in_model == "cross" and part in ("attn_out", "resid_mid") else part


def _order(place: tuple[int, str]) -> tuple[int, int]:
    return place[0], _STEPS.index(place[1])


def _components(n_layers: int, reads_context: bool, attn_only: bool) -> Iterator[tuple[int, str]]:
    for layer in range(n_layers):
        yield layer, "attn_out"
        if reads_context:
            yield layer, "cross.attn_out"
        if not attn_only:
            yield layer, "mlp_out"


def _held(
    component: tuple[int, str], edits: Sequence[Intervention], heads: Mapping[str, tuple[int, int]]
) -> list[Intervention]:
    """What keeps the earlier edits out of a component: its output frozen, or its inputs where it is edited itself."""
    layer, step = component
    cross = step.startswith("cross.")
    where: dict[str, Any] = {"layer": layer}
    if cross:
        where["kind"] = "cross"
    elif "decoder" in heads:
        where["stack"] = "decoder"
    own = heads["cross" if cross else where.get("stack", "")]
    out = Stream(part=step.removeprefix("cross."), **where)  # type: ignore[arg-type]
    if any(_whole(one, out.part, own) for one in edits):
        return []
    if not edits or step == "mlp_out":
        return [freeze(out)]
    read: tuple[Literal["q", "k", "v"], ...] = ("q",) if cross else ("q", "k", "v")
    return [freeze(Heads(part=part, **where)) for part in read if not any(_whole(one, part, own) for one in edits)]


def _whole(one: Intervention, part: str, heads: tuple[int, int]) -> bool:
    """Whether an edit replaces all of a site by itself, so that a freeze before it would be undone."""
    where, what = one.where, one.what
    if isinstance(where, Edges) or where is None or where.part != part or where.pos is not None:
        return False
    n_heads = heads[1] if part in ("k", "v") else heads[0]
    every = isinstance(where, Stream) or where.head is None or n_heads == 1
    return every and what.op != "add" and not (isinstance(what, Scale) and what.by != 0)
