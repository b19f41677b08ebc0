"""This workbench around the decoder of an encoder–decoder, as a behaviour uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses.tools.ours import Ours
from analyses.tools.protocol import LAYERS, Place, Unoffered
from workbench import Batch, EncoderDecoder, EncoderDecoderConfig, Mask
from workbench.sites import CROSS, SITES

WORDS = (3, 7, 1, 9, 4, 0)
"""The context of every example; the last is padding."""


class Pair(Ours):
    """The workbench around an encoder–decoder: its places are the decoder's, and those of the attention to a context
    that is the same for every example."""

    part = "decoder"
    misspelt = (("decoder.patern", 0), "decoder.pattern")
    positions: tuple[Any, ...] = (None,)

    def _built(self, **changes: Any) -> EncoderDecoder:
        decoder = self._config(**changes)
        encoder = decoder.model_copy(update={"n_layers": 1, "masks": (Mask(causal=False),)})
        return EncoderDecoder(EncoderDecoderConfig(encoder=encoder, decoder=decoder), seed=0)

    def given(self, batch: Batch) -> Batch:
        tokens = torch.tensor(WORDS, device=batch.device).expand(len(batch), -1)
        valid = (torch.arange(len(WORDS), device=batch.device) < len(WORDS) - 1).expand_as(tokens)
        return batch.with_context(Batch(tokens, torch.full_like(tokens, -100), valid))

    def located(self, where: Any) -> Any:
        return where.model_copy(update={"stack": "decoder"})

    @property
    def places(self) -> list[Place]:
        """In the order in which they are computed: within a layer the crossing stands before the MLP."""
        own = super().places
        crossing = [(f"cross.{name}", layer) for name in SITES if name in CROSS for layer in range(LAYERS)]
        after = [place for place in own if place[0].startswith("mlp") or place[0] == "resid_post"]
        return [*(place for place in own if place not in after), *crossing, *after]

    def probe(self) -> dict[Place, str]:
        """As around other models; the encoder's sites are not among the places."""
        return {
            (name.removeprefix("decoder."), layer): status
            for (name, layer), status in super().probe().items()
            if not name.startswith("encoder.")
        }

    def top_and_control(self, batch: Batch, layer: int, head: int, dest: str, seed: int) -> tuple[Tensor, Tensor]:
        raise Unoffered("offers no top source in one part of a model with several")

    def study(self, task: Any, conditions: Mapping[str, Sequence[Any]], n: int) -> pd.DataFrame:
        return super().study(self._reading(task), conditions, n)

    def _reading(self, task: Any) -> Any:
        """The task with a context."""
        same = ("name", "MEANING", "vocabulary", "length", "guessing", "model_dump")
        return SimpleNamespace(
            **{name: getattr(task, name) for name in same},
            sample=lambda n, seed: self.given(task.sample(n, seed)),
            corrupt=lambda batch, seed: self.given(task.corrupt(batch, seed)),
        )
