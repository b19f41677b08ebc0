"""What a folder of runs holds, as text."""

from __future__ import annotations

import json
from pathlib import Path

from workbench.checkpoints import home as place
from workbench.store import Store


def holdings(home: Path | str | None = None) -> str:
    """Trained models and measured cells, counted by task and model, with sizes."""
    folder = place(home)
    models = sorted(one for one in (folder / "checkpoints").glob("*") if (one / "model.json").is_file())
    lines = [f"{folder}", f"  {len(models)} trained models, {_megabytes(models)}"]
    cells = Store(folder / "cells").cells()
    blocks = cells.drop_duplicates("block")
    lines.append(f"  {len(cells)} cells in {len(blocks)} blocks, {blocks['size'].sum() / 1e6:.1f} MB")
    said = cells["said"].map(json.loads)
    groups = said.map(lambda one: (one.get("task", "?"), one.get("model", "?")))
    for (task, model), count in groups.value_counts().sort_index().items():
        lines.append(f"    {task}, {model}: {count} cells")
    return "\n".join(lines)


def _megabytes(folders: list[Path]) -> str:
    return f"{sum(file.stat().st_size for one in folders for file in one.iterdir()) / 1e6:.1f} MB"
