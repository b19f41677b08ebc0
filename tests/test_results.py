"""The results frame: its schema, its summary, its contrasts, its families of tests."""

import time

import numpy as np
import pandas as pd
import pytest

from workbench.paired import holm, paired_test
from workbench.results import KEYS, check, contrast, metrics, paired_tests, summary
from workbench.statistics import difference_interval, mean_interval

CATEGORIES = {
    "model": pd.CategoricalDtype(["two layers", "one layer"]),
    "condition": pd.CategoricalDtype(["clean", "cut-answer", "0.10"]),
    "skipped": pd.CategoricalDtype(["no answer"]),
}


def cell(model, seed, condition, accuracy, prev=np.nan, skipped=()):
    accuracy = np.array(accuracy, dtype=float)
    n = len(accuracy)
    reasons = ["no answer" if index in skipped else None for index in range(n)]
    left = np.isin(np.arange(n), list(skipped))
    columns = {
        "model": model, "model_seed": seed, "condition": condition, "example": np.arange(n), "skipped": reasons,
        "accuracy": np.where(left, np.nan, accuracy), "prev": np.where(left, np.nan, prev),
    }  # fmt: skip
    return pd.DataFrame(columns).astype(CATEGORIES)


def joined(*cells):
    return pd.concat(cells, ignore_index=True)


@pytest.fixture
def frame():
    """Two kinds of model, the larger with three seeds and a condition of its own; weights recorded in one condition."""
    rng = np.random.default_rng(0)
    cells = []
    for seed, share in enumerate((0.1, 0.15, 0.2)):
        cells.append(cell("two layers", seed, "clean", np.ones(40), rng.beta(9, 1, 40), skipped=[3]))
        cells.append(cell("two layers", seed, "cut-answer", rng.random(40) < share, skipped=[3]))
    cells += [cell("one layer", seed, "clean", rng.random(40) < 0.4) for seed in range(2)]
    return joined(*cells)


def only(table, **labels):
    for column, label in labels.items():
        table = table[table[column] == label]
    (row,) = table.to_dict("records")
    return row


# Schema


def test_metrics_are_the_columns_that_are_no_keys(frame):
    assert metrics(frame) == ("accuracy", "prev")
    assert set(KEYS) | set(metrics(frame)) == set(frame.columns)


def test_a_good_frame_passes(frame):
    assert check(frame) is None


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_column_is_named(frame, key):
    with pytest.raises(ValueError, match=f"needs the columns {key};"):
        check(frame.drop(columns=key))


def spoil(frame, column, rows, value):
    frame = frame.copy()
    frame.loc[rows, column] = value
    return frame


