"""wrap: models that others trained run as they would alone, under the words of our own, and are left as they were."""

import contextlib
import copy
import gc
import threading
import weakref

import pytest
import torch
import transformers
from foreign import (
    LENGTH,
    MOVABLE,
    NAMES,
    PLACES,
    POST_NORM,
    TEXT,
    TWO_SEQUENCES,
    VOCABULARY,
    as_dtype,
    batch_for,
    by_position,
    config_of,
    eager,
    hooks_on,
    inputs_for,
    made,
    module_of,
    shared,
)

from workbench import (
    Batch,
    Edges,
    Heads,
    InertIntervention,
    Intervention,
    MissingExamples,
    Stream,
    Unsupported,
    add,
    custom,
    cut,
    freeze,
    mean,
    patch,
    probe,
    record,
    resample,
    run,
    scale,
    uniform,
    wrap,
    zero,
)

EVERY_FAMILY = pytest.mark.parametrize("name", NAMES)
EVERY_PART = pytest.mark.parametrize(("name", "part"), PLACES, ids=lambda word: word or "only")
EVERY_TWO = pytest.mark.parametrize("name", TWO_SEQUENCES)
IN_PART = {"": {}, "encoder": {"stack": "encoder"}, "decoder": {"stack": "decoder"}, "cross": {"kind": "cross"}}


def padding_of(name):
    return "right" if name in TEXT else None


def dotted(part, site):
    return f"{part}.{site}" if part else site


# The same logits


@EVERY_FAMILY
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_unedited_logits_are_those_of_the_eager_model(name, attention):
    inner, batch = made(name, attention=attention), batch_for(name, n=3)
    want = by_position(name, eager(inner, name, batch).logits, batch)
    assert torch.equal(run(wrap(inner), batch).logits, want)
    assert inner.config._attn_implementation == attention


@pytest.mark.parametrize("name", TEXT)
def test_padding_on_the_right_gives_the_eager_logits_at_valid_positions(name):
    wrapped, batch = shared(name), batch_for(name, n=4, padding="right")
    want = eager(wrapped.inner, name, batch).logits
    assert torch.equal(run(wrapped, batch).logits[batch.valid], want[batch.valid])


@pytest.mark.parametrize("name", MOVABLE)
def test_padding_on_the_left_gives_the_eager_logits_at_valid_positions(name):
    wrapped, batch = shared(name), batch_for(name, n=4, padding="left")
    want = eager(wrapped.inner, name, batch).logits
    assert torch.equal(run(wrapped, batch).logits[batch.valid], want[batch.valid])


@pytest.mark.parametrize("name", MOVABLE)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_padded_example_says_what_it_says_alone(name, padding):
    wrapped, batch = shared(name), batch_for(name, n=2, padding=padding)
    alone = batch.select(torch.tensor([1]))
    short = Batch(
        alone.tokens[alone.valid][None], alone.labels[alone.valid][None],
        context=alone.context and Batch(alone.context.tokens[alone.context.valid][None],
                                        alone.context.labels[alone.context.valid][None]),
    )  # fmt: skip
    want = run(wrapped, short).logits[0]
    got = run(wrapped, batch).logits[1][batch.valid[1]]
    assert float((got - want).abs().max()) <= 5e-6 * float(want.abs().max())


@pytest.mark.parametrize("name", sorted(set(TEXT) - set(MOVABLE)))
def test_padding_on_the_left_is_refused_where_positions_are_counted_from_the_start(name):
    with pytest.raises(ValueError, match="pad on the right"):
        run(shared(name), batch_for(name, padding="left"))


@EVERY_FAMILY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees_with_the_eager_model(name, dtype):
    inner, batch = made(name, dtype=dtype), as_dtype(batch_for(name), dtype)
    want = by_position(name, eager(inner, name, batch).logits, batch)
    wrapped = wrap(inner, example=batch)
    got = run(wrapped, batch).logits
    assert got.dtype == dtype
    assert float((got - want).abs().max()) <= 2e-2 * float(want.abs().max())
    dest, source = ("first", "some") if name == "vit" else ("last", "near")
    part = "decoder" if name in TWO_SEQUENCES else ""
    edge = Edges(layer=1, dest=dest, source=source, **IN_PART[part])
    pattern = record(wrapped, batch, [(dotted(part, "pattern"), 1)], [cut(edge)])[dotted(part, "pattern"), 1]
    asked = (batch.roles[dest][:, :, None] & batch.roles[source][:, None])[:, None].expand_as(pattern)
    assert bool((pattern[asked] == 0).all())


@EVERY_FAMILY
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_in_other_types_are_wrapped_without_an_example(name, dtype):
    assert wrap(made(name, dtype=dtype)).n_out > 0


@EVERY_FAMILY
def test_a_run_in_chunks_equals_one_chunk(name):
    wrapped, batch = shared(name), batch_for(name, n=4, padding=padding_of(name))
    dest, source = ("first", "some") if name == "vit" else ("last", "near")
    edits = [cut(Edges(layer=1, head=0, dest=dest, source=source, **IN_PART[first_part(name)]))]
    whole, single = run(wrapped, batch, edits).logits, run(wrapped, batch, edits, chunk_size=1).logits
    assert float((whole - single).abs().max()) <= 5e-6 * float(whole.abs().max())


def first_part(name):
    return "decoder" if name in TWO_SEQUENCES else ""


@EVERY_FAMILY
def test_a_batch_of_one_agrees_with_a_batch_of_sixteen(name):
    wrapped, batch = shared(name), batch_for(name, n=16, padding=padding_of(name))
    many = run(wrapped, batch).logits
    for example in (0, 7, 15):
        one = run(wrapped, batch.select(torch.tensor([example]))).logits[0]
        at = batch.valid[example]
        assert float((one - many[example])[at].abs().max()) <= 5e-6 * float(many.abs().max())
        assert torch.equal(one[at].argmax(-1), many[example][at].argmax(-1))


