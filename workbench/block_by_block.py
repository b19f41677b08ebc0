"""Conditions on a batch, block after block of examples that fit into memory, and what all blocks say together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from workbench.arguments import check_model
from workbench.batch import Batch
from workbench.block import Outcome, outcomes
from workbench.chunks import keep_freed_memory
from workbench.donors import Positions
from workbench.hooks import alone
from workbench.interventions import Intervention
from workbench.operations import Custom, Resample, Shuffle
from workbench.running import said_idle
from workbench.scene import OnMissing, Say, Scene, check_used, scene_of

Engine = Literal["auto", "hooks"]
Lists = Mapping[str, Sequence[Intervention]]

CEILING = 256 * 2**20
"""Bytes of the clean run, and of logits, that are held at once."""


def check_engine(engine: str) -> Engine:
    """The engine of that name. Raises ValueError for another."""
    if engine not in ("auto", "hooks"):
        raise ValueError(f"engine={engine!r}; there are: 'auto', 'hooks'")
    return engine  # type: ignore[return-value]


def _text(label: str, interventions: Sequence[Intervention]) -> object:
    """Equal for lists that are the same; a custom function's is its own."""
    return label if any(isinstance(one.what, Custom) for one in interventions) else tuple(interventions)


@dataclass(frozen=True)
class End:
    """What is said of a condition after its last block."""

    notes: tuple[str, ...]
    engine: str


def by_blocks(
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
) -> tuple[Scene, dict[str, End]]:
    """Runs block after block, and hands over (`take`) what each condition gave, with the clean logits; gives the scene
    of all examples, and what is to be said of each condition in the end."""
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


def _end(found: Sequence[Outcome]) -> End:
    """The notes of all blocks together: numbers of examples add up, and what holds in all of them holds."""
    prepared = found[-1].prepared.after([one.prepared for one in found[:-1]])
    idle = [bool(each) for each in _idle(found)]
    swallowed = [note for note in found[0].swallowed if all(note in one.swallowed for one in found)]
    engines = list(dict.fromkeys(one.engine for one in found))
    return End((*prepared.notes, *said_idle(prepared, idle), *swallowed), "; ".join(engines))


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
        written = m * width if shape.n_heads == 1 else 0  # what its head writes for each source
        run += shape.n_layers * (4 * (n + m) * width + 2 * shape.n_heads * n * m + written)
    n_read = int((scene.batch.labels != -100).sum(1).max())
    return each * max(run, n_conditions * max(1, n_read) * model.n_out)
