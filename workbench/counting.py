"""How many floating-point operations the engine does for a group of conditions, and how many it must."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.affected import Affected, Masks
from workbench.edits import rows_of_each
from workbench.floor import LayerWork
from workbench.groups import Group, Places, Rows, Stacked
from workbench.models.config import ModelConfig
from workbench.operations import Freeze
from workbench.scene import Scene
from workbench.sites import in_part

BY_ROW = ("q", "scores", "pattern", "z")
"""Sites of which an edited row has another z."""
INSIDE, BEHIND = ("k", "v", *BY_ROW), ("attn_out", "resid_mid")


class Count:
    """Counts operations. each: how many examples one that tells for all stands for."""

    def __init__(self, scene: Scene, each: int):
        self.scene, self.model, self.each = scene, scene.model, each

    def config(self, part: str) -> ModelConfig:
        config: ModelConfig = self.model.stack(part).config
        return config.model_copy(update={"attn_only": True}) if part == "cross" else config

    def whole(self, read: Tensor | None) -> int:
        """A clean pass over all examples."""
        total, wanted = 0, self.scene.batch.tokens.shape[1] if read is None else read.shape[1]
        for part, shape in self.model.parts.items():
            config, (n, m) = self.config(part), (side.tokens.shape[1] for side in self.scene.batch.sides(part))
            for layer in range(shape.n_layers):
                rows = n if part == "encoder" or layer < shape.n_layers - 1 else wanted
                heads, kv = config.n_heads * rows, config.n_kv_heads * m
                total += LayerWork(heads, kv, kv, heads * m, heads * m, heads, rows).flops(config)
        return (total + self._read_out(wanted)) * len(self.scene.batch)

    def _read_out(self, rows: int) -> int:
        return 2 * rows * self.config("decoder").d_model * self.model.n_out

    def computed(self, group: Group) -> int:
        """What a group computes beside the clean run."""
        total = last = 0
        for (part, layer), rows in group.layers.items():
            if (at := rows.leaving) is None:
                continue
            stream, last = rows.leaving_from is not None, at.index.shape[2]
            work, mid = self._attention(group, (part, layer), at, stream, rows.source, rows.source_from)
            total += work.flops(self.config(part))
            if part == "decoder":
                work, mid = self._attention(group, ("cross", layer), at, mid, rows.crossed, rows.crossed_from)
                total += work.flops(self.config("cross"))
            through = mid and not _held(group, (part, layer), "mlp_out", at)
            total += LayerWork(mlps=last * through).flops(self.config(part))
        return (total + self._read_out(last)) * len(group.cells) * len(self.scene.batch)

    def _attention(
        self, group: Group, place: tuple[str, int], at: Rows, stream: bool, source: Rows | None, moved: Places | None
    ) -> tuple[LayerWork, bool]:
        """Attention, and whether the stream behind it is computed. stream: whether the one that enters is; moved: where
        the sources stand among new vectors."""
        config, r, s = self.config(place[0]), at.index.shape[2], 0 if source is None else source.index.shape[2]
        n = self.scene.batch.sides(place[0])[1].tokens.shape[1]
        edited = {bare for bare in (*INSIDE, "result", *BEHIND) if _edits(group, place, bare)}
        if edited <= set(BEHIND) and _held(group, place, "attn_out", at):
            return LayerWork(), stream or bool(edited)
        asked = stream or "q" in edited
        mixed = asked or s > 0 or bool(edited & {"scores", "pattern"})
        wrote = mixed or bool(edited & {"z", "result"})
        heads, kv = config.n_heads * r, config.n_kv_heads * s * (moved is not None)
        outputs = heads * wrote * (2 if "result" in edited else 1)
        work = LayerWork(heads * stream, kv, kv, heads * (n * asked + s), heads * (n * mixed + s), outputs)
        return work, stream or wrote or bool(edited)

    def floor(self, group: Group, found: Affected) -> int:
        """What of it must be: real rows alone, of sources only those that a row reads and that are other ones, of a
        layer's first edits only their heads; what an edit overwrites is counted."""
        total = last = 0
        members, known = list(group.cells), torch.zeros(0, dtype=torch.bool)
        for (part, layer), rows in group.layers.items():
            one = found.layers[part, layer]
            leaving, entering, source = (mask[members] for mask in (one.leaving, one.entering, one.source))
            work, mid = self._needed(group, (part, layer), leaving, entering, source, entering)
            total += work.flops(self.config(part))
            if one.crossed is not None:
                work, mid = self._needed(group, ("cross", layer), leaving, mid, one.crossed[members], known)
                total += work.flops(self.config("cross"))
            through = mid & ~_rows(group, (part, layer), ("mlp_out",), mid, frozen=True)
            total += LayerWork(mlps=int(through.sum())).flops(self.config(part))
            known = leaving if part == "encoder" else known
            last = int(leaving.sum()) if rows.leaving is not None else last
        return (total + self._read_out(last)) * self.each

    def _needed(
        self, group: Group, place: tuple[str, int], leaving: Masks, stream: Masks, source: Masks, moved: Masks
    ) -> tuple[LayerWork, Masks]:
        """Attention, and the rows [cell example pos] of the stream behind it that are other ones. stream: of the one
        that enters; moved: of the vectors among which the sources stand."""
        config, sees = self.config(place[0]), self.scene.sight(*place)[: leaving.shape[1]].float()
        rows = leaving & ~_rows(group, place, ("attn_out",), leaving, frozen=True)
        source = source & (torch.einsum("cbd,bds->cbs", rows.float(), sees) > 0)
        asked, weighed, mixed = (_rows(group, place, sites, leaving) & rows for sites in (("q",), BY_ROW[:3], BY_ROW))
        new, moved, seen = rows & stream, source & moved, sees.sum(-1)
        others = torch.einsum("bds,cbs->cbd", sees, source.float()) * (rows & ~new)
        heads = _heads(group, place, config.n_heads, config.n_kv_heads).to(moved.device)[:, None, None]
        anew = moved.any(-1).any(-1)[:, None, None]
        each = torch.where(new | anew, config.n_heads, heads)
        pairs = torch.where(new | weighed, seen, others)
        scored = torch.where(new | asked, seen, others * (anew | bool(_edits(group, place, "k"))))
        wrote = new | (others > 0) | mixed
        counts = (int((count * each).long().sum()) for count in (scored, pairs, wrote))
        queries, keys = config.n_heads * int(new.sum()), config.n_kv_heads * int(moved.sum())
        behind = stream | wrote | _rows(group, place, ("result", *BEHIND), leaving)
        return LayerWork(queries, keys, keys, *counts), leaving & behind


