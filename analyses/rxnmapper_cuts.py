"""What cutting attention from product to reactant atoms does to the masked atoms of the rxnmapper model.

Every condition is a list of cuts on one batch of masked copies; its values are kept on disk, one file a condition, so
that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from analyses.rxnmapper_batch import Masked
from analyses.rxnmapper_mapping import UNMAPPED
from analyses.rxnmapper_model import LAYER_AND_HEAD, WEIGHTS, checked, load
from workbench import Batch, Edges, Intervention, cut, run, wrap
from workbench.anatomy import Sight
from workbench.checkpoints import key
from workbench.donors import Donors
from workbench.holdings import place as home
from workbench.metrics import accuracy, loss
from workbench.passes import execute
from workbench.preparation import resolve
from workbench.workers import refuse_inside_a_worker

__all__ = ["CHUNK", "MEASURES", "Condition", "conditions", "cut_values", "measured", "random_edges", "top_edges"]

MEASURES = ("loss", "accuracy")

CHUNK = 16
"""Examples run at once. Measured on the 390 copies, ordered by length, one cut, one thread: 7.7 s with 16, 8.0 s with
32, 8.8 s with 64."""

TOP, RANDOM, TOP_IN_COPY = "top edge", "random edge", "top edge of the copy"


@dataclass(frozen=True)
class Condition:
    """A label, the family of cuts with which it is tested, and the cuts."""

    label: str
    family: str
    interventions: tuple[Intervention, ...] = ()


def conditions(layers: Sequence[int], n_heads: int, *, edges: bool = True) -> tuple[Condition, ...]:
    """Clean; each head; each layer; each head in all these layers; all of them; and the mapping head's single edges.

    edges: whether the cuts of single edges are among them; they need relations of these names in the batch.

    >>> [one.label for one in conditions([0, 1], 2, edges=False)]
    ['clean', 'L0H0', 'L0H1', 'L1H0', 'L1H1', 'L0', 'L1', 'H0', 'H1', 'all']
    """
    heads = range(n_heads)
    made = [Condition("clean", "clean")]
    made += [Condition(f"L{layer}H{head}", "head", (_cut(layer, head),)) for layer in layers for head in heads]
    made += [Condition(f"L{layer}", "layer", (_cut(layer),)) for layer in layers]
    made += [Condition(f"H{head}", "column", tuple(_cut(layer, head) for layer in layers)) for head in heads]
    made += [Condition("all", "all", tuple(_cut(layer) for layer in layers))]
    if edges:
        made += [Condition(name, "edge", (_cut(*LAYER_AND_HEAD, name),)) for name in (TOP, RANDOM, TOP_IN_COPY)]
    return tuple(made)


def _cut(layer: int, head: int | None = None, source: str = "reactant") -> Intervention:
    return cut(Edges(layer=layer, head=head, dest="product", source=source))


def top_edges(at: Tensor) -> Tensor:
    """The edge from each product atom to the source that it is mapped to: at [batch dest], one head's of `mapped` →
    [batch dest source]."""
    edges = torch.zeros(*at.shape, at.shape[-1], dtype=torch.bool, device=at.device)
    return edges.scatter(-1, at.clamp(min=0)[..., None], (at != UNMAPPED)[..., None])


def random_edges(at: Tensor, batch: Batch, *, seed: int) -> Tensor:
    """In each row of `top_edges`, another edge to a reactant atom, drawn uniformly → [batch dest source].

    Raises ValueError where a reaction has one reactant atom, which leaves no other.
    """
    others = batch.edges("product", "reactant") & ~top_edges(at)
    if bad := (batch.role("product") & ~others.any(-1)).any(1).nonzero().flatten().tolist():
        raise ValueError(f"examples {bad} have one reactant atom, so that there is no other edge to draw")
    drawn = torch.stack(
        # A stream of its own per reaction, so that adding one leaves the others as they were.
        [
            torch.rand(row.shape, generator=torch.Generator().manual_seed(seed * 1_000_003 + n))
            for n, row in enumerate(others)
        ]
    )
    chosen = drawn.masked_fill(~others, -1.0).argmax(-1)
    return top_edges(chosen.masked_fill(~batch.role("product"), UNMAPPED))


def cut_values(model: Any, made: Masked, interventions: Sequence[Intervention], *, chunk: int = CHUNK) -> pd.DataFrame:
    """A row per reaction with the mean loss and accuracy over its product atoms, each masked once; float64.

    Examples are run in order of length, in chunks without the padding that the longest of the chunk does not need;
    the values are those of the batch run whole, up to rounding.
    """
    found = {name: torch.empty(len(made.batch), dtype=torch.double) for name in MEASURES}
    for examples in made.batch.valid.sum(1).argsort(stable=True).split(chunk):
        part = trimmed(made.batch.select(examples))
        logits = _logits(model, part, interventions)
        for name, measure in zip(MEASURES, (loss, accuracy), strict=True):
            found[name][examples] = measure(logits, part).double()
    return pd.DataFrame({name: made.per_reaction(values).numpy() for name, values in found.items()})


def _logits(model: Any, batch: Batch, interventions: Sequence[Intervention]) -> Tensor:
    """What `run` gives. Of several cuts it would also leave out each in turn, to find those that the others make
    idle: 13 passes for 12 layers. Here each of them is a condition of its own."""
    if len(interventions) < 2:
        return run(model, batch, interventions, positions="read").logits
    sight, everyone = Sight(model, batch), torch.arange(len(batch))
    donors = Donors(model, batch, everyone, len(batch), {}, "read", len(batch))
    edits = resolve(model, batch, interventions, sight, donors)
    return execute(model, batch, edits, read=batch.read_positions()).logits


def trimmed(batch: Batch) -> Batch:
    """The batch without the columns at its end that are padding in every example."""
    length = int(batch.valid.any(0).nonzero().max()) + 1
    return replace(
        batch,
        tokens=batch.tokens[:, :length],
        labels=batch.labels[:, :length],
        valid=batch.valid[:, :length],
        roles={name: mask[:, :length] for name, mask in batch.roles.items()},
        relations={name: mask[:, :length, :length] for name, mask in batch.relations.items()},
        classes=None if batch.classes is None else batch.classes[:, :length],
    )


def measured(
    made: Masked,
    several: Sequence[Condition],
    *,
    place: Path | str | None = None,
    workers: int = 2,
    progress: bool = True,
) -> dict[str, pd.DataFrame]:
    """`cut_values` of every condition, by label; those kept in HOME/rxnmapper are read, the others run and kept. Each
    has a column `seconds` more: how long the condition took, the same in every row.

    workers: processes that run conditions, each on one thread; how many has no influence on the values.

    Raises FileNotFoundError, with the command that mends it, where the model was not fetched.
    """
    refuse_inside_a_worker()
    weights = hashlib.sha256((checked(place) / WEIGHTS).read_bytes()).hexdigest()
    known = {"weights": weights, "batch": made.batch.digest(), "reaction": made.reaction.tolist(), "meaning": 1}
    paths = {one.label: home(place) / "rxnmapper" / f"{key(known | _said(one))}.parquet" for one in several}
    left = [one for one in several if not paths[one.label].is_file()]
    if left:
        _run_all(made, [(one.interventions, paths[one.label]) for one in left], place, workers, progress)
    return {label: _read(path, int(made.reaction.max()) + 1) for label, path in paths.items()}


def _said(one: Condition) -> dict[str, Any]:
    return {"condition": [intervention.model_dump(mode="json") for intervention in one.interventions]}


def _run_all(made: Masked, jobs: list[tuple[Any, Path]], place: Any, workers: int, progress: bool) -> None:
    context = multiprocessing.get_context("spawn")
    n = min(workers, len(jobs), os.cpu_count() or 1)
    # The longest first: a column of twelve cuts begun last would be waited for alone.
    jobs = sorted(jobs, key=lambda job: -len(job[0]))
    with ProcessPoolExecutor(n, context, initializer=_start_worker, initargs=(made, place)) as pool:
        running = [pool.submit(_work, *job) for job in jobs]
        try:
            for future in tqdm(as_completed(running), total=len(running), disable=not progress, file=sys.stderr):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_worker: dict[str, Any] = {}


def _start_worker(made: Masked, place: Path | str | None) -> None:
    torch.set_num_threads(1)
    _worker.update(model=wrap(load(place)), made=made)


def _work(interventions: Sequence[Intervention], path: Path) -> None:
    start = time.perf_counter()
    values = cut_values(_worker["model"], _worker["made"], interventions)
    values["seconds"] = time.perf_counter() - start
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        values.to_parquet(beside, index=False)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _read(path: Path, n_reactions: int) -> pd.DataFrame:
    """Raises ValueError for a file that is not what was kept."""
    try:
        values = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise ValueError(f"{path} cannot be read ({error}); delete it, and run again") from error
    if list(values.columns) != [*MEASURES, "seconds"] or len(values) != n_reactions or values.isna().any(axis=None):
        raise ValueError(
            f"{path} does not hold {', '.join(MEASURES)} of {n_reactions} reactions; delete it, and run again"
        )
    return values
