"""Studies in files: JSON written, JSON and TOML read, with the format's number in them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from workbench.faults import paragraph
from workbench.grids import combinations, declared
from workbench.study import Study

FORMAT = 1
"""Raised by hand where a study's meaning changes: a file of another format is refused, never guessed at."""


def study_text(study: Study) -> str:
    """The study as JSON, from which `read_study` reads the same study.

    Raises ValueError for a study that would come back as another: with a list in a model's config where a model has one
    value, which a file reads as several models.

    >>> "format" in study_text(Study(conditions={"clean": []}, n=10, data_seed=0))
    True
    """
    values = study.model_dump(mode="json")
    for label, said in values["models"].items():
        if several := [".".join(place) for place in _several(said.get("config", {}))]:
            raise ValueError(
                f"models.{label}: {', '.join(several)} of its config holds a list, which a study's file reads as a "
                "model for each value; declare these models one by one"
            )
    return json.dumps({"format": FORMAT, **values}, indent=1, ensure_ascii=False) + "\n"


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
            raise ValueError(
                f"{path}: grids.{name} needs 'where' and 'what', as where = {{ type = \"edges\", layer = [0, 1], "
                f'dest = "last" }} and what = {{ op = "cut" }}; there is {sorted(said)}'
            )
        try:
            made = declared(said["where"], said["what"])
        except ValueError as error:
            raise ValueError(f"{path}: grids.{name}: {_sentence(error)}") from error
        for label, edits in made.items():
            if label in conditions:
                raise ValueError(f"{path}: grids.{name} and another condition are both labelled {label!r}")
            conditions[label] = edits
    models: dict[str, Any] = {}
    for label, said in sources.items():
        try:
            sizes = _sizes(label, said)
        except ValueError as error:
            raise ValueError(f"{path}: models.{label}: {error}") from error
        for name, one in sizes:
            if name in models:
                raise ValueError(f"{path}: two models are labelled {name!r}; a list in a config names each value once")
            models[name] = one
    return {**values, "conditions": conditions, "models": models}


def _sentence(error: ValueError) -> str:
    """An error's words, pydantic's in one paragraph."""
    return paragraph(error) or str(error)


def _sizes(label: str, said: Any) -> list[tuple[str, Any]]:
    """A model's entry for each choice from the lists in its config, labelled by what differs."""
    config = said.get("config") if isinstance(said, dict) else None
    if not isinstance(config, dict) or not (several := _several(config)):
        return [(label, said)]
    names, out = {".".join(place): place for place in several}, []
    for chosen in combinations({name: several[place] for name, place in names.items()}):
        one = config
        for name, value in chosen.items():
            one = _with(one, names[name], value)
        if left := [".".join(place) for place in _several(one)]:
            raise ValueError(f"{left[0]} is a list within a list; a list in a config names a model each, of one value")
        choice = " ".join(f"{name}={_written(value)}" for name, value in chosen.items())
        out.append((f"{label} {choice}", {**said, "config": one}))
    return out


def _several(config: Mapping[str, Any]) -> dict[tuple[str, ...], Sequence[Any]]:
    """The lists in a config that name a model each, by their place. A model's masks are one value, though a list; a
    list of such lists names several."""
    out: dict[tuple[str, ...], Sequence[Any]] = {}
    for name, value in config.items():
        if name in ("encoder", "decoder") and isinstance(value, Mapping):
            out |= {(name, *place): values for place, values in _several(value).items()}
        elif isinstance(value, list | tuple):
            lists = [isinstance(one, list | tuple) for one in value]
            if name == "masks" and any(lists) and not all(lists):
                raise ValueError("masks holds masks beside lists of masks; give one list of masks, or a list of lists")
            if name != "masks" or any(lists):
                out[(name,)] = value
    return out


def _with(config: Any, place: Sequence[str], value: Any) -> dict[str, Any]:
    name, *rest = place
    return {**config, name: _with(config[name], rest, value) if rest else value}


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


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
