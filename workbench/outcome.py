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
from workbench.tables import table_files, to_csv


def write_outcome(study: Study, frame: pd.DataFrame, notes: pd.DataFrame, folder: Path) -> Path:
    """Writes results.parquet, the summary in four formats (.csv, .md, .tex, .html), notes.csv, study.json and
    provenance.json; gives the folder.

    All but provenance.json are the same bytes whenever the same cells are put together.
    """
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, compression="zstd")
    made = {**provenance(), **{name: frame.attrs.get(name) for name in ("dtypes", "examples", "measured")}}
    return write_report(
        folder,
        {
            "results.parquet": buffer.getvalue(),
            **table_files("summary", summary(frame), title="Means over trained models"),
            "notes.csv": to_csv(notes),
            "study.json": study_text(study),
            "provenance.json": json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n",
        },
    )
