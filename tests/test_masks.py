"""Masks, −∞ and renormalising: cut weights are exactly 0, rows sum to 1 or say so, and nobody looks at the future."""

import pytest
import torch
from small import ANSWER, BATCH, EVERY_MODEL, OTHER, ROW, TASK, small, with_role

from workbench.batch import UNREAD, Batch
from workbench.interventions import Edges, Heads, custom, cut, keep_only, scale, shuffle, uniform, zero
from workbench.running import EmptyRow, MissingExamples, record, run

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
N = TASK.length
FUTURE = ~torch.ones(N, N, dtype=torch.bool).tril()
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def pattern(model, interventions=(), layer: int = 1, batch: Batch = BATCH, **more) -> torch.Tensor:
    return record(model, batch, [("pattern", layer)], list(interventions), **more)["pattern", layer]


def at_answer(row: torch.Tensor, batch: Batch = BATCH) -> torch.Tensor:
    """rows [batch head source] → [batch head]."""
    return row[batch.roles["answer"][:, None].expand_as(row)].reshape(row.shape[:-1])


@EVERY_MODEL
@EVERY_DTYPE
def test_the_future_gets_weight_0_though_scores_are_near_minus_a_million(norm, heads, dtype):
    model = small(norm, heads, dtype)
    big = 3e4 if dtype == torch.float16 else 1e6
    for sign in (1, -1):
        got = pattern(
            model, [custom(("scores", 1), lambda s, sign=sign: torch.where(s.isinf(), s, s * 0 + sign * big - s))]
        )
        assert not got[..., FUTURE].any()
        assert torch.allclose(got.float().sum(-1), torch.ones(()), atol=1e-2)


@EVERY_MODEL
def test_future_weight_is_0_with_weights_scaled_a_thousandfold(norm, heads):
    model = small(norm, heads)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_Q *= 1e4
            block.attn.W_K *= 1e4
    scores = record(model, BATCH, ["scores"])["scores", 0]
    assert scores[scores.isfinite()].min() < -1e6
    assert not pattern(model, layer=0)[..., FUTURE].any()


@EVERY_MODEL
@EVERY_DTYPE
def test_a_cut_weight_is_0_and_the_rest_renormalises(norm, heads, dtype):
    model = small(norm, heads, dtype)
    clean, edited = (pattern(model, edits)[:, :, -1].double() for edits in ([], [cut(ANSWER)]))
    answer = BATCH.roles["answer"][:, None].expand_as(clean)
    want = (clean / (1 - at_answer(clean)[..., None])).masked_fill(answer, 0)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 2e-2)
    assert not edited[answer].any()
    assert torch.allclose(edited, want, rtol=0, atol=tolerance)
    assert torch.allclose(edited.sum(-1), torch.ones(()).double(), rtol=0, atol=tolerance)


@EVERY_MODEL
def test_a_cut_touches_no_other_row_and_no_other_head(norm, heads):
    model = small(norm, heads)
    clean, edited = (pattern(model, edits) for edits in ([], [cut(ANSWER.model_copy(update={"head": 0}))]))
    assert torch.equal(clean[:, :, :-1], edited[:, :, :-1])
    assert torch.equal(clean[:, 1:], edited[:, 1:])


def emptied(op: str, empty: str):
    """An edit of the last row that leaves nothing, as the second of a list: the letters are cut first."""
    first = [cut(Edges(layer=1, dest="last", source="letters"))] if op != "cut" else []
    source = None if op == "cut" else "letters"
    second = {"cut": cut, "keep_only": keep_only, "uniform": uniform}[op]
    return [*first, second(Edges(layer=1, dest="last", source=source), empty=empty)]


@pytest.mark.parametrize("op", ["cut", "keep_only", "uniform"])
@EVERY_MODEL
@EVERY_DTYPE
def test_an_emptied_row_raises_unless_told_what_becomes_of_it(op, norm, heads, dtype):
    model = small(norm, heads, dtype)
    with pytest.raises(EmptyRow, match=r"12 examples.*empty='no-update'.*empty='self'"):
        run(model, BATCH, emptied(op, "raise"))
    got = record(model, BATCH, ["pattern", "z", "attn_out"], emptied(op, "no-update"))
    assert not got["pattern", 1][:, :, -1].any()
    assert not got["z", 1][:, -1].any()
    assert not got["attn_out", 1][:, -1].any()  # the output bias too: every head is empty
    own = pattern(model, emptied(op, "self"))[:, :, -1]
    assert (own[..., -1] == 1).all()
    assert not own[..., :-1].any()
    for empty in ("no-update", "self"):
        assert torch.isfinite(run(model, BATCH, emptied(op, empty)).logits).all()


