"""The random GPT-2 of two layers that transformers' users, bridges and nnsight are given, all with the same weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from analyses.tools.protocol import D_MODEL, D_VOCAB, LAYERS, LENGTH, randomised

N_HEADS = 3


def gpt2(
    *,
    dtype: torch.dtype = torch.float32,
    d_vocab: int = D_VOCAB,
    dropout: float = 0.0,
    attention: str = "eager",
    layers: int = LAYERS,
) -> GPT2LMHeadModel:
    """A pre-norm GPT-2 in eval mode: 3 heads, width 12, 8 positions, weights drawn by a seed."""
    options: dict[str, Any] = {"attn_implementation": attention}
    config = GPT2Config(
        vocab_size=d_vocab, n_positions=LENGTH, n_embd=D_MODEL, n_layer=layers, n_head=N_HEADS,
        attn_pdrop=dropout, embd_pdrop=dropout, resid_pdrop=dropout, bos_token_id=0, eos_token_id=0,
        **options,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    randomised(model)
    return model.to(dtype)


@torch.no_grad()
def sharpen(model: Any, by: float) -> None:
    """Query and key weights times `by`, in every layer."""
    for block in model.transformer.h:
        block.attn.c_attn.weight[:, : 2 * D_MODEL] *= by
        block.attn.c_attn.bias[: 2 * D_MODEL] *= by


@torch.no_grad()
def fold_value_bias(model: Any) -> None:
    """The value bias moved into the output bias, in every layer: the same function."""
    for block in model.transformer.h:
        bias = block.attn.c_attn.bias[2 * D_MODEL :]
        block.attn.c_proj.bias += bias @ block.attn.c_proj.weight
        bias.zero_()
