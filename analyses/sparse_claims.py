"""The claims on sparse attention, their margins, and their verdicts."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from analyses.sparse import SUFFICES, settings
from analyses.verdicts import exact, from_claims, joined, side_by_side
from workbench import Claim

CHANCE, MORE, HALF, ARRIVES = 0.03, 0.05, 0.5, 0.99
"""How far a model may stand above its bound by the draw of 2,000 sequences; what counts as more; as half; as all."""


def sufficient(results: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The claim of each setting that it suffices: more than 99% of the best rate, which is 1 without a mask."""
    claims = {
        name: [
            Claim(id=f"{name}: {label}", statement="it suffices: more than 99% of the best rate", metric="accuracy",
                  a="clean", model=label, direction="greater", margin=SUFFICES)
            for label in settings(name)
        ]
        for name in results
    }  # fmt: skip
    return joined(*(from_claims(claims[name], frame) for name, frame in results.items()))


def verdicts(results: Mapping[str, pd.DataFrame], known: pd.DataFrame, crossed: pd.DataFrame) -> pd.DataFrame:
    """A row a claim: each setting's, those on two masks, and those on what crosses. known: what the masks allow."""
    fits, total = sufficient(results), len(known)
    best = known.set_index(known["task"] + ": " + known["setting"])["best rate"]
    leaks, arrived = int(crossed["moved beyond"].sum()), float(crossed["moved"].sum() / crossed["can"].sum())
    return joined(
        fits,
        from_claims(_pairs(), side_by_side(results["lookup"])),
        exact("rule", "a setting suffices just where two steps can give every answer", f"settings of {total} so sorted",
              total - len(missorted(fits, known)), total, total),
        exact("bound", "no model is better than what can reach it allows", "the most by which a model is above it",
              above(results, best), -1.0, CHANCE),
        exact("leak", "nothing crosses that the masks do not let through", "edges moved beyond reach", leaks, 0, 0),
        exact("arrives", "what can arrive does", "share of edges in reach that are moved", arrived, ARRIVES, 1),
    )  # fmt: skip


def missorted(fits: pd.DataFrame, known: pd.DataFrame) -> list[str]:
    """The settings, as "task: setting", whose verdict is not what the rule of two steps says."""
    two = dict(zip(known["task"] + ": " + known["setting"], known["two steps"], strict=True))
    rule = ["supported" if two[id] > SUFFICES else "not supported" for id in fits["id"]]
    return fits.loc[fits["verdict"] != rule, "id"].tolist()


def above(results: Mapping[str, pd.DataFrame], best: pd.Series) -> float:
    """The most by which a trained model's accuracy is above its setting's exact best rate; best: by "task: setting"."""
    return max(
        float(means - best[f"{name}: {label}"])
        for name, frame in results.items()
        for (label, _), means in frame.groupby(["model", "model_seed"], observed=True)["accuracy"].mean().items()
    )


def _pairs() -> list[Claim]:
    first, second = (f"{label} · clean" for label in ("window 2, then full", "full, then window 2"))
    deep, flat = (f"window 3 × {layers} · clean" for layers in (4, 2))
    return [
        Claim(id="order", statement="the same two masks in the other order lose more than half of the answers",
              metric="accuracy", a=first, b=second, direction="greater", margin=HALF),
        Claim(id="depth", statement="two more layers of the same window bring in answers from beyond it",
              metric="accuracy", a=deep, b=flat, direction="greater", margin=MORE),
    ]  # fmt: skip
