"""Tiny random models of the families that `wrap` knows, batches for them, and their inputs written out by hand.

Nothing here is taken from `workbench.models`: what a family's modules are called is said once more.
"""

import copy
import functools

import torch
import transformers
from transformers.utils import logging

from workbench.batch import UNREAD, Batch
from workbench.models.bridge import wrap

logging.set_verbosity_error()
logging.disable_progress_bar()

VOCABULARY, WIDTH, LENGTH, CONTEXT = 31, 16, 6, 5

_STACK = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2}
_GROUPED = {**_STACK, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
_TWO_HEADS = {**_STACK, "num_attention_heads": 2, "max_position_embeddings": 20}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TWO_STACKS = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "decoder_start_token_id": 1,
}  # fmt: skip
_MARIAN = {**_TWO_STACKS, "max_position_embeddings": 20, "pad_token_id": 1}
_WHISPER = {
    **_TWO_STACKS, **_SPECIAL, "num_mel_bins": 4, "max_source_positions": CONTEXT, "max_target_positions": 16,
    "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
_GPT2 = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, **_SPECIAL}
_VIT = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 5}

_MADE = {
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "llama": ("LlamaForCausalLM", {**_GROUPED, **_SPECIAL}),
    "qwen2": ("Qwen2ForCausalLM", {**_GROUPED, **_SPECIAL}),
    "qwen3": ("Qwen3ForCausalLM", {**_GROUPED, **_SPECIAL, "head_dim": 8}),
    "mistral": ("MistralForCausalLM", {**_GROUPED, **_SPECIAL, "sliding_window": 3}),
    "gemma3_text": ("Gemma3ForCausalLM", {**_GROUPED, **_SPECIAL, "head_dim": 8, "sliding_window": 3}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**_TWO_HEADS, **_SPECIAL}),
    "gpt_neox_serial": ("GPTNeoXForCausalLM", {**_TWO_HEADS, **_SPECIAL, "use_parallel_residual": False}),
    "bert": ("BertForMaskedLM", _TWO_HEADS),
    "roberta": ("RobertaForMaskedLM", {**_TWO_HEADS, "pad_token_id": 1}),
    "electra": ("ElectraForMaskedLM", {**_TWO_HEADS, "embedding_size": 8}),
    "albert": ("AlbertForMaskedLM", {**_TWO_HEADS, "embedding_size": 8}),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"vocab_size": VOCABULARY, "dim": WIDTH, "hidden_dim": 24, "n_layers": 2, "n_heads": 2,
         "max_position_embeddings": 20},
    ),
    "vit": ("ViTForImageClassification", {**_TWO_HEADS, **_VIT}),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
         "decoder_start_token_id": 0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 8},
    ),
    "bart": ("BartForConditionalGeneration", _MARIAN),
    "marian": ("MarianMTModel", _MARIAN),
    "whisper": ("WhisperForConditionalGeneration", _WHISPER),
}  # fmt: skip

NAMES = tuple(_MADE)
ROLES, CONTEXT_ROLES = ("first", "last", "some", "near"), ("opening", "closing", "inner", "close")
TWO_SEQUENCES = ("t5", "bart", "marian", "whisper")
ONE_SEQUENCE = tuple(name for name in NAMES if name not in TWO_SEQUENCES)
TEXT = tuple(name for name in NAMES if name not in ("vit", "whisper"))
MOVABLE = tuple(name for name in TEXT if name not in ("distilbert", "bart", "marian"))
"""Families whose padding may stand on the left: positions are handed over, counted from tokens, or relative."""

POST_NORM = ("bert", "roberta", "electra", "albert", "distilbert", "bart", "marian")

PLACES = [
    (name, part) for name in NAMES for part in (("encoder", "decoder", "cross") if name in TWO_SEQUENCES else ("",))
]
"""Every part of every family."""

