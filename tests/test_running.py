"""run() and record(): who is left out and counted, lists that contradict themselves, donors, names, numbers."""

from dataclasses import replace

import pytest
import torch
from small import ANSWER, BATCH, CORRUPT, EVERY_MODEL, OTHER, ROW, named, small, with_role

from workbench.batch import Batch
from workbench.engine import run_each
from workbench.interventions import (
    Edges,
    Heads,
    Stream,
    add,
    custom,
    cut,
    freeze,
    keep_only,
    mean,
    patch,
    path,
    resample,
    scale,
    shuffle,
    uniform,
    zero,
)
from workbench.running import InertIntervention, MissingExamples, absent, record, run

Z = Heads(layer=1, head=0, pos="last", part="z")
Z_ANSWER = Heads(layer=0, head=0, pos="answer", part="z")
DIGITS = Edges(layer=1, dest="last", source="digits")
DONORS = {"corrupt": CORRUPT}


def raises(error, says, interventions, batch=BATCH, **more):
    with pytest.raises(error, match=says):
        run(small(), batch, interventions, **more)


# Edges that the mask hides --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", "hooks"])
@pytest.mark.parametrize("n", [1, 12])
@pytest.mark.parametrize("dest", ["digits", "answer"])  # at the same places in all examples, and at others in each
def test_edges_that_the_mask_hides_anyway_are_counted_in_a_note(dest, n, engine):
    batch, edit = BATCH.select(slice(n)), cut(Edges(layer=0, dest=dest, source="letters"), empty="no-update")
    pairs = [
        (row, source)
        for example in range(n)
        for row in batch.roles[dest][example].nonzero().flatten().tolist()
        for source in batch.roles["letters"][example].nonzero().flatten().tolist()
    ]
    hidden = sum(source > row for row, source in pairs)
    said = f"{edit}: the mask hides {hidden} of the {len(pairs)} edges asked for, with or without it"
    assert hidden and said in run(small(), batch, [edit]).notes
    every = run_each(small(), batch, {"clean": [], "cut": [edit]}, chunk_size=5, engine=engine)
    assert said in every["cut"].notes and not every["clean"].notes


def test_of_edges_that_are_all_seen_nothing_is_noted():
    assert run(small(), BATCH, [cut(DIGITS)]).notes == ()


# Missing examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        cut(Edges(layer=1, dest="last", source="gone")),
        cut(Edges(layer=1, dest="gone", source="match")),
        zero(Heads(layer=0, pos="gone", part="v")),
        freeze(Stream(layer=0, pos="gone", part="resid_pre")),
        path(zero, Heads(layer=0, pos="gone", part="z"), Heads(layer=1, part="k")),
        path(zero, Heads(layer=0, part="z"), Heads(layer=1, pos="gone", part="k")),
    ],
    ids=str,
)
def test_examples_whose_role_is_empty_raise_or_are_left_out_and_counted(edit):
    model, batch = small(), with_role(BATCH, "gone", [0, 1, 2, 4, 5, 7, 8, 9, 10, 11])
    raises(MissingExamples, r"role 'gone' is empty in 2 of 12 examples \(3, 6\).*on_missing='skip'", [edit], batch)
    assert sorted(absent(model, batch, [edit])) == [3, 6]
    got = run(model, batch, [edit], on_missing="skip")
    assert sorted(got.skipped) == [3, 6]
    assert str(edit) in got.skipped[3]
    assert len(got.logits) == len(got.batch) == len(got.kept) == 10
    assert torch.equal(got.logits, run(model, batch.select(got.kept), [edit]).logits)


def test_each_intervention_of_a_list_leaves_out_its_own_examples():
    batch = with_role(with_role(BATCH, "a", list(range(11))), "b", list(range(1, 12)))
    both = [zero(Heads(layer=0, pos="a", part="z")), zero(Heads(layer=1, pos="b", part="k"))]
    got = run(small(), batch, both, on_missing="skip")
    assert sorted(got.skipped) == [0, 11]


def test_nothing_left_raises_though_skipping_was_asked_for():
    raises(MissingExamples, "no example is left", [cut(Edges(layer=1, dest="last", source="gone"))],
           with_role(BATCH, "gone", []), on_missing="skip")  # fmt: skip


# Lists ----------------------------------------------------------------------------------------------------------------

