"""The index of a store: which cell is in which block. It holds nothing that the manifests do not."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from workbench.blocks import Block, read_manifest

VERSION = 1
"""Raised by hand where the index's tables change: one of another version is made anew."""

SETTLED = 2.0
"""Seconds after which a folder's time of change tells whether it was changed since; before, it is too coarse."""


def opened(path: Path | None) -> sqlite3.Connection:
    """The index in a file, or an empty one in memory. Raises DatabaseError for one of another version."""
    index = sqlite3.connect(":memory:" if path is None else path, timeout=20)
    try:
        # The manifests are what is synced; an index that a power cut leaves damaged is made anew from them.
        index.execute("PRAGMA synchronous = OFF")
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


def learn(index: sqlite3.Connection, blocks: Path) -> None:
    """Enters what others wrote and forgets what they removed; a folder that is as it was is not looked through."""
    now, changed = time.time_ns(), blocks.stat().st_mtime_ns if blocks.is_dir() else 0
    learnt = index.execute("SELECT changed FROM learnt").fetchall()
    if learnt == [(changed,)]:
        return
    known = {row[0] for row in index.execute("SELECT block FROM blocks")}
    there = manifests(blocks)
    for name in known - there:
        forget(index, name)
    for name in sorted(there - known):
        block = read_manifest(blocks / f"{name}.json")
        if block is not None:
            enter(index, block)
    if learnt:
        index.execute("DELETE FROM learnt")
    if now - changed > SETTLED * 1e9:
        index.execute("INSERT INTO learnt VALUES (?)", (changed,))
    index.commit()


def manifests(blocks: Path) -> set[str]:
    """The names of the blocks that are in a folder."""
    if not blocks.is_dir():
        return set()
    return {entry.name[:-5] for entry in os.scandir(blocks) if entry.name.endswith(".json")}


def answers(index: sqlite3.Connection, question: str, keys: Collection[str], *given: str) -> list[Any]:
    """The answers to a question about these cells, which it finds in the table `asked`, and with what is given."""
    index.execute("CREATE TEMP TABLE asked (cell TEXT PRIMARY KEY)")
    index.executemany("INSERT OR IGNORE INTO asked VALUES (?)", [(key,) for key in keys])
    return index.execute(question, given).fetchall()


def enter(index: sqlite3.Connection, block: Block) -> None:
    """Puts a block and its cells into the index."""
    index.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?)", (block.name, block.size))
    rows = [
        (key, block.name, json.dumps(said, sort_keys=True, ensure_ascii=False)) for key, said in block.cells.items()
    ]
    index.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", rows)


def forget(index: sqlite3.Connection, name: str) -> None:
    """Takes a block and its cells out of the index."""
    index.execute("DELETE FROM cells WHERE block = ?", (name,))
    index.execute("DELETE FROM blocks WHERE block = ?", (name,))


def discard(path: Path) -> None:
    """Removes an index, and what an interrupted change of it left, which must not be taken up by the next one."""
    for one in (path, path.with_name(f"{path.name}-journal")):
        try:
            one.unlink(missing_ok=True)
        except OSError:  # it may be a folder, or nothing may be written here: memory serves
            return
