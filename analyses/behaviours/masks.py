"""M1–M6: cut weights are exactly 0, rows sum to 1 or say so, and emptied rows follow a rule."""

from __future__ import annotations

from typing import Any

import torch
from einops import einsum, repeat
from torch import Tensor

from analyses.behaviours.cases import (
    EVERY_LAYER,
    answer,
    at_answer,
    batch_of,
    behaviour,
    close,
    equal,
    error_of,
    pattern,
    rows,
    says,
)
from analyses.tools.protocol import LENGTH, feature, hidden, reads
from workbench import Batch, Edges

LOW = (torch.float32, torch.float16, torch.bfloat16)


@behaviour("M1", "weights scaled so that scores are near −10⁶", "future weight is exactly 0")
def the_future_is_0_though_scores_are_huge(tool: Any) -> None:
    batch, tool, unseen = batch_of(16), tool.fresh(), hidden(tool)
    tool.sharpen(1e4)
    for layer in EVERY_LAYER:
        got = tool.record(batch, [("q", layer), ("k", layer), ("pattern", layer)])
        q, k = got["q", layer], got["k", layer]
        k = repeat(k, "b s h w -> b s (h group) w", group=q.shape[2] // k.shape[2])
        scores = einsum(q, k, "b d h w, b s h w -> b h d s") / q.shape[-1] ** 0.5
        own = scores.diagonal(dim1=-2, dim2=-1)[..., 0]
        assert own.min() < -1e6, "the scores of this model are not near −10⁶"
        future = got["pattern", layer][..., unseen]
        assert not future.any(), f"layer {layer}: weight {float(future.max()):.2g} on the future"
        close(got["pattern", layer].sum(-1), torch.ones(()).expand_as(own[..., None].repeat(1, 1, LENGTH)), "row sums")


@behaviour("M2", "one source cut", "its weight exactly 0; every other w/(1 − w_cut); the row sums to 1")
def a_cut_source_is_0_and_the_rest_renormalises(tool: Any) -> None:
    batch = batch_of()
    for layer in EVERY_LAYER:
        clean, edited = pattern(tool, batch, (), layer), pattern(tool, batch, [tool.cut(answer(layer))], layer)
        equal(edited[:, :, :-1], clean[:, :, :-1], f"layer {layer}: the rows that are not cut")
        before, after = rows(clean), rows(edited)
        cut = at_answer(before, batch)
        assert not after[cut].any(), f"layer {layer}: the cut weight is {float(after[cut].max()):.3g}"
        kept = 1 - (before * cut).sum(-1, keepdim=True)
        close(after, (before / kept).masked_fill(cut, 0), f"layer {layer}: w/(1 − w_cut)")
        close(after.sum(-1), torch.ones_like(after[..., 0]), f"layer {layer}: the row's sum")


@behaviour(
    "M3",
    "all visible sources of a row cut",
    "the empty-row rule: an error by default, no update, or itself; never NaN, never the future, in float32, "
    "float16 and bfloat16",
)
def an_emptied_row_follows_the_rule(tool: Any) -> None:
    batch, at = batch_of().with_relations(seen=reads(tool).expand(4, -1, -1)), 3
    whole = Edges(layer=1, dest="fourth", source="seen")
    for dtype in LOW:
        tool = tool.fresh(dtype=dtype)
        try:
            got = pattern(tool, batch, [tool.cut(whole)])[:, :, at]
        except ValueError as error:
            says(error, "empty")
        else:
            raise AssertionError(f"{dtype}: no error for a row without sources; {_told(got, at)}")
        for rule in ("no-update", "self"):
            edit = tool.cut(whole, empty=rule)
            kept = tool.record(batch, [("pattern", 1), ("z", 1), ("attn_out", 1)], [edit])
            row = kept["pattern", 1][:, :, at]
            if rule == "self":
                assert bool((row[..., at] == 1).all()) and bool((row.sum(-1) == 1).all()), f"self: {_told(row, at)}"
            else:
                assert not row.any() and not kept["z", 1][:, at].any(), "no-update: the row has an update"
                assert not kept["attn_out", 1][:, at].any(), "no-update: the output bias stays, every head empty"
            assert bool(torch.isfinite(tool.run(batch, [edit])).all()), f"{rule}: logits are not finite"
        if tool.n_heads > 1:
            edit = tool.cut(Edges(layer=1, head=0, dest="fourth", source="seen"), empty="no-update")
            kept = tool.record(batch, [("z", 1), ("attn_out", 1)], [edit])
            assert not kept["z", 1][:, at, 0].any(), "no-update: the emptied head's z is not 0"
            assert bool(kept["z", 1][:, at, 1:].any()), "no-update of one head empties the others"
            bias = kept["attn_out", 1][:, at]
            assert bool(bias.any()), "the output bias went though another head has sources"


def _told(row: Tensor, at: int) -> str:
    if bool(row.isnan().any()):
        return "its weights are NaN"
    total, future = (float(part.sum(-1).max()) for part in (row, row[..., at + 1 :]))
    return f"its weights sum to {total:.2g}, {future:.2g} on the future"


@behaviour(
    "M4",
    "cut through scores against cut through pattern",
    "equal where the row keeps mass; where the cut source has all of it, the second raises",
)
def a_cut_of_scores_equals_a_cut_of_weights(tool: Any) -> None:
    batch = batch_of()
    for layer in EVERY_LAYER:

        def by_hand(weights: Tensor, layer: int = layer) -> Tensor:
            left = weights.masked_fill(batch.edges("last", "answer")[:, None], 0)
            return left / left.sum(-1, keepdim=True)

        scores = tool.run(batch, [tool.cut(answer(layer))])
        weights = tool.run(batch, [tool.function(("pattern", layer), by_hand)])
        close(weights, scores, f"layer {layer}: logits of a cut through pattern and through scores")

    def of_all_mass(weights: Tensor) -> Tensor:
        left = weights.masked_fill(batch.edges("first", "first")[:, None], 0)
        return left / left.sum(-1, keepdim=True)

    edits = [tool.function(("pattern", 1), of_all_mass)]
    if bool((others := _others(batch, tool)).any()):
        batch = batch.with_relations(others=others)
        edits.insert(0, tool.cut(Edges(layer=1, source="others")))
    error_of(lambda: tool.run(batch, edits), "a cut through the pattern of a source that has all the weight")


def _others(batch: Batch, tool: Any) -> Tensor:
    """The edges from the first position to all that it reads but itself, [batch dest source]."""
    first = batch.roles["first"]
    return first[:, :, None] & ~first[:, None, :] & reads(tool)


@behaviour("M5", "zero on an edge", "the row sums to less than 1, and the label says so; distinct from cut")
def zero_is_another_thing_than_cut(tool: Any) -> None:
    batch = batch_of()
    for layer in EVERY_LAYER:
        cut, zero = tool.cut(answer(layer)), tool.zero(answer(layer))
        before, after = rows(pattern(tool, batch, (), layer)), rows(pattern(tool, batch, [zero], layer))
        close(after.sum(-1), 1 - (before * at_answer(before, batch)).sum(-1), f"layer {layer}: the row's sum")
        assert bool((after.sum(-1) < 1).all()), f"layer {layer}: a row still sums to 1"
        assert not torch.allclose(tool.run(batch, [zero]), tool.run(batch, [cut])), "zero and cut give the same"
    label = feature(tool, "label", "labels of interventions")
    assert "after softmax" in label(zero) and label(zero) != label(cut), f"the label is {label(zero)!r}"


@behaviour("M6", "cut and uniform, value bias folded into the output bias or not", "same logits")
def folding_the_value_bias_changes_nothing(tool: Any) -> None:
    batch, folded = batch_of(), tool.fresh()
    tool = tool.fresh()
    folded.fold_value_bias()
    close(folded.run(batch), tool.run(batch), "the clean logits")
    for layer in EVERY_LAYER:
        for name, edit in (("cut", tool.cut(answer(layer))), ("uniform", tool.uniform(Edges(layer=layer)))):
            got = tool.run(batch, [edit])
            assert not torch.equal(got, tool.run(batch)), f"{name} in layer {layer} changes nothing"
            close(folded.run(batch, [edit]), got, f"{name} in layer {layer}, the bias folded")


MASKS = (
    the_future_is_0_though_scores_are_huge,
    a_cut_source_is_0_and_the_rest_renormalises,
    an_emptied_row_follows_the_rule,
    a_cut_of_scores_equals_a_cut_of_weights,
    zero_is_another_thing_than_cut,
    folding_the_value_bias_changes_nothing,
)
