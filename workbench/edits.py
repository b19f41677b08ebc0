"""Edits: one change of one site's tensor, ready to be made; and what is wrong when one cannot be, or undoes another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from workbench.hooks import Key
from workbench.sites import site, split


class MissingExamples(ValueError):
    """Some examples have no position or visible edge where an intervention asks for one."""


class InertIntervention(RuntimeError):
    """An intervention did not land: nothing selected, a site that did not fire, or an edit thrown away downstream."""


class EmptyRow(ValueError):
    """An intervention left a row with no visible source, and nobody said what becomes of it."""


@dataclass(frozen=True, eq=False)
class Edit:
    """One change of one site's tensor, ready to be made.

    selected: [batch dest source] or [batch pos], what is asked for; None for a custom function of the whole tensor.
    tensors: what `change` needs besides, each [batch pos ...]; they are narrowed to the examples and positions at hand.
    change: (target, selected, **tensors) → a new target, on [batch head dest source] or [batch pos (head) width].
    made: where its work is, of `selected`'s shape (None: there); erases: where it wipes out the work of edits before it
    (None: nowhere); lasting: no part of its work may be
    replaced by another value; restores: it puts values in place. alike: edits of one site with equal `alike` change
    their target by the same rule, so that several can be made at once (None: by a rule of its own).
    """

    label: str
    site: str
    layer: int | None
    head: int | None
    selected: Tensor | None
    change: Callable[..., Tensor]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    made: Tensor | None = None
    erases: Tensor | None = None
    lasting: bool = False
    restores: bool = False
    alike: Any = None

    @property
    def key(self) -> Key:
        return self.site, self.layer

    @property
    def said(self) -> Edit:
        """What is said of it, without its tensors."""
        return Edit(self.label, self.site, self.layer, self.head, None, torch.clone, alike=self.alike)

    @property
    def spread(self) -> bool:
        """Whether it is the same in every example, its masks being views of one row."""
        assert self.selected is not None
        return all(value.stride(0) == 0 for value in (self.selected, *self.tensors.values()))

    @property
    def rows(self) -> Tensor:
        """The rows or positions acted on, [batch pos]."""
        assert self.selected is not None
        return self.rows_of(len(self.selected))

    def rows_of(self, n: int) -> Tensor:
        """The rows or positions acted on in the first examples, [n pos]: those with something selected, and those that
        lose all else."""
        assert self.selected is not None
        selected = self.selected[:n].any(-1) if self.selected.ndim == 3 else self.selected[:n]
        return selected | self.tensors["rows"][:n] if "rows" in self.tensors else selected

    def narrowed(self, examples: slice, read: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """What is selected and needed in some examples, at the positions computed ([batch read], or None: at all)."""
        assert self.selected is not None
        everything = {"selected": self.selected, **self.tensors}
        out = {name: _at(value[examples], read) for name, value in everything.items()}
        return out.pop("selected"), out

    def on(self, tensor: Tensor, examples: slice, read: Tensor | None) -> Tensor:
        """The whole site's tensor with the change made, in the heads it names."""
        if self.selected is None:
            return self.change(tensor)
        selected, tensors = self.narrowed(examples, read)
        axis = site(self.site).head_axis
        if axis is None or self.head is None:
            return self.change(tensor, selected, **tensors)
        one = slice(self.head, self.head + 1)
        if "by_head" in tensors:
            tensors["by_head"] = tensors["by_head"][:, :, one]
        before = tensor[:, one] if axis == 1 else tensor[:, :, one]
        after = self.change(before, selected, **tensors)
        out = tensor.clone()
        out[(slice(None),) * axis + (one,)] = after
        return out


def rows_of_each(edits: Sequence[Edit], n: int) -> Tensor:
    """The rows or positions that each edit acts on in the first examples [edit n pos]."""
    if n > 1 or any(edit.selected is None or edit.selected.ndim < 3 or "rows" in edit.tensors for edit in edits):
        return torch.stack([edit.rows_of(n) for edit in edits])
    return torch.stack([edit.selected[:n] for edit in edits]).any(-1)  # type: ignore[index]


def _at(value: Tensor, read: Tensor | None) -> Tensor:
    if read is None:
        return value
    return value[torch.arange(len(value), device=value.device)[:, None], read]


STAGES = (("scores", "pattern"), ("z", "result"))
"""Sites of which the first alone decides the second, head by head."""


def undone(edits: Sequence[Edit], n_heads: Callable[[str], int]) -> str | None:
    """Why the list contradicts itself: an edit whose work another wipes out. None where it does not.

    Of edits of one layer's attention, those of scores come first whatever the order, and z before result. What
    was taken away, and a path, must not be replaced in any part; other work must not be wiped out in a whole example.
    n_heads: site → how many heads it counts.
    """
    for index, edit in enumerate(edits):
        for other in edits[:index]:
            first, last = (edit, other) if _staged(edit, other) else (other, edit)
            if _undoes(first, last, n_heads(first.site)):
                return f"{last.label!r} would undo {first.label!r}; leave one of them out"
    return None


def _staged(first: Edit, last: Edit) -> bool:
    (part, one), (other_part, other) = split(first.site), split(last.site)
    return part == other_part and (one, other) in STAGES


def _undoes(first: Edit, last: Edit, n_heads: int) -> bool:
    staged = _staged(first, last)
    if first.layer != last.layer or not (staged or first.site == last.site):
        return False
    made = first.selected if first.made is None else first.made
    if made is None or last.erases is None:
        return False
    heads = [0 if n_heads == 1 else edit.head for edit in (first, last)]
    if None not in heads and heads[0] != heads[1]:
        return False
    if first.lasting and last.restores:
        return bool((made & last.erases).any())
    if first.lasting and not first.restores:
        return False
    wiped = made.flatten(1).any(1) & ~(made & ~last.erases).flatten(1).any(1)
    return bool(wiped.any()) and (heads[1] is None or heads[0] == heads[1])
