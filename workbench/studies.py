"""Studies run: every cell measured once, kept in a store, and put together as the results frame."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from workbench.assembly import labels
from workbench.batch import Batch
from workbench.block_by_block import Engine, check_engine
from workbench.checkpoints import Trained
from workbench.declared import Training, config_of, models_of, number_of, trained_before
from workbench.executors import check_kind, execute_orders
from workbench.genuine import check_genuine
from workbench.holdings import place
from workbench.interventions import donor_names
from workbench.measuring import Shared, named, rehearse, shared
from workbench.metrics import AGAINST_CLEAN, METRICS
from workbench.models.built import build
from workbench.nearest import nearest
from workbench.progress import bar
from workbench.store import Store
from workbench.study import Study, for_model
from workbench.task import Task
from workbench.work import Part, Work


def run_study(
    study: Study,
    task: Task,
    models: Mapping[str, Sequence[Trained]],
    *,
    store: Store | Path | str | None = None,
    executor: str = "local",
    processes: int | None = None,
    address: str | None = None,
    engine: Engine = "auto",
    progress: bool = True,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The results frame of a study, and its notes (model, model_seed, condition, note).

    models: label → trained models, each with a model seed of its own, or wrapped ones, numbered in order. Every
    condition of a model sees the same examples. A condition that cannot run raises the error of `run` with the
    condition's and the task's name before it; an example without any edge of a weight counts as missing, as one that a
    condition cannot act on does.
    store: where cells are kept; those that are there are not measured again, and a study that was stopped goes on.
    executor: "local", "pool" (in `processes` worker processes) or "ray" (on the cluster at `address`).
    engine: "auto", or "hooks" for a pass of its own under each condition, as for `run_each`.

    Raises KeyError for an unknown metric or donor, ValueError where there is no model.
    """
    if not hasattr(task, "sample"):
        mend = 'make it Examples("name", batch)' if isinstance(task, Batch) else "a task has name, sample(n, seed), ..."
        raise TypeError(f"the task is a {type(task).__name__}: {mend}")
    if not isinstance(study, Study):
        raise TypeError(f"the study is a {type(study).__name__}; make it a Study: Study(conditions={{...}}, n=...)")
    _check(study, task)
    if study.only:
        raise ValueError("conditions for some models only are run by run_declared; leave `only` out")
    check_kind(executor)
    check_engine(engine)
    known = as_trained(models)
    kept = store if isinstance(store, Store) or store is None else Store(store)
    n_cells = sum(map(len, known.values())) * len(study.conditions)
    with bar("measuring", "cell", n_cells, progress) as drawn:
        parts = [Part(shared(study, task, engine), known)]
        (found,) = _carried_out(parts, kept, drawn, executor, processes, address)
    return found


