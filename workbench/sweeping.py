"""Sweeps: one operation at one place after another, in one model or many, on the same examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np

from workbench.batch import Batch
from workbench.block_by_block import Engine
from workbench.checkpoints import Trained
from workbench.engine import Measured, measure_each
from workbench.genuine import check_words
from workbench.interventions import Intervention
from workbench.position_roles import (
    as_positions,
    described,
    never_padded,
    of_one_size,
    position_names,
    with_positions,
)
from workbench.progress import bar
from workbench.running import MissingExamples, OnMissing
from workbench.scene import saying
from workbench.studies import as_trained
from workbench.sweep_frame import Found, frame_of, notes_of, notes_of_all, notes_of_each, places_of
from workbench.sweep_places import Cells, cells_of, excluding
from workbench.sweep_plan import Over, Plan, asked_for, check_given, listed, several
from workbench.swept import CLEAN, Swept

__all__ = ["Swept", "sweep"]

BESIDE = "beside"


def sweep(
    models: Any,
    batch: Batch,
    operation: Callable[..., Intervention],
    over: Over = "edges",
    *,
    layers: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | Literal["together"] | None = None,
    dest: Any = None,
    source: Any = None,
    pos: Any = None,
    part: str | Iterable[str] | None = None,
    stack: Literal["encoder", "decoder"] | None = None,
    kind: Literal["self", "cross"] | None = None,
    metrics: str | Sequence[str] = ("accuracy",),
    donors: Mapping[str, Batch] | None = None,
    beside: Sequence[Intervention] = (),
    on_missing: OnMissing = "raise",
    chunk_size: int = 4096,
    engine: Engine = "auto",
    progress: bool = True,
    **arguments: Any,
) -> Swept:
    """One operation at one place after another: the results frame of all of them, their effects and their heat map.

    models: one that `run` takes, several, or label → several as `run_study` takes them; trained ones or bare.
    operation: cut, keep_only, uniform, shuffle, scale, zero, mean, resample, patch, add or freeze; `arguments` are its
        keywords: `by=2.0`, `donor="other"`, `align="role"`, `seed=0`, `empty="no-update"`.
    over, what a cell is:
        "edges": layer × head × dest × source, by position (counted along the tensors, from 0), where some example sees
            the edge. An edit that would leave a row without a source in some example, also in one that is then
            skipped, is left out, and counted in the notes, unless `empty` says what becomes of such a row. `shuffle`
            takes a row a cell.
        "roles": layer × head × dest × source, each a role (source: or a relation); all of the batch's where none is
            named; those between which no example sees an edge are left out, and counted in the notes. Cells may exclude
            each other, as answer←other and other←answer do where the mask hides one or the other: name dest and source.
        "heads": layer × head × `pos`, of `part` ("z", or several of q k v z result).
        "stream": layer × `part` × `pos`; the parts are all that the model has of resid_pre attn_out resid_mid mlp_out
            resid_post where none is named; with kind="cross" these are attn_out, what cross-attention adds to the
            decoder's stream, and resid_mid, the sum.
    layers, heads, dest, source, pos, part: one or several, to sweep these alone. heads="together" edits all heads of a
        layer at once. pos: roles or positions; without it a cell is every position at once.
    stack, kind: which part of a model that has several, as for `Edges`; such a model needs one of them.
    beside: interventions in force in every cell, before the cell's own, with a condition "beside" of their own
        (`beside=corrupted("other")` and the operation `freeze` restore one clean value after another).
    donors: a batch for each name that `donor=` says, as `donors={"other": batch}`.
    on_missing: "skip" drops an example that any cell cannot act on from every condition of the model; how many ran, and
        what the others lacked, is in the notes, in what is printed of the sweep and beneath its heat map.

    Every condition sees the same examples, and the frame's `attrs` say what was measured, as `joined` asks. Logits are
    never held: beside what `measure_each` needs for `chunk_size` examples, a sweep keeps its frame, cells × examples ×
    models rows of about 20 bytes and 4 a metric (88 cells of 100,000 examples: some 0.2 GB a model), and the metrics of
    one model at a time.

    Raises TypeError and ValueError for what cannot be swept so, KeyError for a layer, head, position, role, part,
    metric or donor that is not there, and otherwise as `run` does, with the model's name before it.

    >>> import torch
    >>> from workbench import Batch, ModelConfig, Transformer, cut, sweep
    >>> model = Transformer(ModelConfig(d_vocab=8, n_ctx=3, d_model=8, n_layers=2, n_heads=1), seed=0)
    >>> batch = Batch(torch.tensor([[4, 7, 4]]), torch.tensor([[-100, -100, 7]]))
    >>> swept = sweep(model, batch, cut, over="edges", layers=1, metrics="log_prob", progress=False)
    >>> swept
    Swept(5 cells over edges, 1 left out, 2 that cannot reach what is read; 1 model, 1 example; log_prob)
    >>> swept.effects()[["dest", "source", "unchanged"]].values.tolist()
    [[1, 0, True], [1, 1, True], [2, 0, False], [2, 1, False], [2, 2, False]]
    """
    narrowed = {"layers": layers, "heads": heads, "dest": dest, "source": source, "pos": pos, "part": part}
    plan = Plan(operation, arguments, over, narrowed, stack, kind)
    plan.check()
    asked = asked_for(metrics)
    if not isinstance(beside, Intervention):
        beside = [*beside]
    check_given(plan, batch, donors, beside, on_missing, chunk_size)
    known = as_trained(several(models))
    names = position_names([batch, *(donors or {}).values()])
    widen = partial(with_positions, names=names) if plan.by_position else _as_it_is
    given = {name: widen(donor) for name, donor in (donors or {}).items()}
    options = {
        "metrics": asked, "donors": given, "on_missing": on_missing, "chunk_size": chunk_size, "engine": engine
    }  # fmt: skip
    trained = [(label, one) for label, some in known.items() for one in some]
    for label, one in trained:
        check_words(label, one, batch)
    found = []
    with bar("sweeping", "model", len(trained), progress) as drawn:
        for label, one in trained:
            with saying(f"sweep over {over}, {label!r}, model seed {one.seed}"):
                found.append(_found(label, one, widen(batch), plan, names, beside, options))
            drawn.update(1)
    readers, sources = batch.sides(plan.part)
    words = {"dest": described(readers), "source": described(sources)}
    frame = frame_of(found, len(batch), batch.digest())
    return Swept(frame, *places_of(found, over), notes_of(found), over, words, plan.part)


def _found(
    label: str,
    one: Trained,
    batch: Batch,
    plan: Plan,
    names: list[str],
    beside: Sequence[Intervention],
    options: Mapping[str, Any],
) -> Found:
    device = next(one.model.parameters()).device
    cells = cells_of(one.model, batch.to(device), plan, names, options["chunk_size"])
    conditions: dict[str, list[Intervention]] = {CLEAN: [], **({BESIDE: [*beside]} if beside else {})}
    conditions |= {name: [*beside, each] for name, each in cells.conditions.items()}
    with _mended(one.model, batch, plan, cells, names, options["donors"]):
        measured = measure_each(one.model, batch, conditions, **options)
    values = {name: _spread(measured, name, len(batch)) for name in options["metrics"]}
    skipped = {at: as_positions(reason, names) for at, reason in measured[CLEAN].skipped.items()}
    notes = [*notes_of_all(cells, plan, measured, skipped, len(batch)), *notes_of_each(measured)]
    return Found(label, one, cells, conditions, values, skipped, notes)


@contextmanager
def _mended(
    model: Any, batch: Batch, plan: Plan, cells: Cells, names: list[str], donors: Mapping[str, Batch]
) -> Iterator[None]:
    """Says of examples that lack something, and of roles that `resample` cannot match, how to sweep without them."""
    try:
        yield
    except MissingExamples as error:
        exclude = "" if plan.over == "edges" else excluding(cells, model, batch.to(next(model.parameters()).device))
        if exclude:
            narrow = " and ".join(f"{name}=" for name in plan.narrows)
            raise MissingExamples(f"{exclude}; name {narrow}, so that some example has what all cells need") from error
        said, kept = as_positions(str(error.args[0]), names), {name: _kept(name, batch, plan) for name in plan.narrows}
        if said != error.args[0] and all(kept.values()):
            said += "; or sweep without padding: " + " and ".join(f"{name}={one}" for name, one in kept.items())
        raise MissingExamples(said) from error
    except ValueError as error:
        if plan.name != "resample" or "align='position'" not in str(error):
            raise
        sides = [one.sides(plan.part)[0] for one in (batch, donors[plan.arguments["donor"]])]
        ways = " or ".join(f"pos={one}" for one in (of_one_size(*sides), never_padded(*sides)) if one)
        said = str(error.args[0]).split("; choose a donor")[0]
        raise ValueError(f"{said}; resample what has one size in every example: {ways or 'none'}") from error


def _kept(name: str, batch: Batch, plan: Plan) -> list[Any]:
    """Of what was asked for, all but the positions that some example pads."""
    asked, there = plan.narrowed[name], never_padded(batch.sides(plan.part)[name == "source"])
    return there if asked is None else [at for at in listed(asked) if isinstance(at, str) or at in there]


def _spread(measured: Mapping[str, Measured], metric: str, n: int) -> np.ndarray:
    """The values of a metric [condition example], NaN where an example was skipped."""
    out = np.full((len(measured), n), np.nan, dtype=np.float32)
    for row, one in zip(out, measured.values(), strict=True):
        row[one.kept.cpu().numpy()] = one.values[metric].cpu().numpy()
    return out


def _as_it_is(batch: Batch) -> Batch:
    return batch
