"""Contrasts as a table, and on a run's page: every condition against the one without interventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.nearest import nearest
from workbench.page_run import Finished
from workbench.page_tables import Table, estimates, number, text
from workbench.results import contrast, paired_tests
from workbench.tables import p_value

__all__ = ["contrast_table", "contrasts"]


@dataclass(frozen=True)
class Changes:
    """Contrasts with the condition without interventions; `families`: (metric, tests corrected together).

    found: a row a contrast, with raw numbers. tests: metric → a row a contrast and trained model.
    """

    table: Table | None
    families: list[tuple[str, int]]
    why_not: str
    found: pd.DataFrame
    tests: Mapping[str, pd.DataFrame]


def contrast_table(
    frame: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    metric: str = "accuracy",
    model: str | None = None,
    level: float = 0.95,
) -> pd.DataFrame:
    """One row per pair (a, b) of conditions: `results.contrast`'s, and what the trained models' own tests say.

    Besides the columns of `contrast`: smallest_p and largest_p of the trained models' paired tests, corrected by Holm
    over all of them in all pairs, n_below (trained models with p < 0.05), family (how many tests that is) and test.
    The rows of each trained model are those of `paired_tests`, with the same family.

    Raises ValueError as `contrast` and `paired_tests` do.

    >>> frame = pd.DataFrame({"model": "m", "model_seed": 0, "condition": ["clean", "cut"], "example": 0,
    ...     "skipped": [None, None], "accuracy": [1.0, 0.0]}).astype(dict.fromkeys(["model", "condition", "skipped"],
    ...     "category"))
    >>> contrast_table(frame, [("cut", "clean")])[["a", "b", "estimate", "largest_p", "family"]].values.tolist()
    [['cut', 'clean', -1.0, 1.0, 1]]
    """
    own = frame if model is None else frame[frame["model"] == model]
    if not len(own):
        raise ValueError(f"model {model!r} is not in the results. {nearest(str(model), list(frame['model'].unique()))}")
    tests = paired_tests(own, pairs, metric)
    return pd.DataFrame([tested(contrast(own, a, b, metric, model, level), tests) for a, b in pairs])


def tested(row: pd.DataFrame, tests: pd.DataFrame) -> dict[str, Any]:
    """The one row of a contrast, with what its trained models' tests say together."""
    one = row.iloc[0].to_dict()
    own = tests[(tests["model"] == one["model"]) & (tests["a"] == one["a"]) & (tests["b"] == one["b"])]
    return one | {
        "smallest_p": own["p_holm"].min(), "largest_p": own["p_holm"].max(),
        "n_below": int((own["p_holm"] < 0.05).sum()), "family": len(tests),
        "test": ", ".join(dict.fromkeys(own["test"])),
    }  # fmt: skip


def contrasts(run: Finished) -> Changes:
    """Every condition minus the one without interventions, paired by example, with p-values corrected in families."""
    untouched = [label for label, edits in run.study.conditions.items() if not edits]
    if not untouched:
        return _none("the study has no condition without interventions to compare with")
    rows, families, kept, table = [], [], {}, run.summary
    for metric in run.metrics:
        asked = _asked(table[(table["metric"] == metric) & (table["run"] > 0)], untouched)
        if asked:
            tests = paired_tests(run.frame, list(dict.fromkeys((a, b) for _, a, b in asked)), metric)
            kept[metric] = tests
            families.append((metric, int(tests["family"].iloc[0])))
            rows += [tested(contrast(run.frame, a, b, metric, model), tests) for model, a, b in asked]
    if not rows:
        return _none("no other condition was measured in a kind of model that has it")
    found = pd.DataFrame(rows)
    columns = (
        text("condition", found["a"]), text("less", found["b"]), text("model", found["model"]),
        text("metric", found["metric"]), *estimates(run, found, "difference")[:5],
        number("models", found["n_models"]), number("models with p < 0.05", found["n_below"]),
        number("smallest p", found["smallest_p"], p_value), number("largest p", found["largest_p"], p_value),
        number("tests in family", found["family"]), text("interval", found["interval"]), text("test", found["test"]),
    )  # fmt: skip
    return Changes(
        Table("Change of the metric, paired by example, with 95% intervals", columns), families, "", found, kept
    )


def _none(why: str) -> Changes:
    return Changes(None, [], why, pd.DataFrame(), {})


def _asked(rows: pd.DataFrame, untouched: Sequence[str]) -> list[tuple[str, str, str]]:
    """(kind of model, condition, the first condition without interventions that it has)."""
    out = []
    for model, own in rows.groupby("model", observed=True, sort=False):
        there = list(own["condition"])
        base = next((label for label in untouched if label in there), None)
        out += [(str(model), label, base) for label in there if base is not None and label != base]
    return out
