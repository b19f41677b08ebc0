"""Models with TransformerLens' hooks, bridges among them, made to run under interventions as our own do.

A hook's name is no promise: what each carries is compared with the others on first use, and a hook that is not what it
says is left out, with the reason.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from workbench import rows, witness
from workbench.anatomy import Part
from workbench.batch import UNREAD, Batch
from workbench.edits import InertIntervention
from workbench.hooks import evaluating
from workbench.models.families import Unsupported
from workbench.models.identities import faults
from workbench.models.interface import plain, register, switched
from workbench.models.passing import Passing, Place
from workbench.sites import SITES

ATTENTION = ("q", "k", "v", "scores", "pattern", "z")
"""Sites that transformers' attention interface shows, where a bridge delegates to it."""


class Hooked(nn.Module):
    """A bridge or HookedRootModule under interventions; made by `wrap`.

    inner: the model itself; delegates: whether its attention is the Hugging Face model's own, reached through the
    attention interface. Sites that it does not have, or that do not carry what their name says, are in `absent`.
    """

    prover = witness
    reads_only = False
    by_position = True

    def __init__(self, inner: Any, tokenizer: Any, example: Batch | None):
        super().__init__()
        self.inner, self.tokenizer = inner, tokenizer or getattr(inner, "tokenizer", None)
        original = getattr(inner, "original_model", None)
        self.original: Any = original if hasattr(original, "config") else None
        cfg: Any = getattr(inner, "cfg", None)
        self.cfg = cfg
        needed = ("n_layers", "n_heads", "d_vocab")
        if lacking := [name for name in needed if not isinstance(getattr(cfg, name, None), int)]:
            raise Unsupported(
                f"{type(inner).__name__} has no cfg.{lacking[0]}; a hooked model says {', '.join(needed)}"
            )
        if not any(name.startswith("blocks.0.") for name in inner.hook_dict):
            raise Unsupported(
                f"{type(inner).__name__} has no hooks named blocks.0. ...; wrap the Hugging Face model itself"
            )
        self.parts = {"": Part(cfg.n_layers, cfg.n_heads, getattr(cfg, "n_key_value_heads", None) or cfg.n_heads)}
        self.attn_only, self.d_vocab = bool(getattr(cfg, "attn_only", False)), cfg.d_vocab
        self.example = (example or self._specimen()).to(next(inner.parameters()).device)
        self.attentions = self._delegations()
        self.delegates = bool(self.attentions)
        self.absent: dict[str, str] = {}
        self.hook_dict = {name: HookPoint() for name in self._names()}
        self._check()

    def _specimen(self) -> Batch:
        length = min(6, getattr(self.cfg, "n_ctx", 6))
        tokens = torch.randint(self.d_vocab, (2, length), generator=torch.Generator().manual_seed(0))
        return Batch(tokens, torch.full_like(tokens, UNREAD))

    def _names(self) -> list[str]:
        return [
            site.hook_name(layer)
            for site in SITES.values()
            for layer in (range(self.parts[""].n_layers) if site.layered else [None])
            if site.hook_name(layer) in self.inner.hook_dict or (self.delegates and site.name in ATTENTION)
        ]

    def _delegations(self) -> dict[int, list[Place]]:
        """The places of the modules that call transformers' attention function, in the order of their calls; none
        unless there is a call for every layer."""
        called: list[int] = []

        def note(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            called.append(id(module))
            return plain(module, *args, **kwargs)

        if self.original is None:
            return {}
        register()
        with evaluating(self.inner), torch.no_grad(), switched(self.original, note):
            self._forward(self.example)
        if len(called) != self.parts[""].n_layers:
            return {}
        return {module: [("", n) for n, one in enumerate(called) if one == module] for module in called}

    def _check(self) -> None:
        """What each hook carries, compared with the others, layer by layer, on the example."""
        carried: dict[tuple[str, int | None], Tensor] = {}
        handles = []
        for name in SITES:
            for layer in range(self.parts[""].n_layers) if SITES[name].layered else [None]:
                point = self.hook_dict.get(SITES[name].hook_name(layer))
                if point is not None:
                    key = (name, layer)
                    handles.append(
                        point.register_forward_hook(lambda _m, _i, x, key=key: carried.update({key: x.clone()}))
                    )
        with evaluating(self), torch.no_grad():
            clean = self.logits(self.example, None)
        for handle in handles:
            handle.remove()
        self.n_out = clean.shape[-1]
        blocks = getattr(self.inner, "blocks", None)
        for layer in range(self.parts[""].n_layers):
            here = {name: value for (name, one), value in carried.items() if one == layer}
            attention = None if blocks is None else getattr(blocks[layer], "attn", None)
            parallel = bool(getattr(self.cfg, "parallel_attn_mlp", False))
            for name, why in self._faults(here, attention, parallel).items():
                self._drop(name, layer, why)
        for name in [name for name, site in SITES.items() if self._missing(site)]:
            self.absent.setdefault(name, f"{type(self.inner).__name__} has no such hook")

    def _faults(self, here: dict[str, Tensor], attention: Any, parallel: bool) -> dict[str, str]:
        """The sites of a layer that do not carry what they say; scores at fault do not say what rows see either."""
        if "scores" in here:
            seen = (here["scores"] > rows.HIDDEN).any(1)
            found = faults(here, seen, attention, parallel, self.attn_only)
            if "scores" not in found:
                return found
        rest = {name: value for name, value in here.items() if name != "scores"}
        direct = faults(rest, self._direction(self.example), attention, parallel, self.attn_only)
        return direct if "scores" not in here else {"scores": found["scores"], **direct}

    def _missing(self, site: Any) -> bool:
        return site.hook_name(0 if site.layered else None) not in self.hook_dict

    def _drop(self, name: str, layer: int, reason: str) -> None:
        self.hook_dict.pop(SITES[name].hook_name(layer), None)
        self.absent[name] = reason[0].upper() + reason[1:]

    def _direction(self, batch: Batch) -> Tensor:
        """What rows read by the model's word for its direction, [batch dest source]."""
        n = batch.tokens.shape[1]
        whole = torch.ones(n, n, dtype=torch.bool, device=batch.device)
        seen = whole.tril() if getattr(self.cfg, "attention_dir", "causal") == "causal" else whole
        return seen & batch.valid[:, :, None] & batch.valid[:, None, :]

    def logits(self, batch: Batch, read: Tensor | None) -> Tensor:
        """[batch pos d_vocab], or [batch read d_vocab]."""
        passing = Passing(self)
        switch = nullcontext() if not self.delegates else switched(self.original, passing.attend)
        with switch, self._installed(passing), warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*edit is discarded.*")
            try:
                logits = self._forward(batch)
            except UserWarning as warning:
                raise InertIntervention(f"the model threw an edit away: {warning}") from warning
        for place in passing.emptied:
            self._check_silenced(place[1], passing.left_empty(place))
        if read is None:
            return logits
        return logits[torch.arange(len(batch), device=logits.device)[:, None], read]

    def _forward(self, batch: Batch) -> Tensor:
        known = inspect.signature(self.inner.forward).parameters
        inputs: dict[str, Any] = dict(batch.inputs)
        if not bool(batch.valid.all()):
            if "attention_mask" not in known:
                raise ValueError(f"{type(self.inner).__name__} takes no attention_mask, and this batch has padding")
            inputs["attention_mask"] = batch.valid.long()
            count = (batch.valid.cumsum(1) - 1).clamp_min(0)
            places = torch.arange(count.shape[1], device=count.device)
            if bool(((count != places) & batch.valid).any()):
                if self.original is None or "position_ids" not in inspect.signature(self.original.forward).parameters:
                    raise ValueError(f"{type(self.inner).__name__} counts places in the row; pad on the right")
                inputs["position_ids"] = count
        out = self.inner(batch.tokens, **inputs)
        return out if isinstance(out, Tensor) else out.logits

    @contextmanager
    def _installed(self, passing: Passing) -> Iterator[None]:
        """Our hooks on the model's own, only where a point is heard; they go, whatever happens."""
        handles: list[Any] = []
        try:
            for site in SITES.values():
                for layer in self._layers(site):
                    if self._heard(site.name, layer):
                        handles += [_hooked(*one) for one in self._changes(site.name, layer, passing)]
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _layers(self, site: Any) -> list[int | None]:
        return list(range(self.parts[""].n_layers)) if site.layered else [None]

    def _heard(self, name: str, layer: int | None) -> bool:
        point = self.hook_dict.get(SITES[name].hook_name(layer))
        return point is not None and bool(point._forward_hooks)

    def _module(self, name: str, layer: int | None) -> nn.Module:
        return self.inner.hook_dict[SITES[name].hook_name(layer)]

    def _changes(
        self, name: str, layer: int | None, passing: Passing
    ) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
        """The model's hooks that have to act so that a site's tensor passes our point, and what each does."""
        point = self.hook_dict[SITES[name].hook_name(layer)]
        if self.delegates and name in ATTENTION:
            if name == "scores" and SITES["attn_out"].hook_name(layer) in self.hook_dict:
                yield self._module("attn_out", layer), lambda raw: _silenced(raw, passing.left_empty(("", layer or 0)))
            return
        if name != "scores":
            yield self._module(name, layer), lambda raw: self._through(point, name, raw)
            return
        emptied: list[Tensor] = []

        def scores(raw: Tensor) -> Tensor:
            hidden = _masked(raw)
            before = raw.masked_fill(hidden, rows.HIDDEN)
            after = point(before.clone())
            if not after.requires_grad and torch.equal(after, before):
                return raw
            empty = (after == rows.HIDDEN).all(-1) & ~hidden.all(-1)
            self._check_silenced(layer, empty.all(1))
            emptied.append(empty)
            # The model's own softmax would make NaN of an empty row, or look at the future: its weights are zeroed.
            return torch.where(empty[..., None], raw, after)

        def pattern(raw: Tensor) -> Tensor:
            empty = emptied[-1] if emptied else None
            return raw if empty is None or not empty.any() else raw.masked_fill(empty[..., None], 0.0)

        def attn_out(raw: Tensor) -> Tensor:
            return _silenced(raw, emptied.pop().all(1)) if emptied else raw

        yield self._module("scores", layer), scores
        for other, change in (("pattern", pattern), ("attn_out", attn_out)):
            if SITES[other].hook_name(layer) in self.hook_dict:
                yield self._module(other, layer), change

    def _check_silenced(self, layer: int | None, empty: Tensor) -> None:
        if bool(empty.any()) and SITES["attn_out"].hook_name(layer) not in self.hook_dict:
            raise InertIntervention(
                f"every head's row was left empty in layer {layer}, and the output bias, which has to go then, is out "
                f"of reach: {self.absent.get('attn_out', 'no hook')}. Leave a source in some head's row"
            )

    def _through(self, point: HookPoint, name: str, raw: Tensor) -> Tensor:
        split = name in ("q", "k", "v", "z") and raw.ndim == 3
        heads = self.parts[""].heads_at(name)
        shown = rearrange(raw, "b pos (head d_head) -> b pos head d_head", head=heads) if split else raw
        out = point(shown.clone())
        if not out.requires_grad and torch.equal(out, shown):
            return raw
        return rearrange(out, "b pos head d_head -> b pos (head d_head)") if split else out

    def check(self, batch: Batch) -> None:
        """Raises ValueError for padding that the model cannot be told of."""
        if not bool(batch.valid.all()):
            with evaluating(self), torch.no_grad():
                self._forward(batch.select(slice(0, 1)))

    def usable(self, name: str, layer: int | None) -> bool:
        """Whether a site's tensor may be computed with in proofs."""
        return SITES[name].hook_name(layer) in self.hook_dict

    def sees(self, batch: Batch, part: str, layer: int) -> Tensor:
        """Which sources each destination reads, [batch dest source]: as scores show, or by the model's direction."""
        key = SITES["scores"].hook_name(layer)
        if key not in self.hook_dict:
            return self._direction(batch)
        found: list[Tensor] = []
        handle = self.hook_dict[key].register_forward_hook(lambda _m, _i, x: found.append((x > rows.HIDDEN).any(1)))
        try:
            with evaluating(self), torch.no_grad():
                self.logits(batch, None)
        finally:
            handle.remove()
        return found[0] & batch.valid[:, :, None] & batch.valid[:, None, :]


def _silenced(raw: Tensor, empty: Tensor) -> Tensor:
    """The attention's output [batch dest d_model], nothing where every head's row is empty [batch dest]."""
    return raw.masked_fill(empty[..., None], 0.0) if bool(empty.any()) else raw


def _masked(raw: Tensor) -> Tensor:
    """Which scores a model's mask has hidden: −∞, or the huge negative numbers that stand for it."""
    return raw <= torch.finfo(raw.dtype).min / 2


def _hooked(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Any:
    return module.register_forward_hook(lambda _module, _inputs, output: change(output))
