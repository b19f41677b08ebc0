"""The ALBERT model inside the wheel rxnmapper 0.4.3: fetched by a command, kept as safetensors, loaded without it.

    python -m analyses.rxnmapper_model [HOME]

Fetches 3 MB with pip into HOME/downloads/rxnmapper (HOME: `$WORKBENCH_HOME`, or ./runs). The wheel's own code is
neither run nor kept; it needs an older transformers. Licence of the weights: MIT, the RXN4Chemistry team. Paper:
Schwaller et al. 2021, Science Advances 7, eabe4166.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from workbench.batch import Batch
from workbench.report import write_report

__all__ = ["LAYER_AND_HEAD", "fetch", "folder", "load", "main", "patterns", "unpack"]

REQUIREMENT = "rxnmapper==0.4.3"
WHEEL_SHA256 = "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"
INSIDE = PurePosixPath("rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k")
CONFIG, VOCABULARY, PICKLED = "config.json", "vocab.txt", "pytorch_model.bin"
WEIGHTS, ABOUT = "model.safetensors", "fetched.json"
ARCHITECTURE = "AlbertForMaskedLM"

LAYER_AND_HEAD = (10, 5)
"""The published mapping head, both counted from 0: `core.py` in the wheel enumerates the attentions and takes those
with index in `layers` = [10], then index `head` = 5."""

TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
"""Weights that are the same tensor as another: kept once."""

UNUSED = {"albert.pooler.weight", "albert.pooler.bias"}
"""Weights that no masked-language model reads: left out."""


def folder(place: Path | str | None = None) -> Path:
    """Where the model is kept, under the folder of runs that `workbench.holdings.place` gives.

    >>> folder("runs").as_posix()
    'runs/downloads/rxnmapper'
    """
    from workbench.holdings import place as home

    return home(place) / "downloads" / "rxnmapper"


def fetch(place: Path | str | None = None) -> Path:
    """Fetches the wheel with pip and keeps the model's files; one that is there and whole is left as it is.

    Raises RuntimeError with pip's own words where pip fails, and ValueError for a wheel that is not the one pinned.
    """
    target = folder(place)
    if target.is_dir() and not _fault(target):
        return target
    with tempfile.TemporaryDirectory() as beside:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            beside,
            REQUIREMENT,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(beside).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise RuntimeError(f"`{' '.join(command)}` gave no wheel; pip says: {done.stderr.strip()[-800:]}")
        raw = wheels[0].read_bytes()
    return unpack(raw, target)


def unpack(wheel: bytes, target: Path, sha256: str = WHEEL_SHA256) -> Path:
    """Keeps a wheel's configuration, vocabulary and weights in `target`, and nothing else of it; returns `target`.

    The weights are read as plain tensors, so that nothing is unpickled, and kept as safetensors. Names in the wheel are
    only compared with those wanted, never written to.

    Raises ValueError where the SHA-256 is another, where any name in the wheel leaves its folder, where a file is
    missing, and where weights are missing, unknown or not tied as the architecture says.
    """
    found = hashlib.sha256(wheel).hexdigest()
    if found != sha256:
        raise ValueError(
            f"the wheel of {REQUIREMENT} has SHA-256 {found}; {sha256} was asked: another build or a damaged download; "
            "fetch again, or look at what the package index serves"
        )
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        _refuse_leaving(archive.namelist())
        raw = {name: _member(archive, (INSIDE / name).as_posix()) for name in (CONFIG, VOCABULARY, PICKLED)}
    state = torch.load(io.BytesIO(raw[PICKLED]), weights_only=True, map_location="cpu")
    kept: dict[str, str | bytes] = {
        CONFIG: raw[CONFIG],
        VOCABULARY: raw[VOCABULARY],
        WEIGHTS: write_tensors(_once(state), metadata={"format": "pt"}),
    }
    sums = {name: hashlib.sha256(_as_bytes(value)).hexdigest() for name, value in kept.items()}
    # Last, as it says that the others are whole.
    kept[ABOUT] = json.dumps({"from": REQUIREMENT, "wheel_sha256": found, "sha256": sums}, indent=1, sort_keys=True)
    return write_report(target, kept)


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _refuse_leaving(names: Iterable[str]) -> None:
    for name in names:
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\\" in name or ":" in name:
            raise ValueError(f"the wheel holds {name!r}, which leaves its folder; nothing of it was kept")


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except KeyError as error:
        raise ValueError(f"the wheel holds no {name}; there are: {', '.join(archive.namelist())}") from error


def _once(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights without those unused, and tied ones once."""
    for name, same in TIED.items():
        if name not in state or same not in state or not torch.equal(state[name], state[same]):
            raise ValueError(f"the weights {name} and {same} are tied in {ARCHITECTURE}; in the wheel they are not")
    return {name: value.contiguous() for name, value in state.items() if name not in {*TIED, *UNUSED}}


