"""A group of conditions computed a few examples at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workbench.clean import Clean
from workbench.groups import Group

ROWS_TOGETHER = 32768
"""Rows of a layer that are computed together: few enough for a cache, enough for a matrix product."""


@torch.no_grad()
def computed(model: Any, group: Group, clean: Clean) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of a group [cell example read d_vocab]; for each cell and edit whether it changed nothing anywhere
    [cell edit]; for each cell whether one of several edits changed nothing where it might have [cell]."""
    from workbench.models.rowwise import RowPass

    n, size = len(clean), max(1, ROWS_TOGETHER // (len(group.cells) * group.most))
    logits = clean.logits.new_empty(len(group.cells), *clean.logits.shape)
    idle = torch.ones(len(group.cells), group.n_edits, dtype=torch.bool, device=logits.device)
    doubtful = torch.zeros(len(group.cells), dtype=torch.bool, device=logits.device)
    for at in range(0, n, size):
        examples = slice(at, min(at + size, n))
        one = RowPass(model, group, clean.of(examples), examples)
        logits[:, examples] = one.logits().movedim(1, 0)
        idle &= one.idle
        doubtful |= one.doubtful
    return logits, idle, doubtful
