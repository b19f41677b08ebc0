"""The translation task: a sentence in, its words in another order and with agreement out, between begin and end."""

from __future__ import annotations

import re
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tasks.sentences import (
    ADJECTIVE,
    ARTICLE,
    CONTROLLERS,
    END,
    MARK,
    NOUN,
    OBJECT,
    ORDERS,
    QUALITIES,
    SLOTS,
    SUBJECT,
    VERB,
    Sentences,
    Words,
    classes_of,
    packed,
)
from workbench.batch import UNREAD, Batch

PHRASES = {"always": ("A", "adjective "), "sometimes": ("A?", "[adjective] "), "never": ("", "")}
"""What stands between article and noun: as a pattern of classes, and as told to who writes a sentence."""


class Translate(BaseModel):
    """A sentence in English words, put into a made-up language one word at a time (an encoder and a decoder).

    The source is `the [adjective] noun verb the [adjective] noun`. The target has no articles; its adjectives follow
    their nouns and take their gender (o, a), the verb comes last and takes the subject's number (et, ent). The source
    shows no gender, and its verbs, in the past, no number: a target adjective or verb depends on two source words.
    Nouns have gender o and a by turns, plurals end in i.

    The decoder reads `<begin>` and the target (teacher forcing); labels are the next word, at last `<end>`. Its roles
    name the positions that PREDICT something, those of the context the words themselves.

        position          0     1      2      3      4      5
        token       <begin>  lumo   riko  kesai   mosa  pazet
        label          lumo  riko  kesai   mosa  pazet  <end>
        begin             *     .      .      .      .      .    holds `<begin>`
        words             *     *      *      *      *      .    predict a word
        nouns             *     .      *      .      .      .    predict a noun, and so on below
        subject           *     .      .      .      .      .
        object            .     .      *      .      .      .
        adjectives        .     *      .      *      .      .
        verb              .     .      .      .      *      .
        end               .     .      .      .      .      *
        last              .     .      .      .      .      *    the same as `end`
        carried           .    ←1      .     ←3     ←1      .    a relation: ← the noun, written already, agreed with
        aligned          ←2    ←1     ←6     ←5     ←3      .    an alignment: ← the source word translated
        agrees            .    ←2      .     ←6     ←2      .    an alignment: ← the source noun agreed with

        context
        position      0      1    2    3    4    5     6
        token       the  small  dog  saw  the  red  cats
        label         .      .    .    .    .    .     .
        articles      *      .    .    .    *    .     .
        nouns         .      .    *    .    .    .     *
        subject       .      .    *    .    .    .     .
        object        .      .    .    .    .    .     *
        adjectives    .      *    .    .    .    *     .
        verb          .      .    .    *    .    .     .

    Where `words` read this context the pattern is [5 7] (dest, source): the lecture's 7 × 5 scores, keys as rows there.

    adjectives: "always" (7 source words, 6 decoder positions), "never" (5 and 4), "sometimes" (each noun has one with
        probability 1/2; shorter examples are padded on the right, and in some the role `adjectives` is empty).
    order: "nouns first" as above, or "nouns last" (the verb, then each adjective before its noun): there the noun
        agreed with is not written yet, so the source alone can tell, and `carried` has no edges.

    Raises pydantic's ValidationError (a ValueError) for more words than the lists have.

    >>> Translate().translate("the small dog saw the cats")
    'lumo riko kesai pazet'
    >>> Translate(order="nouns last").translate("the small dog saw the cats")
    'pazet riko lumo kesai'
    >>> batch = Translate(adjectives="always").sample(4, seed=0)
    >>> batch.tokens.shape, batch.alignments["aligned"].shape
    (torch.Size([4, 6]), torch.Size([4, 6, 7]))
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = "translate"
    MEANING: ClassVar[int] = 1

    nouns: int = Field(12, ge=4, le=16)
    adjective_words: int = Field(8, ge=1, le=8)
    verbs: int = Field(8, ge=1, le=8)
    adjectives: Literal["always", "sometimes", "never"] = "sometimes"
    order: Literal["nouns first", "nouns last"] = "nouns first"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id: source words, target words, `<begin>`, `<end>`, `<pad>`."""
        return self._words.vocabulary

    @property
    def length(self) -> int:
        """Positions of the decoder: one a target word, and the one that predicts `<end>`."""
        return 4 if self.adjectives == "never" else 6

    @property
    def context_length(self) -> int:
        """Positions of the encoder."""
        return 5 if self.adjectives == "never" else 7

    def sample(self, n: int, seed: int) -> Batch:
        """`n` examples: subject and object are two nouns, all else is uniform and independent."""
        if n < 1:
            raise ValueError(f"asked for {n} examples; ask for 1 or more")
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(self.nouns, (n, 1), generator=generator)
        step = torch.randint(1, self.nouns, (n, 1), generator=generator)
        plural = torch.randint(2, (n, 2), generator=generator)
        adjectives = torch.randint(self.adjective_words, (n, 2), generator=generator)
        described = torch.randint(2, (n, 2), generator=generator) == 1
        if self.adjectives != "sometimes":
            described = torch.full((n, 2), self.adjectives == "always")
        verbs = torch.randint(self.verbs, (n,), generator=generator)
        return self._batch(Sentences(torch.cat([first, (first + step) % self.nouns], 1), plural, adjectives,
                                      described, verbs))  # fmt: skip

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """The same sentences about another subject: a noun of the other gender, in the other number, uniform over those
        that are not the object. One source word differs; in the target the subject, its adjective and the verb do.
        Padding, roles and alignments stay."""
        self._check(batch)
        said = self._words.parsed(batch.context.tokens)  # type: ignore[union-attr]
        generator = torch.Generator().manual_seed(seed)
        every = torch.arange(self.nouns)
        fit = (every % 2 != said.nouns[:, :1] % 2) & (every != said.nouns[:, 1:])
        subject = torch.rand(fit.shape, generator=generator).masked_fill(~fit, -1).argmax(1, keepdim=True)
        nouns = torch.cat([subject, said.nouns[:, 1:]], 1)
        plural = torch.cat([1 - said.plural[:, :1], said.plural[:, 1:]], 1)
        return self._batch(said._replace(nouns=nouns, plural=plural))

    def encode(self, text: str) -> Batch:
        """One example from its source sentence, with the right target, as `the small dog saw the cats`.

        Raises ValueError saying what is wrong with the sentence.
        """
        words, known = text.split(), self.vocabulary[: self._words.first["target nouns"]]
        if unknown := [word for word in words if word not in known]:
            raise ValueError(f"{unknown[0]!r} is no source word of this task; there are: {' '.join(known)}")
        tokens = torch.full((1, self.context_length), self._words.mark("<pad>"))
        one, shown = PHRASES[self.adjectives]
        ids = torch.tensor([known.index(word) for word in words], dtype=torch.long)
        spelt = "".join("TNAV"[kind] for kind in self._words.kinds[ids].tolist())
        if not re.fullmatch(f"T{one}NVT{one}N", spelt):
            raise ValueError(f"{text!r} is no sentence of this task: the {shown}noun verb the {shown}noun")
        tokens[0, : len(words)] = ids
        said = self._words.parsed(tokens)
        if said.nouns[0, 0] == said.nouns[0, 1]:
            raise ValueError(f"{text!r} has one noun twice; subject and object must be two nouns")
        return self._batch(said)

    def translate(self, text: str) -> str:
        """The target of a source sentence, without `<begin>` and `<end>`. Raises as `encode`."""
        return self.said(self.encode(text).labels)[0]

    def prompts(self, batch: Batch) -> Batch:
        """What a translator starts from: the same contexts, and `<begin>` alone, tokens [batch 1]. Nothing is read."""
        self._check(batch)
        tokens = batch.tokens[:, :1]
        return Batch(
            tokens,
            torch.full_like(tokens, UNREAD),
            roles={"begin": torch.ones_like(tokens, dtype=torch.bool)},
            classes=torch.full_like(tokens, MARK),
            vocabulary=self.vocabulary,
            context=batch.context,
        )

    def said(self, tokens: Tensor) -> list[str]:
        """tokens [batch pos] → each row's words up to `<end>`, without marks and padding."""
        words = self.vocabulary[: self._words.mark("<begin>")]
        spoken = [[words[token] for token in row if 0 <= token < len(words)] for row in self._up_to_end(tokens)]
        return [" ".join(row) for row in spoken]

    def right(self, tokens: Tensor, batch: Batch) -> Tensor:
        """tokens [batch pos] as generated, with or without `<begin>` → True [batch] where a row is the example's target
        word for word and ends there. What follows `<end>` does not count; a row without `<end>` is wrong.

        Raises ValueError where the batch has no target for a row: prompts have none.
        """
        self._check(batch)
        asked, end = self._up_to_end(batch.labels), self._words.mark("<end>")
        if len(tokens) != len(asked) or any(end not in row for row in asked):
            raise ValueError(
                f"{len(tokens)} generated rows need {len(tokens)} targets to be compared with; give the batch that the "
                f"prompts were made of, not {batch!r}"
            )
        same = [mine == other for mine, other in zip(self._up_to_end(tokens), asked, strict=True)]
        return torch.tensor(same, device=tokens.device)

    def guessing(self) -> dict[str, float]:
        """Exact accuracy (mean over an example's read positions) of translators that leave something out.

        class: any word of the right class; `<end>` in its place. target alone: the best that can be said from the
        target's earlier words without the source, by enumeration of all sentences. source order: every word right, in
        the source's order. no agreement: all right but gender of adjectives and number of verbs, which are guessed.
        """
        chance = {NOUN: 1 / (2 * self.nouns), ADJECTIVE: 1 / (2 * self.adjective_words), VERB: 1 / (2 * self.verbs)}
        order, rates = ORDERS[self.order][:-1], {"class": 0.0, "source order": 0.0, "no agreement": 0.0}
        patterns = self._patterns()
        for absent in patterns:
            target = [slot for slot in order if slot not in absent]
            source = [slot for slot in sorted(order) if slot not in absent]
            share = 1 / (len(patterns) * (len(target) + 1))
            rates["class"] += share * (1 + sum(chance[SLOTS[slot]] for slot in target))
            rates["source order"] += share * (1 + sum(mine == its for mine, its in zip(source, target, strict=True)))
            rates["no agreement"] += share * (1 + sum(0.5 if slot in CONTROLLERS else 1 for slot in target))
        return {**rates, "target alone": self._target_alone()}

    def _patterns(self) -> list[set[int]]:
        """Which slots may be absent together; all equally probable."""
        first, second = QUALITIES
        either: list[set[int]] = [set(), {first}, {second}, {first, second}]
        return {"always": either[:1], "sometimes": either, "never": either[3:]}[self.adjectives]

    def _target_alone(self) -> float:
        """Over all sentences: at each prefix, the most that one next word can be worth."""
        said, weight = self._words.every()
        if self.adjectives != "sometimes":
            kept = (said.described == (self.adjectives == "always")).all(1)
            said, weight = Sentences(*(column[kept] for column in said)), weight[kept]
        labels, _, read = self._labels(said)
        worth = weight / weight.sum() / read.sum(1)
        prefix, total = torch.zeros(len(labels), dtype=torch.long), 0.0
        for column in range(self.length):
            pairs = prefix * len(self.vocabulary) + labels[:, column].clamp_min(0)
            found, index = pairs.unique(return_inverse=True)
            value = torch.zeros(len(found), dtype=torch.float64).index_add_(0, index, worth * read[:, column])
            begun, of = (found // len(self.vocabulary)).unique(return_inverse=True)
            best = torch.zeros(len(begun), dtype=torch.float64).scatter_reduce_(0, of, value, "amax")
            prefix, total = index, total + float(best.sum())
        return total

    def _labels(self, said: Sentences) -> tuple[Tensor, Tensor, Tensor]:
        """The words to predict, their slots, and where there is one: three of [batch pos]."""
        slots, written = packed(ORDERS[self.order], said.absent, self.length)
        return self._words.target(said).gather(1, slots).masked_fill(~written, UNREAD), slots, written

    def _batch(self, said: Sentences) -> Batch:
        labels, slots, written = self._labels(said)
        read, valid = packed(tuple(range(len(SLOTS))), said.absent, self.context_length)
        tokens = torch.full_like(labels, self._words.mark("<begin>"))
        tokens[:, 1:] = labels[:, :-1].where(written[:, 1:], self._words.mark("<pad>"))
        # The slot whose word stands at a position, where the position before it predicted one.
        held = torch.full_like(slots, -1)
        held[:, 1:] = slots[:, :-1].where(written[:, 1:], -1)
        wanted = torch.tensor([CONTROLLERS.get(slot, -2) for slot in range(END + 1)])[slots]
        edges = written[:, :, None] & valid[:, None, :]
        return Batch(
            tokens,
            labels,
            written,
            roles=_predicting(slots, written),
            relations={"carried": ((wanted[:, :, None] == held[:, None, :]) & written[:, :, None]).tril()},
            classes=classes_of(held),
            vocabulary=self.vocabulary,
            context=self._context(self._words.source(said).gather(1, read), read, valid),
            alignments={
                "aligned": (slots[:, :, None] == read[:, None, :]) & edges,
                "agrees": (wanted[:, :, None] == read[:, None, :]) & edges,
            },
        )

    def _context(self, tokens: Tensor, slots: Tensor, valid: Tensor) -> Batch:
        kinds = classes_of(slots).where(valid, MARK)
        return Batch(
            tokens.where(valid, self._words.mark("<pad>")),
            torch.full_like(tokens, UNREAD),
            valid,
            roles={
                "articles": kinds == ARTICLE,
                "nouns": kinds == NOUN,
                "subject": (slots == SUBJECT) & valid,
                "object": (slots == OBJECT) & valid,
                "adjectives": kinds == ADJECTIVE,
                "verb": kinds == VERB,
            },
            classes=kinds,
            vocabulary=self.vocabulary,
        )

    @cached_property
    def _words(self) -> Words:
        return Words(self.nouns, self.adjective_words, self.verbs)

    def _up_to_end(self, tokens: Tensor) -> list[list[int]]:
        """Rows without a first `<begin>`, and without what follows their first `<end>`."""
        begin, end = self._words.mark("<begin>"), self._words.mark("<end>")
        rows = [row[row[:1] == [begin] :] for row in tokens.tolist()]
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    def _check(self, batch: Batch) -> None:
        context = batch.context
        if (batch.vocabulary != self.vocabulary or batch.tokens.shape[1] != self.length or context is None
                or context.tokens.shape[1] != self.context_length):  # fmt: skip
            raise ValueError(
                f"this batch is not of {self!r}: it has {batch.tokens.shape[1]} positions, "
                f"{'no context' if context is None else f'a context of {context.tokens.shape[1]}'} and the vocabulary "
                f"{' '.join(batch.vocabulary) or '(none)'}"
            )


def _predicting(slots: Tensor, written: Tensor) -> dict[str, Tensor]:
    """Roles of the decoder: the positions that predict these slots [batch pos]."""
    kinds, end = classes_of(slots), (slots == END) & written
    roles = {
        "begin": torch.arange(slots.shape[1]).expand_as(slots) == 0,
        "words": slots != END,
        "nouns": kinds == NOUN,
        "subject": slots == SUBJECT,
        "object": slots == OBJECT,
        "adjectives": kinds == ADJECTIVE,
        "verb": kinds == VERB,
        "end": end,
        "last": end,
    }
    return {name: mask & written for name, mask in roles.items()}
