"""What the recorded weights say: relations derived from them, and mean weights from role to role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal

import pandas as pd
import torch
from einops import einsum
from torch import Tensor

from workbench.anatomy import Sight, check_place
from workbench.arguments import check_model
from workbench.batch import Batch
from workbench.edits import MissingExamples
from workbench.locations import Edges
from workbench.nearest import nearest
from workbench.roles import Control, TopSource, control_relation, top_relation
from workbench.running import record
from workbench.sites import in_part

MEANING = 1
"""Raised by hand where the same derived relation or weight comes to mean another number."""


def derive(
    model: Any,
    batch: Batch,
    derived: Mapping[str, TopSource | Control],
    *,
    on_missing: Literal["raise", "skip"] = "raise",
) -> Batch:
    """The batch with more relations, computed from this model's clean run, in order; a control may name an earlier one.

    on_missing: an example in which a control finds no other source of the same class in some row raises
    `MissingExamples`; with "skip" its control stays empty, so that `run` can leave the example out and count it.

    Raises ValueError where a head must be named, and KeyError for a control of a relation that is not there.
    """
    device = next(model.parameters()).device
    batch = batch.to(device)
    if not derived:
        return batch
    if "" not in model.parts:
        raise ValueError("top sources are found in models with one stack of layers; this has several")
    sight, layers = Sight(model, batch), {}
    for name, one in derived.items():
        if name in batch.roles or name in batch.relations:
            raise ValueError(f"{name!r} is a role or relation of the batch already; give the derived one another name")
        if isinstance(one, TopSource):
            pattern, layers[name] = _pattern(model, batch, one), one.layer
            relation = top_relation(pattern, batch.role(one.dest), sight("", one.layer))
        else:
            if one.of not in layers and _layers_differ(model, sight):
                raise ValueError(
                    f"{name!r} is the control of {one.of!r}, a relation of the task, and the layers of this model see "
                    "different sources: among which would it be drawn? Give the task a relation of its own for it, or "
                    "control for a top_source, which names its layer"
                )
            layers[name] = layers.get(one.of, 0)
            relation = _control(name, one, batch, sight("", layers[name]), on_missing)
        batch = batch.with_relations(**{name: relation})
    return batch


def _layers_differ(model: Any, sight: Sight) -> bool:
    first = sight("", 0)
    return any(not torch.equal(sight("", layer), first) for layer in range(1, model.parts[""].n_layers))


def _pattern(model: Any, batch: Batch, one: TopSource) -> Tensor:
    heads = model.parts[""].n_heads
    if one.head is None and heads > 1:
        raise ValueError(f"{one}: this model has {heads} heads; say which, as top_source(layer, head, dest)")
    _check_head(model, one)
    return record(model, batch, [("pattern", one.layer)])["pattern", one.layer][:, one.head or 0]


def _check_head(model: Any, one: TopSource) -> None:
    heads = model.parts[""].n_heads
    if (one.head or 0) >= heads:
        raise KeyError(f"{one}: no head {one.head}; this model has heads 0 to {heads - 1}")


def _control(name: str, one: Control, batch: Batch, visible: Tensor, on_missing: str) -> Tensor:
    if one.of not in batch.relations:
        raise KeyError(
            f"{name!r} is the control of {one.of!r}, which is no relation. {nearest(one.of, sorted(batch.relations))}"
        )
    if batch.classes is None:
        raise ValueError(
            f"{name!r}: a control is drawn within a token class, and this batch has no classes: batch.with_classes(...)"
        )
    relation = batch.relations[one.of]
    drawn = control_relation(relation, visible, batch.classes, one.seed)
    lost = (relation.any(-1) & ~drawn.any(-1)).any(1)
    if lost.any() and on_missing == "raise":
        examples = lost.nonzero().flatten().tolist()
        raise MissingExamples(
            f"{name!r}: no other visible source of the same token class in {len(examples)} examples "
            f"({', '.join(map(str, examples[:8]))}); choose another control for {one.of!r}, or say "
            "on_missing='skip' to leave it empty there"
        )
    return drawn & ~lost[:, None, None]


def edge_weights(model: Any, batch: Batch, edges: Mapping[str, Edges]) -> dict[str, Tensor]:
    """The mean recorded weight of each set of edges, per example: name → [batch], NaN where the example has none.

    Only visible edges count. With `head=None` the mean is over heads as well. One clean run serves all. Float32 or
    better. Raises KeyError for a layer, head, role or relation that is not there.
    """
    check_model(model)
    if not isinstance(edges, Mapping):
        raise TypeError(f"edges come by name, as {{'answer': Edges(...)}}, also when there is one; got {edges!r}")
    for name, one in edges.items():
        check_place(model, one, f"weight {name!r}: {one}")
    batch = batch.to(next(model.parameters()).device)
    keys = {name: (in_part(one.in_model, "pattern"), one.layer) for name, one in edges.items()}
    recording = record(model, batch, sorted(set(keys.values())))
    sight = Sight(model, batch)
    out = {}
    for name, one in edges.items():
        mask = batch.edges(one.dest, one.source, one.in_model) & sight(one.in_model, one.layer)
        pattern = recording[keys[name]]
        pattern = pattern.to(torch.promote_types(pattern.dtype, torch.float32))
        weights = pattern.mean(1) if one.head is None else pattern[:, one.head]
        out[name] = (weights * mask).sum((1, 2)) / mask.sum((1, 2))
    return out


def pattern_table(
    models: Any | Mapping[str, Any], batch: Batch, pairs: Sequence[tuple[str | None, str]] | None = None
) -> pd.DataFrame:
    """Mean recorded weights, a row per model, layer, head and (dest, source).

    models: a model, or label → model. pairs: (dest role, source role or relation); default: every role × role, and
    every relation. Columns: weight_per_edge, the mean over all visible edges of all examples; mass_per_dest, the mean
    over all destinations of what they give those sources together; n_edges, n_dests, n_examples (those that have such
    an edge). A model with several stacks has a column `part` besides: "encoder", "decoder" or "cross".
    """
    models = models if isinstance(models, Mapping) else {"model": models}
    for model in models.values():
        check_model(model)
    rows = [row for label, model in models.items() for row in _rows(label, model, batch, pairs)]
    return pd.DataFrame(rows)


def _rows(
    label: str, model: Any, batch: Batch, pairs: Sequence[tuple[str | None, str]] | None
) -> Iterator[dict[str, Any]]:
    batch = batch.to(next(model.parameters()).device)
    recording = record(model, batch, ["pattern"])
    sight = Sight(model, batch)
    for part, shape in model.parts.items():
        asked = _pairs(batch, part) if pairs is None else pairs
        for (dest, source), layer in product(asked, range(shape.n_layers)):
            mask = batch.edges(dest, source, part) & sight(part, layer)
            n_edges, n_dests = int(mask.sum()), int(mask.any(-1).sum())
            pattern = recording[in_part(part, "pattern"), layer].double()
            mass = einsum(pattern, mask.double(), "b head dest source, b dest source -> head")
            for head, total in enumerate(mass.tolist()):
                row: dict[str, Any] = {"model": label, **({"part": part} if part else {})}
                row |= {"layer": layer, "head": head, "dest": dest or "every", "source": source}
                row["weight_per_edge"] = total / n_edges if n_edges else float("nan")
                row["mass_per_dest"] = total / n_dests if n_dests else float("nan")
                row |= {"n_edges": n_edges, "n_dests": n_dests, "n_examples": int(mask.flatten(1).any(1).sum())}
                yield row


def _pairs(batch: Batch, part: str) -> list[tuple[str | None, str]]:
    readers, sources = batch.sides(part)
    related = batch.alignments if part == "cross" else readers.relations
    return [*product(readers.roles, sources.roles), *((None, name) for name in related)]
