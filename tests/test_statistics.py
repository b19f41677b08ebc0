"""Intervals, tests and families: against known values, slow references and simulations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workbench.paired import holm, paired_test
from workbench.simulation import coverage
from workbench.statistics import (
    bootstrap_interval,
    clopper_pearson,
    difference_interval,
    mean_interval,
)

NORMAL_SETTINGS = [(n, accuracy, between) for n in (3, 5, 10) for accuracy, between in ((0.36, 0.04), (0.9, 0.02))]


def right(n_right: int, n: int) -> np.ndarray:
    return (np.arange(n) < n_right).astype(float)


@st.composite
def counts(draw):
    n = draw(st.integers(1, 60))
    return draw(st.integers(0, n)), n


# Intervals of a mean


def test_an_interval_adds_the_squares_of_scipys_t_over_models_and_the_exact_one_within():
    models = [right(k, 100) for k in (31, 36, 42)]
    interval = mean_interval(models)
    over_models = stats.t.interval(0.95, 2, scale=stats.sem([0.31, 0.36, 0.42]))[1]
    own = [clopper_pearson(k, 100) for k in (31, 36, 42)]
    down = max(k / 100 - low for k, (low, _) in zip((31, 36, 42), own, strict=True))
    up = max(high - k / 100 for k, (_, high) in zip((31, 36, 42), own, strict=True))
    expected = (109 / 300, 109 / 300 - math.hypot(over_models, down), 109 / 300 + math.hypot(over_models, up))
    assert (interval.estimate, interval.low, interval.high) == pytest.approx(expected)
    assert interval.kind == "over models and examples"


def test_one_answer_more_or_less_does_not_collapse_an_interval():
    """All models share the examples: that they agree on them says nothing of other examples."""
    same = right(473, 1000)
    other = same.copy()
    other[0] = 1 - other[0]
    alike, apart = mean_interval([same, same, same]), mean_interval([same, same, other])
    assert apart.high - apart.low == pytest.approx(alike.high - alike.low, rel=0.02)


def test_interval_over_models_is_clipped_to_the_bounds():
    models = [right(k, 100) for k in (100, 80, 99)]
    assert mean_interval(models).high == 1.0
    assert mean_interval(models, bounds=None).high > 1.0


def test_more_examples_narrow_an_interval_only_down_to_students_t_over_models():
    least = np.ptp(stats.t.interval(0.95, 2, scale=stats.sem([0.31, 0.36, 0.42])))
    widths = [np.ptp([one.low, one.high]) for one in (
        mean_interval([right(k * n, 100 * n) for k in (31, 36, 42)]) for n in (1, 10, 10_000)
    )]  # fmt: skip
    assert widths[0] > widths[1] > widths[2] > least
    assert widths[2] == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("n_models", [1, 3])
def test_perfect_accuracy_has_an_exact_interval_that_is_not_empty(value, n_models):
    interval = mean_interval([np.full(4000, value)] * n_models)
    assert interval.kind == "within a model (exact)"
    assert interval.high - interval.low == pytest.approx(1 - 0.025 ** (1 / 4000))
    assert interval.estimate == value == (interval.high if value else interval.low)


def test_models_that_agree_do_not_add_examples():
    one = right(9, 10)
    assert mean_interval([one]) == mean_interval([one, one, one])


def test_of_models_that_agree_the_one_with_fewest_examples_sets_the_interval():
    assert mean_interval([np.ones(1000), np.ones(50)]) == mean_interval([np.ones(50)])


def test_means_that_differ_by_rounding_do_not_vary():
    models = [np.array([0.1, 0.2, 0.3]), np.array([0.3, 0.2, 0.1]), np.array([0.2, 0.1, 0.3])]
    assert mean_interval(models).kind == "within a model (Student's t)"


def test_one_model_of_other_values_has_a_t_interval_over_its_examples():
    values = np.random.default_rng(0).beta(2, 2, 50)
    interval = mean_interval([values])
    low, high = stats.t.interval(0.95, 49, loc=values.mean(), scale=stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx((low, high))


@pytest.mark.parametrize("value", [0.2, 0.5, 0.999])
def test_constant_weights_have_an_interval_as_wide_as_one_unseen_share(value):
    interval = mean_interval([np.full(200, value)] * 3)
    unseen = 1 - 0.025 ** (1 / 200)
    assert interval.low == pytest.approx(value * (1 - unseen))
    assert interval.high == pytest.approx(value + unseen * (1 - value))


def test_constant_weights_of_a_handful_of_examples_allow_the_whole_range():
    interval = mean_interval([np.full(5, 0.5)])
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_constant_values_without_bounds_have_no_interval():
    interval = mean_interval([np.full(5, 3.0)], bounds=None)
    assert interval.kind == "no interval"
    assert np.isnan([interval.low, interval.high]).all()
    assert interval.estimate == 3.0


def test_two_valued_metrics_with_other_bounds_scale_the_exact_interval():
    low, high = clopper_pearson(7, 10)
    interval = mean_interval([4 * right(7, 10) - 2], bounds=(-2, 2))
    assert (interval.low, interval.high) == pytest.approx((4 * low - 2, 4 * high - 2))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_an_interval_holds_its_estimate_stays_in_bounds_and_has_width(numbers):
    interval = mean_interval([right(k, 12) for k in numbers])
    assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
    assert interval.low < interval.high


@given(st.lists(st.integers(0, 12), min_size=2, max_size=6), st.randoms())
def test_the_order_of_models_does_not_matter(numbers, random):
    shuffled = random.sample(numbers, len(numbers))
    first, second = (mean_interval([right(k, 12) for k in order]) for order in (numbers, shuffled))
    assert (first.low, first.high) == pytest.approx((second.low, second.high))


@pytest.mark.parametrize(
    ("models", "bounds", "why"),
    [
        ([], (0, 1), "no models"),
        ([np.ones(3), np.array([])], (0, 1), "array 1 has shape"),
        ([np.ones((2, 2))], (0, 1), "1-D"),
        ([np.array([1.0, np.nan])], (0, 1), "1 NaN or infinite of 2"),
        ([np.array([np.inf])], None, "infinite"),
        ([np.array([0.5, 1.5])], (0, 1), "outside the bounds"),
        ([np.ones(3)], (1, 0), "first must be below"),
    ],
)
def test_what_has_no_interval_is_refused(models, bounds, why):
    with pytest.raises(ValueError, match=why):
        mean_interval(models, bounds=bounds)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_outside_zero_and_one_is_refused(level):
    with pytest.raises(ValueError, match="level"):
        mean_interval([np.ones(3)], level=level)


# Exact shares


@given(counts(), st.sampled_from([0.8, 0.95, 0.99]))
def test_clopper_pearson_agrees_with_scipy(count, level):
    reference = stats.binomtest(*count).proportion_ci(level, method="exact")
    assert clopper_pearson(*count, level) == pytest.approx((reference.low, reference.high), abs=1e-12)


@given(counts(), st.floats(0.01, 0.99))
def test_clopper_pearson_covers_at_least_its_level(count, share):
    n = count[1]
    ends = [clopper_pearson(k, n) for k in range(n + 1)]
    held = sum(stats.binom.pmf(k, n, share) for k, (low, high) in enumerate(ends) if low <= share <= high)
    assert held >= 0.95 - 1e-9


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(successes, n):
    with pytest.raises(ValueError, match="0 ≤ successes ≤ n"):
        clopper_pearson(successes, n)


# Intervals of a paired difference


def test_a_difference_adds_the_squares_of_students_t_and_of_the_widest_model():
    pairs = [(right(k, 100), right(k - d, 100)) for k, d in ((90, 50), (95, 58), (99, 54))]
    interval = difference_interval(pairs)
    over_models = stats.t.interval(0.95, 2, scale=stats.sem([0.5, 0.58, 0.54]))[1]
    within = [difference_interval([pair]) for pair in pairs]
    down = max(one.estimate - one.low for one in within)
    up = max(one.high - one.estimate for one in within)
    expected = (0.54, 0.54 - math.hypot(over_models, down), 0.54 + math.hypot(over_models, up))
    assert (interval.estimate, interval.low, interval.high) == pytest.approx(expected)


def test_pairing_matters():
    """Models far apart, the same change in each but for one example: the interval is as narrow as the change."""
    pairs = [(right(k, 10_000), right(k - d, 10_000)) for k, d in ((3000, 10), (6000, 11), (9000, 10))]
    interval = difference_interval(pairs)
    assert interval.high - interval.low < 0.005


def test_identical_conditions_have_an_interval_that_is_not_empty():
    interval = difference_interval([(np.ones(4000), np.ones(4000))] * 3)
    share = clopper_pearson(0, 4000, 0.975)[1]
    assert (interval.low, interval.estimate, interval.high) == pytest.approx((-share, 0, share))
    assert interval.kind == "within a model (exact)"


def test_opposite_conditions_end_at_the_bound():
    interval = difference_interval([(np.ones(50), np.zeros(50))])
    assert interval.high == 1.0 > interval.low


def test_equal_weights_in_both_conditions_have_an_interval_that_is_not_empty():
    weights = np.random.default_rng(0).beta(2, 2, 100)
    interval = difference_interval([(weights, weights)] * 3)
    assert interval.low < 0 < interval.high


def test_one_model_of_other_values_has_the_t_interval_of_its_differences():
    a, b = np.random.default_rng(0).normal(size=(2, 30))
    interval = difference_interval([(a, b)], bounds=None)
    low, high = stats.t.interval(0.95, 29, loc=(a - b).mean(), scale=stats.sem(a - b))
    assert (interval.low, interval.high) == pytest.approx((low, high))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_exact_difference_swaps_its_ends_when_the_conditions_are_swapped(pairs):
    a, b = np.array(pairs, dtype=float).T
    one, other = difference_interval([(a, b)]), difference_interval([(b, a)])
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert -1 <= one.low <= one.estimate <= one.high <= 1
    assert one.low < one.high


@pytest.mark.parametrize("shares", [(0.02, 0.01), (0.3, 0.1), (0.0, 0.005)])
def test_exact_difference_covers_at_least_its_level(shares):
    n, draws = 80, np.random.default_rng(1).multinomial(80, [*shares, 1 - sum(shares)], size=400)
    held = []
    for up, down, _ in draws:
        interval = difference_interval([(right(up, n), right(up + down, n) - right(up, n))])
        held.append(interval.low <= shares[0] - shares[1] <= interval.high)
    assert np.mean(held) >= 0.95


def test_unequal_pairs_are_refused():
    with pytest.raises(ValueError, match="model 1 pairs 3 values with 2"):
        difference_interval([(np.ones(2), np.ones(2)), (np.ones(3), np.ones(2))])


# The bootstrap, for other statistics


def test_bootstrap_is_the_same_for_the_same_seed_and_says_what_it_is():
    models = list(np.random.default_rng(0).normal(size=(4, 30)))
    first, again, other = (bootstrap_interval(models, np.median, seed, resamples=200) for seed in (1, 1, 2))
    assert first == again != other
    assert first.kind == "models crossed with examples (bootstrap, 200 resamples)"
    assert first.low < first.estimate < first.high


def test_bootstrap_draws_the_same_examples_for_every_model():
    """Values are an example's own number: whatever is drawn, the models' rows agree, so their difference is 0."""
    models = [np.arange(20.0)] * 3
    interval = bootstrap_interval(models, lambda values: np.ptp(values, axis=0).max(), 0, resamples=50)
    assert (interval.estimate, interval.kind) == (0.0, "no interval")


def test_bootstrap_of_models_that_do_not_share_examples_is_refused():
    with pytest.raises(ValueError, match="same examples"):
        bootstrap_interval([np.ones(3), np.ones(4)], np.median, 0)


# Coverage by simulation


@pytest.mark.parametrize(("n_models", "accuracy", "between"), NORMAL_SETTINGS)
@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9, 1.0])
def test_the_interval_keeps_its_level_whatever_the_models_share(n_models, accuracy, between, shared):
    setting = coverage(
        n_models=n_models, accuracy=accuracy, between=between, n_examples=500, repeats=600, seed=1, resamples=20,
        shared=shared,
    )  # fmt: skip
    assert 0.93 <= setting.student <= 1.0


@pytest.mark.parametrize("shared", [0.9, 0.998])
def test_models_that_hardly_differ_are_covered_too(shared):
    """Student's t over the models alone holds the truth in 21% of such studies at 0.2% of answers apart."""
    setting = coverage(
        n_models=3, accuracy=0.5, between=0.0, n_examples=1000, repeats=400, seed=5, resamples=20, shared=shared
    )
    assert setting.student >= 0.93


