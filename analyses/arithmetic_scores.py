"""The lecture's numbers by hand, from the workbench's attention core: scores, softmax, saturation, doubling."""

from __future__ import annotations

import math

import torch
from einops import einsum
from torch import Tensor

from analyses.arithmetic_printed import Worked, above, printed, same
from workbench import ModelConfig, Transformer, rows
from workbench.models.attention import Attention

QUERY, KEYS = (2.0, 1.0), ((1.2, 0.8), (1.2, -1.6), (-0.1, -0.1))
WORDS = ("restaurant", "sandwich", "because")
ROUNDING = 1e-5


def bare(width: int) -> Attention:
    """One head whose queries, keys, values and output are its inputs as they are."""
    core = Attention(ModelConfig(d_vocab=2, n_ctx=8, d_model=width, n_layers=1, n_heads=1))
    with torch.no_grad():
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            getattr(core, name).copy_(torch.eye(width)[None])
        for name in ("b_Q", "b_K", "b_V", "b_O"):
            getattr(core, name).zero_()
    return core


@torch.no_grad()
def unscaled(core: Attention, dest: Tensor, source: Tensor) -> Tensor:
    """The core's scores [dest source] times √head width, which it divides by: the lecture's first version."""
    q = einsum(dest, core.W_Q, "dest d_model, head d_model d_head -> dest head d_head") + core.b_Q
    scores = core.scores(q[None], core.keys(source[None]))[0, 0]
    return scores * math.sqrt(q.shape[-1])


def by_hand() -> list[Worked]:
    """One query against three keys, and the softmax of its scores."""
    scores = unscaled(bare(2), torch.tensor([QUERY]), torch.tensor(KEYS))[0]
    weights, raised = rows.softmax(scores), scores.exp()
    said = (("3.2", "24.53", "0.89"), ("0.8", "2.23", "0.08"), ("−0.3", "0.74", "0.03"))
    out = []
    for word, (score, power, weight), *ours in zip(WORDS, said, scores, raised, weights, strict=True):
        out += [
            printed(f"score-{word}", f"score of {word} for “it”", score, ours[0]),
            printed(f"exp-{word}", f"e to the score of {word}", power, ours[1]),
            printed(f"weight-{word}", f"weight of {word}", weight, ours[2]),
        ]
    even = rows.softmax(torch.tensor([2.0, 2.0, 0.0]))
    out += [printed("exp-total", "their sum", "27.50", raised.sum())]
    out += [
        printed(f"even-{i}", f"scores 2, 2, 0: weight {i + 1}", said, even[i])
        for i, said in enumerate(("0.47", "0.47", "0.06"))
    ]
    return [*out, *_among_fifteen(scores), *_softmax_laws(scores), *_mixture(weights)]


def _among_fifteen(scores: Tensor) -> list[Worked]:
    """Over all 15 sources restaurant gets 0.61: what sandwich, at 0.06, then gets."""
    others = float(scores[0].exp()) / 0.61 - float(scores.exp().sum())
    level = torch.full((12,), math.log(others / 12))
    weights = rows.softmax(torch.cat([scores, level]))
    return [
        printed("sandwich-of-15", "weight of sandwich over 15 sources, where restaurant has 0.61", "0.06", weights[1]),
    ]


def _softmax_laws(scores: Tensor) -> list[Worked]:
    weights = rows.softmax(scores)
    masked = rows.softmax(rows.cut(scores, torch.tensor([True, False, False])))
    far = torch.tensor([0.0, -110.0])
    return [
        same("sums-to-one", "sum of a row's weights, less 1", "sums to one", (weights.sum() - 1).abs(), most=ROUNDING),
        same("only-gaps", "change of the weights when 7 is added to every score", "only the gaps matter",
             (rows.softmax(scores + 7) - weights).abs().max(), most=ROUNDING),
        above("lowers-others", "least that another weight falls by when one score rises by 1",
              "raising one score lowers every other weight",
              -float((rows.softmax(scores + torch.tensor([1.0, 0, 0])) - weights)[1:].max()), 1e-6),
        same("masked-zero", "weight of a score of −∞", "exactly zero", masked[0]),
        same("masked-rest", "sum of the others, less 1", "still sum to one", (masked.sum() - 1).abs(), most=ROUNDING),
        above("never-zero-64", "weight of a score 110 below another, computed in 64 bits",
              "no finite score gives a weight of zero", rows.softmax(far.double())[1], 5e-324),
        above("never-zero-32", "the same, computed in 32 bits", "no finite score gives a weight of zero",
              rows.softmax(far)[1], 1e-45),
        printed("blend", "one head that is to hold two sources: the weight on each", "0.5",
                rows.softmax(torch.tensor([5.0, 5.0, rows.HIDDEN]))[0]),
    ]  # fmt: skip


