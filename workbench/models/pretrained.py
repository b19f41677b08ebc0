"""Models that others saved, read from a folder: checked before anything is built, and nothing unpickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.models.bridge import wrap
from workbench.models.families import Unsupported
from workbench.models.weights import CONFIG, check_named, read_json, read_tensors, weight_files

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
    check_named(folder / CONFIG, config.get("configuration_files"))
    kind = _architecture(folder / CONFIG, config)
    from workbench.holdings import place as home

    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder, home(place) / "foreign"):
        tensors |= read_tensors(file)
    model = _built(kind, folder, config, tensors)
    tokenizer = _tokenizer(folder, model)
    try:
        return wrap(model.eval(), tokenizer)
    except Unsupported as error:
        raise Unsupported(f"{folder}: {error}") from error


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
        check_named(about, read_json(about).get("fast_tokenizer_files"))
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
