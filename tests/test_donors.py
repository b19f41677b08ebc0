"""Donors: of the right size and role, drawn by a seed, and left out with the examples that they stand in for."""

import pytest
import torch
from small import ANSWER, BATCH, CORRUPT, TASK, small, with_role

from workbench.batch import UNREAD, Batch
from workbench.donors import derangement
from workbench.interventions import Edges, Heads, Stream, add, cut, mean, patch, resample
from workbench.running import run

Z = Heads(layer=1, head=0, pos="last", part="z")
Z_ANSWER = Heads(layer=0, head=0, pos="answer", part="z")


def refused(says: str, one, donor: Batch) -> None:
    with pytest.raises(ValueError, match=says):
        run(small(), BATCH, [one], donors={"d": donor})


@pytest.mark.parametrize("op", ["patch", "resample"])
def test_donors_of_left_out_examples_are_left_out_with_them(op):
    model, batch = small(), with_role(BATCH, "gone", [0, 1, 2, 4, 5, 7, 8, 9, 10, 11])
    one = {"patch": patch(Z, donor="d", align="role"), "resample": resample(Z, donor="d", seed=0)}[op]
    edits = [cut(Edges(layer=0, dest="last", source="gone")), one]
    got = run(model, batch, edits, donors={"d": CORRUPT}, on_missing="skip")
    want = run(model, batch.select(got.kept), edits, donors={"d": CORRUPT.select(got.kept)})
    assert torch.equal(got.logits, want.logits)


def test_the_mean_is_over_the_whole_reference_whoever_is_left_out():
    model, batch = small(), with_role(BATCH, "gone", [0, 1, 2, 4, 5, 7, 8, 9, 10, 11])
    edits = [cut(Edges(layer=0, dest="last", source="gone")), mean(Z, donor="d")]
    reference = TASK.sample(len(BATCH), seed=9)
    got = run(model, batch, edits, donors={"d": reference}, on_missing="skip")
    want = run(model, batch.select(got.kept), edits, donors={"d": reference})
    assert torch.allclose(got.logits, want.logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("one", [patch(Z_ANSWER, donor="d", align="role"), add(Z, donor="d", align="position"),
                                 resample(Z, donor="d", seed=0)], ids=str)  # fmt: skip
def test_a_donor_of_another_size_raises(one):
    refused("must have the same shape", one, CORRUPT.select(slice(0, 5)))


@pytest.mark.parametrize("one", [patch(Z_ANSWER, donor="d", align="role"), resample(Z_ANSWER, donor="d", seed=0),
                                 patch(ANSWER, donor="d", align="role")], ids=str)  # fmt: skip
def test_a_donor_whose_role_has_another_size_raises(one):
    donor = CORRUPT.with_roles(answer=CORRUPT.roles["digits"])
    refused("another number of positions in the donor, in 12 of 12 examples", one, donor)


def test_the_mean_takes_a_reference_of_any_size_and_refuses_an_empty_role():
    assert run(small(), BATCH, [mean(Z, donor="d")], donors={"d": TASK.sample(50, seed=5)}).logits.isfinite().all()
    empty = CORRUPT.with_roles(answer=torch.zeros_like(CORRUPT.valid))
    refused("the role is empty in all", mean(Z_ANSWER, donor="d"), empty)


@pytest.mark.parametrize("positions", ["all", "read"])
def test_a_donor_needs_no_labels(positions):
    donor = Batch(CORRUPT.tokens, torch.full_like(CORRUPT.labels, UNREAD), roles=CORRUPT.roles)
    run(small(), BATCH, [mean(Z_ANSWER, donor="d")], donors={"d": donor}, positions=positions)


@pytest.mark.parametrize("n", [2, 3, 7, 50])
def test_no_example_is_its_own_donor_and_a_seed_gives_the_same_donors(n):
    for seed in range(20):
        order = derangement(n, seed)
        assert order.sort().values.tolist() == list(range(n))
        assert not (order == torch.arange(n)).any()
        assert torch.equal(order, derangement(n, seed))
    with pytest.raises(ValueError, match="2 or more"):
        derangement(1, 0)


def test_resample_is_drawn_over_the_whole_batch_before_chunking():
    edit, donors = [resample(Z, donor="corrupt", seed=3)], {"corrupt": CORRUPT}
    outcomes = [run(small(), BATCH, edit, donors=donors, chunk_size=size).logits for size in (1, 5, 12)]
    assert torch.allclose(outcomes[0], outcomes[2], atol=1e-12)
    assert torch.allclose(outcomes[1], outcomes[2], atol=1e-12)


def test_a_donor_with_more_positions_than_the_batch_is_not_read_in_part():
    valid = torch.ones(3, 4, dtype=torch.bool)
    valid[0, -1] = False
    tokens = torch.randint(16, (3, 4), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(tokens, UNREAD)
    labels[:, 0] = 1
    batch, longer = Batch(tokens, labels, valid), Batch(tokens, labels)
    everywhere = patch(Stream(layer=0, part="resid_pre"), donor="d", align="position")
    with pytest.raises(ValueError, match="the donor has more positions than the batch in some examples"):
        run(small(), batch, [everywhere], donors={"d": longer})
    assert run(small(), batch, [everywhere], donors={"d": batch}).logits.isfinite().all()