_BERT = ("bert.encoder.layer.{}", "attention.output.dense", "output.dense")
_LLAMA = ("model.layers.{}", "self_attn.o_proj", "mlp.down_proj")
_NEOX = ("gpt_neox.layers.{}", "attention.dense", "mlp.dense_4h_to_h")
_BART = {
    "encoder": ("model.encoder.layers.{}", "self_attn.out_proj", "fc2"),
    "decoder": ("model.decoder.layers.{}", "self_attn.out_proj", "fc2"),
    "cross": ("model.decoder.layers.{}", "encoder_attn.out_proj", "fc2"),
}
_MODULES = {
    "gpt2": {"": ("transformer.h.{}", "attn.c_proj", "mlp.c_proj")},
    "llama": {"": _LLAMA},
    "qwen2": {"": _LLAMA},
    "qwen3": {"": _LLAMA},
    "mistral": {"": _LLAMA},
    "gemma3_text": {"": _LLAMA},
    "gpt_neox": {"": _NEOX},
    "gpt_neox_serial": {"": _NEOX},
    "bert": {"": _BERT},
    "roberta": {"": ("roberta" + _BERT[0][4:], *_BERT[1:])},
    "electra": {"": ("electra" + _BERT[0][4:], *_BERT[1:])},
    "albert": {"": ("albert.encoder.albert_layer_groups.0.albert_layers.0", "attention.dense", "ffn_output")},
    "distilbert": {"": ("distilbert.transformer.layer.{}", "attention.out_lin", "ffn.lin2")},
    "vit": {"": ("vit.layers.{}", "attention.o_proj", "mlp.fc2")},
    "t5": {
        "encoder": ("encoder.block.{}", "layer.0.SelfAttention.o", "layer.1.DenseReluDense.wo"),
        "decoder": ("decoder.block.{}", "layer.0.SelfAttention.o", "layer.2.DenseReluDense.wo"),
        "cross": ("decoder.block.{}", "layer.1.EncDecAttention.o", "layer.2.DenseReluDense.wo"),
    },
    "bart": _BART,
    "marian": _BART,
    "whisper": _BART,
}


def module_of(inner, name, part, layer, what):
    """A module of a layer: "block", "projection" (the attention's output projection), "mlp" (its last linear map)."""
    block, projection, mlp = _MODULES[name][part]
    path = {"block": "", "projection": f".{projection}", "mlp": f".{mlp}"}[what]
    return inner.get_submodule(block.format(layer) + path)


def config_of(name, **changes):
    cls = getattr(transformers, _MADE[name][0])
    return cls.config_class(**{**_MADE[name][1], **changes})


def made(name, *, config=None, dtype=torch.float32, attention="eager", seed=0, cls=None):
    """A model with weights so large that attention, and every bias, matters to the logits."""
    inner = getattr(transformers, cls or _MADE[name][0])(config_of(name) if config is None else config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in inner.named_parameters():
            if parameter.requires_grad:
                noise = 0.35 * torch.randn(parameter.shape, generator=generator)
                is_norm = parameter.ndim == 1 and parameter_name.endswith("weight")
                parameter.copy_(parameter + noise if is_norm else noise)
    inner.set_attn_implementation(attention)
    return inner.to(dtype).eval()


@functools.cache
def shared(name, dtype=torch.float32):
    """A wrapped model that tests share; none may change it."""
    return wrap(made(name, dtype=dtype), example=as_dtype(batch_for(name), dtype))


EXACT = ("gpt2", "bert", "roberta", "electra", "albert", "distilbert", *TWO_SEQUENCES)
"""Families whose eager attention computes in float64 where the model does; the others' softmax is in float32."""


def finest(name):
    """The finest type in which a family can be compared."""
    return torch.float64 if name in EXACT else torch.float32


def _sequence(n, length, seed, padding, names):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, VOCABULARY, (n, length), generator=generator)
    valid = torch.ones(n, length, dtype=torch.bool)
    short = torch.arange(n) % 2 == 1
    if padding == "right":
        valid[short, -2:] = False
    elif padding == "left":
        valid[short, :2] = False
    count = valid.cumsum(1)
    roles = {
        names[0]: (count == 1) & valid,
        names[1]: (count == valid.sum(1, keepdim=True)) & valid,
        names[2]: ((count == 2) | (count == 3)) & valid,
        names[3]: (count == valid.sum(1, keepdim=True) - 1) & valid,
    }
    return tokens, valid, roles


