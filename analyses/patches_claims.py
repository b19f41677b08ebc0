"""The claims of `patches`, with the margins that were set before anything was measured, and what they are judged on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analyses.patches import PLACED, UNPLACED
from analyses.verdicts import exact, from_claims, from_seeds, joined, side_by_side
from workbench import Claim
from workbench.figures.corners import corner_shares

if TYPE_CHECKING:
    from analyses.patches_measure import Measured

MOVED, AVERAGED = "positions, patches moved", "positions averaged"
EVEN = 1 / 17
"""An even share of the class token's row: it sees 16 patches and itself."""
SMALL, LARGE = EVEN / 3, 2 * EVEN
"""The largest weight that is small, and the smallest that is large."""
NONE, MUCH = 0.01, 0.1
"""The largest effect that is none, and the smallest that is much: total variation of the prediction."""
TOLERANCE = 5e-6
"""Of the largest logit: what is left to rounding in float32."""


def verdicts(found: Mapping[str, Measured]) -> pd.DataFrame:
    """A row a claim, of every source in turn."""
    return joined(*(_of_source(source, one) for source, one in found.items()))


def _of_source(source: str, one: Measured) -> pd.DataFrame:
    measured = joined(
        from_claims(_on_rows(source), one.frame),
        *_on_edges(source, one.edges),
        from_claims(_on_positions(source), _paired(one.places)),
        exact(f"{source}-no-order", f"{source}: without positions, moving the patches changes nothing but rounding.",
              "largest difference of a logit, over the largest logit", max(one.apart), 0.0, TOLERANCE),
    )  # fmt: skip
    weighed = from_seeds(
        f"{source}-ink-weight", f"{source}: in layer 2 the class token gives a patch with ink more weight than a blank "
        "one, by a third of an even share.", "weight of layer 2: ink − blank", ink_less_blank(one.frame), "greater",
        SMALL,
    )  # fmt: skip
    return joined(weighed, measured)


def _paired(places: pd.DataFrame) -> pd.DataFrame:
    """Every kind of model as conditions of one. Image i with its patches moved stands beside image i as it is: they are
    other examples by their digest, which is left out here, and the same image."""
    bare = places.copy(deep=False)
    bare.attrs = {}
    return side_by_side(bare)


def ink_less_blank(frame: pd.DataFrame, layer: int = 1) -> list[float]:
    """For each trained model, the mean weight on a patch with ink less that on a blank one."""
    means = frame.groupby("model_seed")[[f"ink-{layer}", f"blank-{layer}"]].mean()
    return list(means[f"ink-{layer}"] - means[f"blank-{layer}"])


def _on_rows(source: str) -> list[Claim]:
    """Contrasts of accuracy between interventions."""

    def claim(id: str, statement: str, a: str, b: str, direction: str, margin: float) -> Claim:
        return Claim(id=f"{source}-{id}", statement=f"{source}: {statement}", metric="accuracy", a=a, b=b, model=PLACED,
                     direction=direction, margin=margin)  # fmt: skip

    learned = Claim(
        id=f"{source}-learned", statement=f"{source}: the models name images that they were not trained on.",
        metric="accuracy", a="clean", model=PLACED, direction="greater", margin=0.7,
    )  # fmt: skip
    return [
        learned,
        claim("first-row-idle", "what the class token's row adds in layer 1 can be taken away.", "clean",
              "no-update-0", "within", 0.02),
        claim("last-row-matters", "what it adds in layer 2 cannot.", "clean", "no-update-1", "greater", 0.5),
        claim("weights-matter", "which patches the row weighs matters: with even weights in both layers answers are "
              "lost.", "clean", "uniform", "greater", 0.05),
        claim("ink-matters", "cutting the patches with most ink from the row of both layers costs more than cutting "
              "equally many with least.", "cut-pale", "cut-inked", "greater", 0.05),
        claim("most-matters", "cutting the patch with the largest weight of layer 2 costs more than cutting the one "
              "most like it in ink.", "cut-like-1", "cut-most-1", "greater", 0.01),
        claim("hidden-ink", "hiding the patches with most ink from every row costs more than cutting them from the "
              "class token's rows.", "cut-inked", "hide-inked", "greater", 0.05),
    ]  # fmt: skip


