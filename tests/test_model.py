"""The decoder: names and shapes, what it computes, what it may look at, and TransformerLens' tools on it."""

import math

import pytest
import torch
import torch.nn.functional as F
from models_of import close, config_of, model_of, stream, tokens_of
from pydantic import ValidationError
from scipy import stats

from workbench.batch import Batch
from workbench.interventions import Stream, zero
from workbench.models.config import ModelConfig
from workbench.models.transformer import Transformer
from workbench.running import record

NORMS = ["post", "pre", "none"]
HIDDEN = -math.inf


# Configuration


def test_widths_left_out_are_filled_in():
    config = config_of(d_model=12, n_heads=3)
    assert (config.d_head, config.d_mlp, config.norm, config.positions) == (4, 48, "post", "learned")
    assert config_of(attn_only=True).d_mlp == 0
    assert (config_of(d_head=5, d_mlp=7).d_head, config_of(d_head=5, d_mlp=7).d_mlp) == (5, 7)
    assert config_of(d_model=7, n_heads=2, d_head=3).d_head == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d_model": 7, "n_heads": 2}, "d_model=7 does not divide by n_heads=2; give d_head yourself"),
        ({"norm": "sandwich"}, "norm"),
        ({"positions": "alibi"}, "positions"),
        ({"act_fn": "swish"}, "act_fn"),
        ({"n_layers": 0}, "n_layers"),
        ({"n_heads": 0}, "n_heads"),
        ({"d_vocab": 1}, "d_vocab"),
        ({"n_ctx": 0}, "n_ctx"),
        ({"d_head": -1}, "d_head"),
    ],
)
def test_a_config_that_describes_no_model_is_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        config_of(**changes)


def test_a_config_is_frozen_and_an_exact_round_trip():
    config = config_of(norm="pre", d_mlp=9)
    with pytest.raises(ValidationError, match="frozen"):
        config.d_model = 3
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config != config_of()


@pytest.mark.parametrize("width", ["6", 6.0])
def test_a_width_that_only_reads_as_a_number_is_refused(width):
    with pytest.raises(ValidationError, match="d_model"):
        config_of(d_model=width)


def test_what_is_no_config_at_all_is_refused():
    with pytest.raises(ValidationError):
        ModelConfig.model_validate(3)


# Parameters


def test_parameters_have_the_names_and_shapes_of_transformer_lens():
    shapes = {name: tuple(value.shape) for name, value in model_of(norm="pre", d_head=5).state_dict().items()}
    block = {
        "attn.W_Q": (2, 6, 5), "attn.W_K": (2, 6, 5), "attn.W_V": (2, 6, 5), "attn.W_O": (2, 5, 6), "attn.b_Q": (2, 5),
        "attn.b_K": (2, 5), "attn.b_V": (2, 5), "attn.b_O": (6,), "mlp.W_in": (6, 24), "mlp.b_in": (24,),
        "mlp.W_out": (24, 6), "mlp.b_out": (6,), "ln1.w": (6,), "ln1.b": (6,), "ln2.w": (6,), "ln2.b": (6,),
    }  # fmt: skip
    whole = {"embed.W_E": (11, 6), "pos_embed.W_pos": (8, 6), "unembed.W_U": (6, 11), "unembed.b_U": (11,)}
    whole |= {"ln_final.w": (6,), "ln_final.b": (6,)}
    assert shapes == whole | {f"blocks.{n}.{name}": shape for n in range(2) for name, shape in block.items()}


