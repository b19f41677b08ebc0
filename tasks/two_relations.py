"""The two-relations task: two lists of letter-digit pairs, then a letter; say its two digits in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from string import ascii_lowercase
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from workbench.batch import UNREAD, Batch
from workbench.task import derive_seed

LETTER, DIGIT, ANSWER = 0, 1, 2


class TwoRelations(BaseModel):
    """Two lists of letter-digit pairs, then one of the letters; say its two digits in order.

    Both lists have `pairs` pairs with the same letters, each in an order of its own. The label, at the last position,
    is one token: the letter's digit in the first list, then that in the second, as `26`. So the last position needs
    two facts at once, and either alone leaves one answer in `digits`.

    The same letters and digits stand in both lists, and the order of the two facts matters. A head that weighs both
    sources alike, and takes from a digit the same vector in either list, gets the facts as a set: `unordered` in
    `guessing` is the most that can be had from that. A single distribution is not ruled out altogether: a head can
    weigh the two sources unequally, or an earlier layer can mark a digit by its list.

        position      0   1   2   3   4   5   6   7   8
        token         c   5   a   2   a   6   c   3   a
        label         .   .   .   .   .   .   .   .  26
        last          .   .   .   .   .   .   .   .   *   the asked letter
        first_fact    .   .   .   *   .   .   .   .   .   its digit in the first list
        second_fact   .   .   .   .   .   *   .   .   .   its digit in the second
        first_match   .   .   *   .   .   .   .   .   .   the letter itself in the first
        second_match  .   .   .   .   *   .   .   .   .   ... in the second
        first_other   .   *   .   .   .   .   .   .   .   the first digit of another letter, drawn by the seed
        second_other  .   .   .   .   .   .   .   *   .   its second digit
        digits        .   *   .   *   .   *   .   *   .
        letters       *   .   *   .   *   .   *   .   .   the letters of the pairs
        first         .   .   .   .   .   .   .   .  ←3   a relation: last ← its first fact
        second        .   .   .   .   .   .   .   .  ←5   a relation: last ← its second fact
        previous      .  ←0   .  ←2   .  ←4   .  ←6   .   a relation: each digit ← its letter

    Raises pydantic's ValidationError (a ValueError) for arguments that no sequence can meet.

    >>> batch = TwoRelations(digits=7, pairs=2).encode("c 5 a 2 a 6 c 3 a")
    >>> batch.word(int(batch.labels[0, -1]))
    '26'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = "two-relations"
    MEANING: ClassVar[int] = 1

    letters: int = Field(8, ge=2, le=26)
    digits: int = Field(5, ge=2, le=10)
    pairs: int = Field(3, ge=2)

    @model_validator(mode="after")
    def _possible(self) -> TwoRelations:
        if self.pairs > self.letters:
            raise ValueError(
                f"{self.pairs} pairs need {self.pairs} distinct letters, and there are {self.letters}; "
                "ask for fewer pairs or more letters"
            )
        return self

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id: letters, digits, then the answers, two digits each."""
        digits = "0123456789"[: self.digits]
        return (*ascii_lowercase[: self.letters], *digits, *(first + second for first in digits for second in digits))

    @property
    def length(self) -> int:
        """Positions of an example: two a pair in each list, and the asked letter."""
        return 4 * self.pairs + 1

    def sample(self, n: int, seed: int) -> Batch:
        """`n` examples; letters without replacement, orders, digits and the asked letter uniform and independent."""
        if n < 1:
            raise ValueError(f"asked for {n} examples; ask for 1 or more")
        generator = torch.Generator().manual_seed(seed)
        first = torch.rand(n, self.letters, generator=generator).argsort(1)[:, : self.pairs]
        second = first.gather(1, torch.rand(n, self.pairs, generator=generator).argsort(1))
        asked = first.gather(1, torch.randint(self.pairs, (n, 1), generator=generator))
        digits = torch.randint(self.digits, (n, 2 * self.pairs), generator=generator) + self.letters
        pairs = torch.stack([torch.cat([first, second], 1), digits], -1).flatten(1)
        return self._batch(torch.cat([pairs, asked], 1), generator)

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """The same sequences with one of the two facts another digit, both uniform, so the label is always another.
        Every role and relation stays."""
        self._check(batch)
        generator, n = torch.Generator().manual_seed(seed), len(batch)
        facts = self._facts(batch.tokens)
        place = facts.gather(1, torch.randint(2, (n, 1), generator=generator))
        step = torch.randint(1, self.digits, (n, 1), generator=generator)
        digit = (batch.tokens.gather(1, place) - self.letters + step) % self.digits
        tokens = batch.tokens.scatter(1, place, self.letters + digit)
        return replace(batch, tokens=tokens, labels=self._labels(tokens, facts))

    def encode(self, text: str) -> Batch:
        """One example from its words, as in the class. The others are drawn by a fixed seed.

        Raises ValueError saying what is wrong with the sequence.
        """
        words = text.split()
        if len(words) != self.length:
            raise ValueError(f"{text!r} has {len(words)} tokens; this task has {self.length}: {self._shape()}")
        if unknown := [word for word in words if word not in self.vocabulary]:
            raise ValueError(f"{unknown[0]!r} is no token of this task; there are: {' '.join(self.vocabulary)}")
        kinds = [LETTER if word.isalpha() else DIGIT if len(word) == 1 else ANSWER for word in words]
        if kinds != [LETTER, DIGIT] * 2 * self.pairs + [LETTER]:
            raise ValueError(f"{text!r} does not alternate letters and digits: {self._shape()}")
        first, second = words[0 : 2 * self.pairs : 2], words[2 * self.pairs : -1 : 2]
        if len(set(first)) < self.pairs:
            raise ValueError(f"{text!r} repeats a letter in its first list; they must be distinct")
        if sorted(first) != sorted(second):
            raise ValueError(f"{text!r} has the letters {' '.join(first)} in its first list and {' '.join(second)} in "
                             "its second; they must be the same in any order")  # fmt: skip
        if words[-1] not in first:
            raise ValueError(f"{text!r} asks for {words[-1]!r}, which no pair has; end with one of its letters")
        tokens = torch.tensor([[self.vocabulary.index(word) for word in words]])
        return self._batch(tokens, torch.Generator().manual_seed(derive_seed("other", *words)))

    def guessing(self) -> dict[str, float]:
        """Exact accuracy of guessers that lack something, by enumeration of the two facts.

        any: any answer. seen: the answer for a random letter of the lists. apart: a random digit of each list.
        first fact, second fact: the best answer from one fact. unordered: the best answer from the two facts without
        knowing which is which.
        """
        one, any_answer = 1 / self.pairs, 1 / self.digits**2
        return {
            "any": any_answer,
            "seen": one + (1 - one) * any_answer,
            "apart": (one + (1 - one) / self.digits) ** 2,
            "first fact": self._best(lambda first, second: first),
            "second fact": self._best(lambda first, second: second),
            "unordered": self._best(lambda first, second: tuple(sorted((first, second)))),
        }

    def _best(self, known: Callable[[int, int], object]) -> float:
        """The best accuracy of a guesser that knows this of the two facts: it is right once for each thing known, since
        all answers are equally likely and no two alike."""
        return len({known(first, second) for first, second in product(range(self.digits), repeat=2)}) / self.digits**2

    def _facts(self, tokens: Tensor) -> Tensor:
        """Where the asked letter's digits are, in the first list and in the second [batch 2]."""
        places = 2 * (tokens[:, 0:-1:2] == tokens[:, -1:]).unflatten(1, (2, self.pairs)).int().argmax(2) + 1
        return places + torch.tensor([0, 2 * self.pairs])

    def _labels(self, tokens: Tensor, facts: Tensor) -> Tensor:
        first, second = (tokens.gather(1, facts) - self.letters).unbind(1)
        labels = torch.full_like(tokens, UNREAD)
        labels[:, -1] = self.letters + self.digits + first * self.digits + second
        return labels

    def _batch(self, tokens: Tensor, generator: torch.Generator) -> Batch:
        facts = self._facts(tokens)
        step = torch.randint(1, self.pairs, (len(tokens), 1), generator=generator)
        another = (facts[:, :1] - 1 + 2 * step) % (2 * self.pairs)
        others = self._facts(torch.cat([tokens[:, :-1], tokens.gather(1, another)], 1))
        position = torch.arange(self.length)
        odd, last = position % 2 == 1, position == self.length - 1
        first_fact, second_fact = position == facts[:, :1], position == facts[:, 1:]
        roles = {
            "last": last.expand_as(tokens),
            "first_fact": first_fact,
            "second_fact": second_fact,
            "first_match": position == facts[:, :1] - 1,
            "second_match": position == facts[:, 1:] - 1,
            "first_other": position == others[:, :1],
            "second_other": position == others[:, 1:],
            "digits": odd.expand_as(tokens),
            "letters": (~odd & ~last).expand_as(tokens),
        }
        relations = {
            "first": last[:, None] & first_fact[:, None, :],
            "second": last[:, None] & second_fact[:, None, :],
            "previous": (odd[:, None] & (position[:, None] - position == 1)).expand(len(tokens), -1, -1),
        }
        classes = torch.where(odd, DIGIT, LETTER).expand_as(tokens)
        return Batch(tokens, self._labels(tokens, facts), roles=roles, relations=relations, classes=classes,
                     vocabulary=self.vocabulary)  # fmt: skip

    def _check(self, batch: Batch) -> None:
        if batch.tokens.shape[1] != self.length or batch.vocabulary != self.vocabulary:
            raise ValueError(f"this batch is not of {self!r}: it has {batch.tokens.shape[1]} positions and the "
                             f"vocabulary {' '.join(batch.vocabulary) or '(none)'}")  # fmt: skip

    def _shape(self) -> str:
        return f"twice {self.pairs} times a letter and a digit, then one of the letters again"
