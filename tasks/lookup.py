"""The lookup task: letter-digit pairs, then one of the letters again; say the digit that followed it."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations_with_replacement
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from workbench.batch import UNREAD, Batch
from workbench.task import derive_seed

LETTER, DIGIT = 0, 1
MOST_MULTISETS = 2_000_000


class Lookup(BaseModel):
    """`pairs` letter-digit pairs, then one of these letters again. The label, at the last position, is its digit.

    The letters of a sequence are distinct, digits may repeat. Letters are the tokens `0 .. letters - 1`, digits follow.

        position   0  1  2  3  4  5  6  7  8
        token      c  5  a  2  f  7  b  0  a
        label      .  .  .  .  .  .  .  .  2
        last       .  .  .  .  .  .  .  .  *     the asked letter's second occurrence
        answer     .  .  .  *  .  .  .  .  .     the digit that followed it
        match      .  .  *  .  .  .  .  .  .     its earlier copy
        other      .  *  .  .  .  .  .  .  .     one of the other digits, drawn by the seed
        digits     .  *  .  *  .  *  .  *  .
        letters    *  .  *  .  *  .  *  .  .     the letters of the pairs
        previous   . ←0  . ←2  . ←4  . ←6  .     a relation: each digit ← the letter before it

    Raises pydantic's ValidationError (a ValueError) for arguments that no sequence can meet.

    >>> batch = Lookup().sample(4, seed=0)
    >>> batch.tokens.shape, sorted(batch.roles)
    (torch.Size([4, 9]), ['answer', 'digits', 'last', 'letters', 'match', 'other'])
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = "lookup"
    MEANING: ClassVar[int] = 1
    checkpoint: ClassVar[Path] = Path(__file__).parent / "checkpoints" / "lookup"

    letters: int = Field(8, ge=2, le=26)
    digits: int = Field(8, ge=2, le=10)
    pairs: int = Field(4, ge=2)

    @model_validator(mode="after")
    def _possible(self) -> Lookup:
        if self.pairs > self.letters:
            raise ValueError(
                f"{self.pairs} pairs need {self.pairs} distinct letters, and there are {self.letters}; "
                "ask for fewer pairs or more letters"
            )
        return self

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id: letters, then digits."""
        return (*"abcdefghijklmnopqrstuvwxyz"[: self.letters], *"0123456789"[: self.digits])

    @property
    def length(self) -> int:
        """Positions of an example: two a pair, and the asked letter."""
        return 2 * self.pairs + 1

    def sample(self, n: int, seed: int) -> Batch:
        """`n` examples; letters without replacement, digits and the asked pair uniform and independent."""
        if n < 1:
            raise ValueError(f"asked for {n} examples; ask for 1 or more")
        generator = torch.Generator().manual_seed(seed)
        letters = torch.rand(n, self.letters, generator=generator).argsort(1)[:, : self.pairs]
        digits = torch.randint(self.digits, (n, self.pairs), generator=generator)
        asked = torch.randint(self.pairs, (n,), generator=generator)
        return self._batch(letters, digits, asked, generator)

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """The same pairs with another of their letters asked, uniform over the others; `answer` moves with it."""
        self._check(batch)
        generator = torch.Generator().manual_seed(seed)
        step = torch.randint(1, self.pairs, (len(batch),), generator=generator)
        asked = (self._asked(batch) + step) % self.pairs
        letters, digits = batch.tokens[:, 0:-1:2], batch.tokens[:, 1::2] - self.letters
        return self._batch(letters, digits, asked, generator)

    def encode(self, text: str) -> Batch:
        """One example from its words, as `c 5 a 2 f 7 b 0 a`. `other` is drawn by a fixed seed.

        Raises ValueError saying what is wrong with the sequence.
        """
        words = text.split()
        if len(words) != self.length:
            raise ValueError(f"{text!r} has {len(words)} tokens; this task has {self.length}: {self._shape()}")
        if unknown := [word for word in words if word not in self.vocabulary]:
            raise ValueError(f"{unknown[0]!r} is no token of this task; there are: {' '.join(self.vocabulary)}")
        tokens = torch.tensor([[self.vocabulary.index(word) for word in words]])
        letters, digits, last = tokens[:, 0:-1:2], tokens[:, 1::2] - self.letters, tokens[:, -1]
        if (letters >= self.letters).any() or (digits < 0).any() or (last >= self.letters).any():
            raise ValueError(f"{text!r} does not alternate letters and digits: {self._shape()}")
        if len(set(letters[0].tolist())) < self.pairs:
            raise ValueError(f"{text!r} repeats a letter among its pairs; they must be distinct")
        if not (letters == last[:, None]).any():
            raise ValueError(f"{text!r} asks for {words[-1]!r}, which no pair has; end with one of its letters")
        asked = (letters == last[:, None]).int().argmax(1)
        return self._batch(letters, digits, asked, torch.Generator().manual_seed(derive_seed("other", *words)))

    def guessing(self) -> dict[str, float]:
        """Exact accuracy of three guessers that never use the asked letter, by enumeration of the digits drawn.

        any: any digit. seen: the digit of a random pair. mode: the most frequent digit, ties at random.
        """
        n_multisets = math.comb(self.digits + self.pairs - 1, self.pairs)
        if n_multisets > MOST_MULTISETS:
            raise ValueError(f"{n_multisets:,} multisets of digits are too many to enumerate; use sampled_guessing")
        seen = mode = 0
        for drawn in combinations_with_replacement(range(self.digits), self.pairs):
            counts = Counter(drawn).values()
            orders = math.factorial(self.pairs) // math.prod(math.factorial(count) for count in counts)
            seen += orders * sum(count * count for count in counts)
            mode += orders * max(counts)
        total = self.digits**self.pairs
        return {"any": 1 / self.digits, "seen": seen / (total * self.pairs**2), "mode": mode / (total * self.pairs)}

    def sampled_guessing(self, batch: Batch, seed: int) -> dict[str, Tensor]:
        """The same guessers playing on a batch: name -> right or not, [batch], 0 or 1."""
        self._check(batch)
        generator = torch.Generator().manual_seed(seed)
        digits, rows = batch.tokens[:, 1::2], torch.arange(len(batch))
        right = batch.labels[:, -1]
        counts = (digits[:, :, None] == digits[:, None, :]).sum(-1)
        weight = torch.where(counts == counts.max(1, keepdim=True).values, 1 / counts, torch.zeros(()))
        guesses = {
            "any": self.letters + torch.randint(self.digits, (len(batch),), generator=generator),
            "seen": digits[rows, torch.randint(self.pairs, (len(batch),), generator=generator)],
            "mode": digits[rows, torch.multinomial(weight, 1, generator=generator)[:, 0]],
        }
        return {name: (guess == right).float() for name, guess in guesses.items()}

    def _batch(self, letters: Tensor, digits: Tensor, asked: Tensor, generator: torch.Generator) -> Batch:
        rows = torch.arange(len(letters))
        shift = torch.randint(1, self.pairs, (len(letters),), generator=generator)
        tokens = torch.empty(len(letters), self.length, dtype=torch.long)
        tokens[:, 0:-1:2], tokens[:, 1::2] = letters, digits + self.letters
        tokens[:, -1] = letters[rows, asked]
        labels = torch.full_like(tokens, UNREAD)
        labels[:, -1] = digits[rows, asked] + self.letters
        position = torch.arange(self.length)
        odd, last = position % 2 == 1, position == self.length - 1
        roles = {
            "last": last.expand_as(tokens),
            "answer": position == (2 * asked + 1)[:, None],
            "match": position == (2 * asked)[:, None],
            "other": position == (2 * ((asked + shift) % self.pairs) + 1)[:, None],
            "digits": odd.expand_as(tokens),
            "letters": (~odd & ~last).expand_as(tokens),
        }
        previous = (odd[:, None] & (position[:, None] - position == 1)).expand(len(tokens), -1, -1)
        classes = torch.where(odd, DIGIT, LETTER).expand_as(tokens)
        return Batch(tokens, labels, roles=roles, relations={"previous": previous}, classes=classes,
                     vocabulary=self.vocabulary)  # fmt: skip

    def _asked(self, batch: Batch) -> Tensor:
        return (batch.tokens[:, 0:-1:2] == batch.tokens[:, -1:]).int().argmax(1)

    def _check(self, batch: Batch) -> None:
        if batch.tokens.shape[1] != self.length or batch.vocabulary != self.vocabulary:
            raise ValueError(f"this batch is not of {self!r}: it has {batch.tokens.shape[1]} positions and the "
                             f"vocabulary {' '.join(batch.vocabulary) or '(none)'}")  # fmt: skip

    def _shape(self) -> str:
        return f"{self.pairs} times a letter and a digit, then one of the letters again"
