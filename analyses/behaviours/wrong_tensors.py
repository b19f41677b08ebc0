"""N1–N10: an edit acts, or is refused; nothing that has the right shape and the wrong meaning is taken in silence."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from analyses.behaviours.cases import (
    EVERY_LAYER,
    answer,
    batch_of,
    behaviour,
    close,
    equal,
    error_of,
    named,
    noise,
    pattern,
    rows,
    says,
)
from analyses.tools.families import gemma3, neo, neox
from analyses.tools.gpt2 import gpt2
from analyses.tools.protocol import D_MODEL, feature

REFUSED = ("read-only", "absent")


@behaviour(
    "N1",
    "every site, x → x + seeded noise that varies along features and sources",
    "logits move by more than 100 × rounding, or the site is marked read-only and refuses an edit",
)
def noise_moves_the_logits(tool: Any) -> None:
    batch = batch_of()
    clean = tool.run(batch)
    status = tool.probe() if hasattr(tool, "probe") else {}
    for place in sorted({*tool.places, *status}, key=str):
        edit = tool.function(place, noise)
        if status.get(place) in REFUSED:
            says(error_of(partial(tool.run, batch, [edit]), f"an edit of {named(tool, place)}"), place[0])
            continue
        moved = (tool.run(batch, [edit]) - clean).abs().max()
        assert bool(moved > 100 * 2**-24 * clean.abs().max()), f"noise at {named(tool, place)} moves no logit"


@behaviour("N2", "every site, x → x", "bit-equal logits; a patch from the same run too")
def the_identity_changes_no_bit(tool: Any) -> None:
    batch = batch_of()
    clean = tool.run(batch)
    for place in tool.places:
        same = tool.function(place, torch.clone)
        equal(tool.run(batch, [same]), clean, f"the logits with x → x at {named(tool, place)}")
        kept = tool.record(batch, [place])[place]
        patch = tool.function(place, lambda _value, kept=kept: kept.clone())
        equal(tool.run(batch, [patch]), clean, f"the logits with {named(tool, place)} patched from the same run")


@behaviour(
    "N3",
    "post-norm, pre-norm, sandwich norm, parallel attention and MLP",
    "resid_mid == resid_pre + attn_out, checked on first use; absent where parallel, and asking for it says so",
)
def the_residual_stream_is_a_sum(tool: Any) -> None:
    batch = batch_of()
    _check_sums(tool, batch, "this model")
    wrong = feature(tool, "wrong_sum", "check of the residual sum on first use")
    says(error_of(lambda: wrong().run(batch), "a model whose resid_mid is no sum"), "resid_mid")
    adopt = feature(tool, "adopt", "names of sites that other families share")
    _check_sums(adopt(gemma3()), batch, "sandwich norm")
    parallel = adopt(neox())
    error = error_of(lambda: parallel.record(batch, [("resid_mid", 0)]), "resid_mid of a parallel layer")
    assert isinstance(error, KeyError), f"resid_mid of a parallel layer raises {type(error).__name__}: {error}"
    says(error, "resid_mid", "parallel")


def _check_sums(tool: Any, batch: Any, what: str) -> None:
    for layer in EVERY_LAYER:
        names = [("resid_pre", layer), ("attn_out", layer), ("resid_mid", layer)]
        got = tool.record(batch, names)
        close(
            got[names[2]], got[names[0]] + got[names[1]], f"{what}, layer {layer}: resid_mid and resid_pre + attn_out"
        )


@behaviour(
    "N4",
    "a model in train mode with dropout 0.5, interventions on identical inputs",
    "effect exactly 0; the model's mode as before afterwards",
)
def dropout_is_off(tool: Any) -> None:
    batch, tool = batch_of(), tool.fresh(dropout=0.5)
    tool.module.eval()
    want = tool.run(batch)
    tool.module.train()
    first = next(one for one in tool.module.modules() if isinstance(one, torch.nn.LayerNorm | torch.nn.Dropout))
    first.eval()
    modes = [one.training for one in tool.module.modules()]
    got = [tool.run(batch, [tool.function(("z", 0), torch.clone)]) for _ in range(2)]
    equal(got[0], got[1], "two runs of a model in train mode")
    equal(got[0], want, "a run in train mode and one in eval mode")
    assert [one.training for one in tool.module.modules()] == modes, "the model's mode is another after a run"


@behaviour("N5", "one head ablated", "the other heads' z unchanged")
def an_ablated_head_leaves_the_others(tool: Any) -> None:
    batch = batch_of()
    for layer in EVERY_LAYER:
        clean = tool.record(batch, [("z", layer)])["z", layer]
        for head in range(tool.n_heads):
            edited = tool.record(batch, [("z", layer)], [tool.ablate(layer, head)])["z", layer]
            others = [one for one in range(tool.n_heads) if one != head]
            equal(edited[:, :, others], clean[:, :, others], f"layer {layer}: z of the heads beside head {head}")
            assert not edited[:, :, head].any(), f"layer {layer}: z of head {head} is not 0"


@behaviour(
    "N6",
    "a fused attention (sdpa) model asked for patterns",
    "switched to an attention that shows them, or a clear error; never None",
)
def fused_attention_shows_its_pattern(tool: Any) -> None:
    tool = tool.fused() if hasattr(tool, "fused") else tool.adopt(gpt2(attention="sdpa"))
    try:
        got = pattern(tool, batch_of())
    except Exception as error:
        says(error, "attention")
        return
    assert isinstance(got, torch.Tensor), f"the pattern of a fused attention is {got}"
    close(got.sum(-1), torch.ones_like(got[..., 0]), "the rows of the pattern")


@behaviour(
    "N7",
    "a model family that ignores the registered attention function",
    "refused, naming the family and the number of calls seen; or a cut that acts",
)
def a_family_that_ignores_the_interface_is_refused(tool: Any) -> None:
    adopt = feature(tool, "adopt", "names of sites that other families share")
    batch = batch_of()
    try:
        adopted = adopt(neo())
        edit = adopted.cut(answer(1))
        row = rows(pattern(adopted, batch, [edit]))
        moved = not torch.equal(adopted.run(batch, [edit]), adopted.run(batch))
    except Exception as error:
        says(error, "gpt_neo", "0")
        return
    cut = batch.roles["answer"][:, None].expand_as(row)
    assert moved and not row[cut].any(), "gpt_neo is accepted, and a cut of its scores changes nothing"


@behaviour("N8", "a TransformerLens bridge whose score site is inert", "refused at probing, before any table is made")
def a_bridge_with_inert_scores_is_refused(tool: Any) -> None:
    adopted, batch = _around_native(tool), batch_of()
    probe = feature(adopted, "probe", "probing of a model's sites")()
    for layer in EVERY_LAYER:
        edit = adopted.cut(answer(layer))
        error_of(partial(adopted.run, batch, [edit]), "a cut of scores that are inert")
        assert probe["scores", layer] in REFUSED, f"layer {layer}: scores are called {probe['scores', layer]!r}"


@behaviour("N9", "an edit that TransformerLens discards with a warning", "an error")
def a_swallowed_edit_is_an_error(tool: Any) -> None:
    adopted = _around_native(tool)
    batch = batch_of()
    error_of(
        lambda: adopted.run(batch, [adopted.cut(answer(1))]), "an edit that TransformerLens discards with a warning"
    )


def _around_native(tool: Any) -> Any:
    return feature(tool, "adopt", "runs of a TransformerLens bridge")(_native())


def _native() -> Any:
    from analyses.tools.native_bridge import native

    return native()


@behaviour(
    "N10",
    "residual sizes equal (d_vocab == d_model), so that a wrong tensor has the right shape",
    "still detected: identity is checked, not shape",
)
def a_wrong_tensor_of_the_right_shape_is_found(tool: Any) -> None:
    tool, batch = tool.fresh(d_vocab=D_MODEL), batch_of(d_vocab=D_MODEL)
    tool.run(batch)
    other = pattern(tool, batch, (), layer=0).clone()
    tool.add_hook(("pattern", 1), lambda _value: other)
    error = error_of(lambda: tool.run(batch, [tool.cut(answer(1))]), "another layer's pattern in place of the cut one")
    says(error, "pattern")


WRONG_TENSORS = (
    noise_moves_the_logits,
    the_identity_changes_no_bit,
    the_residual_stream_is_a_sum,
    dropout_is_off,
    an_ablated_head_leaves_the_others,
    fused_attention_shows_its_pattern,
    a_family_that_ignores_the_interface_is_refused,
    a_bridge_with_inert_scores_is_refused,
    a_swallowed_edit_is_an_error,
    a_wrong_tensor_of_the_right_shape_is_found,
)