def _on_edges(source: str, edges: pd.DataFrame) -> list[pd.DataFrame]:
    """Claims on single patches, a number a trained model."""
    idle = of_large(edges, "weight-1", "cut-1")
    hidden = of_small(edges, "weight-1", "hide")
    row, whole = (rank_correlations(edges, "weight-1", effect) for effect in ("cut-1", "hide"))
    return [
        from_seeds(f"{source}-weight-without-effect", f"{source}: of the large weights of layer 2, a quarter or more "
                   "can be cut and the prediction stays.", "share of large weights without effect", idle, "greater",
                   0.25),
        from_seeds(f"{source}-effect-without-weight", f"{source}: of patches with a small weight in layer 2, one in "
                   "twenty or more moves the prediction much when it is hidden from every row.",
                   "share of small weights with a large effect", hidden, "greater", 0.05),
        from_seeds(f"{source}-row-order", f"{source}: the weights of layer 2 put patches in the order of what cutting "
                   "each from that row does.", "rank correlation within an image: weight, cut", row, "greater", 0.5),
        from_seeds(f"{source}-whole-order", f"{source}: they do not put patches in the order of what hiding each from "
                   "every row does.", "rank correlation within an image: weight, hide", whole, "less", 0.5),
    ]  # fmt: skip


def _on_positions(source: str) -> list[Claim]:
    def claim(id: str, statement: str, a: str, b: str, margin: float) -> Claim:
        return Claim(id=f"{source}-{id}", statement=f"{source}: {statement}", metric="accuracy", a=f"{a} · clean",
                     b=f"{b} · clean", direction="greater", margin=margin)  # fmt: skip

    return [
        claim("positions-help", "a model trained with positions is right more often than one trained without.",
              PLACED, UNPLACED, 0.05),
        claim("moved", "a model with positions is wrong about images whose patches are moved.", PLACED, MOVED, 0.3),
        claim("removed-late", "taking the positions from a model trained with them costs more than never having had "
              "them.", UNPLACED, AVERAGED, 0.05),
    ]  # fmt: skip


def of_large(edges: pd.DataFrame, weight: str, effect: str) -> list[float]:
    """For each trained model: of the edges with a large weight, the share without effect."""
    return _shares(edges, lambda own: own[weight] >= LARGE, lambda own: own[effect] <= NONE)


def of_small(edges: pd.DataFrame, weight: str, effect: str) -> list[float]:
    """For each trained model: of the edges with a small weight, the share with a large effect."""
    return _shares(edges, lambda own: own[weight] <= SMALL, lambda own: own[effect] >= MUCH)


def rank_correlations(edges: pd.DataFrame, weight: str, effect: str) -> list[float]:
    """For each trained model: Spearman's rank correlation of weight and effect over the patches of an image, and of
    that the mean over images. Images in which one of the two does not vary are left out.

    >>> edges = pd.DataFrame({"model_seed": 0, "image": 0, "w": [0.1, 0.2, 0.7], "e": [0.0, 0.1, 0.9]})
    >>> rank_correlations(edges, "w", "e")
    [1.0]
    """
    keys = ["model_seed", "image"]
    ranks = edges.groupby(keys)[[weight, effect]].rank()
    centred = ranks - ranks.groupby([edges[key] for key in keys]).transform("mean")
    one, other = centred[weight], centred[effect]
    sums = pd.DataFrame({"both": one * other, "one": one**2, "other": other**2}).groupby([edges[key] for key in keys])
    total = sums.sum()
    size = np.sqrt(total["one"] * total["other"])
    ratio = (total["both"] / size)[size > 0]
    return [float(value) for value in ratio.groupby("model_seed").mean()]


def corners(edges: pd.DataFrame, weight: str, effect: str) -> tuple[float, float]:
    """Of all edges: the share with a large weight and no effect, and that with a small weight and a large effect."""
    return corner_shares(edges, weight, effect, weights=(SMALL, LARGE), effects=(NONE, MUCH))


Rows = Callable[[pd.DataFrame], pd.Series]


def _shares(edges: pd.DataFrame, among: Rows, which: Rows) -> list[float]:
    shares = []
    for _, own in edges.groupby("model_seed"):
        kept = own[among(own)]
        shares.append(float(which(kept).mean()) if len(kept) else 0.0)
    return shares
