"""Where studies run: this process, one block (a trained model × its conditions) after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from workbench.batch import Batch
from workbench.checkpoints import Trained
from workbench.devices import one_thread
from workbench.interventions import donor_names
from workbench.locations import Edges
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

    models: label → trained models, each with a model seed of its own, or wrapped ones, numbered in order. Every
    condition of a model sees the same examples. A condition that cannot run raises the error of `run` with the
    condition's and the task's name before it; an example without any edge of a weight counts as missing, as one that a
    condition cannot act on does. Raises KeyError for an unknown metric or donor, ValueError where there is no model.
    """
    unknown = [name for name in study.metrics if name not in METRICS]
    if unknown:
        raise KeyError(f"no metric {unknown[0]!r}. {nearest(unknown[0], list(METRICS))}")
    for condition, interventions in study.conditions.items():
        if undeclared := sorted(donor_names(interventions) - set(study.donors)):
            say = f"no donor {undeclared[0]!r} is declared in the study. {nearest(undeclared[0], sorted(study.donors))}"
            raise _named(KeyError(say), f"condition {condition!r}", task)
    models = _trained(models)
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
                if elsewhere := _trained_elsewhere(one, task):
                    notes.append((label, one.seed, "every", elsewhere))
    frame = _frame(blocks, list(models), list(study.conditions))
    frame.attrs["examples"] = batch.digest()
    frame.attrs["dtypes"] = {label: sorted({_dtype(one.model) for one in several}) for label, several in models.items()}
    return frame, pd.DataFrame(notes, columns=NOTES)


def _trained(models: Mapping[str, Sequence[Any]]) -> dict[str, list[Trained]]:
    """The models as trained ones, a bare model numbered by its place; checked."""
    if not isinstance(models, Mapping) or not all(isinstance(several, Sequence) for several in models.values()):
        raise TypeError("models come as lists by label, as {'two layers': [trained, ...]}, also when there is one")
    known = {label: [_numbered(i, one) for i, one in enumerate(several)] for label, several in models.items()}
    _check_models(known)
    return known


