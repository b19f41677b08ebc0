"""What defines a cell (a model under a condition), and its key: known before anything is trained or measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from workbench import metrics, patterns, running
from workbench.checkpoints import Trained, key
from workbench.interventions import donor_names
from workbench.measuring import Shared

TOGETHER = 16
"""Conditions of a model that are measured and stored as one block."""

UNSAID = ("_name_or_path", "model_name", "tokenizer_name", "transformers_version", "_attn_implementation")
"""What a configuration says that changes nothing about the model."""


def model_identity(trained: Trained) -> dict[str, Any]:
    """What a model is: the definition that it was trained by, or its weights and the configuration they are used in.

    Raises ValueError for one that tells neither.
    """
    if {"task", "config", "recipe", "seed"} <= set(trained.about.get("definition", ())):
        return {"definition": trained.about["definition"]}
    if "weights_sha256" not in trained.about:
        raise ValueError(
            "this model tells neither how it was trained nor the SHA-256 of its weights, so that its cells cannot be "
            "told from another's; hand over the model itself, or what `train`, `load` and `wrap` return"
        )
    return {"weights_sha256": trained.about["weights_sha256"], "config": configuration(trained.model)}


def configuration(model: Any) -> str:
    """What is not in a model's weights, as JSON: its class and its configuration, without where it lies and who wrote
    it. The same weights compute something else with other heads or another norm."""
    inner = getattr(model, "inner", model)
    config = getattr(inner, "config", None) or getattr(inner, "cfg", None)
    for said in ("model_dump", "to_dict"):
        if hasattr(config, said):
            values = getattr(config, said)()
            break
    else:
        values = getattr(config, "__dict__", {})
    kept = {name: value for name, value in values.items() if name not in UNSAID}
    return json.dumps([type(inner).__name__, kept], sort_keys=True, default=_plainly)


def _plainly(value: Any) -> str:
    """A function or an object by its kind alone: its address differs from process to process."""
    return str(value) if isinstance(value, torch.dtype | torch.device) else type(value).__name__


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
        every["skipping"] = {"conditions": list(told["conditions"].values()), "weights": list(told["weights"].items())}
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