UNDONE = [
    (uniform(ROW), uniform(DIGITS)),
    (scale(ANSWER, by=2), cut(ANSWER)),
    (scale(ANSWER, by=2), uniform(ROW)),
    (shuffle(ROW, seed=0), uniform(ROW)),
    (cut(ANSWER), freeze(ROW)),
    (cut(ANSWER), patch(ANSWER, donor="corrupt", align="role")),
    (uniform(ROW), freeze(ROW)),
    (zero(ANSWER), freeze(ANSWER)),
    (patch(ANSWER, donor="corrupt", align="role"), zero(ANSWER)),
    (add(Z, donor="corrupt", align="role"), zero(Z)),
    (zero(Heads(layer=1, pos="last", part="z")), patch(Z, donor="corrupt", align="role")),
    (scale(Z, by=2), freeze(Z)),
    (scale(Z, by=2), scale(Z, by=0)),
    (path(zero, Z_ANSWER, Heads(layer=1, part="k")), freeze(Heads(layer=1, pos="answer", part="k"))),
]


@pytest.mark.parametrize("both", UNDONE, ids=str)
def test_a_list_whose_later_item_undoes_an_earlier_one_raises(both):
    raises(ValueError, "would undo", list(both), donors=named(DONORS, both))


@pytest.mark.parametrize("both", [pair for pair in UNDONE if str(pair[0])[:3] in ("cut", "uni")][1:], ids=str)
def test_where_stages_decide_the_order_in_the_list_does_not(both):
    """The weights after the softmax are put in place last, wherever the list names them."""
    raises(ValueError, "would undo", list(both)[::-1], donors=named(DONORS, both))


def test_keeping_only_other_sources_undoes_a_scale_of_a_source():
    raises(ValueError, "would undo", [scale(ANSWER, by=2), keep_only(OTHER)])


def test_zero_of_what_a_head_writes_undoes_a_change_of_its_z():
    raises(ValueError, "would undo", [scale(Z, by=2), zero(Z.model_copy(update={"part": "result"}))])


LEGAL = [
    (cut(ANSWER), cut(ANSWER)),
    (cut(ANSWER), uniform(ROW)),
    (uniform(ROW), cut(ANSWER)),
    (scale(ANSWER, by=2), cut(OTHER)),
    (scale(ANSWER, by=2), scale(DIGITS, by=2)),
    (shuffle(ROW, seed=0), cut(ANSWER)),
    (cut(ANSWER), zero(OTHER)),
    (cut(ANSWER), patch(OTHER, donor="corrupt", align="role")),
    (scale(Z, by=2), add(Z, donor="corrupt", align="role")),
    (cut(ANSWER.model_copy(update={"head": 0})), zero(ANSWER.model_copy(update={"head": 1}))),
    (cut(Edges(layer=0, dest="answer", source="match")), freeze(ROW)),
    (scale(ANSWER, by=2), keep_only(DIGITS)),
    (scale(OTHER, by=2), zero(ANSWER)),
    (uniform(ROW), zero(ANSWER)),
    (keep_only(DIGITS), zero(ANSWER)),
]


@pytest.mark.parametrize("both", LEGAL, ids=str)
def test_a_list_in_which_both_items_can_be_seen_is_not_refused(both):
    model, alone = small(), []
    together = run(model, BATCH, list(both), donors=named(DONORS, both)).logits[:, -1]
    for one in both if both[0] != both[1] else ():
        alone.append(run(model, BATCH, [one], donors=named(DONORS, [one])).logits[:, -1])
        assert not torch.allclose(together, alone[-1])


def test_a_path_is_not_mixed_with_changes_upstream_of_its_receiver():
    one = path(zero, Z_ANSWER, Heads(layer=1, part="q"))
    raises(ValueError, "Run them apart", [one, zero(Stream(layer=0, pos="match", part="mlp_out"))])
    raises(ValueError, "Run them apart", [custom(("resid_pre", 0), lambda value: value * 2), one])


@pytest.mark.parametrize(
    "upstream", [custom("embed", lambda value: value * 2), scale(Stream(layer=1, part="resid_pre"), by=2)], ids=str
)
def test_a_path_is_not_mixed_with_what_its_receiver_reads(upstream):
    raises(ValueError, "Run them apart", [upstream, path(zero, Z_ANSWER, Heads(layer=1, part="q"))])