BROKEN = {
    "labels as text": (lambda f: f.astype({"condition": str}), "'condition' is .* make it a category"),
    "seed as float": (lambda f: f.astype({"model_seed": float}), "'model_seed' is float64; it must hold integers"),
    "no metric": (lambda f: f[list(KEYS)], "a row and a metric"),
    "no row": (lambda f: f.iloc[:0], "0 rows"),
    "metric as integer": (lambda f: f.assign(accuracy=1), "metric 'accuracy' is int64; make it float"),
    "nameless condition": (lambda f: spoil(f, "condition", [0], None), "'condition' has 1 missing values"),
    "a row twice": (lambda f: joined(f, f.iloc[[5]]), "1 rows are there twice, the first .*example 5"),
    "unpaired": (lambda f: f.drop(index=[7]), "not paired: 1 examples .*model two layers, model_seed 0, example 7"),
    "skipped in one condition": (
        lambda f: spoil(spoil(f, "skipped", [5], "no answer"), ["accuracy", "prev"], [5], np.nan),
        "1 examples are skipped in some conditions .*example 5",
    ),
    "value where skipped": (lambda f: spoil(f, "accuracy", [3], 1.0), "a value where .* was skipped, .*example 3"),
    "hole in a metric": (lambda f: spoil(f, "prev", [9], np.nan), "'prev' is NaN for some examples that ran, .*clean"),
    "infinite": (lambda f: spoil(f, "prev", [9], np.inf), "'prev' is infinite .*example 9"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_frame_is_refused_and_the_place_named(frame, fault):
    spoilt, why = BROKEN[fault]
    with pytest.raises(ValueError, match=why):
        summary(spoilt(frame))


# Summary


def test_summary_has_a_row_for_every_metric_measured_in_a_condition(frame):
    rows = summary(frame)[["model", "condition", "metric"]].values.tolist()
    assert rows == [
        ["two layers", "clean", "accuracy"],
        ["two layers", "clean", "prev"],
        ["two layers", "cut-answer", "accuracy"],
        ["one layer", "clean", "accuracy"],
    ]


def test_summary_is_the_interval_over_trained_models(frame):
    row = only(summary(frame, level=0.9), condition="cut-answer")
    rows = frame[(frame["condition"] == "cut-answer") & frame["skipped"].isna()]
    values = [cell["accuracy"].to_numpy() for _, cell in rows.groupby("model_seed")]
    expected = mean_interval(values, level=0.9)
    assert (row["estimate"], row["low"], row["high"]) == (expected.estimate, expected.low, expected.high)
    assert (row["interval"], row["level"]) == (expected.kind, 0.9)
    assert (row["seed_low"], row["seed_high"]) == (min(v.mean() for v in values), max(v.mean() for v in values))


def test_summary_counts_models_and_examples_planned_run_and_skipped(frame):
    row = only(summary(frame), model="two layers", condition="clean", metric="accuracy")
    counted = ("n_models", "n_examples", "planned", "run", "skipped")
    assert [row[name] for name in counted] == [3, 39, 120, 117, 3]


def test_perfect_accuracy_is_summed_up_with_an_exact_interval(frame):
    row = only(summary(frame), model="two layers", condition="clean", metric="accuracy")
    assert (row["estimate"], row["high"], row["interval"]) == (1.0, 1.0, "within a model (exact)")
    assert row["low"] == pytest.approx(0.025 ** (1 / 39))


def test_n_examples_is_missing_where_trained_models_differ():
    frame = joined(
        cell("two layers", 0, "clean", [1, 0, 1], skipped=[1]), cell("two layers", 1, "clean", [1, 0, 1])
    )  # fmt: skip
    row = only(summary(frame))
    assert pd.isna(row["n_examples"])
    assert (row["n_models"], row["planned"], row["run"], row["skipped"]) == (2, 6, 5, 1)


def test_a_trained_model_that_ran_nothing_is_counted_as_skipped_not_as_a_model():
    frame = joined(
        cell("two layers", 0, "clean", [1, 0]), cell("two layers", 1, "clean", [1, 0], skipped=[0, 1])
    )  # fmt: skip
    row = only(summary(frame))
    assert (row["n_models"], row["n_examples"], row["planned"], row["skipped"]) == (1, 2, 4, 2)


def test_a_kind_of_model_that_ran_nothing_still_has_rows():
    table = summary(cell("two layers", 0, "clean", [1, 0], skipped=[0, 1]))
    assert table["metric"].tolist() == ["accuracy", "prev"]
    assert table["interval"].eq("no interval (no example ran)").all()
    assert table[["estimate", "low", "high"]].isna().all(axis=None)
    assert table["skipped"].tolist() == [2, 2]


def test_a_frame_without_any_value_is_refused():
    frame = cell("two layers", 0, "clean", [np.nan, np.nan])
    with pytest.raises(ValueError, match="no metric of"):
        summary(frame)


def test_a_metric_outside_zero_and_one_is_not_clipped():
    frame = joined(*(cell("two layers", seed, "clean", [0.5 + seed, 1.5]) for seed in range(2)))
    assert only(summary(frame))["low"] < 0


def test_the_order_of_rows_changes_nothing(frame):
    shuffled = frame.sample(frac=1, random_state=1)
    pd.testing.assert_frame_equal(summary(frame), summary(shuffled), check_exact=True)
    ask = ("two layers", "clean", "cut-answer")
    pd.testing.assert_frame_equal(contrast(frame, *ask[1:]), contrast(shuffled, *ask[1:]), check_exact=True)


def test_rows_follow_the_order_of_the_categories_not_of_the_alphabet():
    frame = joined(*(cell("two layers", 0, condition, [1, 0]) for condition in ("0.10", "cut-answer", "clean")))
    assert summary(frame)["condition"].tolist() == ["clean", "cut-answer", "0.10"]


def test_the_frame_is_left_as_it_was(frame):
    before = frame.copy(deep=True)
    summary(frame), contrast(frame, "clean", "cut-answer")
    pd.testing.assert_frame_equal(frame, before)


# Contrasts


def test_contrast_is_the_paired_interval_over_the_models_that_have_both(frame):
    (row,) = contrast(frame, "clean", "cut-answer").to_dict("records")
    kept = frame[(frame["model"] == "two layers") & frame["skipped"].isna()]
    pairs = [
        tuple(rows.loc[rows["condition"] == label, "accuracy"].to_numpy() for label in ("clean", "cut-answer"))
        for _, rows in kept.groupby("model_seed")
    ]
    expected = difference_interval(pairs)
    assert (row["estimate"], row["low"], row["high"]) == (expected.estimate, expected.low, expected.high)
    assert (row["model"], row["n_models"], row["n_examples"], row["skipped"]) == ("two layers", 3, 39, 3)


def test_contrast_changes_its_sign_with_the_order_of_conditions(frame):
    one, other = (contrast(frame, *pair).iloc[0] for pair in (("clean", "cut-answer"), ("cut-answer", "clean")))
    assert (one["estimate"], one["low"], one["high"]) == (-other["estimate"], -other["high"], -other["low"])
    assert one["seed_low"] == -other["seed_high"]


def test_contrast_pairs_by_example_not_by_row():
    frame = joined(cell("two layers", 0, "clean", [1, 0, 0, 0]), cell("two layers", 0, "cut-answer", [0, 0, 0, 1]))
    backwards = joined(frame.iloc[:4], frame.iloc[:3:-1])
    assert (
        contrast(frame, "clean", "cut-answer")["high"].item()
        == contrast(backwards, "clean", "cut-answer")["high"].item()
    )


def test_contrast_with_nothing_is_the_summary_of_one_condition(frame):
    (row,) = contrast(frame, "clean", None, model="one layer").to_dict("records")
    expected = only(summary(frame), model="one layer")
    assert {name: row[name] for name in expected if name in row} == {k: v for k, v in expected.items() if k in row}
    assert (row["a"], row["b"]) == ("clean", None)


def test_contrast_where_nothing_ran_has_no_interval():
    cells = [cell("two layers", 0, condition, [1, 0], skipped=[0, 1]) for condition in ("clean", "cut-answer")]
    (row,) = contrast(joined(*cells), "clean", "cut-answer").to_dict("records")
    assert (row["interval"], row["n_models"], row["skipped"]) == ("no interval (no example ran)", 0, 2)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (dict(a="cut-answr", b="clean"), "'cut-answr' is not .* There are: clean, cut-answer. Did you mean"),
        (dict(a="clean", b="0.10"), "condition '0.10' is not in the results"),
        (dict(a="clean", b="cut-answer", metric="acuracy"), "metric 'acuracy' .* Did you mean accuracy"),
        (dict(a="clean", b="cut-answer", model="one layer"), "'one layer' has no 'accuracy' .*two layers"),
        (dict(a="clean", b="cut-answer", metric="prev"), r"measured in the models \[\]"),
        (dict(a="clean", b=None), r"models \['two layers', 'one layer'\]; name one"),
        (dict(a="clean", b="clean"), "with itself"),
    ],
)  # fmt: skip
def test_a_contrast_that_is_not_there_is_answered_with_what_is(frame, ask, why):
    with pytest.raises(ValueError, match=why):
        contrast(frame, **ask)


