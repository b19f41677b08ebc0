"""The claims of `context`, with the margins that were set before anything was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analyses.context import DECODER, ENCODER, KINDS
from analyses.verdicts import exact, from_claims, from_seeds, joined
from workbench import Claim

if TYPE_CHECKING:
    from analyses.context_measure import Measured

BEFORE = ("it", "nouns", "mask before", "words before")
"""Roles left of everything that differs between the two contexts."""
CHANGED = ("verb", "clue")
KNOWN = 0.95
"""Accuracy from which on a model can do what it was trained for."""
CLEAR, SAME = 0.3, 0.05
"""A loss of accuracy that is clear, and one that is none to speak of."""


def verdicts(found: Measured) -> pd.DataFrame:
    """A row a claim: vectors apart, then the pronoun, then masks."""
    blind = 1 / found.tasks["masked"].kinds
    return joined(
        *apart(found.apart),
        from_claims(_answers(), found.pronoun),
        *_weights(found.pronoun),
        from_claims(_masks(blind), found.masked),
    )


def apart(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Claims on the vectors of one token in two contexts."""
    left = table[table["role"].isin(BEFORE)]
    same = table[(table["stage"] == 0) & ~table["role"].isin(CHANGED)]
    return [
        exact("same-embedding", "Before the first layer a token has one vector in both contexts, whichever mask.",
              "largest difference of any number", float(same["largest"].max()), 0.0, 0.0),
        exact("decoder-left", "In a decoder nothing left of what differs ever parts.",
              "largest difference of any number, all layers", float(left[left["kind"] == DECODER]["largest"].max()),
              0.0, 0.0),
        _apart(table, "encoder-left-pronoun", "In an encoder `it` parts by the verb to its right.", "pronoun", "it", -1,
               0.1),
        _apart(table, "encoder-left-masked", "In an encoder a mask parts by a clue to its right.", "masked",
               "mask before", -1, 0.1),
        _apart(table, "encoder-first-layer", "In an encoder `it` parts in the first layer already.", "pronoun", "it", 1,
               SAME),
        _apart(table, "decoder-after", "To the right of what differs a decoder's vectors part as well.", "pronoun",
               "last", -1, 0.1, kind=DECODER),
    ]  # fmt: skip


def _apart(
    table: pd.DataFrame, id: str, statement: str, task: str, role: str, stage: int, margin: float, kind: str = ENCODER
) -> pd.DataFrame:
    own = table[(table["task"] == task) & (table["kind"] == kind) & (table["role"] == role)]
    at = int(own["stage"].max()) if stage < 0 else stage
    values = list(own[own["stage"] == at].sort_values("model_seed")["distance"])
    return from_seeds(id, statement, f"distance of {role} after layer {at}, {kind}", values, "greater", margin)


def _answers() -> list[Claim]:
    """What the noun meant is worth in the row of the last token, and in that of `it`."""
    out = []
    for kind in KINDS:
        out += [
            _claim(f"pronoun-{kind}-learned", f"The {kind} names the noun that the verb fits.", "clean", None, kind,
                   "greater", KNOWN),
            _claim(f"pronoun-{kind}-last", f"In the {kind} cutting the noun meant from the last token's row costs more "
                   "than cutting the nearest other.", "cut-last-nearest", "cut-last-referent", kind, "greater", CLEAR),
            _claim(f"pronoun-{kind}-it", f"In the {kind} cutting the noun meant from the row of `it` costs nothing.",
                   "clean", "cut-it-referent", kind, "within", SAME),
        ]  # fmt: skip
    return out