def batch_for(name, *, n=2, padding=None, seed=0, length=LENGTH):
    """Seeded examples; every second is two shorter where there is padding. Roles "first", "last", "some" (two
    positions), "near" (the last but one), relation "before" (each position ← the one before it); a context's roles are
    "opening", "closing", "inner", "close"; alignment "same" (k-th position ← k-th of the context)."""
    if name == "vit":
        pixels = torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        _, valid, roles = _sequence(n, 5, seed, None, ROLES)
        return _batch(torch.arange(5).expand(n, 5), valid, roles, inputs={"pixel_values": pixels})
    tokens, valid, roles = _sequence(n, length, seed, padding, ROLES)
    if name not in TWO_SEQUENCES:
        return _batch(tokens, valid, roles)
    read, seen, named = _sequence(n, CONTEXT, seed + 100, None if name == "whisper" else padding, CONTEXT_ROLES)
    inputs = {}
    if name == "whisper":
        inputs["input_features"] = torch.randn(n, 4, 2 * CONTEXT, generator=torch.Generator().manual_seed(seed + 200))
        padding = None
    context = _batch(read, seen, named)
    diagonal = (valid.cumsum(1)[:, :, None] == seen.cumsum(1)[:, None]) & valid[:, :, None] & seen[:, None]
    return _batch(tokens, valid, roles, context=context, alignments={"same": diagonal}, inputs=inputs)


def _batch(tokens, valid, roles, **more):
    count = valid.cumsum(1)
    before = (count[:, :, None] == count[:, None] + 1) & valid[:, :, None] & valid[:, None]
    labels = torch.where(roles.get("last", roles.get("closing")), tokens % 5, UNREAD)
    return Batch(tokens, labels, valid, roles, {"before": before}, **more)


def as_dtype(batch, dtype):
    """The batch with its pictures or sounds in another dtype."""
    inputs = {key: value.to(dtype) for key, value in batch.inputs.items()}
    return Batch(
        batch.tokens, batch.labels, batch.valid, batch.roles, batch.relations,
        context=batch.context, alignments=batch.alignments, inputs=inputs,
    )  # fmt: skip


def inputs_for(name, batch):
    """What the model's own forward is called with, written out by hand."""
    inputs = {} if name == "vit" else {"use_cache": False}
    if name in TWO_SEQUENCES:
        inputs |= {"decoder_input_ids": batch.tokens, "decoder_attention_mask": batch.valid.long()}
        if name != "whisper":
            inputs |= {"input_ids": batch.context.tokens, "attention_mask": batch.context.valid.long()}
    elif name != "vit":
        inputs |= {"input_ids": batch.tokens, "attention_mask": batch.valid.long()}
        if name == "roberta":
            inputs["input_ids"] = batch.tokens.masked_fill(~batch.valid, 1)
        elif name != "distilbert" and not batch.valid[:, 0].all():
            inputs["position_ids"] = (batch.valid.cumsum(1) - 1).clamp_min(0)
    for key, value in batch.inputs.items():
        inputs[key] = value
    return inputs


@torch.no_grad()
def eager(inner, name, batch, **more):
    """The logits of the family's own eager attention, on a copy of the model that nobody wrapped."""
    plain = copy.deepcopy(inner)
    plain.set_attn_implementation("eager")
    return plain.eval()(**inputs_for(name, batch), **more)


def by_position(name, logits, batch):
    """Logits [batch pos class], as `run` gives them; a picture's are said at every position."""
    return logits[:, None].expand(-1, batch.tokens.shape[1], -1) if logits.ndim == 2 else logits


def hooks_on(model):
    """How many hooks stand on each module, forward and backward."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    found = {name: sum(len(getattr(module, kind)) for kind in kinds) for name, module in model.named_modules()}
    return {name: count for name, count in found.items() if count}
