"""This workbench, as a behaviour uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from einops import einsum, repeat
from torch import Tensor, nn

import workbench
from analyses.tools.protocol import D_MODEL, D_VOCAB, LAYERS, LENGTH, PAST, Moment, Objective, Place
from workbench import Batch, Edges, Heads, ModelConfig, Transformer
from workbench.checkpoints import Trained, provenance
from workbench.devices import choose
from workbench.metrics import log_prob
from workbench.sites import SITES, in_part
from workbench.statistics import Interval, mean_interval
from workbench.tables import to_csv, to_latex, to_markdown

Norm = Literal["post", "pre", "none"]


class Ours:
    """The workbench around one of its own models of one stack, a decoder unless its masks say otherwise.

    reads: which sources each destination may read, [dest source]; more: what else its configuration says.
    """

    name = "ours"
    part = ""
    misspelt = (("patern", 0), "pattern")
    positions: tuple[Any, ...] = ("learned", "none")

    def __init__(self, norm: Norm = "pre", n_heads: int = 3, model: Any = None, *, reads: Tensor = PAST, **more: Any):
        self.norm, self.n_heads, self.reads, self.more = norm, n_heads, reads, more
        if "positions" in more:
            self.positions = (more["positions"],)
        self.module: Any = self._model() if model is None else model

    def _model(self, *, dtype: torch.dtype = torch.float32, dropout: float = 0.0, **changes: Any) -> Any:
        model = self._built(**changes)
        for name, parameter in model.named_parameters():
            if name.endswith("W_rel"):
                nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
        if dropout:
            for block in model.stack(self.part).blocks:
                block.mlp.act = nn.Sequential(nn.GELU(), nn.Dropout(dropout))
        return model.to(dtype)

    def _built(self, **changes: Any) -> Any:
        return Transformer(self._config(**changes), seed=0)

    def _config(self, **changes: Any) -> ModelConfig:
        plain = {"d_vocab": D_VOCAB, "n_ctx": LENGTH, "d_model": D_MODEL, "n_layers": LAYERS, "act_fn": "gelu"}
        return ModelConfig(**{**plain, "n_heads": self.n_heads, "norm": self.norm, **self.more, **changes})

    def fresh(self, **changes: Any) -> Ours:
        return type(self)(self.norm, self.n_heads, self._model(**changes), reads=self.reads, **self.more)

    def given(self, batch: Batch) -> Batch:
        """A batch as the model reads it."""
        return batch

    def located(self, where: Any) -> Any:
        """A location as the model is told of it."""
        return where

    @property
    def places(self) -> list[Place]:
        layers: dict[bool, Sequence[int | None]] = {True: range(LAYERS), False: [None]}
        found = [(name, layer) for name, site in SITES.items() for layer in layers[site.layered]]
        return [place for place in found if self._hook_name(place) in self.module.hook_dict]

    def spelling(self, place: Place) -> str:
        return place[0] if "." in place[0] else in_part(self.part, place[0])

    def _spelt(self, place: Place) -> Any:
        name = self.spelling(place)
        return name if place[1] is None else (name, place[1])

    def _hook_name(self, place: Place) -> str:
        part, _, bare = self.spelling(place).rpartition(".")
        return in_part(part, SITES[bare].hook_name(place[1]))

    @property
    def idle_keyword(self) -> dict[str, Any]:
        tokens = torch.zeros(1, LENGTH, dtype=torch.long)
        return {"donors": {"unused": self.given(Batch(tokens, tokens))}}

    # Runs

    def run(self, batch: Batch, edits: Sequence[Any] = (), **more: Any) -> Tensor:
        return workbench.run(self.module, self.given(batch), list(edits), **more).logits

    def record(
        self, batch: Batch, places: Sequence[Place], edits: Sequence[Any] = (), *, moment: Moment = "after"
    ) -> Mapping[Place, Tensor]:
        return self._recorded(batch, places, list(edits), moment=moment)

    def _recorded(self, batch: Batch, places: Sequence[Place], edits: Sequence[Any] = (), **more: Any) -> Any:
        told = workbench.record(self.module, self.given(batch), list(map(self._spelt, places)), edits, **more)
        return {place: told[self._spelt(place)] for place in places}

    def matching(self, batch: Batch, text: str) -> Mapping[Place, Tensor]:
        return workbench.record(self.module, self.given(batch), [text]).values

    def gradients(self, batch: Batch, places: Sequence[Place], of: Objective) -> Mapping[Place, Tensor]:
        sites = {place: self._spelt(place) for place in places}
        told = workbench.record(self.module, self.given(batch), list(sites.values()), gradients_of=of).gradients
        return {place: told[site if isinstance(site, tuple) else (site, None)] for place, site in sites.items()}

    def skipping(self, batch: Batch, edits: Sequence[Any]) -> tuple[Tensor, list[int], Mapping[int, str]]:
        """Logits of the examples that ran, their indices, and the others' reasons."""
        out = workbench.run(self.module, self.given(batch), list(edits), on_missing="skip")
        return out.logits, out.kept.tolist(), out.skipped

    def add_hook(self, place: Place, fn: Callable[[Tensor], Tensor | None]) -> None:
        self.module.hook_dict[self._hook_name(place)].add_hook(lambda value, hook: fn(value))

    # Edits

    def function(self, place: Place, fn: Callable[[Tensor], Any]) -> Any:
        return workbench.custom(self._spelt(place), fn)

    def cut(self, edges: Edges, **options: Any) -> Any:
        return workbench.cut(self.located(edges), **options)

    def uniform(self, edges: Edges) -> Any:
        return workbench.uniform(self.located(edges))

    def zero(self, edges: Edges) -> Any:
        return workbench.zero(self.located(edges))

    def ablate(self, layer: int, head: int) -> Any:
        return workbench.zero(self.located(Heads(layer=layer, head=head, part="z")))

    def label(self, edit: Any) -> str:
        return str(edit)

    def role_mean(self, batch: Batch, reference: Batch, layer: int, role: str) -> Mapping[Place, Tensor]:
        edit = workbench.mean(self.located(Heads(layer=layer, pos=role, part="z")), donor="reference")
        return self._recorded(batch, [("z", layer)], [edit], donors={"reference": self.given(reference)})

    def resampled(self, batch: Batch, layer: int, role: str, seed: int) -> Tensor:
        edit = workbench.resample(self.located(Heads(layer=layer, pos=role, part="z")), donor="batch", seed=seed)
        return self._recorded(batch, [("z", layer)], [edit], donors={"batch": self.given(batch)})["z", layer]

    def top_and_control(self, batch: Batch, layer: int, head: int, dest: str, seed: int) -> tuple[Tensor, Tensor]:
        derived = {
            "top": workbench.top_source(layer, head, dest),
            "control": workbench.control_of("top", seed=seed),
        }
        out = workbench.derive(self.module, batch, derived, on_missing="skip")
        return out.relations["top"], out.relations["control"]

    # Weights and other models

    @torch.no_grad()
    def sharpen(self, by: float) -> None:
        for block in self.module.stack(self.part).blocks:
            for name in ("W_Q", "W_K", "b_Q", "b_K"):
                getattr(block.attn, name).mul_(by)

    @torch.no_grad()
    def fold_value_bias(self) -> None:
        for block in self.module.stack(self.part).blocks:
            attn = block.attn
            shared = repeat(attn.b_V, "kv d -> (kv group) d", group=self.n_heads // len(attn.b_V))
            attn.b_O += einsum(shared, attn.W_O, "head d, head d d_model -> d_model")
            attn.b_V.zero_()

    def wrong_sum(self) -> Ours:
        """The tool around a model whose `resid_mid` is no sum of what its sites say."""
        tool = self.fresh()
        point = tool.module.stack(self.part).blocks[1].hook_resid_mid
        point.register_forward_pre_hook(lambda _m, inputs: (inputs[0] * 1.5,))
        return tool

    def adopt(self, model: nn.Module) -> Ours:
        """The tool around a model of another library."""
        from analyses.tools.wrapped import Wrapped

        return Wrapped(lambda: model)

    def probe(self) -> dict[Place, str]:
        """Whether each site is "live", "read-only" or "absent" in this model."""
        return {(row.site, row.layer): row.status for row in workbench.probe(self.module)}

    # Numbers, tables, pictures

    def choose_device(self, name: str) -> torch.device:
        return choose(name)

    def device_model(self) -> type[nn.Module]:
        """The class of the small model by which a device is compared with the CPU."""
        return Transformer

    def metric(self, logits: Tensor, batch: Batch) -> Tensor:
        return log_prob(logits, batch)

    def interval(self, values: Sequence[np.ndarray]) -> Interval:
        return mean_interval(list(values))

    def study(self, task: Any, conditions: Mapping[str, Sequence[Any]], n: int) -> pd.DataFrame:
        """The results of a study that leaves out, and counts, what cannot be intervened on."""
        trained = Trained(self.module, 0, Path("unsaved"), [], {})
        study = workbench.Study(
            conditions={label: tuple(edits) for label, edits in conditions.items()}, n=n, data_seed=0, on_missing="skip"
        )
        return workbench.run_study(study, task, {"model": [trained]}, progress=False)[0]

    def provenance(self, task: Any) -> dict[str, Any]:
        """Everything that is recorded of where a study's numbers come from."""
        return {"made with": provenance(), "results": dict(self.study(task, {"clean": ()}, n=2).attrs)}

    def summary(self, frame: pd.DataFrame) -> pd.DataFrame:
        return workbench.summary(frame)

    def tests(self, frame: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
        return workbench.paired_tests(frame, pairs, "accuracy")

    def tables(self, frame: pd.DataFrame) -> dict[str, str]:
        return {"Markdown": to_markdown(frame), "CSV": to_csv(frame), "LaTeX": to_latex(frame)}

    def grid(self, pattern: Any, sources: Sequence[str], dests: Sequence[str], **options: Any) -> Any:
        from workbench.figures import pattern_grid

        return pattern_grid(pattern, sources, dests, **options)

    def exported(self, figure: Any) -> dict[str, bytes]:
        """The figure in every format there is, by name."""
        from workbench import figures

        names = {name.removeprefix("to_"): name for name in figures.__all__ if name.startswith("to_")}
        return {kind: getattr(figures, name)(figure) for kind, name in names.items()}
