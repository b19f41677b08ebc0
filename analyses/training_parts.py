"""Where a training step's time goes: data, forward, backward, optimiser."""

from __future__ import annotations

import time
from itertools import pairwise

import pandas as pd
import torch.nn.functional as F

from analyses.training_ways import config
from tasks.lookup import Lookup
from workbench import Recipe
from workbench.fitting import AdamW, fresh, training_batches

PARTS = ("data", "forward", "backward", "optimiser")
WARM = 10
"""First steps that are not counted."""


def parts(steps: int = 110) -> pd.DataFrame:
    """A row a part of a step of the lecture's model: processor milliseconds, the mean over steps (data are drawn for
    many steps at once), and its share of them all."""
    recipe, rows = Recipe(steps=steps), []
    model = fresh(config(), 0).train()
    optimiser = AdamW(list(model.parameters()), recipe)
    batches = training_batches(Lookup(), recipe, 0)
    for step in range(steps):
        ticks = [time.process_time()]
        given, read, labels = next(batches)
        ticks.append(time.process_time())
        loss = F.cross_entropy(model(**given, read=read).flatten(0, 1), labels.flatten())
        ticks.append(time.process_time())
        for one in optimiser.parameters:
            one.grad = None
        loss.backward()
        ticks.append(time.process_time())
        optimiser.move(recipe.rate(step))
        ticks.append(time.process_time())
        rows.append([1e3 * (after - before) for before, after in pairwise(ticks)])
    means = pd.DataFrame(rows[WARM:], columns=list(PARTS)).mean()
    shares = (100 * means / means.sum()).round(1)
    return pd.DataFrame({"part": PARTS, "ms a step": means.round(3).to_numpy(), "share %": shares.to_numpy()})
