"""How often do nominal 95% intervals over trained models hold the true mean? A simulation; no model is trained."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from workbench.report import write_report
from workbench.simulation import coverage
from workbench.tables import percent, to_csv, to_markdown

__all__ = ["main"]

N_MODELS = (3, 5, 10)
# Mean accuracy → standard deviation between models: a blinded model's level, a good one's, a near-perfect one's.
SHARED = (0.0, 0.9)
SPREADS = {0.36: 0.04, 0.9: 0.02, 0.99: 0.005}
N_EXAMPLES = 1000
SEED = 0

_README = """\
# Coverage of the intervals over models

An interval at level {level} is meant to hold the true mean in {level} of all studies. Each row counts it in {repeats}
simulated studies: every model's true accuracy is drawn from a beta distribution with the row's mean and its standard
deviation between models, then {n_examples} examples are drawn for every model. On the row's share of examples all
models have the same luck, as on hard examples that each gets wrong. Simulation seed {seed}.

- Interval: what this project's tables print. Each half is the square root of two squares: Student's t over the model
  means, and the exact half within a model, since all models share the examples; clipped to [0, 1].
- Bootstrap: percentiles of {resamples} resamples of the models and of each model's examples. For comparison only.

{table}

Coverage columns have a standard error of about {error} at the nominal level. Over all rows, the printed interval held
the true mean in {student} of the studies, the bootstrap in {bootstrap}. Widths are means over the studies.
The interval holds it more often than it promises where the models' luck is their own: it cannot know whose it is.
"""


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Write `out/coverage/README.md` and `table.csv`, the same bytes each time, and return that folder.

    `seeds`: simulate studies of that many trained models only, instead of 3, 5 and 10. `quick`: 400 studies a row
    instead of 2,000. `progress`: a line per row on standard error.

    Raises ValueError for fewer than 2 seeds, over which nothing varies.

    >>> import tempfile
    >>> sorted(path.name for path in main(out=Path(tempfile.mkdtemp()), quick=True, progress=False).iterdir())
    ['README.md', 'table.csv']
    """
    if seeds is not None and seeds < 2:
        raise ValueError(f"coverage over {seeds} seeds was asked; an interval over models needs at least 2")
    rows = []
    for accuracy, between in SPREADS.items():
        for n_models in N_MODELS if seeds is None else (seeds,):
            for shared in SHARED:
                rows.append(_setting(n_models, accuracy, between, shared, quick))
            if progress:
                print(f"coverage: {n_models} models at {percent(accuracy)}", file=sys.stderr)
    table = pd.DataFrame(rows)
    return write_report(Path(out) / "coverage", {"README.md": _readme(table), "table.csv": to_csv(table)})


def _setting(n_models: int, accuracy: float, between: float, shared: float, quick: bool) -> dict[str, float]:
    return asdict(
        coverage(
            n_models=n_models, accuracy=accuracy, between=between, shared=shared, n_examples=N_EXAMPLES,
            repeats=400 if quick else 2000, seed=SEED,
        )
    )  # fmt: skip


def _readme(table: pd.DataFrame) -> str:
    first = table.to_dict("records")[0]
    level = first["level"]
    shown = pd.DataFrame(
        {
            "models": table["n_models"],
            "mean accuracy": table["accuracy"].map(percent),
            "sd between models": table["between"].map(percent),
            "shared luck": table["shared"].map(percent),
            "interval: coverage": table["student"].map(percent),
            "bootstrap: coverage": table["bootstrap"].map(percent),
            "interval: width": table["student_width"].map(percent),
            "bootstrap: width": table["bootstrap_width"].map(percent),
        }
    )
    return _README.format(
        level=percent(level), repeats=first["repeats"], n_examples=first["n_examples"], seed=SEED,
        resamples=first["resamples"], table=to_markdown(shown), student=_range(table["student"]),
        bootstrap=_range(table["bootstrap"]), error=percent((level * (1 - level) / first["repeats"]) ** 0.5),
    )  # fmt: skip


def _range(shares: pd.Series) -> str:
    return f"{percent(shares.min())} to {percent(shares.max())}"
