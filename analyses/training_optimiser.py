"""What it saves to call the fused optimiser directly: two models trained in turns, a step each."""

from __future__ import annotations

import time
from collections.abc import Callable

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from analyses.training_ways import config
from tasks.lookup import Lookup
from workbench import Recipe
from workbench.fitting import AdamW, fresh, training_batches

WARM = 20
"""First steps that are not counted."""


def saving(steps: int = 220) -> pd.Series:
    """Processor milliseconds a step with `torch.optim.AdamW` less those with `fit`'s own, over pairs of the same step:
    median, lower and upper quartile. Raises AssertionError where the weights are not the same, bit for bit."""
    recipe = Recipe(steps=steps)
    ours, other = (fresh(config(), 0).train() for _ in range(2))
    own = AdamW(list(ours.parameters()), recipe)
    theirs = torch.optim.AdamW(
        other.parameters(), lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay,
        fused=True,
    )  # fmt: skip

    def directly(loss: Tensor, rate: float) -> None:
        own.descend(loss, rate)

    def by_torch(loss: Tensor, rate: float) -> None:
        theirs.param_groups[0]["lr"] = rate
        theirs.zero_grad()
        loss.backward()
        theirs.step()

    apart = []
    for step, (parts, read, labels) in enumerate(training_batches(Lookup(), recipe, 0)):
        turns: list[tuple[str, Callable[..., Tensor], Callable[[Tensor, float], None]]]
        turns = [("ours", ours, directly), ("torch", other, by_torch)]
        spent = {}
        for name, model, descend in turns if step % 2 else turns[::-1]:
            begun = time.process_time()
            descend(F.cross_entropy(model(**parts, read=read).flatten(0, 1), labels.flatten()), recipe.rate(step))
            spent[name] = time.process_time() - begun
        apart.append(1e3 * (spent["torch"] - spent["ours"]))
    for name, value in ours.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), f"{name} is not what torch.optim.AdamW makes of it"
    return pd.Series(apart[WARM:]).quantile([0.5, 0.25, 0.75]).set_axis(["median", "q1", "q3"])
