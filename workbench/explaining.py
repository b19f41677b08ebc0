"""What the engine would compute of some conditions, and how much of it could not be left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.batch import Batch
from workbench.block import custom, planned, why_not
from workbench.counting import Count
from workbench.donors import Positions
from workbench.hooks import alone
from workbench.interventions import Intervention
from workbench.scene import OnMissing, Scene, saying, scene_of

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Together:
    """Conditions that are computed together. layers: in words, what of each layer is computed for each of them."""

    conditions: Sequence[str]
    layers: Sequence[str]


@dataclass(frozen=True)
class Explanation:
    """What is computed. together: groups of conditions; unreached: those that cannot change what is read, which are not
    run; hooks: condition → why it goes through hooks, in a pass of its own.

    Floating-point operations of matrix products, a multiply-add counted as 2, in all examples: `clean` of the run
    without edits, `computed` beside it by rows, `floor` of that which must be, `passes` of a pass for each condition
    that is computed by rows or not run.
    """

    n_examples: int
    together: Sequence[Together]
    unreached: Sequence[str]
    hooks: Mapping[str, str]
    clean: int
    computed: int
    floor: int
    passes: int

    def __str__(self) -> str:
        lines = []
        for one in self.together:
            named = ", ".join(one.conditions[:3]) + (", ..." if len(one.conditions) > 3 else "")
            lines.append(f"{len(one.conditions)} conditions ({named}):")
            lines += [f"  {said}" for said in one.layers]
        if self.unreached:
            lines.append(f"{len(self.unreached)} conditions cannot change what is read and are not run")
        for why in dict.fromkeys(self.hooks.values()):
            few = [label for label, said in self.hooks.items() if said == why]
            lines.append(f"{len(few)} conditions through hooks, a pass each: {why}")
        if self.passes:
            times = self.passes / (self.computed + self.clean)
            lines.append(
                f"{_sized(self.computed)} in {self.n_examples} examples, beside {_sized(self.clean)} of one clean run; "
                f"a pass for each condition: {_sized(self.passes)}, {times:.1f} times as much"
            )
            if self.computed:
                lines.append(f"floor: {_sized(self.floor)}, {self.floor / self.computed:.0%} of what is computed")
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

    Raises what `run_each` raises before anything runs.

    >>> import torch
    >>> from workbench import Edges, ModelConfig, Transformer, cut
    >>> model = Transformer(ModelConfig(d_vocab=8, n_ctx=3, d_model=8, n_layers=2, n_heads=1), seed=0)
    >>> last, first = torch.tensor([[False, False, True]]), torch.tensor([[True, False, False]])
    >>> batch = Batch(torch.tensor([[4, 7, 4]]), torch.tensor([[-100, -100, 7]]), roles={"last": last, "first": first})
    >>> print(explain(model, batch, {"cut": [cut(Edges(layer=1, dest="last", source="first"))]}))
    1 conditions (cut):
      layer 1: 1 of 3 rows leave
    0.0 MFLOP in 1 examples, beside 0.0 MFLOP of one clean run; a pass for each condition: 0.0 MFLOP, 0.8 times as much
    floor: 0.0 MFLOP, 99% of what is computed
    """
    lists = conditions if isinstance(conditions, Mapping) else {"": conditions}
    with alone(model):
        scene = scene_of(
            model,
            batch,
            lists,
            donors=donors,
            positions=positions,
            on_missing=on_missing,
            left_out=None,
            chunk_size=4096,
            say=lambda label: f"condition {label!r}" if label else "",
        )
        return _explained(scene, lists, positions)


def _explained(scene: Scene, lists: Mapping[str, Sequence[Intervention]], positions: Positions) -> Explanation:
    prepared, n = {}, len(scene.batch)
    for label, interventions in lists.items():
        with saying(f"condition {label!r}" if label else ""):
            prepared[label] = scene.prepare(interventions)
    why = why_not(scene.model)
    hooks = {
        label: why or "a custom function changes a whole tensor" for label in lists if why or custom(prepared[label])
    }
    labels = [label for label in lists if label not in hooks]
    if not labels:
        return Explanation(n, (), (), hooks, 0, 0, 0, 0)
    read = scene.read() if positions == "read" else None
    first, found, groups = planned(scene, [prepared[label].edits for label in labels], read)
    count = Count(scene, n // len(first.batch))
    together = [Together([labels[cell] for cell in group.cells], count.told(group)) for group in groups]
    reached = {cell for group in groups for cell in group.cells}
    clean = count.whole(read)
    return Explanation(
        n,
        together,
        [label for cell, label in enumerate(labels) if cell not in reached],
        hooks,
        clean,
        sum(count.computed(group) for group in groups),
        sum(count.floor(group, found) for group in groups),
        clean * len(labels),
    )


def _sized(flops: int) -> str:
    for size, unit in ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops} FLOP"
