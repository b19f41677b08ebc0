"""What cross-attention shows: mean weights on the words in question, and the alignment that the largest make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from einops import rearrange, reduce

from analyses.cross import CHOOSING, DATA_SEED, HEADS, ORDERS, WORDS
from analyses.cross_models import LAYERS
from analyses.cross_words import Asked
from tasks.translate import Translate
from workbench import Edges, edge_weights, record

if TYPE_CHECKING:
    from torch import Tensor

    from workbench import Batch
    from workbench.checkpoints import Trained

SOURCES = ("translated", "rival", "agreed", "other")
MEAN = "mean of all"


def weights(trained: dict[str, list[Trained]], n: int) -> pd.DataFrame:
    """The mean weight that the position of the word asked for gives each source word in question: a row a word order,
    trained model, word, layer, head and source. `best`: the model's head with the most weight on the words translated,
    chosen on other sentences."""
    rows = []
    for order in ORDERS:
        for word in WORDS:
            task = Asked(word=word, order=order)
            batches = {seed: task.sample(n, seed) for seed in (DATA_SEED, CHOOSING)}
            for one in trained[order]:
                names = {"order": order, "model_seed": one.seed, "word": word}
                chosen = _means(one.model, batches[CHOOSING], ("translated",))
                for (layer, head, source), weight in _means(one.model, batches[DATA_SEED], SOURCES).items():
                    before = chosen[layer, head, "translated"]
                    rows.append(names | {"layer": layer, "head": head, "source": source, "weight": weight,
                                         "chosen_by": before})  # fmt: skip
    return _with_best(pd.DataFrame(rows))


def _means(model: Any, batch: Batch, sources: tuple[str, ...]) -> dict[tuple[int, int, str], float]:
    places = {
        (layer, head, source): Edges(layer=layer, head=head, kind="cross", dest="asked", source=source)
        for layer in range(LAYERS)
        for head in range(HEADS)
        for source in sources
    }
    found = edge_weights(model, batch, {str(place): edges for place, edges in places.items()})
    return {place: float(found[str(place)].mean()) for place in places}


def _with_best(frame: pd.DataFrame) -> pd.DataFrame:
    """Each model's best head over the words alike, marked."""
    head = ["order", "model_seed", "layer", "head"]
    over_words = frame[frame["source"] == "translated"].groupby(head, sort=False)["chosen_by"].mean().reset_index()
    best = over_words.loc[over_words.groupby(head[:2], sort=False)["chosen_by"].idxmax(), head].assign(best=True)
    out = frame.drop(columns="chosen_by").merge(best, on=head, how="left")
    return out.assign(best=out["best"].eq(True))


def alignments(trained: dict[str, list[Trained]], n: int) -> pd.DataFrame:
    """How the largest weight of each row agrees with the true alignment, over all words of n sentences: a row a word
    order, trained model, layer and head, and one for the mean of all heads of all layers.

    translated, agreed: the share of words whose largest weight is on the word translated, or on the noun agreed with
    (of those that agree). error: the alignment error rate, where what translates is sure and what agrees is possible
    (Och and Ney 2003, section 5). even: the share that a source word drawn at random would give.
    """
    rows = []
    for order in ORDERS:
        batch = Translate(order=order).sample(n, DATA_SEED)
        for one in trained[order]:
            for place, pattern in _patterns(one.model, batch):
                rows.append({"order": order, "model_seed": one.seed, **place, **agreement(pattern, batch)})
    return pd.DataFrame(rows)


def _patterns(model: Any, batch: Batch) -> Iterator[tuple[dict[str, str], Tensor]]:
    recording = record(model, batch, [("cross.pattern", layer) for layer in range(LAYERS)])
    every = torch.stack([recording["cross.pattern", layer] for layer in range(LAYERS)])
    for layer in range(LAYERS):
        for head in range(HEADS):
            yield {"layer": str(layer), "head": str(head)}, every[layer, :, head]
    yield {"layer": MEAN, "head": MEAN}, reduce(every, "layer batch head dest source -> batch dest source", "mean")


def agreement(pattern: Tensor, batch: Batch) -> dict[str, float]:
    """pattern [batch dest source] of one head → `alignments`' shares, over all positions that predict a word."""
    assert batch.context is not None
    words = batch.roles["words"]
    top = pattern.masked_fill(~batch.context.valid[:, None, :], -1.0).argmax(-1, keepdim=True)
    sure = batch.alignments["aligned"].gather(2, top)[..., 0][words].double()
    agrees = batch.alignments["agrees"].gather(2, top)[..., 0][words].double()
    able = batch.alignments["agrees"].any(2)[words]
    # One link a word is made and one is sure: |A| = |S|, and the error is 1 − (|A∩S| + |A∩(S∪P)|) / (|A| + |S|).
    error = 1 - (2 * sure + agrees).mean() / 2
    lengths = rearrange(batch.context.valid.sum(1), "batch -> batch 1").expand_as(words)[words].double()
    return {
        "translated": float(sure.mean()),
        "agreed": float(agrees[able].mean()),
        "error": float(error),
        "even": float((1 / lengths).mean()),
    }
