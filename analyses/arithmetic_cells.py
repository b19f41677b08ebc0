"""The lecture's counts, from the workbench's own shapes and masks: cells of scores, parts of a layer, images."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from analyses.arithmetic_printed import COURSE, EXPLAINER, Worked, printed, same
from analyses.arithmetic_scores import ROUNDING, bare
from workbench import ModelConfig, Transformer
from workbench.models import masks
from workbench.models.attention import Attention
from workbench.models.config import Mask

SENTENCE = "The restaurant refused to serve me a ham sandwich because it only cooks vegetarian food"


def cells() -> list[Worked]:
    """How many scores there are, by the core's own shapes and masks."""
    counted = {n: _visible(n) for n in (*range(1, 65), 2048)}
    drawn = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]).bool()
    return [
        printed("grid-4", "scores of 4 tokens", "16", _scores(4, 4).numel()),
        printed("grid-8", "scores of 8 tokens", "64", _scores(8, 8).numel()),
        printed("doubled", "scores of twice as many tokens, as a multiple", "4",
                _scores(8, 8).numel() / _scores(4, 4).numel()),
        same("causal-formula", "visible cells less N(N+1)/2, largest over N = 1 to 64", "N(N+1)/2",
             max(abs(counted[n] - n * (n + 1) // 2) for n in range(1, 65))),
        same("causal-drawn", "cells of the 4 × 4 triangle that differ from the drawing, keys in rows",
             "kept where m ≤ n", (drawn != masks.visible(Mask(), torch.arange(4)[None])[0].T).sum()),
        printed("causal-4", "cells kept of 4 × 4", "10", counted[4]),
        printed("causal-3", "cells kept of 3 × 3", "6", counted[3]),
        Worked("just-over-half", "share of N² kept at N = 2048", "just over half", counted[2048] / 2048**2, 0.5, 0.51),
        printed("cross-keys", "cross-attention, 5 target and 7 source tokens: rows of keys", "7",
                _scores(5, 7).shape[1]),
        printed("cross-queries", "the same: columns of queries", "5", _scores(5, 7).shape[0]),
        same("matrix-form", "the core's scores, transposed, less KᵀQ", "K transpose times Q", _matrix_error(),
             most=ROUNDING),
    ]  # fmt: skip


def _visible(n: int) -> int:
    return int(masks.visible(Mask(), torch.arange(n)[None]).sum())


def _scores(dest: int, source: int) -> Tensor:
    """The core's score matrix [dest source] for so many tokens."""
    return bare(2).scores(torch.zeros(1, dest, 1, 2), torch.zeros(1, source, 1, 2))[0, 0].detach()


def _matrix_error() -> Tensor:
    """Tokens in columns, as the lecture has them, against the core, which has them in rows."""
    q, k = (torch.randn(8, n, generator=torch.Generator().manual_seed(n)) for n in (5, 7))
    ours = bare(8).scores(q.T[None, :, None], k.T[None, :, None])[0, 0] * math.sqrt(8)
    return (ours.T - k.T @ q).detach().abs().max()


def layers() -> list[Worked]:
    """What the parts of a layer do to one vector, and between vectors."""
    config = ModelConfig(d_vocab=5, n_ctx=6, d_model=16, n_layers=1, n_heads=2, masks=(Mask(causal=False),))
    block = Transformer(config, seed=0).blocks[0]
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0)) * 3 + 1
    seen = torch.ones(1, 6, 6, dtype=torch.bool)
    parts = (lambda y: y + block.attn(y, y, seen), block.ln1, lambda y: y + block.mlp(y), block.ln2)
    moving = [_crosses(part, x) > 0 for part in parts]
    normed = block.ln1(x).detach()
    table, tokens = Transformer(config, seed=0).embed, torch.tensor([[3, 0, 4]])
    looked = torch.eye(5)[tokens] @ table.W_E.detach()
    return [
        printed("moves", "lines of the layer's four through which one position changes another", "1", sum(moving)),
        same("first-moves", "1 less whether the first line is that one", "only the first", 1 - int(moving[0])),
        same("layernorm-mean", "LayerNorm: largest mean of a vector’s entries", "0", normed.mean(-1).abs().max(),
             most=ROUNDING),
        same("layernorm-variance", "LayerNorm: variance of a vector’s entries, less 1", "1",
             (normed.var(-1, unbiased=False) - 1).abs().max(), most=1e-4),
        same("embedding", "embedding lookup less one-hot times matrix", "the product picks out one column",
             (table(tokens) - looked).detach().abs().max()),
    ]  # fmt: skip


def _crosses(part: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The largest change of an output at positions other than the one whose input is changed."""
    moved = x.clone()
    moved[:, 0] += torch.linspace(-1, 1, x.shape[-1])
    with torch.no_grad():
        return float((part(moved) - part(x))[:, 1:].abs().max())


def counting() -> list[Worked]:
    """What can be counted in the lecture's own example, and in its images."""
    pixels = torch.zeros(224, 224)
    patches = rearrange(pixels, "(row p) (column q) -> (row column) (p q)", p=16, q=16)
    words = SENTENCE.split()
    at = {word: words.index(word) + 1 for word in ("restaurant", "it")}
    wide = ModelConfig(d_vocab=2, n_ctx=1, d_model=512, n_layers=1, n_heads=8)
    core = Attention(wide)
    return [
        printed("sentence", "tokens of the example sentence, a word each", "15", len(words)),
        printed("back", "restaurant stands so many positions before “it”", "9", at["it"] - at["restaurant"]),
        printed("pixels", "pixels of a 224 × 224 image", "50,176", pixels.numel()),
        printed("patches", "its patches of 16 × 16", "196", len(patches)),
        printed("head-width", "8 heads of a width of 512: width of a head", "64", wide.d_head),
        printed("concatenated", "their outputs side by side: numbers a token", "512",
                core.W_O.shape[0] * core.W_O.shape[1]),
        printed("root", "what a score is divided by at head width 64", "8",
                math.sqrt(core.W_Q.shape[-1]), source=EXPLAINER),
        same("n-by-n", "a score matrix of 6 tokens: rows less columns", "n × n", _scores(6, 6).shape[0] - 6,
             source=COURSE),
    ]  # fmt: skip


def worked() -> list[Worked]:
    """Every number of this file."""
    return [*cells(), *layers(), *counting()]
