"""This workbench around models of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

import workbench
from analyses.tools import gpt2
from analyses.tools.ours import Ours


class Wrapped(Ours):
    """The workbench around a model of another library, which `build` makes anew; GPT-2 where weights are changed."""

    positions: tuple[Any, ...] = (None,)

    def __init__(self, build: Callable[..., nn.Module], **changes: Any):
        self.build = build
        super().__init__(model=workbench.wrap(build(**changes)))
        self.n_heads = self.module.parts[""].n_heads

    def fresh(self, **changes: Any) -> Wrapped:
        return type(self)(self.build, **changes)

    def wrong_sum(self) -> Wrapped:
        """Around a model in which the stream is given another attention update than its output projection wrote."""

        def build() -> nn.Module:
            model: Any = self.build()
            model.transformer.h[1].attn.register_forward_hook(lambda _m, _g, out: (out[0] * 1.5, *out[1:]))
            return model

        return Wrapped(build)

    def sharpen(self, by: float) -> None:
        model = self.build()
        gpt2.sharpen(model, by)
        self.module = workbench.wrap(model)

    def fold_value_bias(self) -> None:
        model = self.build()
        gpt2.fold_value_bias(model)
        self.module = workbench.wrap(model)
