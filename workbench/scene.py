"""What several lists of interventions share: a model, the examples that run, and what each row sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.anatomy import Sight, counted
from workbench.arguments import check_arguments, check_tokens, say_missing
from workbench.batch import UNREAD, Batch
from workbench.donors import Donors, Positions
from workbench.edits import Edit, MissingExamples
from workbench.interventions import Intervention, donor_names
from workbench.locations import Edges
from workbench.named_edges import name_edges
from workbench.operations import Cut, KeepOnly, Scale, Uniform, Zero
from workbench.preparation import check_places, resolve
from workbench.prepared import Prepared
from workbench.resolution import hidden_edges, missing, unreached
from workbench.sites import in_part

OnMissing = Literal["raise", "skip"]
Say = Callable[[str], str]

_SAME_FOR_ALL = (Cut, KeepOnly, Uniform, Scale, Zero)
"""Operations that need nothing of an example but where to act."""


@dataclass(eq=False)
class Scene:
    """A model, and the examples of a batch that run.

    kept [batch]: their indices in the batch handed in, of `n` examples; skipped: the others, example → reason.
    """

    model: Any
    batch: Batch
    kept: Tensor
    n: int
    skipped: Mapping[int, str]
    donors: Donors
    sight: Sight
    _read: Tensor | None = None
    _alone: Scene | None = None
    _same: dict[Any, bool] = field(default_factory=dict)

    def prepare(self, lists: Mapping[str, Sequence[Intervention]], say: Say) -> dict[str, Prepared]:
        """The edits of each list, by label. Raises as `run` does.

        What means the same in all examples is worked out on one; masks are then views of it, one row for all.
        """
        once = self._once(lists)
        found = self._prepared({label: several for label, several in lists.items() if label not in once}, 1, say)
        found |= self.first._prepared(once, len(self.batch), say) if once else {}
        return {label: found[label] for label in lists}

    def missing(self, lists: Mapping[str, Sequence[Intervention]], say: Say) -> dict[str, dict[int, str]]:
        """For each list the examples in which some intervention has nothing to act on: example → reason."""
        once, every = self._once(lists), range(len(self.batch))
        found = {
            label: dict.fromkeys(every, lost[0]) if lost else {}
            for label, lost in (self.first._missing(once, say) if once else {}).items()
        }
        found |= self._missing({label: several for label, several in lists.items() if label not in once}, say)
        return {label: found[label] for label in lists}

    def _missing(self, lists: Mapping[str, Sequence[Intervention]], say: Say) -> dict[str, dict[int, str]]:
        out = {}
        for label, several in lists.items():
            with saying(say(label)):
                out[label] = missing(several, self.batch, self.sight)
        return out

    def _prepared(self, lists: Mapping[str, Sequence[Intervention]], times: int, say: Say) -> dict[str, Prepared]:
        batch, sight, out = self.batch, self.sight, {}
        for label, several in lists.items():
            with saying(say(label)):
                out[label] = resolve(self.model, batch, several, sight, self.donors)
        lost = iter(unreached([edit for edits in out.values() for edit in edits], batch, sight, self.model))
        return {
            label: Prepared(
                times * len(batch),
                edits if times == 1 else [_for_all(edit, times) for edit in edits],
                [times * next(lost) for _ in edits],
                [(times * few, times * asked) for few, asked in hidden_edges(lists[label], batch, sight)],
            )
            for label, edits in out.items()
        }

    def _once(self, lists: Mapping[str, Sequence[Intervention]]) -> dict[str, Sequence[Intervention]]:
        """The lists that mean the same in all examples; the edges that they name in the first are found all at once."""
        once = {label: several for label, several in lists.items() if self._same_for_all(several)}
        named = [one.where for several in once.values() for one in several if isinstance(one.where, Edges)]
        if named:
            name_edges(named, self.first.batch, self.first.sight)
        return once

    @cached_property
    def alike(self) -> bool:
        """Whether all examples are padded, read and seen alike."""
        sides = {id(side): side for part in self.model.parts for side in self.batch.sides(part)}
        masks: list[tuple[Any, Tensor]] = [(("valid", name), side.valid) for name, side in sides.items()]
        masks.append(("read", self.batch.labels != UNREAD))
        return all(self._constant(*one) for one in masks) and all(self._seen_alike(part) for part in self.model.parts)

    def read(self) -> Tensor:
        """The positions that are read [batch read], as many in each example as in the one with the most."""
        if self._read is None:
            self._read = self.batch.read_positions()
        return self._read

    def part(self, examples: slice, positions: Positions) -> Scene:
        """Some of its examples; what is read keeps the shape that it has in the whole."""
        batch, kept = self.batch.select(examples), self.kept[examples]
        read = self.read()[examples] if positions == "read" else None
        donors = replace(self.donors, batch=batch, kept=kept, read=read, _values={})
        return Scene(self.model, batch, kept, self.n, self.skipped, donors, Sight(self.model, batch), read)

    @property
    def first(self) -> Scene:
        """Its first example alone."""
        if self._alone is None:
            batch = self.batch.select(slice(0, 1))
            donors = replace(self.donors, batch=batch, kept=self.kept[:1], _values={})
            self._alone = Scene(self.model, batch, self.kept[:1], 1, {}, donors, Sight(self.model, batch))
        return self._alone

    def _same_for_all(self, interventions: Sequence[Intervention]) -> bool:
        return (
            len(self.batch) > 1
            and self.model.by_position
            and self.alike
            and all(isinstance(one.what, _SAME_FOR_ALL) and self._uniform(one) for one in interventions)
        )

    def _uniform(self, one: Intervention) -> bool:
        """Whether a location means the same positions or edges in every example."""
        where = one.where
        assert where is not None
        readers, sources = self.batch.sides(where.in_model)
        if isinstance(where, Edges):
            named = [(readers, where.dest), (sources, where.source)]
        else:
            named = [(counted(self.batch, in_part(where.in_model, where.part)), where.pos)]
        for side, role in named:
            if role is not None and (role not in side.roles or not self._constant((id(side), role), side.roles[role])):
                return False
        return True

    def _seen_alike(self, part: str) -> bool:
        layers = range(self.model.parts[part].n_layers)
        return all(self._constant(("sight", part, layer), self.sight(part, layer)) for layer in layers)

    def _constant(self, name: Any, mask: Tensor) -> bool:
        if name not in self._same:
            self._same[name] = mask.stride(0) == 0 or torch.equal(mask, mask[:1].expand_as(mask))
        return self._same[name]


def _for_all(edit: Edit, n: int) -> Edit:
    def spread(mask: Tensor | None) -> Tensor | None:
        return None if mask is None else mask.expand(n, *mask.shape[1:])

    tensors = {name: value.expand(n, *value.shape[1:]) for name, value in edit.tensors.items()}
    masks = [spread(mask) for mask in (edit.selected, edit.made, edit.erases)]
    return replace(edit, selected=masks[0], made=masks[1], erases=masks[2], tensors=tensors)


def absent(model: Any, batch: Batch, interventions: Sequence[Intervention]) -> dict[int, str]:
    """Examples in which some intervention has nothing to act on: example → reason."""
    check_places(model, interventions)
    batch = batch.to(device_of(model))
    check_tokens(model, batch, "")
    return missing(interventions, batch, Sight(model, batch))


def scene_of(
    model: Any,
    batch: Batch,
    lists: Mapping[str, Sequence[Intervention]],
    *,
    donors: Mapping[str, Batch] | None,
    positions: Positions,
    on_missing: OnMissing,
    left_out: Mapping[int, str] | None,
    chunk_size: int,
    say: Say,
) -> Scene:
    """The examples in which every list of interventions, by label, has something to act on.

    Raises MissingExamples where some example lacks it and nobody said to skip it, or where none is left, and what
    `check_arguments` and `check_places` raise.
    """
    check_arguments(model, batch, positions, on_missing)
    if donors is not None and not isinstance(donors, Mapping):
        raise TypeError("donors come by name, as donors={'other': batch}, also when there is one")
    batch = batch.to(device_of(model))
    named = {name: donor.to(batch.device) for name, donor in (donors or {}).items()}
    for name, donor in named.items():
        check_tokens(model, donor, f" of donor {name!r}")
    whole, skipped = _scene(model, batch, len(batch), None, {}, named, positions, chunk_size), dict(left_out or {})
    for label, interventions in lists.items():
        with saying(say(label)):
            check_places(model, interventions)
    for label, lost in whole.missing(lists, say).items():
        missed = {one: why for one, why in lost.items() if one not in (left_out or {})}
        if missed and on_missing == "raise":
            with saying(say(label)):
                raise MissingExamples(say_missing(missed, len(batch)))
        skipped |= {one: why for one, why in missed.items() if one not in skipped}
    if not skipped:
        return whole
    kept = torch.tensor([i for i in range(len(batch)) if i not in skipped], dtype=torch.long, device=batch.device)
    if not len(kept):
        raise MissingExamples(f"no example is left: {say_missing(skipped, len(batch))}")
    return _scene(model, batch.select(kept), len(batch), kept, skipped, named, positions, chunk_size)


def _scene(
    model: Any,
    batch: Batch,
    n: int,
    kept: Tensor | None,
    skipped: dict[int, str],
    named: Mapping[str, Batch],
    positions: Positions,
    chunk_size: int,
) -> Scene:
    kept = torch.arange(n, device=batch.device) if kept is None else kept
    donors = Donors(model, batch, kept, n, named, positions, chunk_size)
    return Scene(model, batch, kept, n, skipped, donors, Sight(model, batch))


def check_used(named: Mapping[str, Batch] | None, lists: Iterable[Sequence[Intervention]]) -> None:
    """Raises TypeError for a donor that no list of interventions names."""
    used = set().union(*map(donor_names, lists))
    if unused := sorted(set(named or {}) - used):
        raise TypeError(f"donors: no intervention names {unused[0]!r}; leave it out, or name it in one")


@contextmanager
def saying(where: str) -> Iterator[None]:
    """Puts words before those of an error: in which condition it came up."""
    try:
        yield
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        if not where:
            raise
        raise type(error)(f"{where}: {error.args[0] if error.args else error}") from error


def device_of(model: Any) -> torch.device:
    return next(model.parameters()).device
