"""What defines a cell (a model under a condition), and its key: known before anything is trained or measured."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from workbench import metrics, patterns, running
from workbench.checkpoints import Trained
from workbench.interventions import donor_names
from workbench.measuring import Shared
from workbench.study import Study

TOGETHER = 16
"""Conditions of a model that are measured and stored as one block."""

OWN = ("donors", "edits", "weights")
"""What differs between the cells of a model, sorted."""

HOLE = "\0"
"""What stands for it in the text that they share: JSON writes this character otherwise."""

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
    """What is not in a model's weights, as JSON: its class, its configuration without where it lies and who wrote it,
    and, of a model that others made, its modules. The same weights compute something else with other heads or another
    norm."""
    inner = getattr(model, "inner", model)
    config = getattr(inner, "config", None) or getattr(inner, "cfg", None)
    for said in ("model_dump", "to_dict"):
        if hasattr(config, said):
            values = getattr(config, said)()
            break
    else:
        values = getattr(config, "__dict__", {})
    kept = {name: value for name, value in values.items() if name not in UNSAID}
    defined = [type(inner).__name__, kept, getattr(type(config), "MEANING", None)]
    if inner is not model:
        # What others' models are made of: one in which a module was replaced has the same configuration.
        modules = re.sub(r" at 0x[0-9a-f]+", "", repr(inner))
        defined.append(hashlib.sha256(modules.encode()).hexdigest())
    return json.dumps(defined, sort_keys=True, default=_plainly)


def _plainly(value: Any) -> str:
    """A function or an object by its kind alone: its address differs from process to process."""
    return str(value) if isinstance(value, torch.dtype | torch.device) else type(value).__name__


class Naming:
    """What defines the cells of a study, and their keys: a cell is found by the hash of its definition.

    A study of many models has many cells and few things that differ between them: each is written as JSON once.
    """

    def __init__(self, common: Shared):
        study, task = common.study, common.task
        told = study.model_dump(mode="json")
        self.every: dict[str, Any] = {
            "meaning": {"running": running.MEANING, "metrics": metrics.MEANING, "patterns": patterns.MEANING},
            "task": {"name": task.name, "arguments": task.model_dump(), "meaning": task.MEANING},
            "examples": {"n": study.n, "data_seed": study.data_seed, "digest": common.batch.digest()},
            "metrics": list(study.metrics),
            "derived": told["derived"],
            "on_missing": study.on_missing,
        }
        if common.engine != "auto":
            # Whoever asks for another engine asks for its own numbers, though they are the same within rounding.
            self.every["engine"] = common.engine
        if study.on_missing == "skip":
            # What one condition lacks, all leave out.
            conditions, weights = list(told["conditions"].values()), list(told["weights"].items())
            self.every["skipping"] = {"conditions": conditions, "weights": weights}
        digests = {name: donor.digest() for name, donor in common.donors.items()}
        self.own: dict[str, dict[str, Any]] = {
            condition: {
                "edits": edits,
                "donors": {name: digests[name] for name in sorted(donor_names(study.conditions[condition]))},
                "weights": {} if edits else told["weights"],
            }
            for condition, edits in told["conditions"].items()
        }
        self._every = _texts(self.every)
        self._own = {name: [_json(own[part]).encode() for part in OWN] for name, own in self.own.items()}

    def definitions(self, model: Mapping[str, Any], dtype: str, device: str) -> dict[str, dict[str, Any]]:
        """Condition → what defines its cell in this model."""
        of_model = {"model": dict(model), "dtype": dtype, "device": device}
        return {condition: {**self.every, **of_model, **own} for condition, own in self.own.items()}

    def keys_in(self, model: Mapping[str, Any], dtype: str, device: str) -> dict[str, str]:
        """Condition → the key of its cell in this model: what `checkpoints.key` says of its definition."""
        shared = self._every | _texts({"model": dict(model), "dtype": dtype, "device": device})
        texts = shared | dict.fromkeys(OWN, HOLE)
        whole = ", ".join(f'"{name}": {texts[name]}' for name in sorted(texts))
        pieces = f"{{{whole}}}".encode().split(HOLE.encode())
        return {condition: _key(pieces, own) for condition, own in self._own.items()}

    def keys(self, trained: Trained) -> dict[str, str]:
        """Condition → the key of its cell in a model."""
        parameter = next(trained.model.parameters())
        dtype, device = str(parameter.dtype).removeprefix("torch."), parameter.device.type
        return self.keys_in(model_identity(trained), dtype, device)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _json(value) for name, value in values.items()}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _key(pieces: Sequence[bytes], own: Sequence[bytes]) -> str:
    filled = b"".join(part for both in zip(pieces, own, strict=False) for part in both) + pieces[-1]
    return hashlib.sha256(filled).hexdigest()[:20]


def keys(common: Shared, trained: Trained) -> dict[str, str]:
    """Condition → the key of its cell in a model."""
    return Naming(common).keys(trained)


def edits(study: Study) -> dict[str, str]:
    """Condition → its interventions as text: conditions of one text are one cell of a model."""
    return {name: _json(said) for name, said in study.model_dump(mode="json")["conditions"].items()}


def groups(conditions: Iterable[str]) -> list[Sequence[str]]:
    """The conditions in the groups in which they are measured, always the same ones."""
    listed = list(conditions)
    return [listed[at : at + TOGETHER] for at in range(0, len(listed), TOGETHER)]
