"""Own models computed at some rows alone: what edits can change, beside the clean run's keys, values and vectors.

Cells (one condition each) lie side by side along the axis of positions: [example cell·row ...]. What an edit does, and
what attention, norms and MLPs do, are the functions that a whole pass calls. None stands for what is as in the clean
run, and is looked up there only where it is needed.
"""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from workbench import rows as on_rows
from workbench.clean import Clean
from workbench.groups import Group, LayerRows, Places, Rows, Stacked
from workbench.hooks import Key
from workbench.models.layers import Block
from workbench.models.lean import Onward
from workbench.models.rowlayer import INSIDE, RowLayer
from workbench.operations import Freeze
from workbench.sites import in_part, split

WEIGHED = ("scores", "pattern")


class RowPass:
    """A group's cells on some examples.

    touched [example cell]: whether an edit changed anything yet; idle [cell edit]: whether one never did; doubtful
    [cell]: whether one of several changed nothing where it might have.
    """

    def __init__(self, model: Any, group: Group, clean: Clean, examples: slice):
        self.model, self.group, self.clean, self.examples = model, group, clean, examples
        self.cells = len(group.cells)
        self.touched = torch.zeros(len(clean), self.cells, dtype=torch.bool, device=clean.logits.device)
        self.idle = torch.ones(self.cells, group.n_edits, dtype=torch.bool, device=clean.logits.device)
        self.doubtful = torch.zeros(self.cells, dtype=torch.bool, device=clean.logits.device)
        self.weights: tuple[Tensor, bool] | None = None

    def onward(self, block: Block) -> Onward:
        """What takes a layer's rows onward; one for all passes of the group."""
        known: Onward = self.clean.shared.setdefault(("onward", id(block)), None) or Onward(block)
        self.clean.shared["onward", id(block)] = known
        return known

    def logits(self) -> Tensor:
        """[example cell read d_vocab]: the clean ones wherever nothing was changed."""
        parts = self.model.parts
        known = self._stack("encoder", None) if "encoder" in parts else None
        if known is not None:
            known = self.model.encoder.normed(known)
        reading = "decoder" if "decoder" in parts else ""
        x = self._stack(reading, known)
        clean = self.clean.logits[:, None].expand(-1, self.cells, -1, -1)
        leaving = self._rows(reading, parts[reading].n_layers - 1).leaving
        if x is None or leaving is None:
            return clean
        new = self.model.unembed(self.model.stack(reading).normed(x))
        by_cell = rearrange(new, "b (cell row) v -> b cell row v", cell=self.cells)
        places = self._read_out(leaving)
        if places is None:
            here = self.touched[:, :, None]
        else:
            index = places.index.expand(len(new), -1, -1)
            by_cell = by_cell.gather(2, index.clamp_min(0)[..., None].expand(*index.shape, new.shape[-1]))
            here = self.touched[:, :, None] & (index >= 0)
        return by_cell if bool(here.all()) else torch.where(here[..., None], by_cell, clean)

    def _read_out(self, rows: Rows) -> Places | None:
        """Where the positions read stand among the last layer's rows; None where both are the same."""
        found: Places | None = self.clean.once("read out", rows, lambda: self._found(rows))
        return found

    def _found(self, rows: Rows) -> Places | None:
        read = self.clean.reading
        wanted = (read[:1] if len(rows.index) == 1 else read)[:, None].expand(-1, self.cells, -1)
        if wanted.shape == rows.index.shape and torch.equal(wanted, rows.index) and bool(rows.real.all()):
            return None
        found = Rows(wanted, torch.ones_like(wanted, dtype=torch.bool)).among(rows)
        return found or Places(torch.full_like(wanted, -1), False)

    def _rows(self, part: str, layer: int) -> LayerRows:
        return self.group.layers[part, layer].of(self.examples)

    def _stack(self, part: str, known: Tensor | None) -> Tensor | None:
        x = None
        for layer in range(self.model.parts[part].n_layers):
            x = RowLayer(self, part, layer, self._rows(part, layer)).run(x, known)
        return x

    def edited(self, part: str, bare: str, layer: int, value: Tensor | None, rows: Rows) -> Tensor | None:
        """A site's rows with the edits made that are made there. What an earlier edit could not change, or did not, is
        put back to the clean run's bits first, so that an edit that changes nothing is known."""
        key = (in_part(part, bare), layer)
        stacked = self.group.edits.get(key)
        if not stacked:
            return value
        clean = None if value is not None and self.group.n_edits == 1 else self.clean.at(key, rows)
        if value is None:
            assert clean is not None
            value = clean
        elif clean is not None:
            other = self._affected(key, rows) & self.touched[:, :, None]
            value = torch.where(_wide(other, value, bare), value, clean)
        for one in stacked:
            after = one.on(value, rows, self.examples)
            had, has, axis = value, after, 2 if bare in WEIGHED else 1
            if bare == "scores":
                self.weights = on_rows.softmax_side_by_side(after)
                had, has = on_rows.softmax_side_by_side(value)[0], self.weights[0]
            changed = self._changed(had, has, rows, axis)
            if self.group.n_edits > 1:
                near = 1000 * torch.finfo(had.dtype).eps
                apart = torch.where(torch.isclose(had, has, rtol=near, atol=near), had, has)
                self._doubt(one, key, rows, self._changed(had, apart, rows, axis))
            self.touched |= changed
            self.idle[:, one.index] &= ~changed.any(0)
            value = after
        return value

    def held(self, part: str, bare: str, layer: int, rows: Rows) -> bool:
        """Whether a site is put back as in the clean run at all of these rows, whatever it would be."""
        key = (in_part(part, bare), layer)
        stacked = self.group.edits.get(key, ())
        if len(stacked) != 1 or not isinstance(stacked[0].edits[0].alike, Freeze):
            # Whether it changes anything hangs on what an edit of the same site before it made.
            return False
        one = stacked[0]
        if not one.everywhere(rows, self.examples):
            return False
        self.idle[:, one.index] &= ~(self._affected(key, rows) & self.touched[:, :, None]).any(-1).any(0)
        return True

    def _affected(self, key: Key, rows: Rows) -> Tensor:
        """Which rows an earlier edit may have changed [example cell row]."""
        before = self.group.at[key]
        before = before if before.shape[1] == 1 else before[:, self.examples]
        return rearrange(before, "cell b pos -> b cell pos").gather(2, rows.index)

    def _changed(self, before: Tensor, after: Tensor, rows: Rows, axis: int) -> Tensor:
        """Where an edit changed something [example cell]. axis: that of cells and rows."""
        other = (before != after).movedim(-1, 0).any(0).movedim(axis, 1)
        by_cell = rearrange(other, "b (cell row) ... -> b cell row (...)", cell=self.cells)
        by_row = by_cell[..., 0] if by_cell.shape[-1] == 1 else by_cell.any(-1)
        return by_row[..., 0] & rows.real[..., 0] if by_row.shape[-1] == 1 else (by_row & rows.real).any(-1)

    def _doubt(self, one: Stacked, key: Key, rows: Rows, changed: Tensor) -> None:
        """Notes where an edit changed nothing though it might have: whether a later one does can hang on rounding."""
        might = one.rows(rows, self.examples) & rows.real
        if isinstance(one.edits[0].alike, Freeze):
            might = might & self._affected(key, rows) & self.touched[:, :, None]
        self.doubtful |= (might.any(-1) & ~changed).any(0)


