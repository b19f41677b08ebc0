"""Measured cells on disk: written in blocks, whole or not at all, checked when read, found by an index."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock

from workbench.blocks import CELL, Block, Piece, frame_of, pieces_of, read_manifest, read_whole, remove, write_block
from workbench.claims import Claims
from workbench.index import answers, discard, enter, forget, learn, manifests, opened

if TYPE_CHECKING:
    import pandas as pd

BLOCKS, DAMAGED, CLAIMS, INDEX = "blocks", "damaged", "claims", "index.sqlite"
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

    def take(self, keys: Collection[str]) -> bool:
        """Takes cells in hand, so that no other process computes them; False where another has one of them in hand."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.claims.take(keys)

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
        self._ask(lambda index: enter(index, block))
        return block.name

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Of these cells, those that are not here, in order."""
        here = self._where(keys)
        return [key for key in keys if key not in here]

    def read(self, keys: Sequence[str]) -> dict[str, pd.DataFrame]:
        """The rows of these cells, as they were added.

        A damaged block is moved aside and its cells are not in what is returned, so that they are computed again.
        """
        found: dict[str, pd.DataFrame] = {}
        for wanted, block, raw in self._blocks(keys):
            rows = frame_of(raw)
            if not set(wanted) <= set(rows[CELL]):
                self._move_aside(block.name)
                continue
            parts = dict(tuple(rows.drop(columns=CELL).groupby(rows[CELL], observed=True, sort=False)))
            found |= {key: parts[key].reset_index(drop=True) for key in wanted}
        return {key: found[key] for key in keys if key in found}

    def scan(self, keys: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any], Piece]]:
        """As `read`, but for many cells: (key, what the cell is, its rows column by column), block after block, each
        file read once."""
        for wanted, block, raw in self._blocks(keys):
            pieces = pieces_of(raw)
            if not set(wanted) <= set(pieces):
                self._move_aside(block.name)
                continue
            for key in wanted:
                yield key, block.cells[key], pieces[key]

    def _blocks(self, keys: Sequence[str]) -> Iterator[tuple[list[str], Block, bytes]]:
        """The blocks of these cells, each with those of the cells that are read from it; damaged ones are moved
        aside."""
        wanted: dict[str, list[str]] = {}
        for key, name in self._where(keys).items():
            wanted.setdefault(name, []).append(key)
        for name in sorted(wanted):
            found = read_whole(self.blocks, name)
            if found is None or not set(wanted[name]) <= set(found[0].cells):
                self._move_aside(name)
            else:
                yield wanted[name], *found

    def about(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What each of these cells is, as it was added; those that are not here are left out."""
        asked = "SELECT cell, said, MIN(block) FROM cells JOIN asked USING (cell) GROUP BY cell"
        said = {row[0]: row[1] for row in self._ask(lambda index: answers(index, asked, keys))}
        return {key: json.loads(said[key]) for key in keys if key in said}

    def recorded(self, keys: Collection[str], name: str) -> dict[str, Any]:
        """One thing that is said of each of these cells, by the index; those that are not here are left out."""
        asked = (
            "SELECT cell, json_extract(said, '$.' || ?), MIN(block) FROM cells JOIN asked USING (cell) GROUP BY cell"
        )
        return {row[0]: row[1] for row in self._ask(lambda index: answers(index, asked, keys, name))}

    def set_aside(self, keys: Sequence[str]) -> None:
        """Moves the blocks of these cells aside, so that they are computed again."""
        while here := self._where(keys):
            for name in sorted(set(here.values())):
                self._move_aside(name)

    def cells(self) -> pd.DataFrame:
        """Every cell that is here: its key, its block, the block's size in bytes, and what the cell is, as text."""
        asked = "SELECT cell, block, size, said FROM cells JOIN blocks USING (block) ORDER BY block, cell"
        import pandas as pd

        return self._ask(lambda index: pd.read_sql_query(asked, index))

    def tally(self) -> tuple[dict[tuple[str, str], int], int, int]:
        """How many cells there are by task and model, in how many blocks, of how many bytes."""
        counted = (
            "SELECT COALESCE(json_extract(said, '$.task'), '?'), COALESCE(json_extract(said, '$.model'), '?'), "
            "COUNT(*) FROM cells GROUP BY 1, 2 ORDER BY 1, 2"
        )
        sized = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM blocks"
        cells, (blocks, size) = self._ask(
            lambda index: (index.execute(counted).fetchall(), index.execute(sized).fetchone())
        )
        return {(task, model): number for task, model, number in cells}, blocks, size

    def damaged(self) -> list[str]:
        """Checks every block; those that are damaged are moved aside and named."""
        found = [name for name in sorted(manifests(self.blocks)) if read_whole(self.blocks, name) is None]
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
            whole = manifests(self.blocks)
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
        return dict(self._ask(lambda index: answers(index, asked, keys)))

    def _move_aside(self, name: str) -> None:
        (self.folder / DAMAGED).mkdir(exist_ok=True)
        for ending in ("json", "parquet"):
            try:
                os.replace(self.blocks / f"{name}.{ending}", self.folder / DAMAGED / f"{name}.{ending}")
            except FileNotFoundError:  # never there, or moved by another
                continue
        self._ask(lambda index: forget(index, name))

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """An answer of the index, with the blocks that are in the folder now; it is made anew where it is damaged."""
        path = self.folder / INDEX
        for place in (path, path, None):
            try:
                with closing(opened(place if self.folder.is_dir() else None)) as index:
                    learn(index, self.blocks)
                    answer = question(index)
                    index.commit()
                    return answer
            except sqlite3.DatabaseError as error:
                if place is None:
                    raise
                if getattr(error, "sqlite_errorcode", None) not in ELSEWHERE:
                    discard(path)
        raise AssertionError("an index in memory answers, or raises")
