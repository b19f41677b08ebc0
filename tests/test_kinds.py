"""Every kind of own model: what it may look at, what its positions mean, how it is cut into heads and patches."""

import math
from dataclasses import replace

import pytest
import torch
from models_of import (
    BOTH_WAYS,
    KINDS,
    alone,
    batch_for,
    close,
    config_of,
    kind_of,
    model_of,
    pair_of,
    settled,
    tokens_of,
)
from pydantic import ValidationError
from transformer_lens import ActivationCache

from workbench.batch import Batch
from workbench.interventions import Edges, Heads, cut, zero
from workbench.models.built import build
from workbench.models.config import EncoderDecoderConfig, Mask, ModelConfig, read_config
from workbench.models.encoder_decoder import EncoderDecoder
from workbench.models.positions import sinusoids
from workbench.models.transformer import Transformer
from workbench.running import record, run

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
CAUSAL = [kind for kind, config in KINDS.items() if getattr(config, "decoder", config).mask(0).causal]
PAIRS = [kind for kind, config in KINDS.items() if isinstance(config, EncoderDecoderConfig)]
HIDDEN = -math.inf

# What a row may look at

MASKS = {
    "causal": (Mask(), lambda dest, source: source <= dest),
    "both ways": (Mask(causal=False), lambda dest, source: True),
    "window": (Mask(window=3), lambda dest, source: dest - source in (0, 1, 2)),
    "window both ways": (Mask(causal=False, window=2), lambda dest, source: dest - source in (-1, 0, 1)),
    "dilated": (Mask(window=2, dilation=3), lambda dest, source: dest - source in (0, 3)),
    "dilated both ways": (
        Mask(causal=False, window=3, dilation=2),
        lambda dest, source: dest - source in (-4, -2, 0, 2, 4),
    ),
    "blocks": (Mask(block=3), lambda dest, source: source <= dest and source // 3 == dest // 3),
    "blocks both ways": (Mask(causal=False, block=3), lambda dest, source: source // 3 == dest // 3),
    "window and blocks": (
        Mask(causal=False, window=2, block=4),
        lambda dest, source: dest - source in (-1, 0, 1) or source // 4 == dest // 4,
    ),
    "global": (Mask(causal=False, window=1, n_global=2), lambda dest, source: dest == source or min(dest, source) < 2),
    "global, causal": (Mask(window=1, n_global=1), lambda dest, source: source in (dest, 0)),
}


def shown(*names, n=8):
    """Which inputs [dest source] reach each position through layers with these masks, one after another."""
    reach = torch.eye(n)
    for name in names:
        layer = torch.tensor([[float(MASKS[name][1](dest, source)) for source in range(n)] for dest in range(n)])
        reach = ((layer + torch.eye(n)) @ reach > 0).float()
    return reach.bool()


def reach_of(model, tokens, site="hook_embed", **more):
    """Which inputs [dest source] have any gradient from the logits at each position."""
    found = []
    for t in range(tokens.shape[1]):
        kept = []

        def keep(value, hook, kept=kept):
            value.retain_grad()
            kept.append(value)
            return value

        with torch.enable_grad():
            logits = model.run_with_hooks(tokens, fwd_hooks=[(site, keep)], **more)
            logits[:, t].square().sum().backward()
        found.append((kept[0].grad != 0).any(-1).any(0))
    return torch.stack(found)


@pytest.mark.parametrize("name", MASKS)
def test_one_layer_reads_what_its_mask_says_and_has_gradient_from_nothing_else(name):
    model = model_of(masks=[MASKS[name][0]], n_layers=1)
    assert torch.equal(reach_of(model, tokens_of()), shown(name))
    scores = record(model, Batch(tokens_of(), tokens_of()), ["scores"])["scores", 0]
    assert torch.equal(scores != HIDDEN, shown(name).expand_as(scores))


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("name", ["window", "window both ways", "dilated", "blocks", "global, causal"])
def test_information_crosses_windows_layer_by_layer_and_no_faster(name, depth):
    model = model_of(masks=[MASKS[name][0]], n_layers=depth)
    assert torch.equal(reach_of(model, tokens_of()), shown(*[name] * depth))


@pytest.mark.parametrize(
    "names", [("window", "blocks"), ("blocks", "window"), ("window both ways", "blocks both ways")], ids=str
)
def test_each_layer_has_the_mask_of_its_place(names):
    model = model_of(masks=[MASKS[name][0] for name in names])
    assert torch.equal(reach_of(model, tokens_of()), shown(*names))
    assert not torch.equal(shown(*names), shown(*names[::-1]))


@pytest.mark.parametrize("kind", CAUSAL)
def test_no_later_token_has_any_gradient_or_changes_any_bit(kind):
    model, batch = kind_of(kind), batch_for(KINDS[kind])
    more = {} if batch.context is None else {"context": batch.context.tokens}
    site = "decoder.hook_embed" if more else "hook_embed"
    reach = reach_of(model, batch.tokens, site, **more)
    assert not reach.triu(1).any() and reach.diagonal().all()
    before = model(batch.tokens, **more)
    for t in range(batch.tokens.shape[1] - 1):
        tokens = batch.tokens.clone()
        tokens[:, t + 1] = (tokens[:, t + 1] + 1) % 11
        after = model(tokens, **more)
        assert torch.equal(after[:, : t + 1], before[:, : t + 1]) and not torch.equal(after, before)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "relative", "rotary"])
