"""Measured cells on disk: written in blocks, whole or not at all, checked when read, found by an index."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from filelock import FileLock

from workbench.blocks import CELL, Block, read_manifest, read_rows, remove, write_block
from workbench.claims import Claims

BLOCKS, DAMAGED, CLAIMS, INDEX = "blocks", "damaged", "claims", "index.sqlite"
VERSION = 1
"""Raised by hand where the index's tables change: one of another version is made anew."""

SETTLED = 2.0
"""Seconds after which a folder's time of change tells whether it was changed since; before, it is too coarse."""

ELSEWHERE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
"""What says nothing against an index: it is in another's hand, or in a place where nothing may be written."""

T = TypeVar("T")


class Store:
    """A folder of blocks and an index of their cells.

    A block is a Parquet file and a manifest beside it, and exists once the manifest does. Several processes may use one
    store: one at a time has a cell in hand. The index holds nothing that the manifests do not: it is made anew where it
    is lost, learns what others wrote, and is kept in memory where it cannot be written.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self.blocks = self.folder / BLOCKS
        self.claims = Claims(self.folder / CLAIMS)

    def take(self, keys: Collection[str], waiting: bool) -> bool:
        """Takes cells in hand, so that no other process computes them; False where another has one of them in hand,
        which is waited for where `waiting` is said."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while not self.claims.take(keys):
            if not waiting:
                return False
            time.sleep(0.05)
        return True

    def give(self, keys: Collection[str]) -> None:
        """Lets go of cells in hand."""
        self.claims.give(keys)

    def add(self, cells: Mapping[str, pd.DataFrame], about: Mapping[str, Mapping[str, Any]]) -> str:
        """Writes a block of cells, key → rows, with what defines each; gives its name.

        The file is written beside its place, synced and renamed, then its manifest: killed at any moment, the block is
        there whole or not at all. Raises ValueError for no cells.
        """
        if not cells:
            raise ValueError("a block holds one cell or more")
        self.blocks.mkdir(parents=True, exist_ok=True)
        with self._writing():
            block = write_block(self.blocks, cells, about)
        self._ask(lambda index: _enter(index, block))
        return block.name

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
            rows = read_rows(self.blocks, name)
            if rows is None or not set(wanted) <= set(rows[CELL]):
                self._move_aside(name)
                continue
            parts = dict(tuple(rows.drop(columns=CELL).groupby(rows[CELL], observed=True, sort=False)))
            found |= {key: parts[key].reset_index(drop=True) for key in wanted}
        return {key: found[key] for key in keys if key in found}

    def about(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What each of these cells is, as it was added; those that are not here are left out."""
        asked = "SELECT cell, said, MIN(block) FROM cells JOIN asked USING (cell) GROUP BY cell"
        said = {row[0]: row[1] for row in self._ask(lambda index: _about(index, asked, keys))}
        return {key: json.loads(said[key]) for key in keys if key in said}

    def set_aside(self, keys: Sequence[str]) -> None:
        """Moves the blocks of these cells aside, so that they are computed again."""
        while here := self._where(keys):
            for name in sorted(set(here.values())):
                self._move_aside(name)

    def cells(self) -> pd.DataFrame:
        """Every cell that is here: its key, its block, the block's size in bytes, and what the cell is, as text."""
        asked = "SELECT cell, block, size, said FROM cells JOIN blocks USING (block) ORDER BY block, cell"
        return self._ask(lambda index: pd.read_sql_query(asked, index))

    def damaged(self) -> list[str]:
        """Checks every block; those that are damaged are moved aside and named."""
        found = [name for name in sorted(_manifests(self.blocks)) if read_rows(self.blocks, name) is None]
        for name in found:
            self._move_aside(name)
        return found

    def prune(self, keep: Iterable[str] | None = ()) -> int:
        """Removes blocks none of whose cells is kept (None: every cell is), files that belong to no block, and what was
        moved aside. Gives how many bytes were freed."""
        kept, freed = None if keep is None else set(keep), 0
        if not self.folder.is_dir():
            return 0
        with self._writing():
            for path in sorted(self.blocks.glob("*.json")):
                block = read_manifest(path)
                if block is None or (kept is not None and not kept & set(block.cells)):
                    freed += remove(path) + remove(path.with_suffix(".parquet"))
            whole = _manifests(self.blocks)
            for path in [*self.blocks.glob("*.parquet"), *self.blocks.glob(".*.partial")]:
                if path.suffix == ".partial" or path.stem not in whole:
                    freed += remove(path)
            for path in (self.folder / DAMAGED).glob("*"):
                freed += remove(path)
        self.claims.sweep()
        return freed

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One process at a time, so that what is half written is not taken for what nobody wants."""
        with FileLock(self.folder / "writing.lock"):
            yield

    def _where(self, keys: Sequence[str]) -> dict[str, str]:
        """Key → block, of those that are here."""
        asked = "SELECT cell, MIN(block) FROM cells JOIN asked USING (cell) GROUP BY cell"
        return dict(self._ask(lambda index: _about(index, asked, keys)))

    def _move_aside(self, name: str) -> None:
        (self.folder / DAMAGED).mkdir(exist_ok=True)
        for ending in ("json", "parquet"):
            try:
                os.replace(self.blocks / f"{name}.{ending}", self.folder / DAMAGED / f"{name}.{ending}")
            except FileNotFoundError:  # never there, or moved by another
                continue
        self._ask(lambda index: _forget(index, name))

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """An answer of the index, with the blocks that are in the folder now; it is made anew where it is damaged."""
        path = self.folder / INDEX
        for place in (path, path, None):
            try:
                with closing(_opened(place if self.folder.is_dir() else None)) as index:
                    _learn(index, self.blocks)
                    answer = question(index)
                    index.commit()
                    return answer
            except sqlite3.DatabaseError as error:
                if place is None:
                    raise
                if getattr(error, "sqlite_errorcode", None) not in ELSEWHERE:
                    _discard(path)
        raise AssertionError("an index in memory answers, or raises")


def _opened(path: Path | None) -> sqlite3.Connection:
    """The index in a file, or an empty one in memory. Raises DatabaseError for one of another version."""
    index = sqlite3.connect(":memory:" if path is None else path, timeout=20)
    try:
        both = "SELECT user_version, (SELECT COUNT(*) FROM sqlite_master) FROM pragma_user_version"
        found, tables = index.execute(both).fetchone()
        if found != VERSION:
            if tables:
                raise sqlite3.DatabaseError(f"an index of version {found}")
            index.execute("BEGIN IMMEDIATE")
            index.execute("CREATE TABLE IF NOT EXISTS blocks (block TEXT PRIMARY KEY, size INTEGER)")
            index.execute(
                "CREATE TABLE IF NOT EXISTS cells (cell TEXT, block TEXT, said TEXT, PRIMARY KEY (cell, block))"
            )
            index.execute("CREATE TABLE IF NOT EXISTS learnt (changed INTEGER)")
            index.execute("CREATE INDEX IF NOT EXISTS by_block ON cells (block)")
            index.execute(f"PRAGMA user_version = {VERSION}")
            index.commit()
    except BaseException:
        index.close()
        raise
    return index


def _learn(index: sqlite3.Connection, blocks: Path) -> None:
    """Enters what others wrote and forgets what they removed; a folder that is as it was is not looked through."""
    now, changed = time.time_ns(), blocks.stat().st_mtime_ns if blocks.is_dir() else 0
    learnt = index.execute("SELECT changed FROM learnt").fetchall()
    if learnt == [(changed,)]:
        return
    known = {row[0] for row in index.execute("SELECT block FROM blocks")}
    there = _manifests(blocks)
    for name in known - there:
        _forget(index, name)
    for name in sorted(there - known):
        block = read_manifest(blocks / f"{name}.json")
        if block is not None:
            _enter(index, block)
    if learnt:
        index.execute("DELETE FROM learnt")
    if now - changed > SETTLED * 1e9:
        index.execute("INSERT INTO learnt VALUES (?)", (changed,))
    index.commit()


def _manifests(blocks: Path) -> set[str]:
    if not blocks.is_dir():
        return set()
    return {entry.name[:-5] for entry in os.scandir(blocks) if entry.name.endswith(".json")}


def _about(index: sqlite3.Connection, question: str, keys: Sequence[str]) -> list[Any]:
    index.execute("CREATE TEMP TABLE asked (cell TEXT PRIMARY KEY)")
    index.executemany("INSERT OR IGNORE INTO asked VALUES (?)", [(key,) for key in keys])
    return index.execute(question).fetchall()


def _enter(index: sqlite3.Connection, block: Block) -> None:
    index.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?)", (block.name, block.size))
    rows = [
        (key, block.name, json.dumps(said, sort_keys=True, ensure_ascii=False)) for key, said in block.cells.items()
    ]
    index.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", rows)


def _forget(index: sqlite3.Connection, name: str) -> None:
    index.execute("DELETE FROM cells WHERE block = ?", (name,))
    index.execute("DELETE FROM blocks WHERE block = ?", (name,))


def _discard(path: Path) -> None:
    """Removes an index, and what an interrupted change of it left, which must not be taken up by the next one."""
    for one in (path, path.with_name(f"{path.name}-journal")):
        try:
            one.unlink(missing_ok=True)
        except OSError:  # it may be a folder, or nothing may be written here: memory serves
            return
