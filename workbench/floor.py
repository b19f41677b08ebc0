"""The floor: floating-point operations that must be done, counted from how many rows of each layer they concern."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

from torch import Tensor

from workbench.models.config import ModelConfig

__all__ = ["LayerWork", "Work", "clean_work", "cut_work"]


@dataclass(frozen=True)
class LayerWork:
    """How much of a layer is computed. Where heads have parts of their own, a row counts once for each head.

    queries, outputs: rows × heads through W_Q and W_O. keys, values: rows × key–value heads through W_K and W_V.
    scores, mixed: rows × sources × heads of which a score is a product, or a value is summed into z. mlps: rows.
    """

    queries: int = 0
    keys: int = 0
    values: int = 0
    scores: int = 0
    mixed: int = 0
    outputs: int = 0
    mlps: int = 0

    def flops(self, config: ModelConfig) -> int:
        """Operations of the layer's matrix products, a multiply-add counted as 2."""
        projected = self.queries + self.keys + self.values + self.outputs
        through_mlp = 0 if config.attn_only else 2 * config.d_model * config.d_mlp
        return 2 * (
            projected * config.d_model * config.d_head
            + (self.scores + self.mixed) * config.d_head
            + self.mlps * through_mlp
        )

    def __add__(self, other: LayerWork) -> LayerWork:
        return LayerWork(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __mul__(self, times: int) -> LayerWork:
        return LayerWork(*(getattr(self, one.name) * times for one in fields(self)))


@dataclass(frozen=True)
class Work:
    """What is computed of a model: each layer's share, in order, and rows that are read out (`unembedded`).

    Counts are of one example or of many: add and multiply as needed. Norms, softmax and additions are not counted:
    they are no matrix products.

    >>> config = ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=1, n_heads=1)
    >>> Work((LayerWork(outputs=1, mlps=1),), unembedded=1).flops(config)  # 2 × (32 × 32 + 2 × 32 × 128 + 32 × 16)
    19456
    """

    layers: tuple[LayerWork, ...]
    unembedded: int = 0

    def flops(self, config: ModelConfig) -> int:
        """Operations of all matrix products, a multiply-add counted as 2.

        Raises ValueError where the model has another number of layers.
        """
        if len(self.layers) != config.n_layers:
            raise ValueError(
                f"work in {len(self.layers)} layers was to be counted for a model of {config.n_layers}; give each "
                "layer its LayerWork, LayerWork() where nothing is done"
            )
        read_out = 2 * self.unembedded * config.d_model * config.d_vocab
        return sum(layer.flops(config) for layer in self.layers) + read_out

    def __add__(self, other: Work) -> Work:
        if len(self.layers) != len(other.layers):
            raise ValueError(f"work in {len(self.layers)} and in {len(other.layers)} layers is of two models")
        both = zip(self.layers, other.layers, strict=True)
        return Work(tuple(one + more for one, more in both), self.unembedded + other.unembedded)

    def __mul__(self, times: int) -> Work:
        return Work(tuple(layer * times for layer in self.layers), self.unembedded * times)


def clean_work(config: ModelConfig, sees: Sequence[Tensor], read: Collection[int]) -> Work:
    """One example without edits: all that what is read at the positions `read` depends on.

    sees: which sources each destination reads [dest source], a layer each. Give every position in `read` for what a
    plain forward pass computes.

    >>> import torch
    >>> config = ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=2, n_heads=1)
    >>> causal = [torch.ones(9, 9).tril().bool()] * 2
    >>> clean_work(config, causal, read=[8]).layers[1].mlps, clean_work(config, causal, read=range(9)).layers[1].mlps
    (1, 9)
    """
    _check(config, sees, read)
    layers = []
    for visible, rows in zip(sees, _needed(sees, read), strict=True):
        sources = {source for row in rows for source in _sources(visible, row)}
        layers.append(_rows(config, visible, rows, sources, changed=sources | rows))
    return Work(tuple(layers), len(set(read)))


def cut_work(
    config: ModelConfig,
    sees: Sequence[Tensor],
    *,
    layer: int,
    dest: Collection[int],
    source: Collection[int],
    read: Collection[int],
    heads: int | None = None,
) -> Work:
    """One example with the edges dest × source of a layer cut, beside what its clean run already gave.

    In the edited layer a row's z is summed anew from the sources it keeps, in the heads that are cut (`heads` of them;
    None: all). After it, a row that changed is computed whole; a row that did not has new scores and new sums only at
    the sources that changed (one by one: the old one's share leaves, the new one's comes, counted as one). Rows that
    cannot reach what is read are not computed, and a cut that cannot reach it at all is no work.

    sees: which sources each destination reads [dest source], a layer each.

    >>> import torch
    >>> config = ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=2, n_heads=1)
    >>> causal = [torch.ones(9, 9).tril().bool()] * 2
    >>> cut_work(config, causal, layer=0, dest=[3], source=[2], read=[8]).flops(config)  # 3 sources are left in row 3
    42304
    >>> cut_work(config, causal, layer=1, dest=[3], source=[2], read=[8]).flops(config)  # row 3 is not read
    0
    """
    _check(config, sees, read)
    if not 0 <= layer < config.n_layers:
        raise ValueError(f"a cut in layer {layer} was to be counted; the model has layers 0 to {config.n_layers - 1}")
    needed, cut_heads = _needed(sees, read), config.n_heads if heads is None else heads
    layers = [LayerWork() for _ in range(layer)]
    changed: set[int] = set()
    for at in range(layer, config.n_layers):
        visible = sees[at]
        if at == layer:
            changed = {row for row in dest if row in needed[at] and _sources(visible, row) & set(source)}
            kept = sum(len(_sources(visible, row) - set(source)) for row in changed)
            rows = len(changed)
            layers.append(LayerWork(mixed=cut_heads * kept, outputs=cut_heads * rows, mlps=rows))
            continue
        rows_now = {row for row in needed[at] if row in changed or _sources(visible, row) & changed}
        layers.append(_rows(config, visible, rows_now, changed, changed))
        changed = rows_now
    return Work(tuple(layers), len(changed & set(read)))


def _rows(
    config: ModelConfig, visible: Tensor, rows: Collection[int], sources: Collection[int], changed: Collection[int]
) -> LayerWork:
    """These rows of a layer, where the vectors at `changed` are new, of which `sources` are the ones to be read."""
    read = {one for row in rows for one in _sources(visible, row)} & set(sources)
    anew = [len(_sources(visible, row) if row in changed else _sources(visible, row) & read) for row in rows]
    pairs, queries = config.n_heads * sum(anew), config.n_heads * len(set(rows) & set(changed))
    keys = config.n_kv_heads * len(read)
    return LayerWork(queries, keys, keys, pairs, pairs, config.n_heads * len(rows), len(rows))


def _needed(sees: Sequence[Tensor], read: Collection[int]) -> list[set[int]]:
    """Layer by layer, the rows whose vectors after it what is read depends on."""
    needed = [set(read)]
    for visible in reversed(sees[1:]):
        needed.insert(0, needed[0] | {source for row in needed[0] for source in _sources(visible, row)})
    return needed


def _sources(visible: Tensor, row: int) -> set[int]:
    return set(visible[row].nonzero().flatten().tolist())


def _check(config: ModelConfig, sees: Sequence[Tensor], read: Collection[int]) -> None:
    if len(sees) != config.n_layers:
        raise ValueError(
            f"{len(sees)} layers' masks for a model of {config.n_layers} layers; give each its [dest source]"
        )
    if beyond := sorted(row for row in read if not 0 <= row < len(sees[0])):
        raise ValueError(f"position {beyond[0]} is read; there are positions 0 to {len(sees[0]) - 1}")