def test_the_configuration_answers_to_transformer_lens_names():
    model = model_of(norm="none", attn_only=True, n_heads=3)
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_model, model.cfg.d_head) == (2, 3, 6, 2)
    assert (model.cfg.n_key_value_heads, model.cfg.attn_only, model.cfg.normalization_type) == (None, True, None)
    assert (model.cfg.device, model.cfg.dtype) == (torch.device("cpu"), torch.float64)
    assert model_of().cfg.normalization_type == model_of(norm="pre").cfg.normalization_type == "LN"


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    first, again, other = (Transformer(config_of(), seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(first[name], other[name]) == name.endswith((".w", ".b")) for name in first)


def test_building_a_model_neither_reads_nor_moves_the_global_random_state():
    torch.manual_seed(0)
    state, first = torch.get_rng_state(), Transformer(config_of(), seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert all(torch.equal(value, first[name]) for name, value in Transformer(config_of(), seed=3).state_dict().items())


INPUTS = {"W_O": 48, "b_O": 48, "W_out": 96, "b_out": 96}


def test_initial_weights_follow_the_documented_distributions():
    config = config_of(d_vocab=300, n_ctx=60, d_model=64, n_heads=3, d_head=16, d_mlp=96, norm="pre")
    for name, value in Transformer(config, seed=0).named_parameters():
        kind = name.rsplit(".", 1)[-1]
        numbers = value.detach().flatten().numpy()
        if kind in ("w", "b"):
            assert (numbers == (1 if kind == "w" else 0)).all(), name
        elif kind in ("W_E", "W_pos"):
            assert stats.kstest(numbers, "norm").pvalue > 1e-4, name
        else:
            bound = 1 / math.sqrt(INPUTS.get(kind, 64))
            assert abs(numbers).max() <= bound, name
            assert stats.kstest(numbers, "uniform", args=(-bound, 2 * bound)).pvalue > 1e-4, name


# What it computes

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh}


def reference(config, w, tokens):
    """The same model in plain torch, one head after another."""
    n = tokens.shape[1]

    def norm(x, name):
        return F.layer_norm(x, (config.d_model,), w[f"{name}.w"], w[f"{name}.b"])

    def attention(x, at):
        out = w[f"{at}.b_O"].expand_as(x)
        for head in range(config.n_heads):
            q, k, v = (F.linear(x, w[f"{at}.W_{one}"][head].T, w[f"{at}.b_{one}"][head]) for one in "QKV")
            scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(config.d_head)
            future = torch.ones(n, n, dtype=torch.bool).triu(1)
            out = out + torch.bmm(F.softmax(scores.masked_fill(future, HIDDEN), -1), v) @ w[f"{at}.W_O"][head]
        return out

    def mlp(x, at):
        hidden = ACTIVATIONS[config.act_fn](F.linear(x, w[f"{at}.W_in"].T, w[f"{at}.b_in"]))
        return F.linear(hidden, w[f"{at}.W_out"].T, w[f"{at}.b_out"])

    x = w["embed.W_E"][tokens]
    if config.positions == "learned":
        x = x + w["pos_embed.W_pos"][:n]
    for layer in range(config.n_layers):
        at = f"blocks.{layer}"
        if config.norm == "post":
            x = norm(x + attention(x, f"{at}.attn"), f"{at}.ln1")
            if not config.attn_only:
                x = norm(x + mlp(x, f"{at}.mlp"), f"{at}.ln2")
        else:
            inside = norm if config.norm == "pre" else lambda x, name: x
            x = x + attention(inside(x, f"{at}.ln1"), f"{at}.attn")
            if not config.attn_only:
                x = x + mlp(inside(x, f"{at}.ln2"), f"{at}.mlp")
    x = norm(x, "ln_final") if config.norm == "pre" else x
    return F.linear(x, w["unembed.W_U"].T, w["unembed.b_U"])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"n_heads": 1}, {"d_head": 5}, {"positions": "none"}, {"attn_only": True}, {"n_layers": 1}]
    + [{"act_fn": name} for name in ("gelu", "silu", "tanh")],
    ids=str,
)
def test_logits_equal_a_reference_written_in_plain_torch(norm, changes):
    model = model_of(norm=norm, **changes)
    logits, expected = model(tokens_of(length=7)), reference(model.config, model.state_dict(), tokens_of(length=7))
    assert logits.shape == (3, 7, 11) and close(logits, expected)


@pytest.mark.parametrize("norm", NORMS)
def test_one_example_alone_equals_itself_in_a_batch(norm):
    model, tokens = model_of(norm=norm), tokens_of(16)
    assert close(model(tokens[:1]), model(tokens)[:1])


@pytest.mark.parametrize("norm", NORMS)
def test_resid_mid_is_resid_pre_plus_attn_out(norm):
    cache = stream(model_of(norm=norm), tokens_of())
    for layer in range(2):
        assert torch.equal(cache["resid_mid", layer], cache["resid_pre", layer] + cache["attn_out", layer])


def test_post_norm_sites_mean_what_the_words_say():
    model = model_of()
    cache = stream(model, tokens_of())
    for layer, block in enumerate(model.blocks):
        normed = F.layer_norm(cache["resid_mid", layer], (6,), block.ln1.w, block.ln1.b)
        assert close(cache["pre", layer], normed @ block.mlp.W_in + block.mlp.b_in)
        assert close(cache["resid_post", layer], normed + cache["mlp_out", layer])
        after = F.layer_norm(cache["resid_post", layer], (6,), block.ln2.w, block.ln2.b)
        if layer == 0:
            assert close(cache["resid_pre", 1], after)
        else:
            assert close(model(tokens_of()), after @ model.unembed.W_U + model.unembed.b_U)


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_without_post_norm_the_stream_is_a_plain_sum(norm):
    cache = stream(model_of(norm=norm), tokens_of())
    for layer in range(2):
        assert torch.equal(cache["resid_post", layer], cache["resid_mid", layer] + cache["mlp_out", layer])
    assert torch.equal(cache["resid_pre", 1], cache["resid_post", 0])


