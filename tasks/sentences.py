"""What `translate` is about: the words of both languages, a sentence as slots that may be empty, and what agrees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

ARTICLE, NOUN, ADJECTIVE, VERB, MARK = range(5)
"""Classes of tokens; a mark is `<begin>`, `<end>` or `<pad>`."""

SLOTS = (ARTICLE, ADJECTIVE, NOUN, VERB, ARTICLE, ADJECTIVE, NOUN)
"""A source sentence from left to right; its adjectives may be absent."""
SUBJECT, OBJECT, DEED, END = 2, 6, 3, 7
NAMES, QUALITIES = (SUBJECT, OBJECT), (1, 5)
ORDERS = {"nouns first": (2, 1, 6, 5, 3, END), "nouns last": (3, 1, 2, 5, 6, END)}
"""The slots in the order in which the target says them."""
CONTROLLERS = {1: SUBJECT, 5: OBJECT, DEED: SUBJECT}
"""Slot → the slot whose gender (adjectives) or number (the verb) its target word takes."""

# Each source word with the stem of its translation.
NOUNS = {
    "dog": "lum", "cat": "kes", "bird": "tov", "horse": "rin", "cow": "bal", "goat": "sog", "frog": "mip",
    "bear": "dur", "duck": "fen", "owl": "gat", "pig": "nol", "hen": "zir", "crab": "pav", "seal": "hul",
    "swan": "wem", "mole": "jad",
}  # fmt: skip
ADJECTIVES = {
    "small": "rik", "red": "mos", "old": "vel", "quiet": "tan", "young": "pir", "green": "gud", "tall": "shol",
    "brave": "kav",
}  # fmt: skip
VERBS = {
    "saw": "paz", "chased": "lor", "found": "ked", "heard": "nim", "met": "bur", "followed": "sev", "called": "jop",
    "pushed": "tig",
}  # fmt: skip


class Sentences(NamedTuple):
    """Sentences in numbers. All [batch 2] (subject, object) but `verbs` [batch]; an adjective counts where
    `described`. A noun's gender is 0 or 1 by turns."""

    nouns: Tensor
    plural: Tensor
    adjectives: Tensor
    described: Tensor
    verbs: Tensor

    @property
    def absent(self) -> Tensor:
        """Which slots are empty [batch slot], `END` among them."""
        absent = torch.zeros(len(self.nouns), END + 1, dtype=torch.bool)
        absent[:, QUALITIES] = ~self.described
        return absent