@EVERY_FAMILY
def test_the_read_positions_are_those_of_all(name):
    wrapped, batch = shared(name), batch_for(name, n=3, padding=padding_of(name))
    dest, source = ("first", "some") if name == "vit" else ("last", "near")
    edits = [cut(Edges(layer=0, dest=dest, source=source, **IN_PART[first_part(name)]))]
    everything, read = run(wrapped, batch, edits).logits, run(wrapped, batch, edits, positions="read").logits
    at = batch.read_positions()
    assert torch.equal(read, everything[torch.arange(3)[:, None], at])


@EVERY_FAMILY
def test_a_model_in_training_mode_is_run_without_dropout_and_handed_back_in_training_mode(name):
    config = config_of(name)
    for word in ("dropout", "attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate",
                 "attn_pdrop", "resid_pdrop", "hidden_dropout"):  # fmt: skip
        if hasattr(config, word):
            setattr(config, word, 0.5)
    inner, batch = made(name, config=config), batch_for(name)
    want = by_position(name, eager(inner, name, batch).logits, batch)
    inner.train()
    list(inner.modules())[-1].eval()
    modes = [module.training for module in inner.modules()]
    assert torch.equal(run(wrap(inner), batch).logits, want)
    assert [module.training for module in inner.modules()] == modes


# What is recorded


@EVERY_FAMILY
def test_recorded_patterns_are_the_eager_models_attentions(name):
    wrapped, batch = shared(name), batch_for(name, padding=padding_of(name))
    found, out = record(wrapped, batch, ["pattern"]), eager(wrapped.inner, name, batch, output_attentions=True)
    names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    parts = names if name in TWO_SEQUENCES else {"": "attentions"}
    assert set(found) == {(dotted(part, "pattern"), layer) for part in parts for layer in (0, 1)}
    for part, attribute in parts.items():
        readers = batch.context if part == "encoder" else batch
        for layer in (0, 1):
            pattern, want = found[dotted(part, "pattern"), layer], getattr(out, attribute)[layer]
            assert pattern.shape == want.shape
            rows = readers.valid[:, None].expand(pattern.shape[:3])
            assert torch.equal(pattern[rows], want[rows])


@EVERY_PART
def test_scores_are_minus_infinity_exactly_where_the_model_sees_nothing(name, part):
    wrapped, batch = shared(name), batch_for(name, padding=padding_of(name))
    found = record(wrapped, batch, [(dotted(part, site), layer) for site in ("scores", "pattern") for layer in (0, 1)])
    readers = batch.context if part == "encoder" else batch
    sources = batch if part in ("", "decoder") else batch.context
    grouped = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text")
    causal = part == "decoder" or name in ("gpt2", "gpt_neox", "gpt_neox_serial", *grouped)
    places = torch.arange(readers.tokens.shape[1])
    for layer in (0, 1):
        scores, pattern = found[dotted(part, "scores"), layer], found[dotted(part, "pattern"), layer]
        seen = sources.valid[:, None].expand(scores.shape[0], *scores.shape[2:])
        if causal:
            seen = seen & (places[:, None] >= places)
        windowed = name == "gemma3_text" and wrapped.inner.config.layer_types[layer] == "sliding_attention"
        if windowed or name == "mistral":
            seen = seen & (places[:, None] - places < 3)
        rows = readers.valid[:, None, :, None].expand_as(scores)
        assert torch.equal((scores > -torch.inf)[rows], seen[:, None].expand_as(scores)[rows])
        assert torch.equal((scores > -torch.inf)[rows], (pattern > 0)[rows])
        assert torch.equal(wrapped.sees(batch, part, layer), seen & readers.valid[:, :, None])


@EVERY_FAMILY
def test_the_stream_is_the_sum_of_what_was_added(name):
    wrapped, batch = shared(name), batch_for(name)
    for part in [part for one, part in PLACES if one == name and part != "cross" and name != "gpt_neox"]:
        sites = ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"]
        found = record(wrapped, batch, [(dotted(part, site), layer) for site in sites for layer in (0, 1)])
        for layer in (0, 1):
            pre, attended, middle, mlp, post = (found[dotted(part, site), layer] for site in sites)
            assert torch.allclose(middle, pre + attended, atol=1e-5)
            if name not in POST_NORM and part != "decoder":
                assert torch.allclose(post, middle + mlp, atol=1e-5)
        if name not in POST_NORM:
            assert torch.equal(found[dotted(part, "resid_post"), 0], found[dotted(part, "resid_pre"), 1])


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_the_stream_of_a_pre_norm_decoder_adds_cross_attention_between(name):
    found = record(shared(name), batch_for(name), [
        ("decoder.resid_mid", 1), ("cross.attn_out", 1), ("cross.resid_mid", 1), ("decoder.mlp_out", 1),
        ("decoder.resid_post", 1),
    ])  # fmt: skip
    middle = found["cross.resid_mid", 1]
    assert torch.allclose(middle, found["decoder.resid_mid", 1] + found["cross.attn_out", 1], atol=1e-5)
    assert torch.allclose(found["decoder.resid_post", 1], middle + found["decoder.mlp_out", 1], atol=1e-5)


@EVERY_PART
def test_results_of_heads_and_the_bias_are_what_attention_writes(name, part):
    if name == "gemma3_text":
        pytest.skip("a norm stands between the heads' results and what is added to the stream")
    wrapped, batch = shared(name), batch_for(name)
    found = record(wrapped, batch, [(dotted(part, site), 1) for site in ("z", "result", "attn_out")])
    projection = module_of(wrapped.inner, name, part, 1, "projection")
    total = found[dotted(part, "result"), 1].sum(2)
    if getattr(projection, "bias", None) is not None:
        total = total + projection.bias
    assert torch.allclose(total, found[dotted(part, "attn_out"), 1], atol=1e-5)


