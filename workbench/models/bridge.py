"""wrap(): models that others trained, made to run under interventions as our own do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.HookedRootModule import HookedRootModule

from workbench.batch import Batch
from workbench.hooks import evaluating
from workbench.models.families import FAMILIES, Unsupported
from workbench.models.hooked import Hooked
from workbench.models.interface import plain, register, switched
from workbench.models.specimen import specimen
from workbench.models.wrapped import Wrapped

__all__ = ["Hooked", "Unsupported", "Wrapped", "wrap"]


def wrap(model: Any, tokenizer: Any = None, *, example: Batch | None = None) -> Any:
    """A model that others trained, as `run`, `record` and studies take it: same sites, same interventions.

    model: a Hugging Face model with an output layer, a TransformerBridge, or any HookedRootModule with TransformerLens'
        hook names. Nothing about it changes: the attention is switched inside `run` and `record` only, on a copy of its
        configuration, and hooks of ours come off after each pass.
    tokenizer: kept as `wrapped.tokenizer`, for `Batch.from_texts`.
    example: a batch that the model can read, on which sites are probed; made from the configuration by default.

    Raises `Unsupported` for a family that ignores transformers' attention interface or is not described here, and where
    the wrapped model's logits are not those of the eager model, bit for bit (in bfloat16 and float16: within rounding).

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from workbench import Edges, cut, run
    >>> config = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    >>> model = wrap(GPT2LMHeadModel(config))
    >>> run(model, model.example, [cut(Edges(layer=1, head=0), empty="no-update")]).logits.shape
    torch.Size([2, 6, 9])
    """
    if all(hasattr(model, name) for name in ("parts", "sees", "logits", "hook_dict")):
        return model
    if isinstance(model, HookedRootModule) or hasattr(model, "hook_dict"):
        return Hooked(model, tokenizer, example)
    config: Any = getattr(model, "config", None)
    if not (isinstance(model, nn.Module) and hasattr(config, "model_type") and hasattr(model, "base_model")):
        raise TypeError(
            f"{type(model).__name__} cannot be wrapped; hand over a Hugging Face model, a TransformerBridge or a "
            "HookedRootModule"
        )
    if hasattr(model, "_orig_mod"):
        raise Unsupported("a compiled model's modules are not run one by one; wrap the model that was compiled")
    if config.model_type not in FAMILIES:
        raise Unsupported(_unknown_family(model, example))
    try:
        return Wrapped(model, tokenizer, example)
    except (AttributeError, RuntimeError, TypeError, KeyError) as error:
        raise Unsupported(
            f"{type(model).__name__} cannot be run as a {config.model_type}: {error}. Wrapped are models with "
            "both stacks, where the family has two, and logits for each position or each example"
        ) from error


def _unknown_family(inner: Any, example: Batch | None) -> str:
    """Why a family is refused, with the number of times that it called our attention function."""
    kind, calls = inner.config.model_type, 0

    def count(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return plain(*args, **kwargs)

    register()
    known = f"families described: {', '.join(sorted(FAMILIES))}"
    try:
        words = inner.get_input_embeddings()
        batch = example or specimen(inner.config, inner.main_input_name, getattr(words, "num_embeddings", 0), False)
        with evaluating(inner), torch.no_grad(), switched(inner, count):
            inner(**({"input_ids": batch.tokens} if not batch.inputs else dict(batch.inputs)))
    except Exception as error:
        return f"the family {kind!r} is not described here, and a trial of it failed ({error}); {known}"
    if calls:
        return (
            f"the family {kind!r} is not described here, though it called the attention function {calls} times; {known}"
        )
    return (
        f"the family {kind!r} never calls the attention function that its configuration names (0 calls in a pass): "
        f"an edit of its scores or weights would do nothing; {known}"
    )
