"""TransformerLens' own tools on our models: caches, hooks, patching, decompositions."""

import pytest
import torch
from models_of import close, config_of, model_of, stream, tokens_of
from transformer_lens import ActivationCache, patching

from tasks.lookup import Lookup
from workbench.batch import Batch
from workbench.interventions import Edges, Heads, Stream, patch
from workbench.models.transformer import PostNormCache, Transformer
from workbench.running import record, run


@pytest.mark.parametrize(
    ("norm", "kind"), [("post", PostNormCache), ("pre", ActivationCache), ("none", ActivationCache)]
)
def test_run_with_cache_returns_an_activation_cache(norm, kind):
    model = model_of(norm=norm)
    logits, cache = model.run_with_cache(tokens_of())
    assert type(cache) is kind and isinstance(cache, ActivationCache) and cache.has_batch_dim
    assert torch.equal(logits, model(tokens_of()))
    assert cache["pattern", 0].shape == (3, 2, 8, 8)
    assert cache["resid_post", -1] is cache["blocks.1.hook_resid_post"]
    assert set(cache.keys()) == set(model.hook_dict)


def test_run_with_cache_takes_the_arguments_of_transformer_lens():
    model = model_of()
    assert list(model.run_with_cache(tokens_of(), names_filter="hook_embed")[1].keys()) == ["hook_embed"]
    alone = model.run_with_cache(tokens_of(1), remove_batch_dim=True)[1]
    assert not alone.has_batch_dim and alone["pattern", 0].shape == (2, 8, 8)
    assert type(model.run_with_cache(tokens_of(), return_cache_object=False)[1]) is dict
    with pytest.raises(AssertionError, match="Cannot remove batch dimension"):
        model.run_with_cache(tokens_of(3), remove_batch_dim=True)


def test_a_cache_refuses_a_site_that_is_not_there():
    with pytest.raises(KeyError):
        stream(model_of(), tokens_of())["patern", 0]


def test_record_and_run_with_cache_see_the_same():
    model, batch = model_of(), Batch(tokens_of(), tokens_of())
    seen, cache = record(model, batch, ["q", "pattern", "result", "resid_post"]), stream(model, tokens_of())
    assert all(torch.equal(seen[name, layer], cache[name, layer]) for name, layer in seen)


def grown(value, hook):
    return value * 1.5


@pytest.mark.parametrize("name", ["hook_embed", "blocks.0.attn.hook_attn_scores", "blocks.1.attn.hook_result",
                                  "blocks.1.attn.hook_v", "blocks.1.hook_resid_post"])  # fmt: skip
def test_run_with_hooks_edits_and_leaves_no_hook(name):
    model = model_of()
    before = model(tokens_of())
    assert not torch.allclose(model.run_with_hooks(tokens_of(), fwd_hooks=[(name, grown)]), before)
    assert torch.equal(model(tokens_of()), before)
    assert not any(point.fwd_hooks or point._forward_hooks for point in model.hook_points())


def test_hooks_are_removed_where_one_raises_and_lasting_ones_stay():
    def fail(value, hook):
        raise RuntimeError("on purpose")

    model = model_of()
    model.add_perma_hook("hook_embed", grown)
    before = model(tokens_of())
    with pytest.raises(RuntimeError, match="on purpose"):
        model.run_with_hooks(tokens_of(), fwd_hooks=[("hook_embed", fail)])
    assert torch.equal(model(tokens_of()), before) and not torch.equal(before, model_of()(tokens_of()))


def test_hooks_of_unknown_names_are_refused():
    with pytest.raises(KeyError):
        model_of().run_with_hooks(tokens_of(), fwd_hooks=[("blocks.0.hook_pattern", grown)])


def test_recording_results_changes_no_bit_of_the_logits():
    model = Transformer(config_of(), seed=0)
    logits, cache = model.run_with_cache(tokens_of(), names_filter="blocks.0.attn.hook_result")
    assert torch.equal(logits, model(tokens_of())) and len(cache) == 1


def emptied(value, hook):
    value[:, :, 0] = 0.0
    return value


@pytest.mark.parametrize("part", ["q", "k", "v", "z", "result"])
def test_an_edit_in_place_acts_as_its_copy_does(part):
    model, name = model_of(), f"blocks.0.attn.hook_{part}"
    with torch.no_grad():
        copied = model.run_with_hooks(tokens_of(), fwd_hooks=[(name, lambda value, hook: emptied(value.clone(), hook))])
        in_place = model.run_with_hooks(tokens_of(), fwd_hooks=[(name, emptied)])
        assert torch.equal(in_place, copied) and not torch.allclose(copied, model(tokens_of()))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", ["hook_embed", "hook_pos_embed"])
