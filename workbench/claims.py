"""Which process has which cells in hand: one at a time computes a cell, and a process that is killed lets go."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from workbench.blocks import remove, write_whole


class Claims:
    """A folder with two files for each process that has cells in hand: a lock that it holds, and the cells' keys.

    However many cells a process has in hand, it keeps one file open. What a killed process had in hand is free: its
    lock is held by nobody.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.mine: set[str] = set()
        self._alive: FileLock | None = None
        self._name = ""

    def take(self, keys: Collection[str]) -> bool:
        """Takes all of these cells in hand, or none where one of them is in another's hand, or in ours already."""
        self.folder.mkdir(exist_ok=True)
        with self._alone():
            if self.mine & set(keys) or self._others() & set(keys):
                return False
            if self._alive is None:
                self._name = uuid.uuid4().hex
                self._alive = FileLock(self.folder / f"{self._name}.lock", thread_local=False)
                self._alive.acquire()
            self.mine |= set(keys)
            self._say()
        return True

    def give(self, keys: Collection[str]) -> None:
        """Lets go of these cells."""
        with self._alone():
            self.mine -= set(keys)
            self._say()
            if not self.mine and self._alive is not None:
                self._alive.release()
                self._forget(self._name)
                self._alive = None

    def sweep(self) -> None:
        """Removes what killed processes left."""
        if self.folder.is_dir():
            with self._alone():
                self._others()
                for path in self.folder.glob(".*.partial"):
                    remove(path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with FileLock(self.folder / ".alone"):
            yield

    def _say(self) -> None:
        write_whole(self.folder / f"{self._name}.json", json.dumps(sorted(self.mine)).encode(), sync=False)

    def _others(self) -> set[str]:
        """The cells that living processes have in hand; what the dead left is removed."""
        out: set[str] = set()
        for name in {path.stem for ending in ("json", "lock") for path in self.folder.glob(f"*.{ending}")}:
            if name == self._name and self._alive is not None:
                continue
            try:
                with FileLock(self.folder / f"{name}.lock").acquire(blocking=False):
                    pass
            except Timeout:
                path = self.folder / f"{name}.json"
                out |= set(json.loads(path.read_bytes())) if path.is_file() else set()
            else:
                self._forget(name)
        return out

    def _forget(self, name: str) -> None:
        for ending in ("json", "lock"):
            remove(self.folder / f"{name}.{ending}")
