"""Many conditions of one model on one batch: what an edit cannot change is computed once, in the clean run, and only
the rows that it can change are computed anew.

Where the fast path does not apply, a condition goes through hooks in a pass of its own, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.arguments import check_model
from workbench.batch import Batch
from workbench.block import Outcome, outcomes
from workbench.chunks import keep_freed_memory
from workbench.donors import Positions
from workbench.hooks import alone
from workbench.interventions import Intervention
from workbench.metrics import AGAINST_CLEAN, METRICS
from workbench.nearest import nearest
from workbench.operations import Custom, Resample, Shuffle
from workbench.running import Run, said_idle
from workbench.scene import OnMissing, Say, Scene, check_used, scene_of

__all__ = ["Engine", "Measured", "measure_each", "run_each"]

Engine = Literal["auto", "hooks"]
Lists = Mapping[str, Sequence[Intervention]]

CEILING = 256 * 2**20
"""Bytes of the clean run, and of logits, that are held at once."""


@dataclass(frozen=True, repr=False)
class Measured:
    """What one condition gave: metric → one value per example that ran [batch]; otherwise as `Run`.

    same: whether the logits are the clean ones, bit for bit, in every example. By rows, an edit that changes something
    of which nothing comes through (a head that writes nothing) may leave a rounding behind.
    """

    values: Mapping[str, Tensor]
    kept: Tensor
    skipped: Mapping[int, str]
    notes: tuple[str, ...]
    same: bool
    engine: str


def run_each(
    model: Any,
    batch: Batch,
    conditions: Lists,
    *,
    donors: Mapping[str, Batch] | None = None,
    positions: Positions = "all",
    on_missing: OnMissing = "raise",
    left_out: Mapping[int, str] | None = None,
    chunk_size: int = 4096,
    engine: Engine = "auto",
) -> dict[str, Run]:
    """`run` under each condition, label → interventions, all on the same examples: one that any condition lacks is left
    out of every one of them.

    engine: "auto" computes what a condition's edits can change, beside one clean run, where the model is an own one
    without hooks of others, in float32 or float64, and no edit is a custom function; elsewhere, and with "hooks"
    always, each condition is a pass of its own. `Run.engine` says which, and why. Both give the same logits within
    rounding (DESIGN.md: float64 1e-10, float32 5e-6 × the largest |logit|), and the same notes.

    Raises what `run` raises, with the condition's label before its words.

    >>> from workbench import Edges, ModelConfig, Transformer, cut
    >>> model = Transformer(ModelConfig(d_vocab=8, n_ctx=3, d_model=8, n_layers=2, n_heads=1), seed=0)
    >>> last, first = torch.tensor([[False, False, True]]), torch.tensor([[True, False, False]])
    >>> batch = Batch(torch.tensor([[4, 7, 4]]), torch.tensor([[-100, -100, 7]]), roles={"last": last, "first": first})
    >>> each = {f"layer {n}": [cut(Edges(layer=n, dest="last", source="first"))] for n in (0, 1)}
    >>> {label: (list(one.logits.shape), one.engine) for label, one in run_each(model, batch, each).items()}
    {'layer 0': ([1, 3, 8], 'rows'), 'layer 1': ([1, 3, 8], 'rows')}
    """
    logits: dict[str, list[Tensor]] = {label: [] for label in conditions}
    given: set[int] = set()

    def keep(label: str, found: Outcome, _scene: Scene, clean: Tensor) -> None:
        shared = found.logits is clean or id(found.logits) in given
        given.add(id(found.logits))
        logits[label].append(found.logits.clone() if shared else found.logits)

    scene, ends = _each(
        model,
        batch,
        conditions,
        donors,
        positions,
        on_missing,
        left_out,
        chunk_size,
        engine,
        _labelled(conditions),
        keep,
    )
    return {
        label: Run(together(logits[label]), scene.batch, scene.kept, scene.skipped, end.notes, end.engine)
        for label, end in ends.items()
    }


def measure_each(
    model: Any,
    batch: Batch,
    conditions: Lists,
    metrics: str | Sequence[str] = ("accuracy",),
    *,
    donors: Mapping[str, Batch] | None = None,
    on_missing: OnMissing = "raise",
    left_out: Mapping[int, str] | None = None,
    chunk_size: int = 4096,
    engine: Engine = "auto",
    say: Say | None = None,
) -> dict[str, Measured]:
    """Metrics, by their names in `workbench.metrics`, of a model under each condition; otherwise as `run_each`.

    Examples go by in blocks, of which at most 256 MiB of the clean run and 256 MiB of logits are held at once, beside
    one value per condition, metric and example. `resample` and `shuffle` draw over the whole batch, which is then one
    block, as it is for a custom function; of a `mean`'s donor the values at its site are held whole.
    say: label → words before those of an error.

    >>> from workbench import Edges, ModelConfig, Transformer, cut
    >>> model = Transformer(ModelConfig(d_vocab=8, n_ctx=3, d_model=8, n_layers=2, n_heads=1), seed=0)
    >>> last, first = torch.tensor([[False, False, True]]), torch.tensor([[True, False, False]])
    >>> batch = Batch(torch.tensor([[4, 7, 4]]), torch.tensor([[-100, -100, 7]]), roles={"last": last, "first": first})
    >>> conditions = {"clean": [], "cut": [cut(Edges(layer=1, dest="last", source="first"))]}
    >>> found = measure_each(model, batch, conditions, ("accuracy", "loss"))
    >>> {label: (list(one.values), one.engine, one.same) for label, one in found.items()}
    {'clean': (['accuracy', 'loss'], 'rows', True), 'cut': (['accuracy', 'loss'], 'rows', False)}
    """
    metrics = [metrics] if isinstance(metrics, str) else metrics
    for name in metrics:
        if name not in METRICS and name not in AGAINST_CLEAN:
            raise KeyError(f"no metric {name!r}. {nearest(name, [*METRICS, *AGAINST_CLEAN])}")
    values: dict[str, dict[str, list[Tensor]]] = {label: {name: [] for name in metrics} for label in conditions}
    same, unchanged = dict.fromkeys(conditions, True), dict[tuple[int, str], Tensor]()

    def valued(name: str, logits: Tensor, scene: Scene, clean: Tensor) -> Tensor:
        if logits.shape[1] != scene.batch.tokens.shape[1]:
            # A block may read fewer positions of each example than the whole batch does.
            n_read = scene.batch.read_positions().shape[1]
            logits, clean = logits[:, :n_read], clean[:, :n_read]
        if name in AGAINST_CLEAN:
            return AGAINST_CLEAN[name](logits, scene.batch, clean)
        return METRICS[name](logits, scene.batch)

    def value(label: str, found: Outcome, scene: Scene, clean: Tensor) -> None:
        for name, all_ in values[label].items():
            # Of what cannot be reached the logits are the clean ones themselves, and are valued once a block.
            place = (len(all_), name)
            if found.logits is clean and place not in unchanged:
                unchanged[place] = valued(name, clean, scene, clean)
            all_.append(unchanged[place] if found.logits is clean else valued(name, found.logits, scene, clean))
        same[label] &= found.logits is clean or torch.equal(found.logits, clean)

    scene, ends = _each(
        model,
        batch,
        conditions,
        donors,
        "read",
        on_missing,
        left_out,
        chunk_size,
        engine,
        say or _labelled(conditions),
        value,
    )
    return {
        label: Measured(
            {name: together(found) for name, found in values[label].items()},
            scene.kept,
            scene.skipped,
            end.notes,
            same[label],
            end.engine,
        )
        for label, end in ends.items()
    }


def together(blocks: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(blocks)) if len(blocks) > 1 else blocks[0]


def check_engine(engine: str) -> Engine:
    """The engine of that name. Raises ValueError for another."""
    if engine not in ("auto", "hooks"):
        raise ValueError(f"engine={engine!r}; there are: 'auto', 'hooks'")
    return engine  # type: ignore[return-value]


def _labelled(conditions: Lists) -> Say:
    if not isinstance(conditions, Mapping):
        raise TypeError("conditions come by label, as {'cut': [cut(...)]}, also when there is one")
    return lambda label: f"condition {label!r}"


def _text(label: str, interventions: Sequence[Intervention]) -> object:
    """Equal for lists that are the same; a custom function's is its own."""
    return label if any(isinstance(one.what, Custom) for one in interventions) else tuple(interventions)