def _wide(mask: Tensor, value: Tensor, bare: str) -> Tensor:
    """A mask [example cell row] as one of a site's tensor."""
    flat = rearrange(mask, "b cell row -> b (cell row)")
    return flat[:, None, :, None] if bare in WEIGHED else flat.reshape(*flat.shape, *(1,) * (value.ndim - 2))


def foreseen(group: Group) -> set[Key]:
    """The sites of the clean run from which a group's rows are computed; what is missing is recorded when asked for."""
    out = set(group.edits)
    for (part, layer), rows in group.layers.items():
        if rows.leaving is not None:
            bare = {split(name)[1] for name, at in group.edits if at == layer and split(name)[0] != "cross"}
            out |= {(in_part(part, one), layer) for one in _looked_up(rows, bare)}
        if rows.leaving is not None and part == "decoder" and rows.crossed is not None:
            clean = rows.leaving_from is None and rows.source is None
            out |= {(f"cross.{one}", layer) for one in ("k", "v", *(("q", "scores") if clean else ()))}
            out |= {("decoder.resid_mid", layer)} if clean else set()
        elif rows.leaving is not None and part == "decoder":
            out |= {(f"cross.{one}", layer) for one in ("k", "v")}
    return out


def _looked_up(rows: LayerRows, edited: set[str]) -> set[str]:
    """What a layer's rows are computed from, where these sites are edited."""
    entered, out = rows.leaving_from is not None, set()
    if not (rows.leaving_from and rows.leaving_from.whole) and edited <= {*INSIDE, "attn_out"}:
        out.add("resid_pre")
    if entered or rows.source or edited & {"q", "scores", "pattern"}:
        out |= {"v"} | ({"k"} if entered or edited & {"q", "k", "v"} else set())
        out |= set() if entered or edited & {"q", "pattern"} else {"scores"}
        out |= {"q"} if rows.source and not entered else set()
    if edited & {"z", "result"} and not entered and not rows.source:
        out |= {"z", "scores"}
    return out | ({"resid_mid"} if edited and edited <= {"mlp_out"} else set())
