"""Hooks: ours come off whatever happens, the user's stay and act, and what is recorded is a copy."""

import pytest
import torch
from small import ANSWER, BATCH, EVERY_MODEL, EVERY_SITE, KEYS, ROW, all_hooks, hook_of, small, spelt

from workbench.interventions import Heads, custom, cut, scale, uniform
from workbench.running import record, run


class Broken(Exception):
    pass


def breaks(tensor):
    raise Broken("in the middle of a forward pass")


def total(logits, batch):
    return logits[:, -1].logsumexp(-1)


@EVERY_MODEL
@EVERY_SITE
def test_an_error_at_any_site_reaches_the_caller_and_leaves_no_hook(norm, heads, key):
    model = small(norm, heads)
    before = run(model, BATCH).logits
    with pytest.raises(Broken):
        run(model, BATCH, [custom(spelt(key), breaks)])
    assert not all_hooks(model)
    assert torch.equal(run(model, BATCH).logits, before)


def test_an_error_restores_the_mode():
    model = small().train()
    model.blocks[0].eval()
    with pytest.raises(Broken):
        run(model, BATCH, [custom(("z", 0), breaks)])
    assert model.training
    assert model.blocks[1].attn.training
    assert not any(module.training for module in model.blocks[0].modules())


@pytest.mark.parametrize("sites", [["z", "patern"], [("z", 0), ("patern", 0)], ["pattern", ("q", 5)], ["q", "Pattern"]])
def test_a_misspelt_site_is_named_with_near_ones_and_nothing_is_installed(sites):
    model = small()
    ran = []
    hook_of(model, ("resid_pre", 0)).add_hook(lambda value, hook: ran.append(1))
    with pytest.raises(KeyError, match=r"Did you mean pattern|layers 0 to 1"):
        record(model, BATCH, sites)
    assert not ran
    assert list(all_hooks(model)) == ["blocks.0.hook_resid_pre"]


def test_a_site_the_model_lacks_is_refused():
    with pytest.raises(KeyError, match="no site 'mlp_out'"):
        record(small(attn_only=True), BATCH, ["mlp_out"])
    with pytest.raises(KeyError, match="no site 'pos_embed'"):
        record(small(positions="none"), BATCH, ["pos_embed"])


@EVERY_SITE
def test_a_users_hook_survives_a_recording_and_a_run_and_acts_in_both(key):
    model = small()
    without = run(model, BATCH).logits
    hook_of(model, key).add_hook(lambda value, hook: value * 1.5)
    alone = model(BATCH.tokens)
    installed = all_hooks(model)
    assert not torch.equal(alone, without)
    assert torch.equal(run(model, BATCH).logits, alone)
    assert torch.equal(record(model, BATCH, [spelt(key)]).run.logits, alone)
    assert all_hooks(model) == installed
    assert torch.equal(model(BATCH.tokens), alone)


def test_a_users_hook_may_be_there_before_the_first_use():
    model = small()
    hook_of(model, ("resid_mid", 1)).add_hook(lambda value, hook: value * 1.5)
    assert torch.equal(run(model, BATCH).logits, model(BATCH.tokens))


@EVERY_SITE
def test_an_edit_after_a_users_hook_at_the_same_site_gets_what_the_hook_left(key):
    model, twice = small(), small()
    run(model, BATCH)  # the first use, which checks the model as it was made
    hook_of(model, key).add_hook(lambda value, hook: value * 1.5)
    want = run(twice, BATCH, [custom(spelt(key), lambda value: value * 1.5 + 1)]).logits
    assert torch.allclose(run(model, BATCH, [custom(spelt(key), lambda value: value + 1)]).logits, want, atol=1e-10)


def test_gradients_leave_no_backward_hook():
    model = small()
    record(model, BATCH, ["pattern", "resid_pre", "embed"], gradients_of=total)
    assert not all_hooks(model)
    assert all(parameter.grad is None for parameter in model.parameters())


@EVERY_SITE
def test_recorded_tensors_are_copies(key):
    """A later hook of the user's edits in place whatever passes at this site and at all later ones."""
    model = small()
    clean = record(model, BATCH, [spelt(key)])[key].clone()
    got = record(model, BATCH, [spelt(key)])
    got[key].mul_(0)
    assert torch.equal(record(model, BATCH, [spelt(key)])[key], clean)
    for later in KEYS[max(KEYS.index(key), 1) + 1 :]:  # pos_embed is one table expanded over the batch
        hook_of(model, later).add_hook(lambda value, hook: value.add_(1))
    assert torch.equal(record(model, BATCH, [spelt(key)])[key], clean)


@EVERY_SITE
def test_two_edits_at_one_site_act_in_order(key):
    """x → 2x → 2x + 1, exactly; the recorder stands behind the edits or before them."""
    model = small()
    edits = [custom(spelt(key), lambda value: value * 2), custom(spelt(key), lambda value: value + 1)]
    clean = record(model, BATCH, [spelt(key)])[key]
    assert torch.equal(record(model, BATCH, [spelt(key)], edits)[key], clean * 2 + 1)
    assert torch.equal(record(model, BATCH, [spelt(key)], edits, moment="before")[key], clean)


