"""Trained models on disk: safetensors and JSON, found by the hash of what defines them, checked when read."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from workbench.models.built import Model, build
from workbench.models.config import read_config

WEIGHTS, ABOUT = "model.safetensors", "model.json"


@dataclass(frozen=True)
class Trained:
    """A trained model: the model in eval mode, its model seed, its folder, its training curve (step, loss in nats,
    accuracy from 0 to 1), and everything the checkpoint records."""

    model: Any
    seed: int
    folder: Path
    curve: list[dict[str, float]]
    about: Mapping[str, Any]


def key(definition: Mapping[str, Any]) -> str:
    """The hash of what defines something, as JSON with sorted keys: 20 hexadecimal digits."""
    text = json.dumps(definition, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def save(folder: Path | str, model: Model, definition: Mapping[str, Any], curve: list[dict[str, float]]) -> Path:
    """Writes a checkpoint, whole or not at all; one that is there already is kept.

    definition: what its key is the hash of, with `seed`. Versions and commit are recorded beside it, never hashed.
    Raises ValueError for weights with NaN or infinity, and for a definition without a model seed.
    """
    folder = Path(folder)
    if not isinstance(definition.get("seed"), int):
        raise ValueError(f"{folder}: the definition of a checkpoint has an int 'seed'; this has {sorted(definition)}")
    if bad := _not_finite(model.state_dict()):
        raise ValueError(f"{folder}: {bad} holds NaN or infinity: the training diverged; try a lower rate (lr)")
    weights = write_tensors({name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()})
    about = {
        "definition": dict(definition),
        "config": model.config.model_dump(mode="json"),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "curve": curve,
        "made_with": provenance(),
    }
    beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    beside.mkdir(parents=True)
    try:
        (beside / WEIGHTS).write_bytes(weights)
        (beside / ABOUT).write_text(
            json.dumps(about, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        try:
            beside.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another writer was first
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def load(folder: Path | str) -> Trained:
    """Reads a checkpoint. Raises FileNotFoundError or ValueError naming the file and the fault: truncated or altered
    weights, a configuration with unknown keys, tensors that do not fit it, NaN."""
    folder = Path(folder)
    about = _read_about(folder / ABOUT)
    path = folder / WEIGHTS
    raw = _bytes(path)
    if hashlib.sha256(raw).hexdigest() != about["weights_sha256"]:
        raise ValueError(
            f"{path}: the weights are not those that {ABOUT} records (SHA-256 differs): the file is damaged or "
            "altered; delete the folder, and train again"
        )
    try:
        config = read_config(about["config"])
    except ValueError as error:
        raise ValueError(f"{folder / ABOUT}: the configuration cannot be read: {error}") from error
    try:
        tensors = read_tensors(raw)
    except SafetensorError as error:
        raise ValueError(f"{path}: no valid safetensors: {error}") from error
    dtype = _dtype(path, tensors)
    try:
        model = build(config, seed=0).to(dtype)
        model.load_state_dict(tensors)
    except RuntimeError as error:  # tensors that are missing, of another shape, or too large for any memory
        raise ValueError(f"{path}: the weights do not fit the configuration in {ABOUT}: {error}") from error
    if bad := _not_finite(tensors):
        raise ValueError(f"{path}: {bad} holds NaN or infinity")
    return Trained(model.eval(), about["definition"]["seed"], folder, about["curve"], about)


def _dtype(path: Path, tensors: Mapping[str, Tensor]) -> torch.dtype:
    dtypes = {value.dtype for value in tensors.values()}
    if len(dtypes) != 1 or next(iter(dtypes)) not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"{path}: weights are of one floating dtype; these are of {sorted(map(str, dtypes))}")
    return dtypes.pop()


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor that holds NaN or infinity."""
    return next((name for name, value in tensors.items() if not torch.isfinite(value).all()), None)


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; a checkpoint is a folder with {WEIGHTS} and {ABOUT}")
    return path.read_bytes()


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no valid JSON ({error}); the file is damaged") from error
    wanted = {"definition", "config", "weights_sha256", "curve", "made_with"}
    if not isinstance(about, dict) or set(about) != wanted:
        there = sorted(about) if isinstance(about, dict) else type(about).__name__
        raise ValueError(f"{path}: a checkpoint records {sorted(wanted)}; there is {there}")
    if not isinstance(about["definition"], dict) or type(about["definition"].get("seed")) is not int:
        raise ValueError(f"{path}: the definition has no model seed")
    if not isinstance(about["curve"], list) or not all(isinstance(point, dict) for point in about["curve"]):
        raise ValueError(f"{path}: the training curve is no list of points; the file is damaged or altered")
    if not isinstance(about["config"], dict) or about["definition"].get("config", about["config"]) != about["config"]:
        raise ValueError(f"{path}: the configuration is not the one in the definition; the file is damaged or altered")
    return about


def provenance() -> dict[str, Any]:
    """Versions, machine kind and git commit: recorded, never hashed."""
    names = ("attention-workbench", "torch", "transformer-lens", "numpy", "pandas")
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "versions": versions | {"python": platform.python_version()},
        "machine": f"{platform.system()} {platform.machine()}",
        "commit": _commit(),
    }


def _commit() -> str | None:
    here = Path(__file__).resolve().parent
    try:
        out = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return out.stdout.strip() or None if out.returncode == 0 else None
