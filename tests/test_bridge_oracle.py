"""Edits of wrapped models equal the family's own model with a slow attention that knows nothing of this workbench."""

import contextlib
import copy
import sys

import pytest
import torch
from foreign import (
    NAMES,
    PLACES,
    TEXT,
    TWO_SEQUENCES,
    as_dtype,
    batch_for,
    by_position,
    finest,
    inputs_for,
    module_of,
    shared,
)

from workbench import Edges, EmptyRow, Heads, Stream, cut, keep_only, path, record, run, scale, uniform, zero

TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-6}

EVERY_PART = pytest.mark.parametrize(("name", "part"), PLACES, ids=lambda word: word or "only")
IN_PART = {"": {}, "encoder": {"stack": "encoder"}, "decoder": {"stack": "decoder"}, "cross": {"kind": "cross"}}
_LAST = ("last", "near")
_ROLES = {"": _LAST, "decoder": _LAST, "encoder": ("closing", "close"), "cross": ("last", "inner")}
WITH_MLP = [place for place in PLACES if place[1] != "cross"]


def roles_of(name, part):
    """A dest role, whose rows matter to the logits in either layer, and a source role that all of them see."""
    return ("first", "some") if name == "vit" else _ROLES[part]


def order_of_calls(name):
    """(part, layer) of each attention call of a pass: the encoder's, then in each decoder layer self and cross."""
    if name not in TWO_SEQUENCES:
        return [("", 0), ("", 1)]
    crossing = [place for layer in (0, 1) for place in (("decoder", layer), ("cross", layer))]
    return [("encoder", 0), ("encoder", 1), *crossing]


@contextlib.contextmanager
def slow_attention(inner, name, weigh=None, change=None):
    """Inside, the family's eager attention goes row by row.

    weigh(place, example, head, dest, weights, sources) → weights of a row, from those of a softmax over the visible
    `sources`; change(place, query, key, value) → the three.
    """
    module, calls = sys.modules[type(inner).__module__], iter(order_of_calls(name))

    def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, position_bias=None, **_):
        place = next(calls)
        if change is not None:
            query, key, value = change(place, query.clone(), key.clone(), value.clone())
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        (n, heads, dests, width), sources = query.shape, key.shape[2]
        z, patterns = query.new_zeros(n, dests, heads, width), query.new_zeros(n, heads, dests, sources)
        hidden = None if attention_mask is None else (attention_mask < -1e4).tolist()
        for example in range(n):
            for head in range(heads):
                group = head // (heads // key.shape[1])
                for dest in range(dests):
                    visible = list(range(sources))
                    if hidden is not None:
                        row = hidden[example % len(hidden)][0][dest % len(hidden[0][0])]
                        visible = [source for source in visible if not row[source]]
                    scores = (key[example, group] @ query[example, head, dest]) * scaling
                    if position_bias is not None:
                        scores = scores + position_bias[0, head, dest]
                    row = plain_row(scores, visible)
                    if weigh is not None:
                        row = weigh(place, example, head, dest, row, visible)
                    patterns[example, head, dest] = row
                    z[example, dest, head] = row @ value[example, group]
        return z, patterns

    before = module.eager_attention_forward
    module.eager_attention_forward = attention
    try:
        yield
    finally:
        module.eager_attention_forward = before
    assert next(calls, None) is None


def plain_row(scores, visible):
    row = torch.zeros_like(scores)
    if visible:
        exponents = (scores[visible] - scores[visible].max()).exp()
        row[visible] = exponents / exponents.sum()
    return row


@torch.no_grad()
def slowly(inner, name, batch, **how):
    plain = copy.deepcopy(inner)
    plain.set_attn_implementation("eager")
    with slow_attention(plain, name, **how):
        return by_position(name, plain(**inputs_for(name, batch)).logits, batch)


def edges_asked(batch, part, dest, source):
    """The edges that two roles name, [batch dest source], from the roles alone."""
    readers = batch.context if part == "encoder" else batch
    sources = batch if part in ("", "decoder") else batch.context
    rows = readers.valid if dest is None else readers.roles[dest]
    columns = sources.valid if source is None else sources.roles[source]
    return rows[:, :, None] & columns[:, None]


def rule(place, heads, asked, operation):
    """A change of the rows of some heads at one place."""

    def weigh(here, example, head, dest, row, visible):
        if here != place or head not in heads or not asked[example, dest].any():
            return row
        return operation(row, asked[example, dest], visible)

    return weigh