def test_removing_the_attention_update_takes_its_bias_and_leaves_the_norm():
    model, batch = model_of(), Batch(tokens_of(), tokens_of())
    assert model.blocks[0].attn.b_O.abs().max() > 0.01
    seen = record(model, batch, ["resid_pre", "resid_mid", "mlp_pre"], [zero(Stream(layer=0, part="attn_out"))])
    assert torch.equal(seen["resid_mid", 0], seen["resid_pre", 0])
    block = model.blocks[0]
    normed = F.layer_norm(seen["resid_pre", 0], (6,), block.ln1.w, block.ln1.b)
    assert close(seen["mlp_pre", 0], normed @ block.mlp.W_in + block.mlp.b_in)


@pytest.mark.parametrize("n_heads", [1, 2])
def test_attention_sites_follow_from_one_another(n_heads):
    model = model_of(n_heads=n_heads)
    cache, attn = stream(model, tokens_of()), model.blocks[1].attn
    q, k, v, pattern = (cache[name, 1] for name in ("q", "k", "v", "pattern"))
    scores = torch.einsum("bihd,bkhd->bhik", q, k) / math.sqrt(q.shape[-1])
    seen = torch.ones(8, 8).tril().bool().expand_as(scores)
    assert close(cache["attn_scores", 1][seen], scores[seen])
    assert close(pattern, torch.softmax(scores.masked_fill(~seen, HIDDEN), -1))
    assert close(cache["z", 1], torch.einsum("bhik,bkhd->bihd", pattern, v))
    assert close(cache["result", 1], torch.einsum("bihd,hdm->bihm", cache["z", 1], attn.W_O))
    assert close(cache["attn_out", 1], cache["result", 1].sum(2) + attn.b_O)


def emptying(*heads):
    """A hook that leaves these heads no visible source in the last row."""

    def hide(scores, hook):
        scores = scores.clone()
        scores[:, heads, -1] = HIDDEN
        return scores

    return hide


def test_a_row_without_sources_adds_nothing_and_loses_the_bias_where_every_head_is_empty():
    model, kept = model_of(), {}
    attn = model.blocks[0].attn

    def keep(value, hook):
        kept[hook.name] = value

    def emptied_in(*heads):
        hooks = [("blocks.0.attn.hook_attn_scores", emptying(*heads))]
        hooks += [("blocks.0.attn.hook_z", keep), ("blocks.0.hook_attn_out", keep)]
        assert torch.isfinite(model.run_with_hooks(tokens_of(), fwd_hooks=hooks)).all()
        return kept["blocks.0.attn.hook_z"], kept["blocks.0.hook_attn_out"]

    z, one = emptied_in(0)
    assert (z[:, -1, 0] == 0).all() and close(one[:, -1], z[:, -1, 1] @ attn.W_O[1] + attn.b_O)
    both = emptied_in(0, 1)[1]
    assert (both[:, -1] == 0).all() and torch.equal(both[:, :-1], one[:, :-1])


# What it may look at


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "changes", [{"n_heads": 1}, {"n_heads": 2}, {"positions": "none"}, {"attn_only": True}], ids=str
)
def test_a_later_token_changes_no_earlier_logit(norm, changes):
    model = model_of(norm=norm, **changes)
    before = model(tokens_of())
    for t in range(7):
        tokens = tokens_of()
        tokens[:, t + 1] = (tokens[:, t + 1] + 1) % 11
        after = model(tokens)
        assert torch.equal(after[:, : t + 1], before[:, : t + 1])
        assert not torch.equal(after[:, t + 1 :], before[:, t + 1 :])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n_heads", [1, 2])
def test_the_gradient_to_later_inputs_is_exactly_zero(norm, n_heads):
    model = model_of(norm=norm, n_heads=n_heads)
    for t in range(8):
        kept = []

        def keep(value, hook, kept=kept):
            value.retain_grad()
            kept.append(value)
            return value

        logits = model.run_with_hooks(tokens_of(), fwd_hooks=[("hook_embed", keep)])
        logits[:, t].square().sum().backward()
        assert (kept[0].grad[:, t + 1 :] == 0).all()
        assert (kept[0].grad[:, : t + 1] != 0).any(-1).all()


