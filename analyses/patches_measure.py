"""What `patches` measures: under interventions, patch by patch, and with positions removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses.patches import DATA_SEED, LAYERS, PLACED, UNPLACED, study
from tasks.patches import Patches
from workbench import Batch, Edges, Study, cut, joined, record, run, run_study
from workbench.checkpoints import Trained
from workbench.examples import Examples
from workbench.metrics import tv_to_clean

ZEROED, AVERAGED = "positions set to zero", "positions averaged"
MOVED, UNPLACED_MOVED = "positions, patches moved", "no positions, patches moved"
KINDS = (PLACED, MOVED, AVERAGED, ZEROED, UNPLACED, UNPLACED_MOVED)
"""Models with and without positions, and what is done to positions after training."""


@dataclass(frozen=True)
class Measured:
    """One source of images. frame: results under interventions. places: results of every kind in KINDS. edges: a row a
    model, image and patch (`by_patch`). apart: for each model without positions the largest difference that moving
    the patches makes to a logit, over the largest logit."""

    task: Patches
    batch: Batch
    trained: Mapping[str, Sequence[Trained]]
    study: Study
    frame: pd.DataFrame
    places: pd.DataFrame
    edges: pd.DataFrame
    apart: list[float]


def measured(
    task: Patches, trained: Mapping[str, Sequence[Trained]], sizes: tuple[int, int], *, progress: bool
) -> Measured:
    """Everything on one source: on `sizes[0]` images, patch by patch on the first `sizes[1]`."""
    batch = with_halves(task.sample(sizes[0], DATA_SEED), seed=1)
    moved = with_patches_moved(batch, seed=2)
    plan = study(len(batch))
    frames = [
        run_study(plan, Examples("images", with_most(one.model, batch, seed=3)), {PLACED: [one]}, progress=progress)[0]
        for one in trained[PLACED]
    ]
    few = batch.select(slice(sizes[1]))
    edges = [by_patch(one.model, few).assign(model_seed=one.seed) for one in trained[PLACED]]
    apart = [_apart(one.model, batch, moved) for one in trained[UNPLACED]]
    places = _places(trained, batch, moved, progress)
    # The images are the same for every model, and the relations to its largest patches its own: one batch a model.
    frame = pd.concat(frames, ignore_index=True)
    return Measured(task, batch, trained, plan, frame, places, pd.concat(edges, ignore_index=True), apart)


def with_halves(batch: Batch, seed: int) -> Batch:
    """The batch with two roles more, of equally many patches in each image: `inked`, those with the most ink, as many
    as have more than the mean (or as have no more, where these are fewer), and `pale`, those with the least. Equal ink
    is put in order by the seed."""
    rank = _order(_ink(batch), seed)
    n_ink = batch.roles["ink"].sum(1, keepdim=True)
    n_patches = rank.shape[1]
    size = torch.minimum(n_ink, n_patches - n_ink)
    pale, inked = rank < size, rank >= n_patches - size
    return batch.with_roles(inked=_after_class(inked), pale=_after_class(pale))


def with_most(model: Any, batch: Batch, seed: int) -> Batch:
    """The batch with two relations more for each layer: `most-0`, the class token ← the patch that it gives the largest
    weight there in this model, and its control `like-0`, the class token ← the patch of the image that has most nearly
    as much ink. Ties are drawn by the seed."""
    recording = record(model, batch, ["pattern"])
    ink, relations = _ink(batch), dict[str, Tensor]()
    for layer in range(LAYERS):
        weight = recording["pattern", layer][:, 0, 0, 1:]
        most = weight.argmax(1, keepdim=True)
        distance = (ink - ink.gather(1, most)).abs().scatter(1, most, torch.inf)
        like = _order(distance, seed + layer).argmin(1, keepdim=True)
        relations |= {f"most-{layer}": _from_class(most, batch), f"like-{layer}": _from_class(like, batch)}
    return batch.with_relations(**relations)


def with_patches_moved(batch: Batch, seed: int) -> Batch:
    """The same images with the patches of each in an order drawn by the seed; roles that tell ink go with them."""
    patches = batch.inputs["patches"]
    order = torch.rand(patches.shape[:2], generator=torch.Generator().manual_seed(seed)).argsort(1)
    roles = {
        name: torch.cat([mask[:, :1], mask[:, 1:].gather(1, order)], 1)
        for name, mask in batch.roles.items()
        if name in ("ink", "blank", "inked", "pale")
    }
    inputs = {"patches": patches.gather(1, order[:, :, None].expand_as(patches))}
    return replace(batch, roles={**batch.roles, **roles}, inputs=inputs)


def by_patch(model: Any, batch: Batch) -> pd.DataFrame:
    """A row an image and patch: `ink` (0..1); `weight-0` and `weight-1`, what the class token gives the patch in each
    layer; `cut-0` and `cut-1`, how far the prediction moves (total variation) where the patch is cut from the class
    token's row of that layer; `hide`, how far where the patch is cut from every row of both layers."""
    n_patches = batch.tokens.shape[1] - 1
    recording = record(model, batch, ["pattern"])
    clean = run(model, batch, positions="read")
    values = {"ink": batch.inputs["patches"].mean(2)}
    values |= {f"weight-{layer}": recording["pattern", layer][:, 0, 0, 1:] for layer in range(LAYERS)}
    plans: dict[str, list[list[Any]]] = {
        f"cut-{layer}": [[cut(Edges(layer=layer, dest="class", source=f"p{k}"))] for k in range(n_patches)]
        for layer in range(LAYERS)
    }
    plans["hide"] = [[cut(Edges(layer=layer, source=f"p{k}")) for layer in range(LAYERS)] for k in range(n_patches)]
    single = torch.eye(n_patches + 1, dtype=torch.bool)[1:, None].expand(-1, len(batch), -1)
    named = batch.with_roles(**{f"p{k}": mask for k, mask in enumerate(single)})
    for name, several in plans.items():
        runs = [run(model, named, edits, positions="read") for edits in several]
        values[name] = torch.stack([tv_to_clean(one.logits, batch, clean.logits) for one in runs], 1)
    image, patch = (at.flatten() for at in torch.meshgrid(*map(torch.arange, values["ink"].shape), indexing="ij"))
    numbers = {name: value.flatten().float().numpy().round(5) for name, value in values.items()}
    return pd.DataFrame({"image": image.numpy(), "patch": patch.numpy(), **numbers})


