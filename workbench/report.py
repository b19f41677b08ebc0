"""Writing reports: the one place that writes into a report's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from workbench.tables import table_files

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["write_report", "write_tables"]


def write_report(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write `files` (name → content) under `folder`, made where it is missing, and return `folder`.

    Names are relative, with "/" for folders inside. Text is written as UTF-8 with line feeds and ends in one. Each file
    appears whole or not at all: it is written beside its place and renamed. Files not named are left alone.

    Raises ValueError, before anything is written, for a name that leaves the folder or is not in its plain form
    ("a/../b", "./a"), and for one that is a folder.

    >>> import tempfile
    >>> folder = write_report(Path(tempfile.mkdtemp()) / "demo", {"README.md": "Nothing was measured."})
    >>> (folder / "README.md").read_text()
    'Nothing was measured.\\n'
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"a report was to be written to {folder}, which is a file; name a folder")
    contents = {_place(folder, name): _bytes(content) for name, content in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, content)
    return folder


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> Path:
    """Write each table (name → frame) under `folder` in four formats, and return `folder`: NAME.csv, NAME.md, NAME.tex
    (booktabs) and NAME.html. As `write_report` does, and with its errors.

    >>> import pandas, tempfile
    >>> folder = write_tables(Path(tempfile.mkdtemp()), {"means": pandas.DataFrame({"accuracy": [0.5]})})
    >>> sorted(path.name for path in folder.iterdir())
    ['means.csv', 'means.html', 'means.md', 'means.tex']
    """
    files: dict[str, str | bytes] = {}
    for name, frame in tables.items():
        files |= table_files(name, frame, title=name)
    return write_report(folder, files)


def _place(folder: Path, name: str) -> Path:
    pure = PurePosixPath(name)
    plain = name == pure.as_posix() and name != "." and "\\" not in name and "\0" not in name
    path = folder / name
    if not plain or pure.is_absolute() or ".." in pure.parts or not _inside(folder, path.parent):
        raise ValueError(f"{name!r} is no plain name inside {folder}; use names such as 'table.csv' or 'figures/a.svg'")
    if path.is_dir():
        raise ValueError(f"{name!r} is a folder in {folder}; give the name of a file")
    return path


def _inside(folder: Path, parent: Path) -> bool:
    return parent.resolve().is_relative_to(folder.resolve())


def _bytes(content: str | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    text = content.replace("\r\n", "\n").replace("\r", "\n")
    return (text if text.endswith("\n") else text + "\n").encode("utf-8")


def _write_whole(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