@dataclass(frozen=True)
class _End:
    notes: tuple[str, ...]
    engine: str


def _each(
    model: Any,
    batch: Batch,
    conditions: Lists,
    donors: Mapping[str, Batch] | None,
    positions: Positions,
    on_missing: OnMissing,
    left_out: Mapping[int, str] | None,
    chunk_size: int,
    engine: Engine,
    say: Say,
    take: Callable[[str, Outcome, Scene, Tensor], None],
) -> tuple[Scene, dict[str, _End]]:
    """Runs block after block, and hands over what each condition gave, with the clean logits."""
    check_engine(engine)
    check_model(model)
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}; it counts examples, 1 or more")
    keep_freed_memory()
    with alone(model):
        whole = scene_of(
            model,
            batch,
            conditions,
            donors=donors,
            positions=positions,
            on_missing=on_missing,
            left_out=left_out,
            chunk_size=chunk_size,
            say=say,
        )
        texts = {label: _text(label, several) for label, several in conditions.items()}
        first = {text: label for label, text in reversed(list(texts.items()))}
        once = {label: conditions[label] for label, text in texts.items() if first[text] == label}
        known: dict[str, list[Outcome]] = {label: [] for label in conditions}
        for number, scene in enumerate(_blocks(whole, once, positions, chunk_size)):
            clean, found = outcomes(scene, once, positions, chunk_size, engine, say, checked=number == 0)
            if number == 0:
                check_used(donors, conditions.values())
            for label, text in texts.items():
                take(label, found[first[text]], scene, clean)
                known[label].append(found[first[text]].without_logits())
            del clean, found
        unknown = {label: once[label] for label in once if None in _idle(known[label])}
        for number, scene in enumerate(_blocks(whole, once, positions, chunk_size) if unknown else ()):
            lists = {label: several for label, several in unknown.items() if None in known[label][number].idle}
            again = outcomes(scene, lists, positions, chunk_size, "hooks", say, checked=False)[1] if lists else {}
            for label in known:
                if (seen := again.get(first[texts[label]])) is not None:
                    known[label][number] = replace(known[label][number], idle=seen.idle)
    return whole, {label: _end(found) for label, found in known.items()}


