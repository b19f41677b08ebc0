"""Where the sites of Hugging Face families are: module paths, from which hooks and formulas follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn


class Unsupported(ValueError):
    """A model on which interventions would not mean what they say."""


@dataclass(frozen=True)
class Sublayer:
    """One attention of a block, as paths from the block.

    attn: the module that calls the attention function; out: its output projection; mid: the module that reads the
    stream after it; added: the module whose output is added to the stream, where that is not `out`.
    """

    attn: str
    out: str
    mid: str
    added: str = ""


@dataclass(frozen=True)
class Stack:
    """The blocks of a stack (a path from the base model, or a function of it), and what each has, as paths from it.

    mlp_in: the MLP's first linear map ("" where it is gated); mlp_out: its last. added: the module whose output is
    added to the stream, where that is not `mlp_out`. post: of a post-norm block, the norm that reads resid_post.
    parallel: the configuration's word for attention and MLP that read the same stream.
    """

    blocks: str | Callable[[nn.Module], list[nn.Module]]
    attention: Sublayer
    mlp_out: str
    mlp_in: str = ""
    added: str = ""
    cross: Sublayer | None = None
    post: str = ""
    parallel: str = ""

    def listed(self, base: nn.Module) -> list[nn.Module]:
        """The blocks in the order of their layers; one may stand for several layers."""
        if not isinstance(self.blocks, str):
            return self.blocks(base)
        return list(base.get_submodule(self.blocks).children())


@dataclass(frozen=True)
class Family:
    """The stacks of a family by part, and how its positions are told.

    positions: "ids", given to the model, so that positions count valid tokens; "tokens", counted by the model from the
    padding token; "relative", only differences matter; "places", the index in the row, so that padding on the left
    would move every position. pools: where a model with one output an example takes it: at the "first" position, or at
    the "last" token that is not padding.
    """

    stacks: Mapping[str, Stack] = field(default_factory=dict)
    positions: Literal["ids", "tokens", "relative", "places"] = "places"
    pools: Literal["first", "last"] = "first"


def _albert_blocks(base: Any) -> list[nn.Module]:
    """ALBERT's layers share modules: those of a group are called again and again."""
    config, groups = base.config, base.encoder.albert_layer_groups
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [layer for i in range(config.num_hidden_layers) for layer in groups[int(i / per_group)].albert_layers]


_BERT = Stack(
    "encoder.layer",
    Sublayer("attention.self", "attention.output.dense", "attention.output.LayerNorm"),
    mlp_in="intermediate.dense",
    mlp_out="output.dense",
    post="output.LayerNorm",
)
_LLAMA = Stack(
    "layers",
    Sublayer("self_attn", "self_attn.o_proj", "post_attention_layernorm"),
    mlp_out="mlp.down_proj",
)
_GEMMA = Stack(
    "layers",
    Sublayer("self_attn", "self_attn.o_proj", "pre_feedforward_layernorm", "post_attention_layernorm"),
    mlp_out="mlp.down_proj",
    added="post_feedforward_layernorm",
)
_T5_ENCODER = Stack(
    "encoder.block",
    Sublayer("layer.0.SelfAttention", "layer.0.SelfAttention.o", "layer.1.layer_norm"),
    mlp_in="layer.1.DenseReluDense.wi",
    mlp_out="layer.1.DenseReluDense.wo",
)
_T5_DECODER = Stack(
    "decoder.block",
    Sublayer("layer.0.SelfAttention", "layer.0.SelfAttention.o", "layer.1.layer_norm"),
    cross=Sublayer("layer.1.EncDecAttention", "layer.1.EncDecAttention.o", "layer.2.layer_norm"),
    mlp_in="layer.2.DenseReluDense.wi",
    mlp_out="layer.2.DenseReluDense.wo",
)


def _bart(stack: str, pre_norm: bool) -> Stack:
    """BART's blocks, Marian's (both post-norm) and Whisper's (pre-norm) have the same names."""
    cross = None
    if stack == "decoder":
        reader = "final_layer_norm" if pre_norm else "encoder_attn_layer_norm"
        cross = Sublayer("encoder_attn", "encoder_attn.out_proj", reader)
    after = "encoder_attn_layer_norm" if cross else "final_layer_norm"
    return Stack(
        f"{stack}.layers",
        Sublayer("self_attn", "self_attn.out_proj", after if pre_norm else "self_attn_layer_norm"),
        cross=cross,
        mlp_in="fc1",
        mlp_out="fc2",
        post="" if pre_norm else "final_layer_norm",
    )


FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        {"": Stack("h", Sublayer("attn", "attn.c_proj", "ln_2"), mlp_in="mlp.c_fc", mlp_out="mlp.c_proj")},
        "ids",
        "last",
    ),
    "llama": Family({"": _LLAMA}, "ids", "last"),
    "qwen2": Family({"": _LLAMA}, "ids", "last"),
    "qwen3": Family({"": _LLAMA}, "ids", "last"),
    "mistral": Family({"": _LLAMA}, "ids", "last"),
    "gemma3_text": Family({"": _GEMMA}, "ids", "last"),
    "gpt_neox": Family(
        {
            "": Stack(
                "layers",
                Sublayer("attention", "attention.dense", "post_attention_layernorm"),
                mlp_in="mlp.dense_h_to_4h",
                mlp_out="mlp.dense_4h_to_h",
                parallel="use_parallel_residual",
            )
        },
        "ids",
        "last",
    ),
    "bert": Family({"": _BERT}, "ids"),
    "roberta": Family({"": _BERT}, "tokens"),
    "electra": Family({"": _BERT}, "ids"),
    "distilbert": Family(
        {
            "": Stack(
                "transformer.layer",
                Sublayer("attention", "attention.out_lin", "sa_layer_norm"),
                mlp_in="ffn.lin1",
                mlp_out="ffn.lin2",
                post="output_layer_norm",
            )
        }
    ),
    "albert": Family(
        {
            "": Stack(
                _albert_blocks,
                Sublayer("attention", "attention.dense", "attention.LayerNorm"),
                mlp_in="ffn",
                mlp_out="ffn_output",
                post="full_layer_layer_norm",
            )
        },
        "ids",
    ),
    "vit": Family(
        {
            "": Stack(
                "layers",
                Sublayer("attention", "attention.o_proj", "layernorm_after"),
                mlp_in="mlp.fc1",
                mlp_out="mlp.fc2",
            )
        }
    ),
    "t5": Family({"encoder": _T5_ENCODER, "decoder": _T5_DECODER}, "relative"),
    "bart": Family({"encoder": _bart("encoder", False), "decoder": _bart("decoder", False)}),
    "marian": Family({"encoder": _bart("encoder", False), "decoder": _bart("decoder", False)}),
    "whisper": Family({"encoder": _bart("encoder", True), "decoder": _bart("decoder", True)}),
}
"""By the configuration's `model_type`."""
