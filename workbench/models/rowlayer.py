"""One layer of an own model at some rows alone: attention, cross-attention, and what comes behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from einops import rearrange
from torch import Tensor

from workbench import rows as on_rows
from workbench.groups import LayerRows, Places, Rows
from workbench.models.attention import Attention, shared
from workbench.models.columns import changed_scores, mixed_with
from workbench.sites import in_part

if TYPE_CHECKING:
    from workbench.models.rowwise import RowPass

INSIDE = ("q", "k", "v", "scores", "pattern", "z", "result")
"""Sites within attention."""
WRITTEN = ("result", "attn_out", "resid_mid", "mlp_out", "resid_post")
"""Sites behind it."""


class RowLayer:
    """One layer of a pass."""

    def __init__(self, whole: RowPass, part: str, layer: int, rows: LayerRows):
        self.whole, self.part, self.layer, self.rows = whole, part, layer, rows
        self.model, self.clean = whole.model, whole.clean
        self.block = whole.model.block(part, layer)

    def run(self, x: Tensor | None, known: Tensor | None) -> Tensor | None:
        """What leaves the layer. x: what left the layer before; known: what left the encoder."""
        rows = self.rows.leaving
        if rows is None:
            return None
        entered = self._entering(x)
        stream = self._placed(self.rows.leaving_from, entered, "resid_pre", rows)
        source, places, written = self.rows.source, self.rows.source_from, self._writes(rows, entered)
        z, scores, empties = self._mixed(self.part, rows, stream, source, places, entered, written)
        if z is not None and not empties and self._onward:
            before = self._at("resid_pre", rows) if stream is None else stream
            return self.whole.onward(self.block)(before, z, written)
        attn = self.block.attn
        out = self._edited("attn_out", self._written(self.part, attn, rows, z, scores, empties, written), rows)
        mid = self._edited("resid_mid", self._sum("resid_pre", stream, "attn_out", out, rows), rows)
        if mid is not None and self.block.norm == "post":
            mid = self.block.ln1(mid)
        if "cross" in self.model.parts and self.part == "decoder":
            mid = self._crossing(rows, mid, known)
        return self._mlp(rows, mid)

    def _edited(self, bare: str, value: Tensor | None, rows: Rows, part: str | None = None) -> Tensor | None:
        return self.whole.edited(self.part if part is None else part, bare, self.layer, value, rows)

    def _at(self, bare: str, rows: Rows, part: str | None = None) -> Tensor:
        return self.clean.at((in_part(self.part if part is None else part, bare), self.layer), rows)

    def _placed(self, places: Places | None, new: Tensor | None, bare: str, rows: Rows) -> Tensor | None:
        """The rows of a site: new ones where they stand among `new`, else the clean run's; None where all are clean."""
        if places is None or new is None:
            return None
        return places.pick(new, None if places.whole else self._at(bare, rows))

    def _sum(self, one: str, left: Tensor | None, other: str, right: Tensor | None, rows: Rows) -> Tensor | None:
        if left is None and right is None:
            return None
        return (self._at(one, rows) if left is None else left) + (self._at(other, rows) if right is None else right)

    def _entering(self, x: Tensor | None) -> Tensor | None:
        rows = self.rows.entering
        if rows is None:
            return None
        return self._edited("resid_pre", self._placed(self.rows.entering_from, x, "resid_pre", rows), rows)

    @property
    def _onward(self) -> bool:
        """Whether nothing is edited from what attention's heads write on, and no cross-attention follows."""
        crossing = "cross" in self.model.parts and self.part == "decoder"
        edits, part = self.whole.group.edits, self.part
        return not crossing and not any((in_part(part, bare), self.layer) in edits for bare in WRITTEN)

    def _writes(self, rows: Rows, read: Tensor | None) -> bool:
        """Whether values are mixed as what the head writes for them: where there is one head, nobody is heard between,
        and it saves operations."""
        attn, source, places = self.block.attn, self.rows.source, self.rows.source_from
        edited = any((in_part(self.part, bare), self.layer) in self.whole.group.edits for bare in ("k", "v", "z"))
        if len(attn.W_O) > 1 or edited or not self._onward:
            return False
        if source is not None and (read is None or places is None or not places.whole):
            return False
        d_head, d_model = attn.W_O.shape[1:]
        n, many = self.clean.scene.batch.sides(self.part)[1].tokens.shape[1], rows.index.shape[1] * rows.index.shape[2]
        return many >= n and n * (d_model - d_head) <= d_head * d_model // 2

    def _mixed(
        self,
        part: str,
        rows: Rows,
        stream: Tensor | None,
        source: Rows | None,
        places: Places | None,
        read: Tensor | None,
        written: bool = False,
    ) -> tuple[Tensor | None, Tensor | None, bool]:
        """What attention mixes at rows (z), their scores, and whether a row may be empty. stream: what reads there;
        source: the sources that are other ones; read: the vectors among which they stand at `places`; written: what is
        mixed is not the values, but what the head writes for them."""
        inside = any((in_part(part, bare), self.layer) in self.whole.group.edits for bare in INSIDE)
        if not inside and self.whole.held(part, "attn_out", self.layer, rows):
            return None, None, True
        block = self.model.block(part, self.layer)
        attn, pre = block.attn, block.norm == "pre"
        q = (
            None
            if stream is None
            else attn.queries(block.ln1(stream) if pre else stream, self.clean.places(part, rows))
        )
        q = self._edited("q", q, rows, part)
        k = v = x = None
        if source is not None:
            new = read if read is None or not pre or part == "cross" else block.ln1(read)
            x = places.pick(new, None) if new is not None and places is not None else None
            k, v = self._sources(part, attn, source, places, x, written, q is None and self._asks(part, attn, rows))
        scores, weights, empties = self._weighed(part, rows, self._scores(part, attn, rows, q, source, k, x))
        z = None
        if weights is not None or v is not None:
            weights = self._at("pattern", rows, part) if weights is None else weights
            key = (in_part(part, "v"), self.layer)
            values = self.clean.made(key, self.whole.onward(block).writing) if written else self.clean.value(key)
            if source is None or v is None:
                z = attn.mixed(weights, values)
            else:
                z = mixed_with(attn, weights, values, v, source)
        return self._edited("z", z, rows, part), scores, empties

    def _weighed(self, part: str, rows: Rows, scores: Tensor | None) -> tuple[Tensor | None, Tensor | None, bool]:
        """Scores and weights with their edits made, and whether a row may be empty."""
        self.whole.weights = None
        scores = self._edited("scores", scores, rows, part)
        weights, empties = None, True
        if scores is not None:
            weights, empties = self.whole.weights or on_rows.softmax_side_by_side(scores)
        return scores, self._edited("pattern", weights, rows, part), empties

    def _sources(
        self,
        part: str,
        attn: Attention,
        source: Rows,
        places: Places | None,
        x: Tensor | None,
        written: bool,
        asked: bool,
    ) -> tuple[Tensor | None, Tensor]:
        """Keys and values of the sources that are other ones, by their vectors. written: what the head writes for
        values, in their place; asked: no keys, where vectors serve as well."""
        k = v = None
        asked = asked and x is not None and places is not None and places.whole
        if x is not None and places is not None:
            if not asked:
                turned = attn.turn(attn.keys(x), self.clean.places(part, source))
                k = self._where(places, turned, "k", source, part)
            v = self.whole.onward(self.block).written(x) if written else attn.values(x)
            v = self._where(places, v, "v", source, part)
        k, v = self._edited("k", k, source, part), self._edited("v", v, source, part)
        k = self._at("k", source, part) if k is None and not asked else k
        return k, self._at("v", source, part) if v is None else v

    def _where(self, places: Places, new: Tensor, bare: str, source: Rows, part: str) -> Tensor:
        """New keys or values of the sources that have a place, the clean run's of the others."""
        if places.whole:
            return new
        there = rearrange(places.index >= 0, "b cell row -> b (cell row) 1 1")
        return torch.where(there, new, self._at(bare, source, part))

    def _scores(
        self,
        part: str,
        attn: Attention,
        rows: Rows,
        q: Tensor | None,
        source: Rows | None,
        k: Tensor | None,
        x: Tensor | None,
    ) -> Tensor | None:
        """The rows' scores; None where neither their queries nor any key is another. k, x: keys of the sources that are
        other ones, or where these were not made, their vectors."""
        if q is None and source is None:
            return None
        if q is None:
            scores = self._at("scores", rows, part)
            q = self.clean.viewed((in_part(part, "q"), self.layer), rows)
        else:
            keys = self.clean.value((in_part(part, "k"), self.layer))
            scores = attn.scores(q, keys, self.clean.bias(part, attn, rows))
            scores = scores.masked_fill(~self.clean.seen(part, self.layer, rows)[:, None], on_rows.HIDDEN)
        if source is None:
            return scores
        k, place = None if k is None else shared(k, q.shape[2]), (part, self.layer)
        return changed_scores(scores, attn, q, k, x, rows, source, self.clean, place)

    def _asks(self, part: str, attn: Attention, rows: Rows) -> bool:
        """Whether one clean query asks the vectors of all cells, so that it can be taken through W_K, not they."""
        site = (in_part(part, "k"), self.layer)
        alone = not attn.turning and site not in self.whole.group.edits
        return alone and self.clean.single((in_part(part, "q"), self.layer), rows)

    def _written(
        self,
        part: str,
        attn: Attention,
        rows: Rows,
        z: Tensor | None,
        scores: Tensor | None,
        empties: bool,
        written: bool = False,
    ) -> Tensor | None:
        """What z adds to the stream, with the edits made of what each head writes."""
        edited = (in_part(part, "result"), self.layer) in self.whole.group.edits
        if z is None and not edited:
            return None
        z = self._at("z", rows, part) if z is None else z
        empty = None
        if empties:
            scores = self._at("scores", rows, part) if scores is None else scores
            empty = (scores == on_rows.HIDDEN).all(-1).all(1)
        out = attn.biased(rearrange(z, "b row 1 d_model -> b row d_model"), empty) if written else attn.output(z, empty)
        if not edited:
            return out
        result = attn.results(z)
        after = self._edited("result", result, rows, part)
        assert after is not None
        return out + (after - result).sum(2)

    def _crossing(self, rows: Rows, x: Tensor | None, known: Tensor | None) -> Tensor | None:
        """The stream behind cross-attention, normed where it is."""
        cross = self.model.block("cross", self.layer)
        z, scores, empties = self._mixed("cross", rows, x, self.rows.crossed, self.rows.crossed_from, known)
        out = self._edited("attn_out", self._written("cross", cross.attn, rows, z, scores, empties), rows, "cross")
        mid = None
        if x is not None or out is not None:
            mid = (self._behind_attention(rows) if x is None else x) + (
                self._at("attn_out", rows, "cross") if out is None else out
            )
        mid = self._edited("resid_mid", mid, rows, "cross")
        return cross.ln1(mid) if mid is not None and cross.norm == "post" else mid

    def _behind_attention(self, rows: Rows) -> Tensor:
        """The clean stream behind the layer's own attention, normed where it is."""
        mid = self._at("resid_mid", rows)
        return self.block.ln1(mid) if self.block.norm == "post" else mid

    def _before_mlp(self, rows: Rows) -> Tensor:
        """The clean stream that the MLP adds to."""
        if not ("cross" in self.model.parts and self.part == "decoder"):
            return self._behind_attention(rows)
        mid, cross = self._at("resid_mid", rows, "cross"), self.model.block("cross", self.layer)
        return cross.ln1(mid) if cross.norm == "post" else mid

    def _mlp(self, rows: Rows, x: Tensor | None) -> Tensor:
        """What leaves the layer: the stream behind the MLP."""
        block = self.block
        if block.mlp is None:
            stream = x
        else:
            new = None
            if x is not None and not self.whole.held(self.part, "mlp_out", self.layer, rows):
                new = block.mlp(block.ln2(x) if block.norm == "pre" else x)
            new = self._edited("mlp_out", new, rows)
            stream = x
            if x is not None or new is not None:
                left = self._before_mlp(rows) if x is None else x
                stream = left + (self._at("mlp_out", rows) if new is None else new)
        stream = self._edited("resid_post", stream, rows)
        stream = self._at("resid_post", rows) if stream is None else stream
        return block.ln2(stream) if block.norm == "post" else stream
