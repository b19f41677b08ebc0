"""A block on disk: a Parquet file, and a manifest beside it that says what is in it. Whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

CELL = "cell"
"""The column of a block that holds each row's cell, by key."""


@dataclass(frozen=True)
class Block:
    """A block as its manifest says: its cells with what defines each, its file's SHA-256 and size in bytes."""

    name: str
    sha256: str
    size: int
    cells: Mapping[str, Mapping[str, Any]]


def write_block(folder: Path, cells: Mapping[str, pd.DataFrame], about: Mapping[str, Mapping[str, Any]]) -> Block:
    """Writes cells, key → rows, with what each is: the rows, then the manifest, with which the block exists."""
    rows = pd.concat([frame.assign(**{CELL: key}) for key, frame in cells.items()], ignore_index=True)
    buffer = io.BytesIO()
    rows.astype({CELL: "category"}).to_parquet(buffer, index=False, compression="zstd")
    raw = buffer.getvalue()
    name = hashlib.sha256("".join(sorted(cells)).encode() + raw).hexdigest()[:20]
    block = Block(name, hashlib.sha256(raw).hexdigest(), len(raw), {key: dict(about.get(key, {})) for key in cells})
    write_whole(folder / f"{name}.parquet", raw)
    said: dict[str, Any] = {"sha256": block.sha256, "size": block.size, "cells": block.cells}
    text = json.dumps({**said, "check": _check(said)}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    write_whole(folder / f"{name}.json", text.encode())
    return block


def read_manifest(path: Path) -> Block | None:
    """What a manifest says; None where it cannot be read, or was altered."""
    try:
        said = json.loads(path.read_bytes())
        if said.pop("check") != _check(said):
            return None
        return Block(path.stem, said["sha256"], said["size"], said["cells"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def read_rows(folder: Path, name: str) -> pd.DataFrame | None:
    """The rows of a block; None where any of it is missing or altered."""
    block = read_manifest(folder / f"{name}.json")
    try:
        raw = (folder / f"{name}.parquet").read_bytes()
    except OSError:
        return None
    if block is None or hashlib.sha256(raw).hexdigest() != block.sha256:
        return None
    return pd.read_parquet(io.BytesIO(raw))


def write_whole(path: Path, content: bytes, sync: bool = True) -> None:
    """Writes a file beside its place and renames it: killed at any moment, it is there whole or not at all."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(beside, path)
        if sync:
            _sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def remove(path: Path) -> int:
    """Removes a file that may be gone already; gives its size."""
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def _check(said: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _sync(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
