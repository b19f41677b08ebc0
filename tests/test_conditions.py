"""Conditions made from others: the direct effect of edits, and the corrupt run, on handmade and on random models."""

from pathlib import Path
from types import SimpleNamespace

import foreign
import numpy as np
import oracle
import pytest
import torch
from handmade import attend_to_previous, blank, lookup_by_hand, subspaces
from models_of import model_of
from small import ANSWER, TASK
from small import BATCH as TWELVE
from small import CORRUPT as OTHER_TWELVE

from workbench import Batch, Edges, Heads, ModelConfig, Stream, record, run
from workbench.anatomy import Part
from workbench.conditions import corrupted, direct
from workbench.interventions import add, custom, cut, freeze, keep_only, mean, patch, path, scale, uniform, zero
from workbench.models.config import EncoderDecoderConfig
from workbench.models.encoder_decoder import EncoderDecoder

BATCH, CORRUPT = TWELVE.select(slice(4)), OTHER_TWELVE.select(slice(4))
HIDDEN = cut(Edges(layer=0, dest="answer", source="match"))
THREE = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=3, n_heads=2)
ATTN_ONLY = THREE.model_copy(update={"attn_only": True})


def labels(interventions):
    return [str(one) for one in interventions]


# By construction ------------------------------------------------------------------------------------------------------

TOKENS = torch.tensor([[0, 1, 2, 3], [3, 3, 1, 0]])
COPIED = Batch(TOKENS, TOKENS.roll(1, 1))
FIRST = [zero(Heads(layer=0, head=0, part="z"))]


@torch.no_grad()
def copier(echo: str, factor: float):
    """Layer 0's attention says the previous token with logit 1; one later component adds `factor` × what was said."""
    at = subspaces(token=4, place=4, said=4)
    model = blank(ModelConfig(d_vocab=4, n_ctx=4, d_model=12, n_layers=2, n_heads=1, d_head=4, d_mlp=4, norm="none"))
    one = torch.eye(4, dtype=torch.float64)
    model.embed.W_E[:, at["token"]], model.pos_embed.W_pos[:, at["place"]] = one, one
    model.unembed.W_U[at["said"]] = one
    says, attn = model.blocks[0].attn, model.blocks[1].attn
    attend_to_previous(says, 0, at["place"], 4)
    says.W_V[0, at["token"]], says.W_O[0, :, at["said"]] = one, one
    if echo == "attn_out 1":
        attn.W_Q[0, at["place"]], attn.W_K[0, at["place"]] = 200 * one, one
        attn.W_V[0, at["said"]], attn.W_O[0, :, at["said"]] = one, factor * one
    else:
        mlp = model.blocks[int(echo[-1])].mlp
        mlp.W_in[at["said"]], mlp.W_out[:, at["said"]] = one, factor * one
    return model


def said(model, interventions):
    """The logit of the previous token, from the second position on."""
    logits = run(model, COPIED, interventions).logits[:, 1:]
    return logits.gather(-1, TOKENS[:, :-1, None])[..., 0]


@pytest.mark.parametrize("factor", [2.0, -0.5], ids=["amplifies", "erases"])
@pytest.mark.parametrize("echo", ["mlp_out 0", "attn_out 1", "mlp_out 1"])
def test_of_a_head_and_its_echo_only_what_the_head_says_is_direct(echo, factor):
    model = copier(echo, factor)
    clean, total, straight = (said(model, edits) for edits in ([], FIRST, direct(model, FIRST)))
    assert torch.allclose(clean, torch.tensor(1 + factor).double(), rtol=0, atol=1e-12)
    assert torch.allclose(clean - total, torch.tensor(1 + factor).double(), rtol=0, atol=1e-12)
    assert torch.allclose(clean - straight, torch.tensor(1.0).double(), rtol=0, atol=1e-12)