@EVERY_DTYPE
def test_the_output_bias_stays_while_another_head_has_sources(dtype):
    model = small("none", 2, dtype)
    one = Edges(layer=1, head=0, dest="last")
    got = record(model, BATCH, ["z", "attn_out"], [cut(one, empty="no-update")])
    attn = model.blocks[1].attn
    assert not got["z", 1][:, -1, 0].any()
    want = got["z", 1][:, -1, 1] @ attn.W_O[1] + attn.b_O
    assert torch.allclose(got["attn_out", 1][:, -1], want, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-2)
    both = [cut(one, empty="no-update"), cut(Edges(layer=1, head=1, dest="last"), empty="no-update")]
    assert not record(model, BATCH, ["attn_out"], both)["attn_out", 1][:, -1].any()


@EVERY_MODEL
def test_a_cut_through_the_pattern_equals_the_cut_where_mass_remains(norm, heads):
    answer = BATCH.edges("last", "answer")[:, None]

    def by_hand(weights):
        left = weights.masked_fill(answer, 0)
        return left / left.sum(-1, keepdim=True)

    model = small(norm, heads)
    want = run(model, BATCH, [cut(ANSWER)]).logits
    assert torch.allclose(run(model, BATCH, [custom(("pattern", 1), by_hand)]).logits, want, rtol=0, atol=1e-10)
    for one in (keep_only(ANSWER),):  # the source has all the weight: 0 / 0
        with pytest.raises((ValueError, RuntimeError)):
            run(model, BATCH, [one, custom(("pattern", 1), by_hand)])


@EVERY_MODEL
def test_zero_leaves_a_row_that_sums_to_less_than_1(norm, heads):
    model = small(norm, heads)
    clean, edited = (pattern(model, edits)[:, :, -1] for edits in ([], [zero(ANSWER)]))
    assert torch.allclose(edited.sum(-1), 1 - at_answer(clean), rtol=0, atol=1e-12)
    assert not torch.allclose(run(model, BATCH, [zero(ANSWER)]).logits, run(model, BATCH, [cut(ANSWER)]).logits)


@EVERY_MODEL
@pytest.mark.parametrize(
    "edit", [cut(ANSWER), uniform(ROW), keep_only(OTHER), shuffle(ROW, seed=1), scale(ANSWER, by=3.0)], ids=str
)
def test_folding_the_value_bias_into_the_output_bias_changes_nothing(norm, heads, edit):
    model, folded = small(norm, heads), small(norm, heads)
    with torch.no_grad():
        for block in folded.blocks:
            block.attn.b_O += torch.einsum("hd,hdm->m", block.attn.b_V, block.attn.W_O)
            block.attn.b_V.zero_()
    assert torch.allclose(run(model, BATCH, [edit]).logits, run(folded, BATCH, [edit]).logits, rtol=0, atol=1e-10)


def padded(left: bool) -> tuple[Batch, list[Batch]]:
    """Sequences of 3, 5 and 8 tokens in one batch, and each of them alone."""
    generator, alone, wide = torch.Generator().manual_seed(0), [], {"tokens": [], "valid": [], "first": [], "last": []}
    for n in (3, 5, 8):
        tokens, place = torch.randint(16, (n,), generator=generator), torch.arange(n)
        rows = {"tokens": tokens, "valid": place >= 0, "first": place == 0, "last": place == n - 1}
        for name, row in rows.items():
            pad = torch.zeros(8 - n, dtype=row.dtype)
            wide[name].append(torch.cat([pad, row] if left else [row, pad]))
        alone.append(made(**{name: row[None] for name, row in rows.items()}))
    return made(**{name: torch.stack(rows) for name, rows in wide.items()}), alone