def test_an_encoder_reads_in_both_directions(positions):
    model = model_of(masks=[BOTH_WAYS], positions=positions, d_head=4, n_layers=1)
    assert reach_of(model, tokens_of()).all()


@pytest.mark.parametrize("kind", PAIRS)
def test_every_position_of_the_decoder_reads_the_whole_context(kind):
    model, batch = kind_of(kind), batch_for(KINDS[kind])
    assert reach_of(model, batch.tokens, "encoder.hook_embed", context=batch.context.tokens).all()


# Padding


@pytest.mark.parametrize("padding", ["left", "right"])
@EVERY_KIND
def test_padding_changes_nothing_and_is_not_read(kind, padding):
    if padding == "left" and kind == "patches":
        pytest.skip("the class token stands first")
    model, batch = kind_of(kind), batch_for(KINDS[kind], padding)
    logits = run(model, batch).logits
    for i in range(len(batch)):
        assert close(logits[i][batch.valid[i]], run(model, alone(batch, i)).logits[0])
    for (name, _), pattern in record(model, batch, ["pattern"]).values.items():
        readers, sources = batch.sides(name.rpartition(".")[0])
        assert not pattern[~sources.valid[:, None, None, :].expand_as(pattern)].any()
        assert torch.allclose(pattern.sum(-1), readers.valid[:, None].double().expand(pattern.shape[:3]), atol=1e-12)


@pytest.mark.parametrize("padding", ["left", "right"])
@EVERY_KIND
def test_what_stands_at_padding_changes_no_bit(kind, padding):
    model, batch = kind_of(kind), batch_for(KINDS[kind], padding)
    other = replace(batch, tokens=torch.where(batch.valid, batch.tokens, 9))
    if batch.context is not None:
        context = batch.context
        other = other.with_context(replace(context, tokens=torch.where(context.valid, context.tokens, 12)))
    if batch.inputs:
        other = other.with_inputs(patches=batch.inputs["patches"].masked_fill(~batch.valid[:, 1:, None], 9.0))
    one, two = run(model, batch).logits, run(model, other).logits
    assert torch.equal(one[batch.valid], two[batch.valid])


@EVERY_KIND
def test_gradients_with_padding_are_finite(kind):
    model, batch = kind_of(kind), batch_for(KINDS[kind], "right")
    with torch.enable_grad():
        model.logits(batch, None)[batch.valid].square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("padding", ["", "right"])
@EVERY_KIND
def test_positions_that_are_read_equal_all_positions_there(kind, padding):
    model, batch = kind_of(kind), batch_for(KINDS[kind], padding)
    places = torch.arange(batch.tokens.shape[1])
    batch = replace(batch, labels=batch.labels.masked_fill((places + torch.arange(len(batch))[:, None]) % 3 > 0, -100))
    whole, read = run(model, batch).logits, run(model, batch, positions="read").logits
    index = batch.read_positions()
    assert close(read, whole.gather(1, index[..., None].expand(-1, -1, whole.shape[-1])))


# Positions


def layer_0(model, batch, site="scores"):
    return record(model, batch, [(site, 0)])[site, 0]


