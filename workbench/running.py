"""run() and record(): interventions → hooks → logits, with proof that each edit landed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.anatomy import Sight, layers_of
from workbench.arguments import check_arguments, check_finite, check_model, check_tokens, say_missing
from workbench.batch import Batch
from workbench.donors import Donors, Positions
from workbench.edits import Edit, EmptyRow, InertIntervention, MissingExamples
from workbench.hooks import Key, alone, hook_point
from workbench.interventions import Intervention, donor_names
from workbench.metrics import METRICS
from workbench.nearest import nearest
from workbench.passes import Moment, execute
from workbench.preparation import check_places, resolve
from workbench.resolution import hidden_edges, missing, reaches
from workbench.sites import CROSS, in_part, site, split

MEANING = 1
"""Raised by hand where the same interventions come to mean other logits."""

__all__ = ["EmptyRow", "InertIntervention", "MissingExamples", "Recording", "Run", "absent", "record", "run"]

OnMissing = Literal["raise", "skip"]

FEW = 16
"""Examples in which a difference is looked for first."""


@dataclass(frozen=True, repr=False)
class Run:
    """The outcome of `run`.

    logits [batch pos d_vocab], or [batch read d_vocab] with positions="read"; batch: the examples that ran, in order;
    kept [batch]: their indices in the batch handed in; skipped: example → reason; notes: what a reader must know of
    edits that landed and could not matter.
    """

    logits: Tensor
    batch: Batch
    kept: Tensor
    skipped: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Run(logits {list(self.logits.shape)}, {len(self.skipped)} skipped, notes={list(self.notes)})"


@dataclass(frozen=True, repr=False)
class Recording:
    """Copies of what passed the sites asked for: `recording["pattern", 0]`; `gradients` by the same keys."""

    values: Mapping[Key, Tensor]
    gradients: Mapping[Key, Tensor]
    run: Run

    def __repr__(self) -> str:
        kept = ", ".join(f"{name} {list(value.shape)}" for name, value in self.values.items())
        return f"Recording({kept}; {len(self.gradients)} gradients)"

    def __getitem__(self, key: str | Key) -> Tensor:
        full = (key, None) if isinstance(key, str) else key
        if full not in self.values:
            raise KeyError(f"{full} was not recorded; there are: {', '.join(map(str, self.values))}")
        return self.values[full]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.values)


def run(
    model: Any,
    batch: Batch,
    interventions: Sequence[Intervention] = (),
    *,
    donors: Mapping[str, Batch] | None = None,
    positions: Positions = "all",
    on_missing: OnMissing = "raise",
    left_out: Mapping[int, str] | None = None,
    chunk_size: int = 4096,
) -> Run:
    """Runs a model on a batch with interventions in force, and proves that each landed.

    donors: name → batch, of which `patch`, `mean`, `resample`, `add` take the one they name; example i of a donor
        stands in for example i of the batch (a mean is over the whole donor).
    positions: "read" computes only what is read (labels ≠ −100) in the last layer; logits are [batch read d_vocab].
    on_missing: an example with an empty role or no visible edge raises `MissingExamples`; "skip" leaves it out and
        counts it.
    left_out: example → reason, for examples that must not run whatever this list needs (a study drops them from every
        condition).

    Raises `InertIntervention` where an edit did not land, `EmptyRow` where a row lost its last source, KeyError for
    unknown roles, sites, layers, heads and donors, ValueError for contradictory lists and logits that are not finite.

    >>> from workbench import Edges, ModelConfig, Transformer, cut
    >>> model = Transformer(ModelConfig(d_vocab=8, n_ctx=3, d_model=8, n_layers=2, n_heads=1), seed=0)
    >>> last, first = torch.tensor([[False, False, True]]), torch.tensor([[True, False, False]])
    >>> batch = Batch(torch.tensor([[4, 7, 4]]), torch.tensor([[-100, -100, 7]]), roles={"last": last, "first": first})
    >>> run(model, batch, [cut(Edges(layer=1, dest="last", source="first"))]).logits.shape
    torch.Size([1, 3, 8])
    """
    with alone(model):
        prepared = _prepare(model, batch, interventions, donors, positions, on_missing, left_out, chunk_size)
        return _run(model, prepared, positions, chunk_size, (), "after", None)[0]


def record(
    model: Any,
    batch: Batch,
    sites: Sequence[str | tuple[str, int]],
    interventions: Sequence[Intervention] = (),
    *,
    gradients_of: str | Callable[[Tensor, Batch], Tensor] | None = None,
    moment: Moment = "after",
    donors: Mapping[str, Batch] | None = None,
    on_missing: OnMissing = "raise",
    chunk_size: int = 4096,
) -> Recording:
    """Runs a model with interventions in force and keeps copies of sites, by (site, layer).

    sites: `("pattern", 0)`, or `"pattern"` for every layer; of a model with several stacks `("encoder.pattern", 0)`,
        and `"pattern"` for all of them. moment: what was consumed "after" the edits, or what stood there "before"
        them. gradients_of: a metric by name, or as (logits, batch) → [batch]; the gradient of its sum at each site
    is kept as well. Shapes are those of `sites.SITES`; scores at masked positions are −∞.

    Raises KeyError naming near sites for an unknown one, before anything runs; otherwise as `run`.
    """
    gradients_of = METRICS.get(gradients_of, gradients_of) if isinstance(gradients_of, str) else gradients_of
    if gradients_of is not None and not callable(gradients_of):
        raise TypeError(f"gradients_of={gradients_of!r} is no metric; {nearest(str(gradients_of), list(METRICS))}")
    if isinstance(sites, str) or (isinstance(sites, tuple) and any(isinstance(one, int) for one in sites)):
        raise TypeError(f"sites come as a list: [{sites!r}], also when there is one")
    check_model(model)
    with alone(model):
        keep = [key for one in sites for key in _keys(model, one)]
        prepared = _prepare(model, batch, interventions, donors, "all", on_missing, None, chunk_size)
        outcome, values, gradients = _run(model, prepared, "all", chunk_size, keep, moment, gradients_of)
    return Recording({key: values[key] for key in keep}, gradients, outcome)


def _keys(model: Any, one: str | tuple[str, int]) -> list[Key]:
    if isinstance(one, tuple):
        hook_point(model, *one)
        return [one]
    row, (part, bare) = site(one), split(one)
    if not row.layered:
        hook_point(model, one, None)
        return [(one, None)]
    parts = model.parts if not part and "" not in model.parts else [part]
    fitting = [each for each in parts if each != "cross" or bare in CROSS]
    names = [in_part(each, bare) for each in fitting]
    hook_point(model, names[0], 0)
    keys = [(name, layer) for each, name in zip(fitting, names, strict=True) for layer in layers_of(model, each)]
    for key in keys:
        hook_point(model, *key)
    return list(keys)


@dataclass(frozen=True)
class _Prepared:
    batch: Batch
    kept: Tensor
    skipped: dict[int, str]
    edits: list[Edit]
    unread: list[bool]
    notes: list[str]


def absent(model: Any, batch: Batch, interventions: Sequence[Intervention]) -> dict[int, str]:
    """Examples in which some intervention has nothing to act on: example → reason."""
    check_places(model, interventions)
    batch = batch.to(_device(model))
    check_tokens(model, batch, "")
    return missing(interventions, batch, Sight(model, batch))


def _prepare(
    model: Any,
    batch: Batch,
    interventions: Sequence[Intervention],
    donors: Mapping[str, Batch] | None,
    positions: Positions,
    on_missing: OnMissing,
    left_out: Mapping[int, str] | None,
    chunk_size: int,
) -> _Prepared:
    check_arguments(model, batch, positions, on_missing)
    if donors is not None and not isinstance(donors, Mapping):
        raise TypeError("donors come by name, as donors={'other': batch}, also when there is one")
    named = {name: donor.to(_device(model)) for name, donor in (donors or {}).items()}
    for name, donor in named.items():
        check_tokens(model, donor, f" of donor {name!r}")
    missed = {
        example: why for example, why in absent(model, batch, interventions).items() if example not in (left_out or {})
    }
    if missed and on_missing == "raise":
        raise MissingExamples(say_missing(missed, len(batch)))
    skipped = {**(left_out or {}), **missed}
    n, batch = len(batch), batch.to(_device(model))
    kept = torch.tensor([i for i in range(len(batch)) if i not in skipped], dtype=torch.long, device=batch.device)
    if not len(kept):
        raise MissingExamples(f"no example is left: {say_missing(skipped, n)}")
    batch = batch.select(kept) if skipped else batch
    sight = Sight(model, batch)
    edits = resolve(model, batch, interventions, sight, Donors(model, batch, kept, n, named, positions, chunk_size))
    if unused := sorted(set(named) - donor_names(interventions)):
        raise TypeError(f"donors: no intervention names {unused[0]!r}; leave it out, or name it in one")
    notes = hidden_edges(interventions, batch, sight)
    lost = [int((~reaches(edit, batch, sight, model)).sum()) for edit in edits]
    for edit, unread in zip(edits, lost, strict=True):
        if unread:
            notes.append(
                f"{edit.label}: cannot reach what is read in {unread} of {len(batch)} examples; "
                "its effect there is 0 by construction"
            )
    return _Prepared(batch, kept, skipped, edits, [unread == len(batch) for unread in lost], notes)


def _run(
    model: Any,
    prepared: _Prepared,
    positions: Positions,
    chunk_size: int,
    keep: Sequence[Key],
    moment: Moment,
    objective: Callable[[Tensor, Batch], Tensor] | None,
) -> tuple[Run, dict[Key, Tensor], dict[Key, Tensor]]:
    batch = prepared.batch
    out = execute(
        model,
        batch,
        prepared.edits,
        read=batch.read_positions() if positions == "read" else None,
        keep=keep,
        moment=moment,
        objective=objective,
        chunk_size=chunk_size,
    )
    check_finite(out.logits)
    idle = [
        f"{edit.label}: landed and changed nothing; every value it asked for was there already"
        for edit, nothing, unread in zip(prepared.edits, out.idle, prepared.unread, strict=True)
        if nothing and not unread
    ]
    notes = tuple(prepared.notes + idle + _swallowed(model, prepared, positions, chunk_size, out.logits))
    outcome = Run(out.logits, batch, prepared.kept, prepared.skipped, notes)
    return outcome, out.kept, out.gradients


def _swallowed(model: Any, prepared: _Prepared, positions: Positions, chunk_size: int, logits: Tensor) -> list[str]:
    """Edits of a list without which its logits are the same, found by leaving out each in turn: in a few examples
    first, and in all where those tell no difference."""
    if len(prepared.edits) < 2:
        return []
    batch, notes = prepared.batch, []
    read = batch.read_positions() if positions == "read" else None
    few = execute(model, batch, prepared.edits, read=read, chunk_size=chunk_size, first=FEW).logits
    for index, edit in enumerate(prepared.edits):
        others = [*prepared.edits[:index], *prepared.edits[index + 1 :]]
        without = partial(execute, model, batch, others, read=read, chunk_size=chunk_size)
        if torch.equal(without(first=FEW).logits, few) and torch.equal(without().logits, logits):
            notes.append(
                f"{edit.label}: the other edits of this list give the same without it; it changes nothing here"
            )
    return notes


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device
