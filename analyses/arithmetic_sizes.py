"""Where the parameters of a transformer sit: counted on models that are built without numbers (the meta device)."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import torch

from analyses.arithmetic_printed import COURSE, EXPLAINER, Worked, above, printed, same
from workbench import ModelConfig
from workbench.models.attention import Attention
from workbench.models.config import Mask
from workbench.models.layers import CrossBlock
from workbench.models.stack import Stack
from workbench.models.transformer import Unembed

PARTS = ("attention", "MLP", "embedding", "positions", "norms", "output")
PLACES = {"attn": "attention", "mlp": "MLP", "pos_embed": "positions", "embed": "embedding", "unembed": "output"}
ENCODER = (Mask(causal=False),)
SHORT = {
    "lookup, 32 wide": "lookup",
    "encoder–decoder, 512 wide": "base",
    "GPT-2, 768 wide": "gpt2",
    "BERT, 1024 wide": "bert",
    "GPT-3, 12,288 wide": "gpt3",
}


def sizes() -> dict[str, Mapping[str, int]]:
    """Parameters by part, for the sizes that the sources name, the lookup's model, and GPT-2 to check the count by."""
    lookup = ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=2, n_heads=1)
    base = {"d_vocab": 37_000, "n_ctx": 512, "d_model": 512, "n_layers": 6, "n_heads": 8, "positions": "sinusoidal"}
    bert = ModelConfig(d_vocab=30_000, n_ctx=512, d_model=1024, n_layers=24, n_heads=16, masks=ENCODER, act_fn="gelu")
    gpt3 = ModelConfig(d_vocab=50_257, n_ctx=2048, d_model=12_288, n_layers=96, n_heads=96, norm="pre", act_fn="gelu")
    return {
        "lookup, 32 wide": counted(lookup),
        "encoder–decoder, 512 wide": both(ModelConfig(**base, masks=ENCODER), ModelConfig(**base)),
        "GPT-2, 768 wide": counted(gpt2(), tied=True),
        "BERT, 1024 wide": counted(bert, tied=True),
        "GPT-3, 12,288 wide": counted(gpt3, tied=True),
    }


def gpt2() -> ModelConfig:
    """The smallest GPT-2."""
    return ModelConfig(
        d_vocab=50_257, n_ctx=1024, d_model=768, n_layers=12, n_heads=12, norm="pre", act_fn="gelu"
    )  # fmt: skip


def counted(config: ModelConfig, tied: bool = False) -> dict[str, int]:
    """Parameters by part. tied: the output layer is the embedding matrix again, and counts nothing."""
    with torch.device("meta"):
        stack, unembed = Stack(config), Unembed(config)
    return _by_part(stack) | {"output": 0 if tied else sum(one.numel() for one in unembed.parameters())}


def both(encoder: ModelConfig, decoder: ModelConfig) -> dict[str, int]:
    """An encoder and a decoder with cross-attention, one matrix for both embeddings and the output."""
    with torch.device("meta"):
        parts = [Stack(encoder), Stack(decoder), *(CrossBlock(decoder) for _ in range(decoder.n_layers))]
    total = {part: sum(_by_part(one)[part] for one in parts) for part in PARTS}
    return total | {"embedding": encoder.d_vocab * encoder.d_model, "output": 0}


def _by_part(module: torch.nn.Module) -> dict[str, int]:
    out = dict.fromkeys(PARTS, 0)
    for name, weight in module.named_parameters():
        out[next((PLACES[step] for step in name.split(".") if step in PLACES), "norms")] += weight.numel()
    return out


def projections(heads: int, width: int = 512) -> tuple[int, int]:
    """Numbers in the four projections of an attention layer with so many heads: in the matrices, in the biases."""
    with torch.device("meta"):
        core = Attention(ModelConfig(d_vocab=2, n_ctx=1, d_model=width, n_layers=1, n_heads=heads))
    kinds = ("W", "b")
    return tuple(sum(w.numel() for name, w in core.named_parameters() if name[0] == kind) for kind in kinds)  # type: ignore[return-value]


def table() -> pd.DataFrame:
    """A row a size: its parameters by part, their total, and the MLP's share of them."""
    rows = []
    for name, parts in sizes().items():
        whole = sum(parts.values())
        shares = {
            "MLP, of MLP and attention": parts["MLP"] / (parts["MLP"] + parts["attention"]),
            "MLP, of all": parts["MLP"] / whole,
        }
        rows.append(
            {"model": name} | {part: f"{parts[part]:,}" for part in PARTS} | {"all": f"{whole:,}"}
            | {key: f"{value:.1%}" for key, value in shares.items()}
        )  # fmt: skip
    return pd.DataFrame(rows)


def worked() -> list[Worked]:
    """Every number of this file."""
    known = sizes()
    total = {name: sum(parts.values()) for name, parts in known.items()}
    heads = {count: projections(count) for count in (1, 2, 4, 8, 16)}
    short, long = (Attention(ModelConfig(d_vocab=2, n_ctx=n, d_model=64, n_layers=1, n_heads=4)) for n in (9, 1000))
    bert, gpt3 = "BERT, 1024 wide", "GPT-3, 12,288 wide"
    return [
        same("heads-split", "projection matrices of 2 to 16 heads less those of one, 512 wide",
             "as many projection parameters", max(abs(heads[h][0] - heads[1][0]) for h in heads)),
        same("heads-split-biases", "their biases, the same way", "as many projection parameters",
             max(abs(heads[h][1] - heads[1][1]) for h in heads)),
        printed("eight-heads", "width of each of 8 heads of 512", "64", 512 // 8, source=EXPLAINER),
        same("length-free", "attention parameters at 1,000 positions less those at 9", "does not grow with the length",
             sum(p.numel() for p in long.parameters()) - sum(p.numel() for p in short.parameters())),
        printed("bert-heads", "BERT: 16 heads of 64, side by side", "1024", 16 * 64),
        printed("bert-mlp", "BERT: hidden width of the MLP", "4096", _hidden(1024)),
        printed("bert-size", "BERT: parameters, in millions, output layer tied", "340 million, about",
                total[bert] / 1e6, half=5),
        printed("gpt3-heads", "GPT-3: 96 heads of 128, side by side", "12,288", 96 * 128),
        printed("gpt3-size", "GPT-3: parameters, in billions, 50,257 tokens, output layer tied", "175 billion",
                total[gpt3] / 1e9),
        same("gpt2-size", "GPT-2: parameters less those of transformers' own, output layer tied", "the same model",
             total["GPT-2, 768 wide"] - transformers_gpt2(), source="transformers"),
        *(above(f"mlp-layers-{SHORT[name]}", f"{name}: the MLPs' share of MLPs and attention",
                "most parameters are in the feedforward networks", parts["MLP"] / (parts["MLP"] + parts["attention"]),
                0.5, source=COURSE)
          for name, parts in known.items()),
        *(above(f"mlp-all-{SHORT[name]}", f"{name}: the MLPs' share of all parameters",
                "most parameters are in the feedforward networks", parts["MLP"] / total[name], 0.5, source=COURSE)
          for name, parts in known.items()),
    ]  # fmt: skip


def transformers_gpt2() -> int:
    """Parameters of the smallest GPT-2 as the transformers library builds it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        return GPT2LMHeadModel(GPT2Config()).num_parameters()


def _hidden(width: int) -> int:
    return ModelConfig(d_vocab=2, n_ctx=1, d_model=width, n_layers=1, n_heads=1).d_mlp