@pytest.mark.parametrize(("positions", "by_offset"), [("relative", True), ("rotary", True), ("learned", False)])
def test_scores_of_equal_tokens_depend_on_the_offset_alone(positions, by_offset):
    model = model_of(positions=positions, d_head=4, masks=[BOTH_WAYS])
    same = torch.full((1, 8), 3)
    scores = layer_0(model, Batch(same, same))[0]
    diagonals = [scores.diagonal(offset, 1, 2) for offset in range(-6, 7)]
    assert all(close(one, one[:, :1].expand_as(one)) for one in diagonals) == by_offset
    assert torch.stack([one[:, 0] for one in diagonals]).std(0).min() > 1e-3


def test_relative_positions_add_the_number_of_their_offset():
    model, batch = model_of(positions="relative", masks=[BOTH_WAYS]), Batch(tokens_of(), tokens_of())
    table = model.blocks[0].attn.W_rel.detach().clone()
    with_table = layer_0(model, batch)
    with torch.no_grad():
        model.blocks[0].attn.W_rel.zero_()
    added = with_table - layer_0(model, batch)
    for dest in range(8):
        for source in range(8):
            assert torch.allclose(added[:, :, dest, source], table[:, dest - source + 7], rtol=0, atol=1e-12)


def test_relative_positions_begin_as_none():
    one, other = (build(config_of(positions=name), seed=3) for name in ("relative", "none"))
    assert not one.blocks[0].attn.W_rel.any()
    assert torch.equal(one(tokens_of()), other(tokens_of()))


@pytest.mark.parametrize("width", [2, 6, 7])
def test_sinusoids_are_sines_and_cosines_of_stretching_wavelengths(width):
    got = sinusoids(torch.arange(40)[None], width, torch.zeros(1, dtype=torch.float64))[0]
    for place in range(40):
        for i in range(width):
            angle = place / 10000 ** (2 * (i // 2) / width)
            assert abs(float(got[place, i]) - (math.cos(angle) if i % 2 else math.sin(angle))) < 1e-12


@pytest.mark.parametrize("offset", [1, 5])
def test_of_sinusoids_an_offset_is_a_linear_map(offset):
    table = sinusoids(torch.arange(40)[None], 6, torch.zeros(1, dtype=torch.float64))[0]
    mapped = torch.linalg.lstsq(table[:-offset], table[offset:]).solution
    assert close(table[:-offset] @ mapped, table[offset:])
    learned = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mapped = torch.linalg.lstsq(learned[:-offset], learned[offset:]).solution
    assert not close(learned[:-offset] @ mapped, learned[offset:])


@pytest.mark.parametrize(("positions", "follows"), [("none", True), ("learned", False), ("rotary", False)])
def test_without_positions_permuted_inputs_give_permuted_outputs(positions, follows):
    model = model_of(positions=positions, d_head=4, masks=[BOTH_WAYS])
    order = torch.tensor([3, 0, 7, 1, 6, 2, 5, 4])
    assert close(model(tokens_of()[:, order]), model(tokens_of())[:, order]) == follows


POSITIONAL = {"learned": {"pos_embed.W_pos"}, "relative": {f"blocks.{n}.attn.W_rel" for n in (0, 1)}}


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "relative", "rotary", "none"])
def test_only_learned_and_relative_positions_are_trained(positions):
    names = {name for name, _ in model_of(positions=positions, d_head=4).named_parameters()}
    plain = {name for name, _ in model_of(positions="none", d_head=4).named_parameters()}
    assert names - plain == POSITIONAL.get(positions, set()) and plain <= names


def test_cross_attention_knows_no_positions():
    for positions in ("relative", "rotary"):
        config = pair_of(positions=positions)
        assert not any("cross" in name and "W_rel" in name for name, _ in build(config, 0).named_parameters())
        model, batch = settled(build(config, seed=0)), batch_for(config)
        same = torch.full_like(batch.context.tokens, 4)
        one_word = batch.with_context(Batch(same, torch.full_like(same, -100)))
        zeroed = [zero(Heads(layer=layer, part="z", stack="encoder")) for layer in range(2)]
        pattern = record(model, one_word, [("cross.pattern", 0)], zeroed)["cross.pattern", 0]
        assert torch.allclose(pattern, torch.full_like(pattern, 1 / 5), atol=1e-12)


