"""What a folder of runs holds, as text."""

from __future__ import annotations

from pathlib import Path

from workbench.checkpoints import home as place
from workbench.store import Store


def holdings(home: Path | str | None = None) -> str:
    """Trained models and measured cells, counted by task and model, with sizes."""
    folder = place(home)
    models = sorted(one for one in (folder / "checkpoints").glob("*") if (one / "model.json").is_file())
    lines = [f"{folder}", f"  {len(models)} trained models, {_megabytes(models)}"]
    cells, blocks, size = Store(folder / "cells").tally()
    lines.append(f"  {sum(cells.values())} cells in {blocks} blocks, {size / 1e6:.1f} MB")
    lines += [f"    {task}, {model}: {count} cells" for (task, model), count in cells.items()]
    return "\n".join(lines)


def _megabytes(folders: list[Path]) -> str:
    return f"{sum(file.stat().st_size for one in folders for file in one.iterdir()) / 1e6:.1f} MB"
