"""The results frame put together column by column, whatever the order in which cells are found or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.blocks import Piece
from workbench.measuring import Shared
from workbench.schema import check, check_columns


def labels(known: Sequence[str]) -> pd.CategoricalDtype:
    """A category of text even where there is none yet: Parquet forgets a category of nothing in particular."""
    return pd.CategoricalDtype(pd.Index(known, dtype="str"))


def piece_of(rows: pd.DataFrame) -> Piece:
    """The rows of a cell, column by column."""
    numbers = {str(name): rows[name].to_numpy() for name in rows.columns if name != "skipped"}
    codes, reasons = pd.factorize(rows["skipped"])
    return Piece(numbers, codes, list(reasons))


class Rows:
    """Room for the rows of every cell of some models: cells are numbered by model, then by condition."""

    def __init__(self, common: Shared, models: Mapping[str, Sequence[Any]]):
        self.study, self.n = common.study, len(common.batch)
        self.models = list(models)
        self.placed = [(code, one.seed) for code, several in enumerate(models.values()) for one in several]
        rows = len(self.placed) * len(self.study.conditions) * self.n
        self.example = np.empty(rows, dtype=np.int32)
        self.skipped = np.full(rows, -1, dtype=np.int32)
        names = (*self.study.metrics, *self.study.weights)
        self.numbers = {name: np.full(rows, np.nan, dtype=np.float32) for name in names}
        self.reasons: dict[str, int] = {}

    def fits(self, piece: Piece) -> bool:
        """Whether a cell has a row for each example."""
        return len(piece.skipped) == self.n

    def fill(self, cell: int, piece: Piece) -> None:
        """Puts the rows of a cell in their place; what it does not measure stays NaN."""
        rows = slice(cell * self.n, (cell + 1) * self.n)
        self.example[rows] = piece.numbers["example"]
        for name, values in self.numbers.items():
            if name in piece.numbers:
                values[rows] = piece.numbers[name]
        if piece.reasons:
            codes = [self.reasons.setdefault(reason, len(self.reasons)) for reason in piece.reasons]
            self.skipped[rows] = np.array([*codes, -1])[piece.skipped]

    def frame(self) -> pd.DataFrame:
        """The results frame, checked."""
        conditions = list(self.study.conditions)
        each = len(conditions) * self.n
        codes = np.repeat([code for code, _ in self.placed], each)
        columns: dict[str, Any] = {
            "model": pd.Categorical.from_codes(codes, dtype=labels(self.models)),
            "model_seed": np.repeat(np.array([seed for _, seed in self.placed], dtype=np.int64), each),
            "condition": pd.Categorical.from_codes(
                np.tile(np.repeat(np.arange(len(conditions)), self.n), len(self.placed)), dtype=labels(conditions)
            ),
            "example": self.example,
            "skipped": self._skipped(),
            **self.numbers,
        }
        frame = pd.DataFrame(columns)
        check_columns(frame)
        if not self._sound():
            check(frame)  # says what is wrong, and where
        return frame

    def _sound(self) -> bool:
        """What `check` asks of a frame, asked of rows that lie model by model and condition by condition: every cell
        has every example once, skipped in all conditions of its model or in none; a number is NaN where an example was
        skipped and, where it ran, there for the whole cell or not at all, and finite."""
        shape = (len(self.placed), len(self.study.conditions), self.n)
        ran = (self.skipped < 0).reshape(shape)
        if len(set(self.placed)) < len(self.placed) or not (ran == ran[:, :1]).all():
            return False
        if not (self.example.reshape(shape) == np.arange(self.n)).all():
            return False
        for values in self.numbers.values():
            there = ~np.isnan(values).reshape(shape)
            count = there.sum(axis=2)
            if (there & ~ran).any() or ((count > 0) & (count < ran.sum(axis=2))).any() or np.isinf(values).any():
                return False
        return True

    def _skipped(self) -> pd.Categorical:
        """Why examples were skipped; the reasons that there are, in order."""
        there = np.bincount(self.skipped + 1, minlength=len(self.reasons) + 1)[1:] > 0
        known = sorted(reason for reason, code in self.reasons.items() if there[code])
        ordered = np.full(len(self.reasons) + 1, -1)
        for place, reason in enumerate(known):
            ordered[self.reasons[reason]] = place
        return pd.Categorical.from_codes(ordered[self.skipped], dtype=labels(known))
