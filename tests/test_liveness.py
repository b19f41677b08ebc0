"""Every site of every wrapped family: noise moves the logits, the same values move nothing, what is absent says so."""

import pytest
import torch
from foreign import (
    NAMES,
    TWO_SEQUENCES,
    as_dtype,
    batch_for,
    by_position,
    eager,
    hooks_on,
    made,
    shared,
)

from workbench import InertIntervention, Stream, custom, probe, record, run, wrap, zero
from workbench.liveness import Liveness

EVERY_FAMILY = pytest.mark.parametrize("name", NAMES)

GATED = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text")
OF_A_PART = ["resid_pre", "q", "k", "v", "scores", "pattern", "z", "result", "attn_out", "resid_mid", "mlp_pre",
             "mlp_post", "mlp_out", "resid_post"]  # fmt: skip
OF_CROSS = ["q", "k", "v", "scores", "pattern", "z", "result", "attn_out", "resid_mid"]


def parts_of(name):
    return ("encoder", "decoder", "cross") if name in TWO_SEQUENCES else ("",)


def all_keys(name):
    """Every site that a model of these parts could have, by the table in DESIGN.md."""
    keys = [] if name in TWO_SEQUENCES else [("embed", None), ("pos_embed", None)]
    for part in parts_of(name):
        sites = OF_CROSS if part == "cross" else OF_A_PART
        keys += [(f"{part}.{site}" if part else site, layer) for layer in (0, 1) for site in sites]
    return keys


def absent_keys(name):
    gone = {"pos_embed"} | ({"embed"} if name == "vit" else set())
    gone |= {"mlp_pre"} if name in GATED else set()
    gone |= {"resid_mid"} if name == "gpt_neox" else set()
    return {key for key in all_keys(name) if key[0] in gone}


def present_keys(name):
    return [key for key in all_keys(name) if key not in absent_keys(name)]


def spelt(key):
    return key[0] if key[1] is None else key


@EVERY_FAMILY
def test_probe_names_every_site_and_calls_live_all_that_the_family_has(name):
    found = {(one.site, one.layer): one for one in probe(shared(name))}
    assert set(found) == set(all_keys(name))
    assert {key for key, one in found.items() if one.status == "absent"} == absent_keys(name)
    assert {key for key, one in found.items() if one.status == "live"} == set(present_keys(name))
    assert all(one.moved > 100 and "noise" in one.reason for one in found.values() if one.status == "live")


@EVERY_FAMILY
def test_noise_at_every_site_changes_the_logits(name):
    wrapped, batch = shared(name), batch_for(name)
    clean = run(wrapped, batch).logits
    rounding = torch.finfo(torch.float32).eps * float(clean.abs().max())
    for key in present_keys(name):
        generator = torch.Generator().manual_seed(3)

        def noisy(x, generator=generator):
            noise = torch.randn(x.shape, generator=generator)
            return torch.where(x == -torch.inf, x, x + noise * (1 + x[x > -torch.inf].std()))

        moved = float((run(wrapped, batch, [custom(spelt(key), noisy)]).logits - clean).abs().max())
        assert moved > 100 * rounding, key


@EVERY_FAMILY
def test_the_same_values_at_every_site_change_no_bit(name):
    wrapped, batch = shared(name), batch_for(name, padding=None if name in ("vit", "whisper") else "right")
    clean = run(wrapped, batch).logits
    for key in present_keys(name):
        assert torch.equal(run(wrapped, batch, [custom(spelt(key), lambda x: x.clone())]).logits, clean), key


@EVERY_FAMILY
def test_what_is_recorded_at_every_site_together_leaves_the_logits_as_they_are(name):
    wrapped, batch = shared(name), batch_for(name)
    found = record(wrapped, batch, [spelt(key) for key in present_keys(name)])
    assert torch.equal(found.run.logits, by_position(name, eager(wrapped.inner, name, batch).logits, batch))
    assert len(found.values) == len(present_keys(name))


