"""TransformerLens' bridges under interventions, held against the Hugging Face models that they were made of."""

import copy
import functools
import warnings

import pytest
import torch
from foreign import batch_for, hooks_on, made
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedTokenizerFast

import workbench
from workbench import (
    Edges,
    EmptyRow,
    Heads,
    InertIntervention,
    Stream,
    add,
    custom,
    cut,
    freeze,
    keep_only,
    mean,
    patch,
    path,
    probe,
    record,
    resample,
    run,
    scale,
    shuffle,
    uniform,
    wrap,
    zero,
)
from workbench.rows import HIDDEN

BRIDGES = ("gpt2", "llama", "gpt_neox", "bert")
OF_LAYERS = ("resid_pre", "q", "k", "v", "scores", "pattern", "z", "result", "attn_out", "resid_mid", "mlp_pre",
             "mlp_post", "mlp_out", "resid_post")  # fmt: skip
STREAM = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
ROTATED = {"q", "k", "pos_embed", "result", "mlp_pre"}
ABSENT = {
    "gpt2": {"result"},
    "llama": ROTATED,
    "gpt_neox": {"q", "k", "pos_embed", "result", "resid_mid"},
    "bert": {"embed", "pos_embed", "result", "attn_out", "resid_mid", "mlp_out", "resid_post"},
}
"""What the hooks of a bridge do not carry, as measured on transformer-lens 4.3."""


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return functools.cache(lambda name: tmp_path_factory.mktemp(name))


