"""What defines a cell (a model under a condition), and its key: known before anything is trained or measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench import metrics, patterns, running
from workbench.checkpoints import Trained, key
from workbench.interventions import donor_names
from workbench.measuring import Shared

TOGETHER = 16
"""Conditions of a model that are measured and stored as one block."""


def model_identity(trained: Trained) -> dict[str, Any]:
    """What a model is: the definition that it was trained by, or the SHA-256 of its weights."""
    if {"task", "config", "recipe", "seed"} <= set(trained.about.get("definition", ())):
        return {"definition": trained.about["definition"]}
    return {"weights_sha256": trained.about["weights_sha256"]}


def definitions(common: Shared, model: Mapping[str, Any], dtype: str, device: str) -> dict[str, dict[str, Any]]:
    """Condition → what defines its cell in this model: `key` of it is the cell's name.

    Where examples may be skipped, all conditions belong to the definition of each: what one lacks, all leave out.
    """
    study, task = common.study, common.task
    told = study.model_dump(mode="json")
    every = {
        "meaning": {"running": running.MEANING, "metrics": metrics.MEANING, "patterns": patterns.MEANING},
        "task": {"name": task.name, "arguments": task.model_dump(), "meaning": task.MEANING},
        "examples": {"n": study.n, "data_seed": study.data_seed, "digest": common.batch.digest()},
        "model": dict(model),
        "dtype": dtype,
        "device": device,
        "metrics": list(study.metrics),
        "derived": told["derived"],
        "on_missing": study.on_missing,
    }
    if study.on_missing == "skip":
        every["skipping"] = {"conditions": list(told["conditions"].values()), "weights": told["weights"]}
    digests = {name: donor.digest() for name, donor in common.donors.items()}
    out = {}
    for condition, interventions in study.conditions.items():
        edits = told["conditions"][condition]
        out[condition] = {
            **every,
            "edits": edits,
            "donors": {name: digests[name] for name in sorted(donor_names(interventions))},
            "weights": {} if edits else told["weights"],
        }
    return out


def of(common: Shared, trained: Trained) -> dict[str, dict[str, Any]]:
    """Condition → what defines its cell in a model."""
    parameter = next(trained.model.parameters())
    dtype, device = str(parameter.dtype).removeprefix("torch."), parameter.device.type
    return definitions(common, model_identity(trained), dtype, device)


def keys(common: Shared, trained: Trained) -> dict[str, str]:
    """Condition → the key of its cell in a model."""
    return {name: key(one) for name, one in of(common, trained).items()}


def groups(conditions: Iterable[str]) -> list[Sequence[str]]:
    """The conditions in the groups in which they are measured, always the same ones."""
    listed = list(conditions)
    return [listed[at : at + TOGETHER] for at in range(0, len(listed), TOGETHER)]
