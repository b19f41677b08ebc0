"""Operations on attention rows: exact values, what each keeps, and that no row ever becomes NaN."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench import rows
from workbench.rows import HIDDEN

NUMBERS = st.floats(-30, 30, width=32)


@st.composite
def scored(draw, least=0):
    """A row of scores in float64, of which at least `least` sources are visible."""
    values = draw(st.lists(NUMBERS, min_size=max(2, least), max_size=7))
    hidden = draw(st.sets(st.integers(0, len(values) - 1), max_size=len(values) - least))
    return torch.tensor([HIDDEN if index in hidden else value for index, value in enumerate(values)]).double()


@st.composite
def selected(draw, least=0):
    """A row and a choice of its sources, hidden ones among them."""
    row = draw(scored(least))
    chosen = draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row)))
    return row, torch.tensor(chosen)


def by_hand(row):
    """The softmax of one row in plain Python."""
    values = row.tolist()
    if all(value == HIDDEN for value in values):
        return [0.0] * len(values)
    most = max(values)
    powers = [math.exp(value - most) for value in values]
    return [power / math.fsum(powers) for power in powers]


def every(row):
    """All rows are acted on: the mask of a single row."""
    return torch.tensor(True)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


# Softmax


@given(scored())
def test_weights_are_the_softmax_over_what_is_visible(row):
    weights = rows.softmax(row)
    assert weights.tolist() == pytest.approx(by_hand(row), abs=1e-14)
    assert (weights[row == HIDDEN] == 0).all()
    assert float(weights.sum()) == pytest.approx(float(rows.visible(row).any()), abs=1e-14)


def test_weights_of_worked_rows():
    assert [round(w, 2) for w in rows.softmax(numbers(3.2, 0.8, -0.3)).tolist()] == [0.89, 0.08, 0.03]
    assert [round(w, 2) for w in rows.softmax(numbers(2, 2, 0)).tolist()] == [0.47, 0.47, 0.06]
    assert rows.softmax(numbers(math.log(3), 0, HIDDEN)).tolist() == pytest.approx([0.75, 0.25, 0], abs=1e-15)


@given(scored(least=1), NUMBERS)
def test_a_constant_added_to_a_row_changes_no_weight(row, constant):
    assert torch.allclose(rows.softmax(row + constant), rows.softmax(row), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_empty_row_gives_zeros_and_spares_its_neighbours(dtype):
    scores = torch.tensor([[HIDDEN] * 3, [0.0, 0.0, HIDDEN]], dtype=dtype)
    assert rows.softmax(scores).tolist() == [[0, 0, 0], [0.5, 0.5, 0]]


@given(st.lists(scored(), min_size=1, max_size=5))
def test_where_nothing_is_differentiated_weights_are_the_same_bits_and_empty_rows_are_known(several):
    scores = torch.stack([torch.nn.functional.pad(row, (0, 7 - len(row)), value=HIDDEN) for row in several])
    with torch.no_grad():
        weights, empty = rows.softmax_and_empty(scores)
    careful, known = rows.softmax_and_empty(scores)
    assert torch.equal(weights, careful)
    assert known.tolist() == [bool((row == HIDDEN).all()) for row in several]
    assert (empty is None and not known.any()) or torch.equal(empty, known)


@pytest.mark.parametrize("hidden", [(0, 1, 2), (1, 2), (2,), ()])
def test_gradients_are_never_nan_and_zero_where_nothing_is_visible(hidden):
    scores = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([index in hidden for index in range(3)])
    weights = rows.softmax(scores.masked_fill(mask, HIDDEN))
    (weights * numbers(1, 2, 5)).sum().backward()
    assert torch.isfinite(scores.grad).all() and (scores.grad[mask] == 0).all()
    assert bool((scores.grad != 0).any()) == (len(hidden) < 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_to_the_scores_of_an_empty_row_is_zero_itself(dtype):
    scores = torch.tensor([[HIDDEN, HIDDEN], [0.5, HIDDEN], [0.5, 1.0]], dtype=dtype, requires_grad=True)
    rows.softmax(scores)[:, 0].sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad[:2] == 0).all() and (scores.grad[2] != 0).all()


def test_gradients_of_a_row_with_an_empty_neighbour_are_those_of_the_row_alone():
    alone = numbers(0.3, -1.2).requires_grad_(True)
    rows.softmax(alone)[0].backward()
    both = numbers(0.3, -1.2).requires_grad_(True)
    rows.softmax(torch.stack([both, torch.full_like(both, HIDDEN)])).sum(0)[0].backward()
    assert torch.equal(alone.grad, both.grad)
    assert torch.autograd.gradcheck(rows.softmax, torch.randn(2, 4, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_are_weighed_in_float32(dtype):
    scores = torch.tensor([5.03, 4.97, 1.0, HIDDEN], dtype=dtype)
    weights = rows.softmax(scores)
    assert weights.dtype == torch.float32
    assert torch.equal(weights, torch.softmax(scores.float(), -1))
    assert not torch.equal(weights, torch.softmax(scores, -1).float()), "half precision would be coarser"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_stays_where_it_is_exact_enough(dtype):
    assert rows.softmax(torch.zeros(3, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_hidden_source_has_weight_zero_beside_scores_near_minus_a_million(dtype):
    scores = torch.tensor([-1e6, -1e6, HIDDEN], dtype=dtype)
    assert rows.softmax(scores).tolist() == [0.5, 0.5, 0]
    assert rows.softmax(torch.tensor([-1e6, HIDDEN, HIDDEN], dtype=dtype)).tolist() == [1, 0, 0]


def test_differences_of_scores_near_minus_a_million_still_count():
    assert rows.softmax(torch.tensor([-1e6, -1e6 - 1, HIDDEN])).tolist() == pytest.approx(
        [1 / (1 + math.exp(-1)), 1 / (1 + math.e), 0], abs=1e-7
    )


# Cut and keep only


@given(selected(least=1))
def test_a_cut_renormalises_the_rest(case):
    row, chosen = case
    before, after = rows.softmax(row), rows.softmax(rows.cut(row, chosen))
    left = rows.visible(row) & ~chosen
    assert (after[chosen] == 0).all()
    if left.any():
        assert torch.allclose(after[left], before[left] / before[left].sum(), rtol=1e-9, atol=0)
        assert float(after.sum()) == pytest.approx(1, abs=1e-14)
    else:
        assert (after == 0).all()


def test_one_source_cut_is_divided_by_what_is_left():
    before = rows.softmax(numbers(1.0, 0.2, -0.7))
    after = rows.softmax(rows.cut(numbers(1.0, 0.2, -0.7), torch.tensor([True, False, False])))
    assert torch.allclose(after[1:], before[1:] / (1 - before[0]), atol=1e-15) and after[0] == 0


@given(selected())
def test_keeping_only_some_is_cutting_the_others(case):
    row, chosen = case
    assert torch.equal(rows.keep_only(row, chosen, every(row)), rows.cut(row, ~chosen))


# Uniform


@given(selected())
def test_uniform_is_equal_on_what_is_chosen_and_visible_and_zero_elsewhere(case):
    row, chosen = case
    weights, on = rows.softmax(rows.uniform(row, chosen, every(row))), chosen & rows.visible(row)
    n = int(on.sum())
    assert weights.tolist() == pytest.approx([1 / n if one else 0 for one in on], abs=1e-15)
    assert (weights[~on] == 0).all()


def test_uniform_under_a_causal_mask_counts_the_visible_sources():
    mask = torch.ones(4, 4).tril().bool()
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).masked_fill(~mask, HIDDEN)
    weights = rows.softmax(rows.uniform(scores, torch.ones(4, 4).bool(), torch.ones(4).bool()))
    assert torch.equal(weights, torch.ones(4, 4).tril() / torch.arange(1.0, 5.0)[:, None])


# Shuffle


@given(scored(), st.randoms(use_true_random=False))
def test_shuffle_moves_visible_weights_among_visible_sources(row, random):
    order = numbers(*[random.random() for _ in row])
    moved = rows.shuffle(row, every(row), order)
    assert torch.equal(rows.visible(moved), rows.visible(row))
    assert sorted(moved.tolist()) == sorted(row.tolist())


def test_shuffle_hands_visible_scores_out_in_the_order_drawn():
    row = numbers(1, HIDDEN, 2, 3)
    assert rows.shuffle(row, every(row), numbers(0.9, 0.0, 0.1, 0.5)).tolist() == [2, HIDDEN, 3, 1]
    assert rows.shuffle(row, every(row), numbers(0.1, 0.9, 0.2, 0.3)).tolist() == row.tolist()


def test_every_permutation_of_visible_sources_is_equally_likely():
    n = 6000
    order = torch.rand(n, 4, generator=torch.Generator().manual_seed(0)).double()
    moved = rows.shuffle(numbers(1, 2, HIDDEN, 3).expand(n, 4), torch.ones(n).bool(), order)
    counts = Counter(tuple(row) for row in moved.tolist())
    assert len(counts) == 6
    assert all(abs(count - n / 6) <= 4 * math.sqrt(n * 5 / 36) for count in counts.values())


# Scale and zero


@given(selected(least=1), st.floats(0.01, 100))
def test_scale_multiplies_weights_and_renormalises(case, by):
    row, chosen = case
    raw = rows.softmax(row) * torch.where(chosen, numbers(by), numbers(1))
    assert torch.allclose(rows.softmax(rows.scale(row, chosen, by)), raw / raw.sum(), rtol=1e-9, atol=1e-300)


def test_scale_of_worked_rows():
    halves = numbers(0, 0)
    assert rows.softmax(rows.scale(halves, torch.tensor([True, False]), 3)).tolist() == pytest.approx([0.75, 0.25])
    assert torch.equal(rows.scale(halves, torch.tensor([True, True]), 1), halves)
    assert rows.scale(numbers(HIDDEN, 0), torch.tensor([True, False]), 5)[0] == HIDDEN


@pytest.mark.parametrize("by", [0, -1])
def test_a_weight_cannot_be_scaled_by_nothing_or_less(by):
    with pytest.raises(ValueError, match=r"math domain error|positive"):
        rows.scale(numbers(0, 0), torch.tensor([True, False]), by)


@given(selected(least=1))
def test_zero_leaves_the_other_weights_and_the_row_sums_to_less(case):
    row, chosen = case
    before = rows.softmax(row)
    after = rows.zero(before, chosen)
    assert (after[chosen] == 0).all() and torch.equal(after[~chosen], before[~chosen])
    assert float(after.sum()) == pytest.approx(1 - float(before[chosen].sum()), abs=1e-14)


def test_a_row_that_attends_to_itself_has_weight_one_there_even_where_it_was_hidden():
    row, own = numbers(1, 2, HIDDEN), torch.tensor([False, False, True])
    assert rows.softmax(rows.attend_to_self(row, every(row), own)).tolist() == [0, 0, 1]


# Rows not acted on, and new tensors

SCORES = torch.tensor([[0.5, HIDDEN, -1.0], [2.0, 0.1, HIDDEN], [HIDDEN] * 3], dtype=torch.float64)
CHOSEN = torch.tensor([[True, True, False], [False, True, False], [True, True, True]])
ORDER = torch.tensor([[0.9, 0.1, 0.2], [0.8, 0.3, 0.1], [0.5, 0.4, 0.3]]).double()
BY_ROWS = {
    "keep_only": lambda scores, acting: rows.keep_only(scores, CHOSEN, acting),
    "uniform": lambda scores, acting: rows.uniform(scores, CHOSEN, acting),
    "shuffle": lambda scores, acting: rows.shuffle(scores, acting, ORDER),
    "attend_to_self": lambda scores, acting: rows.attend_to_self(scores, acting, torch.eye(3).bool()),
}
EVERYWHERE = {
    "softmax": rows.softmax,
    "cut": lambda scores: rows.cut(scores, CHOSEN),
    "scale": lambda scores: rows.scale(scores, CHOSEN, 2.0),
    "zero": lambda weights: rows.zero(weights, CHOSEN),
    **{name: lambda scores, one=one: one(scores, torch.ones(3).bool()) for name, one in BY_ROWS.items()},
}


@pytest.mark.parametrize("name", BY_ROWS)
@pytest.mark.parametrize("row", [0, 1])
def test_only_the_rows_asked_for_change(name, row):
    after = BY_ROWS[name](SCORES, torch.arange(3) == row)
    others = torch.arange(3) != row
    assert torch.equal(after[others], SCORES[others]) and not torch.equal(after[row], SCORES[row])
    assert torch.equal(BY_ROWS[name](SCORES, torch.zeros(3).bool()), SCORES)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_operation_returns_a_new_tensor(name):
    given_scores = SCORES.clone()
    out = EVERYWHERE[name](given_scores)
    assert out.dtype == given_scores.dtype and out.data_ptr() != given_scores.data_ptr()
    out.fill_(7.0)
    assert torch.equal(given_scores, SCORES)


@pytest.mark.parametrize("name", [name for name in EVERYWHERE if name not in ("softmax", "zero")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_operation_makes_a_nan_or_shows_a_hidden_source(name, dtype):
    scores = torch.where(SCORES == HIDDEN, HIDDEN, SCORES * 3e4).to(dtype)
    out = EVERYWHERE[name](scores)
    assert out.dtype == dtype and not rows.softmax(out).isnan().any()
    if name != "attend_to_self":
        assert not (rows.visible(out) & ~rows.visible(scores)).any()


@pytest.mark.parametrize("name", [name for name in EVERYWHERE if name not in ("softmax", "zero")])
def test_gradients_through_every_operation_and_its_empty_rows_are_finite(name):
    raw = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    weights = rows.softmax(EVERYWHERE[name](raw.masked_fill(SCORES == HIDDEN, HIDDEN)))
    (weights * torch.arange(9.0).reshape(3, 3)).sum().backward()
    assert torch.isfinite(raw.grad).all()