def made(tokens, valid, first, last) -> Batch:
    return Batch(tokens, torch.where(last, tokens, UNREAD), valid, roles={"first": first, "last": last})


@EVERY_MODEL
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_changes_nothing_is_never_attended_to_and_never_counted(norm, heads, left):
    model, (batch, alone) = small(norm, heads), padded(left)
    edits = [[], [uniform(Edges(layer=0))], [cut(Edges(layer=1, dest="last", source="first"))],
             [zero(Heads(layer=0, pos="first", part="v"))]]  # fmt: skip
    for edit in edits:
        together = run(model, batch, edit).logits
        read = run(model, batch, edit, positions="read").logits
        for i, one in enumerate(alone):
            want = run(model, one, edit).logits[0]
            assert torch.allclose(together[i][batch.valid[i]], want, rtol=0, atol=1e-10)
            assert torch.allclose(read[i, 0], want[-1], rtol=0, atol=1e-10)
        padding = ~batch.valid[:, None, None].expand(-1, heads, 8, -1)
        assert not pattern(model, edit, batch=batch)[padding].any()


@EVERY_MODEL
def test_uniform_gives_each_visible_source_the_same_and_the_future_nothing(norm, heads):
    got = pattern(small(norm, heads), [uniform(Edges(layer=1))])
    want = torch.ones(N, N).double().tril() / torch.arange(1, N + 1)[:, None]
    assert torch.allclose(got, want.expand_as(got), rtol=0, atol=1e-15)
    assert not got[..., FUTURE].any()


@EVERY_MODEL
def test_scores_are_minus_infinity_at_masked_positions(norm, heads):
    scores = record(small(norm, heads), BATCH, ["scores"])["scores", 1]
    assert (scores[..., FUTURE] == -torch.inf).all()
    assert torch.isfinite(scores[..., ~FUTURE]).all()


@EVERY_MODEL
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_a_later_token_changes_nothing_before_it_and_its_gradient_is_0(norm, heads, positions):
    model, t = small(norm, heads, positions=positions), 4
    changed = BATCH.tokens.clone()
    changed[:, t + 1] = (changed[:, t + 1] + 1) % 16
    assert torch.equal(model(BATCH.tokens)[:, : t + 1], model(changed)[:, : t + 1])
    got = record(model, BATCH, ["embed"], gradients_of=lambda logits, batch: logits[:, t].logsumexp(-1))
    assert not got.gradients["embed", None][:, t + 1 :].any()
    assert got.gradients["embed", None][:, : t + 1].abs().sum(-1).all()


def test_different_edges_in_each_example_equal_a_loop_over_examples():
    """More than one source in some examples, none in one."""
    relation = torch.zeros(12, N, N, dtype=torch.bool)
    for i in range(1, 12):
        relation[i, -1, [i % 8, (3 * i) % 8]] = True
        relation[i, 5, i % 5] = True
    batch, edit = BATCH.with_relations(mine=relation), [cut(Edges(layer=1, source="mine"))]
    model = small()
    with pytest.raises(MissingExamples, match=r"relation 'mine' is empty in 1 of 12 examples \(0\)"):
        run(model, batch, edit)
    got = run(model, batch, edit, on_missing="skip")
    assert list(got.skipped) == [0]
    assert got.kept.tolist() == list(range(1, 12))
    for at, i in enumerate(range(1, 12)):
        assert torch.allclose(got.logits[at], run(model, batch.select([i]), edit).logits[0], rtol=0, atol=1e-12)


def test_a_source_that_the_mask_already_hides_raises_or_is_skipped_and_counted():
    batch = with_role(BATCH, "early", [2, 5])
    early = Edges(layer=1, dest="early", source="last")
    with pytest.raises(MissingExamples, match="the mask already hides every edge asked for in 2 of 12 examples"):
        run(small(), batch, [cut(early)])
    hidden = torch.zeros(12, N, N, dtype=torch.bool)
    hidden[:, -1, 0] = True
    hidden[3, -1, 0], hidden[3, 0, -1] = False, True
    got = run(small(), BATCH.with_relations(some=hidden), [cut(Edges(layer=0, source="some"))], on_missing="skip")
    assert list(got.skipped) == [3]
    assert "the mask already hides" in got.skipped[3]