def _fault(target: Path) -> str | None:
    """What is wrong with a folder that should hold the model."""
    if not (target / ABOUT).is_file():
        return f"there is no {ABOUT}"
    try:
        sums = json.loads((target / ABOUT).read_bytes())["sha256"]
    except (ValueError, KeyError, TypeError):
        return f"{ABOUT} cannot be read"
    for name in (CONFIG, VOCABULARY, WEIGHTS):
        if not (target / name).is_file():
            return f"there is no {name}"
        if hashlib.sha256((target / name).read_bytes()).hexdigest() != sums.get(name):
            return f"{name} is not what was fetched (SHA-256 differs)"
    return None


def checked(place: Path | str | None = None) -> Path:
    """The folder of the model, its files compared with the SHA-256 recorded when they were fetched.

    Raises FileNotFoundError, with the command that mends it, where a file is missing or another.
    """
    target = folder(place)
    if fault := _fault(target):
        command = "python -m analyses.rxnmapper_model" + (f" {place}" if place else "")
        raise FileNotFoundError(f"{target}: {fault}; fetch the model once with `{command}`")
    return target


def load(place: Path | str | None = None, *, attention: str = "eager") -> Any:
    """The `transformers.AlbertForMaskedLM`, float32, in eval mode; needs neither the wheel nor a network.

    attention: the name of transformers' implementation; `patterns` needs "eager".

    Raises FileNotFoundError naming the command to run where the model was not fetched, and ValueError where a weight
    does not land.
    """
    from transformers import AlbertConfig, AlbertForMaskedLM

    target = checked(place)
    asked = json.loads((target / CONFIG).read_bytes()).get("architectures")
    if asked != [ARCHITECTURE]:
        raise ValueError(f"{target / CONFIG}: the architecture is {asked}; this reads {ARCHITECTURE}")
    config = AlbertConfig.from_pretrained(target, local_files_only=True, attn_implementation=attention)
    weights = read_tensors((target / WEIGHTS).read_bytes())
    with torch.random.fork_rng(devices=[]):  # its random weights are overwritten; the caller's stream stays as it is
        model = AlbertForMaskedLM(config)
    model.load_state_dict(weights, strict=False)
    _check_landed(model, weights, target / WEIGHTS)
    return model.float().eval()


def _check_landed(model: Any, weights: Mapping[str, Tensor], path: Path) -> None:
    there = model.state_dict()
    if missing := sorted(set(there) - {*weights, *TIED}):
        raise ValueError(f"{path}: no weights for {', '.join(missing)}")
    if unknown := sorted(set(weights) - set(there)):
        raise ValueError(f"{path}: the model has no place for {', '.join(unknown)}")
    if lost := sorted(name for name, value in weights.items() if not torch.equal(there[name], value)):
        raise ValueError(f"{path}: {', '.join(lost)} did not land as they stand in the file")
    if loose := sorted(name for name, same in TIED.items() if there[name].data_ptr() != there[same].data_ptr()):
        raise ValueError(f"{path}: {', '.join(loose)} should be tied, and have a tensor of their own")


def patterns(model: Any, batch: Batch) -> Tensor:
    """Every head's attention, from one clean pass → [layer batch head dest source], float32, on the CPU.

    Raises ValueError for a model that was not loaded with attention="eager", which gives no patterns.
    """
    if (chosen := model.config._attn_implementation) != "eager":
        raise ValueError(f"the model's attention is {chosen!r}, which gives no patterns; load(attention='eager')")
    with torch.no_grad():
        out = model(input_ids=batch.tokens, attention_mask=batch.valid.long(), output_attentions=True)
    return torch.stack(out.attentions).float().cpu()


def main(words: list[str]) -> None:
    """Fetches the model, and says where it is."""
    if len(words) > 1 or any(word.startswith("-") for word in words):
        raise SystemExit("python -m analyses.rxnmapper_model [HOME]")
    print(fetch(*words))


if __name__ == "__main__":
    main(sys.argv[1:])
