"""Contrasts on a run's page: every condition against the one without interventions, and the tests in their families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.page_run import Finished
from workbench.page_tables import Table, estimates, number, text
from workbench.results import contrast, paired_tests


@dataclass(frozen=True)
class Changes:
    """Contrasts with the condition without interventions; `families`: (metric, tests corrected together)."""

    table: Table | None
    families: list[tuple[str, int]]
    why_not: str


def contrasts(run: Finished) -> Changes:
    """Every condition minus the one without interventions, paired by example, with p-values corrected in families."""
    untouched = [label for label, edits in run.study.conditions.items() if not edits]
    if not untouched:
        return Changes(None, [], "the study has no condition without interventions to compare with")
    rows, families, table = [], [], run.summary
    for metric in run.metrics:
        asked = _asked(table[(table["metric"] == metric) & (table["run"] > 0)], untouched)
        if asked:
            tests = paired_tests(run.frame, list(dict.fromkeys((a, b) for _, a, b in asked)), metric)
            families.append((metric, int(tests["family"].iloc[0])))
            rows += [_contrast(run, tests, metric, *one) for one in asked]
    if not rows:
        return Changes(None, [], "no other condition was measured in a kind of model that has it")
    found = pd.DataFrame(rows)
    columns = (
        text("condition", found["a"]), text("less", found["b"]), text("model", found["model"]),
        text("metric", found["metric"]), *estimates(run, found, "difference")[:5],
        number("models", found["n_models"]), number("models with p < 0.05", found["below"]),
        number("smallest p", found["smallest"], p_value), number("largest p", found["largest"], p_value),
        number("tests in family", found["family"]), text("interval", found["interval"]), text("test", found["test"]),
    )  # fmt: skip
    return Changes(Table("Change of the metric, paired by example, with 95% intervals", columns), families, "")


def _asked(rows: pd.DataFrame, untouched: Sequence[str]) -> list[tuple[str, str, str]]:
    """(kind of model, condition, the first condition without interventions that it has)."""
    out = []
    for model, own in rows.groupby("model", observed=True, sort=False):
        there = list(own["condition"])
        base = next((label for label in untouched if label in there), None)
        out += [(str(model), label, base) for label in there if base is not None and label != base]
    return out


def _contrast(run: Finished, tests: pd.DataFrame, metric: str, model: str, a: str, b: str) -> dict[str, Any]:
    row = contrast(run.frame, a, b, metric, model).iloc[0].to_dict()
    own = tests[(tests["model"] == model) & (tests["a"] == a) & (tests["b"] == b)]
    return row | {
        "below": int((own["p_holm"] < 0.05).sum()), "smallest": own["p_holm"].min(), "largest": own["p_holm"].max(),
        "family": int(own["family"].iloc[0]), "test": ", ".join(dict.fromkeys(own["test"])),
    }  # fmt: skip


def p_value(p: float) -> str:
    """A p-value; one that is too small for a float is said to be below 1e-300.

    >>> [p_value(p) for p in (0.04321, 1.0, 0.0)]
    ['0.043', '1', 'below 1e-300']
    """
    return "below 1e-300" if p < 1e-300 else f"{p:.2g}"
