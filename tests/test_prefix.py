"""Prefix: what lies before the first edited layer of a wrapped model is computed once, and the bits are the same."""

import contextlib
import threading

import pytest
import torch
from foreign import CONTEXT, LENGTH, NAMES, TEXT, TWO_SEQUENCES, WIDTH, batch_for, config_of, hooks_on, made, shared
from models_of import model_of

from workbench import Batch, wrap
from workbench.hooks import installed
from workbench.models.prefix import Prefix, refusal, reusable_from
from workbench.models.reuse import blocks_of
from workbench.rows import HIDDEN

RESUMED = tuple(name for name in NAMES if name != "albert")
EVERY_RESUMED = pytest.mark.parametrize("name", RESUMED)
EVERY_TWO = pytest.mark.parametrize("name", TWO_SEQUENCES)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def batch_of(name, **changes):
    return batch_for(name, n=3, **({"padding": "right" if name in TEXT else None} | changes))


def recorded(name, batch, layers=None):
    """A model's prefix of a batch, and the logits of a whole pass."""
    model = shared(name)
    prefix = Prefix(model, layers)
    with prefix.recording():
        clean = model.logits(batch, None)
    return model, prefix, clean


@contextlib.contextmanager
def counted(model):
    """How often each layer's attention function was called, by (part, layer)."""
    calls, passing = [], model._pass

    def noted(batch):
        found, logits = passing(batch)
        calls.extend(found.heads)
        return found, logits

    model._pass = noted
    try:
        yield calls
    finally:
        del model._pass


def places_of(model, number):
    """The attentions of the layers from this one on, in the order of their computation."""
    crossing = {part: stack.cross is not None for part, stack, _ in model.stacks}
    after = blocks_of(model)[number:]
    return [
        place
        for block in after
        for place in ((block.part, block.layer), *([("cross", block.layer)] if crossing[block.part] else []))
    ]


def edit_at(name):
    """A change of a site that leaves nothing as it was: the strongest source of each row is cut, or values grow."""

    def cut(scores):
        best = scores == scores.amax(-1, keepdim=True)
        return torch.where(best & ((scores > HIDDEN).sum(-1, keepdim=True) > 1), HIDDEN, scores)

    return cut if name.endswith("scores") else lambda tensor: tensor * 1.5


def edits_from(model, number):
    """A list of one edit for every site that stands in a layer from this one on."""
    bare = ("resid_pre", "q", "v", "scores", "pattern", "z", "result", "attn_out", "mlp_out", "resid_post")
    out = []
    for part, layer in places_of(model, number):
        for site in bare:
            name = f"{part}.{site}" if part else site
            if part != "cross" or site not in ("resid_pre", "mlp_out", "resid_post"):
                out.append((name, layer))
    return [key for key in out if key[0] not in model.absent]


# The same bits


@EVERY_RESUMED
def test_recorded_and_resumed_logits_are_those_of_a_whole_pass(name):
    batch = batch_of(name)
    whole = shared(name).logits(batch, None)
    model, prefix, clean = recorded(name, batch)
    assert torch.equal(clean, whole)
    assert prefix.why == ""
    for number in range(1, len(blocks_of(model)) + 1):
        with prefix.resuming(number):
            assert torch.equal(model.logits(batch, None), whole)
        assert prefix.why == ""


@EVERY_RESUMED
def test_edits_after_a_layer_that_was_left_out_give_the_logits_of_a_whole_pass(name):
    batch = batch_of(name)
    model, prefix, clean = recorded(name, batch)
    for number in range(1, len(blocks_of(model))):
        for key in edits_from(model, number):
            with installed(model, {}, {key: edit_at(key[0])}):
                want = model.logits(batch, None)
                with prefix.resuming(reusable_from(model, [key])):
                    got = model.logits(batch, None)
            assert torch.equal(got, want), key
            assert not torch.equal(got, clean), key


@EVERY_RESUMED
def test_layers_before_are_not_computed_and_layers_after_are(name):
    batch = batch_of(name)
    model, prefix, _ = recorded(name, batch)
    for number in range(len(blocks_of(model)) + 1):
        with counted(model) as calls, prefix.resuming(number):
            model.logits(batch, None)
        assert calls == places_of(model, number)