def test_scores_at_masked_positions_are_minus_infinity():
    model, batch = model_of(), Batch(tokens_of(), tokens_of())
    future = torch.ones(8, 8).triu(1).bool().expand(3, 2, 8, 8)
    for scores in (stream(model, tokens_of())["attn_scores", 1], record(model, batch, ["scores"])["scores", 1]):
        assert (scores[future] == HIDDEN).all() and torch.isfinite(scores[~future]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_scores_near_minus_a_million_still_hide_the_future(dtype):
    model = Transformer(config_of(), seed=0).to(dtype)
    with torch.no_grad():
        for attn in (block.attn for block in model.blocks):
            attn.W_Q.zero_(), attn.W_K.zero_(), attn.b_Q.fill_(760), attn.b_K.fill_(-760)
    logits, cache = model.run_with_cache(tokens_of())
    shown = torch.ones(8, 8).tril().bool()
    assert cache["attn_scores", 0][..., shown].max() < -9e5 and torch.isfinite(logits).all()
    expected = (shown / torch.arange(1, 9)[:, None]).to(dtype).expand(3, 2, 8, 8)
    for layer in range(2):
        assert (cache["pattern", layer][..., ~shown] == 0).all()
        assert torch.allclose(cache["pattern", layer], expected)


def test_half_precision_scores_beyond_their_range_are_no_empty_rows():
    model = Transformer(config_of(), seed=0).half()
    with torch.no_grad():
        model.blocks[0].attn.W_Q.zero_(), model.blocks[0].attn.b_Q.fill_(760)
        model.blocks[0].attn.W_K.zero_(), model.blocks[0].attn.b_K.fill_(-760)
    assert torch.allclose(stream(model, tokens_of())["pattern", 0].float().sum(-1), torch.tensor(1.0), atol=1e-2)


def padded(sequences, side, length=8):
    """tokens and valid [batch pos] of sequences filled up with token 5 on one side."""
    tokens, valid = torch.full((len(sequences), length), 5), torch.zeros(len(sequences), length, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        where = slice(0, len(sequence)) if side == "right" else slice(length - len(sequence), length)
        tokens[row, where], valid[row, where] = sequence, True
    return tokens, valid


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_padding_on_either_side_changes_nothing(side, norm, positions):
    model = model_of(norm=norm, positions=positions)
    sequences = [tokens_of(1, length, seed=length)[0] for length in (3, 5, 8)]
    tokens, valid = padded(sequences, side)
    logits, cache = model.run_with_cache(tokens, valid=valid)
    assert torch.isfinite(logits).all()
    for row, sequence in enumerate(sequences):
        assert close(logits[row][valid[row]], model(sequence[None])[0])
        assert (cache["pattern", 1][row][:, :, ~valid[row]] == 0).all()
        assert torch.allclose(cache["pattern", 1][row].sum(-1), valid[row].double())


def test_what_stands_at_padding_changes_nothing():
    model, (tokens, valid) = model_of(), padded([tokens_of(1, 3)[0]], "left")
    other = torch.where(valid, tokens, 9)
    assert torch.equal(model(tokens, valid=valid)[valid], model(other, valid=valid)[valid])


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_with_padding_are_finite(norm):
    model, (tokens, valid) = model_of(norm=norm), padded([tokens_of(1, 3)[0], tokens_of(1, 8)[0]], "left")
    model(tokens, valid=valid)[valid].square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n_layers", [1, 2])
def test_reading_some_positions_equals_the_whole_run_there(norm, n_layers):
    model, read = model_of(norm=norm, n_layers=n_layers), torch.tensor([[7, 0], [3, 3], [1, 6]])
    whole = model(tokens_of())
    assert close(model(tokens_of(), read=read), torch.stack([row[at] for row, at in zip(whole, read, strict=True)]))


def test_reading_some_positions_of_padded_sequences_equals_the_whole_run_there():
    model, (tokens, valid) = model_of(), padded([tokens_of(1, 3)[0], tokens_of(1, 6)[0]], "left")
    read = torch.tensor([[7, 5], [7, 2]])
    whole = model(tokens, valid=valid)
    expected = torch.stack([row[at] for row, at in zip(whole, read, strict=True)])
    assert close(model(tokens, valid=valid, read=read), expected)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (torch.zeros(2, 9, dtype=torch.long), r"9 positions; this model has 8 \(n_ctx\)"),
        (torch.zeros(8, dtype=torch.long), r"tokens must be \[batch pos\]; got \[8\]"),
        (torch.zeros(2, 8, 1, dtype=torch.long), r"tokens must be \[batch pos\]; got \[2, 8, 1\]"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens, said):
    with pytest.raises(ValueError, match=said):
        model_of()(tokens)