# Nothing outside changes


def state_of(model):
    return {
        "configs": [id(module.config) for module in model.modules() if hasattr(module, "config")],
        "attention": [module.config._attn_implementation for module in model.modules() if hasattr(module, "config")],
        "saved": model.config.to_json_string(),
        "hooks": hooks_on(model),
        "modes": [module.training for module in model.modules()],
        "gradients": [parameter.requires_grad for parameter in model.parameters()],
        "filled": [parameter.grad is None for parameter in model.parameters()],
    }


@EVERY_FAMILY
def test_a_model_of_the_same_configuration_is_untouched_during_a_run_and_after(name):
    config = config_of(name)
    one, other = made(name, config=config, attention="sdpa"), made(name, config=config, attention="sdpa", seed=1)
    assert one.config is other.config
    batch, part = batch_for(name), first_part(name)
    with torch.no_grad():
        before = other(**inputs_for(name, batch)).logits
    state, seen = state_of(other), []
    wrapped = wrap(one)

    @torch.no_grad()
    def look(x):
        assert state_of(other) == state
        seen.append(other(**inputs_for(name, batch)).logits)
        return x.clone()

    run(wrapped, batch, [custom((dotted(part, "pattern"), 1), look)])
    assert len(seen) == 1 and torch.equal(seen[0], before)
    assert state_of(other) == state
    with torch.no_grad():
        assert torch.equal(other(**inputs_for(name, batch)).logits, before)


@EVERY_FAMILY
def test_a_model_is_handed_back_as_it_was(name):
    inner, batch, part = made(name, attention="sdpa"), batch_for(name), first_part(name)
    next(inner.parameters()).requires_grad_(False)
    inner.train()
    state = state_of(inner)
    wrapped = wrap(inner)
    assert state_of(inner) == state
    run(wrapped, batch, [cut(Edges(layer=1, **IN_PART[part]), empty="no-update")])
    assert state_of(inner) == state
    sites = [(dotted(part, site), 1) for site in ("pattern", "z", "result", "attn_out")]
    record(wrapped, batch, sites, gradients_of=lambda logits, _: logits.sum((1, 2)))
    assert state_of(inner) == state
    assert all(not point._forward_hooks for point in wrapped.hook_dict.values())


@EVERY_FAMILY
def test_an_error_at_any_site_leaves_no_hook_and_the_next_run_bit_equal(name):
    inner = made(name)
    wrapped, batch = wrap(inner), batch_for(name)
    clean, state = run(wrapped, batch).logits, state_of(inner)

    def fail(_):
        raise RuntimeError("stop here")

    for part in wrapped.parts:
        for site in ("scores", "z", "result", "attn_out", "resid_mid"):
            if not (name == "gpt_neox" and site == "resid_mid"):
                with pytest.raises(RuntimeError, match="stop here"):
                    run(wrapped, batch, [custom((dotted(part, site), 1), fail)])
                assert state_of(inner) == state
                assert all(not point._forward_hooks for point in wrapped.hook_dict.values())
    assert torch.equal(run(wrapped, batch).logits, clean)


def test_a_users_own_hooks_stay_and_act():
    inner = made("gpt2")
    wrapped, batch = wrap(inner), batch_for("gpt2")
    clean, seen = run(wrapped, batch).logits, []

    def double(_module, _args, output):
        seen.append(1)
        return 2 * output

    handle = inner.transformer.h[0].attn.c_proj.register_forward_hook(double)
    want = eager(inner, "gpt2", batch).logits
    seen.clear()
    doubled = record(wrapped, batch, [("attn_out", 0), ("result", 0)])
    assert seen and torch.equal(doubled.run.logits, want) and not torch.equal(want, clean)
    assert len(hooks_on(inner)) == 1
    run(wrapped, batch, [zero(Heads(layer=1, head=0, part="z"))])
    handle.remove()
    assert torch.equal(run(wrapped, batch).logits, clean)
    single = record(wrapped, batch, [("attn_out", 0)])
    assert torch.allclose(doubled["attn_out", 0], 2 * single["attn_out", 0])


THROWN_AWAY = {
    "z": ("transformer.h.0.attn.c_proj", zero(Heads(layer=0, head=0, part="z"))),
    "scores": ("transformer.h.0.attn.c_proj", uniform(Edges(layer=0))),
    "attn_out": ("transformer.h.0.attn", zero(Stream(layer=0, part="attn_out"))),
    "mlp_out": ("transformer.h.0.mlp", zero(Stream(layer=0, part="mlp_out"))),
    "resid_mid": ("transformer.h.0", zero(Stream(layer=0, part="resid_mid"))),
}  # fmt: skip


@pytest.mark.parametrize("site", THROWN_AWAY)
@pytest.mark.parametrize("when", ["before wrapping", "after wrapping"])
def test_a_users_hook_that_throws_an_edit_away_is_found(site, when):
    inner, batch = made("gpt2"), batch_for("gpt2")
    module, edit = THROWN_AWAY[site]
    wrapped = wrap(inner) if when == "after wrapping" else None

    def constant(_module, _args, output):
        first = torch.ones_like(output[0] if isinstance(output, tuple) else output)
        return (first, *output[1:]) if isinstance(output, tuple) else first

    inner.get_submodule(module).register_forward_hook(constant)
    wrapped = wrapped or wrap(inner)
    with pytest.raises(InertIntervention):
        run(wrapped, batch, [edit])


def constant_at_last(tensor):
    out = tensor.clone()
    out[:, -1] = 1.0
    return out


