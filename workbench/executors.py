"""Where studies run: this process, one block (a trained model × its conditions) after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from workbench.batch import Batch
from workbench.checkpoints import Trained
from workbench.devices import one_thread
from workbench.metrics import METRICS
from workbench.nearest import nearest
from workbench.patterns import derive, edge_weights
from workbench.running import MissingExamples, absent, run
from workbench.schema import check
from workbench.study import Study
from workbench.task import Task

NOTES = ["model", "model_seed", "condition", "note"]


def run_study(
    study: Study, task: Task, models: Mapping[str, Sequence[Trained]], *, progress: bool = True
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The results frame of a study, and its notes (model, model_seed, condition, note).

    models: label → trained models, each with a model seed of its own. Every condition of a trained model sees the same
    examples. A condition that cannot run raises the error of `run` with the condition's and the task's name before it.
    """
    unknown = [name for name in study.metrics if name not in METRICS]
    if unknown:
        raise KeyError(f"no metric {unknown[0]!r}. {nearest(unknown[0], list(METRICS))}")
    batch = task.sample(study.n, study.data_seed)
    donors = {name: _donor(study, task, batch, name) for name in study.donors}
    blocks, notes = [], []
    total = sum(len(trained) for trained in models.values()) * len(study.conditions)
    with one_thread(), tqdm(total=total, desc="measuring", unit="cell", disable=None if progress else True) as bar:
        for label, trained in models.items():
            for one in trained:
                block, said = _block(study, task, one, batch, donors, bar.update)
                blocks.append(block.assign(model=label, model_seed=one.seed))
                notes += [(label, one.seed, condition, note) for condition, note in said]
    return _frame(blocks, list(models), list(study.conditions)), pd.DataFrame(notes, columns=NOTES)


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Several results frames as one, categories in the order in which they first appear."""
    labels = {
        name: list(dict.fromkeys(c for f in frames for c in f[name].cat.categories))
        for name in ("model", "condition", "skipped")
    }
    out = pd.concat([f.astype({name: object for name in labels}) for f in frames], ignore_index=True)
    return out.astype({name: pd.CategoricalDtype(known) for name, known in labels.items()})


def _donor(study: Study, task: Task, batch: Batch, name: str) -> Batch:
    spec = study.donors[name]
    drawn = batch if spec.data_seed is None else task.sample(study.n, spec.data_seed)
    return drawn if spec.corrupt_seed is None else task.corrupt(drawn, spec.corrupt_seed)


def _block(
    study: Study, task: Task, trained: Trained, batch: Batch, donors: Mapping[str, Batch], tick: Any
) -> tuple[pd.DataFrame, list[tuple[str, str]]]:
    """One trained model under every condition."""
    model = trained.model
    batch = derive(model, batch, study.derived)
    skipped: dict[int, str] = {}
    for condition, interventions in study.conditions.items():
        try:
            found = absent(model, batch, interventions)
        except (KeyError, ValueError) as error:
            raise _named(error, condition, task) from error
        skipped |= {example: reason for example, reason in found.items() if example not in skipped}
    if skipped and study.on_missing == "raise":
        example, reason = next(iter(skipped.items()))
        raise MissingExamples(
            f"task {task.name!r}: {reason} in example {example} ({len(skipped)} of {len(batch)} examples are "
            "missing something); "
            "say on_missing='skip' in the study to drop them from every condition and count them"
        )
    keep = torch.tensor([i for i in range(len(batch)) if i not in skipped], dtype=torch.long)
    if not len(keep):
        raise MissingExamples(f"task {task.name!r}: no example is left; first: {next(iter(skipped.values()))}")
    kept, kept_donors = batch.select(keep), {name: donor.select(keep) for name, donor in donors.items()}
    notes: list[tuple[str, str]] = []
    parts = []
    for condition, interventions in study.conditions.items():
        try:
            out = run(model, kept, interventions, donors=kept_donors, positions="read")
        except (KeyError, ValueError, RuntimeError) as error:
            raise _named(error, condition, task) from error
        values = {name: METRICS[name](out.logits, out.batch).cpu().numpy() for name in study.metrics}
        if not interventions and study.weights:
            values |= {name: weight.cpu().numpy() for name, weight in edge_weights(model, kept, study.weights).items()}
        parts.append(_rows(condition, values, keep.numpy(), skipped, len(batch)))
        notes += [(condition, note) for note in out.notes]
        tick(1)
    return pd.concat(parts, ignore_index=True), notes


def _named(error: Exception, condition: str, task: Task) -> Exception:
    return type(error)(f"condition {condition!r} of task {task.name!r}: {error.args[0] if error.args else error}")


def _rows(
    condition: str, values: Mapping[str, np.ndarray], keep: np.ndarray, skipped: Mapping[int, str], n: int
) -> pd.DataFrame:
    columns: dict[str, Any] = {"condition": condition, "example": np.arange(n, dtype=np.int32)}
    columns["skipped"] = [skipped.get(example) for example in range(n)] if skipped else None
    for name, found in values.items():
        spread = np.full(n, np.nan, dtype=np.float32)
        spread[keep] = found
        columns[name] = spread
    return pd.DataFrame(columns)


def _frame(blocks: Sequence[pd.DataFrame], models: Sequence[str], conditions: Sequence[str]) -> pd.DataFrame:
    frame = pd.concat(blocks, ignore_index=True)
    reasons = sorted({reason for reason in frame["skipped"] if isinstance(reason, str)})
    frame["model"] = pd.Categorical(frame["model"], categories=list(models))
    frame["condition"] = pd.Categorical(frame["condition"], categories=list(conditions))
    frame["skipped"] = pd.Categorical(frame["skipped"], categories=reasons)
    frame["model_seed"] = frame["model_seed"].astype(np.int32)
    keys = ["model", "model_seed", "condition", "example", "skipped"]
    frame = frame[[*keys, *(name for name in frame.columns if name not in keys)]]
    check(frame)
    return frame
