"""What `run` and `record` are handed, checked and refused in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.batch import Batch


def check_model(model: Any) -> None:
    if not all(hasattr(model, name) for name in ("parts", "sees", "logits", "hook_dict")):
        inside = hasattr(model, "about") and hasattr(model, "model")
        mend = "pass its `.model`" if inside else "hand over wrap(model), or build one with Transformer(config, seed)"
        raise TypeError(f"{type(model).__name__} is no model of this workbench; {mend}")


def check_arguments(model: Any, batch: Batch, positions: str, on_missing: str) -> None:
    check_model(model)
    if not isinstance(batch, Batch):
        raise TypeError(
            f"the batch is a {type(batch).__name__}; make it a Batch: "
            "task.sample(n, seed), or Batch.from_texts(tokenizer, texts)"
        )
    if positions not in ("all", "read"):
        raise ValueError(f"positions={positions!r}; there are: 'all', 'read'")
    if on_missing not in ("raise", "skip"):
        raise ValueError(f"on_missing={on_missing!r}; there are: 'raise', 'skip'")
    if not len(batch):
        raise ValueError("the batch has no examples")
    check_tokens(model, batch, "")


def check_tokens(model: Any, batch: Batch, whose: str) -> None:
    low, high, most = int(batch.tokens.min()), int(batch.tokens.max()), model.d_vocab - 1
    if low < 0 or high > most:
        raise ValueError(
            f"token {low if low < 0 else high}{whose} does not fit this model, whose tokens are 0 to {most}"
        )
    if (label := int(batch.labels.max())) >= model.n_out:
        raise ValueError(f"label {label}{whose} does not fit this model, whose logits are 0 to {model.n_out - 1}")
    for part in model.parts:
        batch.sides(part)
    if batch.context is not None:
        if tuple(model.parts) == ("",):
            raise ValueError(f"the batch{whose} has a context, and this model reads one sequence only")
        check_tokens_in_context(model, batch, whose)
    model.check(batch)


def check_tokens_in_context(model: Any, batch: Batch, whose: str) -> None:
    tokens = batch.context.tokens  # type: ignore[union-attr]
    low, high, most = int(tokens.min()), int(tokens.max()), model.d_vocab - 1
    if low < 0 or high > most:
        wrong = low if low < 0 else high
        raise ValueError(f"token {wrong} of the context{whose} does not fit this model, whose tokens are 0 to {most}")


def is_finite(values: Tensor) -> bool:
    """Whether no number is NaN or infinite."""
    # A sum of numbers that are all finite may overflow, but one with another number among them is not finite.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def check_finite(logits: Tensor) -> None:
    if not is_finite(logits):
        examples = (~torch.isfinite(logits)).flatten(1).any(1).nonzero().flatten().tolist()
        raise ValueError(
            f"logits are not finite in {len(examples)} of {len(logits)} examples "
            f"({', '.join(map(str, examples[:8]))}): "
            "the weights or an edit hold NaN or infinity"
        )


def say_missing(skipped: Mapping[int, str], n: int) -> str:
    reasons: dict[str, list[int]] = {}
    for example, reason in skipped.items():
        reasons.setdefault(reason, []).append(example)
    said = "; ".join(
        f"{reason} in {len(examples)} of {n} examples "
        f"({', '.join(map(str, examples[:8]))}{', ...' if len(examples) > 8 else ''})"
        for reason, examples in reasons.items()
    )
    return (
        f"{said}. Leave these examples out, or say on_missing='skip' to drop them from every condition and count them"
    )