def _mixture(weights: Tensor) -> list[Worked]:
    """A whole pass of the core, the query turned up by √2 so that its scores are the lecture's."""
    core = bare(2)
    keys, query = torch.tensor([KEYS]), torch.tensor([[QUERY]]) * math.sqrt(2)
    with torch.no_grad():
        mixed = core(query, keys, torch.ones(1, 1, 3, dtype=torch.bool))[0, 0]
    asked = sum(float(w) * keys[0, i] for i, w in enumerate(weights))
    return [same("mixture", "the core's output less the sum of weight times value", "a weighted sum of values",
                 (mixed - asked).abs().max(), most=ROUNDING)]  # fmt: skip


def saturation(factor: float) -> tuple[float, float]:
    """The largest weight of the three scores times a factor, and the largest entry of the softmax' gradient."""
    scores = torch.tensor([3.2, 0.8, -0.3], dtype=torch.float64) * factor
    slope = torch.autograd.functional.jacobian(rows.softmax, scores)
    return float(rows.softmax(scores).max()), float(torch.as_tensor(slope).abs().max())


def saturated() -> list[Worked]:
    """The scores times five."""
    (_, slope), (weight, flat) = saturation(1), saturation(5)
    return [
        above("saturated", "scores times 5: the largest weight", "almost all the weight on the largest", weight, 0.99),
        Worked("gradient", "scores times 5: the largest entry of the gradient", "near-zero gradients", flat, 0, 1e-3),
        above("gradient-falls", "by what factor that entry falls", "training slows", slope / flat, 100),
    ]


def raw_and_doubled() -> list[Worked]:
    """Token times token, before there are projections; and inputs that double."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(15, 64, generator=generator)
    tokens = tokens / tokens.norm(dim=-1, keepdim=True)
    raw = unscaled(bare(64), tokens, tokens)
    core = Transformer(ModelConfig(d_vocab=2, n_ctx=15, d_model=64, n_layers=1, n_heads=1), seed=0).blocks[0].attn
    with torch.no_grad():
        for name in ("b_Q", "b_K", "b_V", "b_O"):
            getattr(core, name).zero_()
        once, twice = unscaled(core, tokens, tokens), unscaled(core, 2 * tokens, 2 * tokens)
        seen = torch.ones(1, 15, 15, dtype=torch.bool)
        out, doubled = core(tokens[None], tokens[None], seen), core(2 * tokens[None], 2 * tokens[None], seen)
        pattern, values = rows.softmax(torch.zeros(1, 1, 15, 15)), tokens[None, :, None]
        held = core.mixed(pattern, 2 * values) - 2 * core.mixed(pattern, values)
    gaps = [scores - scores[:, :1] for scores in (once, twice)]
    return [
        printed("prefers-itself", "raw scores: share of 15 tokens whose largest score is their own", "1 (all)",
                (raw.argmax(-1) == torch.arange(15)).double().mean(), half=1e-9),
        same("symmetric", "raw scores: largest difference between (m, n) and (n, m)", "symmetric",
             (raw - raw.T).abs().max(), most=ROUNDING),
        above("not-symmetric", "with projections: largest difference between (m, n) and (n, m), over the largest score",
              "not symmetric", (once - once.T).abs().max() / once.abs().max(), 0.01),
        printed("quadruples", "inputs doubled, no biases: a score grows by the factor", "4",
                (twice.norm() / once.norm()).item(), half=ROUNDING),
        printed("gaps-quadruple", "so do the gaps between scores", "4", (gaps[1].norm() / gaps[0].norm()).item(),
                half=ROUNDING),
        above("output-not-double", "output of doubled inputs less twice the output, over the latter",
              "doubling the input doesn’t double the output",
              ((doubled - 2 * out).norm() / (2 * out).norm()).item(), 1e-3),
        same("linear-in-values", "weights held: output of doubled values less twice the output",
             "linear in the values", held.abs().max(), most=ROUNDING),
    ]  # fmt: skip


def worked() -> list[Worked]:
    """Every number of this file."""
    return [*by_hand(), *saturated(), *raw_and_doubled()]