@pytest.mark.parametrize(("n_models", "most"), [(3, 0.9), (5, 0.94)])
def test_the_two_level_bootstrap_covers_too_little_with_few_models(n_models, most):
    setting = coverage(n_models=n_models, accuracy=0.36, between=0.04, n_examples=500, repeats=800, seed=2)
    assert 0.7 < setting.bootstrap < most
    assert setting.bootstrap_width < setting.student_width


def test_near_perfect_accuracy_is_covered_though_skewed():
    setting = coverage(n_models=3, accuracy=0.99, between=0.005, n_examples=500, repeats=1000, seed=3, resamples=20)
    assert 0.93 <= setting.student <= 1.0


def test_identical_models_are_covered():
    setting = coverage(n_models=3, accuracy=0.999, between=0.0, n_examples=200, repeats=500, seed=4, resamples=20)
    assert setting.student > 0.9


def test_coverage_is_the_same_for_the_same_seed():
    setting = dict(n_models=3, accuracy=0.9, between=0.02, n_examples=50, repeats=50)
    assert coverage(**setting, seed=1) == coverage(**setting, seed=1) != coverage(**setting, seed=2)


@pytest.mark.parametrize(("accuracy", "between"), [(1.0, 0.01), (0.5, 0.6), (0.9, -0.5)])
def test_an_impossible_spread_is_refused(accuracy, between):
    with pytest.raises(ValueError, match="no beta distribution"):
        coverage(n_models=3, accuracy=accuracy, between=between, n_examples=10, repeats=10, seed=0)


