"""The lecture's worked numbers, computed by the workbench's own attention core and printed beside the lecture's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from analyses.finding import Finding
    from workbench.figures import Figure

SEEDS = 20
FACTORS = tuple(half / 2 for half in range(1, 17))


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Computes every number and writes `out/arithmetic/`; returns that folder. Nothing is trained.

    seeds: draws of random queries, keys and initial weights (default 20; 3 with `quick`). quick: fewer of them; the
    exact numbers are the same.
    """
    from analyses.finding import write

    return write(out, finding(range(seeds or (3 if quick else SEEDS)), quick))


def finding(seeds: range, quick: bool) -> Finding:
    """Every number, its table and its verdict."""
    from analyses import arithmetic_cells, arithmetic_printed, arithmetic_scores, arithmetic_sizes, arithmetic_variance
    from analyses.finding import Finding
    from analyses.verdicts import joined

    everything = [*arithmetic_scores.worked(), *arithmetic_cells.worked(), *arithmetic_sizes.worked()]
    drawn = arithmetic_variance.measured(seeds)
    tables = {
        "worked": arithmetic_printed.table(everything),
        "variance": arithmetic_variance.table(drawn),
        "parameters": arithmetic_sizes.table(),
    }
    exact = arithmetic_printed.verdicts(everything)
    return Finding(
        name="arithmetic",
        quick=quick,
        verdicts=joined(exact, *arithmetic_variance.verdicts(drawn, seeds)),
        tables=tables,
        figures=figures(drawn),
        frames={"draws": drawn},
        words={
            "seeds": len(seeds),
            "n_exact": len(everything),
            "differ": [one for one in everything if not one.agrees],
        },
    )


def figures(drawn: pd.DataFrame) -> dict[str, Figure]:
    """The variance of a score against head width, and a softmax that saturates."""
    import pandas as pd

    from analyses.arithmetic_scores import saturation
    from analyses.arithmetic_variance import WIDTHS, figure_rows
    from workbench.figures.panels import lines_by_panel

    said = {"the head width": pd.Series({width: float(width) for width in WIDTHS})}
    named = ("largest weight", "largest gradient entry")
    points = [(factor, saturation(factor)) for factor in FACTORS]
    curves = pd.DataFrame(
        [
            {"panel": panel, "x": factor, "model_seed": 0, "value": both[which]}
            for which, panel in enumerate(named)
            for factor, both in points
        ]
    )
    return {
        "variance": lines_by_panel(
            figure_rows(drawn), x_label="head width", value_label="variance of a score, unscaled", references=said,
            line="one draw",
        ),
        "saturation": lines_by_panel(
            curves, x_label="scores 3.2, 0.8, −0.3 times", value_label="value", columns=2
        ),
    }  # fmt: skip
