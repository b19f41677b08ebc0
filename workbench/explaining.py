"""What the engine would compute of some conditions, and how much of it could not be left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.arguments import check_model
from workbench.batch import Batch
from workbench.block import custom, planned, why_not
from workbench.counting import Count
from workbench.donors import Positions
from workbench.groups import Group
from workbench.hooks import alone
from workbench.interventions import Intervention
from workbench.scene import OnMissing, Scene, check_used, scene_of

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """What is computed. together: conditions that are computed together, and in words what of each layer, for each list
    of interventions once; unreached: conditions that cannot change what is read, which are not run; hooks: condition →
    why it goes through hooks, in a pass of its own.

    Floating-point operations of matrix products, a multiply-add counted as 2, in all `n` examples: `clean` of the run
    without edits, `computed` beside it by rows, `floor` of that which must be, `passes` of a pass for each condition
    but those that go through hooks. They are the products that the model itself makes; with one head the engine takes
    values through W_O, and a query through W_K, once for many rows, and makes fewer.
    """

    n: int
    together: Sequence[tuple[Sequence[str], Sequence[str]]]
    unreached: Sequence[str]
    hooks: Mapping[str, str]
    clean: int
    computed: int
    floor: int
    passes: int

    def __str__(self) -> str:
        lines = []
        for labels, layers in self.together:
            lines += [f"by rows: {_named(labels)}", *(f"  {said}" for said in layers)]
        if self.unreached:
            lines.append(f"not run, since it cannot change what is read: {_named(self.unreached)}")
        for why in dict.fromkeys(self.hooks.values()):
            few = [label for label, said in self.hooks.items() if said == why]
            lines.append(f"through hooks, a pass each: {_named(few)}: {why}")
        if self.passes:
            times = self.passes / (self.computed + self.clean)
            lines.append(f"{_sized(self.computed)} by rows, {_sized(self.clean)} in one clean run (examples: {self.n})")
            lines.append(f"a pass for each condition: {_sized(self.passes)}, {times:.1f} times as much as both")
        if self.computed:
            lines.append(f"floor: {_sized(self.floor)}, {self.floor / self.computed:.1%} of what is computed by rows")
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

    Not foreseen: a list of several edits, of which one changes nothing or is held by the others, goes through hooks
    after all; and a few conditions are held against the plain path in a few examples.

    Raises what `run_each` raises before anything runs.

    >>> import torch
    >>> from workbench import Edges, ModelConfig, Transformer, cut
    >>> model = Transformer(ModelConfig(d_vocab=8, n_ctx=3, d_model=8, n_layers=2, n_heads=1), seed=0)
    >>> last, first = torch.tensor([[False, False, True]]), torch.tensor([[True, False, False]])
    >>> batch = Batch(torch.tensor([[4, 7, 4]]), torch.tensor([[-100, -100, 7]]), roles={"last": last, "first": first})
    >>> print(explain(model, batch, {"cut": [cut(Edges(layer=0, dest="last", source="first"))]}))
    by rows: cut
      layer 0: 1 of 3 rows
      layer 1: 1 of 3 rows, 1 of 3 keys and values
    2.992 kFLOP by rows, 7.168 kFLOP in one clean run (examples: 1)
    a pass for each condition: 7.168 kFLOP, 0.7 times as much as both
    floor: 2.96 kFLOP, 98.9% of what is computed by rows
    """
    lists = conditions if isinstance(conditions, Mapping) else {"": conditions}
    asked: Any = {"donors": donors, "positions": positions, "on_missing": on_missing}
    check_model(model)
    with alone(model):
        scene = scene_of(model, batch, lists, **asked, left_out=None, chunk_size=4096, say=_said)
        check_used(donors, lists.values())
        return _explained(scene, lists, positions)


def _explained(scene: Scene, lists: Mapping[str, Sequence[Intervention]], positions: Positions) -> Explanation:
    alike: dict[tuple[Intervention, ...], list[str]] = {}
    for label, interventions in lists.items():
        alike.setdefault(tuple(interventions), []).append(label)
    cells, n, why = [], len(scene.batch), why_not(scene.model)
    hooks: dict[str, str] = {}
    found = scene.prepare({labels[0]: interventions for interventions, labels in alike.items()}, _said)
    for labels in alike.values():
        prepared = found[labels[0]]
        if why or custom(prepared):
            hooks |= dict.fromkeys(labels, why or "a custom function changes a whole tensor")
        else:
            cells.append((labels, prepared.edits))
    if not cells:
        return Explanation(n, (), (), hooks, 0, 0, 0, 0)
    read = scene.read() if positions == "read" else None
    first, reach, groups = planned(scene, [edits for _, edits in cells], read)
    count = Count(scene, n // len(first.batch))
    reached = {cell for group in groups for cell in group.cells}
    clean = count.whole(read)
    return Explanation(
        n,
        [([label for cell in group.cells for label in cells[cell][0]], _layers(scene, group)) for group in groups],
        [label for cell, (labels, _) in enumerate(cells) if cell not in reached for label in labels],
        hooks,
        clean,
        sum(count.computed(group) for group in groups),
        sum(count.floor(group, reach) for group in groups),
        clean * (len(lists) - len(hooks)),
    )


def _layers(scene: Scene, group: Group) -> list[str]:
    """What of each layer a group computes, in words."""
    said = []
    for (part, layer), rows in group.layers.items():
        if rows.leaving is not None:
            n = scene.batch.sides(part)[0].tokens.shape[1]
            words = [f"{rows.leaving.index.shape[2]} of {n} rows"]
            words += [f"{rows.source.index.shape[2]} of {n} keys and values"] if rows.source else []
            words += [f"{rows.crossed.index.shape[2]} keys and values of the context"] if rows.crossed else []
            said.append(f"{part + ' ' if part else ''}layer {layer}: {', '.join(words)}")
    return said


def _said(label: str) -> str:
    return f"condition {label!r}" if label else ""


def _named(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return ", ".join(label or "the list" for label in labels[:3]) + more


def _sized(flops: int) -> str:
    power = min(4, (len(str(flops)) - 1) // 3)
    return f"{flops / 1000**power:.4g} {('', 'k', 'M', 'G', 'T')[power]}FLOP"
