"""A block of examples under every condition: which go the fast way, the clean run that they share, and the proof."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from workbench.affected import Affected, affected
from workbench.arguments import check_finite, is_finite
from workbench.chunks import computed, rows_together
from workbench.clean import Clean
from workbench.donors import Positions
from workbench.edits import Edit, EmptyRow
from workbench.genuine import has_hooks
from workbench.groups import Group, grouped
from workbench.hooks import Key
from workbench.interventions import Intervention
from workbench.models.prefix import Prefix
from workbench.models.reuse import refusal, reusable_from
from workbench.operations import Freeze
from workbench.passes import Pass, execute, together
from workbench.prepared import Prepared
from workbench.proof import TOLERANCE
from workbench.running import swallowed
from workbench.scene import Say, Scene, saying
from workbench.uncomputed import check_emptied, may_empty, unsure

CHECKED = 4
"""Examples in which a condition of each kind is run through hooks as well."""


FOREIGN = "not a model of this workbench"


class Disagreement(RuntimeError):
    """The fast path and the plain one gave different logits: a fault of this workbench."""


_NOTHING = torch.empty(0)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One condition on a block. idle: for each edit, whether it changed nothing, None where that was not seen, since it
    reaches nothing that is read; swallowed: notes of edits that others made without effect; engine: "rows", or "hooks"
    and why."""

    logits: Tensor
    prepared: Prepared
    idle: Sequence[bool | None]
    swallowed: Sequence[str]
    engine: str

    def without_logits(self) -> Outcome:
        """What must be remembered of it once its logits were used."""
        prepared = replace(self.prepared, edits=[edit.said for edit in self.prepared.edits])
        return Outcome(_NOTHING, prepared, self.idle, self.swallowed, self.engine)


def outcomes(
    scene: Scene,
    conditions: Mapping[str, Sequence[Intervention]],
    positions: Positions,
    chunk_size: int,
    engine: str,
    say: Say,
    checked: bool,
) -> tuple[Tensor, dict[str, Outcome]]:
    """The clean logits, and what each condition gives. checked: some conditions are held against the plain path."""
    block = _Block(scene, positions, chunk_size, say)
    why = "asked for" if engine == "hooks" else why_not(scene.model)
    block.prepared = scene.prepare(conditions, say)
    found = block.by_rows([] if why else [label for label in conditions if not custom(block.prepared[label])])
    if checked:
        block.check(found)
    reasons = {
        label: why or block.why.get(label, "a custom function changes a whole tensor")
        for label in conditions
        if label not in found
    }
    found |= block.by_hooks(reasons)
    logits = block.clean.logits
    block.let_go()
    return logits, {label: found[label] for label in conditions}


def why_not(model: Any) -> str | None:
    """Why the fast path does not apply to a model; None where it does."""
    row_by_row = getattr(model, "row_by_row", None)
    if row_by_row is None:
        return FOREIGN
    if has_hooks(model):
        return "the model carries a hook that is not ours"
    if torch.is_autocast_enabled(next(model.parameters()).device.type):
        return "autocast is on"
    if next(model.parameters()).dtype not in (torch.float32, torch.float64):
        return f"{str(next(model.parameters()).dtype).removeprefix('torch.')} rounds too coarsely to compare"
    return row_by_row()


def custom(prepared: Prepared) -> bool:
    return any(edit.alike is None or edit.selected is None for edit in prepared.edits)


def planned(scene: Scene, cells: Sequence[Sequence[Edit]], read: Tensor | None) -> tuple[Scene, Affected, list[Group]]:
    """The examples that tell all (one, where all are alike), what the edits of each cell can change, and which cells
    are computed together."""
    alike = scene.alike and all(edit.spread for edits in cells for edit in edits)
    first = scene.first if alike else scene
    found = affected(cells, scene.model, first.batch, first.sight, read)
    return first, found, grouped(cells, found, rows_together(scene.model, scene.batch.tokens.shape[1]))


