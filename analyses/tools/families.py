"""Small random models of other families than GPT-2: 2 layers, 3 heads, width 12."""

from __future__ import annotations

from typing import Any

from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
)

from analyses.tools.protocol import D_MODEL, D_VOCAB, LENGTH, randomised


def neo() -> GPTNeoForCausalLM:
    """GPT-Neo, which never calls the attention function that is registered with transformers."""
    config = GPTNeoConfig(
        vocab_size=D_VOCAB, max_position_embeddings=LENGTH, hidden_size=D_MODEL, num_layers=2, num_heads=3,
        attention_types=[[["global"], 2]], bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return _drawn(GPTNeoForCausalLM(config))


def neox() -> GPTNeoXForCausalLM:
    """GPT-NeoX, whose attention and MLP read the same stream in parallel."""
    config = GPTNeoXConfig(
        vocab_size=D_VOCAB, max_position_embeddings=LENGTH, hidden_size=D_MODEL, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=2 * D_MODEL, use_parallel_residual=True,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return _drawn(GPTNeoXForCausalLM(config))


def gemma3() -> Gemma3ForCausalLM:
    """Gemma 3, with a norm before and after each attention and MLP."""
    config = Gemma3TextConfig(
        vocab_size=D_VOCAB, max_position_embeddings=LENGTH, hidden_size=D_MODEL, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=3, head_dim=4, intermediate_size=2 * D_MODEL, sliding_window=LENGTH,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return _drawn(Gemma3ForCausalLM(config))


def _drawn(model: Any) -> Any:
    model.eval()
    randomised(model)
    return model
