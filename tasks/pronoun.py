"""The pronoun task: a sentence with several nouns, then `it` and a verb that fits one of them; say which noun."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from workbench.batch import UNREAD, Batch

NOUN, VERB, OTHER = 0, 1, 2
KINDS = (
    (("restaurant", "bakery", "canteen", "inn"), ("cooks", "caters"), ("menu", "kitchen")),
    (("sandwich", "soup", "pie", "stew"), ("burned", "cooled"), ("flavour", "recipe")),
    (("law", "treaty", "tax", "rule"), ("forbids", "applies"), ("clause", "application")),
    (("dog", "horse", "goat", "cat"), ("sleeps", "limps"), ("fur", "tail")),
    (("train", "ferry", "bus", "tram"), ("departs", "stalled"), ("engine", "timetable")),
    (("rose", "oak", "fern", "tulip"), ("wilted", "bloomed"), ("leaf", "root")),
)
"""Nouns of one kind, the verbs that fit them and no other kind, and what only they have."""
LINKS = ("refused", "from", "near", "without", "behind")
ADJECTIVES = ("old", "small", "famous", "strange")
ADVERBS = ("only", "often", "still", "now")


class Pronoun(BaseModel):
    """A sentence of several nouns, then `it`, a verb that fits one of them, and a question mark; say which noun.

    There are `nouns` nouns, each of another kind, and each verb fits the nouns of one kind. The label, at the last
    position, is the noun of the sentence that the verb fits.

    kinds, words, verbs: kinds of nouns, nouns a kind, verbs a kind. fillers: adjectives and adverbs, spread at random,
    so that all words but the first and the last change places. form: "its" has, after `its`, what only one kind has
    (`its menu`), in the place and under the role of the verb; "both" draws one of the two forms for each sentence.

    Nouns, kinds and the noun meant are uniform, so the noun meant is as often the nearest as any other. No rule about
    positions beats `nearest` in `guessing`, and a verb without the sentence leaves `words` nouns. The route meant is
    verb → its kind → the noun of that kind. The order of the words plays no part, so a set of them would do as well.

        position       0           1        2    3         4        5   6     7      8  9
        token        the  restaurant  refused  the  sandwich  because  it  only  cooks  ?
        label          .           .        .    .         .        .   .     .      .  restaurant
        last           .           .        .    .         .        .   .     .      .  *   the question mark
        it             .           .        .    .         .        .   *     .      .  .
        verb           .           .        .    .         .        .   .     .      *  .
        referent       .           *        .    .         .        .   .     .      .  .   the noun meant
        nearest        .           .        .    .         *        .   .     .      .  .   the nearest not meant
        distractors    .           .        .    .         *        .   .     .      .  .   all nouns not meant
        nouns          .           *        .    .         *        .   .     .      .  .

    Raises pydantic's ValidationError (a ValueError) for arguments that no sentence can meet.

    >>> task = Pronoun(nouns=2, fillers=1)
    >>> batch = task.encode("the restaurant refused the sandwich because it only cooks ?")
    >>> batch.word(int(batch.labels[0, -1]))
    'restaurant'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = "pronoun"
    MEANING: ClassVar[int] = 1

    kinds: int = Field(4, ge=2, le=len(KINDS))
    words: int = Field(4, ge=2, le=4)
    verbs: int = Field(2, ge=1, le=2)
    nouns: int = Field(3, ge=2, le=len(LINKS) + 1)
    fillers: int = Field(3, ge=0, le=20)
    form: Literal["it", "its", "both"] = "it"

    @model_validator(mode="after")
    def _possible(self) -> Pronoun:
        if self.nouns > self.kinds:
            raise ValueError(
                f"{self.nouns} nouns of different kinds need {self.nouns} kinds, and there are {self.kinds}; "
                "ask for fewer nouns or more kinds"
            )
        return self

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id: nouns kind by kind, then verbs (and what is had) likewise, then the rest."""
        kinds = KINDS[: self.kinds]
        nouns = (noun for kind in kinds for noun in kind[0][: self.words])
        verbs = (verb for at in self._columns for kind in kinds for verb in kind[at][: self.verbs])
        frame = ("the", "because", *self._pronouns, "?", *LINKS[: self.nouns - 1])
        return (*nouns, *verbs, *frame, *ADJECTIVES, *ADVERBS)

    @property
    def length(self) -> int:
        """Positions of an example: three a noun, pronoun, verb and question mark, and the fillers."""
        return 3 * self.nouns + 3 + self.fillers

    def sample(self, n: int, seed: int) -> Batch:
        """`n` sentences; kinds without replacement, nouns, noun meant, verb, form and fillers uniform, independent."""
        if n < 1:
            raise ValueError(f"asked for {n} examples; ask for 1 or more")
        generator = torch.Generator().manual_seed(seed)
        kinds = torch.rand(n, self.kinds, generator=generator).argsort(1)[:, : self.nouns]
        nouns = kinds * self.words + torch.randint(self.words, kinds.shape, generator=generator)
        meant = kinds.gather(1, torch.randint(self.nouns, (n, 1), generator=generator))
        forms = torch.randint(len(self._pronouns), (n, 1), generator=generator)
        verbs = self._verb(meant, forms, torch.randint(self.verbs, (n, 1), generator=generator))
        return self._batch(self._sentences(nouns, verbs, forms, generator))

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """The same sentences with a verb that fits another of their nouns, uniform over these and their verbs."""
        self._check(batch)
        generator, n = torch.Generator().manual_seed(seed), len(batch)
        tokens = batch.tokens.clone()
        at = self._is_verb(tokens)
        kinds = tokens[tokens < self._n_nouns].unflatten(0, (n, self.nouns)) // self.words
        forms, meant = self._form_and_kind(tokens[at])
        step = torch.randint(1, self.nouns, (n, 1), generator=generator)
        now = (kinds == meant[:, None]).int().argmax(1, keepdim=True)
        other = kinds.gather(1, (now + step) % self.nouns)[:, 0]
        tokens[at] = self._verb(other, forms, torch.randint(self.verbs, (n,), generator=generator))
        return self._batch(tokens)

    def encode(self, text: str) -> Batch:
        """One example from its words, as in the class. Raises ValueError saying what is wrong with the sentence."""
        words = text.split()
        if len(words) != self.length:
            raise ValueError(f"{text!r} has {len(words)} tokens; this task has {self.length}: {self._shape()}")
        if unknown := [word for word in words if word not in self.vocabulary]:
            raise ValueError(f"{unknown[0]!r} is no token of this task; there are: {' '.join(self.vocabulary)}")
        if not re.fullmatch(self._grammar(), " ".join(words)):
            raise ValueError(f"{text!r} is no sentence of this task: {self._shape()}")
        tokens = torch.tensor([[self.vocabulary.index(word) for word in words]])
        kinds = (tokens[tokens < self._n_nouns] // self.words).tolist()
        if len(set(kinds)) < self.nouns:
            raise ValueError(f"{text!r} has two nouns of one kind; each must be of another")
        verb = tokens[self._is_verb(tokens)]
        if int(self._form_and_kind(verb)[1]) not in kinds:
            raise ValueError(f"{text!r} ends in {self.vocabulary[int(verb)]!r}, which fits none of its nouns")
        return self._batch(tokens)

    def guessing(self) -> dict[str, float]:
        """Exact accuracy of guessers that leave out the verb or the sentence.

        any: any noun. seen: any noun of the sentence, the best that can be had without the verb. nearest: the noun
        nearest to the pronoun. verb: any noun that the verb fits, in the sentence or not.
        """
        return {
            "any": 1 / self._n_nouns,
            "seen": 1 / self.nouns,
            "nearest": 1 / self.nouns,
            "verb": 1 / self.words,
        }

    @property
    def _n_nouns(self) -> int:
        return self.kinds * self.words

    @property
    def _pronouns(self) -> tuple[str, ...]:
        return ("it", "its") if self.form == "both" else (self.form,)

    @property
    def _columns(self) -> tuple[int, ...]:
        return tuple(1 if pronoun == "it" else 2 for pronoun in self._pronouns)

    def _ids(self, *words: str) -> Tensor:
        vocabulary = self.vocabulary
        return torch.tensor([vocabulary.index(word) for word in words])

    def _verb(self, kinds: Tensor, forms: Tensor, which: Tensor) -> Tensor:
        return self._n_nouns + (forms * self.kinds + kinds) * self.verbs + which

    def _form_and_kind(self, verbs: Tensor) -> tuple[Tensor, Tensor]:
        form_and_kind = (verbs - self._n_nouns) // self.verbs
        return form_and_kind // self.kinds, form_and_kind % self.kinds

    def _is_verb(self, tokens: Tensor) -> Tensor:
        return (tokens >= self._n_nouns) & (tokens < self._n_nouns + len(self._pronouns) * self.kinds * self.verbs)

    def _sentences(self, nouns: Tensor, verbs: Tensor, forms: Tensor, generator: torch.Generator) -> Tensor:
        """Words in the order of the frame, moved right by the fillers before them: tokens [batch pos]."""
        n, before = len(nouns), 3 * self.nouns
        frame = torch.empty(n, before + 3, dtype=torch.long)
        frame[:, 0:before:3], frame[:, 1:before:3] = self._ids("the"), nouns
        frame[:, 2:before:3] = self._ids(*LINKS[: self.nouns - 1], "because")
        frame[:, before:] = torch.cat([self._ids(*self._pronouns)[forms], verbs, self._ids("?").expand(n, 1)], 1)
        # A filler stands before a noun, the pronoun, the verb or the question mark, named by their places in the frame.
        slots = torch.tensor([*range(1, before, 3), before, before + 1, before + 2])
        slot = slots[torch.randint(len(slots), (n, self.fillers), generator=generator)].sort(1).values
        had = torch.tensor([pronoun == "its" for pronoun in self._pronouns])[forms]
        adjective = (slot < before) | ((slot == before + 1) & had)
        which = torch.randint(len(ADJECTIVES), slot.shape, generator=generator)
        fillers = torch.where(adjective, self._ids(*ADJECTIVES)[which], self._ids(*ADVERBS)[which])
        shift = (slot[:, None, :] <= torch.arange(before + 3)[None, :, None]).sum(-1)
        tokens = torch.empty(n, self.length, dtype=torch.long)
        tokens.scatter_(1, torch.arange(before + 3) + shift, frame)
        return tokens.scatter_(1, slot + torch.arange(self.fillers), fillers)

    def _batch(self, tokens: Tensor) -> Batch:
        noun, verb = tokens < self._n_nouns, self._is_verb(tokens)
        _, meant = self._form_and_kind(tokens[verb])
        referent = noun & (tokens // self.words == meant[:, None])
        distractors = noun & ~referent
        last = torch.arange(self.length) == self.length - 1
        labels = torch.full_like(tokens, UNREAD)
        labels[:, -1] = tokens[referent]
        roles = {
            "last": last.expand_as(tokens),
            "it": torch.isin(tokens, self._ids(*self._pronouns)),
            "verb": verb,
            "referent": referent,
            "nearest": distractors & (distractors.flip(1).cumsum(1).flip(1) == 1),
            "distractors": distractors,
            "nouns": noun,
        }
        classes = torch.where(noun, NOUN, torch.where(verb, VERB, OTHER))
        return Batch(tokens, labels, roles=roles, classes=classes, vocabulary=self.vocabulary)

    def _check(self, batch: Batch) -> None:
        if batch.tokens.shape[1] != self.length or batch.vocabulary != self.vocabulary:
            raise ValueError(f"this batch is not of {self!r}: it has {batch.tokens.shape[1]} positions and the "
                             f"vocabulary {' '.join(batch.vocabulary) or '(none)'}")  # fmt: skip

    def _grammar(self) -> str:
        """A regular expression of the sentences, words apart by one space."""

        def one(words: tuple[str, ...]) -> str:
            return f"(?:{'|'.join(words)})"

        def several(words: tuple[str, ...]) -> str:
            return f"(?:{one(words)} )*"

        kinds, adjectives, adverbs = KINDS[: self.kinds], several(ADJECTIVES), several(ADVERBS)
        noun = f"the {adjectives}" + one(tuple(noun for kind in kinds for noun in kind[0][: self.words]))
        ends = [
            f"{pronoun} {adverbs if at == 1 else adjectives}" + one(tuple(w for kind in kinds for w in kind[at]))
            for pronoun, at in zip(self._pronouns, self._columns, strict=True)
        ]
        nouns = "".join(f"{noun} {link} " for link in (*LINKS[: self.nouns - 1], "because"))
        return rf"{nouns}{adverbs}{one(tuple(ends))} {adverbs}\?"

    def _shape(self) -> str:
        nouns = " ".join(f"the NOUN {link}" for link in (*LINKS[: self.nouns - 1], "because"))
        ends = " or ".join({"it": "it VERB", "its": "its THING"}[pronoun] for pronoun in self._pronouns)
        return f"'{nouns} {ends} ?' with {self.fillers} adjectives (before a noun) and adverbs (elsewhere) in it"
