"""Models with TransformerLens' hooks, bridges among them, made to run under interventions as our own do.

A hook's name is no promise: what each carries is compared with the others on first use, and a hook that is not what it
says is left out, with the reason.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from workbench import rows, witness
from workbench.anatomy import Part
from workbench.batch import UNREAD, Batch
from workbench.edits import InertIntervention
from workbench.hooks import evaluating
from workbench.liveness import measured
from workbench.models.calling import called, check_described, check_padding
from workbench.models.families import Unsupported
from workbench.models.identities import PARALLEL
from workbench.models.interface import plain, register, switched
from workbench.models.landing import PROVEN_HERE, Seen, discarded, faults_below, faults_of, misfired, seen_in, strays
from workbench.models.led import ATTENTION, Led
from workbench.models.passing import Passing, Place
from workbench.sites import SITES, Site


class Hooked(nn.Module):
    """A bridge or HookedRootModule under interventions; made by `wrap`.

    inner: the model itself; delegates: whether its attention is the Hugging Face model's own, reached through the
    attention interface; added_later: the layers whose hook at resid_mid stands on the MLP's way alone, so that an edit
    is made where attention is added to the stream. Sites that it does not have, or that do not carry what their name
    says, are in `absent`.
    """

    prover = witness
    reads_only = False
    by_position = True

    def __init__(self, inner: Any, tokenizer: Any, example: Batch | None):
        super().__init__()
        self.inner, self.tokenizer = inner, tokenizer or getattr(inner, "tokenizer", None)
        original = getattr(inner, "original_model", None)
        self.original: Any = original if hasattr(original, "config") else None
        self.cfg: Any = getattr(inner, "cfg", None)
        check_described(inner, self.cfg)
        cfg: Any = self.cfg
        self.parts = {"": Part(cfg.n_layers, cfg.n_heads, getattr(cfg, "n_key_value_heads", None) or cfg.n_heads)}
        self.attn_only, self.d_vocab = bool(getattr(cfg, "attn_only", False)), cfg.d_vocab
        self.says_causal = getattr(cfg, "attention_dir", "causal") == "causal"
        self.example = (example or self._specimen()).to(next(inner.parameters()).device)
        self.attentions = self._delegations()
        self.delegates = bool(self.attentions)
        self.absent: dict[str, str] = {}
        self.added_later: set[int] = set()
        self.deaf: dict[tuple[str, int | None], str] = {}
        self.settled = False
        self.hook_dict = {name: HookPoint() for name in self._names()}
        self._check()

    def _specimen(self) -> Batch:
        length = min(6, getattr(self.cfg, "n_ctx", 6))
        tokens = torch.randint(self.d_vocab, (2, length), generator=torch.Generator().manual_seed(0))
        return Batch(tokens, torch.full_like(tokens, UNREAD))

    def layers(self, site: Site) -> list[int | None]:
        """The layers in which a site may stand; None where it stands once."""
        return list(range(self.parts[""].n_layers)) if site.layered else [None]

    def _names(self) -> list[str]:
        named = [(site, site.hook_name(layer)) for site in SITES.values() for layer in self.layers(site)]
        return [
            name for site, name in named if name in self.inner.hook_dict or (self.delegates and site.name in ATTENTION)
        ]

    def _delegations(self) -> dict[int, list[Place]]:
        """The places of the modules that call transformers' attention function, in the order of their calls; none
        unless there is a call for every layer."""
        asked: list[int] = []

        def note(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            asked.append(id(module))
            return plain(module, *args, **kwargs)

        if self.original is None:
            return {}
        register()
        with evaluating(self.inner), torch.no_grad(), switched(self.original, note):
            called(self.inner, self.original, self.example)
        if len(asked) != self.parts[""].n_layers:
            return {}
        return {module: [("", n) for n, one in enumerate(asked) if one == module] for module in asked}

    def _check(self) -> None:
        """What each hook carries, and where an edit of it goes, layer by layer, on the example."""
        seen = seen_in(self, self.example)
        self.n_out = self._width(seen)
        for key, why in misfired(self, seen).items():
            self._drop(*key, why)
        self.settled = True
        seen.values = {key: value for key, value in seen.values.items() if self.usable(*key)}
        for layer in range(self.parts[""].n_layers):
            for name, why in faults_of(self, seen, layer).items():
                self._drop(name, layer, why)
        for name, why in faults_below(self, seen).items():
            self._drop(name, None, why)
        for name in SITES:
            self._check_edits(seen, name)
        for name, site in SITES.items():
            if not any(self.usable(name, layer) for layer in self.layers(site)):
                parallel = name == "resid_mid" and getattr(self.cfg, "parallel_attn_mlp", False)
                said = _sentence(PARALLEL) if parallel else f"{type(self.inner).__name__} has no such hook"
                self.absent.setdefault(name, said)
        self._listen()

    def _width(self, seen: Seen) -> int:
        if seen.logits.ndim != 3 or seen.logits.shape[:2] != self.example.tokens.shape:
            raise Unsupported(
                f"{type(self.inner).__name__} gives {list(seen.logits.shape)} for tokens "
                f"{list(self.example.tokens.shape)}; a hooked model gives logits at every position"
            )
        return seen.logits.shape[-1]

    def _check_edits(self, seen: Seen, site: str) -> None:
        found = strays(self, seen, site) if site in PROVEN_HERE else discarded(self, site)
        if site == "resid_mid" and found:
            sum_of = ("resid_pre", "attn_out")
            self.added_later = {n for _, n in found if n is not None and all(self.usable(one, n) for one in sum_of)}
            found = strays(self, seen, site)
        for key, why in found.items():
            self._drop(*key, why)

    def _listen(self) -> None:
        """Notes where weights or the attention's output are deaf, so that no row can be emptied there."""
        for layer in range(self.parts[""].n_layers):
            for name in ("pattern", "attn_out"):
                both = self.usable("scores", layer) and self.usable(name, layer)
                if both and (one := measured(self, (name, layer))).status != "live":
                    self.deaf[name, layer] = f"{name} is {one.status}"

    def _drop(self, name: str, layer: int | None, reason: str) -> None:
        self.hook_dict.pop(SITES[name].hook_name(layer), None)
        self.absent[name] = _sentence(reason)

    def direction(self, batch: Batch) -> Tensor:
        """What rows read by the model's word for its direction, [batch dest source]."""
        n = batch.tokens.shape[1]
        whole = torch.ones(n, n, dtype=torch.bool, device=batch.device)
        return (whole.tril() if self.says_causal else whole) & batch.valid[:, :, None] & batch.valid[:, None, :]

    def logits(self, batch: Batch, read: Tensor | None) -> Tensor:
        """[batch pos d_vocab], or [batch read d_vocab]."""
        passing = Passing(self)
        led = Led(self, passing, batch.valid)
        switch = nullcontext() if not self.delegates else switched(self.original, passing.attend)
        with switch, led.installed(), warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*edit is discarded.*")
            try:
                logits = called(self.inner, self.original, batch)
            except UserWarning as warning:
                raise InertIntervention(f"the model threw an edit away: {warning}") from warning
        if self.settled:
            led.check_fired()
        for place in passing.emptied:
            self.check_silenced(place[1], passing.left_empty(place)[:, None])
        if read is None:
            return logits
        return logits[torch.arange(len(batch), device=logits.device)[:, None], read]

    def check(self, batch: Batch) -> None:
        """Raises ValueError for padding that the model cannot be told of, or that changes what it says of the rest."""
        with evaluating(self), torch.no_grad():
            check_padding(self.inner, self.original, batch)

    def check_silenced(self, layer: int | None, empty: Tensor) -> None:
        """Raises InertIntervention where rows [batch head dest] that an edit emptied cannot be silenced."""
        if bool(empty.any()) and ("pattern", layer) in self.deaf:
            raise InertIntervention(f"a row was left empty in layer {layer}, and {self.deaf['pattern', layer]} there")
        reachable = self.usable("attn_out", layer) and ("attn_out", layer) not in self.deaf
        if bool(empty.all(1).any()) and not reachable:
            why = self.deaf.get(("attn_out", layer)) or self.absent.get("attn_out", "no hook")
            raise InertIntervention(
                f"every head's row was left empty in layer {layer}, and the output bias, which has to go then, is out "
                f"of reach: {why}. Leave a source in some head's row"
            )

    def usable(self, name: str, layer: int | None) -> bool:
        """Whether a site's tensor may be computed with in proofs."""
        return SITES[name].hook_name(layer) in self.hook_dict

    def sees(self, batch: Batch, part: str, layer: int) -> Tensor:
        """Which sources each destination reads, [batch dest source]: as scores show, or by the model's direction."""
        key = SITES["scores"].hook_name(layer)
        if key not in self.hook_dict:
            return self.direction(batch)
        found: list[Tensor] = []
        handle = self.hook_dict[key].register_forward_hook(lambda _m, _i, x: found.append((x > rows.HIDDEN).any(1)))
        try:
            with evaluating(self), torch.no_grad():
                self.logits(batch, None)
        finally:
            handle.remove()
        return found[0] & batch.valid[:, :, None] & batch.valid[:, None, :]


def _sentence(reason: str) -> str:
    return reason[0].upper() + reason[1:]
