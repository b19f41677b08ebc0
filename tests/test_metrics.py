"""Metrics: exact by hand, means over what each example reads, float32 or better."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import BATCH, small

from workbench import run
from workbench.batch import UNREAD, Batch
from workbench.metrics import AGAINST_CLEAN, METRICS, accuracy, log_prob, logit_margin, loss
from workbench.schema import UNBOUNDED

EVERY_METRIC = pytest.mark.parametrize("name", METRICS)


def batch_of(labels):
    labels = torch.tensor(labels)
    return Batch(torch.zeros_like(labels), labels)


def logits_of(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# One position, by hand

ONE = batch_of([[0]])
CASES = [
    ([2.0, 1.0, 0.0], 1.0, 1.0),
    ([1.0, 2.0, 0.0], 0.0, -1.0),
    ([0.0, 0.0, 3.0], 0.0, -3.0),
    ([1.0, 1.0, 0.0], 0.0, 0.0),
    ([5.0, 5.0, 5.0], 0.0, 0.0),
]


@pytest.mark.parametrize(("row", "right", "margin"), CASES)
def test_every_metric_is_its_formula_at_one_position(row, right, margin):
    logits = logits_of([row])
    own = row[0] - math.log(sum(math.exp(x) for x in row))
    assert accuracy(logits, ONE).tolist() == [right]
    assert logit_margin(logits, ONE).tolist() == [margin]
    assert log_prob(logits, ONE).item() == pytest.approx(own, abs=1e-12)
    assert loss(logits, ONE).item() == pytest.approx(-own, abs=1e-12)


@pytest.mark.parametrize("label", [0, 1])
def test_a_tie_is_wrong_whichever_of_the_tied_is_the_label(label):
    assert accuracy(logits_of([[4.0, 4.0, 0.0]]), batch_of([[label]])).tolist() == [0.0]


def test_a_tie_among_the_others_takes_nothing_from_the_label():
    assert accuracy(logits_of([[4.0, 1.0, 1.0]]), ONE).tolist() == [1.0]


def test_a_probability_of_one_half_costs_ln_2():
    assert loss(logits_of([[7.0, 7.0]]), ONE).item() == pytest.approx(math.log(2), abs=1e-15)


# Several positions, not equally many in each example


def by_loop(name, logits, batch):
    """Each example's own reads, one after the other, in plain arithmetic."""
    out = []
    for row, labels in zip(logits.double().tolist(), batch.labels.tolist(), strict=True):
        found = []
        for scores, label in zip(row, labels, strict=True):
            if label == UNREAD:
                continue
            others = [x for token, x in enumerate(scores) if token != label]
            own = scores[label] - math.log(sum(math.exp(x) for x in scores))
            margin = scores[label] - max(others)
            place = 1 + sum(one > scores[label] for one in others) + sum(one == scores[label] for one in others) / 2
            right = float(margin > 0)
            values = {"accuracy": right, "log_prob": own, "loss": -own, "logit_margin": margin, "rank": place}
            found.append(right if name == "exact_match" else values[name])
        out.append(float(all(found)) if name == "exact_match" else sum(found) / len(found))
    return out


@st.composite
def read_batches(draw):
    n, pos, vocab = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(2, 4))
    label = st.one_of(st.just(UNREAD), st.integers(0, vocab - 1))
    labels = [draw(st.lists(label, min_size=pos, max_size=pos)) for _ in range(n)]
    for row in labels:
        if all(one == UNREAD for one in row):
            row[draw(st.integers(0, pos - 1))] = draw(st.integers(0, vocab - 1))
    # Few distinct values, so that ties are common.
    scores = draw(st.lists(st.integers(-2, 2), min_size=n * pos * vocab, max_size=n * pos * vocab))
    return torch.tensor(scores, dtype=torch.float64).reshape(n, pos, vocab), batch_of(labels)


@EVERY_METRIC
@settings(max_examples=60)
@given(read_batches())
def test_a_metric_is_the_mean_over_each_examples_own_reads(name, drawn):
    logits, batch = drawn
    assert METRICS[name](logits, batch).tolist() == pytest.approx(by_loop(name, logits, batch), abs=1e-12)


