"""What a hooked model says of itself, and what it is called with."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workbench.batch import UNREAD, Batch
from workbench.models.families import FAMILIES, Unsupported
from workbench.proof import agree


def called(inner: Any, original: Any, batch: Batch) -> Tensor:
    """The logits of a hooked model. original: the Hugging Face model in a bridge, or None.

    Raises ValueError for padding that the model cannot be told of.
    """
    kind, known = type(inner).__name__, inspect.signature(inner.forward).parameters
    inputs, tokens = dict[str, Any](batch.inputs), batch.tokens
    if not bool(batch.valid.all()):
        if "attention_mask" not in known:
            raise ValueError(f"{kind} takes no attention_mask, and this batch has padding")
        inputs["attention_mask"] = batch.valid.long()
        count = (batch.valid.cumsum(1) - 1).clamp_min(0)
        places = torch.arange(count.shape[1], device=count.device)
        if _counts_tokens(original):
            tokens = tokens.masked_fill(~batch.valid, original.config.pad_token_id)
        elif bool(((count != places) & batch.valid).any()):
            if original is None or "position_ids" not in inspect.signature(original.forward).parameters:
                raise ValueError(f"{kind} counts places in the row; pad on the right")
            inputs["position_ids"] = count
    out = inner(tokens, **inputs)
    return out if isinstance(out, Tensor) else out.logits


def _counts_tokens(original: Any) -> bool:
    """Whether positions are counted from the tokens that are not padding, as RoBERTa does."""
    family = None if original is None else FAMILIES.get(original.config.model_type)
    return family is not None and family.positions == "tokens"


def check_padding(inner: Any, original: Any, batch: Batch) -> None:
    """Raises ValueError where padded examples, of which four are tried, give other logits than without padding."""
    for index in (~batch.valid).any(1).nonzero().flatten()[:4].tolist():
        padded = batch.select(slice(index, index + 1))
        valid = padded.valid[0]
        if padded.inputs:
            other = torch.where(valid, padded.tokens, padded.tokens.roll(1, 1))
            alone, kept = replace(padded, tokens=other), valid
        else:
            tokens = padded.tokens[:, valid]
            alone, kept = Batch(tokens, torch.full_like(tokens, UNREAD)), valid[valid]
        one, two = called(inner, original, padded)[:, valid], called(inner, original, alone)[:, kept]
        if not agree(one, two, two):
            raise ValueError(
                f"{type(inner).__name__} reads padding, or counts it: example {index} gives other logits than without. "
                "Pad on the right, or run examples of one length together"
            )


def check_described(inner: Any, cfg: Any) -> None:
    """Raises Unsupported where a model does not say how large it is, or its hooks contradict it."""
    kind = type(inner).__name__
    for name in ("n_layers", "n_heads", "d_vocab"):
        if not isinstance(getattr(cfg, name, None), int):
            raise Unsupported(f"{kind} has no cfg.{name}; a hooked model says n_layers, n_heads and d_vocab")
    reads = getattr(getattr(inner, "original_model", None), "main_input_name", "input_ids")
    if reads != "input_ids":
        raise Unsupported(f"{kind} reads {reads}, no tokens; wrap the Hugging Face model itself")
    found = {name.split(".")[1] for name in inner.hook_dict if name.startswith("blocks.")}
    if not found:
        raise Unsupported(f"{kind} has no hooks named blocks.0. ...; wrap the Hugging Face model itself")
    if found != {str(n) for n in range(cfg.n_layers)}:
        layers = ", ".join(sorted(found, key=lambda one: (len(one), one)))
        raise Unsupported(f"{kind} says cfg.n_layers = {cfg.n_layers}, and has hooks of layers {layers}")
