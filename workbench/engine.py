"""Many conditions of one model on one batch, and what of each had to be computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from workbench.batch import Batch
from workbench.donors import Positions
from workbench.interventions import Intervention, donor_names
from workbench.metrics import AGAINST_CLEAN, METRICS
from workbench.running import OnMissing, Run, run

Engine = Literal["auto", "hooks"]


@dataclass(frozen=True, repr=False)
class Measured:
    """What one condition gave: metric → one value per example that ran [batch]; otherwise as `Run`.

    same: whether the logits are the clean ones, bit for bit, in every example.
    """

    values: Mapping[str, Tensor]
    kept: Tensor
    skipped: Mapping[int, str]
    notes: tuple[str, ...]
    same: bool
    engine: str


def measure_each(
    model: Any,
    batch: Batch,
    conditions: Mapping[str, Sequence[Intervention]],
    metrics: Sequence[str] = ("accuracy",),
    *,
    donors: Mapping[str, Batch] | None = None,
    on_missing: OnMissing = "raise",
    left_out: Mapping[int, str] | None = None,
    chunk_size: int = 4096,
    engine: Engine = "auto",
) -> dict[str, Measured]:
    """Metrics of a model under each condition, label → interventions; every condition sees the same examples."""
    runs = run_each(
        model,
        batch,
        {"": [], **conditions},
        donors=donors,
        positions="read",
        on_missing=on_missing,
        left_out=left_out,
        chunk_size=chunk_size,
        engine=engine,
    )
    clean, out = runs[""], {}
    for label in conditions:
        one = runs[label]
        values = {
            name: AGAINST_CLEAN[name](one.logits, one.batch, clean.logits)
            if name in AGAINST_CLEAN
            else METRICS[name](one.logits, one.batch)
            for name in metrics
        }
        same = bool((one.logits == clean.logits).all())
        out[label] = Measured(values, one.kept, one.skipped, one.notes, same, "hooks")
    return out


def run_each(
    model: Any,
    batch: Batch,
    conditions: Mapping[str, Sequence[Intervention]],
    *,
    donors: Mapping[str, Batch] | None = None,
    positions: Positions = "all",
    on_missing: OnMissing = "raise",
    left_out: Mapping[int, str] | None = None,
    chunk_size: int = 4096,
    engine: Engine = "auto",
) -> dict[str, Run]:
    """`run` under each condition, label → interventions; every condition sees the same examples."""
    out = {}
    for label, interventions in conditions.items():
        named = {name: (donors or {})[name] for name in donor_names(interventions)}
        out[label] = run(
            model,
            batch,
            interventions,
            donors=named,
            positions=positions,
            on_missing=on_missing,
            left_out=left_out,
            chunk_size=chunk_size,
        )
    return out