def _end(found: Sequence[Outcome]) -> _End:
    """The notes of all blocks together: numbers of examples add up, and what holds in all of them holds."""
    prepared = found[-1].prepared.after([one.prepared for one in found[:-1]])
    idle = [bool(each) for each in _idle(found)]
    swallowed = [note for note in found[0].swallowed if all(note in one.swallowed for one in found)]
    engines = list(dict.fromkeys(one.engine for one in found))
    return _End((*prepared.notes, *said_idle(prepared, idle), *swallowed), "; ".join(engines))


def _idle(found: Sequence[Outcome]) -> list[bool | None]:
    """For each edit whether it changed nothing in any block; None where it changed nothing in some, and was not seen in
    others; False where it was seen in none."""
    each = zip(*(one.idle for one in found), strict=True)
    return [False if False in seen or True not in seen else None if None in seen else True for seen in each]


def _blocks(scene: Scene, conditions: Lists, positions: Positions, chunk_size: int) -> Iterator[Scene]:
    """The scene's examples in blocks that fit into memory."""
    changes = [getattr(one.what, "change", one.what) for several in conditions.values() for one in several]
    n, size = len(scene.batch), min(chunk_size, max(1, CEILING // _bytes(scene, len(conditions))))
    if n <= size or any(isinstance(what, Resample | Shuffle | Custom) for what in changes):
        yield scene
        return
    for at in range(0, n, size):
        yield scene.part(slice(at, at + size), positions)


def _bytes(scene: Scene, n_conditions: int) -> int:
    """Of one example: its clean run or its logits, whichever is more."""
    model, each = scene.model, next(scene.model.parameters()).element_size()
    run = 0
    for part, shape in model.parts.items():
        readers, sources = scene.batch.sides(part)
        n, m = readers.tokens.shape[1], sources.tokens.shape[1]
        width = getattr(getattr(model, "config", None), "d_model", 1024)
        run += shape.n_layers * (4 * (n + m) * width + 2 * shape.n_heads * n * m)
    n_read = int((scene.batch.labels != -100).sum(1).max())
    return each * max(run, n_conditions * max(1, n_read) * model.n_out)