# Grouped queries


@pytest.mark.parametrize("n_kv_heads", [1, 2])
@pytest.mark.parametrize("positions", ["learned", "rotary", "relative"])
def test_grouped_queries_equal_a_model_with_repeated_keys_and_values(positions, n_kv_heads):
    config = {"n_heads": 4, "d_head": 4, "positions": positions}
    grouped, plain = model_of(n_kv_heads=n_kv_heads, **config), model_of(**config)
    weights = dict(grouped.state_dict())
    for name, value in weights.items():
        if name.rpartition(".")[2] in ("W_K", "b_K", "W_V", "b_V"):
            weights[name] = value.repeat_interleave(4 // n_kv_heads, 0)
    plain.load_state_dict(weights)
    assert close(grouped(tokens_of()), plain(tokens_of()))


def test_as_many_keys_as_queries_are_no_groups():
    assert config_of(n_kv_heads=2) == config_of() and config_of(n_kv_heads=1) != config_of()
    assert model_of().cfg.n_key_value_heads is None and model_of(n_kv_heads=1).cfg.n_key_value_heads == 1


def test_a_head_of_values_belongs_to_its_group_of_queries():
    model, batch = model_of(n_heads=4, n_kv_heads=2, d_head=4), Batch(tokens_of(), tokens_of())
    seen = record(model, batch, ["q", "k", "v", "z"])
    assert [seen[name, 0].shape[2] for name in ("q", "k", "v", "z")] == [4, 2, 2, 4]
    edited = record(model, batch, [("z", 0)], [zero(Heads(layer=0, head=1, part="v"))])["z", 0]
    assert torch.equal(edited[:, :, :2], seen["z", 0][:, :, :2]) and not edited[:, :, 2:].any()


@pytest.mark.parametrize("part", ["k", "v"])
def test_a_head_of_keys_or_values_beyond_the_groups_is_refused(part):
    model, batch = model_of(n_heads=4, n_kv_heads=2, d_head=4), Batch(tokens_of(), tokens_of())
    with pytest.raises(KeyError, match="no head 2; this model has key–value heads 0 to 1"):
        run(model, batch, [zero(Heads(layer=0, head=2, part=part))])
    assert run(model, batch, [zero(Heads(layer=0, head=2, part="q"))]).logits.shape == (3, 8, 11)


# Patches


def test_patches_are_mapped_and_the_first_position_is_the_class_token():
    model, batch = kind_of("patches"), batch_for(KINDS["patches"])
    embedded = record(model, batch, ["embed"])["embed"]
    assert torch.equal(embedded[:, 0], model.embed.W_E[batch.tokens[:, 0]])
    patches = batch.inputs["patches"].double()
    assert close(embedded[:, 1:], patches @ model.embed.W_patch + model.embed.b_patch)


def test_tokens_at_patches_are_not_read_and_the_class_token_is():
    model, batch = kind_of("patches"), batch_for(KINDS["patches"])
    other, first = (batch.tokens + 1) % 11, batch.tokens.clone()
    other[:, 0], first[:, 0] = batch.tokens[:, 0], (batch.tokens[:, 0] + 1) % 11
    before = run(model, batch).logits
    assert torch.equal(run(model, replace(batch, tokens=other)).logits, before)
    assert not torch.isclose(run(model, replace(batch, tokens=first)).logits, before).any(-1).all()


def test_the_class_token_reads_every_patch():
    model, batch = kind_of("patches"), batch_for(KINDS["patches"])
    before = run(model, batch).logits[:, 0]
    for patch in range(7):
        moved = batch.inputs["patches"].clone()
        moved[:, patch] += 1
        assert (run(model, batch.with_inputs(patches=moved)).logits[:, 0] != before).any(-1).all()


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("patches", lambda b: replace(b, inputs={}), r"reads patches, inputs\['patches'\] .* got no such input"),
        ("patches", lambda b: b.with_inputs(patches=torch.ones(3, 7, 4)), r"\[3, 7, 5\]; got \[3, 7, 4\]"),
        ("patches", lambda b: b.with_inputs(patches=torch.ones(3, 8, 5)), r"\[3, 7, 5\]; got \[3, 8, 5\]"),
        ("encoder", lambda b: b.with_inputs(patches=torch.ones(3, 7, 5)), "reads tokens, and the batch has patches"),
        ("encoder", lambda b: b.with_inputs(pixels=torch.ones(3, 7, 5)), r"not \['pixels'\]; leave these inputs out"),
        ("encoder", lambda b: b.with_context(b), "has one stack and reads no context"),
        ("encoder", lambda b: longer(b), r"9 positions; this model has 8"),
        ("encoder–decoder", lambda b: replace(b, context=None), "reads a context, and the batch has none"),
        ("encoder–decoder", lambda b: b.with_inputs(patches=torch.ones(3, 5, 5)), r"tokens alone, not \['patches'\]"),
        ("encoder–decoder", lambda b: b.with_context(longer(b)), "9 positions of the context; this model has 7"),
        ("encoder–decoder", lambda b: replace(longer(b), context=b.context), "9 positions of the decoder; .* has 8"),
        ("encoder–decoder", lambda b: b.with_context(with_token(b.context, 13)), "token 13; the encoder knows 0 to 12"),
        ("encoder–decoder", lambda b: with_token(b, 11), "the batch has token 11; the decoder knows 0 to 10"),
    ],
)  # fmt: skip
def test_a_batch_that_a_kind_cannot_read_is_refused(kind, change, said):
    model, batch = kind_of(kind), batch_for(KINDS[kind])
    model.check(batch)
    with pytest.raises(ValueError, match=said):
        model.check(change(batch))
    with pytest.raises(ValueError, match=r"this model|this batch|the model|decoder knows|encoder knows"):
        run(model, change(batch))


