"""The variance of a score against head width: under the lecture's assumption, under others, and as initialised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd
import torch
from einops import einsum
from torch import Generator, Tensor

from analyses.arithmetic_scores import bare
from analyses.verdicts import from_seeds
from workbench import ModelConfig, Transformer, rows
from workbench.models.attention import Attention

WIDTHS = (4, 16, 64, 100, 128, 256)
N_ROWS, N_SOURCES = 4000, 15
INITIALISED = "queries and keys as initialised"

Draw = Callable[[tuple[int, ...], Generator], Tensor]
ASSUMED: dict[str, Draw] = {
    "N(0, 1)": lambda shape, g: torch.randn(shape, generator=g),
    "uniform, variance 1": lambda shape, g: (torch.rand(shape, generator=g) * 2 - 1) * math.sqrt(3),
    "+1 or −1": lambda shape, g: torch.randint(2, shape, generator=g).float() * 2 - 1,
}
"""How the entries of queries and keys are drawn: independent, of mean 0 and variance 1."""


@torch.no_grad()
def measured(seeds: Sequence[int]) -> pd.DataFrame:
    """A row a way of drawing, head width and seed: the variance of the score q·k, as such and over the width; of the
    core's own score, which is divided by the root of the width; and the mean largest weight over 15 sources of each."""
    found = []
    for width in WIDTHS:
        core = bare(width)
        for seed in seeds:
            for name in (*ASSUMED, INITIALISED):
                q, k = _drawn(name, width, seed)
                scaled = core.scores(q, k)[:, 0, 0]
                plain = scaled * math.sqrt(width)
                found.append(
                    {
                        "drawn": name, "width": width, "seed": seed, "scaled variance": float(scaled.var()),
                        "variance": float(plain.var()), "largest weight": _sharpness(plain),
                        "scaled largest weight": _sharpness(scaled), "ratio": float(plain.var()) / width,
                    }
                )  # fmt: skip
    return pd.DataFrame(found)


def _drawn(name: str, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Queries [row 1 head width], each with 15 keys of its own [row source head width]."""
    generator = Generator().manual_seed(1000 * width + seed)
    shapes = (N_ROWS, 1, width), (N_ROWS, N_SOURCES, width)
    if name in ASSUMED:
        first, second = (ASSUMED[name](shape, generator) for shape in shapes)
        return first[:, :, None], second[:, :, None]
    core = initialised(width, seed)
    x, y = (torch.randn(shape, generator=generator) for shape in shapes)
    return queries(core, x), core.keys(y)


def queries(core: Attention, x: Tensor) -> Tensor:
    """The queries of vectors [row dest d_model], [row dest head d_head]."""
    return einsum(x, core.W_Q, "row dest d_model, head d_model d_head -> row dest head d_head") + core.b_Q


def initialised(width: int, seed: int) -> Attention:
    """One head as wide as the model, as the workbench initialises it."""
    return Transformer(ModelConfig(d_vocab=2, n_ctx=2, d_model=width, n_layers=1, n_heads=1), seed=seed).blocks[0].attn


def _sharpness(scores: Tensor) -> float:
    return float(rows.softmax(scores).max(-1).values.mean())


@torch.no_grad()
def self_preference(seed: int, width: int = 64, n: int = 200) -> float:
    """The share of tokens whose largest score is their own, with projections as initialised."""
    core = initialised(width, seed)
    x = torch.randn(n, N_SOURCES, width, generator=Generator().manual_seed(seed))
    x = x / x.norm(dim=-1, keepdim=True)
    scores = core.scores(queries(core, x), core.keys(x))[:, 0]
    return float((scores.argmax(-1) == torch.arange(N_SOURCES)).double().mean())


def table(found: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, with the lowest and the highest seed, of variance over width; and how sharp the softmax is."""
    out = []
    for (name, width), own in found.groupby(["drawn", "width"], sort=False):
        ends = f"{own['ratio'].min():.3f} to {own['ratio'].max():.3f}"
        out.append(
            {
                "entries of queries and keys": name, "head width": width, "variance of a score": own["variance"].mean(),
                "over the width": own["ratio"].mean(), "lowest to highest seed": ends,
                "scaled: variance": own["scaled variance"].mean(),
                "largest of 15 weights": own["largest weight"].mean(),
                "scaled: largest of 15": own["scaled largest weight"].mean(),
            }
        )  # fmt: skip
    return pd.DataFrame(out)


def verdicts(found: pd.DataFrame, seeds: Sequence[int]) -> list[pd.DataFrame]:
    """The lecture's claims on random scores, over seeds."""
    by = {key: own.sort_values("seed") for key, own in found.groupby(["drawn", "width"])}
    normal = {width: by["N(0, 1)", width] for width in WIDTHS}
    growth = (normal[64]["variance"].to_numpy() / normal[16]["variance"].to_numpy()) ** 0.5
    fivefold = (normal[100]["variance"].to_numpy() / normal[4]["variance"].to_numpy()) ** 0.5
    own = [self_preference(seed) for seed in seeds]
    return [
        *(from_seeds(f"variance-{width}", f"The variance of a score is the head width: {width}, entries N(0, 1).",
                     "variance over head width", list(normal[width]["ratio"]), "within", 0.02, 1.0)
          for width in WIDTHS),
        *(from_seeds(f"variance-{short}-64", f"So it is for any entries of variance one: {name}, head width 64.",
                     "variance over head width", list(by[name, 64]["ratio"]), "within", 0.02, 1.0)
          for name, short in (("uniform, variance 1", "uniform"), ("+1 or −1", "signs"))),
        from_seeds("variance-own", "So it is as the workbench initialises (head width 64).", "variance over head width",
                   list(by[INITIALISED, 64]["ratio"]), "within", 0.02, 1.0),
        from_seeds("typical", "From head width 16 to 64 the typical score doubles.", "ratio of standard deviations",
                   list(growth), "within", 0.05, 2.0),
        from_seeds("fivefold", "A head width 25 times as large makes the typical score 5 times as large (4 to 100).",
                   "ratio of standard deviations", list(fivefold), "within", 0.125, 5.0),
        from_seeds("scaled", "Divided by the root of the head width, its variance is 1 (head width 256).",
                   "variance of the core's score", list(normal[256]["scaled variance"]), "within", 0.02, 1.0),
        from_seeds("sharper", "Unscaled, how sharp the softmax starts out depends on the head width.",
                   "largest of 15 weights, head width 256 less 16",
                   list(normal[256]["largest weight"].to_numpy() - normal[16]["largest weight"].to_numpy()),
                   "greater", 0.05),
        from_seeds("as-sharp", "Scaled, it does not.", "largest of 15 weights, head width 256 less 16",
                   list(normal[256]["scaled largest weight"].to_numpy()
                        - normal[16]["scaled largest weight"].to_numpy()), "within", 0.02),
        from_seeds("no-self-preference", "With projections a token does not prefer itself: 1 in 15 does.",
                   "share of 15 tokens whose largest score is their own", own, "within", 0.02, 1 / N_SOURCES),
    ]  # fmt: skip


def figure_rows(found: pd.DataFrame) -> pd.DataFrame:
    """panel, x, model_seed, value for the figure."""
    return found.rename(columns={"drawn": "panel", "width": "x", "seed": "model_seed", "variance": "value"})[
        ["panel", "x", "model_seed", "value"]
    ]
