"""Contestants of a benchmark: that they give the same answer, how long each takes, and the ratios between them."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

TOLERANCE = 5e-6
"""Of the largest number compared: what float32 answers may differ."""

Answers = Mapping[str, Tensor]


class WrongAnswer(AssertionError):
    """A contestant that does not give the answer that it is timed for."""


@dataclass(frozen=True)
class Contestant:
    """One way of doing a piece of work.

    work: does all of it and gives its answers by name. against: the contestant whose answers must be the same; "" for
    one that others are compared with. rounds: at most so many are timed; 0 for one that only others are compared with.
    note: what the table says of it.
    """

    name: str
    work: Callable[[], Answers]
    against: str = ""
    rounds: int | None = None
    note: str = ""


def agree(contestants: Sequence[Contestant], tolerance: float = TOLERANCE) -> pd.DataFrame:
    """Runs each once, which warms it up too, and compares their answers; a row a contestant compared: `difference`, the
    largest as a share of the largest number.

    Raises WrongAnswer where one differs by more than the tolerance, KeyError where nobody has the name in `against`.
    """
    known = {one.name: one.work() for one in contestants}
    rows = []
    for one in contestants:
        if not one.against:
            continue
        if one.against not in known:
            raise KeyError(f"{one.name!r} is to be compared with {one.against!r}; there are: {', '.join(known)}")
        share = difference(known[one.against], known[one.name], one.name)
        if not share <= tolerance:
            raise WrongAnswer(
                f"{one.name!r} differs from {one.against!r} by {share:.3g} of the largest number, and {tolerance:g} is "
                "allowed; it is not timed"
            )
        rows.append({"contestant": one.name, "compared with": one.against, "difference": share})
    return pd.DataFrame(rows, columns=["contestant", "compared with", "difference"])


def difference(right: Answers, given: Answers, name: str) -> float:
    """The largest difference between two contestants' answers, as a share of the largest number in the right one."""
    if list(right) != list(given):
        raise WrongAnswer(f"{name!r} answers {', '.join(given)}; {', '.join(right)} were asked")
    worst = 0.0
    for key, value in right.items():
        if value.shape != given[key].shape:
            raise WrongAnswer(f"{name!r} gives {key} {list(given[key].shape)}; {list(value.shape)} were asked")
        apart, largest = (float(one.double().abs().max()) for one in (value - given[key], value))
        share = apart / largest if largest else apart
        worst = max(worst, math.inf if math.isnan(share) else share)
    return worst


def timed(contestants: Sequence[Contestant], rounds: int, rate: Callable[[], float] | None = None) -> pd.DataFrame:
    """Seconds of each contestant in each round, a row each: round, contestant, seconds, and with `rate` what that gave
    in the round. In a round each takes its turn once, and another one begins in each."""
    rows = []
    with _swept():
        for index in range(rounds):
            measured = math.nan if rate is None else rate()
            turns = [one for one in contestants if one.rounds is None or index < one.rounds]
            start = index % max(len(turns), 1)
            for one in turns[start:] + turns[:start]:
                gc.collect()
                begun = time.perf_counter()
                one.work()
                rows.append((index, one.name, time.perf_counter() - begun, measured))
    return pd.DataFrame(rows, columns=["round", "contestant", "seconds", "rate"])


@contextmanager
def on_threads(n: int) -> Iterator[None]:
    """Torch computes on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _swept() -> Iterator[None]:
    """What is there already is left alone by the collector, so that collecting before each turn takes no time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def ratios(times: pd.DataFrame, of: str, to: str) -> pd.Series:
    """Seconds of one contestant over another's, in each round that both were timed in, indexed by round."""
    wide = times.pivot(index="round", columns="contestant", values="seconds")
    for name in (of, to):
        if name not in wide:
            raise KeyError(f"{name!r} was not timed; there are: {', '.join(map(str, wide.columns))}")
    return (wide[of] / wide[to]).dropna()


def over_floor(times: pd.DataFrame, of: str, flops: int) -> pd.Series:
    """Seconds of a contestant over the time that so many operations take at the rate of the same round."""
    own = times[times["contestant"] == of].set_index("round")
    return own["seconds"] * own["rate"] / flops


def table(times: pd.DataFrame, contestants: Sequence[Contestant], base: str, flops: int = 0) -> pd.DataFrame:
    """A row a contestant: median seconds with quartiles, and how many times as long as `base` it takes, the median over
    rounds with quartiles; with `flops` the floor is a row, too."""
    rows = []
    for one in contestants:
        own = times.loc[times["contestant"] == one.name, "seconds"]
        if len(own):
            rows.append(_row(one.name, own, ratios(times, one.name, base), one.note))
    if flops:
        per_round = times.drop_duplicates("round").set_index("round")
        rows.append(
            _row("floor", flops / per_round["rate"], 1 / over_floor(times, base, flops),
                 f"{flops / 1e9:.2f} GFLOP at the matrix rate of each round")
        )  # fmt: skip
    return pd.DataFrame(rows)


def _row(name: str, seconds: pd.Series, ratio: pd.Series, note: str) -> dict[str, object]:
    return {
        "contestant": name, "rounds": len(seconds),
        "seconds": seconds.median(), "seconds q1": seconds.quantile(0.25), "seconds q3": seconds.quantile(0.75),
        "ratio": ratio.median(), "ratio q1": ratio.quantile(0.25), "ratio q3": ratio.quantile(0.75), "note": note,
    }  # fmt: skip


@dataclass(frozen=True)
class Chunks:
    """Seconds of a trial with chunks of each size, the shortest of its repeats."""

    seconds: Mapping[int, float]

    @property
    def best(self) -> int:
        """The size with which the trial took least."""
        return min(self.seconds, key=lambda size: self.seconds[size])

    def __str__(self) -> str:
        said, largest = f"{self.best} sequences at a time", max(self.seconds)
        if largest == self.best:
            return said
        return f"{said} ({largest} at once: {self.seconds[largest] / self.seconds[self.best]:.2f} times as long)"


def tried(make: Callable[[int], Callable[[], object]], sizes: Sequence[int], repeats: int = 2) -> Chunks:
    """Which size of chunks serves best: a trial for each, warmed up, and its repeats."""
    shortest = {}
    for size in dict.fromkeys(sizes):
        trial, seconds = make(size), []
        trial()
        for _ in range(repeats):
            start = time.perf_counter()
            trial()
            seconds.append(time.perf_counter() - start)
        shortest[size] = min(seconds)
    return Chunks(shortest)