def with_token(batch, token):
    tokens = batch.tokens.clone()
    tokens[1, 2] = token
    return replace(batch, tokens=tokens)


def longer(batch):
    tokens = tokens_of(len(batch), 9)
    return Batch(tokens, tokens)


# Configuration, and TransformerLens' tools


@EVERY_KIND
def test_a_configuration_is_an_exact_round_trip_and_builds_its_kind(kind):
    config = KINDS[kind]
    assert read_config(config.model_dump()) == read_config(config.model_dump(mode="json")) == config
    assert type(config).model_validate_json(config.model_dump_json()) == config
    assert type(build(config, 0)) is (EncoderDecoder if kind in PAIRS else Transformer)


@EVERY_KIND
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(kind):
    first, again, other = (build(KINDS[kind], seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(first[name], other[name]) == name.endswith((".w", ".b", "W_rel")) for name in first)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"masks": [{"dilation": 2}]}, "dilation=2 spreads a window; say window= too"),
        ({"masks": [{"dilation": 2, "block": 2}]}, "dilation=2 spreads a window"),
        ({"masks": [{"n_global": 1}]}, "n_global=1 adds to a window or a block"),
        ({"masks": [{"window": 0}]}, "window"),
        ({"masks": [{"block": 0}]}, "block"),
        ({"masks": [{"dilation": 0, "window": 2}]}, "dilation"),
        ({"masks": [{"n_global": -1, "window": 2}]}, "n_global"),
        ({"masks": [{"windows": 2}]}, "windows"),
        ({"masks": [{"causal": 1}]}, "causal"),
        ({"masks": []}, "masks"),
        ({"masks": [Mask()] * 3}, "3 masks for 2 layers; give one for all, or one a layer"),
        ({"n_heads": 2, "n_kv_heads": 4}, "n_heads=2 does not divide into groups by n_kv_heads=4"),
        ({"n_heads": 3, "n_kv_heads": 2}, "n_heads=3 does not divide into groups by n_kv_heads=2"),
        ({"n_kv_heads": -1}, "n_kv_heads"),
        ({"positions": "rotary", "d_head": 3}, "rotary positions turn pairs of numbers; d_head=3 is odd"),
        ({"positions": "alibi"}, "positions"),
        ({"d_patch": -1}, "d_patch"),
    ],
    ids=str,
)
def test_a_config_that_describes_no_model_is_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        config_of(**changes)