def without(row, chosen, visible):
    kept = [source for source in visible if not chosen[source]]
    out = torch.zeros_like(row)
    for source in kept:
        out[source] = row[source] / sum(row[other] for other in kept)
    return out


def only(row, chosen, visible):
    return without(row, ~chosen, visible)


def even(row, chosen, visible):
    level = [source for source in visible if chosen[source]]
    return row.new_tensor([1 / len(level) if source in level else 0.0 for source in range(len(row))])


def erased(row, chosen, visible):
    return row.new_tensor([0.0 if chosen[source] else float(row[source]) for source in range(len(row))])


def tripled(row, chosen, visible):
    times = row.new_tensor([3.0 if chosen[source] else 1.0 for source in range(len(row))])
    return row * times / (row * times).sum()


def case(name):
    """A shared model, its inner one, and a batch with padding where the family can."""
    dtype = finest(name)
    wrapped = shared(name, dtype)
    return wrapped, wrapped.inner, as_dtype(batch_for(name, padding="right" if name in TEXT else None), dtype)


def assert_agree(batch, got, want, apart_from=None):
    """Equal at valid positions within DESIGN.md's tolerance, and unlike the logits without the edit."""
    size = float(want[batch.valid].abs().max())
    assert float((got - want)[batch.valid].abs().max()) <= TOLERANCE[got.dtype] * size
    if apart_from is not None:
        assert float((got - apart_from)[batch.valid].abs().max()) > 1e-4 * size


@EVERY_PART
@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 1), (0, None)])
def test_a_cut_equals_leaving_the_source_out(name, part, layer, head):
    wrapped, inner, batch = case(name)
    dest, source = roles_of(name, part)
    asked, heads = edges_asked(batch, part, dest, source), [head] if head is not None else range(4)
    edit = cut(Edges(layer=layer, head=head, dest=dest, source=source, **IN_PART[part]))
    want = slowly(inner, name, batch, weigh=rule((part, layer), heads, asked, without))
    assert_agree(batch, run(wrapped, batch, [edit]).logits, want, run(wrapped, batch).logits)


OPERATIONS = {
    "uniform": (uniform, even), "keep_only": (keep_only, only), "zero": (zero, erased),
    "scale": (lambda where: scale(where, by=3.0), tripled),
}  # fmt: skip


@EVERY_PART
@pytest.mark.parametrize("operation", OPERATIONS)
def test_other_edits_of_edges_equal_rows_rewritten_by_hand(name, part, operation):
    wrapped, inner, batch = case(name)
    ours, theirs = OPERATIONS[operation]
    dest, source = roles_of(name, part)
    asked = edges_asked(batch, part, dest, source)
    got = run(wrapped, batch, [ours(Edges(layer=1, head=0, dest=dest, source=source, **IN_PART[part]))]).logits
    want = slowly(inner, name, batch, weigh=rule((part, 1), [0], asked, theirs))
    assert_agree(batch, got, want, run(wrapped, batch).logits)


@EVERY_PART
def test_a_row_made_uniform_is_even_over_what_the_model_sees(name, part):
    wrapped, inner, batch = case(name)
    dest, _ = roles_of(name, part)
    asked = edges_asked(batch, part, dest, None)
    got = run(wrapped, batch, [uniform(Edges(layer=1, dest=dest, **IN_PART[part]))]).logits
    want = slowly(inner, name, batch, weigh=rule((part, 1), range(4), asked, even))
    assert_agree(batch, got, want, run(wrapped, batch).logits)


@EVERY_PART
@pytest.mark.parametrize("head", [1, None])
def test_an_emptied_row_gives_z_0_and_loses_the_bias_only_where_every_head_is_empty(name, part, head):
    wrapped, inner, batch = case(name)
    dest, _ = roles_of(name, part)
    asked, heads = edges_asked(batch, part, dest, None), [head] if head is not None else range(4)
    edit = cut(Edges(layer=1, head=head, dest=dest, **IN_PART[part]), empty="no-update")
    plain = copy.deepcopy(inner)
    projection, calls = module_of(plain, name, part, 1, "projection"), iter((0, 1))
    bias = getattr(projection, "bias", None)

    def without_bias(_module, _inputs, output):
        if bias is None or head is not None or (name == "albert" and next(calls) != 1):
            return output
        return output - asked.any(-1)[..., None] * bias

    projection.register_forward_hook(without_bias)
    want = slowly(plain, name, batch, weigh=rule((part, 1), heads, asked, without))
    assert_agree(batch, run(wrapped, batch, [edit]).logits, want, run(wrapped, batch).logits)


