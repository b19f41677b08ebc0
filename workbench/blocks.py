"""A block on disk: a Parquet file, and a manifest beside it that says what is in it. Whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded where rows are: listing what is there needs none
    import numpy as np
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


@dataclass(frozen=True, eq=False)
class Piece:
    """The rows of one cell, column by column: numbers by name, and why each example was skipped, as its place in
    `reasons` (−1: it was not)."""

    numbers: Mapping[str, np.ndarray]
    skipped: np.ndarray
    reasons: Sequence[str]


def write_block(folder: Path, cells: Mapping[str, pd.DataFrame], about: Mapping[str, Mapping[str, Any]]) -> Block:
    """Writes cells, key → rows, with what each is: the rows, then the manifest, with which the block exists."""
    import pandas as pd

    rows = pd.concat(list(cells.values()), ignore_index=True)
    keys = [key for key, frame in cells.items() for _ in range(len(frame))]
    # After the first cell's columns, where files of this version have always had it.
    rows.insert(len(next(iter(cells.values())).columns), CELL, pd.Series(keys, dtype="str").astype("category"))
    buffer = io.BytesIO()
    rows.to_parquet(buffer, index=False, compression="zstd")
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


def read_whole(folder: Path, name: str) -> tuple[Block, bytes] | None:
    """What the manifest of a block says, and its file; None where any of it is missing or altered."""
    block = read_manifest(folder / f"{name}.json")
    try:
        raw = (folder / f"{name}.parquet").read_bytes()
    except OSError:
        return None
    if block is None or hashlib.sha256(raw).hexdigest() != block.sha256:
        return None
    return block, raw


def frame_of(raw: bytes) -> pd.DataFrame:
    """The rows in a block's file, as they were added, with each row's cell."""
    import pandas as pd

    return pd.read_parquet(io.BytesIO(raw))


def pieces_of(raw: bytes) -> dict[str, Piece]:
    """The rows in a block's file by cell, column by column: many times as fast as frames."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    # One thread: a block is small, and where several are read at once each has a thread already.
    table = parquet.ParquetFile(pa.BufferReader(raw), pre_buffer=False).read(use_threads=False)
    cells, reasons = (_encoded(table[name]) for name in (CELL, "skipped"))
    numbers = {name: table[name].to_numpy() for name in table.column_names if name not in (CELL, "skipped")}
    # The rows of a cell lie together, as they were written.
    starts = [0, *(np.flatnonzero(np.diff(cells[0])) + 1).tolist()]
    out = {}
    for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
        own = {name: values[start:end] for name, values in numbers.items()}
        out[cells[1][cells[0][start]]] = Piece(own, reasons[0][start:end], reasons[1])
    return out


def _encoded(column: Any) -> tuple[np.ndarray, list[str]]:
    """A column of text as places in a list of what there is, −1 where there is none."""
    import pyarrow as pa

    whole = column.combine_chunks()
    if not pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_encode()
    return whole.indices.fill_null(-1).to_numpy(), whole.dictionary.to_pylist()


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
