"""The masked task: clauses with words left out; some are told by a noun to the right, some by one to the left."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from workbench.batch import UNREAD, Batch
from workbench.task import derive_seed

NOUN, AGREEING, OTHER = 0, 1, 2
KINDS = (
    ("pack", "howled", ("wolves", "hounds", "jackals")),
    ("fleet", "sailed", ("ships", "boats", "ferries")),
    ("swarm", "buzzed", ("bees", "wasps", "gnats")),
    ("bunch", "ripened", ("grapes", "bananas", "dates")),
    ("shoal", "swam", ("herrings", "sardines", "anchovies")),
    ("herd", "grazed", ("cows", "goats", "deer")),
)
"""The collective and the verb that go with the nouns of one kind, and with no other."""
MASK = "[MASK]"
ADJECTIVES = ("old", "small", "wild", "strange")
ADVERBS = ("slowly", "often", "still", "together")
FRAME = 6


class Masked(BaseModel):
    """Clauses with words masked, some told by a noun to their right, some by one to their left; say the words.

    There are `clauses` clauses, each `a COLLECTIVE of NOUN moved` or `some of the NOUN VERB`. Collective and verb are
    those of the noun's kind. In `each` clauses the collective is masked, and the noun to its right tells it; in `each`
    the verb is, and the noun to its left tells it. The labels, at the masks, are the words left out.

    kinds, words: kinds of nouns, nouns a kind. fillers: adjectives and adverbs, spread at random. Clauses without a
    mask are of either form. Kinds are independent from clause to clause, so no other clause tells anything.

        position    0       1   2    3      4      5  6     7   8    9    10     11      12  13
        token       a  [MASK]  of  old  ships  moved  ,  some  of  the  bees  still  [MASK]   .
        label       .   fleet   .    .      .      .  .     .   .    .     .      .  buzzed   .
        masked      .       *   .    .      .      .  .     .   .    .     .      .       *   .
        by_right    .       *   .    .      .      .  .     .   .    .     .      .       .   .  told by its right
        by_left     .       .   .    .      .      .  .     .   .    .     .      .       *   .  told by its left
        clue        .       .   .    .      *      .  .     .   .    .     *      .       .   .  what tells it
        right_clue  .       .   .    .      *      .  .     .   .    .     .      .       .   .  the clue of by_right
        left_clue   .       .   .    .      .      .  .     .   .    .     *      .       .   .  the clue of by_left
        nouns       .       .   .    .      *      .  .     .   .    .     *      .       .   .
        told_by     .      ←4   .    .      .      .  .     .   .    .     .      .     ←10   .  a mask ← its clue
        other      .      ←10   .    .      .      .  .     .   .    .     .      .      ←4   .  a mask ← another noun

    `other` is the noun of another clause, drawn by the seed. With the whole sentence every mask can be right.

    Raises pydantic's ValidationError (a ValueError) for arguments that no sentence can meet.

    >>> batch = Masked().sample(4, seed=0)
    >>> batch.tokens.shape, batch.roles["masked"].sum(1).tolist()
    (torch.Size([4, 22]), [2, 2, 2, 2])
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = "masked"
    MEANING: ClassVar[int] = 1

    kinds: int = Field(4, ge=2, le=len(KINDS))
    words: int = Field(3, ge=1, le=3)
    clauses: int = Field(3, ge=2, le=12)
    each: int = Field(1, ge=1)
    fillers: int = Field(4, ge=0, le=24)

    @model_validator(mode="after")
    def _possible(self) -> Masked:
        if 2 * self.each > self.clauses:
            raise ValueError(
                f"{self.each} masks of each form need {2 * self.each} clauses, and there are {self.clauses}; "
                "ask for fewer masks (`each`) or more clauses"
            )
        return self

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id: collectives, verbs, nouns kind by kind, the mask, then the rest."""
        collectives, verbs, nouns = zip(*KINDS[: self.kinds], strict=True)
        nouns = tuple(noun for kind in nouns for noun in kind[: self.words])
        return (*collectives, *verbs, *nouns, MASK, "a", "some", "of", "the", "moved", ",", ".", *ADJECTIVES, *ADVERBS)

    @property
    def length(self) -> int:
        """Positions of an example: six a clause, and the fillers."""
        return FRAME * self.clauses + self.fillers

    def sample(self, n: int, seed: int) -> Batch:
        """`n` examples; kinds, nouns, fillers and which clauses are masked uniform and independent."""
        if n < 1:
            raise ValueError(f"asked for {n} examples; ask for 1 or more")
        generator = torch.Generator().manual_seed(seed)
        kinds = torch.randint(self.kinds, (n, self.clauses), generator=generator)
        nouns = 2 * self.kinds + kinds * self.words + torch.randint(self.words, kinds.shape, generator=generator)
        place = torch.rand(n, self.clauses, generator=generator).argsort(1)
        either = torch.rand(n, self.clauses, generator=generator) < 0.5
        right = torch.where(place < 2 * self.each, place < self.each, either)
        agreeing = torch.where(right, kinds, self.kinds + kinds)
        agreeing = agreeing.masked_fill(place < 2 * self.each, self._id(MASK))
        return self._batch(self._sentences(nouns, right, agreeing, generator), generator)

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """The same sentences with each clue a noun of another kind, uniform over these, so that each masked word is
        another. Every role and relation stays."""
        self._check(batch)
        generator = torch.Generator().manual_seed(seed)
        clue = self._parts(batch.tokens)["clue"]
        kinds = (batch.tokens[clue] - 2 * self.kinds) // self.words
        kinds = (kinds + torch.randint(1, self.kinds, kinds.shape, generator=generator)) % self.kinds
        tokens = batch.tokens.clone()
        drawn = torch.randint(self.words, kinds.shape, generator=generator)
        tokens[clue] = 2 * self.kinds + kinds * self.words + drawn
        return replace(batch, tokens=tokens, labels=self._labels(tokens))

    def encode(self, text: str) -> Batch:
        """One example from its words, masks as `[MASK]`. `other` is drawn by a fixed seed.

        Raises ValueError saying what is wrong with the sentence.
        """
        words = text.split()
        if len(words) != self.length:
            raise ValueError(f"{text!r} has {len(words)} tokens; this task has {self.length}: {self._shape()}")
        if unknown := [word for word in words if word not in self.vocabulary]:
            raise ValueError(f"{unknown[0]!r} is no token of this task; there are: {' '.join(self.vocabulary)}")
        clauses = " ".join(words[:-1]).split(" , ")
        if words[-1] != "." or len(clauses) != self.clauses:
            raise ValueError(f"{text!r} is not {self.clauses} clauses with commas between and a full stop at the end")
        masked = [self._masked_in(clause) for clause in clauses]
        if (masked.count("right"), masked.count("left")) != (self.each, self.each):
            raise ValueError(
                f"{text!r} masks {masked.count('right')} collectives and {masked.count('left')} verbs; "
                f"this task masks {self.each} of each"
            )
        tokens = torch.tensor([[self.vocabulary.index(word) for word in words]])
        return self._batch(tokens, torch.Generator().manual_seed(derive_seed("other", *words)))

    def guessing(self) -> dict[str, float]:
        """Exact accuracy over all masks of guessers that do not read the whole sentence.

        any: any word that is ever masked. blind: a word of the right form (collective or verb) without the clue; this
        is also what a model that sees only the left gets at `by_right`. left only, right only: told by what stands on
        that side of the mask and blind at the other half of the masks.
        """
        blind = 1 / self.kinds
        return {"any": blind / 2, "blind": blind, "left only": (1 + blind) / 2, "right only": (1 + blind) / 2}

    def _id(self, word: str) -> int:
        return self.vocabulary.index(word)

    def _sentences(self, nouns: Tensor, right: Tensor, agreeing: Tensor, generator: torch.Generator) -> Tensor:
        """Words in the order of the frame, moved right by the fillers before them: tokens [batch pos]."""
        n, size = len(nouns), FRAME * self.clauses
        ends = torch.tensor([self._id(",")] * (self.clauses - 1) + [self._id(".")]).expand_as(nouns)
        word = {word: torch.full_like(nouns, self._id(word)) for word in ("a", "of", "moved", "some", "the")}
        with_collective = torch.stack([word["a"], agreeing, word["of"], nouns, word["moved"], ends], -1)
        with_verb = torch.stack([word["some"], word["of"], word["the"], nouns, agreeing, ends], -1)
        frame = torch.where(right[:, :, None], with_collective, with_verb).flatten(1)
        # Adjectives stand before the noun, adverbs after it: before the places 3 and 4 of a clause.
        slot = torch.randint(2 * self.clauses, (n, self.fillers), generator=generator).sort(1).values
        before = FRAME * (slot // 2) + 3 + slot % 2
        which = torch.randint(len(ADJECTIVES), slot.shape, generator=generator)
        fillers = self._id(ADJECTIVES[0]) + (slot % 2) * len(ADJECTIVES) + which
        shift = (before[:, None, :] <= torch.arange(size)[None, :, None]).sum(-1)
        tokens = torch.empty(n, self.length, dtype=torch.long)
        tokens.scatter_(1, torch.arange(size) + shift, frame)
        return tokens.scatter_(1, before + torch.arange(self.fillers), fillers)

    def _parts(self, tokens: Tensor) -> dict[str, Tensor]:
        """Everything that the tokens say: which positions are what, and the clause of each, all [batch pos]."""
        end = (tokens == self._id(",")) | (tokens == self._id("."))
        clause = end.cumsum(1) - end.long()
        noun = (tokens >= 2 * self.kinds) & (tokens < self._id(MASK))
        masked = tokens == self._id(MASK)
        opener = tokens[(tokens == self._id("a")) | (tokens == self._id("some"))].unflatten(0, (len(tokens), -1))
        right = (opener == self._id("a")).gather(1, clause)
        has_mask = torch.zeros_like(opener).scatter_add_(1, clause, masked.long()).gather(1, clause) > 0
        return {"clause": clause, "noun": noun, "masked": masked, "right": right, "clue": noun & has_mask}

    def _labels(self, tokens: Tensor) -> Tensor:
        parts = self._parts(tokens)
        nouns = tokens[parts["noun"]].unflatten(0, (len(tokens), self.clauses))
        kind = ((nouns - 2 * self.kinds) // self.words).gather(1, parts["clause"])
        return torch.where(parts["right"], kind, self.kinds + kind).masked_fill(~parts["masked"], UNREAD)

    def _batch(self, tokens: Tensor, generator: torch.Generator) -> Batch:
        parts = self._parts(tokens)
        noun, masked, right, clue, clause = (parts[name] for name in ("noun", "masked", "right", "clue", "clause"))
        roles = {
            "masked": masked,
            "by_right": masked & right,
            "by_left": masked & ~right,
            "clue": clue,
            "right_clue": clue & right,
            "left_clue": clue & ~right,
            "nouns": noun,
        }
        step = torch.randint(1, self.clauses, (len(tokens), self.clauses), generator=generator).gather(1, clause)
        elsewhere = (clause + step) % self.clauses
        edges = masked[:, :, None] & noun[:, None, :]
        relations = {
            "told_by": edges & (clause[:, :, None] == clause[:, None, :]),
            "other": edges & (elsewhere[:, :, None] == clause[:, None, :]),
        }
        agreeing = masked | (tokens < 2 * self.kinds)
        classes = torch.where(noun, NOUN, torch.where(agreeing, AGREEING, OTHER))
        return Batch(tokens, self._labels(tokens), roles=roles, relations=relations, classes=classes,
                     vocabulary=self.vocabulary)  # fmt: skip

    def _check(self, batch: Batch) -> None:
        if batch.tokens.shape[1] != self.length or batch.vocabulary != self.vocabulary:
            raise ValueError(f"this batch is not of {self!r}: it has {batch.tokens.shape[1]} positions and the "
                             f"vocabulary {' '.join(batch.vocabulary) or '(none)'}")  # fmt: skip

    def _masked_in(self, clause: str) -> str:
        """Whence the mask of a clause is told, "right" or "left", or "" where it has none.

        Raises ValueError for what is no clause of this task.
        """
        kinds = KINDS[: self.kinds]
        noun = f"(?:(?:{'|'.join(ADJECTIVES)}) )*(?P<noun>{'|'.join(n for kind in kinds for n in kind[2])})"
        adverbs = f"(?:(?:{'|'.join(ADVERBS)}) )*"
        hidden = re.escape(MASK)
        for side, at, pattern in (
            ("right", 0, rf"a (?P<word>WORDS|{hidden}) of {noun} {adverbs}moved"),
            ("left", 1, rf"some of the {noun} {adverbs}(?P<word>WORDS|{hidden})"),
        ):
            if found := re.fullmatch(pattern.replace("WORDS", "|".join(str(kind[at]) for kind in kinds)), clause):
                fits = next(str(kind[at]) for kind in kinds if found["noun"] in kind[2])
                if found["word"] not in (MASK, fits):
                    raise ValueError(f"{found['word']!r} does not go with {found['noun']!r}; {fits!r} does")
                return side if found["word"] == MASK else ""
        raise ValueError(f"{clause!r} is no clause of this task: {self._shape()}")

    def _shape(self) -> str:
        return (
            f"{self.clauses} clauses, each 'a COLLECTIVE of NOUN moved' or 'some of the NOUN VERB', with "
            f"{self.fillers} adjectives (before a noun) and adverbs (after it) in them"
        )
