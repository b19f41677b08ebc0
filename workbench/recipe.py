"""The recipe of a training: optimiser, learning rate over the steps, and when it ends."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import ConfigDict, Field

from workbench.fields import Named


class Recipe(Named):
    """How a model is trained: AdamW, linear warm-up, cosine to zero, cross-entropy at the positions that are read.

    lr: the peak rate. warmup: steps in which the rate rises to it. curve_every: steps between points of the curve.
    dropout: the share of numbers that is put to 0 (the rest scaled up) in what each attention and each MLP adds to the
    residual stream and in what enters it (Vaswani et al. 2017, section 5.4); in training only. label_smoothing: the
    share of the target that is spread over all tokens (Szegedy et al. 2016, section 7).
    stop_at: training ends at the first point of the curve whose batch reaches this accuracy (None: never early).

    >>> recipe = Recipe(steps=1000, lr=3e-3, warmup=100)
    >>> recipe.rate(0), recipe.rate(99), recipe.rate(1000)
    (3e-05, 0.003, 0.0)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(1000, ge=1)
    batch_size: int = Field(256, ge=1)
    lr: float = Field(3e-3, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    warmup: int = Field(100, ge=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    stop_at: float | None = Field(None, gt=0, le=1)
    curve_every: int = Field(10, ge=1)
    MEANING: ClassVar[int] = 2

    def rate(self, step: int) -> float:
        """The learning rate at a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        left = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.lr * 0.5 * (1 + math.cos(math.pi * left))
