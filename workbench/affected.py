"""Which rows the edits of many conditions can change, site by site, and which of those can matter to what is read.

Worked out from masks alone, for all conditions at once: a row is affected where it is edited, or reads what is so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from workbench.anatomy import Sight
from workbench.batch import Batch
from workbench.edits import Edit, rows_of_each
from workbench.hooks import Key
from workbench.operations import Freeze
from workbench.resolution import reach
from workbench.sites import in_part

Masks = Tensor
"""[cell example pos], of one example where all are alike."""


@dataclass(eq=False)
class Layer:
    """What is affected in one layer, of what can matter.

    entering [cell example pos]: vectors of the stream that enter; source, crossed: sources of its attention, and of its
    cross-attention, whose key or value is another; leaving: vectors that leave.
    """

    entering: Masks
    source: Masks
    leaving: Masks
    crossed: Masks | None = None


@dataclass(eq=False)
class Affected:
    """Layers by (part, layer); at: site → the rows there that are affected by what comes before it."""

    layers: dict[tuple[str, int], Layer] = field(default_factory=dict)
    at: dict[Key, Masks] = field(default_factory=dict)


def affected(cells: Sequence[Sequence[Edit]], model: Any, batch: Batch, sight: Sight, read: Tensor | None) -> Affected:
    """What the edits of each cell can change. batch: one example where all are alike; read [batch read]: the positions
    whose logits are wanted, None where all are."""
    return _Spreading(cells, model, batch, sight, read).run()


class _Spreading:
    def __init__(self, cells: Sequence[Sequence[Edit]], model: Any, batch: Batch, sight: Sight, read: Tensor | None):
        self.model, self.batch, self.sight, self.read = model, batch, sight, read
        self.n, self.found = len(cells), Affected()
        self.edits: dict[Key, list[tuple[int, Edit]]] = {}
        for cell, edits in enumerate(cells):
            for edit in edits:
                self.edits.setdefault(edit.key, []).append((cell, edit))

    def run(self) -> Affected:
        if "" in self.model.parts:
            self._stack("", None)
        else:
            self._stack("decoder", self._stack("encoder", None))
        return self.found

    def _stack(self, part: str, known: Masks | None) -> Masks:
        """What leaves a stack; known: what is affected of the vectors that its cross-attention reads."""
        readers, _ = self.batch.sides(part)
        here = torch.zeros(self.n, *readers.tokens.shape, dtype=torch.bool, device=readers.device)
        n_layers, wanted = self.model.parts[part].n_layers, self._wanted(part)
        for layer in range(n_layers):
            sees, mattering = self.sight(part, layer), wanted[layer]
            entering = self._edited((in_part(part, "resid_pre"), layer), here)
            source, here = self._attention(part, layer, entering, entering, sees)
            one = Layer(entering & (mattering | _seen(mattering, sees)), source & _seen(mattering, sees), here)
            if known is not None:
                crossed, here = self._attention("cross", layer, here, known, self.sight("cross", layer))
                one.crossed = crossed & _seen(mattering, self.sight("cross", layer))
            added = self._edited((in_part(part, "mlp_out"), layer), here)
            here = self._edited((in_part(part, "resid_post"), layer), here | added)
            one.leaving = here & mattering
            self.found.layers[part, layer] = one
        return here

    def _attention(self, part: str, layer: int, x: Masks, read: Masks, sees: Tensor) -> tuple[Masks, Masks]:
        """The sources affected, and the stream behind attention."""

        def edited(bare: str, mask: Masks) -> Masks:
            return self._edited((in_part(part, bare), layer), mask)

        k, v = edited("k", read), edited("v", read)
        rows = edited("pattern", edited("scores", edited("q", x) | _reading(k, sees)))
        written = edited("result", edited("z", rows | _reading(v, sees)))
        out = edited("attn_out", written | self._emptied((in_part(part, "scores"), layer), rows))
        return k | v, edited("resid_mid", x | out)

    def _edited(self, key: Key, mask: Masks) -> Masks:
        """The rows affected behind a site. What is put back as in the clean run is not, unless a head is left out."""
        if key not in self.edits:
            return mask
        self.found.at[key] = mask
        out = mask.clone()
        each = rows_of_each([edit for _, edit in self.edits[key]], out.shape[1])
        cells = [cell for cell, _ in self.edits[key]]
        if len(set(cells)) == len(cells) and not any(isinstance(edit.alike, Freeze) for _, edit in self.edits[key]):
            out[cells] |= each
            return out
        for (cell, edit), rows in zip(self.edits[key], each, strict=True):
            if not isinstance(edit.alike, Freeze):
                out[cell] |= rows
            elif edit.selected is not None and edit.selected.ndim == 2 and self._whole(edit):
                out[cell] &= ~rows
        return out

    def _emptied(self, key: Key, like: Masks) -> Masks:
        """The rows that may be left without a source, to which attention then adds nothing, not even its bias, whatever
        its heads are held at."""
        out = torch.zeros_like(like)
        for cell, edit in self.edits.get(key, ()):
            if getattr(edit.alike, "empty", "") == "no-update":
                out[cell] |= edit.rows_of(out.shape[1])
        return out

    def _whole(self, edit: Edit) -> bool:
        part, _, bare = edit.site.rpartition(".")
        vectors = bare not in ("q", "k", "v", "z", "result")
        return vectors or edit.head is None or self.model.parts[part].heads_at(edit.site) == 1

    def _wanted(self, part: str) -> list[Tensor]:
        """Per layer, the destinations whose vectors can still matter."""
        readers, _ = self.batch.sides(part)
        n_layers = self.model.parts[part].n_layers
        if part == "encoder" or self.read is None:
            return [torch.ones_like(readers.valid)] * n_layers
        here = torch.zeros_like(readers.valid).scatter(1, self.read[: len(readers)], True)
        return reach(here, self.sight, part, n_layers)


def _reading(source: Masks, sees: Tensor) -> Masks:
    """The rows that read an affected source [cell example dest]."""
    found = torch.einsum("cbs,bds->cbd", source.float(), sees.float())
    return found > 0


def _seen(dest: Tensor, sees: Tensor) -> Tensor:
    """The sources that rows [example dest] read, [example source]."""
    return (sees & dest[:, :, None]).any(1)
