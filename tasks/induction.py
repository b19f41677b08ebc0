"""The induction task: somewhere among random tokens a block comes twice; in its second copy, say what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_letters, digits
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from workbench.batch import UNREAD, Batch

WORDS = ascii_letters + digits


class Induction(BaseModel):
    """Random tokens in which a block comes twice in a row; the label at each token of the second copy is the next one.

    These are the repeated random tokens of Olsson et al. 2022, "In-context learning and induction heads". The last
    token of the second copy has no label: what comes next is random.

    The block has `shortest` to `longest` tokens and starts anywhere, both drawn by the seed, so that a source at a
    fixed distance, or a fixed position, is not the answer (`position` in `guessing`). With `shortest == longest` it
    is: then one layer that reads positions solves the task. Outside the second copy all tokens differ, so each label
    is determined: the token after the earlier copy of this one.

        position  0   1   2   3   4   5   6   7   8
        token     k   c   a   f   c   a   f   b   h
        label     .   .   .   .   a   f   .   .   .
        first     .   *   *   *   .   .   .   .   .   the block
        second    .   .   .   .   *   *   *   .   .   the block again
        last      .   .   .   .   .   *   .   .   .   the last position that is read
        match     .   .   .   .  ←2  ←3   .   .   .   read ← the token after its earlier copy: the answer
        same      .   .   .   .  ←1  ←2  ←3   .   .   a token ← its earlier copy
        previous  .  ←0  ←1  ←2  ←3  ←4  ←5  ←6  ←7

    Raises pydantic's ValidationError (a ValueError) for arguments that no sequence can meet.

    >>> batch = Induction(length=9, shortest=2, longest=4).encode("k c a f c a f b h")
    >>> [batch.word(int(label)) for label in batch.labels[0] if label >= 0]
    ['a', 'f']
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = "induction"
    MEANING: ClassVar[int] = 1

    words: int = Field(32, ge=2, le=len(WORDS))
    length: int = Field(24, ge=4)
    shortest: int = Field(4, ge=2)
    longest: int = Field(8, ge=2)

    @model_validator(mode="after")
    def _possible(self) -> Induction:
        if self.shortest > self.longest:
            raise ValueError(f"the shortest block, {self.shortest}, is longer than the longest, {self.longest}")
        if 2 * self.longest > self.length:
            raise ValueError(
                f"two copies of {self.longest} tokens need {2 * self.longest} positions, and there are {self.length}; "
                "ask for a shorter block (`longest`) or more positions"
            )
        if self.length - self.shortest > self.words:
            raise ValueError(
                f"{self.length} positions with a block of {self.shortest} need {self.length - self.shortest} distinct "
                f"tokens, and there are {self.words}; ask for fewer positions or more words"
            )
        return self

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id: small letters, capitals, digits."""
        return tuple(WORDS[: self.words])

    def sample(self, n: int, seed: int) -> Batch:
        """`n` examples; the size of the block, where it starts and the tokens (without replacement) uniform."""
        if n < 1:
            raise ValueError(f"asked for {n} examples; ask for 1 or more")
        generator = torch.Generator().manual_seed(seed)
        distinct = torch.rand(n, self.words, generator=generator).argsort(1)
        size = torch.randint(self.shortest, self.longest + 1, (n, 1), generator=generator)
        starts = self.length - 2 * size + 1
        start = (torch.rand(n, 1, generator=generator, dtype=torch.float64) * starts).long()
        position = torch.arange(self.length)
        # From the second copy on, everything is what stood one block earlier among the distinct tokens.
        return self._batch(distinct.gather(1, torch.where(position < start + size, position, position - size)))

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """The same sequences with the tokens of the block in another order, alike in both copies: no token of it keeps
        its place, so every label is another. Every role and relation stays."""
        self._check(batch)
        generator = torch.Generator().manual_seed(seed)
        second = self._second(batch.tokens)
        first, size = self._first(second), second.sum(1, keepdim=True)
        # One random cycle through the block: its positions in random order, each handing its token to the one before.
        drawn = torch.rand(first.shape, generator=generator).masked_fill(~first, 2.0)
        order = drawn.argsort(1)
        turn = torch.arange(self.length)
        after = order.gather(1, torch.where(turn < size, (turn + 1) % size, turn))
        source = torch.empty_like(order).scatter_(1, order, after)
        source = torch.where(second, source.gather(1, (turn - size).clamp(min=0)), source)
        tokens = batch.tokens.gather(1, torch.where(first | second, source, turn))
        return self._batch(tokens)

    def encode(self, text: str) -> Batch:
        """One example from its words, as in the class. Raises ValueError saying what is wrong with the sequence."""
        words = text.split()
        if len(words) != self.length:
            raise ValueError(f"{text!r} has {len(words)} tokens; this task has {self.length}")
        if unknown := [word for word in words if word not in self.vocabulary]:
            raise ValueError(f"{unknown[0]!r} is no token of this task; there are: {' '.join(self.vocabulary)}")
        again = [at for at, word in enumerate(words) if word in words[:at]]
        size = len(again)
        if not size or again != list(range(again[0], again[0] + size)) or again[0] < size:
            raise ValueError(f"{text!r} has no block that comes twice, once right after the other; {self._shape()}")
        if words[again[0] - size : again[0]] != [words[at] for at in again]:
            raise ValueError(f"{text!r} has its second block in another order than its first; {self._shape()}")
        if not self.shortest <= size <= self.longest:
            raise ValueError(f"{text!r} has a block of {size} tokens; {self._shape()}")
        return self._batch(torch.tensor([[self.vocabulary.index(word) for word in words]]))

    def guessing(self) -> dict[str, float]:
        """Exact accuracy (over the positions read in an example, then over examples) of guessers that do not match.

        any: any token. seen: the token of a random position so far. once: any token that came once so far, which the
        next must be. position: the token of the position that is most often the answer to this one.
        """
        read = list(self._read())
        likely: dict[int, dict[int, float]] = {}
        for start, size, k, weight in read:
            here = likely.setdefault(start + size + k, {})
            here[start + k + 1] = here.get(start + k + 1, 0.0) + weight
        return {
            "any": 1 / self.words,
            "seen": sum(weight / (start + size + k + 1) for start, size, k, weight in read),
            "once": sum(weight / (start + size - k - 1) for start, size, k, weight in read),
            "position": sum(max(sources.values()) for sources in likely.values()),
        }

    def _read(self) -> Iterator[tuple[int, int, int, float]]:
        """Start and size of a block, index in it of what is read, and how much of the accuracy this is."""
        sizes = range(self.shortest, self.longest + 1)
        for size in sizes:
            starts = range(self.length - 2 * size + 1)
            for start in starts:
                for k in range(size - 1):
                    yield start, size, k, 1 / (len(sizes) * len(starts) * (size - 1))

    def _second(self, tokens: Tensor) -> Tensor:
        return self._same(tokens).any(2)

    def _same(self, tokens: Tensor) -> Tensor:
        return (tokens[:, :, None] == tokens[:, None, :]).tril(-1)

    def _first(self, second: Tensor) -> Tensor:
        size, start = second.sum(1, keepdim=True), second.int().argmax(1, keepdim=True)
        position = torch.arange(self.length)
        return (position >= start - size) & (position < start)

    def _batch(self, tokens: Tensor) -> Batch:
        same = self._same(tokens)
        second = same.any(2)
        read = second.clone()
        read[:, :-1] &= second[:, 1:]
        read[:, -1] = False
        labels = tokens.roll(-1, 1).masked_fill(~read, UNREAD)
        last = read & (read.cumsum(1) == read.sum(1, keepdim=True))
        position = torch.arange(self.length)
        previous = (position[:, None] - position == 1).expand_as(same)
        relations = {"match": same.roll(1, 2) & read[:, :, None], "same": same, "previous": previous}
        roles = {"first": self._first(second), "second": second, "last": last}
        return Batch(tokens, labels, roles=roles, relations=relations, classes=torch.zeros_like(tokens),
                     vocabulary=self.vocabulary)  # fmt: skip

    def _check(self, batch: Batch) -> None:
        if batch.tokens.shape[1] != self.length or batch.vocabulary != self.vocabulary:
            raise ValueError(f"this batch is not of {self!r}: it has {batch.tokens.shape[1]} positions and the "
                             f"vocabulary {' '.join(batch.vocabulary) or '(none)'}")  # fmt: skip

    def _shape(self) -> str:
        return (
            f"ask for {self.length} tokens in which {self.shortest} to {self.longest} come again in order right after, "
            "and no other twice"
        )
