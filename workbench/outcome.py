"""What a study that ran leaves behind: results, summary, notes, the exact study, and what made them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd

from workbench.checkpoints import provenance
from workbench.report import write_report
from workbench.results import summary
from workbench.study import Study
from workbench.study_file import study_text
from workbench.tables import to_csv, to_markdown


def write_outcome(study: Study, frame: pd.DataFrame, notes: pd.DataFrame, folder: Path) -> Path:
    """Writes results.parquet, summary.csv and .md, notes.csv, study.json and provenance.json; gives the folder.

    All but provenance.json are the same bytes whenever the same cells are put together.
    """
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, compression="zstd")
    table = summary(frame)
    made = {**provenance(), **{name: frame.attrs.get(name) for name in ("dtypes", "examples", "measured")}}
    return write_report(
        folder,
        {
            "results.parquet": buffer.getvalue(),
            "summary.csv": to_csv(table),
            "summary.md": to_markdown(table),
            "notes.csv": to_csv(notes),
            "study.json": study_text(study),
            "provenance.json": json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n",
        },
    )
