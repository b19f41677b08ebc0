"""What the engine would compute of some conditions, and how much of it could not be left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.batch import Batch
from workbench.block import custom, planned, why_not
from workbench.counting import Count
from workbench.donors import Positions
from workbench.groups import Group
from workbench.hooks import alone
from workbench.interventions import Intervention
from workbench.scene import OnMissing, Scene, check_used, saying, scene_of

__all__ = ["Explanation", "explain"]

CUSTOM = "a custom function changes a whole tensor"


@dataclass(frozen=True)
class Together:
    """Conditions that are computed together. layers: in words, what of each layer is computed for each of them."""

    conditions: Sequence[str]
    layers: Sequence[str]


@dataclass(frozen=True)
class Explanation:
    """What is computed. together: groups of conditions; unreached: those that cannot change what is read, which are not
    run; repeated: condition → the one before it whose list is the same, which is run for both; hooks: condition → why
    it goes through hooks, in a pass of its own.

    Floating-point operations of matrix products, a multiply-add counted as 2, in all examples: `clean` of the run
    without edits, `computed` beside it by rows, `floor` of that which must be, `passes` of a pass for each condition
    but those that go through hooks.
    """

    n_examples: int
    together: Sequence[Together]
    unreached: Sequence[str]
    repeated: Mapping[str, str]
    hooks: Mapping[str, str]
    clean: int
    computed: int
    floor: int
    passes: int

    def __str__(self) -> str:
        lines = []
        for one in self.together:
            lines += [f"{_named(one.conditions)}:", *(f"  {said}" for said in one.layers)]
        if self.unreached:
            lines.append(f"{_named(self.unreached)} cannot change what is read: not run")
        if self.repeated:
            lines.append(f"{_named(list(self.repeated))} as one before: not run again")
        for why in dict.fromkeys(self.hooks.values()):
            few = [label for label, said in self.hooks.items() if said == why]
            lines.append(f"{_named(few)} through hooks, a pass each: {why}")
        if self.passes:
            times = self.passes / (self.computed + self.clean)
            lines.append(f"{_counted(self.n_examples, 'example')}: {_sized(self.computed)} by rows")
            lines.append(f"beside one clean run: {_sized(self.clean)}")
            lines.append(f"a pass for each condition: {_sized(self.passes)}, {times:.1f} times as much as both")
        if self.computed:
            lines.append(f"floor: {_sized(self.floor)}, {self.floor / self.computed:.0%} of what is computed by rows")
        return "\n".join(lines)


def explain(
    model: Any,
    batch: Batch,
    conditions: Mapping[str, Sequence[Intervention]] | Sequence[Intervention],
    *,
    donors: Mapping[str, Batch] | None = None,
    positions: Positions = "read",
    on_missing: OnMissing = "raise",
) -> Explanation:
    """What `run_each` would compute of these conditions (or of one list of interventions), without computing it: which
    rows of which layers, how many operations, and their floor. Donors are recorded, where there are any.

    Not foreseen are what shows only in numbers (a row left empty, an edit that changes nothing: such a condition goes
    through hooks), and the few examples in which conditions are held against the plain path.

    Raises what `run_each` raises before anything runs.

    >>> import torch
    >>> from workbench import Edges, ModelConfig, Transformer, cut
    >>> model = Transformer(ModelConfig(d_vocab=8, n_ctx=3, d_model=8, n_layers=2, n_heads=1), seed=0)
    >>> last, first = torch.tensor([[False, False, True]]), torch.tensor([[True, False, False]])
    >>> batch = Batch(torch.tensor([[4, 7, 4]]), torch.tensor([[-100, -100, 7]]), roles={"last": last, "first": first})
    >>> print(explain(model, batch, {"cut": [cut(Edges(layer=1, dest="last", source="first"))]}))
    """
    lists = conditions if isinstance(conditions, Mapping) else {"": conditions}
    rest: Any = {"donors": donors, "positions": positions, "on_missing": on_missing}
    with alone(model):
        scene = scene_of(model, batch, lists, **rest, left_out=None, chunk_size=4096, say=_say)
        check_used(donors, lists.values())
        return _explained(scene, lists, positions)


def _say(label: str) -> str:
    return f"condition {label!r}" if label else ""


def _explained(scene: Scene, lists: Mapping[str, Sequence[Intervention]], positions: Positions) -> Explanation:
    first = {tuple(several): label for label, several in reversed(list(lists.items()))}
    repeated = {label: first[tuple(several)] for label, several in lists.items() if first[tuple(several)] != label}
    prepared = {}
    for label in (label for label in lists if label not in repeated):
        with saying(_say(label)):
            prepared[label] = scene.prepare(lists[label])
    why, n = why_not(scene.model) or "", len(scene.batch)
    hooks = {label: why or CUSTOM for label, one in prepared.items() if why or custom(one)}
    labels = [label for label in prepared if label not in hooks]
    if not labels:
        return Explanation(n, (), (), repeated, hooks, 0, 0, 0, 0)
    read = scene.read() if positions == "read" else None
    told, found, groups = planned(scene, [prepared[label].edits for label in labels], read)
    count = Count(scene, n // len(told.batch))
    reached = {cell for group in groups for cell in group.cells}
    clean = count.whole(read)
    return Explanation(
        n,
        [Together([labels[cell] for cell in group.cells], _layers(scene, group)) for group in groups],
        [label for cell, label in enumerate(labels) if cell not in reached],
        repeated,
        hooks,
        clean,
        sum(count.computed(group) for group in groups),
        sum(count.floor(group, found) for group in groups),
        clean * sum(repeated.get(label, label) in labels for label in lists),
    )


def _layers(scene: Scene, group: Group) -> list[str]:
    """What of each layer a group computes, in words."""
    said = []
    for (part, layer), rows in group.layers.items():
        if rows.leaving is not None:
            words = [f"{rows.leaving.index.shape[2]} of {scene.batch.sides(part)[0].tokens.shape[1]} rows"]
            for name, one in (("", rows.source), ("cross-attention's ", rows.crossed)):
                words += [] if one is None else [f"{name}keys and values of {_counted(one.index.shape[2], 'source')}"]
            said.append(f"{part + ' ' if part else ''}layer {layer}: {', '.join(words)}")
    return said


def _named(labels: Sequence[str]) -> str:
    few = ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "")
    return _counted(len(labels), "condition") + (f" ({few})" if few else "")


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n:,} {what}s"


def _sized(flops: int) -> str:
    for size, unit in ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops} FLOP"
