"""The weights and descriptions that others saved: read from files that are in their folder, nothing unpickled."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

CONFIG, WEIGHTS, INDEX, PICKLED, DIGEST = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "sha256",
)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises FileNotFoundError or ValueError naming the file and the fault."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; there is: {_listed(path.parent)}")
    try:
        value = json.loads(path.read_bytes().decode(), parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no valid JSON ({error}); the file is damaged") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON object was expected; there is a {type(value).__name__}")
    return value


def _constant(name: str) -> float:
    """Infinity is a number that some configurations hold; NaN is none."""
    if name == "NaN":
        raise ValueError("it holds NaN")
    return float(name)


def weight_files(folder: Path, kept: Path) -> list[Path]:
    """The safetensors to be read, and no others: one file before shards, and both before a .bin kept as one."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ValueError(f"{folder / INDEX}: no 'weight_map', which says in which file each tensor is")
        return [inside(folder, name, folder / INDEX) for name in sorted({str(one) for one in names.values()})]
    if (folder / PICKLED).is_file():
        return [_converted(folder / PICKLED, kept)]
    raise FileNotFoundError(f"{folder}: no weights: none of {WEIGHTS}, {INDEX}, {PICKLED}; there is: {_listed(folder)}")


def _listed(folder: Path, most: int = 8) -> str:
    names = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "") or "nothing"


def inside(folder: Path, name: str, said_by: Path) -> Path:
    """The file of that name in a folder. Raises ValueError for a name that leaves it, FileNotFoundError."""
    path = folder / name
    if "\0" in name or Path(name).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{said_by}: names the file {name!r}, which is outside {folder}; it is not read")
    if not path.is_file():
        raise FileNotFoundError(f"{said_by}: names the file {name!r}, which is not in {folder}")
    return path


def check_named(path: Path, names: Any) -> None:
    """Of the files that a file names in place of itself or of another, none may be outside its folder."""
    for name in names if isinstance(names, list) else ():
        inside(path.parent, str(name), path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, all of them finite."""
    try:
        with safe_open(path, "pt") as file:
            # Copied: a tensor that is mapped from the file changes, or crashes, where the file is written again.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f"{path}: no valid safetensors ({error}); the file is truncated or damaged") from error
    _check(path, tensors)
    return tensors


def _check(path: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if value.is_complex():
            raise ValueError(f"{path}: {name!r} holds complex numbers; weights are real")
        if value.is_floating_point():
            # torch cannot tell whether numbers of 8 bits are finite
            wide = value.float() if value.element_size() == 1 else value
            if not bool(torch.isfinite(wide).all()):
                raise ValueError(f"{path}: {name!r} holds NaN or infinity; no result from such weights means anything")


def _converted(path: Path, kept: Path) -> Path:
    """The safetensors in which a .bin is kept: made the first time, and held against their SHA-256 every time."""
    target = kept / hashlib.sha256(path.read_bytes()).hexdigest()[:20]
    if not target.is_dir():
        _keep(_unpickled(path), target)
    for name in (WEIGHTS, DIGEST):
        if not (target / name).is_file():
            raise FileNotFoundError(f"{target / name}: no such file; delete {target}, and it is made anew from {path}")
    if hashlib.sha256((target / WEIGHTS).read_bytes()).hexdigest() != (target / DIGEST).read_text("latin-1"):
        raise ValueError(
            f"{target / WEIGHTS}: not the weights that were kept of {path} (SHA-256 differs): the file is damaged or "
            f"altered; delete {target}, and it is made anew"
        )
    return target / WEIGHTS


def _unpickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a .bin, without running what else it holds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own words advise to read it with weights_only=False; only what it stumbled over is told.
        found = re.search(
            r"(?:Unsupported|unsupported|Unrecognized|unrecognized) [^\n]*?(?= was not|\.?\n|$)", str(error)
        )
        reason = found[0] if found else type(error).__name__
        raise ValueError(
            f"{path}: cannot be read as plain weights ({reason}); it is damaged, or holds code, which is not run"
        ) from error
    if not isinstance(tensors, dict) or not all(map(_is_plain, tensors, tensors.values())):
        raise ValueError(f"{path}: holds something else than named tensors")
    _check(path, tensors)
    return tensors


def _is_plain(name: object, value: object) -> bool:
    if not (isinstance(name, str) and isinstance(value, Tensor)):
        return False
    return value.layout == torch.strided and not value.is_quantized and not value.is_meta


def _keep(tensors: Mapping[str, Tensor], target: Path) -> None:
    beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    beside.mkdir(parents=True)
    try:
        # Tied tensors share memory, which safetensors refuses to write twice: each gets its own.
        own = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
        save_file(own, beside / WEIGHTS, {"format": "pt"})
        (beside / DIGEST).write_text(hashlib.sha256((beside / WEIGHTS).read_bytes()).hexdigest())
        try:
            beside.rename(target)
        except OSError:
            if not target.exists():  # otherwise another process was first
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
