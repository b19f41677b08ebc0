"""Models that others saved, read from a folder: checked before anything is built, and nothing unpickled."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from workbench.models.bridge import wrap

CONFIG, WEIGHTS, INDEX, PICKLED = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
)


def load_pretrained(folder: Path | str, *, place: Path | str | None = None) -> Any:
    """A Hugging Face model saved in a folder, wrapped for interventions, with its tokenizer where the folder has one.

    Weights are safetensors. A `pytorch_model.bin` is read once with `weights_only=True`, which runs no code, and kept
    as safetensors under `place` (`$WORKBENCH_HOME`, or ./runs) from then on. Code in the folder is never run.

    Raises FileNotFoundError or ValueError naming the file and the fault: no or damaged JSON, truncated weights, NaN,
    tensors missing or of another shape, files named outside the folder, a tokenizer whose tokens the model cannot
    embed; `Unsupported` as `wrap` does.
    """
    folder = Path(folder)
    config = read_json(folder / CONFIG)
    kind = _architecture(folder / CONFIG, config)
    from workbench.checkpoints import home

    source = _safe(folder, home(place) / "foreign")
    model = _built(kind, folder, source)
    return wrap(model.eval(), _tokenizer(folder, model))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises FileNotFoundError or ValueError naming the file and the fault."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; there is: {_listed(path.parent)}")
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: no valid JSON ({error}); the file is damaged") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON object was expected; there is a {type(value).__name__}")
    return value


def _architecture(path: Path, config: Mapping[str, Any]) -> Any:
    import transformers

    names = config.get("architectures")
    if not (isinstance(names, list) and names and isinstance(names[0], str)):
        raise ValueError(f"{path}: 'architectures' does not name a class, as ['GPT2LMHeadModel'] does")
    kind = getattr(transformers, names[0], None) if names[0].isidentifier() else None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        own = " (its code is not run)" if "auto_map" in config else ""
        raise ValueError(f"{path}: {names[0]!r} is no model of the installed transformers{own}")
    return kind


def _safe(folder: Path, kept: Path) -> Path:
    """The folder whose safetensors are to be read: this one, or the one in which a .bin is kept as safetensors."""
    if (folder / INDEX).is_file():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict):
            raise ValueError(f"{folder / INDEX}: no 'weight_map'")
        for name in sorted({str(one) for one in names.values()}):
            _check_file(inside(folder, name, folder / INDEX))
        return folder
    if (folder / WEIGHTS).is_file():
        _check_file(folder / WEIGHTS)
        return folder
    if (folder / PICKLED).is_file():
        return _converted(folder, kept)
    raise FileNotFoundError(f"{folder}: no weights: none of {WEIGHTS}, {INDEX}, {PICKLED}; there is: {_listed(folder)}")


def _listed(folder: Path, most: int = 8) -> str:
    names = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "") or "nothing"


def inside(folder: Path, name: str, said_by: Path) -> Path:
    """The file of that name in a folder. Raises ValueError for a name that leaves it, FileNotFoundError."""
    path = folder / name
    if Path(name).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{said_by}: names the file {name!r}, which is outside {folder}; it is not read")
    if not path.is_file():
        raise FileNotFoundError(f"{said_by}: names the file {name!r}, which is not in {folder}")
    return path


def _check_file(path: Path) -> None:
    """Readable safetensors with finite numbers only."""
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                _check_finite(path, name, file.get_tensor(name))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: no valid safetensors ({error}); the file is truncated or damaged") from error


def _check_finite(path: Path, name: str, value: Tensor) -> None:
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise ValueError(f"{path}: {name} holds NaN or infinity; no result from such weights means anything")


def _converted(folder: Path, kept: Path) -> Path:
    path = folder / PICKLED
    target = kept / hashlib.sha256(path.read_bytes() + (folder / CONFIG).read_bytes()).hexdigest()[:20]
    if (target / WEIGHTS).is_file():
        _check_file(target / WEIGHTS)
        return target
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path}: cannot be read as plain weights ({first}); it is damaged, or holds code, which is not run"
        ) from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ValueError(f"{path}: holds something else than named tensors")
    for name, value in tensors.items():
        _check_finite(path, name, value)
    beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    beside.mkdir(parents=True)
    try:
        # Tied tensors share memory, which safetensors refuses to write twice: each gets its own.
        save_file(
            {name: value.clone().contiguous() for name, value in tensors.items()}, beside / WEIGHTS, {"format": "pt"}
        )
        shutil.copy(folder / CONFIG, beside / CONFIG)
        if not target.exists():
            beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _built(kind: Any, folder: Path, source: Path) -> Any:
    try:
        with _quiet():
            model, found = kind.from_pretrained(
                source,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                attn_implementation="eager",
            )
    except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
        raise ValueError(f"{folder}: {kind.__name__} cannot be built from its {CONFIG} and weights: {error}") from error
    for what in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, found.get(what) or ())):
            said = "lack" if what == "missing_keys" else "have another shape for"
            raise ValueError(
                f"{folder}: the weights {said} {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} of "
                f"{kind.__name__} as {CONFIG} describes it; those would be random numbers"
            )
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' progress bar and notes kept back while a model is read; faults are raised by us."""
    from transformers.utils import logging

    bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _tokenizer(folder: Path, model: Any) -> Any:
    """The folder's tokenizer, where it has one."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")):
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ValueError(f"{folder}: its tokenizer cannot be read: {error}") from error
    room = model.get_input_embeddings().num_embeddings
    most = max(tokenizer.get_vocab().values(), default=-1)
    if most >= room:
        raise ValueError(
            f"{folder}: the tokenizer has a token {most}, and the model embeds tokens 0 to {room - 1}: the vocabulary "
            "does not fit the model"
        )
    return tokenizer