# Paired tests and families


def test_mcnemar_is_the_binomial_test_of_the_discordant_pairs():
    a, b = np.array([1] * 9 + [0] * 2 + [1] * 50), np.array([0] * 9 + [1] * 2 + [1] * 50)
    result = paired_test(a, b)
    assert result.p == pytest.approx(stats.binomtest(9, 11).pvalue)
    assert (result.test, result.difference) == ("McNemar, exact", pytest.approx(7 / 61))


def test_other_values_are_tested_by_signed_ranks():
    a, b = np.random.default_rng(0).normal(size=(2, 40))
    result = paired_test(a + 1, b)
    assert result.test == "Wilcoxon signed-rank"
    assert result.p == pytest.approx(stats.wilcoxon(a + 1 - b).pvalue)


@pytest.mark.parametrize("values", [np.ones(5), np.linspace(0, 1, 5)])
def test_where_nothing_differs_p_is_one(values):
    assert paired_test(values, values).p == 1.0


def test_tests_hold_their_size_when_nothing_is_true():
    rng = np.random.default_rng(0)
    p = [paired_test(*(rng.random((2, 60)) < 0.5)).p for _ in range(400)]
    assert np.mean(np.array(p) <= 0.05) <= 0.075


def test_a_test_of_unpaired_values_is_refused():
    with pytest.raises(ValueError, match="pairs 3 values with 2"):
        paired_test(np.ones(3), np.ones(2))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])


probabilities = st.lists(st.floats(0, 1), max_size=12)


@given(probabilities)
def test_holm_is_monotone_and_between_p_and_bonferroni(p):
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(np.array(p) * len(p), 1) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()


@given(probabilities, st.randoms())
def test_holm_goes_with_its_p_value_wherever_that_stands(p, random):
    order = random.sample(range(len(p)), len(p))
    assert holm(np.array(p)[order]).tolist() == holm(p)[order].tolist()


@pytest.mark.parametrize("p", [[0.1, float("nan")], [1.2], [-0.1], [[0.1]]])
def test_holm_refuses_what_is_no_p_value(p):
    with pytest.raises(ValueError, match="p-values in"):
        holm(p)