def _weights(frame: pd.DataFrame) -> list[pd.DataFrame]:
    return [
        from_seeds("pronoun-decoder-it-weight", "The decoder's `it`, which sees no verb, gives the noun meant what it "
                   "gives any other.", "weight of layer 2, `it`: noun meant − another", favour(frame, DECODER, "it", 1),
                   "within", 0.01),
        from_seeds("pronoun-encoder-it-weight", "The encoder's `it` gives the noun meant more.",
                   "weight of layer 2, `it`: noun meant − another", favour(frame, ENCODER, "it", 1), "greater", 0.05),
        *(from_seeds(f"pronoun-{kind}-last-weight", f"The {kind}'s last token gives the noun meant more.",
                     "weight of layer 3, last: noun meant − another", favour(frame, kind, "last", 2), "greater", 0.1)
          for kind in KINDS),
    ]  # fmt: skip


def favour(frame: pd.DataFrame, kind: str, dest: str, layer: int) -> list[float]:
    """For each trained model, the mean weight on the noun meant less that on one other noun."""
    own = frame[(frame["model"] == kind) & (frame["condition"] == "clean")]
    means = own.groupby("model_seed")[[f"{dest}-referent-{layer}", f"{dest}-distractors-{layer}"]].mean()
    return list(means[f"{dest}-referent-{layer}"] - means[f"{dest}-distractors-{layer}"])


def _masks(blind: float) -> list[Claim]:
    right, left = (f"{ENCODER}, told by the {side}" for side in ("right", "left"))
    causal_right, causal_left = (f"{DECODER}, told by the {side}" for side in ("right", "left"))
    row, every = "In the mask's row, both layers:", "With the right context cut from every row"
    return [
        _claim("encoder-right", "An encoder restores words told by their right.", "clean", None, right, "greater",
               KNOWN),
        _claim("encoder-left", "An encoder restores words told by their left.", "clean", None, left, "greater", KNOWN),
        _claim("decoder-right", "A decoder trained on the same guesses words told by their right.", "clean", None,
               causal_right, "within", 0.03, blind),
        _claim("decoder-left-words", "A decoder restores words told by their left.", "clean", None, causal_left,
               "greater", KNOWN),
        _claim("right-cut-right", f"{row} cutting the right context costs words told by the right.", "clean",
               "cut-right", right, "greater", CLEAR),
        _claim("right-cut-left", f"{row} cutting the right context costs words told by the left nothing.", "clean",
               "cut-right", left, "within", SAME),
        _claim("left-cut-left", f"{row} cutting the left context costs words told by the left.", "clean", "cut-left",
               left, "greater", CLEAR),
        _claim("left-cut-right", f"{row} cutting the left context costs words told by the right nothing.", "clean",
               "cut-left", right, "within", SAME),
        _claim("matched-right", f"{row} of equally many sources cut on either side, the right ones count for words "
               "told by the right.", "cut-near-left", "cut-near-right", right, "greater", CLEAR),
        _claim("matched-left", f"{row} of equally many sources cut on either side, the left ones count for words told "
               "by the left.", "cut-near-right", "cut-near-left", left, "greater", CLEAR),
        _claim("clue-right", f"{row} cutting the telling noun costs words told by the right more than cutting a noun "
               "of another clause.", "cut-other", "cut-told", right, "greater", CLEAR),
        _claim("clue-left", f"{row} cutting the telling noun costs words told by the left more than cutting a noun of "
               "another clause.", "cut-other", "cut-told", left, "greater", CLEAR),
        _claim("row-not-blind", "With the right context cut from its own row alone, a mask told by the right is still "
               "restored more often than by guessing.", "cut-right", None, right, "greater", blind + SAME),
        _claim("made-causal-right", f"{every}, a mask told by the right is restored by guessing alone.", "all-right",
               None, right, "less", blind + 0.03),
        _claim("made-causal-left", f"{every}, words told by the left are restored still.", "clean", "all-right", left,
               "within", SAME),
    ]  # fmt: skip


def _claim(
    id: str, statement: str, a: str, b: str | None, model: str, direction: str, margin: float,
    reference: float | None = None,
) -> Claim:  # fmt: skip
    return Claim(id=id, statement=statement, metric="accuracy", a=a, b=b, model=model, direction=direction,
                 margin=margin, reference=reference)  # fmt: skip
