"""What the lecture and its companions say about order, as claims: each sentence, and where its number has to lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analyses.order import DECODERS, POSITIONED
from analyses.order_permutations import CHANGED, SAME, SINGLE
from analyses.verdicts import exact, from_claims, from_seeds, joined, side_by_side
from workbench import Claim

LEARNED, HALF, ONE_IN_100 = 0.99, 0.5, 0.01
LONGEST = "8 pairs"
GIVEN = 0.95
"""The weight from which on a pattern is called "the previous token", as in the report on the lecture."""


def verdicts(frame: pd.DataFrame, permuted: pd.DataFrame, sinusoids: Mapping[str, Any], mode: float) -> pd.DataFrame:
    """Every claim, judged. frame: results of all lengths; permuted: `order_permutations.measured`; sinusoids:
    `order_sinusoids.measured`; mode: what guessing the most frequent digit gets."""
    return joined(
        *_permutations(permuted),
        *_sinusoids(sinusoids),
        from_claims(trained_claims(mode), frame),
        from_claims(comparisons(), side_by_side(frame)),
    )


def trained_claims(mode: float) -> list[Claim]:
    """The claims on one kind of model each."""
    learns = [
        _mean(f"learns-{kind}", f"With {kind} positions the lookup is learned.", kind, "accuracy", "greater", LEARNED)
        for kind in POSITIONED
    ]
    bare = [
        _mean("learns-none", "Without positions a causal model cannot do it.", "none", "accuracy", "less", HALF),
        _mean("learns-encoder", "An encoder with positions learns it.", "encoder, learned", "accuracy", "greater",
              LEARNED),
        Claim(
            id="bag",
            statement="An encoder without positions cannot tell which digit followed which letter: it does as well as "
            "the best guess that never uses the asked letter.",
            metric="accuracy", a="clean", model="encoder, none", direction="within", reference=mode, margin=0.03,
        ),
    ]  # fmt: skip
    further = [
        _mean("longer-learned", "Positions that were never trained are of no use: learned vectors fail on longer "
              "sequences.", "learned", "accuracy", "less", HALF, LONGEST),
        _mean("longer-sinusoidal", "Sinusoids carry over to sequences longer than any seen in training.", "sinusoidal",
              "accuracy", "greater", 0.9, LONGEST),
        _mean("longer-relative", "So does a number per offset, which says “the previous token” directly.", "relative",
              "accuracy", "greater", 0.9, LONGEST),
        _mean("longer-rotary", "So do turned queries and keys.", "rotary", "accuracy", "greater", 0.9, LONGEST),
    ]  # fmt: skip
    return [*learns, *bare, *further, *(claim for kind in DECODERS for claim in _route(kind))]


def comparisons() -> list[Claim]:
    """The claims that compare two kinds of model, on frames that are side by side."""
    return [
        Claim(
            id="as-good", statement="Learned and sinusoidal positions do nearly the same: within 1 answer in 100.",
            metric="accuracy", a="learned · clean", b="sinusoidal · clean", direction="within", margin=ONE_IN_100,
        ),
        Claim(
            id="carries-further", statement="On longer sequences sinusoids do better than learned vectors.",
            metric="accuracy", a=f"sinusoidal · {LONGEST}", b=f"learned · {LONGEST}", direction="greater", margin=0.1,
        ),
    ]  # fmt: skip


def _route(kind: str) -> list[Claim]:
    """The lookup's two steps in one kind of model: is it the same route?"""
    name = "without positions" if kind == "none" else f"{kind} positions"
    return [
        _mean(f"prev-{kind}", f"{name}: in layer 1 each digit reads the letter before it.", kind, "prev", "greater",
              GIVEN),
        Claim(
            id=f"first-step-{kind}",
            statement=f"{name}: cutting that edge at the matching digit loses more than half of the answers that "
            "cutting it at another digit keeps.",
            metric="accuracy", a="cut-hidden-control", b="cut-hidden", model=kind, direction="greater", margin=HALF,
        ),
        Claim(
            id=f"second-step-{kind}",
            statement=f"{name}: cutting the matching digit in layer 2 loses more than half of the answers that cutting "
            "another digit keeps.",
            metric="accuracy", a="cut-other", b="cut-answer", model=kind, direction="greater", margin=HALF,
        ),
    ]  # fmt: skip


def _mean(id: str, statement: str, model: str, metric: str, direction, margin: float, a: str = "clean") -> Claim:
    return Claim(id=id, statement=statement, metric=metric, a=a, model=model, direction=direction, margin=margin)


def _permutations(permuted: pd.DataFrame) -> list[pd.DataFrame]:
    """permuted: `order_permutations.measured`; what was not trained is judged as initialised."""
    fresh = {SINGLE, *(f"encoder, {kind}" for kind in POSITIONED[1:])}
    own = permuted[permuted["trained"] | permuted["model"].isin(fresh)]
    worst = own.groupby("model", observed=True)["largest"].max()
    least = own.groupby("model", observed=True)["smallest"].min()
    alone = "largest change over models and permutations, as a share of the largest logit"
    moved = "smallest change over models and permutations, as a share of the largest logit"
    return [
        exact("permutes", "Without positions, permuting an encoder's inputs permutes its outputs and changes nothing "
              "else.", alone, float(worst["encoder, none"]), 0, SAME),
        exact("woman", "So “woman” has the same vector in “the woman ate the raccoon” and in “the raccoon ate the "
              "woman”.", alone, float(worst["woman: encoder, none"]), 0, SAME),
        exact("woman-positions", "With positions it has not.", moved, float(least["woman: encoder, learned"]), CHANGED,
              math.inf),
        exact("one-causal-layer", "Under a causal mask, the last position of one layer still cannot tell the order of "
              "the tokens before it.", alone, float(worst[SINGLE]), 0, SAME),
        exact("mask-orders", "Under a causal mask, two layers without positions do tell the order.", moved,
              float(least["none"]), CHANGED, math.inf),
        *(
            exact(f"{kind}-orders", f"With {kind} positions, an encoder's outputs are not just permuted.", moved,
                  float(least[f"encoder, {kind}"]), CHANGED, math.inf)
            for kind in POSITIONED
        ),
    ]  # fmt: skip


def _sinusoids(found: Mapping[str, Any]) -> list[pd.DataFrame]:
    return [
        exact("offset-linear", "The encoding k places on is one matrix times the encoding here, whatever the place.",
              "largest error, 512 wide, 1,000 places, k = 1, 3, 16, 100", found["linear"], 0, 1e-10),
        exact("waves-from", "Wavelengths begin at 2π.", "shortest wavelength over 2π", found["shortest"], 1 - 1e-9,
              1 + 1e-9),
        exact("waves-to", "Wavelengths reach 10000 × 2π.", "longest wavelength over 2π, 512 wide", found["longest"],
              9999.5, 10000.5),
        exact("no-such-place", "A model with 500 learned positions cannot read 1,000 tokens.",
              "models that refuse, of 1", float(found["refused"]), 1, 1),
        exact("distinct", "Every position has a pattern that no other shares.",
              "smallest distance between two of 2,000 positions, 512 wide", found["distance"], 0.01, math.inf),
        exact("neighbours", "Positions near each other are the most alike.",
              "cosine at offset 1 less the largest at offsets 2 to 500, 512 wide", found["nearest"], 1e-9, 2),
        from_seeds("random-not-linear", "Vectors drawn at random have no such matrix: the best one misses more than "
                   "half.", "root mean square error over root mean square, 32 wide, 200 places",
                   found["random"], "greater", 0.5),
    ]  # fmt: skip