@EVERY_RESUMED
def test_no_module_inside_a_layer_that_was_left_out_is_called(name):
    batch = batch_of(name)
    inner = made(name)
    model = wrap(inner)
    prefix = Prefix(model)
    with prefix.recording():
        model.logits(batch, None)
    called = []
    with prefix.resuming(2):
        for number, block in enumerate(blocks_of(model)):
            for child in list(block.module.modules())[1:]:
                child.register_forward_pre_hook(lambda *_, number=number: called.append(number))
        model.logits(batch, None)
    assert set(called) == set(range(2, len(blocks_of(model))))


@pytest.mark.parametrize("number", [1, 2])
def test_what_is_written_into_a_resumed_stream_is_not_written_into_what_is_held(number):
    batch = batch_of("gpt2")
    model = wrap(made("gpt2"))
    prefix = Prefix(model)
    with prefix.recording():
        clean = model.logits(batch, None)
    reader = [*model.inner.transformer.h, model.inner.transformer.ln_f][number]
    with prefix.resuming(number):
        handle = reader.register_forward_pre_hook(lambda _, args: (args[0].mul_(3).add_(torch.arange(WIDTH)),))
        assert not torch.equal(model.logits(batch, None), clean)
    handle.remove()
    with prefix.resuming(number):
        assert torch.equal(model.logits(batch, None), clean)


def test_what_is_written_into_a_recorded_stream_is_not_written_into_what_is_held():
    batch = batch_of("gpt2")
    model = wrap(made("gpt2"))
    clean = model.logits(batch, None)
    prefix = Prefix(model)
    with prefix.recording():
        handle = model.inner.transformer.h[1].register_forward_pre_hook(lambda _, args: (args[0].mul_(3),))
        model.logits(batch, None)
    handle.remove()
    with prefix.resuming(1):
        assert torch.equal(model.logits(batch, None), clean)


def test_read_positions_are_those_of_a_whole_pass():
    batch = batch_of("gpt2")
    model, prefix, clean = recorded("gpt2", batch)
    with prefix.resuming(1):
        got = model.logits(batch, torch.tensor([[0, 2]] * 3))
    assert torch.equal(got, clean[:, [0, 2]])


def test_padding_on_the_left_is_resumed_too():
    batch = batch_of("llama", padding="left")
    model, prefix, clean = recorded("llama", batch)
    with prefix.resuming(1):
        assert torch.equal(model.logits(batch, None), clean)


def test_gradients_of_later_layers_are_those_of_a_whole_pass():
    batch = batch_of("gpt2")
    model, prefix, _ = recorded("gpt2", batch)
    gradients = []

    def leaf(tensor):
        kept.append(tensor.detach().clone().requires_grad_(True))
        return kept[-1]

    with torch.enable_grad():
        for context in (contextlib.nullcontext(), prefix.resuming(1)):
            kept = []
            with context, installed(model, {}, {("resid_pre", 1): leaf}):
                gradients += torch.autograd.grad(model.logits(batch, None)[:, -1, 3].sum(), kept)
    assert torch.equal(*gradients)
    assert bool(gradients[0].any())


# Two stacks


@EVERY_TWO
def test_an_edit_of_the_decoder_leaves_out_the_whole_encoder(name):
    batch = batch_of(name)
    model, prefix, _ = recorded(name, batch)
    for key in (("decoder.z", 0), ("cross.z", 0)):
        with counted(model) as calls, prefix.resuming(reusable_from(model, [key])):
            model.logits(batch, None)
        assert calls == [("decoder", 0), ("cross", 0), ("decoder", 1), ("cross", 1)]


@EVERY_TWO
def test_an_edit_of_the_encoder_leaves_out_the_encoder_before_it_alone(name):
    batch = batch_of(name)
    model, prefix, _ = recorded(name, batch)
    with counted(model) as calls, prefix.resuming(reusable_from(model, [("encoder.z", 1), ("decoder.z", 1)])):
        model.logits(batch, None)
    assert calls == [("encoder", 1), ("decoder", 0), ("cross", 0), ("decoder", 1), ("cross", 1)]


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ([], 4),
        ([("encoder.scores", 0)], None),
        ([("encoder.scores", 1)], 1),
        ([("decoder.resid_pre", 0)], 2),
        ([("cross.pattern", 0)], 2),
        ([("cross.pattern", 1), ("decoder.mlp_out", 1)], 3),
        ([("cross.pattern", 1), ("encoder.mlp_out", 1)], 1),
    ],
)
def test_layers_are_counted_in_the_order_of_computation(keys, first):
    assert reusable_from(shared("t5"), keys) == first


