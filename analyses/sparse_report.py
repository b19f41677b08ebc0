"""The report on sparse attention: what each mask lets through, what its models reach, claims, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses.finding import Finding
from analyses.sparse import DATA_SEED, settings, study, tasks
from analyses.sparse_claims import missorted, sufficient, verdicts
from analyses.sparse_reach import best_rate, influence, reach, two_steps
from workbench import Recipe, summary
from workbench.checkpoints import Trained
from workbench.figures import accuracy_under_intervention, dest_source_map
from workbench.figures.effects import seed_means
from workbench.tables import percent

SEQUENCES = 64
"""On which influence is measured."""
FELT, LAST = 0.01, 9
"""How far a vector has to move to be counted in a map, by its length; how many destinations a map shows."""
MAPS = {
    "map-lookup-window": ("lookup", "window 3 × 4"),
    "map-lookup-first": ("lookup", "window 2 and first × 2"),
    "map-induction-window": ("induction", "window 5 × 4"),
    "map-induction-block": ("induction", "block 8 × 2"),
}
Known = Mapping[str, Mapping[str, Sequence[Trained]]]


def finding(trained: Known, results: Mapping[str, pd.DataFrame], made: Mapping[str, Recipe], quick: bool) -> Finding:
    """All that the report needs, from the models and their results."""
    known = allowed()
    moved = {
        (task, label): torch.stack([influence(one.model, tasks()[task], _few(task)) for one in several])
        for task, kinds in trained.items()
        for label, several in kinds.items()
    }
    crossed, shown = crossing(moved), measured(known, results)
    n = int(results["lookup"]["example"].nunique())
    return Finding(
        name="sparse",
        quick=quick,
        verdicts=verdicts(results, known, crossed),
        tables={"settings": shown, "crossing": crossed},
        figures={f"accuracy-{task}": _accuracy(task, results[task], known) for task in results} | _maps(moved),
        frames=results,
        words={
            "recipes": made,
            "n": n,
            "shown": _printed(shown),
            "crossed": _last(crossed),
            "n_moved": SEQUENCES,
            "felt": FELT,
            "missorted": missorted(sufficient(results), known),
        },
        trained={f"{task}: {label}": several for task, kinds in trained.items() for label, several in kinds.items()},
        studies={"both": study(n)},
        tasks=tasks(),
    )


def allowed() -> pd.DataFrame:
    """What the masks say before anything is trained, a row a setting: the positions that can reach the one that is
    read last, the exact best rate that this leaves, and what two steps give."""
    rows = []
    for name, task in tasks().items():
        for label, masks in settings(name).items():
            after = reach(masks, task.length)
            rows.append(
                {
                    "task": name, "setting": label, "layers": len(masks), "reach": int(after[-1][-1].sum()),
                    "of": task.length, "best rate": best_rate(task, after[-1]), "two steps": two_steps(task, masks),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def measured(known: pd.DataFrame, results: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """`allowed` beside the accuracy of the models, and whether the setting suffices."""
    rows = []
    for name, frame in results.items():
        kept = summary(frame)
        for row in kept[kept["metric"] == "accuracy"].to_dict("records"):
            rows.append({"task": name, "setting": str(row["model"])} | {
                to: row[of] for of, to in (("estimate", "accuracy"), ("low", "low"), ("high", "high"),
                                           ("seed_low", "lowest seed"), ("seed_high", "highest seed"))
            })  # fmt: skip
    out = known.merge(pd.DataFrame(rows), on=["task", "setting"], validate="one_to_one")
    verdict = sufficient(results).set_index("id")["verdict"]
    return out.assign(suffices=[verdict[f"{one.task}: {one.setting}"] for one in out.itertuples()])


def crossing(moved: Mapping[tuple[str, str], Tensor]) -> pd.DataFrame:
    """Layer by layer: edges in reach of each other (`can`), those of them that moved in some model (`moved`), those
    that moved and could not (`moved beyond`); then the same of the last position, and how far away its furthest is.
    moved: (task, setting) → influence [model layer dest source batch]."""
    rows = []
    for (name, label), several in moved.items():
        for layer, can in enumerate(reach(settings(name)[label], tasks()[name].length)):
            does = (several[:, layer] > 0).any(-1).any(0)
            last, there = can[-1].nonzero().flatten(), (does[-1] & can[-1]).nonzero().flatten()
            rows.append(
                {
                    "task": name, "setting": label, "layer": layer, "can": int(can.sum()),
                    "moved": int((does & can).sum()), "moved beyond": int((does & ~can).sum()),
                    "last can": len(last), "last moved": len(there),
                    "furthest can": len(can) - 1 - int(last.min()), "furthest moved": len(can) - 1 - int(there.min()),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _few(task: str) -> Any:
    return tasks()[task].sample(SEQUENCES, DATA_SEED)


def _last(crossed: pd.DataFrame) -> pd.DataFrame:
    """A row a setting: how many sources have reached the last position after each layer, by the mask and measured."""
    rows = []
    for (name, label), own in crossed.groupby(["task", "setting"], sort=False):
        steps = [" → ".join(map(str, own[column])) for column in ("last can", "last moved", "furthest moved")]
        columns = ("reach the last position, by the mask", "measured", "furthest, measured")
        rows.append({"task": name, "setting": label} | dict(zip(columns, steps, strict=True)))
    return pd.DataFrame(rows)


def _printed(shown: pd.DataFrame) -> pd.DataFrame:
    out = shown[["task", "setting", "layers"]].copy()
    out["reach the last"] = shown["reach"].astype(str) + " of " + shown["of"].astype(str)
    for name in ("best rate", "two steps", "accuracy"):
        out[name] = shown[name].map(percent)
    for name, ends in (("95% interval", ("low", "high")), ("seeds", ("lowest seed", "highest seed"))):
        out[name] = [
            f"{percent(low)} to {percent(high)}" for low, high in zip(*(shown[end] for end in ends), strict=True)
        ]
    said = {"supported": "yes", "not supported": "no", "undecided": "undecided"}
    return out.assign(suffices=shown["suffices"].map(said))


def _accuracy(task: str, frame: pd.DataFrame, known: pd.DataFrame) -> Any:
    """Each setting's accuracy, its label with the exact best rate."""
    table, seeds = (
        one.assign(condition=one["model"].astype(str)) for one in (summary(frame), seed_means(frame, "accuracy"))
    )
    own = known[known["task"] == task]
    said = {one.setting: f"{one.setting}: at best {percent(best)}" for one, best in
            zip(own.itertuples(), own["best rate"], strict=True)}  # fmt: skip
    guess = {"lookup": ("mode", "guess: the most frequent digit"), "induction": ("position", "guess: by position")}[
        task
    ]
    return accuracy_under_intervention(
        table[table["metric"] == "accuracy"],
        seeds.drop(columns="model"),
        {guess[1]: tasks()[task].guessing()[guess[0]]},
        order=list(said),
        labels=said,
        interval="mean, 95% interval over models and sequences",
        title=f"{task}: accuracy by mask and depth",
    )


def _maps(moved: Mapping[tuple[str, str], Tensor]) -> dict[str, Any]:
    """In how many sequences each source moves each of the last positions, layer by layer, the mean over models; later
    sources are crossed out."""
    return {
        name: dest_source_map(
            _edges((moved[of] > FELT).double().mean((0, -1))),
            value="share",
            label=f"share of sequences that move by over {FELT:.0%}",
            hidden=[
                (dest, source) for dest, source in combinations(range(moved[of].shape[2]), 2) if dest in _shown(of)
            ],
            limits=(0.0, 1.0),
            columns=2,
            title=f"{of[0]}, {of[1]}: what another token at a source moves",
        )
        for name, of in MAPS.items()
    }


def _shown(of: tuple[str, str]) -> range:
    length = tasks()[of[0]].length
    return range(max(length - LAST, 0), length)


def _edges(share: Tensor) -> pd.DataFrame:
    """A share [layer dest source] as rows, of the last destinations; later sources have no value."""
    rows = [
        {"layer": layer, "dest": dest, "source": source, "share": float("nan") if source > dest else value}
        for layer, table in enumerate(share.tolist())
        for dest, row in list(enumerate(table))[-LAST:]
        for source, value in enumerate(row)
    ]
    return pd.DataFrame(rows)
