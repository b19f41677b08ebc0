"""Our attention function for Hugging Face models, and the switch to it: inside a pass, on copies of the configurations.

transformers calls the function that a configuration names. Ours computes what their eager functions compute, to the
bit, and lets scores, weights and vectors pass the points at which hooks stand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from workbench import rows

NAME = "workbench"
Attend = Callable[..., tuple[Tensor, Tensor]]

_current: ContextVar[Attend | None] = ContextVar("attend", default=None)

# What attention functions are handed besides, and what does not change what they compute: masks carry windows and
# causality, and nothing is cached or packed in a pass of ours.
_HARMLESS = {
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "head_mask", "is_causal", "layer_head_mask", "layer_idx",
    "max_length_k", "max_length_q", "num_items_in_batch", "output_attentions", "output_hidden_states", "position_ids",
    "return_dict", "sliding_window", "use_cache",
}  # fmt: skip


def register() -> None:
    """Makes our function and its masks known to transformers under `NAME`; no configuration names them yet."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _mask)


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """transformers' boolean mask, never left out."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def _attend(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    attend = _current.get()
    if attend is None:
        raise RuntimeError(f"the attention {NAME!r} works inside run() and record() only; wrap the model and use those")
    return attend(module, *args, **kwargs)


@contextmanager
def switched(model: nn.Module, attend: Attend | None, name: str = NAME) -> Iterator[None]:
    """Inside, this model's modules name an attention function on copies of their configurations; outside, as before.

    Two models may share one configuration object: only the modules of this one see the copies.
    """
    memo: dict[int, Any] = {}
    held = [(module, module.config) for module in model.modules() if _is_config(getattr(module, "config", None))]
    token = _current.set(attend)
    try:
        for module, config in held:
            changed: Any = copy.deepcopy(config, memo)
            changed._attn_implementation = name
            module.config = changed
        yield
    finally:
        for module, config in held:
            module.config = config
        _current.reset(token)


def _is_config(value: Any) -> bool:
    return hasattr(value, "_attn_implementation") and hasattr(value, "model_type")


def check_known(kwargs: dict[str, Any]) -> None:
    """Raises NotImplementedError for what would change the attention and is not computed here."""
    odd = sorted(name for name, value in kwargs.items() if value is not None and name not in _HARMLESS)
    if odd:
        raise NotImplementedError(f"this model hands its attention {odd}, which this workbench does not compute")


def hidden_by(mask: Tensor | None, scores: Tensor) -> Tensor:
    """Which sources the model's mask hides, of the scores' shape [batch head dest source]."""
    if mask is None:
        return torch.zeros_like(scores, dtype=torch.bool)
    mask = mask[..., : scores.shape[-1]]
    hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
    if mask.dtype != torch.bool and bool(((mask != 0) & ~hidden).any()):
        raise NotImplementedError("this model's mask adds finite numbers to scores, which are no mask")
    return hidden.expand_as(scores)


def scored(query: Tensor, key: Tensor, scaling: float | None, bias: Tensor | None) -> Tensor:
    """Scores [batch head dest source] before the mask, from [batch head pos d_head], as eager functions have them."""
    scores = torch.matmul(query, grouped(key, query).transpose(2, 3))
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    return scores if bias is None else scores + bias


def grouped(vectors: Tensor, query: Tensor) -> Tensor:
    """Keys or values [batch kv_head pos d_head], one for each of the query's heads."""
    times = query.shape[1] // vectors.shape[1]
    return vectors if times == 1 else repeat(vectors, "b kv pos d -> b (kv times) pos d", times=times)


def weighed(scores: Tensor, query: Tensor, single: bool = False) -> Tensor:
    """Weights of rows, in float32 or better (`single`: in float32), in the query's dtype; a row with no visible source
    is all 0."""
    return rows.softmax(scores.float() if single else scores).to(query.dtype)


def plain(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The attention function without points, to see who calls it."""
    scores = scored(query, key, scaling, position_bias)
    pattern = weighed(scores.masked_fill(hidden_by(attention_mask, scores), rows.HIDDEN), query)
    z = torch.matmul(pattern, grouped(value, query))
    return rearrange(z, "b head pos d_head -> b pos head d_head").contiguous(), pattern