@EVERY_PART
def test_a_row_emptied_without_a_word_on_it_raises(name, part):
    wrapped, _, batch = case(name)
    dest, _ = roles_of(name, part)
    with pytest.raises(EmptyRow, match="no visible source is left"):
        run(wrapped, batch, [cut(Edges(layer=1, dest=dest, **IN_PART[part]))])
    alone = cut(Edges(layer=1, dest=dest, **IN_PART[part]), empty="self")
    if part == "cross":
        with pytest.raises(ValueError, match="no source of its own"):
            run(wrapped, batch, [alone])
        return
    site = f"{part}.pattern" if part else "pattern"
    pattern = record(wrapped, batch, [(site, 1)], [alone])[site, 1]
    rows = edges_asked(batch, part, dest, None).any(-1)
    own = torch.eye(pattern.shape[-1], dtype=pattern.dtype).expand_as(pattern)
    assert torch.equal(pattern.movedim(1, 2)[rows], own.movedim(1, 2)[rows])


@EVERY_PART
@pytest.mark.parametrize("vector", ["q", "k", "v"])
def test_vectors_of_one_head_scaled_equal_the_same_by_hand(name, part, vector):
    wrapped, inner, batch = case(name)
    role = roles_of(name, part)[0 if vector == "q" else 1]
    side = batch.context if part == "encoder" or (part == "cross" and vector != "q") else batch
    at = side.roles[role]

    def change(place, query, key, value):
        if place == (part, 1):
            changed = {"q": query, "k": key, "v": value}[vector]
            changed[:, 1] = torch.where(at[:, :, None], -2 * changed[:, 1], changed[:, 1])
        return query, key, value

    edit = scale(Heads(layer=1, head=1, pos=role, part=vector, **IN_PART[part]), by=-2.0)
    want = slowly(inner, name, batch, change=change)
    assert_agree(batch, run(wrapped, batch, [edit]).logits, want, run(wrapped, batch).logits)


@torch.no_grad()
def with_hook(inner, name, batch, module, change, *, at_input=False, call=0):
    """The eager model's logits with one tensor changed by a plain hook, in one call of the module."""
    plain = copy.deepcopy(inner)
    plain.set_attn_implementation("eager")
    module, calls = module(plain), iter(range(100))

    def before(_module, args):
        return (change(args[0]), *args[1:]) if next(calls) == call else None

    def after(_module, _args, output):
        if next(calls) != call:
            return None
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    if at_input:
        module.register_forward_pre_hook(before)
    else:
        module.register_forward_hook(after)
    return by_position(name, plain(**inputs_for(name, batch)).logits, batch)


def positions_of(name, part, batch):
    return (batch.context if part == "encoder" else batch).roles[roles_of(name, part)[0]]


@EVERY_PART
@pytest.mark.parametrize("site", ["z", "result"])
def test_a_head_zeroed_is_its_columns_of_the_output_projection_zeroed(name, part, site):
    wrapped, inner, batch = case(name)
    at = positions_of(name, part, batch)

    def erase(x):
        width = x.shape[-1] // (4 if name in ("llama", "qwen2", "qwen3", "mistral", "gemma3_text") else 2)
        out = x.clone()
        out[..., width : 2 * width] = torch.where(at[..., None], 0.0, x[..., width : 2 * width])
        return out

    edit = zero(Heads(layer=1, head=1, pos=roles_of(name, part)[0], part=site, **IN_PART[part]))
    call = 1 if name == "albert" else 0
    want = with_hook(
        inner, name, batch, lambda plain: module_of(plain, name, part, 1, "projection"), erase, at_input=True, call=call
    )
    assert_agree(batch, run(wrapped, batch, [edit]).logits, want, run(wrapped, batch).logits)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("albert", *TWO_SEQUENCES)])
def test_a_head_zeroed_everywhere_is_the_model_without_its_weights(name):
    wrapped, inner, batch = case(name)
    plain = copy.deepcopy(inner)
    weight = module_of(plain, name, "", 0, "projection").weight.data
    columns = weight if name == "gpt2" else weight.T
    width = columns.shape[0] // (4 if name in ("llama", "qwen2", "qwen3", "mistral", "gemma3_text") else 2)
    columns[:width] = 0
    with torch.no_grad():
        want = by_position(name, plain(**inputs_for(name, batch)).logits, batch)
    got = run(wrapped, batch, [zero(Heads(layer=0, head=0, part="z"))]).logits
    assert_agree(batch, got, want, run(wrapped, batch).logits)


