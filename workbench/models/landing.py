"""What each hook of a hooked model carries, and where an edit of it goes, found out on its example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workbench.batch import Batch
from workbench.edits import InertIntervention
from workbench.hooks import Key, evaluating
from workbench.models.carried import Layer
from workbench.models.identities import astray, faults
from workbench.proof import agree
from workbench.rows import HIDDEN
from workbench.sites import SITES

PROVEN_HERE = (
    "embed", "pos_embed", "resid_pre", "q", "k", "z", "result", "attn_out", "resid_mid", "mlp_pre", "mlp_post",
    "mlp_out", "resid_post",
)  # fmt: skip
"""Sites whose edits no later proof follows; those of scores, weights and values are followed in every run."""


@dataclass(eq=False)
class Seen:
    """What a pass showed: site and layer → what was carried, after edits; the same in the order of firing, as often as
    they fired; what entered each block; the logits."""

    values: dict[Key, Tensor] = field(default_factory=dict)
    order: list[Key] = field(default_factory=list)
    entered: dict[int, Tensor] = field(default_factory=dict)
    logits: Tensor = None  # type: ignore[assignment]


def seen_in(model: Any, batch: Batch, noisy: str | None = None, layer: int | None = None) -> Seen:
    """One pass with every site kept, and noise at one site, in one layer or in all."""
    out = Seen()

    def keep(key: Key, tensor: Tensor) -> Tensor:
        if key[0] == noisy and layer in (None, key[1]):
            noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)).to(tensor)
            tensor = tensor + noise * (tensor.std() + 1)
        out.order.append(key)
        out.values[key] = tensor.clone()
        return tensor

    def enters(number: int, args: tuple, kwargs: dict[str, Any]) -> None:
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one.ndim == 3]
        if given:
            out.entered[number] = given[0].clone()

    handles: list[Any] = []
    try:
        for key, point in _points(model).items():
            handles.append(point.register_forward_hook(_plain(partial(keep, key))))
        for number in range(model.parts[""].n_layers):
            if isinstance(block := _inside(model, number, ""), nn.Module):
                hook = partial(enters, number)
                handles.append(block.register_forward_pre_hook(_given(hook), with_kwargs=True))
        with evaluating(model), torch.no_grad():
            out.logits = model.logits(batch, None)
    finally:
        for handle in handles:
            handle.remove()
    return out


def _plain(hook: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    return lambda _module, _inputs, output: hook(output)


def _given(hook: Callable[[tuple, dict[str, Any]], None]) -> Callable[[nn.Module, tuple, dict[str, Any]], None]:
    return lambda _module, args, kwargs: hook(args, kwargs)


def _points(model: Any) -> dict[Key, nn.Module]:
    named = {(name, layer): site.hook_name(layer) for name, site in SITES.items() for layer in model.layers(site)}
    return {key: model.hook_dict[hook] for key, hook in named.items() if hook in model.hook_dict}


def _inside(model: Any, layer: int, name: str) -> Any:
    blocks = getattr(model.inner, "blocks", None)
    block = None if blocks is None or layer >= len(blocks) else blocks[layer]
    return block if not name else getattr(block, name, None)


def misfired(model: Any, seen: Seen) -> dict[Key, str]:
    """Hooks that did not fire once, or in an earlier layer after a later one."""
    out: dict[Key, str] = {}
    for key in _points(model):
        times = seen.order.count(key)
        if times != 1:
            hint = "; a bridge fires it where cfg.use_attn_result is set" if key[0] == "result" and not times else ""
            out[key] = f"its hook fired {times} times in a pass, not once{hint}"
    for number, key in enumerate(seen.order):
        for other in seen.order[:number]:
            if _layer(other) > _layer(key):
                out.setdefault(key, f"its hook fires after {other[0]} of layer {other[1]}")
                out.setdefault(other, f"its hook fires before {key[0]} of layer {key[1]}")
    return out


def _layer(key: Key) -> int:
    return -1 if key[1] is None else key[1]


def layer_of(model: Any, seen: Seen, layer: int, without: Sequence[str] = (), edited: str | None = None) -> Layer:
    """A layer as `identities` reads it: what rows see is what scores show, or else what the model's word says."""
    carried = {name: value for (name, one), value in seen.values.items() if one == layer and name not in without}
    carried = {name: value for name, value in carried.items() if SITES[name].hook_name(layer) in model.hook_dict}
    told = model.direction(model.example)
    scores = carried.get("scores")
    shows = scores is not None and scores.ndim == 4 and scores[:, 0].shape == told.shape
    reads = (scores > HIDDEN).any(1) if scores is not None and shows else told
    below = seen.values.get(("resid_post", layer - 1))
    at_bottom = [seen.values[key, None] for key in ("embed", "pos_embed") if (key, None) in seen.values]
    enters = [seen.entered.get(layer), below, torch.stack(at_bottom).sum(0) if at_bottom and not layer else None]
    if edited == "resid_pre":
        enters = [carried.get("resid_pre")]
    return Layer(
        carried,
        reads,
        model.parts[""],
        told if model.says_causal else None,
        [one for one in enters if one is not None],
        _inside(model, layer, "attn"),
        _inside(model, layer, "mlp"),
        bool(getattr(model.cfg, "parallel_attn_mlp", False)),
        model.attn_only,
    )


