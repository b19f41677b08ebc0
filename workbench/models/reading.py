"""What a Hugging Face model is called with, made from a batch; batches that it would misread are refused."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.batch import Batch
from workbench.models.families import Family

_OURS = (
    "attention_mask", "cache_position", "decoder_attention_mask", "decoder_input_ids", "input_ids", "labels",
    "logits_to_keep", "num_logits_to_keep", "output_attentions", "output_hidden_states", "past_key_values",
    "position_ids", "return_dict", "use_cache",
)  # fmt: skip
"""Inputs that the batch itself says, or that say what comes out: handed over besides, they would contradict it."""


def inputs_of(inner: Any, family: Family, batch: Batch, pooled: bool) -> dict[str, Any]:
    """The keyword arguments of the model's forward.

    pooled: whether it has one output an example, which some families take at the last token that is not padding.
    Raises ValueError for padding that the model cannot be told of, or would count as positions, and for inputs that it
    does not take or that contradict the batch.
    """
    config, main = inner.config, inner.main_input_name
    known = inspect.signature(inner.forward).parameters
    _check_named(type(inner).__name__, batch.inputs, known)
    inputs: dict[str, Any] = {"return_dict": True, "use_cache": False}
    reads = batch if batch.context is None else batch.context
    if main in batch.inputs:
        if not bool(reads.valid.all()):
            raise ValueError(f"{config.model_type} cannot be told of padding in {main}: give inputs of one length")
    elif main != "input_ids":
        raise ValueError(f"{config.model_type} reads {main}: hand it over as Batch(inputs={{{main!r}: ...}})")
    else:
        inputs |= _sequence(config, family, reads, "", pooled)
    if batch.context is not None:
        inputs |= _sequence(config, family, batch, "decoder_", pooled)
    inputs |= batch.inputs
    return {name: value for name, value in inputs.items() if name in known}


def _check_named(kind: str, given: Mapping[str, Tensor], known: Mapping[str, Any]) -> None:
    if ours := sorted(set(given) & set(_OURS)):
        raise ValueError(f"inputs name {ours[0]!r}, which the batch's tokens, labels and valid say; leave it out")
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"{kind} takes no input {unknown[0]!r}; it takes {', '.join(sorted(known))}")


def _sequence(config: Any, family: Family, batch: Batch, prefix: str, pooled: bool) -> dict[str, Tensor]:
    tokens, valid = batch.tokens, batch.valid
    if not bool(valid.all()):
        _check_padding(config.model_type, valid)
        if pooled and family.pools == "first" and not bool(valid[:, 0].all()):
            raise ValueError(f"{config.model_type} reads its one output at the first position; pad on the right")
        tokens = _with_pads(config, tokens, valid, pooled, needed=pooled or family.positions == "tokens")
    said = {f"{prefix}input_ids": tokens, f"{prefix}attention_mask": valid.long()}
    count = (valid.cumsum(1) - 1).clamp_min(0)
    if bool(((count != torch.arange(tokens.shape[1], device=tokens.device)) & valid).any()):
        if family.positions == "places":
            raise ValueError(f"{config.model_type} counts positions from the start of the row; pad on the right")
        if family.positions == "ids":
            said[f"{prefix}position_ids"] = count
    return said


def _check_padding(kind: str, valid: Tensor) -> None:
    if bool((empty := ~valid.any(1)).any()):
        rows = empty.nonzero().flatten().tolist()
        raise ValueError(f"{kind}: examples {rows[:8]} are all padding; leave them out")
    edges = (valid[:, 1:] & ~valid[:, :-1]).sum(1) + valid[:, 0]
    if bool((edges > 1).any()):
        rows = (edges > 1).nonzero().flatten().tolist()
        raise ValueError(
            f"{kind}: examples {rows[:8]} have padding in the middle, and some families count places, not tokens; "
            "pad at one end"
        )


def _with_pads(config: Any, tokens: Tensor, valid: Tensor, pooled: bool, needed: bool) -> Tensor:
    """The tokens with the model's own padding token at padding, by which some families tell where a text ends."""
    pad = getattr(config, "pad_token_id", None)
    if needed and (pad is None or bool((tokens[valid] == pad).any())):
        why = "its configuration names none" if pad is None else f"token {pad}, its padding, stands among valid tokens"
        what = "reads its one output" if pooled else "counts positions"
        raise ValueError(
            f"{config.model_type} {what} by the padding token, and {why}; run texts of one length together"
        )
    return tokens.masked_fill(~valid, 0 if pad is None else pad)