def test_an_edit_of_the_embedding_leaves_nothing_to_reuse():
    assert reusable_from(shared("gpt2"), [("embed", None), ("scores", 1)]) is None


# What is held


def held(prefix):
    tensors = [x for out in prefix._left.values() for x in (out if isinstance(out, tuple) else (out,))]
    return [tuple(x.shape) for x in tensors if x is not None]


def test_what_is_held_is_one_stream_a_layer():
    _, prefix, _ = recorded("gpt2", batch_of("gpt2"))
    assert held(prefix) == [(3, LENGTH, WIDTH)] * 2


def test_only_the_layers_asked_for_are_held():
    model, prefix, clean = recorded("gpt2", batch_of("gpt2"), layers={1})
    assert held(prefix) == [(3, LENGTH, WIDTH)]
    with counted(model) as calls, prefix.resuming(2):
        assert torch.equal(model.logits(batch_of("gpt2"), None), clean)
    assert calls == [("", 1)]


def test_the_encoders_end_is_held_for_a_layer_of_the_decoder():
    model, prefix, clean = recorded("bart", batch_of("bart"), layers={3})
    assert held(prefix) == [(3, CONTEXT, WIDTH), (3, LENGTH, WIDTH)]
    with counted(model) as calls, prefix.resuming(3):
        assert torch.equal(model.logits(batch_of("bart"), None), clean)
    assert calls == [("decoder", 1), ("cross", 1)]


def test_a_pass_below_what_is_held_runs_whole_and_says_so():
    model, prefix, clean = recorded("gpt2", batch_of("gpt2"), layers={2})
    with counted(model) as calls, prefix.resuming(1):
        assert torch.equal(model.logits(batch_of("gpt2"), None), clean)
    assert calls == [("", 0), ("", 1)]
    assert prefix.why == "nothing that is held lies before layer 1"


def test_the_position_bias_that_t5_passes_on_is_held_without_copies():
    model = wrap(made("t5", config=config_of("t5", num_layers=4)))
    prefix = Prefix(model)
    with prefix.recording():
        model.logits(batch_of("t5"), None)
    one, *others = (prefix._left[number][1].data_ptr() for number in (2, 3, 4))
    assert others == [one, one]


def test_an_unknown_layer_is_refused():
    with pytest.raises(ValueError, match="no pass resumes at layer 7; this model has layers 0 to 1, and 2 is its end"):
        Prefix(shared("gpt2"), layers={1, 7})


# Where layers may not be left out


def test_albert_runs_whole_and_says_why():
    batch = batch_of("albert")
    model, prefix, clean = recorded("albert", batch)
    assert "one module stands for several of its layers" in prefix.why
    with counted(model) as calls, prefix.resuming(1):
        assert torch.equal(model.logits(batch, None), clean)
    assert calls == [("", 0), ("", 1)]


def test_albert_with_a_module_for_each_layer_is_resumed():
    batch = batch_of("albert")
    model = wrap(made("albert", config=config_of("albert", num_hidden_groups=2)))
    prefix = Prefix(model)
    with prefix.recording():
        clean = model.logits(batch, None)
    with counted(model) as calls, prefix.resuming(1):
        assert torch.equal(model.logits(batch, None), clean)
    assert calls == [("", 1)]


def test_own_models_run_whole_and_say_why():
    prefix = Prefix(model_of(0))
    assert prefix.why == "Transformer is run whole: layers are left out of wrapped Hugging Face models only"
    assert reusable_from(model_of(0), [("scores", 1)]) is None


def _on_a_module(model):
    return model.inner.transformer.h[0].mlp.register_forward_hook(lambda *_: None)


def _before_a_module(model):
    return model.inner.transformer.wte.register_forward_pre_hook(lambda *_: None)


def _on_gradients(model):
    return model.inner.transformer.h[1].register_full_backward_hook(lambda *_: None)


def _before_gradients(model):
    return model.inner.transformer.h[1].attn.register_full_backward_pre_hook(lambda *_: None)


def _at_a_point(model):
    return model.hook_dict["blocks.0.hook_resid_pre"].register_forward_hook(lambda *_: None)


def _everywhere(model):
    return torch.nn.modules.module.register_module_forward_hook(lambda *_: None)