class _Block:
    def __init__(self, scene: Scene, positions: Positions, chunk_size: int, say: Say):
        self.scene, self.positions, self.chunk_size, self.say = scene, positions, chunk_size, say
        self.read = scene.read() if positions == "read" else None
        self.prepared: dict[str, Prepared] = {}
        self.why: dict[str, str] = {}
        self._clean: Clean | None = None

    @property
    def clean(self) -> Clean:
        if self._clean is None:
            self._begin(())
        assert self._clean is not None
        return self._clean

    def _begin(self, keys: Collection[Key]) -> None:
        """The clean run, in which these sites are recorded."""
        self._keep(self._execute(keep=keys, untouched=why_not(self.scene.model) is None))

    def _keep(self, out: Pass) -> None:
        self._clean = Clean(
            self.scene, out.logits, self.read, dict(out.kept), lambda key: self._execute(keep=[key]).kept[key]
        )

    def let_go(self) -> None:
        """Forgets the clean run, which refers to this block in turn."""
        self._clean = None

    def _execute(
        self,
        edits: Sequence[Edit] = (),
        keep: Collection[Key] = (),
        examples: slice = slice(None),
        resume: Prefix | None = None,
        untouched: bool = False,
    ) -> Pass:
        return execute(
            self.scene.model,
            self.scene.batch,
            edits,
            read=self.read,
            keep=keep,
            chunk_size=self.chunk_size,
            examples=examples,
            resume=resume,
            untouched=untouched,
        )

    def by_hooks(self, labels: Mapping[str, str]) -> dict[str, Outcome]:
        """What conditions give in passes of their own; labels: label → why."""
        found = self._resumed(labels)
        more = "; layers before the first edited one are computed once" if found else ""
        return {label: self._hooked(label, f"hooks: {why}{more}", found.get(label)) for label, why in labels.items()}

    def _hooked(self, label: str, how: str, found: Pass | None) -> Outcome:
        prepared = self.prepared[label]
        with saying(self.say(label)):
            out = found or self._execute(prepared.edits)
            check_finite(out.logits)
            notes = swallowed(self.scene, prepared, self.positions, self.chunk_size, lambda: out.logits)
        return Outcome(out.logits, prepared, out.idle, notes, how)

    def _resumed(self, labels: Collection[str]) -> dict[str, Pass]:
        """Passes of a wrapped model under each condition and without one, chunk by chunk, so that what comes before the
        first edited layer is computed once; none where that does not apply."""
        model = self.scene.model
        if not labels or why_not(model) != FOREIGN or refusal(model):
            return {}
        edits = {label: self.prepared[label].edits for label in labels}
        layers = {reusable_from(model, [edit.key for edit in several]) or 0 for several in edits.values()}
        if layers == {0}:
            return {}
        clean: list[Pass] = []
        passes: dict[str, list[Pass]] = {label: [] for label in labels}
        for at in range(0, len(self.scene.batch), self.chunk_size):
            prefix, examples = Prefix(model, layers), slice(at, at + self.chunk_size)
            clean.append(self._execute(examples=examples, resume=prefix))
            for label, several in edits.items():
                with saying(self.say(label)):
                    passes[label].append(self._execute(several, examples=examples, resume=prefix))
        self._keep(together(clean))
        return {label: together(several) for label, several in passes.items()}

    def by_rows(self, labels: Sequence[str]) -> dict[str, Outcome]:
        """What conditions give whose rows are computed alone; for those that are not among them, `why` says why."""
        from workbench.models.rowwise import foreseen

        if not labels:
            return {}
        edits = [self.prepared[label].edits for label in labels]
        first, found, groups = planned(self.scene, edits, self.read)
        self._begin(set().union(*(foreseen(group) for group in groups)))
        out: dict[str, Outcome] = {}
        for group in groups:
            out |= self._group(group, labels, found)
        together = {cell for group in groups for cell in group.cells}
        emptying = may_empty(edits, found, self.scene.model, self.read)
        for cell, label in enumerate(labels):
            if cell not in together:
                out |= self._unreached(label, found, cell)
            if label in out and cell in emptying:
                with saying(self.say(label)):
                    try:
                        check_emptied(edits[cell], found, cell, first, self.read)
                    except EmptyRow:
                        # One example and one head told of it; a whole pass tells in how many.
                        self._execute(edits[cell])
                        raise
        return out

    def _unreached(self, label: str, found: Affected, cell: int) -> dict[str, Outcome]:
        """A condition of which nothing reaches what is read: the clean logits."""
        prepared = self.prepared[label]
        if not self.clean.finite:
            self.why[label] = "its logits are not finite"
            return {}
        for edit, unread in zip(prepared.edits, prepared.unread, strict=True):
            before = found.at[edit.key]
            restoring = isinstance(edit.alike, Freeze)
            if (not unread and not restoring) or (restoring and (before[cell] & edit.rows_of(before.shape[1])).any()):
                self.why[label] = "other edits of its list hold what it changes"
                return {}
        idle = [True if isinstance(edit.alike, Freeze) else None for edit in prepared.edits]
        return {label: self._outcome(label, self.clean.logits, idle)}

    def _outcome(self, label: str, logits: Tensor, idle: Sequence[bool | None]) -> Outcome:
        prepared = self.prepared[label]
        notes = swallowed(
            self.scene,
            prepared,
            self.positions,
            self.chunk_size,
            lambda: self._execute(prepared.edits).logits,
        )
        return Outcome(logits, prepared, idle, notes, "rows")

    def _group(self, group: Group, labels: Sequence[str], found: Affected) -> dict[str, Outcome]:
        out = {}
        try:
            logits, idle, doubtful = computed(self.scene.model, group, self.clean)
        except EmptyRow:
            self.why |= {labels[cell]: "a row was left empty" for cell in group.cells}
            return {}
        finite = [True] * len(logits) if is_finite(logits) else [is_finite(one) for one in logits]
        for place, (cell, nothing) in enumerate(zip(group.cells, idle.tolist(), strict=True)):
            label = labels[cell]
            if not finite[place]:
                self.why[label] = "its logits are not finite"
            elif bool(doubtful[place]):
                self.why[label] = "one of its edits changes nothing in some example"
            elif unsure(self.prepared[label], nothing, found, cell, self.scene.model, self.read):
                self.why[label] = "whether it changes anything shows only in rows that cannot matter"
            else:
                out[label] = self._outcome(label, logits[place], nothing)
        return out

    def check(self, found: Mapping[str, Outcome]) -> None:
        """Holds a condition of each kind against the plain path, which proves that its edits landed: in a few examples,
        and where the conditions are few beside their kinds, of some kinds alone, so that this costs a twentieth of all
        conditions' passes at the most, but never nothing.

        Raises Disagreement where they give other logits.
        """
        kinds: dict[object, str] = {}
        for label, one in found.items():
            if not one.prepared.edits:
                continue
            kinds.setdefault(tuple((edit.key, type(edit.alike)) for edit in one.prepared.edits), label)
        budget = max(CHECKED, len(found) * len(self.scene.batch) // 20)
        for label in list(kinds.values())[:: max(1, -(-len(kinds) // budget))]:
            self._compare(label, found[label], max(1, min(CHECKED, budget // len(kinds))))

    def _compare(self, label: str, found: Outcome, n: int) -> None:
        want = self._execute(found.prepared.edits, examples=slice(n)).logits
        with saying(self.say(label)):
            check_finite(want)
        largest, off = float(want.abs().max()), float((found.logits[: len(want)] - want).abs().max())
        if not off <= TOLERANCE[want.dtype] * largest:
            raise Disagreement(
                f"{self.say(label)}: computed row by row its logits differ by {off:.3g} (largest logit {largest:.3g}) "
                "from those of a whole pass. This is a fault of the fast path: engine='hooks' does without it"
            )