def _edits(group: Group, place: tuple[str, int], bare: str) -> list[Stacked]:
    return group.edits.get((in_part(place[0], bare), place[1]), [])


def _held(group: Group, place: tuple[str, int], bare: str, at: Rows) -> bool:
    """Whether all of these rows are put back as in the clean run."""
    edits = [one for one in _edits(group, place, bare) if isinstance(one.edits[0].alike, Freeze)]
    return any(one.everywhere(at, slice(None)) for one in edits)


def _rows(group: Group, place: tuple[str, int], sites: Sequence[str], like: Masks, frozen: bool = False) -> Masks:
    """The rows that are edited at any of these sites, or those that are put back there."""
    out = torch.zeros_like(like)
    for one in (one for bare in sites for one in _edits(group, place, bare)):
        if isinstance(one.edits[0].alike, Freeze) == frozen:
            out |= rows_of_each(one.edits, like.shape[1])
    return out


def _heads(group: Group, place: tuple[str, int], n_heads: int, n_kv_heads: int) -> Tensor:
    """In how many heads each cell is edited [cell]."""
    out = torch.zeros(len(group.cells), n_heads, dtype=torch.bool)
    for bare in INSIDE:
        each = n_heads // n_kv_heads if bare in ("k", "v") else 1
        for one in _edits(group, place, bare):
            for cell, head in enumerate(edit.head for edit in one.edits):
                out[cell, slice(None) if head is None else slice(head * each, (head + 1) * each)] = True
    return out.sum(1)
