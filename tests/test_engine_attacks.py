"""What was tried to make the fast path give another table than the plain one: numbers, notes, or what they are said to
be. Faults that are still there are marked with their number and must fail."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from random_cases import Drawn, case_of
from small import ANSWER, BATCH, CORRUPT, small
from torch.nn.utils import prune

from workbench import EncoderDecoder, EncoderDecoderConfig, ModelConfig, Transformer, block_by_block, chunks
from workbench.batch import UNREAD, Batch
from workbench.edits import EmptyRow
from workbench.engine import measure_each, run_each
from workbench.interventions import (
    Edges,
    Heads,
    Stream,
    custom,
    cut,
    freeze,
    mean,
    patch,
    scale,
    shuffle,
    zero,
)
from workbench.models.layers import LayerNorm
from workbench.running import run
from workbench.sweeping import sweep

METRICS = ["log_prob", "accuracy", "kl_to_clean"]
ENGINES = pytest.mark.parametrize("how", ["auto", "hooks"])
Z = Heads(layer=0, part="z", pos="answer")
SOME = {
    "cut": [cut(ANSWER)],
    "zero": [zero(Z)],
    "stream": [scale(Stream(layer=0, part="resid_pre", pos="answer"), by=2.0)],
    "both": [zero(Z), freeze(Heads(layer=1, head=0, part="z"))],
    "patched": [patch(Z, donor="corrupt", align="role")],
    "mean": [mean(Z, donor="corrupt")],
}
DONOR = {"corrupt": CORRUPT}


def off(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def both(model, batch, conditions, **more):
    return [run_each(model, batch, conditions, engine=how, **more) for how in ("auto", "hooks")]


def reading(*places, length=6) -> Batch:
    """An example for each of these, read at so many positions."""
    tokens = torch.randint(16, (len(places), length), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(tokens, UNREAD)
    for example, at in enumerate(places):
        labels[example, list(at)] = 3
    roles = {name: torch.zeros_like(tokens, dtype=torch.bool) for name in ("early", "late")}
    roles["early"][:, 1], roles["late"][:, 4] = True, True
    return Batch(tokens, labels, roles=roles)


# Numbers that are not numbers


def with_a_token_that_is_nan():
    """A model known to be sound before one token's vector becomes NaN, and a batch with it in its ninth example."""
    model, tokens = small(), BATCH.tokens.masked_fill(BATCH.tokens == 15, 14)
    run(model, BATCH)
    tokens[8, 0] = 15
    model.embed.W_E.data[15] = float("nan")
    return model, replace(BATCH, tokens=tokens)


@pytest.mark.parametrize("how", ["auto", "hooks"])
@pytest.mark.parametrize("call", [run_each, partial(measure_each, metrics=["log_prob"])], ids=["run", "measure"])
def test_a_clean_run_that_is_not_finite_is_refused(how, call):
    with pytest.raises(ValueError, match="not finite in 1 of 12 examples"):
        call(*with_a_token_that_is_nan(), {"clean": []}, engine=how)


@pytest.mark.parametrize("how", ["auto", "hooks"])
def test_weights_that_are_not_finite_are_what_is_blamed(how):
    model = small()
    model.unembed.b_U.data[0] = float("nan")
    with pytest.raises(ValueError, match="the weights or an edit hold NaN"):
        run_each(model, BATCH, {"clean": []}, engine=how)


@ENGINES
def test_an_edit_beside_a_token_that_is_nan_is_refused(how):
    with pytest.raises(ValueError, match="NaN"):
        run_each(*with_a_token_that_is_nan(), {"zero": [zero(Z)]}, engine=how)


# Examples that go by in blocks


RAGGED = reading([4], [4], [4, 5], [2, 4, 5])
ONE_WHOLE = reading([4], [4], [4], range(6))
FROZEN = [zero(Heads(layer=0, part="z", pos="early")), freeze(Stream(layer=1, part="attn_out"))]


