"""What `heads` claims, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analyses.heads import LONGER, SHAPES, TRANSLATORS
from analyses.heads_tables import FACTS, FOUR, LEARNED, NAMED, ONE, TWO, Seen, by_head, first_right
from analyses.verdicts import from_claims, from_seeds, joined, side_by_side
from tasks.two_relations import TwoRelations
from workbench import Claim

WHOLE = ("clean", "equal")
"""The conditions in which kinds of model are compared."""


def verdicts(seen: Seen) -> pd.DataFrame:
    """A row a claim."""
    apart = [
        from_claims([one for one in claims() if one.a.split(" · ")[0] in kinds], side_by_side(_of(seen.frame, kinds)))
        for kinds in (SHAPES, TRANSLATORS)
    ]
    return joined(*apart, _sooner(seen), _divided(seen), _nameable(seen))


def _of(frame: pd.DataFrame, kinds: Mapping[str, Any]) -> pd.DataFrame:
    """Whole models of these kinds, all measured on the same examples."""
    own = frame[frame["model"].isin(list(kinds)) & frame["condition"].isin(WHOLE)]
    own = own.assign(**{name: own[name].cat.remove_unused_categories() for name in ("model", "condition")})
    known = frame.attrs.get("measured", {})
    own.attrs = {"measured": {label: seeds for label, seeds in known.items() if label in kinds}}
    return own


def claims() -> list[Claim]:
    """The claims about whole models, kinds of model side by side."""
    guess = TwoRelations().guessing()
    return [
        _claim("blind", "one head that gathers once does no better than knowing both facts and not which is which",
               ONE, None, "less", guess["unordered"] + 0.05),
        _claim("longer", "nor does it when it is trained on three times as many batches", LONGER, None, "less",
               guess["unordered"] + 0.05),
        _claim("two", "two heads do better than one by more than 1 answer in 10", TWO, ONE, "greater", 0.1),
        _claim("four", "four heads do as well as two, within 1 answer in 100", FOUR, TWO, "within", 0.01),
        _claim("twice", "one head that may gather twice (three layers) does better than one that gathers once, by more "
               "than 1 answer in 10", "1 head, 3 layers", ONE, "greater", 0.1),
        _claim("once-1", "one layer cannot look up, with one head: no better than a random letter's answer",
               "1 head, 1 layer", None, "less", guess["seen"] + 0.05),
        _claim("once-4", "nor with four heads", "4 heads, 1 layer", None, "less", guess["seen"] + 0.05),
        _claim("equal", "two heads tell the order by their weights: with the facts weighed alike in both, they do no "
               "better than knowing both facts and not which is which", TWO, None, "less", guess["unordered"] + 0.05,
               condition="equal"),
        *(_claim(f"translate-{heads}", f"on translate, {heads} heads do as well as one, within 1 sentence in 100",
                 f"translate, {heads} heads", "translate, 1 head", "within", 0.01, metric="exact_match")
          for heads in (2, 4)),
    ]  # fmt: skip


def _claim(
    id: str, says: str, a: str, b: str | None, direction: Any, margin: float, condition: str = "clean",
    metric: str = "accuracy",
) -> Claim:  # fmt: skip
    label = {"a": f"{a} · {condition}", "b": None if b is None else f"{b} · {condition}"}
    return Claim(id=id, statement=says, metric=metric, direction=direction, margin=margin, **label)


def _sooner(seen: Seen) -> pd.DataFrame:
    steps = first_right(seen.curves)
    return from_seeds(
        "later", "one head that gathers once learns the task more than 100 steps later than two heads",
        f"step at which {LEARNED:.0%} of a training batch is right (the last, where none is): {ONE} − {TWO}",
        (steps[ONE] - steps[TWO]).to_numpy(), "greater", 100,
    )  # fmt: skip


def owners(names: pd.DataFrame, kind: str, layer: int = 1) -> pd.DataFrame:
    """For each trained model: which two heads of the gathering layer divide the facts between them best, and the
    smaller of the two weights. Columns first, second (heads), weight; the index is the model seed."""
    own = names[(names["model"] == kind) & (names["layer"] == layer) & (names["rows"] == "last")]
    rows = {}
    for seed, one in own.groupby("model_seed"):
        table = one.pivot(index="head", columns="name", values="weight")
        pairs = [
            (min(table.loc[a, "the first fact"], table.loc[b, "the second fact"]), a, b)
            for a in table.index
            for b in table.index
            if a != b
        ]
        rows[seed] = max(pairs)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["weight", "first", "second"])


def _divided(seen: Seen) -> pd.DataFrame:
    """Whether two heads take a fact each, and what cutting either does."""
    found = owners(seen.names, TWO)
    shown = from_seeds(
        "divided",
        "two heads divide the facts: in layer 1 one gives the first more than half of its weight, the other the second",
        "the smaller of the two weights",
        found["weight"].to_numpy(),
        "greater",
        NAMED,
    )
    parted = []
    for fact in FACTS:
        own = f"cutting the {fact} fact in its head loses more than half of the answers that cutting another letter's "
        elsewhere = f"cutting the {fact} fact in the other head changes under 1 answer in 100"
        cuts = [{"a": f"{whose} head: {fact} control", "b": f"{whose} head: {fact}"} for whose in ("own", "other")]
        about: dict[str, Any] = {"metric": "accuracy", "model": TWO}
        parted += [
            Claim(
                id=f"own-{fact}",
                statement=own + "digit there keeps",
                direction="greater",
                margin=0.5,
                **cuts[0],
                **about,
            ),
            Claim(id=f"other-{fact}", statement=elsewhere, direction="within", margin=0.01, **cuts[1], **about),
        ]
    return pd.concat([shown, from_claims(parted, assigned(seen.frame, found))], ignore_index=True)


def assigned(frame: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """The cuts of two heads in layer 1, named by whose fact is cut where: "own head: first", "other head: first"."""
    rows = []
    for seed, heads in found[list(FACTS)].iterrows():
        for fact, other in zip(FACTS, FACTS[::-1], strict=True):
            for whose, owner in (("own", fact), ("other", other)):
                for label in (fact, f"{fact} control"):
                    place = f"L1H{int(heads[owner])}: {label}"
                    mine = (frame["model"] == TWO) & (frame["model_seed"] == seed) & (frame["condition"] == place)
                    rows.append(frame[mine].assign(condition=f"{whose} head: {label}"))
    return pd.concat(rows, ignore_index=True).astype({"condition": "category"})


def _nameable(seen: Seen) -> pd.DataFrame:
    table = by_head(seen)
    rows = []
    for kind, id in ((FOUR, "unnamed-two-relations"), ("translate, 4 heads", "unnamed-translate")):
        shares = table[table["model"] == kind].groupby("model_seed")["nameable"].mean()
        rows.append(from_seeds(
            id, f"{kind}: fewer than nine heads in ten have a nameable pattern", "share of heads", shares.to_numpy(),
            "less", 0.9,
        ))  # fmt: skip
    return pd.concat(rows, ignore_index=True)
