"""Measured cells on disk: written in blocks, whole or not at all, checked when read, found by an index."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

BLOCKS, DAMAGED, INDEX = "blocks", "damaged", "index.sqlite"
CELL = "cell"
"""The column of a block that holds each row's cell, by key."""


@dataclass(frozen=True)
class Block:
    """A block as its manifest says: its cells with what defines each, its file's SHA-256 and size in bytes."""

    name: str
    sha256: str
    size: int
    cells: Mapping[str, Mapping[str, Any]]


class Store:
    """A folder of blocks and an index of their cells.

    A block is a Parquet file and a manifest beside it, and exists once the manifest does. Several processes may use one
    store: `writing(name)` lets one at a time compute what has that name. The index holds nothing that the manifests do
    not: it is made anew where it is lost, and learns what others wrote.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self.blocks = self.folder / BLOCKS
        self.blocks.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """One process at a time under this name; a process that is killed lets go."""
        with self._lock(name):
            yield

    def _lock(self, name: str) -> FileLock:
        (self.folder / "locks").mkdir(exist_ok=True)
        return FileLock(self.folder / "locks" / f"{hashlib.sha256(name.encode()).hexdigest()[:20]}.lock")

    def lock(self, stack: ExitStack, name: str, waiting: bool) -> bool:
        """Enters `writing(name)` into the stack; False, at once, where another has it and `waiting` is not said."""
        try:
            stack.enter_context(self._lock(name).acquire(blocking=waiting))
        except Timeout:
            return False
        return True

    def add(self, cells: Mapping[str, pd.DataFrame], about: Mapping[str, Mapping[str, Any]]) -> str:
        """Writes a block of cells, key → rows, with what defines each; gives its name.

        The file is written beside its place, synced and renamed, then its manifest: killed at any moment, the block is
        there whole or not at all.
        """
        if not cells:
            raise ValueError("a block holds one cell or more")
        rows = pd.concat([frame.assign(**{CELL: key}) for key, frame in cells.items()], ignore_index=True)
        raw = _parquet(rows.astype({CELL: "category"}))
        name = hashlib.sha256("".join(sorted(cells)).encode() + raw).hexdigest()[:20]
        block = Block(name, hashlib.sha256(raw).hexdigest(), len(raw), {key: dict(about.get(key, {})) for key in cells})
        _write_whole(self.blocks / f"{name}.parquet", raw)
        said = {"sha256": block.sha256, "size": block.size, "cells": block.cells}
        text = json.dumps(said, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        _write_whole(self.blocks / f"{name}.json", text.encode())
        with self._index() as index:
            _enter(index, block)
        return name

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Of these cells, those that are not here, in order."""
        here = self._where(keys)
        return [key for key in keys if key not in here]

    def read(self, keys: Sequence[str]) -> dict[str, pd.DataFrame]:
        """The rows of these cells, as they were added.

        A damaged block is moved aside and its cells are not in what is returned, so that they are computed again.
        """
        here = self._where(keys)
        found: dict[str, pd.DataFrame] = {}
        for name in sorted(set(here.values())):
            wanted = [key for key in keys if here.get(key) == name]
            rows = self._rows(name)
            if rows is not None:
                parts = dict(tuple(rows[rows[CELL].isin(wanted)].groupby(CELL, observed=True, sort=False)))
                found |= {key: parts[key].drop(columns=CELL).reset_index(drop=True) for key in wanted if key in parts}
        return {key: found[key] for key in keys if key in found}

    def about(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What each of these cells is, as it was added; those that are not here are left out."""
        here = self._where(keys)
        with self._index() as index:
            rows = [
                (key, index.execute("SELECT said FROM cells WHERE cell = ? AND block = ?", (key, block)).fetchone())
                for key, block in here.items()
            ]
        return {key: json.loads(row[0]) for key, row in rows if row is not None}

    def set_aside(self, keys: Sequence[str]) -> None:
        """Moves the blocks of these cells aside, so that they are computed again."""
        while here := self._where(keys):
            for name in sorted(set(here.values())):
                self._move_aside(name)

    def cells(self) -> pd.DataFrame:
        """Every cell that is here: its key, its block, the block's size in bytes, and what the cell is, as text."""
        with self._index() as index:
            return pd.read_sql_query(
                "SELECT cell, block, size, said FROM cells JOIN blocks USING (block) ORDER BY block, cell", index
            )

    def damaged(self) -> list[str]:
        """Checks every block; those that are damaged are moved aside and named."""
        with self._index() as index:
            names = [row[0] for row in index.execute("SELECT block FROM blocks ORDER BY block")]
        return [name for name in names if self._rows(name) is None]

    def prune(self, keep: Iterable[str] = ()) -> int:
        """Removes blocks none of whose cells is kept, files that belong to no block, and what was moved aside.

        Gives how many bytes were freed.
        """
        kept, freed = set(keep), 0
        with self.writing("prune"):
            for path in sorted(self.blocks.glob("*.json")):
                block = _manifest(path)
                if block is None or not kept & set(block.cells):
                    freed += _remove(path) + _remove(path.with_suffix(".parquet"))
            with_manifest = {path.stem for path in self.blocks.glob("*.json")}
            for path in self.blocks.iterdir():
                if path.suffix == ".parquet" and path.stem not in with_manifest:
                    freed += _remove(path)
            for path in (self.folder / DAMAGED).glob("*"):
                freed += _remove(path)
            _remove(self.folder / INDEX)
        return freed

    def _where(self, keys: Sequence[str]) -> dict[str, str]:
        """Key → block, of those that are here."""
        with self._index() as index:
            index.execute("CREATE TEMP TABLE asked (cell TEXT PRIMARY KEY)")
            index.executemany("INSERT OR IGNORE INTO asked VALUES (?)", [(key,) for key in keys])
            return dict(index.execute("SELECT cell, MIN(block) FROM cells JOIN asked USING (cell) GROUP BY cell"))

    def _rows(self, name: str) -> pd.DataFrame | None:
        """A block's rows; None where it is damaged, which moves it aside."""
        path = self.blocks / f"{name}.parquet"
        block = _manifest(path.with_suffix(".json"))
        raw = path.read_bytes() if path.is_file() else b""
        if block is not None and hashlib.sha256(raw).hexdigest() == block.sha256:
            return pd.read_parquet(io.BytesIO(raw))
        self._move_aside(name)
        return None

    def _move_aside(self, name: str) -> None:
        path = self.blocks / f"{name}.parquet"
        (self.folder / DAMAGED).mkdir(exist_ok=True)
        for part in (path.with_suffix(".json"), path):
            if part.exists():
                os.replace(part, self.folder / DAMAGED / part.name)
        with self._index() as index:
            _forget(index, name)

    @contextmanager
    def _index(self) -> Iterator[sqlite3.Connection]:
        """The index, with the blocks that are in the folder now; made anew where it cannot be read."""
        path = self.folder / INDEX
        try:
            index = _opened(path)
        except sqlite3.DatabaseError:
            path.unlink(missing_ok=True)
            index = _opened(path)
        with closing(index):
            known = {row[0] for row in index.execute("SELECT block FROM blocks")}
            there = {entry.name[:-5] for entry in os.scandir(self.blocks) if entry.name.endswith(".json")}
            for name in known - there:
                _forget(index, name)
            for name in sorted(there - known):
                block = _manifest(self.blocks / f"{name}.json")
                if block is not None:
                    _enter(index, block)
            index.commit()
            yield index
            index.commit()


def _opened(path: Path) -> sqlite3.Connection:
    index = sqlite3.connect(path, timeout=60)
    index.execute("CREATE TABLE IF NOT EXISTS blocks (block TEXT PRIMARY KEY, size INTEGER)")
    index.execute("CREATE TABLE IF NOT EXISTS cells (cell TEXT, block TEXT, said TEXT, PRIMARY KEY (cell, block))")
    return index


def _enter(index: sqlite3.Connection, block: Block) -> None:
    index.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?)", (block.name, block.size))
    rows = [
        (key, block.name, json.dumps(said, sort_keys=True, ensure_ascii=False)) for key, said in block.cells.items()
    ]
    index.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", rows)


def _forget(index: sqlite3.Connection, name: str) -> None:
    index.execute("DELETE FROM cells WHERE block = ?", (name,))
    index.execute("DELETE FROM blocks WHERE block = ?", (name,))
    index.commit()


def _manifest(path: Path) -> Block | None:
    """What a manifest says; None where it cannot be read."""
    try:
        said = json.loads(path.read_bytes())
        return Block(path.stem, str(said["sha256"]), int(said["size"]), dict(said["cells"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _parquet(rows: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    rows.to_parquet(buffer, index=False, compression="zstd")
    return buffer.getvalue()


def _write_whole(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove(path: Path) -> int:
    size = path.stat().st_size if path.exists() else 0
    path.unlink(missing_ok=True)
    return size
