"""Rank, exact match, and distances from the run without interventions: exact values, and how they fail."""

import math

import pandas as pd
import pytest
import torch
from small import ANSWER, BATCH, TASK, small

from workbench import Batch, Study, cut, run, run_study
from workbench.metrics import accuracy, exact_match, kl_to_clean, logit_diff, rank, tv_to_clean

TOKENS = torch.tensor([[0, 1, 2]])
ONE = Batch(TOKENS, torch.tensor([[-100, 1, 2]]))


def logits_of(*rows):
    return torch.tensor([rows], dtype=torch.float64)


def test_rank_counts_from_1_and_ties_count_half():
    logits = logits_of([0, 0, 0], [5.0, 1.0, 2.0], [3.0, 3.0, 3.0])
    assert rank(logits, ONE).item() == (3 + 2) / 2


def test_an_exact_match_wants_every_position_right():
    half = logits_of([0, 0, 0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0])
    assert accuracy(half, ONE).item() == 0.5
    assert exact_match(half, ONE).item() == 0
    assert exact_match(logits_of([0, 0, 0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]), ONE).item() == 1


def test_distances_are_those_of_their_formulas():
    clean = logits_of([0, 0, 0], [math.log(2), 0.0, 0.0], [0.0, 0.0, 0.0])
    edited = logits_of([9, 0, 0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    p, q = [1 / 2, 1 / 4, 1 / 4], [1 / 3] * 3
    kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    tv = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    assert kl_to_clean(edited, ONE, clean).item() == pytest.approx(kl / 2, abs=1e-12)
    assert tv_to_clean(edited, ONE, clean).item() == pytest.approx(tv / 2, abs=1e-12)


def test_what_changed_nothing_is_at_distance_0():
    model = small()
    clean = run(model, BATCH).logits
    assert (kl_to_clean(clean, BATCH, clean) == 0).all()
    assert (tv_to_clean(clean, BATCH, clean) == 0).all()


def test_a_study_measures_distances_against_its_own_clean_run():
    from pathlib import Path

    from workbench.checkpoints import Trained

    study = Study(conditions={"cut": [cut(ANSWER)]}, n=12, data_seed=0, metrics=("kl_to_clean", "tv_to_clean", "rank"))
    frame, _ = run_study(study, TASK, {"small": [Trained(small(), 0, Path(), [], {})]}, progress=False)
    batch = TASK.sample(12, 0)
    edited, clean = run(small(), batch, [cut(ANSWER)], positions="read"), run(small(), batch, positions="read")
    want = tv_to_clean(edited.logits, batch, clean.logits)
    assert torch.allclose(torch.tensor(frame["tv_to_clean"].to_numpy()), want.float())
    assert (frame["kl_to_clean"] > 0).all() and isinstance(frame, pd.DataFrame)


def test_logits_of_another_batch_are_refused():
    with pytest.raises(ValueError, match="another batch"):
        kl_to_clean(logits_of([0, 0, 0], [0, 0, 0], [0, 0, 0]), ONE, torch.zeros(1, 5, 3))


OTHER = Batch(TOKENS, torch.tensor([[-100, 0, 2]]))


def test_the_logit_difference_is_the_labels_logit_less_the_other_labels():
    logits = logits_of([9, 9, 9], [5.0, 1.0, 2.0], [3.0, 4.0, 7.0])
    assert logit_diff(logits, ONE, OTHER).item() == ((1 - 5) + (7 - 7)) / 2
    assert logit_diff(logits[:, 1:], ONE, OTHER).item() == -2


def test_a_batch_and_its_counterfactual_differ_by_opposite_amounts():
    logits, corrupt = run(small(), BATCH).logits, TASK.corrupt(BATCH, seed=1)
    one, other = logit_diff(logits, BATCH, corrupt), logit_diff(logits, corrupt, BATCH)
    assert torch.equal(one, -other) and (one != 0).any()
    assert (logit_diff(logits, BATCH, BATCH) == 0).all()


@pytest.mark.parametrize("labels", [[[-100, -100, 2]], [[1, 0, 2]], [[-100, 0]], [[-100, 0, 2]] * 2])
def test_a_batch_that_reads_elsewhere_is_refused(labels):
    other = Batch(torch.zeros_like(torch.tensor(labels)), torch.tensor(labels))
    with pytest.raises(ValueError, match="the other batch reads other positions"):
        logit_diff(logits_of([0, 0, 0], [0, 0, 0], [0, 0, 0]), ONE, other)
