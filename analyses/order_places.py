"""How the first step is taken at each place, and what is said when it is cut: looked at after the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from analyses.order import DATA_SEED, PAIRS, task
from workbench import Edges, cut, record, run
from workbench.checkpoints import Trained


def measured(trained: Mapping[str, Sequence[Trained]], n: int) -> pd.DataFrame:
    """A row a model: in layer 1, the mean weight of the first, second … digit on the letter before it; and of the
    answers under the cut of the matching digit's link to its letter, the share that are the digit of the next pair.

    Sequences are those of the study in which another pair follows the asked one, with another digit.
    """
    batch = task().sample(n, DATA_SEED)
    asked = (batch.tokens[:, :-1:2] == batch.tokens[:, -1:]).int().argmax(1)
    following = batch.tokens.gather(1, (2 * asked + 3).clamp(max=2 * PAIRS - 1)[:, None])[:, 0]
    kept = ((asked < PAIRS - 1) & (following != batch.labels[:, -1])).nonzero()[:, 0]
    chosen, following = batch.select(kept), following[kept]
    hidden = cut(Edges(layer=0, dest="answer", source="match"))
    rows = []
    for label, several in trained.items():
        for one in several:
            pattern = record(one.model, batch, [("pattern", 0)])["pattern", 0][:, 0]
            said = run(one.model, chosen, [hidden], positions="read").logits[:, 0].argmax(-1)
            weights = {f"digit {k + 1}": float(pattern[:, 2 * k + 1, 2 * k].mean()) for k in range(PAIRS)}
            share = float((said == following).double().mean())
            rows.append({"model": label, "model_seed": one.seed} | weights | {"next digit": share})
    return pd.DataFrame(rows)


def table(found: pd.DataFrame) -> pd.DataFrame:
    """Means over trained models, a row a kind."""
    means = found.drop(columns="model_seed").groupby("model", sort=False).mean()
    shown = means.map(lambda value: f"{value:.2f}").reset_index()
    return shown.rename(columns={"model": "positions", "next digit": "cut at the matching digit: says the next one"})
