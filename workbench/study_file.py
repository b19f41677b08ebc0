"""Studies in files: JSON written, JSON and TOML read, with the format's number in them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from workbench.grids import combinations, declared
from workbench.study import Study

FORMAT = 1
"""Raised by hand where a study's meaning changes: a file of another format is refused, never guessed at."""


def study_text(study: Study) -> str:
    """The study as JSON, as `read_study` reads it.

    >>> "format" in study_text(Study(conditions={"clean": []}, n=10, data_seed=0))
    True
    """
    return json.dumps({"format": FORMAT, **study.model_dump(mode="json")}, indent=1, ensure_ascii=False) + "\n"


def read_study(path: Path | str) -> Study:
    """The study in a .json or .toml file.

    Raises FileNotFoundError or ValueError naming the file and the fault: no valid JSON or TOML, another format, unknown
    keys and wrong values with their path.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'a folder; a study is a file' if path.is_dir() else 'no such file'}")
    values = _parsed(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: a study is a table of keys; there is a {type(values).__name__}")
    said = values.pop("format", None)
    if type(said) is not int or said != FORMAT:  # True and 1.0 equal 1
        found = "has no 'format'" if said is None else f"is of format {said!r}"
        raise ValueError(f"{path} {found}; this version of the workbench reads format {FORMAT}")
    try:
        return Study.model_validate(_expanded(path, values))
    except ValidationError as error:
        # A fault of the whole study has no place.
        faults = [
            ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, "))))
            for one in error.errors(include_url=False)
        ]
        raise ValueError(f"{path}: {'; '.join(faults)}") from error


def _expanded(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The study's values with its grids written out: `[grids.NAME]` as conditions, lists in a model's config as
    models."""
    grids, sources = values.pop("grids", {}), values.get("models", {})
    for name, said in {"conditions": values.get("conditions", {}), "grids": grids, "models": sources}.items():
        if not isinstance(said, dict):
            raise ValueError(f"{path}: {name}: Input should be a valid dictionary")
    conditions = dict(values.get("conditions", {}))
    for name, said in grids.items():
        if not isinstance(said, dict) or set(said) != {"where", "what"}:
            raise ValueError(f"{path}: grids.{name} has 'where' and 'what'; there is {sorted(said)}")
        for label, edits in declared(said["where"], said["what"]).items():
            if label in conditions:
                raise ValueError(f"{path}: grids.{name} and another condition are both labelled {label!r}")
            conditions[label] = edits
    models: dict[str, Any] = {}
    for label, said in sources.items():
        for name, one in _sizes(label, said):
            if name in models:
                raise ValueError(f"{path}: two models are labelled {name!r}; a list in a config names each value once")
            models[name] = one
    return {**values, "conditions": conditions, "models": models}


def _sizes(label: str, said: Any) -> list[tuple[str, Any]]:
    """A model's entry for each choice from the lists in its config, labelled by what differs."""
    config = said.get("config") if isinstance(said, dict) else None
    if not isinstance(config, dict) or not any(isinstance(value, list) for value in config.values()):
        return [(label, said)]
    several = [name for name, value in config.items() if isinstance(value, list)]
    return [
        (f"{label} {' '.join(f'{name}={one[name]}' for name in several)}", {**said, "config": one})
        for one in combinations(config)
    ]


def _parsed(path: Path) -> Any:
    if path.suffix not in (".json", ".toml"):
        raise ValueError(f"{path}: a study is read from .json or .toml; the suffix is {path.suffix!r}")
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=_once) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no valid {path.suffix[1:].upper()} ({error})") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON file. JSON's own reading keeps the last of two values of a key, and drops a condition."""
    keys = [key for key, _ in pairs]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"{twice[0]!r} is there twice")
    return dict(pairs)