@EVERY_PART
def test_attn_out_zeroed_removes_what_the_sublayer_adds(name, part):
    wrapped, inner, batch = case(name)
    at = positions_of(name, part, batch)

    def added(plain):
        if name == "gemma3_text":
            return module_of(plain, name, part, 1, "block").post_attention_layernorm
        return module_of(plain, name, part, 1, "projection")

    edit = zero(Stream(layer=1, pos=roles_of(name, part)[0], part="attn_out", **IN_PART[part]))
    call = 1 if name == "albert" else 0
    want = with_hook(inner, name, batch, added, lambda x: torch.where(at[..., None], 0.0, x), call=call)
    assert_agree(batch, run(wrapped, batch, [edit]).logits, want, run(wrapped, batch).logits)


@pytest.mark.parametrize(("name", "part"), WITH_MLP, ids=lambda word: word or "only")
def test_mlp_out_zeroed_removes_what_the_mlp_adds(name, part):
    wrapped, inner, batch = case(name)
    at = positions_of(name, part, batch)

    def added(plain):
        if name == "gemma3_text":
            return module_of(plain, name, part, 1, "block").post_feedforward_layernorm
        return module_of(plain, name, part, 1, "mlp")

    edit = zero(Stream(layer=1, pos=roles_of(name, part)[0], part="mlp_out", **IN_PART[part]))
    call = 1 if name == "albert" else 0
    want = with_hook(inner, name, batch, added, lambda x: torch.where(at[..., None], 0.0, x), call=call)
    assert_agree(batch, run(wrapped, batch, [edit]).logits, want, run(wrapped, batch).logits)


STREAM_OF_CROSS = {
    ("t5", "decoder"): ("decoder.block.1.layer.0", False), ("t5", "cross"): ("decoder.block.1.layer.1", False),
    ("t5", "encoder"): ("encoder.block.1.layer.0", False),
    ("bart", "decoder"): ("model.decoder.layers.1.self_attn_layer_norm", True),
    ("bart", "cross"): ("model.decoder.layers.1.encoder_attn_layer_norm", True),
    ("bart", "encoder"): ("model.encoder.layers.1.self_attn_layer_norm", True),
}  # fmt: skip


@pytest.mark.parametrize(("name", "part"), STREAM_OF_CROSS)
def test_the_stream_after_each_attention_of_two_stacks_is_where_it_is_said_to_be(name, part):
    wrapped, inner, batch = case(name)
    at, (module, at_input) = positions_of(name, part, batch), STREAM_OF_CROSS[name, part]
    edit = scale(Stream(layer=1, pos=roles_of(name, part)[0], part="resid_mid", **IN_PART[part]), by=-2.0)
    want = with_hook(
        inner, name, batch, lambda plain: plain.get_submodule(module),
        lambda x: torch.where(at[..., None], -2 * x, x), at_input=at_input,
    )  # fmt: skip
    got = run(wrapped, batch, [edit]).logits
    # A post-norm stream times a number changes its LayerNorm only by the sign and epsilon.
    assert_agree(batch, got, want, run(wrapped, batch).logits)


def gpt2_by_hand(inner, batch, edit):
    body = inner.transformer
    hidden = body.wte(batch.tokens) + body.wpe.weight[: batch.tokens.shape[1]]
    later = torch.ones(batch.tokens.shape[1], batch.tokens.shape[1], dtype=torch.bool).triu(1)
    mask = torch.zeros(later.shape, dtype=hidden.dtype).masked_fill(later, -1e30)[None, None]
    for layer, block in enumerate(body.h):
        hidden = edit("resid_pre", layer, hidden)
        attended = edit("attn_out", layer, block.attn(block.ln_1(hidden), attention_mask=mask)[0])
        middle = edit("resid_mid", layer, hidden + attended)
        hidden = edit("resid_post", layer, middle + edit("mlp_out", layer, block.mlp(block.ln_2(middle))))
    return inner.lm_head(body.ln_f(hidden))


