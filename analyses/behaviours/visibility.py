"""M7–M12: padding, hidden sources and the future have no part in anything, in any example."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from analyses.behaviours.cases import (
    EVERY_LAYER,
    UNREAD,
    batch_of,
    behaviour,
    close,
    equal,
    error_of,
    pattern,
    says,
)
from analyses.tools.protocol import D_VOCAB, LENGTH, Unoffered, feature, hidden, reads, stands
from workbench import Batch, Edges


def padded(left: bool) -> tuple[Batch, list[Batch]]:
    """Sequences of 3, 5 and 8 tokens in one batch, and each alone."""
    generator, alone, wide = torch.Generator().manual_seed(0), [], []
    for n in (3, 5, LENGTH):
        tokens, place = torch.randint(D_VOCAB, (n,), generator=generator), torch.arange(n)
        parts = {"tokens": tokens, "valid": place >= 0, "second": place == 1, "last": place == n - 1}
        pads = {name: torch.zeros(LENGTH - n, dtype=part.dtype) for name, part in parts.items()}
        wide.append(
            {name: torch.cat([pads[name], part] if left else [part, pads[name]]) for name, part in parts.items()}
        )
        alone.append(_made({name: part[None] for name, part in parts.items()}))
    return _made({name: torch.stack([row[name] for row in wide]) for name in wide[0]}), alone


def _made(parts: dict[str, Tensor]) -> Batch:
    labels = torch.where(parts["last"], parts["tokens"], UNREAD)
    return Batch(parts["tokens"], labels, parts["valid"], {"second": parts["second"], "last": parts["last"]})


@behaviour(
    "M7",
    "sequences of 3, 5 and 8 tokens in one batch, padded left, padded right",
    "every example equal to its run alone; padding never attended to, never counted in uniform",
)
def padding_changes_nothing(tool: Any) -> None:
    for side in ("left", "right"):
        batch, alone = padded(side == "left")
        cut = Edges(layer=1, dest="last", source="second")
        for name, edits in {"clean": [], "uniform": [tool.uniform(Edges(layer=0))], "cut": [tool.cut(cut)]}.items():
            logits = tool.run(batch, edits)
            for i, one in enumerate(alone):
                want = tool.run(one, edits)[0]
                close(logits[i][batch.valid[i]], want, f"padded {side}, {name}: {len(want)} tokens against alone")
            for layer in EVERY_LAYER:
                weights = pattern(tool, batch, edits, layer)
                seen = batch.valid[:, None, :, None] & ~batch.valid[:, None, None, :]
                assert not weights[seen.expand_as(weights)].any(), f"padded {side}, {name}: weight on padding"


def _scattered(batch: Batch, empty: bool) -> Batch:
    """Other edges in each example: two sources in some, none in the first where `empty`."""
    relation = torch.zeros(len(batch), LENGTH, LENGTH, dtype=torch.bool)
    for i in range(int(empty), len(batch)):
        relation[i, -1, [1 + i % 6, 1 + (3 * i) % 6]] = True
        relation[i, 5, i % 5] = True
    return batch.with_relations(mine=relation)


@behaviour(
    "M8",
    "different (dest, source) in each example, more than one source in some, none in one",
    "equal to a loop over examples; the empty one raises, or leaves every condition and is counted",
)
def edges_that_differ_equal_a_loop(tool: Any) -> None:
    full = _scattered(batch_of(8), empty=False)
    edit = [tool.cut(Edges(layer=1, source="mine"))]
    got = tool.run(full, edit)
    assert not torch.equal(got, tool.run(full)), "the cut changes nothing"
    for i in range(len(full)):
        close(got[i], tool.run(full.select([i]), edit)[0], f"example {i} in the batch against alone")  # type: ignore[arg-type]
    some = _scattered(batch_of(8), empty=True)
    says(error_of(lambda: tool.run(some, edit), "an example without an edge"), "1 of 8 examples (0)")
    logits, kept, skipped = feature(tool, "skipping", "way to leave out and count examples")(some, edit)
    assert kept == list(range(1, 8)) and list(skipped) == [0], f"kept {kept}, skipped {list(skipped)}"
    close(logits, tool.run(some.select(slice(1, None)), edit), "the examples that remain")


@behaviour("M9", "uniform under a causal mask", "1/(number of visible sources) at each row, future exactly 0")
def uniform_counts_visible_sources(tool: Any) -> None:
    batch = batch_of()
    seen = reads(tool)
    want = seen.double() / seen.sum(1, keepdim=True)
    for layer in EVERY_LAYER:
        got = pattern(tool, batch, [tool.uniform(Edges(layer=layer))], layer)
        assert not got[..., ~seen].any(), f"layer {layer}: weight on the future"
        close(got, want.expand_as(got), f"layer {layer}: 1/(number of visible sources)", 2e-7)


@behaviour(
    "M10",
    "a cut at a source the causal mask already hides",
    "raises naming the examples, or they leave every condition and are counted",
)
def a_hidden_source_is_no_source(tool: Any) -> None:
    batch, unseen = batch_of(6), hidden(tool)
    relation = torch.zeros(6, LENGTH, LENGTH, dtype=torch.bool)
    relation[:, -1, 1] = True
    relation[3] = unseen
    batch = replace(batch, relations={"mine": relation})
    edit = [tool.cut(Edges(layer=1, source="mine"))]
    error = error_of(lambda: tool.run(batch, edit), "a cut at a source that the causal mask hides")
    says(error, "hides", "(3)")
    _, kept, skipped = feature(tool, "skipping", "way to leave out and count examples")(batch, edit)
    assert kept == [0, 1, 2, 4, 5] and "hides" in skipped[3], f"kept {kept}, skipped {dict(skipped)}"


@behaviour("M11", "scores recorded at masked positions", "−∞, not a large negative number")
def masked_scores_are_minus_infinity(tool: Any) -> None:
    batch, unseen = batch_of(), hidden(tool)
    for layer in EVERY_LAYER:
        stands(tool, ("scores", layer))
        scores = tool.record(batch, [("scores", layer)])["scores", layer]
        future = scores[..., unseen]
        assert bool((future == -torch.inf).all()), f"layer {layer}: {float(future.max()):.3g} at masked positions"
        assert bool(torch.isfinite(scores[..., ~unseen]).all()), f"layer {layer}: a visible score is not finite"


@behaviour(
    "M12",
    "a decoder, any norm, any positions",
    "changing token t+1 changes no output at or before t; the gradient of the loss at t to later inputs is 0",
)
def the_future_changes_nothing(tool: Any) -> None:
    batch = batch_of()
    if bool(reads(tool).triu(1).any()):
        raise Unoffered("offers no decoder: its rows read what comes after them")
    for positions in getattr(tool, "positions", (None,)):
        tool = tool.fresh() if positions is None else tool.fresh(positions=positions)
        for t in range(LENGTH - 1):
            tokens = batch.tokens.clone()
            tokens[:, t + 1] = (tokens[:, t + 1] + 1) % D_VOCAB
            changed = Batch(tokens, tokens)
            equal(
                tool.run(changed)[:, : t + 1], tool.run(batch)[:, : t + 1], f"outputs up to {t}, token {t + 1} changed"
            )
            got = tool.gradients(batch, [("embed", None)], lambda logits, _batch, t=t: logits[:, t].logsumexp(-1))
            later, earlier = got["embed", None][:, t + 1 :], got["embed", None][:, : t + 1]
            assert not later.any(), f"the gradient at {t} to later inputs is {float(later.abs().max()):.1g}"
            assert bool(earlier.any()), f"the gradient at {t} to earlier inputs is 0"


VISIBILITY = (
    padding_changes_nothing,
    edges_that_differ_equal_a_loop,
    uniform_counts_visible_sources,
    a_hidden_source_is_no_source,
    masked_scores_are_minus_infinity,
    the_future_changes_nothing,
)