@EVERY_MODEL
def test_cut_and_uniform_commute(norm, heads):
    model = small(norm, heads)
    for both in ([cut(ANSWER), uniform(ROW)], [uniform(ROW), cut(ANSWER)]):
        row = record(model, BATCH, ["pattern"], both)["pattern", 1][:, :, -1]
        answer = BATCH.roles["answer"][:, None].expand_as(row)
        assert not row[answer].any()
        assert torch.allclose(row[~answer], torch.tensor(1 / 8).double(), rtol=0, atol=1e-15)


def test_an_edit_in_place_is_the_edit_and_spoils_nothing_else():
    model = small()
    got = run(model, BATCH, [custom(("resid_pre", 1), lambda value: value.mul_(2))]).logits
    assert torch.equal(got, run(model, BATCH, [custom(("resid_pre", 1), lambda value: value * 2)]).logits)
    before = record(model, BATCH, ["z"], [custom(("z", 0), lambda value: value.mul_(0))], moment="before")["z", 0]
    assert torch.equal(before, record(model, BATCH, ["z"])["z", 0])


@EVERY_SITE
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda value: value[:1], r"expects \[12, .*gave \[1, "),
        (lambda value: value[..., :1], r"expects \[12, .*gave \[12, "),
        (lambda value: value.float(), "gave .*float32"),
        (lambda value: value[0, 0], "expects"),
        (lambda value: None, "NoneType"),
        (lambda value: 0.0, "float"),
    ],
    ids=["one example", "another width", "another dtype", "fewer axes", "nothing", "a number"],
)
def test_an_edit_of_another_kind_is_refused_by_site_and_never_broadcast(key, wrong, says):
    with pytest.raises((ValueError, TypeError), match=says) as caught:
        run(small(), BATCH, [custom(spelt(key), wrong)])
    assert repr(key[0]) in str(caught.value)


@EVERY_MODEL
def test_gradients_equal_finite_differences(norm, heads):
    model, batch = small(norm, heads), BATCH.select(slice(0, 2))
    keys = [("resid_pre", 0), ("q", 1), ("z", 0), ("resid_mid", 1), ("mlp_post", 0), ("result", 0), ("pattern", 1)]
    got = record(model, batch, keys, gradients_of=total)
    for key in keys:
        step = torch.zeros_like(got[key])
        step[1].view(-1)[-1] = 1e-5

        def moved(sign, key=key, step=step):
            out = run(model, batch, [custom(key, lambda value: value + sign * step)])
            return total(out.logits, batch).sum()

        assert torch.isclose(got.gradients[key][1].reshape(-1)[-1], (moved(1) - moved(-1)) / 2e-5, rtol=1e-4, atol=1e-9)


def test_gradients_with_an_edit_in_force_are_of_the_edited_run():
    """What is read depends on 3z where z is scaled by 3: before the edit the gradient is 3 times that behind it."""
    model, edit = small(), [scale(Heads(layer=1, part="z"), by=3.0)]
    torch.set_warn_always(True)
    try:
        kept = {m: record(model, BATCH, ["z"], edit, gradients_of=total, moment=m) for m in ("before", "after")}
    finally:
        torch.set_warn_always(False)
    before, after = kept["before"].gradients["z", 1], kept["after"].gradients["z", 1]
    assert torch.allclose(before, 3 * after, rtol=1e-9, atol=1e-12)
    assert before.abs().max() > 1e-6


def test_gradients_exist_for_every_site_though_the_weights_are_frozen():
    model = small().requires_grad_(False)
    names = [spelt(key) for key in KEYS]
    got = record(model, BATCH, names, gradients_of=total)
    assert all(got.gradients[key].any() for key in KEYS)
    assert torch.equal(got.run.logits, run(model, BATCH).logits)


@pytest.mark.parametrize("call", [run, lambda *args, **more: record(*args, ["z"], **more)], ids=["run", "record"])
def test_an_unknown_keyword_is_a_type_error(call):
    with pytest.raises(TypeError, match="fwd_hooks"):
        call(small(), BATCH, fwd_hooks=[])


def test_an_unknown_moment_is_refused_in_words():
    with pytest.raises((ValueError, TypeError), match="moment"):
        record(small(), BATCH, ["z"], moment="befor")


@pytest.mark.parametrize("size", [0, -1])
def test_a_chunk_size_below_1_is_refused_in_words(size):
    with pytest.raises(ValueError, match="chunk_size"):
        run(small(), BATCH, chunk_size=size)


def test_a_gradient_is_refused_of_what_is_not_one_value_per_example():
    with pytest.raises(ValueError, match="one value per example"):
        record(small(), BATCH, ["pattern"], gradients_of=lambda logits, _batch: logits.mean())


@pytest.mark.parametrize("metric", ["accuracy", "exact_match", "rank"])
def test_a_metric_that_has_no_gradient_is_refused_in_words(metric):
    with pytest.raises(ValueError, match=r"no gradient.*log_prob"):
        record(small(), BATCH, ["pattern"], gradients_of=metric)