def test_a_hidden_step_has_no_direct_effect():
    model, batch = lookup_by_hand(TASK), TASK.sample(40, seed=3)
    clean = run(model, batch).logits
    assert torch.equal(run(model, batch, direct(model, [HIDDEN])).logits[:, -1], clean[:, -1])
    assert (run(model, batch, [HIDDEN]).logits[:, -1].argmax(-1) != clean[:, -1].argmax(-1)).any()


def test_in_the_last_layer_without_an_mlp_direct_and_total_are_one():
    model = lookup_by_hand(TASK)
    assert direct(model, [cut(ANSWER)]) == [cut(ANSWER)]


# Against a slow reference ---------------------------------------------------------------------------------------------


def passed(model, edits, donors):
    """What passed every place of every example under edits, by the reference's own forward."""
    given = {None: BATCH, **donors, **{("whole", name): donor for name, donor in donors.items()}}
    runs = {name: [oracle.forward(model, one, i)[1] for i in range(len(one))] for name, one in given.items()}
    rows = [one for one in edits if one.where.type == "edges"]
    vectors = [one for one in edits if one.where.type != "edges"]
    rules = [[oracle.rule(model, one, BATCH, given, runs, i) for one in vectors] for i in range(len(BATCH))]
    return [oracle.forward(model, BATCH, i, rules[i], rows, given, runs)[1] for i in range(len(BATCH))]


def by_hand(model, edits, donors):
    """Logits [batch pos d_vocab]: the clean stream, to which every layer adds what it wrote in the clean run, or what
    its own edits alone make it write there; norms are computed anew."""
    w, c = {name: value.double().numpy() for name, value in model.state_dict().items()}, model.config
    clean = passed(model, [], {})
    edited = {layer: passed(model, [one for one in edits if one.where.layer == layer], donors) for layer in range(3)}

    def norm(x, name):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[f"{name}.w"] + w[f"{name}.b"]

    out = []
    for i, p in np.ndindex(*BATCH.tokens.shape):
        x = clean[i]["resid_pre", 0, None, p]
        for layer in range(3):
            mlp_is_edited = ("mlp_out", layer) in [(getattr(one.where, "part", ""), one.where.layer) for one in edits]
            x = x + edited[layer][i]["attn_out", layer, None, p]
            x = norm(x, f"blocks.{layer}.ln1") if c.norm == "post" else x
            if not c.attn_only:
                x = x + (edited[layer] if mlp_is_edited else clean)[i]["mlp_out", layer, None, p]
                x = norm(x, f"blocks.{layer}.ln2") if c.norm == "post" else x
        x = norm(x, "ln_final") if c.norm == "pre" else x
        out.append(x @ w["unembed.W_U"] + w["unembed.b_U"])
    return torch.tensor(np.array(out)).reshape(*BATCH.tokens.shape, -1)


EDITS = {
    "rows": [cut(Edges(layer=0, dest="last", source="answer"))],
    "a head": [zero(Heads(layer=0, head=1, part="z"))],
    "several layers": [uniform(Edges(layer=0, head=0)), cut(Edges(layer=1, head=1, dest="last", source="answer"))],
    "vectors of several layers": [
        mean(Heads(layer=0, pos="answer", part="v"), donor="corrupt"),
        scale(Heads(layer=1, head=0, part="q"), by=2.0),
        patch(Heads(layer=2, pos="last", part="z"), donor="corrupt", align="role"),
    ],
    "every query": [zero(Heads(layer=0, part="z")), zero(Heads(layer=1, part="q"))],
    "every update": [zero(Heads(layer=0, part="z")), zero(Stream(layer=2, part="attn_out"))],
    "a part of a later update": [
        keep_only(Edges(layer=0, dest="answer", source="match")),
        add(Stream(layer=2, pos="last", part="attn_out"), donor="corrupt", align="role"),
    ],
}
MLPS = {
    "an MLP": [scale(Stream(layer=0, part="mlp_out"), by=3.0)],
    "a later MLP": [cut(Edges(layer=0, dest="last", source="answer")), scale(Stream(layer=1, part="mlp_out"), by=3.0)],
    "an MLP at places": [zero(Heads(layer=0, part="z")), zero(Stream(layer=2, pos="last", part="mlp_out"))],
    "all of an MLP": [zero(Heads(layer=0, part="z")), zero(Stream(layer=1, part="mlp_out"))],
}
CASES = [(name, False) for name in {**EDITS, **MLPS}] + [(name, True) for name in EDITS]