HOOKS = {
    _on_a_module: "transformer.h.0.mlp",
    _before_a_module: "transformer.wte",
    _on_gradients: "transformer.h.1",
    _before_gradients: "transformer.h.1.attn",
    _at_a_point: "blocks.0.hook_resid_pre",
    _everywhere: "every module",
}


@pytest.mark.parametrize(("hook", "where"), HOOKS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_a_users_hook_refuses_reuse_and_the_pass_runs_whole(hook, where):
    batch = batch_of("gpt2")
    model = wrap(made("gpt2"))
    prefix = Prefix(model)
    with prefix.recording():
        clean = model.logits(batch, None)
    handle = hook(model)
    try:
        assert where in refusal(model)
        with counted(model) as calls, prefix.resuming(1):
            assert torch.equal(model.logits(batch, None), clean)
    finally:
        handle.remove()
    assert calls == [("", 0), ("", 1)]
    assert where in prefix.why
    with counted(model) as calls, prefix.resuming(1):
        model.logits(batch, None)
    assert (calls, prefix.why) == ([("", 1)], "")


def test_nothing_is_recorded_under_a_users_hook():
    batch = batch_of("gpt2")
    model = wrap(made("gpt2"))
    prefix = Prefix(model)
    handle = _on_a_module(model)
    with prefix.recording():
        model.logits(batch, None)
    handle.remove()
    assert "transformer.h.0.mlp" in prefix.why
    assert held(prefix) == []


def test_a_replaced_forward_refuses_reuse_and_stays():
    model = wrap(made("gpt2"))
    block = model.inner.transformer.h[0]
    block.forward = own = block.forward
    prefix = Prefix(model)
    with prefix.recording(), prefix.resuming(1):
        model.logits(batch_of("gpt2"), None)
    assert prefix.why == "the forward of transformer.h.0 was replaced or compiled; the model is run whole"
    assert vars(block)["forward"] is own


def test_hooks_that_transformers_itself_installs_do_not_refuse_reuse():
    batch = batch_of("gpt2")
    inner = made("gpt2")
    inner(batch.tokens, output_hidden_states=True)
    assert hooks_on(inner)
    model = wrap(inner)
    assert refusal(model) == ""
    prefix = Prefix(model)
    inner.config.output_hidden_states = True
    with prefix.recording():
        clean = model.logits(batch, None)
    with prefix.resuming(1):
        assert torch.equal(model.logits(batch, None), clean)


# What goes wrong


def test_other_examples_than_were_recorded_are_found_out():
    for name in RESUMED:
        model, prefix, _ = recorded(name, batch_of(name))
        with prefix.resuming(1), pytest.raises(ValueError, match="enters its first layer is not what was recorded"):
            model.logits(batch_of(name, seed=9), None)


def test_the_same_examples_in_another_order_or_number_are_found_out():
    batch = batch_of("gpt2", padding=None)
    model, prefix, _ = recorded("gpt2", batch)
    for other in ([1, 0, 2], [0, 1]):
        with prefix.resuming(1), pytest.raises(ValueError, match="same examples, in the same order"):
            model.logits(batch.select(torch.tensor(other)), None)


def test_other_padding_of_the_same_tokens_is_found_out():
    batch = batch_of("gpt2")
    model, prefix, _ = recorded("gpt2", batch)
    with prefix.resuming(1), pytest.raises(ValueError, match="not what was recorded"):
        model.logits(Batch(batch.tokens, batch.labels), None)


@EVERY_TWO
def test_another_input_of_the_decoder_after_the_same_context_is_found_out(name):
    batch = batch_of(name, padding=None)
    model, prefix, _ = recorded(name, batch)
    other = Batch(batch.tokens.flip(1), batch.labels, context=batch.context, inputs=batch.inputs)
    with prefix.resuming(3), pytest.raises(ValueError, match="not what was recorded"):
        model.logits(other, None)


def test_numbers_that_are_none_are_the_same_as_themselves():
    batch = batch_of("gpt2")
    model = wrap(made("gpt2"))
    model.inner.transformer.wte.weight[int(batch.tokens[0, 0]), 0] = float("nan")
    prefix = Prefix(model)
    with prefix.recording():
        clean = model.logits(batch, None)
    with prefix.resuming(1):
        assert torch.equal(model.logits(batch, None).isnan(), clean.isnan())
    assert bool(clean.isnan().any())


def test_changed_weights_are_found_out():
    model = wrap(made("gpt2"))
    prefix = Prefix(model)
    with prefix.recording():
        model.logits(batch_of("gpt2"), None)
    model.inner.transformer.h[0].mlp.c_proj.weight.mul_(2)
    with pytest.raises(RuntimeError, match="weights changed after its layers were recorded"), prefix.resuming(1):
        pass
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_hook_at_a_site_that_would_be_left_out_is_found_out():
    batch = batch_of("t5")
    model, prefix, _ = recorded("t5", batch)
    for name, said in (("encoder.z", "layer 1 of the encoder"), ("cross.z", "layer 1 of the decoder")):
        match = f"a hook stands at a site of {said}, which is left out"
        heard = installed(model, {}, {(name, 1): lambda x: x})
        with prefix.resuming(4), heard, pytest.raises(RuntimeError, match=match):
            model.logits(batch, None)


def test_nothing_recorded_runs_whole_and_says_so():
    model = shared("gpt2")
    prefix = Prefix(model)
    with counted(model) as calls, prefix.resuming(1):
        model.logits(batch_of("gpt2"), None)
    assert calls == [("", 0), ("", 1)]
    assert prefix.why == "nothing is recorded; run the examples once under recording()"


def raised(tensor):
    raise KeyError("from a hook")


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_all_is_as_before_after_a_failed_pass(name):
    batch = batch_of(name)
    model, prefix, clean = recorded(name, batch)
    key = ("decoder.z" if name == "t5" else "z", 1)
    for context in (prefix.resuming(1), prefix.recording()):
        with pytest.raises(KeyError, match="from a hook"), context, installed(model, {}, {key: raised}):
            model.logits(batch, None)
        assert not any("forward" in vars(module) for module in model.modules())
        assert not hooks_on(model.inner)
    assert held(prefix) == []
    assert torch.equal(model.logits(batch, None), clean)


def test_a_model_in_training_mode_runs_whole_and_says_why():
    batch = batch_of("gpt2")
    model = wrap(made("gpt2"))
    prefix = Prefix(model)
    with prefix.recording():
        model.logits(batch, None)
    model.inner.transformer.h[1].mlp.dropout.train()
    with counted(model) as calls, prefix.resuming(1):
        model.logits(batch, None)
    assert calls == [("", 0), ("", 1)]
    said = "transformer.h.1.mlp.dropout is in training mode, in which passes may differ; the model is run whole"
    assert prefix.why == said


def test_a_pass_that_failed_leaves_nothing_to_resume_from():
    batch = batch_of("gpt2")
    model, prefix, _ = recorded("gpt2", batch)
    with pytest.raises(KeyError), prefix.recording(), installed(model, {}, {("z", 1): raised}):
        model.logits(batch, None)
    with prefix.resuming(1):
        pass
    assert prefix.why.startswith("nothing is recorded")


def test_no_other_thread_runs_the_model_while_a_pass_is_resumed():
    from workbench import run

    batch = batch_of("gpt2")
    model, prefix, clean = recorded("gpt2", batch)
    found = []
    other = threading.Thread(target=lambda: found.append(run(model, batch).logits))
    with prefix.resuming(2):
        other.start()
        other.join(0.2)
        assert found == []
    other.join()
    assert torch.equal(found[0], clean)


# One condition's pass


def test_the_first_pass_without_edits_is_recorded_and_the_others_are_resumed():
    batch = batch_of("t5")
    model, prefix = shared("t5"), Prefix(shared("t5"))
    computed = []
    for edited, heard in (
        ([("decoder.z", 1)], []),
        ([], [("encoder.z", 0)]),
        ([("decoder.z", 1)], [("decoder.z", 1)]),
        ([("decoder.z", 1)], [("encoder.z", 1)]),
        ([("encoder.z", 0)], []),
        ([], []),
    ):
        with counted(model) as calls, prefix.shared(edited, heard):
            model.logits(batch, None)
        computed.append(len(calls))
    assert computed == [6, 6, 2, 5, 6, 0]


def test_the_next_chunk_is_recorded_anew_once_the_last_is_forgotten():
    model, prefix, _ = recorded("gpt2", batch_of("gpt2"))
    prefix.forget()
    other = batch_of("gpt2", seed=4)
    with prefix.shared([]):
        want = model.logits(other, None)
    with prefix.shared([("z", 1)]):
        assert torch.equal(model.logits(other, None), want)
