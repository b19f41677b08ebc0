"""A number as the lecture prints it, beside ours: it agrees where ours, rounded as it is printed, is the same."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsFloat

import pandas as pd

from analyses.verdicts import exact, joined

LECTURE, EXPLAINER, COURSE = "lecture", "explainer", "CME 295"


@dataclass(frozen=True)
class Worked:
    """One worked number. said: as its source prints it, or what its sentence asks for; low, high: where ours must lie
    then."""

    id: str
    what: str
    said: str
    value: float
    low: float
    high: float
    source: str = LECTURE

    @property
    def agrees(self) -> bool:
        return self.low <= self.value <= self.high


def printed(
    id: str, what: str, said: str, value: SupportsFloat, *, half: float | None = None, source: str = LECTURE
) -> Worked:
    """A number that is printed, and ours. `said` begins with the number; half: half of its last digit, read off its
    decimals where it is left out.

    >>> printed("weight", "softmax of 3.2", "0.89", 0.8921).agrees, printed("sum", "the total", "27.51", 27.4989).agrees
    (True, False)
    """
    number = said.split()[0].replace(",", "").replace("−", "-")
    if half is None:
        half = 0.5 * 10.0 ** -len(number.partition(".")[2])
    return Worked(id, what, said, float(value), float(number) - half, float(number) + half, source)


def same(id: str, what: str, said: str, error: SupportsFloat, *, most: float = 0.0, source: str = LECTURE) -> Worked:
    """Two things that are said to be the same, by the largest difference between them."""
    return Worked(id, what, said, float(error), 0.0, most, source)


def above(id: str, what: str, said: str, value: SupportsFloat, least: float, *, source: str = LECTURE) -> Worked:
    """A number that is said to be large; `least` is what that is taken to mean."""
    return Worked(id, what, said, float(value), least, math.inf, source)


def verdicts(several: Iterable[Worked]) -> pd.DataFrame:
    """The worked numbers as verdicts on claims."""
    return joined(
        *(
            exact(one.id, f"{one.what}: {one.said} ({one.source})", "computed", one.value, one.low, one.high)
            for one in several
        )
    )


def table(several: Iterable[Worked]) -> pd.DataFrame:
    """A row a number: id, what, source, said, ours, verdict."""
    return pd.DataFrame(
        [
            {
                "id": one.id,
                "what": one.what,
                "source": one.source,
                "it says": one.said,
                "ours": f"{one.value + 0.0:.10g}" if abs(one.value) >= 1000 else f"{one.value + 0.0:.4g}",
                "verdict": "agrees" if one.agrees else "differs",
            }
            for one in several
        ]
    )
