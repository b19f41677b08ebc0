"""What must be known of rows that are not computed, since they cannot matter: whether one is left empty, and whether an
edit changes anything there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workbench import rows as on_rows
from workbench.affected import Affected, Masks
from workbench.anatomy import last_layer
from workbench.edits import Edit, rows_of_each
from workbench.hooks import Key
from workbench.operations import Freeze
from workbench.prepared import Prepared
from workbench.scene import Scene
from workbench.sites import SITES, split


def may_empty(cells: Sequence[Sequence[Edit]], found: Affected, model: Any, read: Tensor | None) -> set[int]:
    """The cells in which an edit acts on rows that are not computed, and nobody said what becomes of one that is left
    empty. read: as in `check_emptied`."""
    by_key: dict[Key, list[tuple[int, Edit]]] = {}
    for cell, edits in enumerate(cells):
        for edit in edits:
            if _raises(edit):
                by_key.setdefault(edit.key, []).append((cell, edit))
    out: set[int] = set()
    for key, several in by_key.items():
        computed = _computed(key, found)[[cell for cell, _ in several]]
        rows = rows_of_each([edit for _, edit in several], computed.shape[1]) & ~computed
        some = (rows & _passed(key, rows[0], model, read)).flatten(1).any(1).tolist()
        out |= {cell for (cell, _), emptied in zip(several, some, strict=True) if emptied}
    return out


def _raises(edit: Edit) -> bool:
    return split(edit.site)[1] == "scores" and getattr(edit.alike, "empty", "") == "raise"


def check_emptied(edits: Sequence[Edit], found: Affected, cell: int, scene: Scene, read: Tensor | None) -> None:
    """Raises EmptyRow where a row that is not computed loses its last source, and nobody said what becomes of it.

    read [example read]: the positions that a whole pass computes in the last layer; None where it computes all.
    """
    by_key: dict[Key, list[Edit]] = {}
    for edit in edits:
        if split(edit.site)[1] == "scores":
            by_key.setdefault(edit.key, []).append(edit)
    for key, several in by_key.items():
        raising = [edit for edit in several if _raises(edit)]
        if any(_outside(edit, found, cell, scene.model, read).any() for edit in raising):
            sees = scene.sight(split(key[0])[0], key[1] or 0)
            sees = sees & _passed(key, sees[..., 0], scene.model, read)[..., None]
            for head in {edit.head for edit in several}:
                _chained([edit for edit in several if edit.head in (None, head)], sees)


def _chained(edits: Sequence[Edit], sees: Tensor) -> None:
    """Makes edits, one after the other, on scores that are 0 wherever a source is seen."""
    scores = torch.zeros(sees.shape, device=sees.device).masked_fill(~sees, on_rows.HIDDEN)[:, None]
    for edit in edits:
        if not {"by_head"} & set(edit.tensors):
            scores = replace(edit, head=None).on(scores, slice(0, len(sees)), None)


def unsure(
    prepared: Prepared, idle: Sequence[bool], found: Affected, cell: int, model: Any, read: Tensor | None
) -> bool:
    """Whether an edit that changed no row computed may change one that is not."""
    return any(
        nothing and not unread and bool(_outside(edit, found, cell, model, read, prepared.edits[:place]).any())
        for place, (edit, nothing, unread) in enumerate(zip(prepared.edits, idle, prepared.unread, strict=True))
    )


def _passed(key: Key, like: Tensor, model: Any, read: Tensor | None) -> Tensor:
    """The rows of a site that a whole pass computes [example pos]."""
    if read is None or not last_layer(model, *key):
        return torch.ones_like(like, dtype=torch.bool)
    return torch.zeros_like(like, dtype=torch.bool).scatter(1, read[: len(like)], True)


def _computed(key: Key, found: Affected) -> Masks:
    """The rows of a site that are computed."""
    part, bare = split(key[0])
    layer = found.layers["decoder" if part == "cross" else part, key[1] or 0]
    if SITES[bare].positions != "source":
        return layer.leaving
    kept = layer.crossed if part == "cross" else layer.source
    return layer.entering if bare == "resid_pre" or kept is None else kept


def _outside(
    edit: Edit, found: Affected, cell: int, model: Any, read: Tensor | None, before: Sequence[Edit] = ()
) -> Tensor:
    """The rows of an edit that are not computed [example pos]; of what is put back, those alone that are affected, also
    by edits of the same site before it."""
    computed = _computed(edit.key, found)
    rows = edit.rows_of(computed.shape[1]) & ~computed[cell]
    if not bool(rows.any()):
        return rows
    rows = rows & _passed(edit.key, rows, model, read)
    if not isinstance(edit.alike, Freeze):
        return rows
    other = found.at[edit.key][cell]
    for one in before:
        other = other | one.rows_of(len(other)) if one.key == edit.key else other
    return rows & other