# Families of tests


def test_paired_tests_are_corrected_over_the_whole_family(frame):
    extra = [
        cell("two layers", seed, "0.10", np.r_[np.zeros(seed + 5), np.ones(35 - seed)], skipped=[3])
        for seed in range(3)
    ]
    table = paired_tests(joined(frame, *extra), [("clean", "cut-answer"), ("clean", "0.10")], "accuracy")
    assert table[["model_seed", "b"]].values.tolist() == [[s, b] for b in ("cut-answer", "0.10") for s in range(3)]
    assert table["p_holm"].tolist() == holm(table["p"]).tolist()
    assert table["family"].eq(6).all()
    assert table["test"].eq("McNemar, exact").all()


def test_a_paired_test_is_the_test_of_that_trained_model(frame):
    row = only(paired_tests(frame, [("clean", "cut-answer")], "accuracy"), model_seed=1)
    rows = frame[(frame["model_seed"] == 1) & (frame["model"] == "two layers") & frame["skipped"].isna()]
    a, b = (rows.loc[rows["condition"] == label, "accuracy"].to_numpy() for label in ("clean", "cut-answer"))
    expected = paired_test(a, b)
    assert (row["difference"], row["p"], row["n_examples"]) == (expected.difference, expected.p, 39)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "at least one"),
        ([("clean", "clean")], "two conditions"),
        ([("clean", "cut-answer"), ("cut-answer", "clean")], "each once"),
        ([("clean", "cut-answr")], "Did you mean cut-answer"),
    ],
)
def test_a_family_that_would_be_miscounted_is_refused(frame, pairs, why):
    with pytest.raises(ValueError, match=why):
        paired_tests(frame, pairs, "accuracy")


def test_a_pair_that_no_trained_model_has_is_refused(frame):
    with pytest.raises(ValueError, match="no trained model has 'prev' in both"):
        paired_tests(frame, [("clean", "cut-answer")], "prev")


def test_a_million_rows_are_summed_up_in_seconds():
    n, seeds = 100_000, 10
    codes = np.repeat(np.arange(seeds), n)
    frame = pd.DataFrame(
        {
            "model": pd.Categorical.from_codes(np.zeros(n * seeds, int), ["two layers"]),
            "model_seed": codes,
            "condition": pd.Categorical.from_codes(np.zeros(n * seeds, int), ["clean"]),
            "example": np.tile(np.arange(n), seeds),
            "skipped": pd.Categorical([None] * (n * seeds)),
            "accuracy": (np.arange(n * seeds) % (codes + 2) == 0).astype(float),
        }
    )
    start = time.perf_counter()
    row = only(summary(frame))
    assert time.perf_counter() - start < 15
    assert (row["run"], row["seed_high"], row["seed_low"]) == (n * seeds, 0.5, pytest.approx(1 / 11, abs=1e-4))
