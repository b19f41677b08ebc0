"""How many floating-point operations the engine does for a group of conditions, and how many it must."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from workbench.affected import Affected
from workbench.floor import LayerWork
from workbench.groups import Group, LayerRows, Rows
from workbench.models.config import ModelConfig
from workbench.scene import Scene
from workbench.sites import split

ATTENTION = {"q", "k", "v", "scores", "pattern", "z", "result"}


class Count:
    """Counts operations. each: how many examples one that tells for all stands for."""

    def __init__(self, scene: Scene, each: int):
        self.scene, self.model, self.each = scene, scene.model, each

    def config(self, part: str) -> ModelConfig:
        config: ModelConfig = self.model.stack(part).config
        return config.model_copy(update={"attn_only": True}) if part == "cross" else config

    def told(self, group: Group) -> list[str]:
        """What of each layer a group computes, in words."""
        said = []
        for (part, layer), rows in group.layers.items():
            if rows.leaving is not None:
                n = self.scene.batch.sides(part)[0].tokens.shape[1]
                words = [f"{rows.leaving.index.shape[2]} of {n} rows leave"]
                for name, one in (
                    ("keys and values", rows.source),
                    ("cross-attention's keys and values", rows.crossed),
                ):
                    words += [] if one is None else [f"{name} of {one.index.shape[2]} sources"]
                said.append(f"{part + ' ' if part else ''}layer {layer}: {', '.join(words)}")
        return said

    def whole(self, read: Tensor | None) -> int:
        """A clean pass over all examples."""
        total = 0
        for part, shape in self.model.parts.items():
            config, (readers, sources) = self.config(part), self.scene.batch.sides(part)
            n, m, reading = readers.tokens.shape[1], sources.tokens.shape[1], part != "encoder"
            for layer in range(shape.n_layers):
                rows = n if read is None or not reading or layer < shape.n_layers - 1 else read.shape[1]
                heads, pairs = config.n_heads * rows, config.n_heads * rows * m
                kv = config.n_kv_heads * m
                total += LayerWork(heads, kv, kv, pairs, pairs, heads, rows).flops(config)
        rows = self.scene.batch.tokens.shape[1] if read is None else read.shape[1]
        return (total + self._read_out(rows)) * len(self.scene.batch)

    def _read_out(self, rows: int) -> int:
        config = self.config("decoder" if "decoder" in self.model.parts else "")
        return 2 * rows * config.d_model * config.d_vocab

    def computed(self, group: Group) -> int:
        """What a group computes beside the clean run."""
        total, last = 0, 0
        for (part, layer), rows in group.layers.items():
            if rows.leaving is not None:
                edited = {split(name)[1] for name, at in group.edits if at == layer}
                total += self._layer(part, rows, edited)
                last = rows.leaving.index.shape[2] if part != "encoder" else last
        examples = len(self.scene.batch)
        return (total + self._read_out(last)) * len(group.cells) * examples

    def _layer(self, part: str, rows: LayerRows, edited: set[str]) -> int:
        assert rows.leaving is not None
        config, r = self.config(part), rows.leaving.index.shape[2]
        n, s = self.scene.batch.sides(part)[0].tokens.shape[1], _many(rows.source)
        queried = rows.leaving_from is not None
        weighed = queried or bool(s) or bool(edited & {"v", "scores", "pattern"})
        work = LayerWork(
            queries=config.n_heads * r * queried,
            keys=config.n_kv_heads * s,
            values=config.n_kv_heads * s,
            scores=config.n_heads * r * (n * queried + s),
            mixed=config.n_heads * r * (n + s) * weighed,
            outputs=config.n_heads * r * (weighed or bool(edited & ATTENTION)),
            mlps=r * _through_mlp(rows, edited),
        )
        return work.flops(config) + self._crossed(part, r, r * _many(rows.crossed), _many(rows.crossed))

    def _crossed(self, part: str, rows: int, pairs: int, sources: int) -> int:
        """Cross-attention of rows, of which `pairs` have another source, and keys and values of those sources."""
        if part != "decoder" or "cross" not in self.model.parts:
            return 0
        config, n = self.config("cross"), self.scene.batch.sides("cross")[1].tokens.shape[1]
        heads, kv, weighed = config.n_heads * rows, config.n_kv_heads * sources, config.n_heads * (rows * n + pairs)
        return LayerWork(heads, kv, kv, weighed, weighed, heads).flops(config)

    def floor(self, group: Group, found: Affected) -> int:
        """What of it must be: real rows alone, and of sources only those that a row reads and that are other ones."""
        total, last = 0, 0
        for (part, layer), rows in group.layers.items():
            if rows.leaving is not None:
                edited = {split(name)[1] for name, at in group.edits if at == layer}
                one, members = found.layers[part, layer], list(group.cells)
                masks = [mask[members] for mask in (one.leaving, one.entering, one.source)]
                total += self._needed(part, layer, rows, masks, edited)
                last = int(one.leaving[members].sum()) if part != "encoder" else last
        return (total + self._read_out(last)) * self.each

    def _needed(self, part: str, layer: int, rows: LayerRows, masks: Sequence[Tensor], edited: set[str]) -> int:
        leaving, entering, source = masks
        config, sees = self.config(part), self.scene.sight(part, layer)[: leaving.shape[1]]
        visible = (sees & leaving[..., None]).float()
        anew = int((visible * (leaving & entering)[..., None]).sum())
        other = int((visible * (leaving & ~entering)[..., None] * source[:, :, None, :]).sum())
        r, s = int(leaving.sum()), int(source.sum())
        kept = int(visible.sum()) if edited & {"scores", "pattern"} else 0
        work = LayerWork(
            queries=config.n_heads * int((leaving & entering).sum()),
            keys=config.n_kv_heads * s,
            values=config.n_kv_heads * s,
            scores=config.n_heads * (anew + other),
            mixed=config.n_heads * max(anew + other, kept),
            outputs=config.n_heads * r * bool(s or anew or edited & ATTENTION),
            mlps=r * _through_mlp(rows, edited),
        )
        crossed = _many(rows.crossed)
        return work.flops(config) + self._crossed(part, r, r * crossed, crossed * leaving.shape[0] * leaving.shape[1])


def _through_mlp(rows: LayerRows, edited: set[str]) -> bool:
    """Whether what the MLP reads may be another."""
    return rows.entering is not None or rows.source is not None or not edited or not edited <= {"mlp_out", "resid_post"}


def _many(rows: Rows | None) -> int:
    return 0 if rows is None else rows.index.shape[2]
