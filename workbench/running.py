"""run() and record(): interventions → hooks → logits, with proof that each edit landed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.anatomy import layers_of
from workbench.arguments import check_finite, check_model
from workbench.batch import Batch
from workbench.donors import Positions
from workbench.edits import EmptyRow, InertIntervention, MissingExamples
from workbench.hooks import Key, alone, hook_point
from workbench.interventions import Intervention
from workbench.metrics import METRICS
from workbench.nearest import nearest
from workbench.passes import Moment, execute
from workbench.prepared import Prepared
from workbench.scene import OnMissing, Scene, absent, check_used, scene_of
from workbench.sites import CROSS, in_part, site, split

MEANING = 1
"""Raised by hand where the same interventions come to mean other logits."""

__all__ = ["EmptyRow", "InertIntervention", "MissingExamples", "Recording", "Run", "absent", "record", "run"]

FEW = 16
"""Examples in which a difference is looked for first."""


@dataclass(frozen=True, repr=False)
class Run:
    """The outcome of `run`.

    logits [batch pos d_vocab], or [batch read d_vocab] with positions="read"; batch: the examples that ran, in order;
    kept [batch]: their indices in the batch handed in; skipped: example → reason; notes: what a reader must know of
    edits that landed and could not matter; engine: "hooks", or "rows" where only what edits can change was computed.
    """

    logits: Tensor
    batch: Batch
    kept: Tensor
    skipped: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    engine: str = "hooks"

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
    check_model(model)
    with alone(model):
        scene, prepared = _prepare(model, batch, interventions, donors, positions, on_missing, left_out, chunk_size)
        return plain(scene, prepared, positions, chunk_size)


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
        scene, prepared = _prepare(model, batch, interventions, donors, "all", on_missing, None, chunk_size)
        outcome, values, gradients = _run(scene, prepared, "all", chunk_size, keep, moment, gradients_of)
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


def _prepare(
    model: Any,
    batch: Batch,
    interventions: Sequence[Intervention],
    donors: Mapping[str, Batch] | None,
    positions: Positions,
    on_missing: OnMissing,
    left_out: Mapping[int, str] | None,
    chunk_size: int,
) -> tuple[Scene, Prepared]:
    scene = scene_of(
        model,
        batch,
        {"": interventions},
        donors=donors,
        positions=positions,
        on_missing=on_missing,
        left_out=left_out,
        chunk_size=chunk_size,
        say=lambda _: "",
    )
    (prepared,) = scene.prepare({"": interventions}, lambda _: "").values()
    check_used(donors, [interventions])
    return scene, prepared


def _run(
    scene: Scene,
    prepared: Prepared,
    positions: Positions,
    chunk_size: int,
    keep: Sequence[Key] = (),
    moment: Moment = "after",
    objective: Callable[[Tensor, Batch], Tensor] | None = None,
) -> tuple[Run, dict[Key, Tensor], dict[Key, Tensor]]:
    batch = scene.batch
    out = execute(
        scene.model,
        batch,
        prepared.edits,
        read=scene.read() if positions == "read" else None,
        keep=keep,
        moment=moment,
        objective=objective,
        chunk_size=chunk_size,
    )
    check_finite(out.logits)
    notes = [*prepared.notes, *said_idle(prepared, out.idle)]
    notes += swallowed(scene, prepared, positions, chunk_size, lambda: out.logits)
    return Run(out.logits, batch, scene.kept, scene.skipped, tuple(notes)), out.kept, out.gradients


def plain(scene: Scene, prepared: Prepared, positions: Positions, chunk_size: int) -> Run:
    """One list of interventions through hooks, in a pass of its own."""
    return _run(scene, prepared, positions, chunk_size)[0]


def said_idle(prepared: Prepared, idle: Sequence[bool]) -> list[str]:
    """A note for each edit that left everything as it was, where it could have mattered."""
    return [
        f"{edit.label}: landed and changed nothing; every value it asked for was there already"
        for edit, nothing, unread in zip(prepared.edits, idle, prepared.unread, strict=True)
        if nothing and not unread
    ]


def swallowed(
    scene: Scene, prepared: Prepared, positions: Positions, chunk_size: int, whole: Callable[[], Tensor]
) -> list[str]:
    """A note for each edit of a list without which its logits are the same, found by leaving out each in turn: in a few
    examples first, and in all where those tell no difference. whole: gives the list's logits, by hooks."""
    if len(prepared.edits) < 2:
        return []
    batch, notes = scene.batch, []
    read = scene.read() if positions == "read" else None
    few = execute(scene.model, batch, prepared.edits, read=read, chunk_size=chunk_size, examples=slice(FEW)).logits
    for index, edit in enumerate(prepared.edits):
        others = [*prepared.edits[:index], *prepared.edits[index + 1 :]]
        without = partial(execute, scene.model, batch, others, read=read, chunk_size=chunk_size)
        if torch.equal(without(examples=slice(FEW)).logits, few) and torch.equal(without().logits, whole()):
            notes.append(
                f"{edit.label}: the other edits of this list give the same without it; it changes nothing here"
            )
    return notes
