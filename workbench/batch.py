"""Batch: what a model is given, what it should say, and which positions have which part in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.drawing import draw
from workbench.fitness import check
from workbench.nearest import nearest

UNREAD = -100
"""The label of a position at which nothing is read (the index that torch's losses ignore)."""


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Examples with everything that an intervention or a metric may refer to. Frozen; checked when made.

    Shapes:
        tokens [batch pos]: token ids (integers)
        labels [batch pos]: what the logits at that position should say (no shift), `UNREAD` where nothing is read
        valid [batch pos]: False at padding
        roles: name -> [batch pos], a data-dependent set of positions
        relations: name -> [batch dest source], a data-dependent set of edges
        classes [batch pos]: an integer per token class (letter, digit, ...), by which controls are matched
        context: of a two-sequence model, the batch that its encoder reads; `tokens` are then the decoder's
        alignments: name -> [batch pos context_pos], edges from this sequence to the context's (cross-attention)
        inputs: name -> [batch ...], handed as they are to a foreign model (pixel_values, input_features, ...)

    Raises ValueError where shapes or types disagree, a role or relation includes padding, or a name is used twice.

    >>> batch = Batch(torch.tensor([[4, 7, 4]]), torch.tensor([[-100, -100, 7]]),
    ...               roles={"last": torch.tensor([[False, False, True]])}, vocabulary=tuple("abcdefgh"))
    >>> print(batch.show(0))
    position  0  1  2
    token     e  h  e
    label     .  .  h
    last      .  .  *
    """

    tokens: Tensor
    labels: Tensor
    valid: Tensor = None  # type: ignore[assignment]
    roles: Mapping[str, Tensor] = field(default_factory=dict)
    relations: Mapping[str, Tensor] = field(default_factory=dict)
    classes: Tensor | None = None
    vocabulary: tuple[str, ...] = ()
    context: Batch | None = None
    alignments: Mapping[str, Tensor] = field(default_factory=dict)
    inputs: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tokens", "labels"):
            if not isinstance(getattr(self, name), Tensor):
                raise TypeError(f"{name} are a {type(getattr(self, name)).__name__}; make them a tensor [batch pos]")
        if self.valid is None:
            object.__setattr__(self, "valid", torch.ones_like(self.tokens, dtype=torch.bool))
        for name in ("roles", "relations", "alignments", "inputs"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        check(self, UNREAD)

    @classmethod
    def from_texts(
        cls,
        tokenizer: Any,
        texts: Iterable[str],
        roles: Mapping[str, Any] | None = None,
        *,
        labels: Literal["next"] | Mapping[str, Any] | None = None,
        padding: Literal["left", "right"] = "right",
        add_special_tokens: bool = True,
    ) -> Batch:
        """Texts as a batch, with roles by substring, regular expression, characters or tokens: see
        `workbench.texts.from_texts`."""
        from workbench.texts import from_texts

        return from_texts(
            tokenizer, texts, roles, labels=labels, padding=padding, add_special_tokens=add_special_tokens
        )

    def __reduce__(self) -> tuple[type[Batch], tuple[object, ...]]:
        masks = dict(self.roles), dict(self.relations)
        more = self.classes, self.vocabulary, self.context, dict(self.alignments), dict(self.inputs)
        return Batch, (self.tokens, self.labels, self.valid, *masks, *more)

    def __repr__(self) -> str:
        n, length = self.tokens.shape
        also = "" if self.context is None else f"; context {self.context!r}"
        return (
            f"Batch({n} examples of {length} positions; roles {sorted(self.roles)}; relations {sorted(self.relations)}"
            f"{also})"
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def role(self, name: str | None) -> Tensor:
        """The mask [batch pos] of a role; `None` is every valid position. Raises KeyError naming the roles there
        are."""
        if name is None:
            return self.valid
        if name not in self.roles:
            also = " (it is a relation, which names edges, not positions)" if name in self.relations else ""
            raise KeyError(f"no role {name!r}{also}. {nearest(name, sorted(self.roles))}")
        return self.roles[name]

    def sides(self, part: str = "") -> tuple[Batch, Batch]:
        """Whose positions are destinations and whose are sources in a part of a model ("", "encoder", "decoder",
        "cross"). Raises ValueError where the part reads a context and there is none."""
        if part not in ("encoder", "cross"):
            return self, self
        if self.context is None:
            raise ValueError(f"the {part} part of a model reads a context, and this batch has none: Batch(context=...)")
        return (self.context if part == "encoder" else self), self.context

    def edges(self, dest: str | None, source: str | None, part: str = "") -> Tensor:
        """The mask [batch dest source] of the edges that `dest` and `source` name.

        `source` is a role (dest × source, an outer product), or a relation (its edges, restricted to `dest` where
        given). part: in which part of a two-sequence model; in "cross" sources are the context's, and an alignment
        takes the place of a relation.
        """
        readers, sources = self.sides(part)
        related = self.alignments if part == "cross" else readers.relations
        rows = readers.role(dest)[:, :, None]
        if source is not None and source in related:
            return related[source] & rows
        if source is not None and source not in sources.roles:
            known = sorted([*sources.roles, *related])
            if source in self.alignments:
                raise KeyError(f"{source!r} is an alignment: edges to the context, which kind='cross' names")
            raise KeyError(f"no role or relation {source!r}. {nearest(source, known)}")
        return rows & sources.role(source)[:, None, :]

    def read_positions(self) -> Tensor:
        """The positions read, as an index [batch read]; a row with fewer than the longest repeats its first.

        Where some example is read at every position the index is simply all positions, in order.
        """
        read = self.labels != UNREAD
        n_read = int(read.sum(1).max()) if len(self) else 0
        if n_read == 0:
            raise ValueError("nothing is read in this batch: every label is -100")
        if n_read == read.shape[1]:
            return torch.arange(n_read, device=self.device).expand(len(self), -1)
        order = torch.argsort(~read, dim=1, stable=True)[:, :n_read]
        return torch.where(read.gather(1, order), order, order[:, :1])

    def select(self, examples: Tensor | slice) -> Batch:
        """The same batch with only these examples (an index, a boolean mask [batch] or a slice)."""
        return self._mapped(lambda value: value[examples])

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self._mapped(lambda value: value.to(device))

    def with_relations(self, **relations: Tensor) -> Batch:
        """The same batch with more relations [batch dest source]."""
        return replace(self, relations={**self.relations, **relations})

    def with_inputs(self, **inputs: Tensor) -> Batch:
        """The same batch with more inputs, or others under the same names [batch ...]."""
        return replace(self, inputs={**self.inputs, **inputs})

    def with_context(self, context: Batch, **alignments: Tensor) -> Batch:
        """The same batch with the batch that an encoder reads, and edges to it [batch pos context_pos]."""
        return replace(self, context=context, alignments={**self.alignments, **alignments})

    def with_classes(self, classes: Tensor) -> Batch:
        """The same batch with a class for each token [batch pos], by which controls are matched."""
        return replace(self, classes=classes)

    def with_roles(self, **roles: Tensor) -> Batch:
        """The same batch with more roles [batch pos]."""
        return replace(self, roles={**self.roles, **roles})

    def _mapped(self, change) -> Batch:  # type: ignore[no-untyped-def]
        return replace(
            self,
            tokens=change(self.tokens),
            labels=change(self.labels),
            valid=change(self.valid),
            roles={name: change(mask) for name, mask in self.roles.items()},
            relations={name: change(mask) for name, mask in self.relations.items()},
            classes=None if self.classes is None else change(self.classes),
            context=None if self.context is None else self.context._mapped(change),
            alignments={name: change(mask) for name, mask in self.alignments.items()},
            inputs={name: change(value) for name, value in self.inputs.items()},
        )

    def digest(self) -> str:
        """SHA-256 of everything in the batch, the names of roles and relations with their masks."""
        parts = {"tokens": self.tokens, "labels": self.labels, "valid": self.valid}
        parts |= {f"role {name}": mask for name, mask in self.roles.items()}
        parts |= {f"relation {name}": mask for name, mask in self.relations.items()}
        parts |= {f"alignment {name}": mask for name, mask in self.alignments.items()}
        parts |= {f"input {name}": value for name, value in self.inputs.items()}
        if self.classes is not None:
            parts["classes"] = self.classes
        digest = hashlib.sha256(repr(self.vocabulary).encode())
        for name in sorted(parts):
            value = parts[name].cpu().contiguous()
            digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
            digest.update(value.numpy().tobytes())
        if self.context is not None:
            digest.update(f"context {self.context.digest()}".encode())
        return digest.hexdigest()

    def word(self, token: int) -> str:
        """The token as text: its word where the batch has a vocabulary, its number elsewhere."""
        return self.vocabulary[token] if 0 <= token < len(self.vocabulary) else str(token)

    def words(self, example: int) -> list[str]:
        """The example's tokens as text, one a position."""
        return [self.word(int(token)) for token in self.tokens[example]]

    def show(self, example: int) -> str:
        """One example drawn as text: its tokens, what is read where, a row a role, and its context."""
        return draw(self, example, UNREAD)