@pytest.mark.parametrize("norm", ["none", "pre", "post"])
@pytest.mark.parametrize(("edits", "attn_only"), CASES, ids=[f"{name}{', no MLP' * bare}" for name, bare in CASES])
def test_direct_is_the_clean_stream_with_the_change_added_by_hand(edits, attn_only, norm):
    model = model_of(d_vocab=16, n_ctx=9, n_layers=3, norm=norm, attn_only=attn_only)
    edits = {**EDITS, **MLPS}[edits]
    donors = {"corrupt": CORRUPT} if any(hasattr(one.what, "donor") for one in edits) else {}
    want = by_hand(model, edits, donors)
    got = run(model, BATCH, direct(model, edits), donors=donors)
    assert torch.allclose(got.logits, want, rtol=0, atol=1e-10)
    read = run(model, BATCH, direct(model, edits), donors=donors, positions="read")
    assert torch.allclose(read.logits[:, 0], want[:, -1], rtol=0, atol=1e-10)
    total, clean = (run(model, BATCH, one, donors=donors if one else {}).logits for one in (edits, []))
    assert not torch.allclose(total, want, rtol=0, atol=1e-6) and not torch.allclose(clean, want, rtol=0, atol=1e-6)


def test_without_norms_the_direct_effects_of_edits_add_up():
    model, (one, other) = model_of(d_vocab=16, n_ctx=9, n_layers=3, norm="none"), EDITS["several layers"]
    clean, both, first, second = (
        run(model, BATCH, direct(model, edits) if edits else []).logits for edits in ([], [one, other], [one], [other])
    )
    assert torch.allclose(both - clean, (first - clean) + (second - clean), rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["none", "pre", "post"])
def test_later_components_write_what_they_wrote_in_the_clean_run_bit_for_bit(norm):
    model = model_of(d_vocab=16, n_ctx=9, n_layers=3, norm=norm)
    later = [("mlp_out", 0), ("attn_out", 1), ("mlp_out", 1), ("attn_out", 2), ("mlp_out", 2)]
    edits = [zero(Heads(layer=0, head=0, pos="answer", part="z"))]
    clean, straight, total = (record(model, BATCH, later, one) for one in ([], direct(model, edits), edits))
    assert all(torch.equal(straight[key], clean[key]) for key in later)
    assert not any(torch.equal(total[key], clean[key]) for key in later)


@pytest.mark.parametrize("norm", ["none", "pre", "post"])
def test_padding_on_the_left_changes_no_direct_effect(norm):
    def pad(tensor, with_what):
        return torch.cat([torch.full_like(tensor[:, :2], with_what), tensor], 1)

    roles = {name: pad(mask, False) for name, mask in BATCH.roles.items()}
    padded = Batch(pad(BATCH.tokens, 0), pad(BATCH.labels, -100), pad(BATCH.valid, False), roles)
    model = model_of(d_vocab=16, n_ctx=11, n_layers=3, norm=norm)
    edits = direct(model, [cut(Edges(layer=0, dest="last", source="answer")), *FIRST])
    got, want = (run(model, one, edits).logits for one in (padded, BATCH))
    assert torch.allclose(got[:, 2:], want, rtol=0, atol=1e-10)


# What is held ---------------------------------------------------------------------------------------------------------

HELD_AFTER = {
    "resid_pre": ["L1.attn_out", "L1.mlp_out", "L2.attn_out", "L2.mlp_out"],
    "attn_out": ["L1.mlp_out", "L2.attn_out", "L2.mlp_out"],
    "resid_mid": ["L1.mlp_out", "L2.attn_out", "L2.mlp_out"],
    "mlp_out": ["L2.attn_out", "L2.mlp_out"],
    "resid_post": ["L2.attn_out", "L2.mlp_out"],
}