def test_an_edit_in_place_leaves_the_weights_alone(name, n):
    model = model_of()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        model.run_with_hooks(tokens_of(n), fwd_hooks=[(name, emptied)])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


# TransformerLens: residual decompositions

DECOMPOSITIONS = {
    "accumulated_resid": {}, "decompose_resid": {}, "get_full_resid_decomposition": {}, "stack_head_results": {},
    "stack_neuron_results": {"layer": 2}, "logit_attrs": {"residual_stack": None, "tokens": 0},
    "apply_ln_to_stack": {"residual_stack": None},
}  # fmt: skip


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_post_norm_residual_decompositions_are_refused(name):
    cache = stream(model_of(), tokens_of())
    with pytest.raises(NotImplementedError, match=rf"{name}: .* build the model with norm='pre'"):
        getattr(cache, name)(**DECOMPOSITIONS[name])


def test_post_norm_logit_lens_is_refused():
    with pytest.raises((NotImplementedError, ValueError)):
        stream(model_of(), tokens_of()).logit_lens()


def test_post_norm_parts_do_not_sum_to_the_stream_which_is_why():
    model = model_of()
    wrong = ActivationCache(dict(stream(model, tokens_of()).items()), model)
    assert not torch.allclose(wrong.decompose_resid().sum(0), wrong["resid_post", -1], atol=0.1)


def test_a_slice_of_a_post_norm_cache_refuses_too():
    part = stream(model_of(), tokens_of()).apply_slice_to_batch_dim(slice(0, 2))
    assert part["resid_pre", 0].shape == (2, 8, 6)
    with pytest.raises(NotImplementedError, match="norm='pre'"):
        part.decompose_resid()


@pytest.mark.parametrize("norm", ["pre", "none"])
@pytest.mark.parametrize("attn_only", [False, True])
def test_parts_sum_to_the_recorded_stream(norm, attn_only):
    cache = stream(model_of(norm=norm, attn_only=attn_only, n_layers=3), tokens_of())
    for layer in range(3):
        assert close(cache.decompose_resid(layer=layer).sum(0), cache["resid_pre", layer])
        assert close(cache.decompose_resid(layer=layer, mlp_input=True).sum(0), cache["resid_mid", layer])
    parts, labels = cache.decompose_resid(return_labels=True)
    assert close(parts.sum(0), cache["resid_post", -1]) and labels[:3] == ["embed", "pos_embed", "0_attn_out"]


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_the_accumulated_stream_is_the_recorded_one(norm):
    cache = stream(model_of(norm=norm), tokens_of())
    whole, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "final_post"]
    keys = [("resid_pre", 0), ("resid_mid", 0), ("resid_pre", 1), ("resid_mid", 1), ("resid_post", 1)]
    assert torch.equal(whole, torch.stack([cache[key] for key in keys]))


def test_the_accumulated_stream_under_the_last_norm_ends_in_the_logits():
    model = model_of(norm="pre")
    logits, cache = model.run_with_cache(tokens_of())
    assert torch.equal(model.unembed(cache.accumulated_resid(apply_ln=True)[-1]), logits)


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_heads_and_neurons_sum_to_what_their_layer_writes(norm):
    model = model_of(norm=norm)
    cache = stream(model, tokens_of())
    heads, labels = cache.stack_head_results(layer=1, return_labels=True)
    assert labels == ["L0H0", "L0H1"] and close(heads.sum(0) + model.blocks[0].attn.b_O, cache["attn_out", 0])
    neurons = cache.stack_neuron_results(layer=1)
    assert close(neurons.sum(0) + model.blocks[0].mlp.b_out, cache["mlp_out", 0])
    assert close(cache.stack_head_results(incl_remainder=True).sum(0), cache["resid_post", -1])


@pytest.mark.parametrize(
    "ask",
    [
        lambda cache: cache.get_full_resid_decomposition(),
        lambda cache: cache.decompose_resid(layer=1, apply_ln=True),
        lambda cache: cache.logit_attrs(cache.decompose_resid(), tokens=0),
    ],
)
def test_what_needs_more_of_transformer_lens_than_we_offer_raises(ask):
    with pytest.raises((KeyError, AttributeError)):
        ask(stream(model_of(norm="pre"), tokens_of()))


# TransformerLens: patching

TASK = Lookup(letters=4, digits=4, pairs=2)
N_POS, N_HEADS, N_LAYERS = 5, 2, 2


def by_position(part):
    return ("layer", "pos"), lambda layer, pos: Stream(layer=layer, pos=f"p{pos}", part=part)


def by_head(part):
    return ("layer", "head"), lambda layer, head: Heads(layer=layer, head=head, part=part)