@EVERY_METRIC
@settings(max_examples=30)
@given(read_batches())
def test_logits_at_what_is_read_give_what_all_logits_give(name, drawn):
    logits, batch = drawn
    index = batch.read_positions()
    read = logits[torch.arange(len(batch))[:, None], index]
    assert torch.equal(METRICS[name](read, batch), METRICS[name](logits, batch))


@EVERY_METRIC
def test_a_run_of_what_is_read_gives_the_metric_of_a_whole_run(name):
    model = small()
    whole, read = (METRICS[name](run(model, BATCH, positions=positions).logits, BATCH) for positions in ("all", "read"))
    assert whole.shape == (len(BATCH),)
    assert torch.allclose(whole, read, atol=1e-10)


@EVERY_METRIC
def test_logits_where_nothing_is_read_do_not_count(name):
    batch = batch_of([[UNREAD, 1, UNREAD], [0, 1, 2]])
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    moved = logits.clone()
    logits[0, 1, 1] = moved[0, 1, 1] = 50
    moved[0, [0, 2]] = 1e6
    assert torch.equal(METRICS[name](logits, batch), METRICS[name](moved, batch))
    moved[0, 1, 1] -= 100
    assert not torch.equal(METRICS[name](logits, batch), METRICS[name](moved, batch))


# Precision


@EVERY_METRIC
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name, dtype):
    logits = (3 * torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    batch = batch_of([[0, 1], [2, UNREAD], [3, 4]])
    value = METRICS[name](logits, batch)
    assert value.dtype == torch.float32
    assert torch.equal(value, METRICS[name](logits.float(), batch))


def test_a_loss_in_bfloat16_is_finer_than_bfloat16():
    logits = torch.zeros(1, 1, 3, dtype=torch.bfloat16)
    assert loss(logits, ONE).item() == pytest.approx(math.log(3), abs=1e-6)
    assert float(torch.log_softmax(logits, -1)[0, 0, 0]) != pytest.approx(-math.log(3), abs=1e-4)


@EVERY_METRIC
def test_float64_stays_float64(name):
    assert METRICS[name](logits_of([[1.0, 0.0]]), ONE).dtype == torch.float64


# Bounds


@EVERY_METRIC
@settings(max_examples=40)
@given(read_batches())
def test_a_metric_that_is_not_named_unbounded_lies_in_0_to_1(name, drawn):
    value = METRICS[name](*drawn)
    assert name in UNBOUNDED or bool(((value >= 0) & (value <= 1)).all())


def test_every_unbounded_metric_leaves_0_to_1_somewhere():
    logits = logits_of([[-9.0, 0.0, 5.0]])
    outside = {name for name in METRICS if not 0 <= METRICS[name](logits, ONE).item() <= 1}
    assert outside == set(UNBOUNDED) & set(METRICS)
    assert set(UNBOUNDED) <= {*METRICS, *AGAINST_CLEAN, "logit_diff", "normalised"}


# How they fail


@EVERY_METRIC
@pytest.mark.parametrize("shape", [(12, 8, 16), (12, 2, 16), (11, 9, 16), (1, 9, 16)])
def test_logits_of_another_batch_are_refused(name, shape):
    with pytest.raises(ValueError, match=r"belong to another batch: this one has \[12, 9\] positions, of which 1 are"):
        METRICS[name](torch.zeros(shape), BATCH)


@EVERY_METRIC
def test_a_batch_in_which_nothing_is_read_has_no_metric(name):
    with pytest.raises(ValueError, match="nothing is read"):
        METRICS[name](torch.zeros(2, 3, 4), batch_of([[UNREAD] * 3] * 2))


@EVERY_METRIC
def test_an_example_in_which_nothing_is_read_is_named(name):
    with pytest.raises(ValueError, match=r"nothing is read in examples \[1\]"):
        METRICS[name](torch.zeros(3, 2, 4), batch_of([[0, UNREAD], [UNREAD, UNREAD], [UNREAD, 1]]))