@pytest.mark.parametrize("part", HELD_AFTER)
def test_everything_after_the_edit_is_held_at_every_position(part):
    edit = scale(Stream(layer=1, pos="last", part=part), by=2.0)
    held = HELD_AFTER[part]
    assert labels(direct(THREE, [edit])) == [*(f"freeze {place} every" for place in held), str(edit)]
    without = [f"freeze {place} every" for place in held if "mlp" not in place]
    if part != "mlp_out":
        assert labels(direct(ATTN_ONLY, [edit])) == [*without, str(edit)]


def test_a_model_and_its_config_hold_the_same():
    model = model_of(n_layers=3)
    assert direct(model, FIRST) == direct(model.config, FIRST)


def test_a_later_edit_finds_clean_inputs():
    edits = [HIDDEN, cut(ANSWER), scale(Stream(layer=2, pos="last", part="mlp_out"), by=2.0)]
    held = ["L0.mlp_out", "L1.q", "L1.k", "L1.v", "L1.mlp_out", "L2.attn_out", "L2.mlp_out"]
    assert labels(direct(THREE, edits)) == [*(f"freeze {place} every" for place in held), *labels(edits)]


def test_the_only_head_edited_whole_needs_no_holding():
    one = THREE.model_copy(update={"n_heads": 1, "n_kv_heads": 1, "d_head": 8})
    edit = zero(Heads(layer=1, head=0, part="k"))
    assert "freeze L1.k every" not in labels(direct(one, [HIDDEN, edit]))
    assert "freeze L1.k every" in labels(direct(THREE, [HIDDEN, edit]))


def test_in_a_decoder_cross_attention_and_what_follows_are_held():
    parts = {"encoder": Part(2, 2, 2), "decoder": Part(2, 2, 2), "cross": Part(2, 2, 2)}
    model = SimpleNamespace(parts=parts, attn_only=False)
    edit = cut(Edges(layer=0, stack="decoder", dest="last", source="first"))
    held = ["cross.L0.attn_out", "decoder.L0.mlp_out", "decoder.L1.attn_out", "cross.L1.attn_out", "decoder.L1.mlp_out"]
    assert labels(direct(model, [edit])) == [*(f"freeze {place} every" for place in held), str(edit)]
    crossing = zero(Heads(layer=1, kind="cross", part="z"))
    held[3:4] = ["cross.L1.q"]
    both = [edit, crossing]
    assert labels(direct(model, both)) == [*(f"freeze {place} every" for place in held), *labels(both)]


def test_an_own_encoder_decoder_and_its_config_hold_the_same():
    side = {"d_vocab": 9, "n_ctx": 6, "d_model": 8, "n_heads": 2}
    sides = {"encoder": {**side, "n_layers": 3, "masks": [{"causal": False}]}, "decoder": {**side, "n_layers": 2}}
    model = EncoderDecoder(EncoderDecoderConfig(**sides), seed=0)
    edits = [zero(Heads(layer=0, stack="decoder", part="z")), zero(Heads(layer=1, kind="cross", head=0, part="z"))]
    held = ["cross.L0.attn_out", "decoder.L0.mlp_out", "decoder.L1.attn_out", "cross.L1.q", "decoder.L1.mlp_out"]
    want = [*(f"freeze {place} every" for place in held), *labels(edits)]
    assert labels(direct(model, edits)) == labels(direct(model.config, edits)) == want


def test_a_foreign_decoder_is_held_where_its_own_context_is_read():
    model, batch = foreign.shared("bart"), foreign.batch_for("bart")
    edit = zero(Heads(layer=0, head=0, stack="decoder", part="z"))
    sites = [("cross.attn_out", 0), ("decoder.mlp_out", 0), ("decoder.attn_out", 1), ("cross.attn_out", 1)]
    clean, straight = (record(model, batch, sites, edits) for edits in ([], direct(model, [edit])))
    assert all(torch.equal(clean[key], straight[key]) for key in sites)
    assert not torch.equal(clean.run.logits, straight.run.logits)


