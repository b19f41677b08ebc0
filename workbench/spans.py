"""Where a role is in a text: substrings, expressions, characters or tokens, and the tokens that they name."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """The characters of a text from `start` up to, not including, `end`: `text[start:end]`."""

    start: int
    end: int


@dataclass(frozen=True, init=False)
class Tokens:
    """Tokens by index, negative from the end, special tokens counted and padding not: `Tokens(0, -1)`."""

    at: tuple[int, ...]

    def __init__(self, *at: int) -> None:
        if not at or not all(map(whole, at)) or len(set(at)) < len(at):
            raise ValueError(f"Tokens takes one index or several, each once; got {at}. Say Tokens(0, 2)")
        object.__setattr__(self, "at", at)

    def __repr__(self) -> str:
        return f"Tokens({', '.join(map(str, self.at))})"


@dataclass(frozen=True)
class Nth:
    """One occurrence of a substring or regular expression, counted from 0, negative from the end."""

    what: str | re.Pattern[str]
    n: int

    def __post_init__(self) -> None:
        _searchable(self.what, "Nth")
        if not whole(self.n):
            raise TypeError(f"Nth counts occurrences by an int; got {self.n!r}. Say Nth({self.what!r}, 0)")


@dataclass(frozen=True)
class Every:
    """Every occurrence of a substring or regular expression, of which there must be one at least."""

    what: str | re.Pattern[str]

    def __post_init__(self) -> None:
        _searchable(self.what, "Every")


@dataclass(frozen=True)
class Same:
    """As an answer: the token that stands there itself, at each position of the role."""


@dataclass(frozen=True)
class Line:
    """One text and its tokens. `spans` are the characters of each token as the tokenizer says, `cores` without the
    whitespace at their edges."""

    index: int
    text: str
    ids: list[int]
    spans: list[tuple[int, int]]
    cores: list[tuple[int, int]]

    def __str__(self) -> str:
        return f"text {self.index} {short(self.text)}"


def one_for_each(given: Any, n: int, name: str, several: str) -> list[Any]:
    """One specification a text."""
    if isinstance(given, tuple):
        raise TypeError(
            f"{name} is a tuple, {given!r}: say a list for one value a text, Span(...) or Tokens(...) for one"
        )
    if isinstance(given, list):
        if len(given) != n:
            raise ValueError(f"{name} lists {len(given)} for {n} texts; a list has one for each text. {several}")
        return list(given)
    if given is None:
        raise TypeError(f"{name} is None for all texts; leave it out, or give a list with None where there is nothing")
    return [given] * n


def positions(line: Line, role: str, where: Any) -> list[int]:
    """The tokens of one text that a specification names, in order."""
    if where is None:
        return []
    if whole(where):
        return _indices(line, role, (where,))
    if isinstance(where, Tokens):
        return _indices(line, role, where.at)
    if isinstance(where, Span):
        if not (whole(where.start) and whole(where.end) and 0 <= where.start < where.end <= len(line.text)):
            raise ValueError(
                f"{role}: {where} is no part of {line}, which has {len(line.text)} characters; 0 ≤ start < end ≤ "
                f"{len(line.text)}"
            )
        return _covered(line, role, where.start, where.end)
    what = where.what if isinstance(where, Nth | Every) else where
    if not isinstance(what, str) and not (isinstance(what, re.Pattern) and isinstance(what.pattern, str)):
        raise TypeError(
            f"{role}, {line}: {where!r} is a {type(where).__name__}; a role is a substring, a compiled regular "
            "expression of str, Span, a token index, Tokens, Nth, Every, or a list with one of these for each text"
        )
    found = _found(line, role, what)
    if isinstance(where, Every):
        return sorted({pos for span in found for pos in _covered(line, role, *span)})
    n = where.n if isinstance(where, Nth) else 0
    if not -len(found) <= n < len(found) or (len(found) > 1 and not isinstance(where, Nth)):
        asked = f"{where} is not there" if isinstance(where, Nth) else "which one is meant"
        raise ValueError(_candidates(line, role, what, found, asked))
    return _covered(line, role, *found[n])


def _indices(line: Line, role: str, at: tuple[int, ...]) -> list[int]:
    n = len(line.ids)
    if odd := [k for k in at if not -n <= k < n]:
        raise ValueError(f"{role}: no token {odd[0]} in {line}, which has {n}; say {-n} to {n - 1}")
    positions = {k % n for k in at}
    if len(positions) < len(at):
        raise ValueError(f"{role}: {Tokens(*at)} names a token twice in {line}, which has {n}; name it once")
    return sorted(positions)


def _covered(line: Line, role: str, start: int, end: int) -> list[int]:
    """The tokens that share a character with the span."""
    asked = line.text[start:end]
    spans = line.cores if asked.strip() else line.spans
    if positions := [k for k, (first, stop) in enumerate(spans) if first < end and start < stop]:
        return positions
    raise ValueError(
        f"{role}: {short(asked)}, Span({start}, {end}) of {line}, covers no token: the tokenizer drops it. "
        "Name a word next to it, or a token index"
    )


def _found(line: Line, role: str, what: str | re.Pattern[str]) -> list[tuple[int, int]]:
    if what == "":
        raise ValueError(f"{role}: an empty substring is everywhere in {line}; name some characters")
    if isinstance(what, str):
        starts = (match.start() for match in re.finditer(f"(?={re.escape(what)})", line.text))
        return [(start, start + len(what)) for start in starts] or _missing(line, role, what)
    group = 1 if what.groups == 1 else 0
    spans = [match.span(group) for match in what.finditer(line.text)]
    return [(start, end) for start, end in spans if start < end] or _missing(line, role, what)


def _missing(line: Line, role: str, what: str | re.Pattern[str]) -> list[tuple[int, int]]:
    if isinstance(what, re.Pattern):
        raise ValueError(
            f"{role}: {what!r} matches no characters of {line}. Mend the expression, or give a list with None there"
        )
    words = list(re.finditer(r"\S+", line.text))
    n = len(what.split()) or 1
    runs = [line.text[a.start() : b.end()].strip(".,;:!?\"'()") for a, b in zip(words, words[n - 1 :], strict=False)]
    folded = {run.lower(): run for run in runs}
    near = [folded[match] for match in difflib.get_close_matches(what.strip().lower(), folded, n=3, cutoff=0.5)]
    meant = f"Did you mean {' or '.join(map(repr, near))}?" if near else "No word of it is near."
    raise ValueError(f"{role}: {what!r} is not in {line}. {meant} Mend it, or give a list with None there")


def _candidates(
    line: Line, role: str, what: str | re.Pattern[str], found: list[tuple[int, int]], asked: str, most: int = 6
) -> str:
    shown = []
    for start, end in found[:most]:
        before = "".join(re.findall(r"\S+\s*", line.text[:start])[-2:])[-24:]
        after = "".join(re.findall(r"\s*\S+", line.text[end:])[:2])[:24]
        shown.append(f"Span({start}, {end}) in {f'{before}[{line.text[start:end]}]{after}'!r}")
    more = f", and {len(found) - most} more" if len(found) > most else ""
    times = "once" if len(found) == 1 else f"{len(found)} times"
    return (
        f"{role}: {what!r} occurs {times} in {line}, {asked}? There are: {', '.join(shown)}{more}. "
        f"Say Nth({what!r}, 0) for the first, Every({what!r}) for all, one of these spans, or more of the words there"
    )


def _searchable(what: Any, name: str) -> None:
    if not isinstance(what, str | re.Pattern):
        raise TypeError(f"{name} looks for a substring or a compiled regular expression; got {what!r}")


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def short(text: str, most: int = 60) -> str:
    return repr(text if len(text) <= most else f"{text[: most - 1]}…")