def bridged(name, folder, *, dtype=torch.float32, prepare=lambda bridge: None):
    """A bridge from a folder, without network, and a copy of its Hugging Face model."""
    inner = made(name, dtype=dtype)
    inner.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(31)}, unk_token="t3"))
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="t3", bos_token="t1", eos_token="t2", pad_token="t0"
    ).save_pretrained(folder)
    twin = copy.deepcopy(inner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bridge = TransformerBridge.boot_transformers(str(folder), hf_model=inner, tokenizer=None)
    prepare(bridge)
    return bridge, twin


def wrapped(bridge):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return wrap(bridge)


@pytest.fixture(scope="session")
def pair(folders):
    """Name → the wrapped bridge and its wrapped twin; shared, and changed by no test."""

    @functools.cache
    def made_once(name):
        bridge, twin = bridged(name, folders(name))
        return wrapped(bridge), wrap(twin)

    return made_once


def near(one, other):
    return float((one - other).abs().max()) <= 5e-6 * float(other.abs().max())


def edges(layer, head=None, dest="last", source=None):
    return Edges(layer=layer, head=head, dest=dest, source=source)


def on_edges(layer, head):
    yield cut(edges(layer, head, source="first"))
    yield cut(edges(layer, head), empty="no-update")
    yield cut(edges(layer, head, "some"), empty="self")
    yield cut(edges(layer, head, None), empty="self")
    yield keep_only(edges(layer, head, "last", "some"))
    yield uniform(edges(layer, head))
    yield uniform(edges(layer, head, "last", "some"))
    yield scale(edges(layer, head, "last", "some"), by=2.5)
    yield shuffle(edges(layer, head), seed=3)
    yield zero(edges(layer, head, "last", "some"))
    yield patch(edges(layer, head, "last", "first"), donor="other", align="role")


def on_vectors(where):
    yield zero(where)
    yield mean(where, donor="other")
    yield patch(where, donor="other", align="role")
    yield resample(where, donor="other", seed=1)
    yield add(where, donor="other", align="role")
    yield scale(where, by=-2.0)


def lists(name, layer, padded):
    """Every operation, and every site with some operations; half as many where there is padding."""
    heads = (None, 1)
    for number, one in enumerate(zip(*(on_edges(layer, head) for head in heads), strict=True)):
        yield [one[(number + layer) % 2]]
        if not padded:
            yield [one[(number + layer + 1) % 2]]
    places = [Heads(layer=layer, head=1, pos="some", part=part) for part in ("z", "v", "q", "k")]
    places += [Stream(layer=layer, pos="some", part=part) for part in STREAM]
    for number, where in enumerate(one for one in places if one.part not in ABSENT[name]):
        several = list(on_vectors(where))
        yield [several[(number + layer) % 6]]
        if not padded:
            yield [several[(number + layer + 3) % 6]]
    if layer == 1:
        yield [zero(Heads(layer=0, pos="first", part="v")), freeze(Heads(layer=1, head=0, pos="last", part="z"))]
        yield [cut(edges(0, 0, source="first")), scale(Stream(layer=1, pos="last", part="resid_pre"), by=0.5)]
        if name == "gpt2" and not padded:
            sender, receiver = (
                Heads(layer=0, head=0, pos="first", part="z"),
                Heads(layer=1, head=0, pos="last", part="v"),
            )
            yield [path(zero, sender, receiver)]


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("name", BRIDGES)
def test_a_wrapped_bridge_computes_what_its_twin_does(pair, name, padding):
    bridge, twin = pair(name)
    batch = batch_for(name, n=3, padding=padding)
    got, want = run(bridge, batch).logits, run(twin, batch).logits
    assert near(got[batch.valid], want[batch.valid])


@pytest.mark.parametrize(("layer", "padding"), [(0, None), (1, None), (0, "left"), (1, "right")])
@pytest.mark.parametrize("name", BRIDGES)
def test_interventions_on_a_bridge_do_what_they_do_to_its_twin(pair, name, layer, padding):
    bridge, twin = pair(name)
    batch, other = (batch_for(name, n=3, padding=padding, seed=seed) for seed in (0, 5))
    for interventions in lists(name, layer, padding is not None):
        if name == "bert" and interventions[0] == cut(edges(layer), empty="no-update"):
            continue
        donors = {"other": other} if workbench.interventions.donor_names(interventions) else {}
        one, two = (run(model, batch, interventions, donors=donors) for model in (bridge, twin))
        assert near(one.logits[batch.valid], two.logits[batch.valid]), [str(each) for each in interventions]
        assert one.notes == two.notes


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("name", BRIDGES)
def test_what_a_bridge_records_is_what_its_twin_does(pair, name, padding):
    bridge, twin = pair(name)
    batch = batch_for(name, n=3, padding=padding)
    sites = [site for site in OF_LAYERS if site not in ABSENT[name] and site not in twin.absent]
    one, two = record(bridge, batch, sites), record(twin, batch, sites)
    for key in one:
        got, want = (
            found[key].movedim(1, 2) if key[0] in ("scores", "pattern") else found[key] for found in (one, two)
        )
        got, want = got[batch.valid], want[batch.valid]
        assert torch.equal(got == HIDDEN, want == HIDDEN), key
        assert near(got.nan_to_num(neginf=0.0), want.nan_to_num(neginf=0.0)), key
    assert (one["scores", 0] == HIDDEN).any() == (padding is not None or name != "bert")


@pytest.mark.parametrize("name", BRIDGES)
def test_probe_calls_absent_what_a_bridge_does_not_carry_and_the_rest_live(pair, name):
    bridge, _ = pair(name)
    found = probe(bridge)
    assert {one.site for one in found if one.status == "absent"} == ABSENT[name]
    assert {one.status for one in found if one.site not in ABSENT[name]} == {"live"}


WHY = {
    ("gpt2", "result"): "fired 0 times.*use_attn_result",
    ("llama", "q"): "pattern = softmax\\(q·k\\) does not hold",
    ("gpt_neox", "k"): "pattern = softmax\\(q·k\\) does not hold",
    ("gpt_neox", "resid_mid"): "parallel",
    ("bert", "attn_out"): "resid_mid = resid_pre \\+ attn_out does not hold",
    ("bert", "resid_mid"): "needs attn_out",
    ("bert", "resid_post"): "needs resid_mid",
}


@pytest.mark.parametrize(("name", "site"), WHY)
def test_asking_a_bridge_for_what_it_does_not_carry_says_why(pair, name, site):
    bridge, _ = pair(name)
    with pytest.raises(KeyError, match=WHY[name, site]):
        record(bridge, batch_for(name), [(site, 0)])
    with pytest.raises(KeyError, match=WHY[name, site]):
        run(bridge, batch_for(name), [custom((site, 1), torch.clone)])


def test_the_embedding_of_a_bridged_bert_is_no_embedding(pair):
    """Its hook stands behind the norm, on the sum with the places."""
    with pytest.raises(KeyError, match="differ from place to place"):
        record(pair("bert")[0], batch_for("bert"), ["embed"])


@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("empty", ["no-update", "self"])
@pytest.mark.parametrize("name", BRIDGES)
def test_rows_cut_whole_send_no_weight_to_the_future_and_none_is_nan(pair, name, empty, padding):
    bridge, _ = pair(name)
    batch = batch_for(name, n=3, padding=padding)
    found = record(bridge, batch, ["pattern"], [cut(edges(layer, 0, None), empty=empty) for layer in (0, 1)])
    for layer in (0, 1):
        weights = found["pattern", layer][:, 0].masked_fill(~batch.valid[:, :, None], 0.0)
        own = torch.diag_embed(batch.valid.float())
        assert torch.equal(weights, own if empty == "self" else torch.zeros_like(own))
        assert not found["pattern", layer].isnan().any()


def test_every_head_cut_whole_is_refused_where_the_output_bias_is_out_of_reach(pair):
    bridge, _ = pair("bert")
    with pytest.raises(InertIntervention, match="output bias"):
        run(bridge, batch_for("bert"), [cut(edges(0), empty="no-update")])
    with pytest.raises(EmptyRow):
        run(bridge, batch_for("bert"), [cut(edges(0))])


@pytest.fixture(scope="module")
def native():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bridge = TransformerBridge.boot_native(TransformerBridgeConfig(
            d_model=16, d_head=8, n_layers=2, n_ctx=8, n_heads=2, d_vocab=31, d_mlp=32, seed=0))  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return bridge


def test_the_scores_of_a_native_bridge_are_absent(native):
    model, batch = wrapped(native), batch_for("gpt2")
    for ask in (
        lambda: record(model, batch, ["scores"]),
        lambda: run(model, batch, [cut(edges(0, 0, source="first"))]),
        lambda: run(model, batch, [uniform(edges(1, 0))]),
    ):
        with pytest.raises(KeyError, match="pattern = softmax\\(scores\\) does not hold"):
            ask()
    assert {one.status for one in probe(model) if one.site == "scores"} == {"absent"}
    assert set(model.absent) == {"scores", "result"}


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("how", ["native", "gpt2", "llama"])
def test_an_edit_of_resid_mid_stays_in_the_stream(pair, native, how, layer):
    """A bridge's own hook there stands on the MLP's way: changed there alone, the stream keeps what it was."""
    model = wrapped(native) if how == "native" else pair(how)[0]
    batch = batch_for("gpt2")
    sites = ["resid_pre", "resid_mid", "mlp_out", "resid_post"]
    found = record(model, batch, sites, [zero(Stream(layer=layer, part="resid_mid"))])
    assert bool((found["resid_mid", layer] == 0).all())
    assert near(found["resid_post", layer], found["mlp_out", layer])
    assert len(found["mlp_out", layer].flatten(0, 1).unique(dim=0)) == 1


def test_results_are_live_where_the_bridge_computes_them(folders):
    bridge, twin = bridged("gpt2", folders("gpt2"), prepare=lambda one: setattr(one.cfg, "use_attn_result", True))
    model, twin = wrapped(bridge), wrap(twin)
    batch = batch_for("gpt2", n=3)
    assert model.absent == {} and {one.status for one in probe(model) if one.site == "result"} == {"live"}
    for layer in (0, 1):
        assert near(record(model, batch, ["result"])["result", layer], record(twin, batch, ["result"])["result", layer])
        change = [zero(Heads(layer=layer, head=1, pos="last", part="result"))]
        assert near(run(model, batch, change).logits, run(twin, batch, change).logits)
    bridge.cfg.use_attn_result = False
    with pytest.raises(InertIntervention, match="fired 0 times"):
        record(model, batch, ["result"])
    with pytest.raises(InertIntervention, match="fired 0 times"):
        run(model, batch, change)


@pytest.mark.parametrize("name", BRIDGES)
def test_a_bridge_is_as_before_outside_a_run(folders, name):
    bridge, _ = bridged(name, folders(name))
    tokens = batch_for(name).tokens
    with torch.no_grad():
        before, hooks = bridge(tokens), hooks_on(bridge)
        config, kind = copy.deepcopy(vars(bridge.cfg)), bridge.original_model.config._attn_implementation
        model = wrapped(bridge)
        where = cut(edges(0, 0, source="first"))
        first = run(model, batch_for(name), [where]).logits
        assert torch.equal(run(model, batch_for(name), [where]).logits, first)
        assert torch.equal(bridge(tokens), before) and hooks_on(bridge) == hooks
    assert vars(bridge.cfg) == config and bridge.original_model.config._attn_implementation == kind
    assert torch.equal(run(model, batch_for(name)).logits, before)


@pytest.mark.parametrize("name", BRIDGES)
def test_the_same_values_at_every_site_change_no_bit(pair, name):
    bridge, _ = pair(name)
    batch = batch_for(name)
    clean = run(bridge, batch).logits
    for site in OF_LAYERS:
        if site not in ABSENT[name]:
            for layer in (0, 1):
                assert torch.equal(run(bridge, batch, [custom((site, layer), torch.clone)]).logits, clean), site
    assert torch.equal(run(bridge, batch, [patch(Heads(layer=1, part="z"), donor="same", align="position")],
                           donors={"same": batch}).logits, clean)  # fmt: skip
    everything = [site for site in OF_LAYERS if site not in ABSENT[name]]
    assert torch.equal(record(bridge, batch, everything).run.logits, clean)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_no_hook_of_ours_remains_after_an_error_at_any_site(pair, name):
    def fail(x):
        raise RuntimeError("on purpose")

    bridge, _ = pair(name)
    before, batch = hooks_on(bridge), batch_for(name)
    for site in OF_LAYERS:
        if site not in ABSENT[name]:
            with pytest.raises(RuntimeError, match="on purpose"):
                run(bridge, batch, [custom((site, 1), fail)])
            assert hooks_on(bridge) == before


def test_the_users_own_hook_stays_and_acts(folders):
    bridge, twin = bridged("gpt2", folders("gpt2"))
    model, batch = wrapped(bridge), batch_for("gpt2")
    clean = run(model, batch).logits
    bridge.add_hook("blocks.0.hook_resid_pre", lambda x, hook: x * 0.5)
    with torch.no_grad():
        halved = bridge(batch.tokens)
    assert torch.equal(run(model, batch).logits, halved) and not near(halved, clean)
    run(model, batch, [cut(edges(1, 0, source="first"))])
    record(model, batch, ["resid_pre", "pattern"])
    with torch.no_grad():
        assert torch.equal(bridge(batch.tokens), halved)
    want = run(wrap(twin), batch, [scale(Stream(layer=0, part="resid_pre"), by=0.5), cut(edges(1, 0, source="first"))])
    assert near(run(model, batch, [cut(edges(1, 0, source="first"))]).logits, want.logits)


@pytest.mark.parametrize("hook", ["blocks.1.hook_resid_pre", "blocks.0.hook_resid_post", "ln_final.hook_in"])
def test_a_users_hook_that_throws_an_edit_away_is_found_out(folders, hook):
    bridge, _ = bridged("gpt2", folders("gpt2"))
    model, batch = wrapped(bridge), batch_for("gpt2")
    bridge.add_hook(hook, lambda x, hook: torch.ones_like(x))
    with pytest.raises(InertIntervention):
        run(model, batch, [cut(edges(0, 0, source="first"))])
    bridge.reset_hooks()
    assert run(model, batch, [cut(edges(0, 0, source="first"))]).logits.isfinite().all()


def test_a_users_hook_on_the_way_to_the_mlp_is_no_edit_of_the_stream(folders):
    """What the MLP reads there is not what the stream keeps."""
    bridge, _ = bridged("gpt2", folders("gpt2"))
    model, batch = wrapped(bridge), batch_for("gpt2")
    bridge.add_hook("blocks.0.hook_resid_mid", lambda x, hook: x * 2)
    with torch.no_grad():
        assert torch.equal(run(model, batch).logits, bridge(batch.tokens))
    found = record(model, batch, ["resid_pre", "attn_out", "resid_mid"])
    assert near(found["resid_mid", 0], found["resid_pre", 0] + found["attn_out", 0])
    with pytest.raises(InertIntervention, match="another hook there"):
        run(model, batch, [zero(Stream(layer=0, pos="some", part="attn_out")),
                           scale(Stream(layer=0, pos="some", part="resid_mid"), by=3.0)])  # fmt: skip
    run(model, batch, [scale(Stream(layer=1, pos="some", part="resid_mid"), by=3.0)])


@pytest.mark.parametrize("padding", ["right", "left"])
def test_a_bridge_that_counts_tokens_is_handed_padding_as_tokens(folders, padding):
    bridge, twin = bridged("roberta", folders("roberta"))
    batch = batch_for("roberta", n=3, padding=padding)
    change = [cut(edges(0, 1, source="first"))]
    one, two = run(wrapped(bridge), batch, change).logits, run(wrap(twin), batch, change).logits
    assert near(one[batch.valid], two[batch.valid])


@pytest.mark.parametrize("kind", ["use_split_qkv_input", "use_hook_mlp_in"])
def test_switches_of_a_bridge_thrown_later_change_no_answer(folders, kind):
    bridge, twin = bridged("gpt2", folders("gpt2"))
    model, twin, batch = wrapped(bridge), wrap(twin), batch_for("gpt2")
    getattr(bridge, f"set_{kind}")(True)
    for one in (cut(edges(0, 0, source="first")), zero(Stream(layer=0, pos="some", part="resid_mid"))):
        assert near(run(model, batch, [one]).logits, run(twin, batch, [one]).logits)


@pytest.mark.parametrize("site", ["resid_mid", "attn_out", "scores", "pattern", "z"])
def test_gradients_at_the_sites_of_a_bridge_are_those_of_its_twin(pair, site):
    def said(logits, batch):
        return logits[:, -1, 3]

    found = [record(model, batch_for("gpt2"), [(site, 0)], gradients_of=said) for model in pair("gpt2")]
    one, two = (each.gradients[site, 0] for each in found)
    assert near(one, two) and float(two.abs().max()) > 0


def test_a_bfloat16_bridge_has_the_sites_of_the_others(folders):
    bridge, _ = bridged("gpt2", folders("gpt2"), dtype=torch.bfloat16)
    model = wrapped(bridge)
    assert set(model.absent) == {"result"}
    found = record(model, batch_for("gpt2"), ["pattern"], [cut(edges(0, 0, source="first"))])
    assert bool((found["pattern", 0][:, 0, -1, 0] == 0).all())


def test_a_bridge_that_reads_pictures_is_refused(folders):
    from workbench import Unsupported

    bridge, _ = bridged("vit", folders("vit"))
    with pytest.raises(Unsupported, match="pixel_values"):
        wrapped(bridge)


def test_wrapping_a_wrapped_bridge_gives_it_back(pair):
    bridge, _ = pair("gpt2")
    assert wrap(bridge) is bridge