def faults_of(model: Any, seen: Seen, layer: int) -> dict[str, str]:
    """The sites of a layer that do not carry what they say; scores at fault do not say what rows see either."""
    found = faults(layer_of(model, seen, layer))
    if "scores" not in found:
        return found
    return {"scores": found["scores"], **faults(layer_of(model, seen, layer, without=["scores"]))}


def faults_below(model: Any, seen: Seen) -> dict[str, str]:
    """Whether embeddings are what they say: of the token alone, of the place alone, and together the first stream."""
    out: dict[str, str] = {}
    first, tokens = seen.values.get(("resid_pre", 0)), model.example.tokens
    same = seen_in(model, replace(model.example, tokens=tokens[:, :1].expand_as(tokens).clone()))
    there = {name: same.values[name, None] for name in ("embed", "pos_embed") if (name, None) in same.values}
    if "embed" in there and not agree(there["embed"], there["embed"][:, :1].expand_as(there["embed"]), there["embed"]):
        out["embed"] = "its hook carries something else: tokens that are the same differ from place to place"
    if "pos_embed" in there and not torch.equal(there["pos_embed"], seen.values["pos_embed", None]):
        out["pos_embed"] = "its hook carries something else: it changes with the tokens"
    if first is None:
        return {name: out.get(name, "nothing to hold its hook against: resid_pre of layer 0") for name in there}
    if said := _sums_at_bottom(seen):
        out |= {name: out.get(name, said) for name in there}
    return out


def _sums_at_bottom(seen: Seen) -> str:
    first = seen.values["resid_pre", 0]
    terms = [seen.values[name, None] for name in ("embed", "pos_embed") if (name, None) in seen.values]
    if all(one.shape == first.shape for one in terms):
        total = torch.stack(terms)
        if agree(first, total.sum(0), total.abs().sum(0)):
            return ""
    return "its hook carries something else: resid_pre of layer 0 = embed + pos_embed does not hold"


def strays(model: Any, clean: Seen, site: str) -> dict[Key, str]:
    """Layers in which an edit of a site does not go where its name says → why."""
    out = discarded(model, site)
    layers = [layer for name, layer in _points(model) if name == site]
    if not layers or out:
        return out
    noisy = seen_in(model, model.example, site)
    for layer in layers:
        if layer is None:
            if said := _sums_at_bottom(noisy):
                out[site, layer] = said
            continue
        why = astray(layer_of(model, clean, layer), layer_of(model, noisy, layer, edited=site), site)
        if why or (why == "" and site == "resid_mid"):
            out[site, layer] = why or "nothing shows whether an edit of it stays in the stream"
        after = noisy.values.get(("resid_pre", layer + 1))
        if site == "resid_post" and after is not None and not agree(after, noisy.values[site, layer], after):
            out[site, layer] = "an edit of it does not go where its name says: the next layer reads another stream"
        reader = {"resid_mid": ("mlp_out",), "resid_pre": ("z", "attn_out")}.get(site, ())
        if (site, layer) not in out and not _reads(model, clean, site, layer, reader):
            out[site, layer] = f"an edit of it does not go where its name says: {' and '.join(reader)} do not read it"
    return out


def discarded(model: Any, site: str) -> dict[Key, str]:
    """Layers in which the model itself says that it throws an edit of a site away."""
    there = [key for key in _points(model) if key[0] == site]
    if not there or not _refused(model, (site, None)):
        return {}
    return {key: why for key in there if (why := _refused(model, key))}


def _refused(model: Any, key: Key) -> str:
    try:
        seen_in(model, model.example, *key)
    except InertIntervention as error:
        return str(error)
    return ""


def _reads(model: Any, clean: Seen, site: str, layer: int, readers: Sequence[str]) -> bool:
    there = [(name, layer) for name in readers if SITES[name].hook_name(layer) in model.hook_dict]
    if not there:
        return True
    noisy = seen_in(model, model.example, site, layer)
    return any(not torch.equal(noisy.values[key], clean.values[key]) for key in there)
