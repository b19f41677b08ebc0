"""Sweeps that several test files make: without a bar, of the handmade lookup model and of small random ones."""

import torch
from handmade import lookup_by_hand
from small import TASK, small

from workbench.batch import Batch
from workbench.models.transformer import Transformer
from workbench.sweeping import sweep

HAND = lookup_by_hand(TASK)
FEW = TASK.sample(8, seed=3)


def quiet(*args, **kwargs):
    return sweep(*args, progress=False, **kwargs)


def several(n=2):
    return [Transformer(small().config, seed=seed).double() for seed in range(n)]


def padded():
    """Three examples of 4, 3 and 4 positions; the second ends in padding."""
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 0], [2, 1, 3, 4]])
    valid = torch.tensor([[True] * 4, [True, True, True, False], [True] * 4])
    labels = torch.where(valid, tokens, -100)
    return Batch(tokens, labels, valid, roles={"first": torch.tensor([[True, False, False, False]] * 3)})