def by_head_and_position(part):
    return ("layer", "pos", "head"), lambda layer, pos, head: Heads(layer=layer, head=head, pos=f"p{pos}", part=part)


HEAD_PARTS = {"out": "z", "q": "q", "k": "k", "v": "v"}
SWEEPS = {
    "resid_pre": by_position("resid_pre"),
    "resid_mid": by_position("resid_mid"),
    "attn_out": by_position("attn_out"),
    "mlp_out": by_position("mlp_out"),
    **{f"attn_head_{name}_all_pos": by_head(part) for name, part in HEAD_PARTS.items()},
    **{f"attn_head_{name}_by_pos": by_head_and_position(part) for name, part in HEAD_PARTS.items()},
    "attn_head_pattern_all_pos": (("layer", "head"), lambda layer, head: Edges(layer=layer, head=head)),
    "attn_head_pattern_by_pos": (
        ("layer", "head", "pos"), lambda layer, head, dest: Edges(layer=layer, head=head, dest=f"p{dest}"),
    ),
    "attn_head_pattern_dest_src_pos": (
        ("layer", "head", "pos", "pos"),
        lambda layer, head, dest, source: Edges(layer=layer, head=head, dest=f"p{dest}", source=f"p{source}"),
    ),
}  # fmt: skip


def placed(batch):
    """The batch with a role for each single position: p0, p1, ..."""
    return batch.with_roles(**{f"p{pos}": (torch.arange(N_POS) == pos).expand(len(batch), -1) for pos in range(N_POS)})


@pytest.fixture(params=["post", "pre"])
def case(request):
    """A model whose widths are all the same, a clean batch and its counterfactual, and a metric of all logits."""
    model = model_of(norm=request.param, d_vocab=8, d_model=8, n_ctx=8, n_heads=N_HEADS, n_layers=N_LAYERS, d_mlp=8)
    clean = TASK.sample(3, seed=0)
    weights = torch.randn(3, N_POS, 8, generator=torch.Generator().manual_seed(0)).double()
    return model, placed(clean), placed(TASK.corrupt(clean, seed=1)), lambda logits: (logits * weights).sum()


def swept(name, case):
    """What TransformerLens' sweep gives: the metric with each cell of the clean run put into the corrupted run."""
    model, clean, corrupted, metric = case
    with torch.no_grad():
        cache = model.run_with_cache(clean.tokens)[1]
        return getattr(patching, f"get_act_patch_{name}")(model, corrupted.tokens, cache, metric)


@pytest.mark.parametrize("name", SWEEPS)
def test_every_patching_sweep_of_transformer_lens_agrees_with_our_patch(name, case):
    model, clean, corrupted, metric = case
    axes, where = SWEEPS[name]
    sizes = [{"layer": N_LAYERS, "pos": N_POS, "head": N_HEADS}[axis] for axis in axes]
    table = swept(name, case)
    assert tuple(table.shape) == tuple(sizes)
    untouched = float(metric(run(model, corrupted).logits))
    assert (table - untouched).abs().max() > 1e-3, "the sweep moves something"
    for index in torch.cartesian_prod(*map(torch.arange, sizes)).tolist():
        if name.endswith("dest_src_pos") and index[3] > index[2]:
            assert float(table[tuple(index)]) == pytest.approx(untouched, abs=1e-4), "the mask hides this edge"
            continue
        one = patch(where(*index), donor="clean", align="position")
        ours = float(metric(run(model, corrupted, [one], donors={"clean": clean}).logits))
        assert float(table[tuple(index)]) == pytest.approx(ours, abs=1e-4), one


def test_the_sweeps_over_every_kind_of_activation_run(case):
    heads = swept("attn_head_all_pos_every", case)
    assert heads.shape == (5, N_LAYERS, N_HEADS) and torch.equal(heads[2], swept("attn_head_k_all_pos", case))
    assert swept("attn_head_by_pos_every", case).shape == (5, N_LAYERS, N_POS, N_HEADS)
    assert torch.equal(swept("block_every", case)[1], swept("attn_out", case))


def test_patching_sweeps_leave_no_hook_and_change_no_weight(case):
    model = case[0]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    swept("attn_head_pattern_all_pos", case)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(point._forward_hooks for point in model.hook_points())


def test_a_direct_path_of_transformer_lens_is_refused_and_not_silently_wrong(case):
    model, clean, corrupted, metric = case
    caches = [model.run_with_cache(batch.tokens)[1] for batch in (clean, corrupted)]
    with pytest.raises((ValueError, AttributeError, NotImplementedError)):
        patching.get_act_patch_direct_path(model, corrupted.tokens, *caches, metric, src_layer=0, src_head=0)
