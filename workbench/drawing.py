"""One example of a batch drawn as text: tokens, what is read where, and a row a role."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.batch import Batch

WIDTH = 118
"""Columns of a panel; longer examples are drawn in several panels, one under the other."""
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Kinds of characters that take no column, break the line, or cannot be printed."""


def draw(batch: Batch, example: int, unread: int) -> str:
    """The example as text. unread: the label of positions at which nothing is read."""
    if not -len(batch) <= example < len(batch):
        raise IndexError(f"no example {example}: the batch has {len(batch)}, counted from 0")
    text = _panels(dict(_rows(batch, example, unread)))
    if batch.context is None:
        return text
    return f"{text}\n\ncontext\n{draw(batch.context, example, unread)}"


def _rows(batch: Batch, example: int, unread: int) -> Iterator[tuple[str, list[str]]]:
    yield "position", [str(pos) for pos in range(batch.tokens.shape[1])]
    yield "token", [_visible(word) for word in batch.words(example)]
    labels = batch.labels[example].tolist()
    yield "label", ["." if label == unread else _visible(batch.word(label)) for label in labels]
    if not bool(batch.valid[example].all()):
        yield "padding", ["." if valid else "#" for valid in batch.valid[example]]
    for name, mask in batch.roles.items():
        yield _visible(name), ["*" if on else "." for on in mask[example]]
    for name, mask in [*batch.relations.items(), *batch.alignments.items()]:
        sources = [",".join(str(int(k)) for k in row.nonzero().flatten()) for row in mask[example]]
        yield _visible(name), [f"←{source}" if source else "." for source in sources]


def _visible(word: str) -> str:
    """The word on one line, in characters that take a column: a newline as ⏎, other unseen characters as �."""
    word = word.replace("\n", "⏎").replace("\t", "⇥")
    return "".join("�" if unicodedata.category(letter) in UNSEEN else letter for letter in word)


def _columns(text: str) -> int:
    """Columns of a terminal: two for East Asian wide letters, none for combining marks."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.category(letter) in ("Mn", "Me") for letter in text)


def _padded(text: str, width: int) -> str:
    return " " * (width - _columns(text)) + text


def _panels(rows: dict[str, list[str]]) -> str:
    head = max(_columns(name) for name in rows)
    widths = [max(map(_columns, cells)) for cells in zip(*rows.values(), strict=True)]
    panels, start = [], 0
    while start < len(widths):
        stop, used = start + 1, head + 2 + widths[start]
        while stop < len(widths) and used + 2 + widths[stop] <= WIDTH:
            used, stop = used + 2 + widths[stop], stop + 1
        panels.append(
            "\n".join(_line(name, head, cells[start:stop], widths[start:stop]) for name, cells in rows.items())
        )
        start = stop
    return "\n\n".join(panels)


def _line(name: str, head: int, cells: list[str], widths: list[int]) -> str:
    return name + " " * (head - _columns(name)) + "  " + "  ".join(map(_padded, cells, widths))