def bert_by_hand(inner, batch, edit):
    hidden = inner.bert.embeddings(batch.tokens)
    for layer, block in enumerate(inner.bert.encoder.layer):
        hidden = edit("resid_pre", layer, hidden)
        attended = edit("attn_out", layer, block.attention.output.dense(block.attention.self(hidden)[0]))
        middle = block.attention.output.LayerNorm(edit("resid_mid", layer, hidden + attended))
        wide = edit("mlp_out", layer, block.output.dense(block.intermediate(middle)))
        hidden = block.output.LayerNorm(edit("resid_post", layer, middle + wide))
    return inner.cls(hidden)


BY_HAND = {"gpt2": gpt2_by_hand, "bert": bert_by_hand}


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("site", ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"])
def test_the_stream_zeroed_equals_a_block_written_out(name, layer, site):
    wrapped, batch = shared(name, torch.float64), batch_for(name)
    plain = copy.deepcopy(wrapped.inner)

    def edit(here, at, x):
        return torch.where(batch.roles["last"][..., None], 0.0, x) if (here, at) == (site, layer) else x

    with torch.no_grad():
        want = BY_HAND[name](plain, batch, edit)
        clean = BY_HAND[name](plain, batch, lambda _here, _at, x: x)
    assert_agree(batch, run(wrapped, batch).logits, clean)
    got = run(wrapped, batch, [zero(Stream(layer=layer, pos="last", part=site))]).logits
    assert_agree(batch, got, want, clean)


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("seed", range(4))
def test_several_edits_of_the_stream_equal_a_block_written_out(name, seed):
    wrapped, batch = shared(name, torch.float64), batch_for(name)
    plain, generator = copy.deepcopy(wrapped.inner), torch.Generator().manual_seed(seed)
    places = [(site, layer) for site in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
              for layer in (0, 1)]  # fmt: skip
    chosen = {places[i]: (-2.0, 0.5, 3.0)[i % 3] for i in torch.randperm(10, generator=generator)[:4].tolist()}

    def edit(here, at, x):
        return torch.where(batch.roles["last"][..., None], chosen.get((here, at), 1.0) * x, x)

    with torch.no_grad():
        want = BY_HAND[name](plain, batch, edit)
    edits = [scale(Stream(layer=layer, pos="last", part=site), by=by) for (site, layer), by in chosen.items()]
    assert_agree(batch, run(wrapped, batch, edits).logits, want, run(wrapped, batch).logits)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("receiver", ["q", "k", "v"])
def test_a_path_equals_a_patched_run_written_out(name, receiver):
    wrapped, batch = shared(name, finest(name)), batch_for(name)
    edit = path(zero, Heads(layer=0, head=1, part="z", pos="some"), Heads(layer=1, head=1, part=receiver))
    got = run(wrapped, batch, [edit]).logits
    want = path_by_hand(wrapped.inner, name, batch, receiver)
    assert_agree(batch, got, want, run(wrapped, batch).logits)


def path_by_hand(inner, name, batch, receiver):
    """The receiver's vector from a run in which the sender is silent and the MLP between is as it was, put into a clean
    run."""
    plain, at, kept = copy.deepcopy(inner), batch.roles["some"][..., None], {}
    mlp, projection = (module_of(plain, name, "", 0, what) for what in ("mlp", "projection"))

    def read(change):
        handle = mlp.register_forward_hook(change)
        slowly_run(plain, name, batch, keep)
        handle.remove()

    def keep(place, query, key, value):
        if place == ("", 1):
            kept["vectors"] = {"q": query, "k": key, "v": value}[receiver].clone()
        return query, key, value

    def silent(_module, args):
        x = args[0].clone()
        width = x.shape[-1] // (4 if name == "llama" else 2)
        x[..., width : 2 * width] = torch.where(at, 0.0, x[..., width : 2 * width])
        return (x, *args[1:])

    def keep_mlp(_module, _args, output):
        kept["mlp"] = output.clone()

    read(keep_mlp)
    handle = projection.register_forward_pre_hook(silent)
    read(lambda _m, _i, _out: kept["mlp"])
    handle.remove()

    def put(place, query, key, value):
        if place == ("", 1):
            {"q": query, "k": key, "v": value}[receiver][:, 1] = kept["vectors"][:, 1]
        return query, key, value

    return slowly_run(plain, name, batch, put)


@torch.no_grad()
def slowly_run(plain, name, batch, change):
    with slow_attention(plain, name, change=change):
        return plain(**inputs_for(name, batch)).logits