@dataclass(frozen=True)
class Words:
    """The first so many nouns, adjectives and verbs of both languages.

    >>> Words(nouns=2, adjectives=1, verbs=1).vocabulary[:7]
    ('the', 'dog', 'cat', 'dogs', 'cats', 'small', 'saw')
    >>> Words(nouns=2, adjectives=1, verbs=1).vocabulary[7:-3]
    ('lumo', 'kesa', 'lumoi', 'kesai', 'riko', 'rika', 'pazet', 'pazent')
    """

    nouns: int
    adjectives: int
    verbs: int

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The words by what they are, in the order of their ids."""
        nouns = list(NOUNS)[: self.nouns]
        singular = [NOUNS[noun] + "oa"[index % 2] for index, noun in enumerate(nouns)]
        adjectives, verbs = list(ADJECTIVES)[: self.adjectives], list(VERBS)[: self.verbs]
        return {
            "article": ("the",),
            "nouns": (*nouns, *(f"{noun}s" for noun in nouns)),
            "adjectives": tuple(adjectives),
            "verbs": tuple(verbs),
            "target nouns": (*singular, *(f"{noun}i" for noun in singular)),
            "target adjectives": tuple(ADJECTIVES[word] + ending for ending in "oa" for word in adjectives),
            "target verbs": tuple(VERBS[word] + ending for ending in ("et", "ent") for word in verbs),
            "marks": ("<begin>", "<end>", "<pad>"),
        }

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        return tuple(chain(*self.groups.values()))

    @cached_property
    def first(self) -> dict[str, int]:
        """The first token id of each group."""
        starts = accumulate((len(group) for group in self.groups.values()), initial=0)
        return dict(zip(self.groups, starts, strict=False))

    @cached_property
    def kinds(self) -> Tensor:
        """The class of each token id."""
        kinds = (ARTICLE, NOUN, ADJECTIVE, VERB, NOUN, ADJECTIVE, VERB, MARK)
        return torch.tensor([kind for kind, group in zip(kinds, self.groups.values(), strict=True) for _ in group])

    def mark(self, word: str) -> int:
        """The id of `<begin>`, `<end>` or `<pad>`."""
        return self.first["marks"] + self.groups["marks"].index(word)

    def source(self, said: Sentences) -> Tensor:
        """The source word of each slot [batch slot], whether it is absent or not."""
        words = torch.zeros(len(said.nouns), len(SLOTS), dtype=torch.long)
        words[:, NAMES] = self.first["nouns"] + said.plural * self.nouns + said.nouns
        words[:, QUALITIES] = self.first["adjectives"] + said.adjectives
        words[:, DEED] = self.first["verbs"] + said.verbs
        return words

    def target(self, said: Sentences) -> Tensor:
        """The target word of each slot [batch slot], `<end>` the last."""
        words = torch.full((len(said.nouns), END + 1), self.mark("<end>"))
        words[:, NAMES] = self.first["target nouns"] + said.plural * self.nouns + said.nouns
        words[:, QUALITIES] = self.first["target adjectives"] + said.nouns % 2 * self.adjectives + said.adjectives
        words[:, DEED] = self.first["target verbs"] + said.plural[:, 0] * self.verbs + said.verbs
        return words

    def parsed(self, tokens: Tensor) -> Sentences:
        """The sentences in source tokens [batch pos], padded on the right."""
        kinds = self.kinds[tokens]
        nouns = tokens.gather(1, (kinds != NOUN).int().argsort(dim=1, stable=True)[:, :2]) - self.first["nouns"]
        deed = (kinds == VERB).int().argmax(1, keepdim=True)
        # An adjective follows an article, and articles are the first word and the one after the verb.
        places = torch.cat([torch.ones_like(deed), deed + 2], 1)
        described = kinds.gather(1, places) == ADJECTIVE
        adjectives = (tokens.gather(1, places) - self.first["adjectives"]).where(described, 0)
        verbs = tokens.gather(1, deed)[:, 0] - self.first["verbs"]
        return Sentences(nouns % self.nouns, nouns // self.nouns, adjectives, described, verbs)

    def every(self) -> tuple[Sentences, Tensor]:
        """Each sentence once, with its weight [batch] where adjectives are absent half the time."""
        # The number after the last adjective stands for none, and so for as many draws as there are adjectives.
        sizes = (self.nouns, self.nouns, 2, 2, self.adjectives + 1, self.adjectives + 1, self.verbs)
        drawn = torch.cartesian_prod(*map(torch.arange, sizes))
        drawn = drawn[drawn[:, 0] != drawn[:, 1]]
        described = drawn[:, 4:6] < self.adjectives
        weight = torch.where(described, 1.0, float(self.adjectives)).prod(1).double()
        said = Sentences(drawn[:, :2], drawn[:, 2:4], drawn[:, 4:6] % self.adjectives, described, drawn[:, 6])
        return said, weight


def packed(order: tuple[int, ...], absent: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """absent [batch slot] → the slots in this order without those, and where there is one: two of [batch width].

    >>> packed((2, 1, 0), torch.tensor([[False, True, False]]), 3)
    (tensor([[2, 0, 1]]), tensor([[ True,  True, False]]))
    """
    slots = torch.tensor(order)
    first = absent[:, slots].int().argsort(dim=1, stable=True)[:, :width]
    return slots[first], ~absent[:, slots].gather(1, first)


def classes_of(slots: Tensor) -> Tensor:
    """The token class of what stands in a slot; of −1, which is none, `MARK`."""
    return torch.tensor((*SLOTS, MARK, MARK))[slots]
