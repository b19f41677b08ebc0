"""Models that others saved, read from a folder: checked before anything is built, and nothing unpickled."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from workbench.models.bridge import wrap
from workbench.models.families import Unsupported

CONFIG, WEIGHTS, INDEX, PICKLED, DIGEST = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "sha256",
)
TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "source.spm",
    "tokenizer.model", "sentencepiece.bpe.model",
)  # fmt: skip
"""The files by which a folder is known to have a tokenizer."""


def load_pretrained(folder: Path | str, *, place: Path | str | None = None) -> Any:
    """A Hugging Face model saved in a folder, wrapped for interventions, with its tokenizer where the folder has one.

    Weights are safetensors. A `pytorch_model.bin` is read once with `weights_only=True`, which runs no code, and kept
    as safetensors under `place` (`$WORKBENCH_HOME`, or ./runs) from then on. Code in the folder is never run.

    Raises FileNotFoundError or ValueError naming the file and the fault: no or damaged JSON, truncated weights, NaN,
    whole, complex or quantized numbers, tensors missing or of another shape, files named outside the folder, a kept
    file that was altered, a tokenizer without words, or with tokens that the model cannot embed; `Unsupported` as
    `wrap` does.
    """
    folder = Path(folder)
    config = read_json(folder / CONFIG)
    _check_named(folder / CONFIG, config.get("configuration_files"))
    kind = _architecture(folder / CONFIG, config)
    from workbench.checkpoints import home

    tensors: dict[str, Tensor] = {}
    for file in _files(folder, home(place) / "foreign"):
        tensors |= _read(file)
    model = _built(kind, folder, config, tensors)
    tokenizer = _tokenizer(folder, model)
    try:
        return wrap(model.eval(), tokenizer)
    except Unsupported as error:
        raise Unsupported(f"{folder}: {error}") from error


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


def _files(folder: Path, kept: Path) -> list[Path]:
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


def _check_named(path: Path, names: Any) -> None:
    """Of the files that a file names in place of itself or of another, none may be outside its folder."""
    for name in names if isinstance(names, list) else ():
        inside(path.parent, str(name), path)


def _read(path: Path) -> dict[str, Tensor]:
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


def _built(kind: Any, folder: Path, described: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """The model that the configuration describes, with these tensors: transformers opens no other file."""
    try:
        with _quiet():
            config = kind.config_class.from_dict(dict(described))
            # Said before anything is built: a configuration may name a kernel, which is code from the hub.
            config._attn_implementation = "eager"
            _check_fit(kind, config, tensors)
            model, found = kind.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                attn_implementation="eager",
            )
    except Exception as error:
        raise ValueError(
            f"{folder / CONFIG}: {kind.__name__} cannot be built from it and the weights ({_said(error)})"
        ) from error
    for what in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(_spelt, found.get(what) or ())):
            said = "lack" if what == "missing_keys" else "have another shape for"
            raise ValueError(
                f"{folder}: the weights {said} {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} of "
                f"{kind.__name__} as {CONFIG} describes it; those would be random numbers"
            )
    whole = [name for name, _ in model.named_parameters() if name in tensors and not tensors[name].is_floating_point()]
    if whole:
        raise ValueError(
            f"{folder}: the weights hold whole numbers for {whole[0]!r}, which {kind.__name__} has as floats"
        )
    return model


def _check_fit(kind: Any, config: Any, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a model far larger than its weights before memory is taken for it (tied tensors may be saved once), one
    without layers, and quantized weights, which are no weights yet."""
    if getattr(config, "num_hidden_layers", 1) < 1:
        raise ValueError("it describes a model without layers")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError("it says that the weights are quantized; save them as floats")
    with torch.device("meta"):
        wanted = sum(value.numel() for value in kind(config).parameters())
    there = sum(value.numel() for value in tensors.values())
    if wanted > 2 * there:
        raise ValueError(f"it describes {wanted:,} numbers, and the weights are {there:,}")


def _spelt(key: Any) -> str:
    """A name; or a name with both shapes, the file's first."""
    if isinstance(key, str):
        return key
    name, saved, wanted = key
    return f"{name} ({list(saved)} in the file, {list(wanted)} wanted)"


def _said(error: Exception, most: int = 300) -> str:
    """The kind of an error and its words on one line, in printable characters."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    shown = "".join(letter if letter.isprintable() else "�" for letter in words)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


@contextmanager
def _quiet() -> Iterator[None]:
    """What transformers prints is kept back while a model is read; faults are raised by us."""
    from transformers.utils import logging

    bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _tokenizer(folder: Path, model: Any) -> Any:
    """The folder's tokenizer, where it has one."""
    if not any((folder / name).is_file() for name in TOKENIZERS):
        return None
    about = folder / "tokenizer_config.json"
    if about.is_file():
        _check_named(about, read_json(about).get("fast_tokenizer_files"))
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ValueError(f"{folder}: its tokenizer cannot be read ({_said(error)})") from error
    if set(tokenizer.get_vocab()) <= {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}:
        raise ValueError(
            f"{folder}: its tokenizer, {type(tokenizer).__name__}, has no tokens but special ones: the file of its "
            "vocabulary is missing or of another kind"
        )
    room = getattr(model.get_input_embeddings(), "num_embeddings", None)
    most = max(tokenizer.get_vocab().values(), default=-1)
    if room is not None and most >= room:
        raise ValueError(
            f"{folder}: the tokenizer has a token {most}, and the model embeds tokens 0 to {room - 1}: the vocabulary "
            "does not fit the model"
        )
    return tokenizer
