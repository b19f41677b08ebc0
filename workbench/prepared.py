"""A list of interventions made ready: its edits, and what must be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.edits import Edit


@dataclass(frozen=True)
class Prepared:
    """One list of interventions, ready to run on `n` examples.

    For each edit: lost, in how many of them it can reach nothing that is read; hidden, how many edges the mask hides
    anyway, and of how many asked for.
    """

    n: int
    edits: list[Edit]
    lost: list[int]
    hidden: list[tuple[int, int]]

    @property
    def unread(self) -> list[bool]:
        """For each edit, whether it can reach nothing that is read in any example."""
        return [lost == self.n for lost in self.lost]

    @property
    def notes(self) -> list[str]:
        """What must be said already."""
        said = [
            f"{edit.label}: the mask hides {hidden} of the {asked} edges asked for, with or without it"
            for edit, (hidden, asked) in zip(self.edits, self.hidden, strict=True)
            if hidden
        ]
        return said + [
            f"{edit.label}: cannot reach what is read in {lost} of {self.n} examples; its effect there is 0 by "
            "construction"
            for edit, lost in zip(self.edits, self.lost, strict=True)
            if lost
        ]

    def after(self, others: Sequence[Prepared]) -> Prepared:
        """The same list on its own examples and on those of others."""
        if not others:
            return self
        every = [*others, self]
        each = zip(*(one.hidden for one in every), strict=True)
        hidden = [(sum(few for few, _ in counts), sum(asked for _, asked in counts)) for counts in each]
        lost = [sum(counts) for counts in zip(*(one.lost for one in every), strict=True)]
        return Prepared(sum(one.n for one in every), self.edits, lost, hidden)