@pytest.mark.parametrize(
    "edit",
    [zero(Stream(layer=1, pos="last", part="mlp_out")), zero(Heads(layer=1, pos="last", part="z")),
     cut(Edges(layer=1, dest="last", source="first"))],
    ids=str,
)  # fmt: skip
def test_a_users_hook_that_throws_an_edit_away_at_the_positions_edited_is_found(edit):
    inner, batch = made("gpt2"), batch_for("gpt2")
    inner.transformer.h[1].mlp.register_forward_hook(lambda _m, _args, output: constant_at_last(output))
    inner.transformer.h[1].attn.c_proj.register_forward_pre_hook(lambda _m, args: (constant_at_last(args[0]),))
    with pytest.raises(InertIntervention):
        run(wrap(inner), batch, [edit])


def test_two_threads_run_two_wrapped_models_of_one_configuration():
    config = config_of("bert")
    models = [wrap(made("bert", config=config, seed=seed)) for seed in (0, 1)]
    batch, edit = batch_for("bert"), [cut(Edges(layer=0, dest="last", source="first"))]
    want, wrong = [run(model, batch, edit).logits for model in models], []

    def work(index):
        for _ in range(15):
            if not torch.equal(run(models[index], batch, edit).logits, want[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_threads_in_one_model_leave_its_configuration_as_it_was():
    inner, batch = made("bert", attention="sdpa"), batch_for("bert")
    state, wrapped = state_of(inner), [wrap(inner), wrap(inner)]
    inside, first_done = [threading.Event(), threading.Event()], threading.Event()

    def work(index):
        def wait(x):
            inside[index].set()
            (first_done if index else inside[1]).wait(3)
            return x.clone()

        with contextlib.suppress(RuntimeError):  # a second run that is refused in words would do as well
            run(wrapped[index], batch, [custom(("z", 1), wait)])
        inside[index].set()
        if not index:
            first_done.set()

    for one in wrapped:  # what is checked on first use stands in modules that both share
        run(one, batch, [custom(("z", 1), torch.clone)])
    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    threads[0].start()
    inside[0].wait(3)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert state_of(inner) == state


def test_wrapping_one_model_twice_gives_two_that_do_not_hear_each_other():
    inner, batch = made("llama"), batch_for("llama")
    one, other = wrap(inner), wrap(inner)
    edit = cut(Edges(layer=1, dest="last", source="near"))
    assert torch.equal(run(one, batch, [edit]).logits, run(other, batch, [edit]).logits)
    one.hook_dict["blocks.0.attn.hook_z"].register_forward_hook(lambda _m, _i, x: 0 * x)
    assert not torch.equal(run(one, batch).logits, run(other, batch).logits)


def test_a_deep_copy_of_a_wrapped_model_runs_as_it_does():
    wrapped, batch = wrap(made("bert")), batch_for("bert")
    edit = [cut(Edges(layer=1, dest="last", source="near"))]
    want = run(wrapped, batch, edit).logits
    copied = copy.deepcopy(wrapped)
    assert torch.equal(run(copied, batch, edit).logits, want)
    with torch.no_grad():
        for parameter in copied.inner.parameters():
            parameter.zero_()
    assert torch.equal(run(wrapped, batch, edit).logits, want)


def test_our_attention_outside_a_run_says_that_it_works_inside_only():
    inner, batch = made("gpt2"), batch_for("gpt2")
    wrap(inner)
    inner.set_attn_implementation("workbench")
    with pytest.raises(RuntimeError, match="inside run"):
        inner(**inputs_for("gpt2", batch))


def test_layers_that_change_places_after_wrapping_are_not_mistaken_for_one_another():
    wrapped, batch = wrap(made("gpt2")), batch_for("gpt2")
    layers = wrapped.inner.transformer.h
    layers[0], layers[1] = layers[1], layers[0]
    want = eager(wrapped.inner, "gpt2", batch, output_attentions=True).attentions[0]
    try:
        found = record(wrapped, batch, [("pattern", 0)])
    except (RuntimeError, ValueError):
        return
    assert torch.equal(found["pattern", 0], want)


class LowRank(torch.nn.Module):
    """A linear map with a low-rank change beside it, under the names that adapters give it."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.in_features = self.out_features = base.weight.shape[0]
        self.change = torch.nn.Parameter(torch.eye(self.in_features) + 0.3)

    weight = property(lambda self: self.base_layer.weight)
    bias = property(lambda self: self.base_layer.bias)

    def forward(self, x):
        return self.base_layer(x) + x @ self.change


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_what_heads_write_through_an_adapter_counts_the_adapter_or_is_refused(name):
    inner, batch = made(name), batch_for(name)
    owner = {"llama": "model.layers.1.self_attn", "gpt2": "transformer.h.1.attn",
             "bert": "bert.encoder.layer.1.attention.output"}[name]  # fmt: skip
    last = {"llama": "o_proj", "gpt2": "c_proj", "bert": "dense"}[name]
    setattr(inner.get_submodule(owner), last, LowRank(getattr(inner.get_submodule(owner), last)))
    wrapped = wrap(inner)
    silent = run(wrapped, batch, [zero(Heads(layer=1, head=0, part="z"))]).logits
    try:
        got = run(wrapped, batch, [zero(Heads(layer=1, head=0, part="result"))]).logits
    except (KeyError, RuntimeError, ValueError):
        return
    assert torch.allclose(got, silent, atol=1e-4)


# ALBERT shares its modules


def test_an_edit_of_one_layer_of_shared_modules_acts_in_that_layer_only():
    wrapped, batch = shared("albert"), batch_for("albert")
    clean = record(wrapped, batch, ["pattern", "z", "attn_out", "resid_post"])
    late = record(wrapped, batch, ["pattern", "z", "attn_out", "resid_post"], [uniform(Edges(layer=1))])
    early = record(wrapped, batch, ["pattern", "z", "attn_out", "resid_post"], [uniform(Edges(layer=0))])
    for site in ("pattern", "z", "attn_out", "resid_post"):
        assert torch.equal(late[site, 0], clean[site, 0])
        assert not torch.equal(late[site, 1], clean[site, 1])
        assert not torch.equal(early[site, 0], clean[site, 0])
    assert torch.allclose(early["pattern", 0], torch.tensor(1 / LENGTH))
    assert not torch.allclose(early["pattern", 1], torch.tensor(1 / LENGTH), atol=1e-3)
    silent = record(wrapped, batch, ["attn_out"], [zero(Stream(layer=1, part="attn_out"))])
    assert torch.equal(silent["attn_out", 0], clean["attn_out", 0]) and not silent["attn_out", 1].any()


@pytest.mark.parametrize("changes", [{"num_hidden_groups": 2}, {"inner_group_num": 2}, {"num_hidden_layers": 3}])
def test_other_ways_of_sharing_count_their_layers_as_they_are_called(changes):
    inner, batch = made("albert", config=config_of("albert", **changes)), batch_for("albert")
    wrapped = wrap(inner)
    want = eager(inner, "albert", batch, output_attentions=True)
    found = record(wrapped, batch, ["pattern"])
    assert torch.equal(found.run.logits, want.logits)
    assert len(found.values) == len(want.attentions)
    assert all(torch.equal(found["pattern", layer], one) for layer, one in enumerate(want.attentions))


# Refusals


def test_gpt_neo_is_refused_by_name_with_the_number_of_calls():
    config = transformers.GPTNeoConfig(
        vocab_size=VOCABULARY, max_position_embeddings=16, hidden_size=16, num_layers=2, num_heads=2,
        attention_types=[[["global", "local"], 1]], window_size=4, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with pytest.raises(Unsupported, match=r"gpt_neo.*0 calls"):
        wrap(transformers.GPTNeoForCausalLM(config))


def test_a_family_that_is_not_described_is_refused_by_name():
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    opt = transformers.OPTConfig(**sizes, ffn_dim=24, word_embed_proj_dim=16, max_position_embeddings=16)
    gptj = transformers.GPTJConfig(vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, rotary_dim=4)
    xlnet = transformers.XLNetConfig(vocab_size=VOCABULARY, d_model=16, n_layer=2, n_head=2, d_inner=24)
    for kind, model in {
        "opt": transformers.OPTForCausalLM(opt),
        "gptj": transformers.GPTJForCausalLM(gptj),
        "xlnet": transformers.XLNetLMHeadModel(xlnet),
    }.items():
        with pytest.raises(Unsupported, match=f"'{kind}'.*families described: albert, bart"):
            wrap(model)
        assert hooks_on(model) == {} and model.config._attn_implementation != "workbench"


@pytest.mark.parametrize("cls", ["GPT2Model", "BertModel", "T5Model", "BartModel", "ViTModel", "LlamaModel"])
def test_a_model_without_an_output_layer_is_refused_with_the_way_to_load_it(cls):
    name = {"GPT2Model": "gpt2", "BertModel": "bert", "T5Model": "t5", "BartModel": "bart", "ViTModel": "vit",
            "LlamaModel": "llama"}[cls]  # fmt: skip
    with pytest.raises(Unsupported, match=rf"{cls}.*(no logits|no output layer)"):
        wrap(made(name, cls=cls))


def test_an_encoder_alone_is_refused_in_words():
    with pytest.raises(Unsupported):
        wrap(made("t5", cls="T5EncoderModel"))


def test_a_wrapped_model_is_handed_back_as_it_is():
    wrapped = shared("gpt2")
    assert wrap(wrapped) is wrapped


@pytest.mark.parametrize(
    ("name", "cls"),
    [("t5", "T5ForTokenClassification"), ("bart", "BartForCausalLM"), ("whisper", "WhisperForAudioClassification"),
     ("electra", "ElectraForPreTraining"), ("bert", "BertForMultipleChoice")],
)  # fmt: skip
def test_a_head_or_half_of_a_family_that_is_not_read_here_is_refused_in_words(name, cls):
    with pytest.raises(Unsupported):
        wrap(made(name, cls=cls))


@pytest.mark.parametrize(
    ("name", "changes"),
    [("t5", {"feed_forward_proj": "gated-gelu"}), ("bert", {"chunk_size_feed_forward": 2}),
     ("albert", {"chunk_size_feed_forward": 3})],
)  # fmt: skip
def test_other_ways_of_the_mlp_are_probed_without_an_accident(name, changes):
    wrapped = wrap(made(name, config=config_of(name, **changes)))
    found = {(one.site, one.layer): one.status for one in probe(wrapped)}
    part = first_part(name)
    assert found[dotted(part, "mlp_pre"), 0] == "absent"
    assert found[dotted(part, "attn_out"), 1] == "live" and found[dotted(part, "scores"), 1] == "live"


@pytest.mark.parametrize(
    ("name", "cls"), [("gpt2", "GPT2ForSequenceClassification"), ("llama", "LlamaForSequenceClassification")]
)
def test_one_output_of_a_padded_example_is_that_of_the_example_alone(name, cls):
    wrapped = wrap(made(name, config=config_of(name, num_labels=VOCABULARY), cls=cls))
    batch = batch_for(name, padding="right")
    alone = batch.select(torch.tensor([1]))
    short = Batch(alone.tokens[alone.valid][None], alone.labels[alone.valid][None])
    want = run(wrapped, short).logits[0, 0]
    assert torch.allclose(run(wrapped, batch).logits[1, 0], want, atol=1e-5)


@pytest.mark.parametrize("name", MOVABLE)
def test_padding_in_the_middle_counts_for_nothing_or_is_refused(name):
    wrapped, batch = shared(name), batch_for(name, n=1)
    valid = batch.valid.clone()
    valid[0, 2] = False
    tokens, unread = batch.tokens, torch.full_like(batch.tokens, -100)
    short = Batch(tokens[:, valid[0]], unread[:, valid[0]], context=batch.context)
    try:
        got = run(wrapped, Batch(tokens, unread, valid, context=batch.context)).logits[:, valid[0]]
    except ValueError:
        return
    assert torch.allclose(got, run(wrapped, short).logits, atol=1e-5)


def test_a_mask_among_the_inputs_is_what_edits_see_or_is_refused():
    wrapped, batch = shared("bert"), batch_for("bert", n=4, padding="right")
    mask = batch.valid.long()
    mask[0, 0] = 0
    asked = Batch(batch.tokens, batch.labels, batch.valid, dict(batch.roles), inputs={"attention_mask": mask})
    try:
        found = record(wrapped, asked, [("scores", 0)])["scores", 0]
    except ValueError:
        return
    assert torch.equal(wrapped.sees(asked, "", 0), (found > -torch.inf).any(1) & batch.valid[:, :, None])


def test_tokens_are_not_replaced_by_others_among_the_inputs():
    batch, other = batch_for("gpt2"), batch_for("gpt2", seed=3)
    with pytest.raises(ValueError, match="input_ids"):
        run(shared("gpt2"), Batch(batch.tokens, batch.labels, inputs={"input_ids": other.tokens}))


@pytest.mark.parametrize("thing", [None, 3, "gpt2", torch.nn.Linear(2, 2), config_of("gpt2")])
def test_what_is_no_model_is_refused(thing):
    with pytest.raises(TypeError, match="cannot be wrapped"):
        wrap(thing)


def test_a_model_that_was_not_wrapped_is_refused_by_run():
    with pytest.raises(TypeError, match="wrap"):
        run(made("gpt2"), batch_for("gpt2"))


@EVERY_TWO
def test_a_batch_without_a_context_is_refused(name):
    batch = batch_for(name)
    with pytest.raises(ValueError, match="context"):
        run(shared(name), Batch(batch.tokens, batch.labels, inputs=dict(batch.inputs)))


@pytest.mark.parametrize("name", ["vit", "whisper"])
def test_a_picture_or_a_sound_that_is_missing_is_asked_for(name):
    batch = batch_for(name)
    with pytest.raises(ValueError, match=r"pixel_values|input_features"):
        run(shared(name), Batch(batch.tokens, batch.labels, context=batch.context))


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_a_context_that_nothing_reads_is_refused(name):
    batch = batch_for(name)
    with pytest.raises(ValueError, match="one sequence"):
        run(shared(name), Batch(batch.tokens, batch.labels, context=batch, inputs=dict(batch.inputs)))


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5"])
def test_tokens_beyond_the_vocabulary_are_refused(name):
    batch = batch_for(name)
    with pytest.raises(ValueError, match=f"token {VOCABULARY} does not fit"):
        run(shared(name), Batch(torch.full_like(batch.tokens, VOCABULARY), batch.labels, context=batch.context))
    if name == "t5":
        beyond = Batch(torch.full_like(batch.context.tokens, VOCABULARY), batch.context.labels)
        with pytest.raises(ValueError, match=f"token {VOCABULARY} of the context"):
            run(shared(name), Batch(batch.tokens, batch.labels, context=beyond))


def test_an_input_that_the_model_does_not_take_is_refused_by_name():
    batch = batch_for("gpt2")
    with pytest.raises(ValueError, match="takes no input 'pictures'"):
        run(shared("gpt2"), Batch(batch.tokens, batch.labels, inputs={"pictures": torch.zeros(2, 3)}))


def test_more_positions_than_the_model_computes_are_refused():
    batch = batch_for("vit")
    for length in (1, 4, 6):
        tokens = torch.zeros(2, length, dtype=torch.long)
        wrong = Batch(tokens, torch.full_like(tokens, -100), inputs=dict(batch.inputs))
        with pytest.raises(ValueError, match="position"):
            run(shared("vit"), wrong, [zero(Heads(layer=1, part="z"))])
    heard = batch_for("whisper")
    tokens = torch.zeros(2, 1, dtype=torch.long)
    wrong = Batch(heard.tokens, heard.labels, context=Batch(tokens, tokens - 100), inputs=dict(heard.inputs))
    with pytest.raises(ValueError, match="position"):
        run(shared("whisper"), wrong, [zero(Heads(layer=1, stack="encoder", part="z"))])


def test_padding_that_the_model_cannot_be_told_of_is_refused():
    batch = batch_for("whisper")
    short = batch.context.valid.clone()
    short[:, -2:] = False
    context = Batch(batch.context.tokens, torch.full_like(batch.context.tokens, -100), short)
    with pytest.raises(ValueError, match=r"padding|valid"):
        run(shared("whisper"), Batch(batch.tokens, batch.labels, context=context, inputs=dict(batch.inputs)))
    picture = batch_for("vit")
    seen = picture.valid.clone()
    seen[:, -1] = False
    with pytest.raises(ValueError, match=r"padding|valid"):
        run(shared("vit"), Batch(picture.tokens, picture.labels, seen, inputs=dict(picture.inputs)))


@EVERY_FAMILY
def test_layers_and_heads_that_are_not_there_are_refused(name):
    wrapped, batch, where = shared(name), batch_for(name), IN_PART[first_part(name)]
    with pytest.raises(KeyError, match="no layer 2"):
        run(wrapped, batch, [cut(Edges(layer=2, **where))])
    with pytest.raises(KeyError, match="no head 4"):
        run(wrapped, batch, [cut(Edges(layer=0, head=4, **where))])
    if name in ("llama", "qwen2", "qwen3", "mistral", "gemma3_text"):
        with pytest.raises(KeyError, match=r"no head 2; this model has key–value heads 0 to 1"):
            run(wrapped, batch, [zero(Heads(layer=0, head=2, part="v"))])


# Parts of two-sequence models


@EVERY_TWO
def test_a_part_that_is_not_named_is_asked_for(name):
    wrapped, batch = shared(name), batch_for(name)
    for one in (cut(Edges(layer=0)), zero(Heads(layer=0, part="z")), zero(Stream(layer=0, part="attn_out"))):
        with pytest.raises(KeyError, match="stack='encoder', stack='decoder', kind='cross'"):
            run(wrapped, batch, [one])
    with pytest.raises(KeyError, match=r"'encoder\.pattern', 'decoder\.pattern', 'cross\.pattern'"):
        record(wrapped, batch, [("pattern", 0)])
    with pytest.raises(KeyError, match="leave stack and kind out"):
        run(shared("gpt2"), batch_for("gpt2"), [cut(Edges(layer=0, stack="encoder"))])


@EVERY_TWO
def test_roles_are_those_of_the_side_that_an_edge_ends_on(name):
    wrapped, batch = shared(name), batch_for(name)
    patterns = [("encoder.pattern", 1), ("decoder.pattern", 1), ("cross.pattern", 1)]
    clean = record(wrapped, batch, patterns)
    for part, dest, source in (
        ("encoder", "closing", "opening"), ("decoder", "last", "first"), ("cross", "last", "opening"),
    ):  # fmt: skip
        edge = Edges(layer=1, dest=dest, source=source, **IN_PART[part])
        pattern = record(wrapped, batch, patterns, [cut(edge)])[f"{part}.pattern", 1]
        readers, sources = (batch.context if part == "encoder" else batch), batch
        sources = batch if part == "decoder" else batch.context
        asked = (readers.roles[dest][:, :, None] & sources.roles[source][:, None])[:, None].expand_as(pattern)
        untouched = ~(readers.roles[dest][:, None, :, None]).expand_as(pattern)
        assert bool((pattern[asked] == 0).all()) and bool((clean[f"{part}.pattern", 1][asked] > 0).all())
        if part != "cross":
            assert torch.equal(pattern[untouched], clean[f"{part}.pattern", 1][untouched])
        assert torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-6)
    for edge in (
        Edges(layer=0, kind="cross", dest="last", source="first"), Edges(layer=0, kind="cross", dest="closing"),
        Edges(layer=0, stack="encoder", dest="last"),
    ):  # fmt: skip
        with pytest.raises(KeyError, match="no role"):
            run(wrapped, batch, [cut(edge)])


@EVERY_TWO
def test_an_alignment_names_edges_of_cross_attention(name):
    wrapped, batch = shared(name), batch_for(name, padding=padding_of(name))
    edge = Edges(layer=1, head=0, kind="cross", source="same")
    found = record(wrapped, batch, [("cross.pattern", 1)], [cut(edge)], on_missing="raise")["cross.pattern", 1]
    asked = batch.alignments["same"]
    assert bool((found[:, 0][asked] == 0).all()) and bool((found[:, 1][asked] > 0).all())
    before = record(wrapped, batch, [("encoder.pattern", 0)], [cut(Edges(layer=0, stack="encoder", source="before"))])
    assert bool((before["encoder.pattern", 0].movedim(1, 3)[batch.context.relations["before"]] == 0).all())
    with pytest.raises(KeyError, match="same"):
        run(wrapped, batch, [cut(Edges(layer=0, stack="decoder", source="same"))])


def test_labels_and_files_say_the_part():
    said = {
        cut(Edges(layer=1, head=0, kind="cross", dest="last", source="inner")): "cut cross.L1H0 last←inner",
        zero(Heads(layer=0, part="v", stack="encoder")): "zero encoder.L0.v every",
        scale(Stream(layer=1, part="resid_mid", stack="decoder", pos="last"), by=2): "scale decoder.L1.resid_mid last "
        "by 2",
        uniform(Edges(layer=0, kind="cross", stack="decoder")): "uniform cross.L0 every←every",
    }
    for one, label in said.items():
        assert str(one) == label
        assert Intervention.model_validate_json(one.model_dump_json()) == one
    with pytest.raises(ValueError, match="no cross-attention"):
        Edges(layer=0, kind="cross", stack="encoder")


@EVERY_TWO
def test_an_empty_role_of_the_context_is_missing_there(name):
    wrapped, batch = shared(name), batch_for(name)
    roles = {**batch.context.roles, "opening": batch.context.roles["opening"].clone()}
    roles["opening"][1] = False
    context = Batch(batch.context.tokens, batch.context.labels, roles=roles)
    batch = Batch(batch.tokens, batch.labels, roles=dict(batch.roles), context=context, inputs=dict(batch.inputs))
    edit = [cut(Edges(layer=0, kind="cross", dest="last", source="opening"))]
    with pytest.raises(MissingExamples, match="role 'opening' is empty in 1 of 2 examples"):
        run(wrapped, batch, edit)
    assert run(wrapped, batch, edit, on_missing="skip").kept.tolist() == [0]


DONATED = [
    lambda where: patch(where, donor="other", align="role"), lambda where: add(where, donor="other", align="position"),
    lambda where: mean(where, donor="other"), lambda where: resample(where, donor="other", seed=1),
]  # fmt: skip


@EVERY_PART
@pytest.mark.parametrize("site", ["k", "z", "result", "attn_out"])
def test_donors_give_their_values_at_the_role_of_the_right_side(name, part, site):
    wrapped, batch, other = shared(name), batch_for(name, n=3), batch_for(name, n=3, seed=9)
    of_context = part == "encoder" or (part == "cross" and site == "k")
    role = "closing" if of_context else ("first" if name == "vit" else "last")
    at = (batch.context if of_context else batch).roles[role]
    key = (dotted(part, site), 1)
    make = Stream if site == "attn_out" else Heads
    where = make(layer=1, pos=role, part=site, **IN_PART[part])
    here, there = (record(wrapped, one, [key])[key] for one in (batch, other))
    found = [record(wrapped, batch, [key], [made(where)], donors={"other": other})[key] for made in DONATED]
    patched, added, averaged, resampled = found
    assert torch.equal(patched[at], there[at]) and torch.equal(added[at], (here + there)[at])
    assert torch.allclose(averaged[at], there[at].mean(0).expand_as(averaged[at]), atol=1e-6)
    order = [next(i for i in range(3) if torch.equal(resampled[at][j], there[at][i])) for j in range(3)]
    assert sorted(order) == [0, 1, 2] and all(i != j for i, j in enumerate(order))
    assert all(torch.equal(one[~at], here[~at]) for one in found)


@EVERY_PART
def test_a_patch_from_the_same_run_changes_no_bit(name, part):
    wrapped, batch = shared(name), batch_for(name, padding=padding_of(name))
    clean = run(wrapped, batch).logits
    sites = {"q": Heads, "k": Heads, "v": Heads, "z": Heads, "result": Heads, "attn_out": Stream}
    sites |= {} if part == "cross" else {"resid_pre": Stream, "mlp_out": Stream, "resid_post": Stream}
    sites |= {} if name == "gpt_neox" else {"resid_mid": Stream}
    places = [make(layer=1, part=site, **IN_PART[part]) for site, make in sites.items()]
    for where in [*places, Edges(layer=1, **IN_PART[part])]:
        same = run(wrapped, batch, [patch(where, donor="same", align="position")], donors={"same": batch})
        assert torch.equal(same.logits, clean), str(where)
        assert any("changed nothing" in note for note in same.notes)
    assert torch.equal(run(wrapped, batch, [freeze(Heads(layer=0, part="z", **IN_PART[part]))]).logits, clean)


@EVERY_TWO
def test_a_frozen_part_keeps_its_clean_value_while_the_encoder_changes(name):
    wrapped, batch = shared(name), batch_for(name)
    change = scale(Stream(layer=0, stack="encoder", part="attn_out"), by=5)
    clean = record(wrapped, batch, ["cross.z"])
    moved = record(wrapped, batch, ["cross.z"], [change])
    held = [freeze(Heads(layer=layer, kind="cross", part="z")) for layer in (0, 1)]
    both = record(wrapped, batch, ["cross.z"], [change, *held])
    assert not torch.equal(moved["cross.z", 1], clean["cross.z", 1])
    assert torch.equal(both["cross.z", 1], clean["cross.z", 1])
    assert torch.equal(both.run.logits, clean.run.logits)


def test_a_donor_with_another_context_length_is_refused():
    batch, other = batch_for("t5"), batch_for("t5", seed=1)
    longer = Batch(torch.cat([other.context.tokens] * 2, 1), torch.cat([other.context.labels] * 2, 1))
    donor = Batch(other.tokens, other.labels, context=longer)
    with pytest.raises(ValueError, match="context"):
        run(shared("t5"), batch, [patch(Heads(layer=0, kind="cross", part="v"), donor="other", align="position")],
            donors={"other": donor})  # fmt: skip


# Gradients


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "gemma3_text", "whisper"])
def test_recording_gradients_leaves_the_logits_bit_equal(name):
    wrapped, batch = shared(name), batch_for(name)
    clean = run(wrapped, batch).logits
    sites = ["pattern", "z", "attn_out", "resid_mid"]
    found = record(wrapped, batch, sites, gradients_of=lambda logits, _: logits[:, -1, 3])
    assert torch.equal(found.run.logits, clean)
    assert all(found.gradients[key].shape == found[key].shape for key in found)


@pytest.mark.parametrize("name", ["gpt2", "bert", "bart", "whisper"])
@pytest.mark.parametrize(
    ("site", "together"),
    [("pattern", False), ("z", True), ("resid_mid", False), ("resid_mid", True), ("attn_out", False),
     ("attn_out", True)],
)  # fmt: skip
def test_gradients_agree_with_finite_differences(name, site, together):
    wrapped, batch = shared(name, torch.float64), as_dtype(batch_for(name), torch.float64)
    part = first_part(name)
    key, step = (dotted(part, site), 0), 1e-5
    others = [(dotted(part, one), 0) for one in ("attn_out", "resid_mid") if together and one != site]

    def metric(logits, _):
        return (logits[:, -1] ** 2).sum(-1)

    gradient = record(wrapped, batch, [key, *others], gradients_of=metric).gradients[key]
    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    if site == "pattern":
        direction = direction * (record(wrapped, batch, [key])[key] > 0)

    def moved(by):
        return metric(run(wrapped, batch, [custom(key, lambda x: x + by * direction)]).logits, batch).sum()

    want = float((moved(step) - moved(-step)) / (2 * step))
    assert float((gradient * direction).sum()) == pytest.approx(want, rel=1e-6, abs=1e-7)


def test_nothing_of_a_model_is_kept_alive_by_wrapping_it():
    inner = made("gpt2")
    wrapped = wrap(inner)
    run(wrapped, batch_for("gpt2"), [zero(Heads(layer=0, part="z"))])
    seen = weakref.ref(wrapped)
    del wrapped, inner
    gc.collect()
    assert seen() is None