@ENGINES
@pytest.mark.parametrize("chunk_size", (1, 3))
def test_examples_read_at_more_and_fewer_positions_are_measured_in_blocks(how, chunk_size):
    conditions = {"cut": [cut(Edges(layer=1, dest="late", source="early"))]}
    want = measure_each(small(), RAGGED, conditions, METRICS)["cut"].values
    got = measure_each(small(), RAGGED, conditions, METRICS, engine=how, chunk_size=chunk_size)["cut"].values
    assert all(torch.allclose(got[name], want[name], atol=1e-12) for name in METRICS)


@pytest.mark.parametrize("how", ["auto", "hooks"])
def test_what_is_frozen_in_the_last_layer_is_measured_in_blocks(how):
    want = measure_each(small(), ONE_WHOLE, {"frozen": FROZEN}, METRICS)["frozen"].values
    got = measure_each(small(), ONE_WHOLE, {"frozen": FROZEN}, METRICS, engine=how, chunk_size=2)["frozen"].values
    assert all(torch.allclose(got[name], want[name], atol=1e-12) for name in METRICS)


@ENGINES
def test_what_is_frozen_in_the_last_layer_has_the_same_logits_in_blocks(how):
    want = run(small(), ONE_WHOLE, FROZEN, positions="read").logits
    got = run_each(small(), ONE_WHOLE, {"frozen": FROZEN}, positions="read", engine=how, chunk_size=2)["frozen"]
    assert off(got.logits, want) < 1e-10