# What makes no sense --------------------------------------------------------------------------------------------------

SENDER, RECEIVER = Heads(layer=0, head=0, part="z"), Heads(layer=1, head=0, part="k")
REFUSED = {
    "no edits": ([], ValueError, "list of one edit or more"),
    "no list": (HIDDEN, ValueError, "list of one edit or more"),
    "a path": ([path(zero, SENDER, RECEIVER)], ValueError, "path .* its direct effect is 0"),
    "a function": ([custom(("z", 0), torch.zeros_like)], ValueError, "custom .* has no location"),
    "no layer": ([zero(Heads(layer=3, part="z"))], KeyError, "no layer 3; this model has layers 0 to 2"),
    "no stack": ([zero(Heads(layer=0, kind="cross", part="z"))], KeyError, "has the parts '', not 'cross'"),
    "an encoder": ([zero(Heads(layer=0, stack="encoder", part="z"))], ValueError, "no direct effect"),
    "no intervention": (["cut"], TypeError, "'cut' is no intervention"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_has_no_direct_effect_to_ask_for_is_refused(why):
    interventions, error, match = REFUSED[why]
    with pytest.raises(error, match=match):
        direct(THREE, interventions)


def test_a_model_of_unknown_layers_is_refused():
    with pytest.raises(TypeError, match=r"layers of a PosixPath are unknown.*configuration"):
        direct(Path("/"), [HIDDEN])


# The corrupt run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["all", "read"])
@pytest.mark.parametrize("norm", ["none", "pre", "post"])
def test_corrupted_logits_are_the_donors_bit_for_bit(norm, positions):
    model = model_of(d_vocab=16, n_ctx=9, norm=norm)
    got = run(model, BATCH, corrupted("other"), donors={"other": CORRUPT}, positions=positions)
    assert torch.equal(got.logits, run(model, CORRUPT, positions=positions).logits)
    assert torch.equal(got.batch.labels, BATCH.labels)


def test_freezing_what_carries_everything_restores_the_clean_run():
    model = model_of(d_vocab=16, n_ctx=9)
    restored = [*corrupted("other"), freeze(Stream(layer=0, part="resid_post"))]
    assert torch.equal(run(model, BATCH, restored, donors={"other": CORRUPT}).logits, run(model, BATCH).logits)


def test_restoring_the_query_by_hand_restores_the_answer():
    model = lookup_by_hand(TASK)
    restored = [*corrupted("other"), freeze(Heads(layer=1, pos="last", part="q"))]
    right = BATCH.labels[:, -1]
    for edits, want in ((corrupted("other"), CORRUPT.labels[:, -1]), (restored, right)):
        assert torch.equal(run(model, BATCH, edits, donors={"other": CORRUPT}).logits[:, -1].argmax(-1), want)


def test_two_stacks_are_corrupted_each_by_its_own_list():
    model, batch, other = foreign.shared("t5"), foreign.batch_for("t5"), foreign.batch_for("t5", seed=1)
    clean, want = run(model, batch).logits, run(model, other).logits
    one = run(model, batch, corrupted("other", stack="encoder"), donors={"other": other}).logits
    both = [*corrupted("other", stack="encoder"), *corrupted("other", stack="decoder")]
    assert torch.equal(run(model, batch, both, donors={"other": other}).logits, want)
    assert not torch.allclose(one, want) and not torch.allclose(one, clean)


def test_a_donor_padded_elsewhere_is_refused():
    valid = torch.ones_like(BATCH.valid)
    valid[:, 0] = False
    padded = Batch(BATCH.tokens, BATCH.labels, valid)
    with pytest.raises(ValueError, match="the donor has padding at some positions"):
        run(model_of(d_vocab=16, n_ctx=9), BATCH, corrupted("other"), donors={"other": padded})
