"""What TransformerLens' users ask of a model: its `cfg`, and what `run_with_cache` gives for a post-norm one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from transformer_lens import ActivationCache

from workbench.models.config import ModelConfig


def as_lens(config: ModelConfig, weight: Tensor) -> SimpleNamespace:
    """A stack's configuration under TransformerLens' names, with the device and dtype of its weights."""
    return SimpleNamespace(
        **config.model_dump(),
        n_key_value_heads=None if config.n_kv_heads == config.n_heads else config.n_kv_heads,
        normalization_type=None if config.norm == "none" else "LN",
        device=weight.device,
        dtype=weight.dtype,
    )


class PostNormCache(ActivationCache):
    """An ActivationCache that refuses TransformerLens' residual decompositions.

    They assume that the residual stream is the sum of what the components wrote. In a post-norm model a LayerNorm
    stands between the sums, and TransformerLens' figures are wrong there without saying so.
    """

    def apply_slice_to_batch_dim(self, *args: Any, **kwargs: Any) -> PostNormCache:
        """As TransformerLens', still refusing."""
        part = super().apply_slice_to_batch_dim(*args, **kwargs)
        return PostNormCache(part.cache_dict, part.model, has_batch_dim=part.has_batch_dim)


def _refuse(name: str) -> Any:
    def refuse(self: PostNormCache, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"{name}: a post-norm residual stream is no sum of its components (a LayerNorm stands between them); "
            "measure by an intervention instead, or build the model with norm='pre'"
        )

    return refuse


for _name in ("accumulated_resid", "decompose_resid", "get_full_resid_decomposition", "stack_head_results",
              "stack_neuron_results", "logit_attrs", "apply_ln_to_stack"):  # fmt: skip
    setattr(PostNormCache, _name, _refuse(_name))
