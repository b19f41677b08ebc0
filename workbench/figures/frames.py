"""What the frames that are drawn must hold."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd


def check_rows(frame: pd.DataFrame, name: str, needed: list[str], key: list[str]) -> None:
    """Raises ValueError where the frame lacks a column, has no row, or has two rows of one key."""
    if missing := [column for column in needed if column not in frame]:
        raise ValueError(f"{name} lacks the columns {missing}; it has {list(frame.columns)}")
    if frame.empty:
        raise ValueError(f"{name} has no rows; give one row for each {', '.join(key)}")
    if frame.duplicated(key).any():
        again = frame.loc[frame.duplicated(key), key].iloc[0].to_dict()
        raise ValueError(f"{name} gives {again} twice; give one row for each {', '.join(key)}")


def check_shares(values: pd.Series, name: str) -> None:
    """Raises ValueError where a value that was measured lies outside 0..1."""
    known = values.dropna()
    if not known.between(0, 1).all():
        worst = known[~known.between(0, 1)].iloc[0]
        raise ValueError(f"{name} holds {worst:.4g}, outside 0..1; give shares, not percentages")


def check_numbers(frame: pd.DataFrame, values: Sequence[str], key: Sequence[str]) -> None:
    """As `check_rows`, a row a key and trained model where model_seed is a column; raises ValueError where a column of
    numbers is infinite or holds none."""
    keys = [*key, *(["model_seed"] if "model_seed" in frame else [])]
    check_rows(frame, "frame", [*key, *values], keys)
    for value in values:
        numbers = frame[value].to_numpy(float)
        if np.isinf(numbers).any():
            raise ValueError(f"the column {value!r} is infinite in some rows; give finite values, or NaN")
        if np.isnan(numbers).all():
            raise ValueError(f"the column {value!r} holds no number; give at least one row a value")


def check_one_kind(frames: Mapping[str, pd.DataFrame]) -> None:
    """Raises ValueError where the columns model or edit of the frames of one figure hold several values between them:
    it would say the mean over kinds of model, or put several edits in one map."""
    for column in ("model", "edit"):
        there = {name: frame for name, frame in frames.items() if column in frame}
        known = sorted({str(value) for frame in there.values() for value in frame[column].unique()})
        if len(known) > 1:
            name = next(iter(there))
            raise ValueError(
                f"the column {column!r} of {' and '.join(there)} holds {len(known)} values ({', '.join(known)}), and "
                f"a figure is of one; choose one, as {name}[{name}[{column!r}] == {known[0]!r}], and draw one for each"
            )
