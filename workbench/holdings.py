"""Where runs lie, and what their folder holds, as text. Nothing here needs torch, which takes seconds to import."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.store import Store


def place(home: Path | str | None = None) -> Path:
    """The folder of runs: the one given, `$WORKBENCH_HOME`, or `./runs`."""
    return Path(home or os.environ.get("WORKBENCH_HOME") or "runs")


def cells(home: Path | str | None = None) -> Store:
    """The measured cells of a folder of runs."""
    return Store(place(home) / "cells")


def holdings(home: Path | str | None = None) -> str:
    """Trained models and measured cells, counted by task and model, with sizes."""
    folder = place(home)
    models = sorted(one for one in (folder / "checkpoints").glob("*") if (one / "model.json").is_file())
    lines = [f"{folder}", f"  {len(models)} trained models, {_megabytes(models)}"]
    counted, blocks, size = cells(home).tally()
    lines.append(f"  {sum(counted.values())} cells in {blocks} blocks, {size / 1e6:.1f} MB")
    lines += [f"    {task}, {model}: {count} cells" for (task, model), count in counted.items()]
    return "\n".join(lines)


def _megabytes(folders: list[Path]) -> str:
    return f"{sum(file.stat().st_size for one in folders for file in one.iterdir()) / 1e6:.1f} MB"
