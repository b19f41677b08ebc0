"""`translate` read at one word of the target, with the source words that cuts of it are about and their controls."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from tasks.translate import Translate
from workbench.batch import UNREAD, Batch
from workbench.task import derive_seed

DRAWS, MORE = 8, 100
"""Sentences drawn for each that is kept, and so many more: one in four has two adjectives."""


class Asked(BaseModel):
    """Sentences of `translate` in which one target word is asked for, and nothing else is read.

    A noun or an adjective asked for is the subject's or the object's, by turns of a coin; the verb is the only one.
    Roles of the decoder: `asked`, the position that predicts the word; `spoken` and `unspoken`, where the translations
    of `agreed` and of `other` stand, if they stand no later than that; `after_spoken` and `after_unspoken`, from there
    to `asked`. Roles of the context:

        translated       the source word that the word translates
        rival            its control: the other phrase's word of the same class; for the verb, which is alone in its
                         class, the object
        agreed           the noun that the word agrees with: of its own phrase; for the verb the subject
        other            its control, the other noun
        but_agreed       every word but that noun; but_other, every word but the other

    Nouns agree with nothing: there `agreed` and `other` are the noun itself and the other noun. Where a control needs
    them, sentences have two adjectives: if an adjective is asked for, or a verb after nouns.

    >>> Asked(word="verb").sample(3, seed=0).roles["asked"].sum().item()
    3
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = "translate, one word asked"
    MEANING: ClassVar[int] = 1

    word: Literal["noun", "adjective", "verb"]
    order: Literal["nouns first", "nouns last"] = "nouns first"

    @property
    def base(self) -> Translate:
        """The task that the models were trained on."""
        return Translate(order=self.order)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id."""
        return self.base.vocabulary

    @property
    def length(self) -> int:
        """Positions of the decoder."""
        return self.base.length

    @property
    def context_length(self) -> int:
        """Positions of the encoder."""
        return self.base.context_length

    def sample(self, n: int, seed: int) -> Batch:
        """`n` sentences, each with a word asked for.

        Raises ValueError where too few of those drawn have two adjectives (one in four has).
        """
        both = self.word == "adjective" or (self.word == "verb" and self.order == "nouns first")
        drawn = self.base.sample(DRAWS * n + MORE if both else n, seed)
        if both:
            fit = (drawn.context.roles["adjectives"].sum(1) == 2).nonzero()[:n, 0]  # type: ignore[union-attr]
            if len(fit) < n:
                raise ValueError(f"{len(fit)} of {len(drawn)} sentences have two adjectives, and {n} were asked for")
            drawn = drawn.select(fit)
        generator = torch.Generator().manual_seed(derive_seed("asked", seed))
        object_asked = torch.rand(len(drawn), generator=generator) < 0.5
        return self._asked(drawn, object_asked & torch.tensor(self.word != "verb"))

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """None is offered: raises NotImplementedError, since no analysis patches these sentences."""
        raise NotImplementedError("sentences with a word asked for have no counterfactual; take those of `translate`")

    def guessing(self) -> dict[str, float]:
        """The rate of a translator that does not know what the word agrees with; a noun agrees with nothing."""
        return {"no agreement": 1.0 if self.word == "noun" else 0.5}

    def _asked(self, drawn: Batch, object_asked: Tensor) -> Batch:
        source = drawn.context
        assert source is not None
        nouns = source.roles["subject"], source.roles["object"]
        own, other = _either(object_asked, *nouns), _either(~object_asked, *nouns)
        asked = self._position(drawn, object_asked)
        translated = (drawn.alignments["aligned"] & asked[:, :, None]).any(1)
        rival = source.roles["adjectives"] & ~translated if self.word == "adjective" else other
        roles = {
            "translated": translated,
            "rival": rival,
            "agreed": own,
            "other": other,
            "but_agreed": source.valid & ~own,
            "but_other": source.valid & ~other,
        }
        context = source.with_roles(**roles)
        before = asked.flip(1).cumsum(1).flip(1).bool()  # up to the position itself, which reads a word too
        labels = drawn.labels.masked_fill(~asked, UNREAD)
        spoken = {name: self._written(drawn, mask) & before for name, mask in (("spoken", own), ("unspoken", other))}
        later = {f"after_{name}": (mask.cumsum(1) == 1) & ~mask & before for name, mask in spoken.items()}
        return replace(drawn, labels=labels, context=context).with_roles(asked=asked, **spoken, **later)

    def _position(self, drawn: Batch, object_asked: Tensor) -> Tensor:
        """Where the word asked for is predicted [batch pos]."""
        if self.word == "verb":
            return drawn.roles["verb"]
        if self.word == "noun":
            return _either(object_asked, drawn.roles["subject"], drawn.roles["object"])
        places = drawn.roles["adjectives"]
        first = places & (places.cumsum(1) == 1)
        return _either(object_asked, first, places & ~first)

    def _written(self, drawn: Batch, noun: Tensor) -> Tensor:
        """Where the translation of a source noun [batch source] stands in the target [batch pos]."""
        predicted = (drawn.alignments["aligned"] & noun[:, None, :]).any(2)
        return torch.cat([torch.zeros_like(predicted[:, :1]), predicted[:, :-1]], 1)


def _either(second: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Row by row the one mask, or the other where `second`."""
    return torch.where(second[:, None], other, one)