# Names and arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interventions", "says"),
    [
        ([cut(Edges(layer=1, dest="last", source="anser"))], "'anser'.*Did you mean answer"),
        ([cut(Edges(layer=1, dest="lst", source="answer"))], "'lst'.*Did you mean last"),
        ([cut(Edges(layer=1, dest="previous", source="answer"))], "it is a relation"),
        ([zero(Heads(layer=1, pos="previous", part="z"))], "it is a relation"),
        ([cut(Edges(layer=0, source="previuos"))], "Did you mean previous"),
        ([zero(Heads(layer=2, part="z"))], "no layer 2.*layers 0 to 1"),
        ([zero(Heads(layer=1, head=2, part="z"))], "no head 2.*heads 0 to 1"),
        ([path(zero, Z_ANSWER, Heads(layer=1, head=5, part="q"))], "no head 5"),
        ([path(zero, Z_ANSWER, Heads(layer=3, part="q"))], "no layer 3"),
        ([path(zero, Z_ANSWER, Heads(layer=1, pos="anser", part="q"))], "Did you mean answer"),
        ([custom(("attn_scores", 0), torch.clone)], "Did you mean scores"),
        ([custom("z", torch.clone)], "say .*layer"),
        ([custom(("embed", 0), torch.clone)], "stands once"),
        ([patch(Z, donor="corupt", align="role")], "Did you mean corrupt"),
        ([mean(Z, donor="none")], "no donor 'none'"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_those_that_are(interventions, says):
    raises(KeyError, says, interventions, donors=DONORS)


@pytest.mark.parametrize(
    ("interventions", "more", "error", "says"),
    [
        (cut(ANSWER), {}, TypeError, "as a list"),
        (["cut"], {}, TypeError, "no intervention"),
        ([], {"positions": "last"}, ValueError, "'all', 'read'"),
        ([], {"on_missing": "drop"}, ValueError, "'raise', 'skip'"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(interventions, more, error, says):
    raises(error, says, interventions, **more)


def test_sites_come_as_a_list_and_only_recorded_ones_can_be_asked_for():
    with pytest.raises(TypeError, match="as a list"):
        record(small(), BATCH, "z")
    with pytest.raises(KeyError, match="was not recorded"):
        record(small(), BATCH, [("z", 0)])["z", 1]


def test_an_edit_that_is_not_finite_raises():
    raises((ValueError, InertIntervention), None, [custom(("z", 0), lambda value: value * float("nan"))])


def test_a_negative_token_is_the_one_named():
    raises(ValueError, "-1", [], Batch(BATCH.tokens - 8 * (BATCH.tokens == 7).long(), BATCH.labels))


# Numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", [cut(ANSWER), shuffle(ROW, seed=2), mean(Z, donor="corrupt"), freeze(ROW)], ids=str)
@EVERY_MODEL
def test_one_example_at_a_time_gives_what_all_together_give(norm, heads, edit):
    model = small(norm, heads, torch.float32)
    together = run(model, BATCH, [edit], donors=named(DONORS, [edit])).logits
    alone = run(model, BATCH, [edit], donors=named(DONORS, [edit]), chunk_size=1).logits
    assert torch.allclose(alone, together, rtol=0, atol=5e-6 * float(together.abs().max()))
    assert torch.equal(alone.argmax(-1), together.argmax(-1))


@EVERY_MODEL
def test_the_same_run_twice_is_equal_to_the_bit(norm, heads):
    model, edits = small(norm, heads, torch.float32), [shuffle(ROW, seed=1), resample(Z, donor="corrupt", seed=1)]
    assert torch.equal(*(run(model, BATCH, edits, donors=named(DONORS, edits)).logits for _ in range(2)))


def test_softmax_is_in_float32_in_a_bfloat16_model():
    """256 equal scores: each weight is 1/256 and their sum 1, which a softmax in bfloat16 misses."""
    model = small(dtype=torch.bfloat16)
    got = record(model, BATCH, ["scores", "pattern"])
    want = torch.softmax(got["scores", 1].float(), -1).bfloat16()
    assert got["pattern", 1].dtype == torch.bfloat16
    assert torch.equal(got["pattern", 1], want)


def test_an_edit_that_another_one_swallows_is_noted():
    swallowing = freeze(Stream(layer=1, part="attn_out"))
    notes = run(small(), BATCH, [cut(ANSWER), swallowing]).notes
    assert any(note.startswith(str(cut(ANSWER))) and "changes nothing here" in note for note in notes)
    assert not run(small(), BATCH, [cut(ANSWER), scale(Heads(layer=0, part="z"), by=2)]).notes


def test_an_edit_that_reaches_what_is_read_in_some_examples_only_says_in_how_many():
    labels = torch.full_like(BATCH.labels, -100)
    labels[:3, -1], labels[3:, 0] = BATCH.labels[:3, -1], 0
    notes = run(small(), replace(BATCH, labels=labels), [cut(ANSWER)]).notes
    assert any(f"cannot reach what is read in {len(BATCH) - 3} of {len(BATCH)} examples" in note for note in notes)