@EVERY_FAMILY
def test_a_site_that_is_absent_is_refused_with_the_reason(name):
    wrapped, batch = shared(name), batch_for(name)
    for key in absent_keys(name):
        with pytest.raises(KeyError, match=f"no site '{key[0]}'"):
            record(wrapped, batch, [spelt(key)])
        with pytest.raises(KeyError, match=f"no site '{key[0]}'"):
            run(wrapped, batch, [custom(spelt(key), torch.clone)])


def test_a_parallel_layer_has_no_stream_between_attention_and_mlp():
    wrapped, batch = shared("gpt_neox"), batch_for("gpt_neox")
    for ask in (
        lambda: record(wrapped, batch, [("resid_mid", 0)]),
        lambda: record(wrapped, batch, ["resid_mid"]),
        lambda: run(wrapped, batch, [zero(Stream(layer=1, part="resid_mid"))]),
    ):
        with pytest.raises(KeyError, match="parallel"):
            ask()
    said = [one.reason for one in probe(wrapped) if one.site == "resid_mid"]
    assert len(said) == 2 and all("parallel" in one for one in said)


def test_the_serial_sibling_has_one():
    wrapped, batch = shared("gpt_neox_serial"), batch_for("gpt_neox_serial")
    found = record(wrapped, batch, ["resid_pre", "attn_out", "resid_mid"])
    for layer in (0, 1):
        total = found["resid_pre", layer] + found["attn_out", layer]
        assert torch.allclose(found["resid_mid", layer], total, atol=1e-6)


def test_probe_takes_a_model_that_is_not_wrapped_yet():
    inner = made("gpt2")
    found = probe(inner)
    assert {one.status for one in found} == {"live", "absent"}
    assert hooks_on(inner) == {}


def test_liveness_is_measured_anew_when_a_hook_of_the_users_comes():
    inner = made("gpt2")
    wrapped = wrap(inner)

    def status():
        return next(one.status for one in probe(wrapped) if (one.site, one.layer) == ("mlp_out", 0))

    assert status() == "live"
    handle = inner.transformer.h[0].mlp.register_forward_hook(lambda _m, _i, out: torch.zeros_like(out))
    assert status() == "read-only"
    handle.remove()
    assert status() == "live"


def test_liveness_of_one_hook_is_not_taken_for_that_of_another_in_its_place():
    inner = made("gpt2")
    wrapped, batch = wrap(inner), batch_for("gpt2")
    edit = [zero(Stream(layer=0, part="mlp_out"))]

    def hooked(times):
        return inner.transformer.h[0].mlp.register_forward_hook(lambda _m, _i, out: times * out)

    for _ in range(5):
        handle = hooked(1.0)
        run(wrapped, batch, edit)
        handle.remove()
        del handle  # the next hook may well lie at the same address
        handle = hooked(0.0)
        with pytest.raises(InertIntervention):
            run(wrapped, batch, edit)
        handle.remove()
        del handle


@pytest.mark.parametrize("name", ["llama", "bert", "vit", "bart"])
def test_half_precision_does_not_make_scores_look_dead(name):
    example = as_dtype(batch_for(name), torch.bfloat16)
    wrapped = wrap(made(name, dtype=torch.bfloat16), example=example)
    found = {(one.site, one.layer): one for one in probe(wrapped)}
    dead = [key for key in present_keys(name) if found[key].status != "live"]
    assert dead == []


def test_an_edit_at_a_site_that_is_not_live_is_refused_by_its_label():
    inner = made("gpt2")
    inner.transformer.h[0].mlp.register_forward_hook(lambda _m, _i, out: torch.zeros_like(out))
    wrapped, batch = wrap(inner), batch_for("gpt2")
    with pytest.raises(InertIntervention, match=r"zero L0\.mlp_out every.*read-only"):
        run(wrapped, batch, [zero(Stream(layer=0, part="mlp_out"))])


def test_a_site_counts_as_live_only_beyond_a_hundred_roundings():
    inner = made("gpt2")
    inner.lm_head.weight = torch.nn.Parameter(torch.zeros_like(inner.lm_head.weight))
    found = probe(wrap(inner))
    assert {one.status for one in found} == {"read-only", "absent"}


def test_a_liveness_is_a_frozen_value():
    one = Liveness("z", 0, "live", "said")
    with pytest.raises(AttributeError):
        one.status = "absent"
