"""TransformerLens 4 as its documentation has it used: `run_with_hooks`, `get_caching_hooks`, `hooks`, `add_hook`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from analyses.tools.protocol import LAYERS, ByHand, Edit, Moment, Objective, Place, padding_mask
from workbench import Batch
from workbench.sites import SITES


class Bridge(ByHand):
    """A TransformerBridge; what `native_bridge` and `gpt2_bridge` share."""

    name = "TransformerLens bridge"
    n_heads = 3
    misspelt = (("patern", 0), "hook_pattern")
    idle_keyword: Mapping[str, Any] = {"loss_per_token": True}

    def __init__(self, module: Any):
        self.module = module
        try:
            module.set_use_attn_result(True)
            self.absent: tuple[str, ...] = ()
        except NotImplementedError:  # TransformerLens says so of models whose heads' results it cannot compute
            self.absent = ("result",)

    def fresh(self, **changes: Any) -> Bridge:
        raise NotImplementedError

    @property
    def places(self) -> list[Place]:
        layers: dict[bool, Sequence[int | None]] = {True: range(LAYERS), False: [None]}
        found = [(name, layer) for name, site in SITES.items() for layer in layers[site.layered]]
        there = self.module.hook_dict
        return [place for place in found if self.spelling(place) in there and place[0] not in self.absent]

    def spelling(self, place: Place) -> str:
        name, layer = place
        return SITES[name].hook_name(layer) if name in SITES else f"blocks.{layer}.attn.hook_{name}"

    def run(self, batch: Batch, edits: Sequence[Edit] = (), **more: Any) -> Tensor:
        hooks = self._hooks(batch, edits)
        return self.module.run_with_hooks(batch.tokens, fwd_hooks=hooks, **padding_mask(batch), **more).detach()

    def record(
        self, batch: Batch, places: Sequence[Place], edits: Sequence[Edit] = (), *, moment: Moment = "after"
    ) -> Mapping[Place, Tensor]:
        names = {self.spelling(place): place for place in places}
        cache, caching, _ = self.module.get_caching_hooks(list(names))
        hooks = self._hooks(batch, edits)
        hooks = hooks + caching if moment == "after" else caching + hooks
        self.module.run_with_hooks(batch.tokens, fwd_hooks=hooks, **padding_mask(batch))
        return {place: cache[name] for name, place in names.items()}

    def matching(self, batch: Batch, text: str) -> Mapping[str, Tensor]:
        return dict(self.module.run_with_cache(batch.tokens, names_filter=lambda name: text in name)[1])

    def gradients(self, batch: Batch, places: Sequence[Place], of: Objective) -> Mapping[Place, Tensor]:
        names = {self.spelling(place): place for place in places}
        cache, forward, backward = self.module.get_caching_hooks(list(names), incl_bwd=True)
        with self.module.hooks(fwd_hooks=forward, bwd_hooks=backward):
            of(self.module(batch.tokens, **padding_mask(batch)), batch).sum().backward()
        self.module.zero_grad()
        return {place: cache[f"{name}_grad"] for name, place in names.items()}

    def add_hook(self, place: Place, fn: Callable[[Tensor], Tensor | None]) -> None:
        self.module.add_hook(self.spelling(place), lambda value, hook: fn(value))

    def _hooks(self, batch: Batch, edits: Sequence[Edit]) -> list[tuple[str, Callable[..., Any]]]:
        def edited(value: Tensor, hook: Any, edit: Edit) -> Any:
            return edit.fn(value, batch)

        return [(self.spelling(edit.place), partial(edited, edit=edit)) for edit in edits]
