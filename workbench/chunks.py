"""A group of conditions computed a few examples at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workbench.clean import Clean
from workbench.groups import Group

ROWS, BYTES = 32768, 64 * 2**20
"""Rows of a layer that are computed together at the most, and bytes of what is made of them."""


def keep_freed_memory() -> None:
    """Has the allocator keep what is freed, up to 62 MiB, for what comes next: GNU's takes as its measure twice the
    largest block, up to 32 MiB, that came and went. Else each chunk begins with memory that is not there yet."""
    torch.empty(31 * 2**20, dtype=torch.uint8)


def rows_together(model: Any, n_sources: int) -> int:
    """Rows of a layer that are computed together: so many that a call's cost does not show, and no more than fit."""
    width = next(model.parameters()).element_size()
    heads = max(part.n_heads for part in model.parts.values())
    return max(1, min(ROWS, BYTES // (width * (8 * model.config.d_model + 3 * heads * n_sources))))


@torch.no_grad()
def computed(model: Any, group: Group, clean: Clean) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of a group [cell example read d_vocab]; for each cell and edit whether it changed nothing anywhere
    [cell edit]; for each cell whether one of several edits changed nothing where it might have [cell]."""
    from workbench.models.rowwise import RowPass

    together = rows_together(model, clean.scene.batch.tokens.shape[1])
    n, size = len(clean), max(1, together // (len(group.cells) * group.most))
    logits = clean.logits.new_empty(len(group.cells), *clean.logits.shape)
    idle = torch.ones(len(group.cells), group.n_edits, dtype=torch.bool, device=logits.device)
    doubtful = torch.zeros(len(group.cells), dtype=torch.bool, device=logits.device)
    with torch.inference_mode():
        for at in range(0, n, size):
            examples = slice(at, min(at + size, n))
            one = RowPass(model, group, clean.of(examples), examples)
            logits[:, examples] = one.logits().movedim(1, 0)
            idle &= one.idle
            doubtful |= one.doubtful
    return logits, idle, doubtful