def _numbered(number: int, one: Any) -> Any:
    if not all(hasattr(one, name) for name in ("parts", "sees", "logits")):
        return one
    digest = hashlib.sha256()
    for name, value in one.state_dict().items():
        digest.update(name.encode() + value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return Trained(one, number, Path(), [], {"weights_sha256": digest.hexdigest()})


def _check_models(models: Mapping[str, Sequence[Trained]]) -> None:
    if not any(models.values()):
        raise ValueError(f"no trained models to study: {dict(models)}; give at least one under some label")
    for label, several in models.items():
        if wrong := [one for one in several if not isinstance(one, Trained)]:
            raise TypeError(f"{label!r} holds a {type(wrong[0]).__name__}; give what `train`, `load` and `wrap` return")
        for what, values in {
            "model seed": [one.seed for one in several],
            "weights": [one.about["weights_sha256"] for one in several if "weights_sha256" in one.about],
        }.items():
            if len(set(values)) < len(values):
                raise ValueError(f"two models under {label!r} have the same {what}; each trained model counts once")


def _trained_elsewhere(trained: Trained, task: Task) -> str | None:
    """A note where a model was trained on another task than it is studied on."""
    known = trained.about.get("definition", {}).get("task")
    if known is None:
        return None
    if (known.get("name"), known.get("arguments")) == (task.name, task.model_dump()):
        return None
    return f"trained on task {known.get('name')!r} with {known.get('arguments')}, studied on another"


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Several results frames as one, categories in the order in which they first appear.

    Raises ValueError where one trained model was measured on other examples in one frame than in another: they would
    be paired though they are not the same.
    """
    examples: dict[tuple[str, int], str] = {}
    for frame in frames:
        for model, seed in frame[["model", "model_seed"]].drop_duplicates().itertuples(index=False):
            drawn = frame.attrs.get("examples", "unknown")
            if examples.setdefault((model, seed), drawn) != drawn:
                raise ValueError(
                    f"{model!r}, model seed {seed}, was measured on other examples in one frame than in another; "
                    "join studies of one task, n and data seed"
                )
    labels = {
        name: list(dict.fromkeys(c for f in frames for c in f[name].cat.categories))
        for name in ("model", "condition", "skipped")
    }
    out = pd.concat([f.astype({name: object for name in labels}) for f in frames], ignore_index=True)
    return out.astype({name: _labels(known) for name, known in labels.items()})


def _labels(known: Sequence[str]) -> pd.CategoricalDtype:
    """A category of text even where there is none yet: Parquet forgets a category of nothing in particular."""
    return pd.CategoricalDtype(pd.Index(known, dtype="str"))


def _dtype(model: Any) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def _donor(study: Study, task: Task, batch: Batch, name: str) -> Batch:
    spec = study.donors[name]
    drawn = batch if spec.data_seed is None else task.sample(study.n, spec.data_seed)
    return drawn if spec.corrupt_seed is None else task.corrupt(drawn, spec.corrupt_seed)


def _block(
    study: Study, task: Task, trained: Trained, batch: Batch, donors: Mapping[str, Batch], tick: Any
) -> tuple[pd.DataFrame, list[tuple[str, str]]]:
    """One trained model under every condition."""
    model = trained.model
    try:
        batch = derive(model, batch, study.derived, on_missing=study.on_missing)
    except (KeyError, ValueError) as error:
        raise _named(error, "derived relations", task) from error
    skipped = _missing(study, task, model, batch)
    keep = torch.tensor([i for i in range(len(batch)) if i not in skipped], dtype=torch.long)
    if not len(keep):
        raise MissingExamples(f"task {task.name!r}: no example is left; first: {next(iter(skipped.values()))}")
    notes: list[tuple[str, str]] = []
    parts = []
    for condition, interventions in study.conditions.items():
        try:
            named = {name: donors[name] for name in donor_names(interventions)}
            out = run(model, batch, interventions, donors=named, positions="read", left_out=skipped)
        except (KeyError, ValueError, RuntimeError) as error:
            raise _named(error, f"condition {condition!r}", task) from error
        values = {name: METRICS[name](out.logits, out.batch).cpu().numpy() for name in study.metrics}
        if not interventions and study.weights:
            values |= {
                name: weight.cpu().numpy()
                for name, weight in edge_weights(model, batch.select(keep), study.weights).items()
            }
        parts.append(_rows(condition, values, keep.numpy(), skipped, len(batch)))
        notes += [(condition, note) for note in out.notes]
        tick(1)
    return pd.concat(parts, ignore_index=True), notes


def _missing(study: Study, task: Task, model: Any, batch: Batch) -> dict[int, str]:
    """Examples in which some condition has nothing to act on, or a weight no edge: example → the first reason."""
    out: dict[int, str] = {}
    for where, find in _needs(study, model, batch):
        try:
            found = find()
        except (KeyError, ValueError) as error:
            raise _named(error, where, task) from error
        if found and study.on_missing == "raise":
            example, reason = next(iter(found.items()))
            say = (
                f"{reason} in example {example} ({len(found)} of {len(batch)} examples are missing something); say "
                "on_missing='skip' in the study to drop them from every condition and count them"
            )
            raise _named(MissingExamples(say), where, task)
        out |= {example: reason for example, reason in found.items() if example not in out}
    return out


def _needs(study: Study, model: Any, batch: Batch) -> Iterator[tuple[str, Callable[[], dict[int, str]]]]:
    """What of the study needs something in each example, and a function that finds those without: example → reason."""
    for condition, interventions in study.conditions.items():
        yield f"condition {condition!r}", partial(absent, model, batch, interventions)
    for name, edges in study.weights.items():
        yield f"weight {name!r}", partial(_unweighed, model, batch, name, edges)


def _unweighed(model: Any, batch: Batch, name: str, edges: Edges) -> dict[int, str]:
    mask = batch.edges(edges.dest, edges.source, edges.in_model) & model.sees(batch, edges.in_model, edges.layer)
    none = (~mask.flatten(1).any(1)).nonzero().flatten().tolist()
    return dict.fromkeys(none, f"weight {name!r}: no visible edge {edges}")


def _named(error: Exception, where: str, task: Task) -> Exception:
    return type(error)(f"{where} of task {task.name!r}: {error.args[0] if error.args else error}")


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
    labels = {"model": _labels(models), "condition": _labels(conditions), "skipped": _labels(reasons)}
    frame = frame.astype(labels | {"model_seed": np.int64})
    keys = ["model", "model_seed", "condition", "example", "skipped"]
    frame = frame[[*keys, *(name for name in frame.columns if name not in keys)]]
    check(frame)
    return frame