@pytest.mark.parametrize(
    ("encoder", "decoder", "said"),
    [
        ({"d_model": 12}, {}, "the encoder has d_model=12 and norm='post', the decoder 6 and 'post'; they must agree"),
        ({"norm": "pre"}, {}, "the encoder has d_model=6 and norm='pre', the decoder 6 and 'post'"),
        ({"masks": [Mask()]}, {}, "an encoder reads in both directions"),
        ({"masks": [BOTH_WAYS, Mask()]}, {}, "an encoder reads in both directions"),
        ({}, {"masks": [BOTH_WAYS]}, "a decoder must not see what it is to say"),
        ({}, {"masks": [Mask(), BOTH_WAYS]}, "a decoder must not see what it is to say"),
        ({"d_patch": 3}, {}, "patches are read by a model of one stack"),
        ({}, {"d_patch": 3}, "patches are read by a model of one stack"),
    ],
    ids=str,
)
def test_two_sides_that_do_not_fit_are_refused(encoder, decoder, said):
    with pytest.raises(ValidationError, match=said):
        pair_of(encoder, decoder)


def test_a_pair_without_a_side_is_refused_by_its_name():
    with pytest.raises(ValidationError, match="decoder"):
        read_config({"encoder": KINDS["encoder"].model_dump()})
    with pytest.raises(ValidationError, match="heads"):
        read_config({**KINDS["encoder"].model_dump(), "heads": 2})


@EVERY_KIND
def test_the_configuration_answers_to_transformer_lens_names(kind):
    model, config = kind_of(kind), getattr(KINDS[kind], "decoder", KINDS[kind])
    got = model.cfg
    assert (got.n_layers, got.n_heads, got.d_model, got.d_head) == (2, config.n_heads, 6, config.d_head)
    assert got.n_key_value_heads == (config.n_kv_heads if config.n_kv_heads < config.n_heads else None)
    assert (got.normalization_type is None) == (config.norm == "none") and got.attn_only == config.attn_only
    assert (got.device, got.dtype) == (torch.device("cpu"), torch.float64)


@EVERY_KIND
def test_run_with_cache_gives_what_is_recorded(kind):
    model, batch = kind_of(kind), batch_for(KINDS[kind])
    context = {} if batch.context is None else {"context": batch.context.tokens}
    logits, cache = model.run_with_cache(batch.tokens, **context, **batch.inputs)
    assert isinstance(cache, ActivationCache) == (kind not in PAIRS)
    assert torch.equal(logits, run(model, batch).logits)
    for part in model.parts:
        name = f"{part}.pattern" if part else "pattern"
        recorded = record(model, batch, [(name, 1)])[name, 1]
        assert torch.equal(cache[f"{part}.blocks.1.attn.hook_pattern".lstrip(".")], recorded)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_pair_gives_no_activation_cache(kind):
    model, batch = kind_of(kind), batch_for(KINDS[kind])
    with pytest.raises(ValueError, match="an ActivationCache knows of one stack alone"):
        model.run_with_cache(batch.tokens, batch.context.tokens, return_cache_object=True)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_place_in_a_pair_must_say_its_part(kind):
    model, batch = kind_of(kind), batch_for(KINDS[kind])
    with pytest.raises(KeyError, match="say which part of this model: stack='encoder', stack='decoder', kind='cross'"):
        run(model, batch, [cut(Edges(layer=0), empty="no-update")])
    with pytest.raises(KeyError, match="this model has one stack of layers and no encoder part"):
        run(model_of(), Batch(tokens_of(), tokens_of()), [cut(Edges(layer=0, stack="encoder"), empty="no-update")])


def test_a_model_is_not_a_mapping_of_sides():
    assert isinstance(read_config(config_of().model_dump()), ModelConfig)
    assert isinstance(read_config(pair_of().model_dump()), EncoderDecoderConfig)


def test_one_mask_without_a_list_is_answered_with_the_list():
    with pytest.raises(ValueError, match=r"masks are one or more, in a list: masks=\[Mask\(causal=False"):
        ModelConfig(d_vocab=5, n_ctx=4, d_model=4, n_layers=1, n_heads=1, masks=Mask(causal=False))


def test_an_alignment_in_self_attention_and_one_without_an_edge_are_told_as_such():
    batch = batch_for(KINDS[PAIRS[0]])
    none = torch.zeros(*batch.tokens.shape, batch.context.tokens.shape[1], dtype=torch.bool)
    batch = batch.with_context(batch.context, nothing=none)
    with pytest.raises(KeyError, match="'nothing' is an alignment: edges to the context, which kind='cross' names"):
        batch.edges(None, "nothing", "decoder")