@pytest.mark.parametrize(("chunk_size", "ceiling"), [(5, block_by_block.CEILING), (1, 1), (4096, 20_000)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_blocks_of_any_size_give_the_same_numbers_and_notes(chunk_size, ceiling, dtype, monkeypatch):
    model = small(dtype=dtype)
    want = run_each(model, BATCH, SOME, donors=DONOR, engine="hooks")
    monkeypatch.setattr(block_by_block, "CEILING", ceiling)
    got = run_each(model, BATCH, SOME, donors=DONOR, chunk_size=chunk_size)
    for label in SOME:
        assert off(got[label].logits, want[label].logits) < {torch.float64: 1e-10, torch.float32: 5e-6}[dtype]
        assert set(got[label].notes) == set(want[label].notes)


@pytest.mark.parametrize("rows", [1, 3, 7, 20])
def test_groups_of_any_size_give_the_same_numbers(rows, monkeypatch):
    want = run_each(small(), BATCH, SOME, donors=DONOR, engine="hooks")
    monkeypatch.setattr(chunks, "ROWS", rows)
    got = run_each(small(), BATCH, SOME, donors=DONOR)
    assert all(off(got[label].logits, want[label].logits) < 1e-10 for label in SOME)


def test_a_function_across_examples_sees_the_examples_that_run_shows_it(monkeypatch):
    flipped = [custom(("z", 0), lambda z: z.flip(0))]
    want = run(small(), BATCH, flipped).logits
    monkeypatch.setattr(block_by_block, "CEILING", 1)
    assert off(run_each(small(), BATCH, {"flipped": flipped})["flipped"].logits, want) < 1e-10


def test_an_edit_that_changes_what_nobody_reads_is_not_said_to_change_nothing(monkeypatch):
    batch = reading([1], [1], [5], [5])
    tokens = batch.tokens.clone()
    tokens[:2, 4] = (tokens[:2, 4] + 1) % 16
    edit = patch(Stream(layer=0, part="resid_pre", pos="late"), donor="other", align="position")
    donors = {"other": replace(batch, tokens=tokens)}
    want = measure_each(small(), batch, {"patched": [edit]}, donors=donors, engine="hooks", chunk_size=2)["patched"]
    assert set(measure_each(small(), batch, {"patched": [edit]}, donors=donors, chunk_size=2)["patched"].notes) == set(
        want.notes
    )


# Edits that change nothing, or nothing that shows


def alike(n: int, length: int) -> Batch:
    tokens = torch.randint(16, (n, length), generator=torch.Generator().manual_seed(n + length))
    labels, roles = torch.full_like(tokens, UNREAD), {}
    labels[:, -1] = 3
    for name, some in {"first": slice(1), "middle": slice(length // 2, length // 2 + 1), "tail": slice(2, 9)}.items():
        roles[name] = torch.zeros_like(tokens, dtype=torch.bool)
        roles[name][:, some] = True
    return Batch(tokens, labels, roles=roles)


def test_weights_times_one_are_said_to_change_nothing_and_change_no_bit():
    for dtype in (torch.float32, torch.float64):
        for n, length in ((1, 5), (2, 3), (3, 9), (7, 9), (5, 7)):
            batch, model = alike(n, length), small(dtype=dtype)
            every = [(dest, head) for dest in ("middle", "tail") for head in (None, 0, 1)]
            edits = {str(at): [scale(Edges(layer=0, head=at[1], dest=at[0], source="first"), by=1)] for at in every}
            got, want = both(model, batch, edits)
            clean = run(model, batch).logits
            for label in edits:
                assert set(got[label].notes) == set(want[label].notes)
                assert torch.equal(got[label].logits, clean)


@pytest.mark.parametrize("times", [1.0, 100.0, 3000.0])
def test_cuts_of_edges_that_weigh_nothing_have_the_notes_of_the_plain_path(times):
    model, batch = small(), alike(5, 9)
    for layer in model.blocks:
        layer.attn.W_Q.data.mul_(times)
    edits = {
        f"{layer} {dest}": [cut(Edges(layer=layer, head=0, dest=dest, source="first"), empty="no-update")]
        for layer in (0, 1)
        for dest in ("middle", "tail")
    }
    got, want = both(model, batch, edits)
    assert all(set(got[label].notes) == set(want[label].notes) for label in edits)


@pytest.mark.parametrize("how", ["auto", "hooks"])
@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_a_head_that_writes_nothing_has_no_effect_when_it_is_cut(how, norm):
    model = small(norm)
    model.blocks[1].attn.W_O.data[1] = 0
    edits = {"cut": [cut(Edges(layer=1, head=1, dest="last", source="answer"))]}
    got = measure_each(model, BATCH, edits, METRICS, engine=how)["cut"]
    # By rows the head's own share is summed anew, which may round.
    assert got.values["kl_to_clean"].abs().max() < 1e-12
    assert got.same or how == "auto"


# Other arithmetic, other modules


@pytest.mark.parametrize("how", ["auto", "hooks"])
def test_under_autocast_each_condition_is_run(how):
    model = small(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = run_each(model, BATCH, {"zero": [zero(Z)]}, engine=how)["zero"]
    assert got.engine.startswith("hooks") and off(got.logits.float(), run(model, BATCH, [zero(Z)]).logits) < 0.1


def test_a_method_put_in_place_of_a_modules_own_acts():
    model, batch = small(), BATCH.select(slice(0, 8))
    before = model.blocks[1].attn.output
    model.blocks[1].attn.output = lambda z, empty: 0.5 * before(z, empty)
    conditions = {"mlp": [zero(Stream(layer=1, part="mlp_out", pos="last"))], "zero": [zero(Z)]}
    got = run_each(model, batch, conditions)
    assert all(off(got[label].logits, run(model, batch, conditions[label]).logits) < 1e-10 for label in conditions)


class Louder(LayerNorm):
    def forward(self, x):
        return 2 * super().forward(x)


def another_norm(model):
    model.blocks[1].ln1 = Louder(8).double()


def less_of_a_matrix(model):
    prune.random_unstructured(model.blocks[0].attn, "W_O", amount=0.5)


def a_matrix_of_another(model):
    torch.nn.utils.parametrizations.weight_norm(model.blocks[1].mlp, "W_in")


def the_same_matrix_twice(model):
    model.blocks[1].attn.W_Q = model.blocks[0].attn.W_Q


def one_hundred_times_sharper(model):
    for layer in model.blocks:
        layer.attn.W_Q.data.mul_(100)


def all_but_silent(model):
    for parameter in model.parameters():
        parameter.data.mul_(1e-4)


def another_nonlinearity(model):
    for layer in model.blocks:
        layer.mlp.act = torch.sin


CHANGES = [
    another_norm, less_of_a_matrix, a_matrix_of_another, the_same_matrix_twice, one_hundred_times_sharper,
    all_but_silent, another_nonlinearity,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_models_made_otherwise_give_what_the_plain_path_gives(change):
    model = small("pre")
    change(model)
    got, want = both(model, BATCH, SOME, donors=DONOR)
    for label in SOME:
        assert off(got[label].logits, want[label].logits) < 1e-10
        assert set(got[label].notes) == set(want[label].notes)


@pytest.mark.parametrize("within", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_asked_for_or_not_the_numbers_are_the_same(within, training):
    model = small().train(training)
    model.requires_grad_(training)
    want = {label: one.logits for label, one in run_each(small(), BATCH, SOME, donors=DONOR, engine="hooks").items()}
    with within():
        got = run_each(model, BATCH, SOME, donors=DONOR)
    assert all(off(got[label].logits.clone(), want[label]) < 1e-10 and got[label].engine == "rows" for label in SOME)


def test_another_default_dtype_changes_nothing():
    model, other = small(dtype=torch.float32), torch.get_default_dtype()
    want = run_each(model, BATCH, SOME, donors=DONOR, engine="hooks")
    torch.set_default_dtype(torch.float64)
    try:
        got = run_each(model, BATCH, SOME, donors=DONOR)
    finally:
        torch.set_default_dtype(other)
    assert all(off(got[label].logits, want[label].logits) < 5e-6 for label in SOME)


# What is written over


@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_nothing_that_was_handed_in_is_written_over(norm):
    model = small(norm)
    held = [*model.state_dict().values(), BATCH.tokens, BATCH.labels, *BATCH.roles.values(), CORRUPT.tokens]
    before = [tensor.clone() for tensor in held]
    run_each(model, BATCH, SOME, donors=DONOR)
    assert all(map(torch.equal, held, before))


@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_a_condition_gives_the_same_alone_and_after_any_other(norm):
    model, labels = small(norm), list(SOME)
    orders = [labels[at:] + labels[:at] for at in range(len(labels))]
    found = [run_each(model, BATCH, {label: SOME[label] for label in order}, donors=DONOR) for order in orders]
    again = {f"{label} {n}": SOME[label] for n in range(3) for label in labels}
    found.append({label.rsplit(" ", 1)[0]: one for label, one in run_each(model, BATCH, again, donors=DONOR).items()})
    for one in found[1:]:
        assert all(torch.allclose(one[label].logits, found[0][label].logits, rtol=0, atol=1e-13) for label in labels)


def test_conditions_that_differ_in_head_seed_or_what_becomes_of_empty_rows_are_told_apart():
    row = Edges(layer=1, dest="last")
    conditions = {
        **{f"head {n}": [cut(Edges(layer=1, head=n, dest="last", source="answer"))] for n in (0, 1, None)},
        **{f"seed {n}": [shuffle(row, seed=n)] for n in (0, 1)},
        **{empty: [cut(row, empty=empty)] for empty in ("self", "no-update")},
    }
    got, want = both(small(), BATCH, conditions)
    assert all(off(got[label].logits, want[label].logits) < 1e-10 for label in conditions)
    seen = [one.logits for one in got.values()]
    assert not any(torch.equal(one, other) for at, one in enumerate(seen) for other in seen[:at])


# What is asked for once and used up


@ENGINES
def test_conditions_from_a_generator_act_or_are_refused(how):
    try:
        got = run_each(small(), BATCH, {"cut": iter([cut(ANSWER)])}, engine=how)["cut"].logits
    except TypeError:
        return
    assert off(got, run(small(), BATCH, [cut(ANSWER)]).logits) < 1e-10


def test_run_of_a_generator_acts_or_is_refused():
    try:
        got = run(small(), BATCH, iter([cut(ANSWER)])).logits
    except TypeError:
        return
    assert off(got, run(small(), BATCH, [cut(ANSWER)]).logits) < 1e-10


def test_what_stands_beside_a_sweep_stands_beside_every_cell():
    asked = {"layers": 1, "dest": "last", "source": ["answer", "other"], "metrics": "log_prob", "progress": False}
    want = sweep(small(), BATCH, cut, "roles", beside=[zero(Z)], **asked).means()["value"]
    try:
        got = sweep(small(), BATCH, cut, "roles", beside=iter([zero(Z)]), **asked).means()["value"]
    except TypeError:
        return
    assert (got - want).abs().max() < 1e-6


# Sweeps


@pytest.mark.parametrize("over", ["edges", "roles", "heads", "stream"])
@pytest.mark.parametrize("padded", [True, False])
def test_a_sweep_gives_the_table_of_the_plain_path(over, padded):
    batch = BATCH
    if padded:
        valid = batch.valid.clone()
        valid[::3, 0] = False
        roles = {name: batch.roles[name] & valid for name in ("last", "answer", "other")}
        batch = Batch(batch.tokens, batch.labels, valid=valid, roles=roles)
    operation = cut if over in ("edges", "roles") else zero
    narrowed = {"layers": 1} if over in ("edges", "roles") else {}
    if over == "roles":
        narrowed |= {"dest": "last", "source": ["answer", "other"]}
    asked = {**narrowed, "metrics": METRICS, "progress": False, "on_missing": "skip"}
    one, other = (sweep(small(), batch, operation, over, engine=how, **asked) for how in ("auto", "hooks"))
    assert (one.frame[METRICS] - other.frame[METRICS]).abs().max().max() < 1e-6
    assert one.frame["skipped"].equals(other.frame["skipped"]) and one.left_out.equals(other.left_out)
    notes = [swept.notes[swept.notes["condition"].notna()] for swept in (one, other)]
    assert notes[0].values.tolist() == notes[1].values.tolist()


def test_an_example_without_a_changed_source_keeps_the_weight_of_its_first_one():
    """A case in which no source that matters changes in one example, and some do in the others."""
    drawn = Drawn(seed=4710, layers=3, examples=5, lists=((208, 239),), read=True)
    case = case_of(drawn)
    got, want = (run_each(case.model, case.batch, **case.handed(), engine=how)["list 0"] for how in ("auto", "hooks"))
    assert got.engine == "rows"
    assert off(got.logits, want.logits) < 1e-10


# What an edit of a list does beside its own site


def changing_tails(reached):
    """A batch whose role `tail` has a position more in the examples of which this is true."""
    n, length = 12, 6
    tokens = torch.randint(16, (n, length), generator=torch.Generator().manual_seed(0))
    at, example = torch.arange(length).expand(n, length), torch.arange(n)[:, None]
    roles = {"prev": at == 4, "tail": (at == 4) | ((at == 5) & reached(example)), "two": (at == 2) | (at == 3)}
    return Batch(tokens, tokens, roles=roles | {"one": at == 3})


def of_width_8(norm):
    config = ModelConfig(d_vocab=16, n_ctx=6, d_model=8, n_layers=2, n_heads=2, norm=norm)
    return Transformer(config, seed=0).double()


@pytest.mark.parametrize("reached", [lambda i: i >= 4, lambda i: i >= 0], ids=["later ones", "all"])
@pytest.mark.parametrize("part", ["z", "result"])
@pytest.mark.parametrize("norm", ["none", "pre", "post"])
def test_a_row_left_empty_loses_its_bias_though_what_its_heads_mix_is_held(norm, part, reached):
    batch, model = changing_tails(reached), of_width_8(norm)
    edits = [
        zero(Stream(layer=0, part="mlp_out", pos="prev")),
        cut(Edges(layer=1, dest="tail"), empty="no-update"),
        freeze(Heads(layer=1, part=part, pos="tail")),
    ]
    auto, hooks = both(model, batch, {"held": edits, "not": edits[:1]})
    assert off(auto["held"].logits, hooks["held"].logits) < 1e-12
    assert off(hooks["held"].logits[-1, 5], hooks["not"].logits[-1, 5]) > 0.01
    assert auto["held"].notes == hooks["held"].notes


def test_a_row_of_cross_attention_left_empty_loses_its_bias_as_well():
    side = {"d_vocab": 16, "n_ctx": 6, "d_model": 8, "n_layers": 2, "n_heads": 2, "norm": "pre"}
    config = EncoderDecoderConfig(encoder={**side, "masks": [{"causal": False}]}, decoder=side)
    batch = changing_tails(lambda i: i >= 4)
    batch = replace(batch, context=Batch(batch.tokens.flip(1), torch.full_like(batch.tokens, UNREAD)))
    edits = [
        zero(Stream(layer=0, stack="decoder", part="mlp_out", pos="prev")),
        cut(Edges(layer=1, kind="cross", dest="tail"), empty="no-update"),
        freeze(Heads(layer=1, kind="cross", part="z", pos="tail")),
        freeze(Stream(layer=1, stack="decoder", part="attn_out", pos="tail")),
    ]
    auto, hooks = both(EncoderDecoder(config, seed=0).double(), batch, {"held": edits})
    assert off(auto["held"].logits, hooks["held"].logits) < 1e-12


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("part", ["q", "k", "v", "z", "result", "resid_pre", "attn_out", "resid_mid", "mlp_out"])
def test_a_freeze_undoes_what_stands_before_it_at_its_own_site_and_is_not_called_idle(part, layer, norm):
    place = Heads if part in ("q", "k", "v", "z", "result") else Stream
    batch, model = changing_tails(lambda i: i >= 0), of_width_8(norm)
    before = scale(place(layer=layer, part=part, pos="two"), by=0.5)
    edits = [before, freeze(place(layer=layer, part=part, pos="one"))]
    auto, hooks = both(model, batch, {"both": edits, "first": [before]})
    assert off(hooks["both"].logits, hooks["first"].logits) > 1e-6
    assert off(auto["both"].logits, hooks["both"].logits) < 1e-12
    assert auto["both"].notes == hooks["both"].notes == ()


@pytest.mark.parametrize("name", ["ln1", "ln2"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_norm_that_was_taken_out_is_left_out_by_both_ways(norm, name):
    model = of_width_8(norm)
    setattr(model.blocks[1], name, torch.nn.Identity())
    edits = [cut(Edges(layer=0, dest="tail", source="two"))]
    auto, hooks = both(model, changing_tails(lambda i: i >= 0), {"cut": edits})
    assert torch.equal(auto["cut"].logits, hooks["cut"].logits)
    assert f"blocks.1.{name} is an Identity" in auto["cut"].engine


@pytest.mark.parametrize("read", [2, 5])
def test_an_empty_row_is_counted_in_all_examples_and_heads_by_both_ways(read):
    batch = changing_tails(lambda i: i >= 0)
    labels = torch.full_like(batch.labels, UNREAD)
    labels[:, read] = 3
    said = []
    for how in ("auto", "hooks"):
        with pytest.raises(EmptyRow) as caught:
            run_each(
                of_width_8("pre"), replace(batch, labels=labels), {"x": [cut(Edges(layer=0, dest="tail"))]},
                positions="read", engine=how,
            )  # fmt: skip
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "48 rows of 12 examples" in said[0]


def test_what_is_no_number_is_told_as_that_and_not_as_a_fault_of_the_fast_path():
    with pytest.raises(ValueError, match=r"condition 'huge'.*not finite|condition 'huge'.*(NaN|inf)"):
        run_each(
            of_width_8("none").float(), changing_tails(lambda i: i >= 0),
            {"huge": [scale(Stream(layer=0, part="mlp_out", pos="tail"), by=1e39)]},
        )  # fmt: skip
