"""Every layer's attention weights of a batch, recorded: ours, and what other tools offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from analyses.benchmark_cases import BRIDGE, HOOKS, LENS, NNSIGHT, OURS
from analyses.benchmark_sweeps import Sweep
from analyses.benchmark_timing import Answers, Contestant, tried
from workbench import record

Patterns = Callable[[slice], Mapping[str, Tensor]]
"""Weights [batch head dest source] of some examples, by layer."""


def contestants(sweep: Sweep, bridged: Sweep, sizes: Sequence[int]) -> list[Contestant]:
    """Ours and four others on a sweep's model and batch; the native bridge is compared with ours on `bridged`."""
    own, other = "this workbench, the bridge's weights", OURS
    return [
        Contestant(other, _ours(sweep), note='record(["pattern"])'),
        _chunked(HOOKS, sweep, _torch_hooks(sweep), sizes, other),
        _chunked(LENS, sweep, _lens(sweep.model, sweep), sizes, other),
        _chunked(NNSIGHT, sweep, _nnsight(sweep), sizes, other),
        Contestant(own, _ours(bridged), rounds=0),
        _chunked(BRIDGE, bridged, _lens(bridged.bridge, bridged), sizes, own),
    ]


def _ours(sweep: Sweep) -> Callable[[], Answers]:
    def work() -> Answers:
        found = record(sweep.model, sweep.batch, ["pattern"])
        return {str(layer): found["pattern", layer] for layer in _layers(sweep)}

    return work


def _chunked(name: str, sweep: Sweep, patterns: Patterns, sizes: Sequence[int], against: str) -> Contestant:
    n = len(sweep.batch)

    def through(size: int) -> Answers:
        with torch.inference_mode():
            parts = [patterns(slice(at, min(at + size, n))) for at in range(0, n, size)]
            return {str(layer): torch.cat([part[str(layer)] for part in parts]) for layer in _layers(sweep)}

    chunks = tried(lambda size: lambda: through(size), [min(one, n) for one in sizes])
    return Contestant(name, lambda: through(chunks.best), against, note=str(chunks))


def _torch_hooks(sweep: Sweep) -> Patterns:
    model: Any = sweep.plain

    def patterns(examples: slice) -> Mapping[str, Tensor]:
        kept: dict[str, Tensor] = {}

        def keep(layer: int) -> Any:
            def hook(_module: Any, _given: Any, out: Tensor) -> None:
                kept[str(layer)] = out.clone()

            return hook

        handles = [block.pattern.register_forward_hook(keep(layer)) for layer, block in enumerate(model.blocks)]
        try:
            model(sweep.batch.tokens[examples])
        finally:
            for handle in handles:
                handle.remove()
        return kept

    return patterns


def _lens(model: Any, sweep: Sweep) -> Patterns:
    names = {f"blocks.{layer}.attn.hook_pattern": str(layer) for layer in _layers(sweep)}

    def patterns(examples: slice) -> Mapping[str, Tensor]:
        _, cache = model.run_with_cache(sweep.batch.tokens[examples], names_filter=lambda name: name in names)
        return {layer: cache[name] for name, layer in names.items()}

    return patterns


def _nnsight(sweep: Sweep) -> Patterns:
    import nnsight

    traced = nnsight.NNsight(sweep.plain)

    def patterns(examples: slice) -> Mapping[str, Tensor]:
        kept: dict[str, Tensor] = {}
        with traced.trace(sweep.batch.tokens[examples]):
            for layer in _layers(sweep):
                kept[str(layer)] = traced.blocks[layer].pattern.output.clone()
        return kept

    return patterns


def _layers(sweep: Sweep) -> range:
    return range(sweep.model.config.n_layers)
