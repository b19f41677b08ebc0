"""What an own model's `forward` is given of a batch."""

from __future__ import annotations

from torch import Tensor

from workbench.batch import Batch

Given = dict[str, Tensor]
"""By name: tokens [batch pos], and where there are any, valid [batch pos], patches [batch pos−1 d_patch], context and
context_valid [batch context_pos]."""


def padded(valid: Tensor) -> Tensor | None:
    """`valid` [batch pos] where something is padding, else None."""
    return None if bool(valid.all()) else valid


def given(batch: Batch) -> Given:
    """The parts of a batch that a model computes with; `valid` only where something is padding."""
    out, valid = {"tokens": batch.tokens, **batch.inputs}, {"valid": batch.valid}
    if batch.context is not None:
        out["context"], valid["context_valid"] = batch.context.tokens, batch.context.valid
    return out if all(bool(one.all()) for one in valid.values()) else out | valid