def run_declared(
    study: Study,
    *,
    home: Path | str | None = None,
    executor: str = "local",
    processes: int | None = None,
    address: str | None = None,
    engine: Engine = "auto",
    progress: bool = True,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """As `run_study`, on the task and the models that the study itself declares; models that are missing are trained.

    Cells are kept in `home` (`$WORKBENCH_HOME`, or ./runs). Raises ValueError for a study that declares no task or no
    models; a role, a layer or a metric that is not there is told before anything is trained.
    """
    if study.task is None or not study.models:
        raise ValueError("this study declares no task or no models; hand them to run_study, or declare task and models")
    check_kind(executor)
    check_engine(engine)
    task = study.task.made()
    studies = {label: for_model(study, label) for label in study.models}
    n_cells = sum(number_of(study.models[label]) * len(own.conditions) for label, own in studies.items())
    common = rehearsed(study, task, engine, home=home)
    with bar("measuring", "cell", n_cells, progress) as drawn:
        models = models_of(study.models, task, home=home, progress=progress)
        parts = [
            Part(replace(common, study=studies[label]), as_trained({label: several}))
            for label, several in models.items()
        ]
        found = _carried_out(parts, Store(place(home) / "cells"), drawn, executor, processes, address)
    frame = joined([one for one, _ in found])
    return frame, pd.concat([notes for _, notes in found], ignore_index=True)


def rehearsed(study: Study, task: Task, engine: Engine = "auto", *, home: Path | str | None = None) -> Shared:
    """What the models that a study declares are measured on. Raises what measuring would raise in every one of them,
    before any is trained: a configuration of which models are missing is measured untrained, on a few examples."""
    for label in study.models:
        _check(for_model(study, label), task)
    common = shared(study, task, engine)
    for label, models in study.models.items():
        if isinstance(models, Training) and trained_before(models, task, home=home) < number_of(models):
            rehearse(replace(common, study=for_model(study, label)), build(config_of(models, task), seed=0).eval())
    return common


def _carried_out(
    parts: Sequence[Part], store: Store | None, drawn: Any, executor: str, processes: int | None, address: str | None
) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """The frame and the notes of every part; cells that turn out to be damaged when they are read are measured
    again."""
    with ExitStack() as open_things:
        work = Work(parts, store, drawn)
        open_things.callback(work.let_go)
        whole = False
        while not whole:
            if orders := work.orders():
                commons = [part.common for part in parts]
                execute_orders(
                    executor, commons, orders, work.begin, work.measured, processes=processes, address=address
                )
            whole = work.collect()
    return [work.frame(number) for number in range(len(parts))]


def _check(study: Study, task: Task) -> None:
    if kinds := [kind for kind in ("cpu", "cuda", "mps") if torch.is_autocast_enabled(kind)]:
        raise ValueError(
            f"autocast is on for {kinds[0]}: cells are kept, and found again, as those of the model's own dtype, and "
            "worker processes do without it. Leave it, or convert the model: model.to(torch.bfloat16)"
        )
    known = [*METRICS, *AGAINST_CLEAN]
    if unknown := [name for name in study.metrics if name not in known]:
        raise KeyError(f"no metric {unknown[0]!r}. {nearest(unknown[0], known)}")
    for condition, interventions in study.conditions.items():
        if undeclared := sorted(donor_names(interventions) - set(study.donors)):
            say = f"no donor {undeclared[0]!r} is declared in the study. {nearest(undeclared[0], sorted(study.donors))}"
            raise named(KeyError(say), f"condition {condition!r}", task)


def as_trained(models: Mapping[str, Sequence[Any]]) -> dict[str, list[Trained]]:
    """The models as trained ones, a bare model numbered by its place; checked."""
    if not isinstance(models, Mapping) or not all(isinstance(several, Sequence) for several in models.values()):
        raise TypeError("models come as lists by label, as {'two layers': [trained, ...]}, also when there is one")
    known = {label: [_numbered(i, one) for i, one in enumerate(several)] for label, several in models.items()}
    _check_models(known)
    for label, several in known.items():
        for one in several:
            check_genuine(label, one)
    return known


def _numbered(number: int, one: Any) -> Any:
    if not all(hasattr(one, name) for name in ("parts", "sees", "logits")):
        return one
    digest = hashlib.sha256()
    for name, value in one.state_dict().items():
        digest.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
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


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Several results frames as one, categories in the order in which they first appear.

    Raises ValueError where one model (label and seed) was measured on other examples, or has other weights, in one
    frame than in another; where models of one label were measured on different examples, or one of its conditions has
    other edits in one frame than in another; and for a frame that does not say what was measured (`frame.attrs`, which
    `run_study` writes and Parquet keeps): what is not the same would be pooled or paired.
    """
    known: dict[str, dict[str, dict[str, Any]]] = {}
    dtypes: dict[str, list[str]] = {}
    conditions: dict[str, dict[str, str]] = {}
    for number, frame in enumerate(frames):
        if not frame.attrs.get("measured"):
            raise ValueError(
                f"frame {number} does not say what was measured on what (its attrs['measured'] is missing); join what "
                "run_study gives, or what was read from a Parquet file of it"
            )
        for label, edits in frame.attrs.get("conditions", {}).items():
            _check_meaning(label, conditions.setdefault(label, {}), edits)
        for label, seeds in frame.attrs["measured"].items():
            for seed, said in seeds.items():
                _check_same(label, seed, known.setdefault(label, {}).setdefault(seed, said), said)
        for label, several in frame.attrs.get("dtypes", {}).items():
            dtypes[label] = sorted({*dtypes.get(label, ()), *several})
    seen = {
        name: list(dict.fromkeys(c for f in frames for c in f[name].cat.categories))
        for name in ("model", "condition", "skipped")
    }
    out = pd.concat([f.astype({name: object for name in seen}) for f in frames], ignore_index=True)
    out = out.astype({name: labels(values) for name, values in seen.items()})
    for label, seeds in known.items():
        if len({said["examples"] for said in seeds.values()}) > 1:
            raise ValueError(
                f"the models under {label!r} were not all measured on the same examples; give those of another task, n "
                "or data seed a label of their own"
            )
    examples = {said["examples"] for seeds in known.values() for said in seeds.values()}
    out.attrs = {
        "measured": known,
        "dtypes": dtypes,
        "conditions": conditions,
        **({"examples": examples.pop()} if len(examples) == 1 else {}),
    }
    return out


def _check_meaning(label: str, known: dict[str, str], edits: Mapping[str, str]) -> None:
    for condition, said in edits.items():
        if known.setdefault(condition, said) != said:
            raise ValueError(
                f"the condition {condition!r} of {label!r} is {known[condition]} in one frame and {said} in another; "
                "give what differs labels of their own"
            )


def _check_same(label: str, seed: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    if one["examples"] != other["examples"]:
        raise ValueError(
            f"{label!r}, model seed {seed}, was measured on other examples in one frame than in another; "
            "join studies of one task, n and data seed"
        )
    if one["weights"] != other["weights"]:
        raise ValueError(
            f"{label!r}, model seed {seed}, has other weights in one frame than in another: they are two models; give "
            "them labels or seeds of their own (bare models are numbered by their place in the list)"
        )