def without_positions(one: Trained, *, averaged: bool) -> Trained:
    """The model with the vectors of the patches' positions set to zero, or each to their mean. The class token's
    stays: it marks no place in the image."""
    model = deepcopy(one.model)
    with torch.no_grad():
        rows = model.pos_embed.W_pos[1:]
        rows.copy_(rows.mean(0).expand_as(rows) if averaged else torch.zeros_like(rows))
    return replace(one, model=model, about={})


def _places(trained: Mapping[str, Sequence[Trained]], batch: Batch, moved: Batch, progress: bool) -> pd.DataFrame:
    whole, apart = Examples("images", batch), Examples("images moved", moved)
    placed, unplaced = trained[PLACED], trained[UNPLACED]
    done: dict[str, tuple[Examples, Sequence[Trained]]] = {
        PLACED: (whole, placed),
        MOVED: (apart, placed),
        AVERAGED: (whole, [without_positions(one, averaged=True) for one in placed]),
        ZEROED: (whole, [without_positions(one, averaged=False) for one in placed]),
        UNPLACED: (whole, unplaced),
        UNPLACED_MOVED: (apart, unplaced),
    }
    plan = Study(conditions={"clean": ()}, n=len(batch), data_seed=DATA_SEED)
    frames = [run_study(plan, task, {kind: models}, progress=progress)[0] for kind, (task, models) in done.items()]
    return joined(frames)


def _apart(model: Any, batch: Batch, moved: Batch) -> float:
    still, other = (run(model, one, positions="read").logits for one in (batch, moved))
    return float((still - other).abs().max() / still.abs().max())


def _ink(batch: Batch) -> Tensor:
    return batch.inputs["patches"].double().sum(2)


def _order(values: Tensor, seed: int) -> Tensor:
    """The place of each value in its row, from 0; equal ones in an order drawn by the seed."""
    drawn = torch.rand(values.shape, generator=torch.Generator().manual_seed(seed)).argsort(1)
    shuffled = values.gather(1, drawn).argsort(dim=1, stable=True)
    return drawn.gather(1, shuffled).argsort(1)


def _after_class(patches: Tensor) -> Tensor:
    return torch.nn.functional.pad(patches, (1, 0))


def _from_class(patch: Tensor, batch: Batch) -> Tensor:
    """The relation of the class token with one patch of each image [batch 1], counted from 0."""
    relation = torch.zeros(len(batch), *[batch.tokens.shape[1]] * 2, dtype=torch.bool)
    relation[torch.arange(len(batch)), 0, patch[:, 0] + 1] = True
    return relation
