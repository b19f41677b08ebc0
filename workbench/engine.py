"""Many conditions of one model on one batch: what an edit cannot change is computed once, in the clean run, and only
the rows that it can change are computed anew.

Where the fast path does not apply, a condition goes through hooks in a pass of its own, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.batch import Batch
from workbench.block import Outcome
from workbench.block_by_block import Engine, Lists, by_blocks
from workbench.donors import Positions
from workbench.metrics import AGAINST_CLEAN, METRICS
from workbench.nearest import nearest
from workbench.running import Run
from workbench.scene import OnMissing, Say, Scene

__all__ = ["Measured", "measure_each", "run_each"]


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
    say = _labelled(conditions)
    logits: dict[str, list[Tensor]] = {label: [] for label in conditions}
    given: set[int] = set()

    def keep(label: str, found: Outcome, _scene: Scene, clean: Tensor) -> None:
        shared = found.logits is clean or id(found.logits) in given
        given.add(id(found.logits))
        logits[label].append(found.logits.clone() if shared else found.logits)

    scene, ends = by_blocks(
        model,
        batch,
        conditions,
        donors,
        positions,
        on_missing,
        left_out,
        chunk_size,
        engine,
        say,
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
    metrics, say = [metrics] if isinstance(metrics, str) else metrics, say or _labelled(conditions)
    for name in metrics:
        if not isinstance(name, str):
            raise TypeError(f"metrics come by name, as 'accuracy', not as a {type(name).__name__}: {name!r}")
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

    scene, ends = by_blocks(
        model,
        batch,
        conditions,
        donors,
        "read",
        on_missing,
        left_out,
        chunk_size,
        engine,
        say,
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


def _labelled(conditions: Lists) -> Say:
    if not isinstance(conditions, Mapping):
        raise TypeError("conditions come by label, as {'cut': [cut(...)]}, also when there is one")
    return lambda label: f"condition {label!r}"
