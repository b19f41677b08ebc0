"""Effects between conditions: shares of the way from corrupt to clean, direct against total."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from handmade import lookup_by_hand
from small import TASK

from workbench import Edges, Heads, Study, contrast, cut, freeze, patch, run_study
from workbench import metrics as measures
from workbench.checkpoints import Trained
from workbench.conditions import corrupted, direct
from workbench.effects import UNITS, direct_against_total, normalised, normalised_examples
from workbench.statistics import mean_interval

WAY = {"clean": "clean", "corrupt": "corrupt", "metric": "log_prob"}


def frame_of(conditions, model="m", seed=0, skipped=(), kinds=("m", "other")):
    """One trained model: condition → log_prob of every example."""
    n = len(next(iter(conditions.values())))
    left = np.isin(np.arange(n), skipped)
    reasons = pd.array(["no answer" if one else None for one in left], dtype="str")
    cells = [
        pd.DataFrame({
            "model": model, "model_seed": seed, "condition": label, "example": np.arange(n), "skipped": reasons,
            "log_prob": np.where(left, np.nan, np.asarray(values, dtype=float)),
        })
        for label, values in conditions.items()
    ]  # fmt: skip
    return together(*cells, kinds=kinds)


def together(*frames, kinds=("m", "other")):
    labels = list(dict.fromkeys(label for one in frames for label in one["condition"]))
    dtypes = {"model": pd.CategoricalDtype(kinds), "condition": pd.CategoricalDtype(labels)}
    dtypes["skipped"] = pd.CategoricalDtype(["no answer"])
    return pd.concat([one.astype({"skipped": object}) for one in frames], ignore_index=True).astype(dtypes)


def random_frame(n=400, seed=0, **more):
    """Values whose gap and share vary together; R is near 0.6."""
    rng = np.random.default_rng(seed)
    gap, corrupt = rng.gamma(4, 1, n), rng.normal(size=n)
    return frame_of({"clean": corrupt + gap, "corrupt": corrupt, "cut": corrupt + gap * rng.beta(3, 2, n)}, **more)


def only(table, **labels):
    for column, label in labels.items():
        table = table[table[column] == label]
    (row,) = table.to_dict("records")
    return row


# Normalised -----------------------------------------------------------------------------------------------------------

FOUR = {"clean": [4.0, 3, 4, 1], "corrupt": [0.0, 0, 0, -1], "cut": [2.0, 2, 2, -0.5]}


def test_it_is_the_ratio_of_means_and_not_the_mean_of_ratios():
    frame = frame_of(FOUR)
    assert only(normalised(frame, ["cut"], **WAY))["estimate"] == 6.5 / 13
    each = normalised_examples(frame, ["cut"], **WAY)["normalised"]
    assert each.tolist() == [2 / 4, 2 / 3, 2 / 4, 0.5 / 2]
    assert each.mean() != 6.5 / 13


def test_clean_is_1_and_corrupt_is_0_in_every_example():
    frame = random_frame()
    table, each = (what(frame, ["clean", "corrupt"], **WAY) for what in (normalised, normalised_examples))
    assert table["estimate"].tolist() == [1, 0]
    assert set(each["normalised"][each["condition"] == "clean"]) == {1.0}
    assert set(each["normalised"][each["condition"] == "corrupt"]) == {0.0}


def test_it_is_not_clipped():
    beyond = {"up": [9.0, 7, 8, 4], "down": [-4.0, -3, -3, -4]}
    table = normalised(frame_of(FOUR | beyond), ["up", "down"], **WAY)
    assert table["estimate"].tolist() == [(28 + 1) / 13, (-14 + 1) / 13]
    assert table["high"].iloc[0] > (28 + 1) / 13 and table["low"].iloc[1] < (-14 + 1) / 13 < 0


def test_it_is_the_same_whichever_way_up_the_metric_is():
    frame = random_frame()
    turned = frame.assign(log_prob=5 - 3 * frame["log_prob"])
    one, other = (only(normalised(each, ["cut"], **WAY)) for each in (frame, turned))
    assert [one[key] for key in ("estimate", "low", "high")] == pytest.approx(
        [other[key] for key in ("estimate", "low", "high")], abs=1e-12
    )


def test_where_every_gap_is_1_the_interval_is_that_of_a_mean():
    shares = [np.random.default_rng(seed).normal(0.3, 0.2, 20) for seed in range(3)]
    ends = {"clean": np.ones(20), "corrupt": np.zeros(20)}
    frame = together(*(frame_of({**ends, "cut": values}, seed=seed) for seed, values in enumerate(shares)))
    row, want = only(normalised(frame, ["cut"], **WAY)), mean_interval(shares, bounds=None)
    assert [row["estimate"], row["low"], row["high"]] == pytest.approx([want.estimate, want.low, want.high], abs=1e-12)
    assert (row["interval"], row["n_models"], row["n_examples"], row["level"]) == (want.kind, 3, 20, 0.95)
    assert [row["seed_low"], row["seed_high"]] == pytest.approx(sorted(map(np.mean, shares))[::2], abs=1e-12)


def test_within_a_model_the_interval_is_as_wide_as_resampled_examples_make_it():
    frame = random_frame()
    wide = frame.pivot(index="example", columns="condition", values="log_prob")
    rng, found = np.random.default_rng(1), []
    for _ in range(4000):
        drawn = wide.iloc[rng.integers(len(wide), size=len(wide))].mean()
        found.append((drawn["cut"] - drawn["corrupt"]) / (drawn["clean"] - drawn["corrupt"]))
    row = only(normalised(frame, ["cut"], **WAY))
    assert (row["high"] - row["low"]) / 2 == pytest.approx(1.966 * np.std(found), rel=0.05)
    each = normalised_examples(frame, ["cut"], **WAY)["normalised"]
    assert (row["high"] - row["low"]) / 2 != pytest.approx(1.966 * each.std() / 20, rel=0.05)


def test_the_order_of_rows_changes_nothing():
    frame = together(*(random_frame(30, seed=seed).assign(model_seed=seed) for seed in range(3)))
    shuffled = frame.sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(normalised(frame, ["cut"], **WAY), normalised(shuffled, ["cut"], **WAY))
    pairs = {"cut": ("cut", "corrupt")}
    one, other = (direct_against_total(each, pairs, clean="clean", metric="log_prob") for each in (frame, shuffled))
    pd.testing.assert_frame_equal(one, other)


def test_an_example_that_corrupting_leaves_alone_has_no_ratio_and_counts_in_the_means():
    values = {"clean": [4.0, 4, 4, 5, 1], "corrupt": [0.0, 1, 0, 1, 1 + 1e-6], "cut": [2.0, 2, 2, 3, 3]}
    row = only(normalised(frame_of(values), ["cut"], **WAY))
    each = normalised_examples(frame_of(values), ["cut"], **WAY)["normalised"].tolist()
    assert each[:4] == [0.5, 1 / 3, 0.5, 0.5] and np.isnan(each[4])
    assert (row["undefined"], row["run"]) == (1, 5)
    assert row["estimate"] == pytest.approx(9 / 15, abs=1e-6)


def test_skipped_examples_are_counted_and_are_nan():
    frame = frame_of({label: [*values, 50.0] for label, values in FOUR.items()}, skipped=[4])
    row = only(normalised(frame, ["cut"], **WAY))
    assert (row["estimate"], row["n_examples"], row["planned"], row["skipped"], row["undefined"]) == (0.5, 4, 5, 1, 0)
    each = normalised_examples(frame, ["cut"], **WAY)
    assert each["normalised"].isna().tolist() == [False] * 4 + [True]
    assert each["skipped"].iloc[4] == "no answer" and each["skipped"].dtype == frame["skipped"].dtype


def test_a_model_none_of_whose_examples_ran_has_no_numbers():
    row = only(normalised(frame_of(FOUR, skipped=[0, 1, 2, 3]), ["cut"], **WAY))
    assert np.isnan(row["estimate"]) and row["interval"] == "no interval (no example ran)"
    assert (row["n_models"], row["planned"], row["skipped"]) == (0, 4, 4)


SAME = {
    "equal": [4.0, 3, 4, 1],
    "equal but for rounding": np.array([4.0, 3, 4, 1]) * (1 + 1e-6),
    "different in the sample by chance": [4.0, 2, 5, 0.5],
}


@pytest.mark.parametrize("corrupt", SAME)
def test_clean_and_corrupt_that_are_not_told_apart_give_no_number(corrupt):
    lost = frame_of(FOUR | {"corrupt": SAME[corrupt]}, seed=1)
    row = only(normalised(together(frame_of(FOUR), lost), ["cut"], **WAY))
    assert np.isnan([row["estimate"], row["low"], row["high"], row["seed_low"]]).all()
    assert row["interval"] == "no interval (clean and corrupt are not told apart in 1 of 2 models)"
    assert (row["n_models"], row["run"]) == (2, 8)


def test_one_example_tells_nothing_apart():
    frame = frame_of({"clean": [1.0], "corrupt": [0.0], "cut": [0.5]})
    assert np.isnan(only(normalised(frame, ["cut"], **WAY))["estimate"])
    assert normalised_examples(frame, ["cut"], **WAY)["normalised"].tolist() == [0.5]


def test_trained_models_without_a_condition_are_left_out():
    lacking = frame_of({"clean": FOUR["clean"], "cut": FOUR["cut"]}, seed=1)
    other = frame_of({"clean": FOUR["clean"], "corrupt": FOUR["corrupt"]}, model="other")
    frame = together(frame_of(FOUR), lacking, other)
    assert only(normalised(frame, ["cut"], **WAY))["n_models"] == 1
    table = normalised(frame, ["clean"], **WAY)
    assert table[["model", "n_models"]].values.tolist() == [["m", 1], ["other", 1]]
    assert table["model"].dtype == frame["model"].dtype and table["condition"].dtype == frame["condition"].dtype


REFUSED = {
    "condition": (["cot"], {}, "condition 'cot' is not in the results.*Did you mean cut"),
    "corrupt": (["cut"], {"corrupt": "corupt"}, "condition 'corupt' is not in the results.*Did you mean corrupt"),
    "metric": (["cut"], {"metric": "logprob"}, "metric 'logprob' is not in the results.*Did you mean log_prob"),
    "way": (["cut"], {"corrupt": "clean"}, "clean and corrupt are both 'clean'"),
    "text": ("cut", {}, "give a list of one or more"),
    "none": ([], {}, "give a list of one or more"),
    "twice": (["cut", "cut"], {}, "each once"),
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("what", [normalised, normalised_examples])
def test_what_cannot_be_normalised_is_refused(what, why):
    conditions, changes, match = REFUSED[why]
    with pytest.raises(ValueError, match=match):
        what(frame_of(FOUR), conditions, **{**WAY, **changes})


def test_conditions_of_different_models_are_refused():
    frame = together(frame_of({"clean": [1.0, 2], "cut": [1.0, 1]}), frame_of({"corrupt": [0.0, 0]}, seed=1))
    with pytest.raises(ValueError, match="no trained model has 'log_prob' in all of 'clean', 'corrupt', 'cut'"):
        normalised(frame, ["cut"], **WAY)


def test_conditions_of_different_examples_are_refused():
    frame = frame_of(FOUR).drop(index=0)
    with pytest.raises(ValueError, match="conditions are not paired"):
        normalised(frame, ["cut"], **WAY)


# Direct against total -------------------------------------------------------------------------------------------------

PAIRS = {"answer": ("cut", "straight")}
AGAINST = {"clean": "clean", "metric": "log_prob"}


def seeds_of(n=3):
    rng = np.random.default_rng(0)
    means = {"clean": 0, "cut": -1, "straight": -2}
    return [frame_of({label: rng.normal(mean, 1, 12) for label, mean in means.items()}, seed=i) for i in range(n)]


def test_the_effects_are_differences_from_clean_and_add_up():
    frame = frame_of({"clean": [0.0, -1, 0], "cut": [-4.0, -3, -2], "straight": [-1.0, -1, -1]})
    table = direct_against_total(frame, PAIRS, **AGAINST)
    assert table[["label", "effect", "estimate", "unit"]].values.tolist() == [
        ["answer", "total", 8 / 3, "nats"],
        ["answer", "direct", 2 / 3, "nats"],
        ["answer", "indirect", 2.0, "nats"],
    ]
    assert table[["a", "b"]].values.tolist() == [["clean", "cut"], ["clean", "straight"], ["straight", "cut"]]


def test_each_row_is_the_contrast_of_its_conditions():
    frame = together(*seeds_of())
    for row in direct_against_total(frame, PAIRS, **AGAINST).to_dict("records"):
        want = contrast(frame, row["a"], row["b"], "log_prob").to_dict("records")[0]
        assert {key: row[key] for key in want} == want


def test_the_three_rows_are_of_the_models_that_have_all_three_conditions():
    *whole, last = seeds_of()
    frame = together(*whole, last[last["condition"] != "straight"])
    table = direct_against_total(frame, PAIRS, **AGAINST)
    assert table["n_models"].tolist() == [2, 2, 2]
    assert table["estimate"].iloc[0] == pytest.approx(table["estimate"].iloc[1:].sum(), abs=1e-12)
    pd.testing.assert_frame_equal(table, direct_against_total(together(*whole), PAIRS, **AGAINST))


def test_each_kind_of_model_has_its_rows():
    frame = together(*seeds_of(2), *(one.assign(model="other") for one in seeds_of(3)))
    table = direct_against_total(frame, {**PAIRS, "back": ("straight", "cut")}, **AGAINST)
    assert list(zip(table["label"], table["model"], table["n_models"], strict=True))[::3] == [
        ("answer", "m", 2), ("answer", "other", 3), ("back", "m", 2), ("back", "other", 3)
    ]  # fmt: skip


UNPAIRED = {
    "nothing": ({}, "label → "),
    "a list": ([("cut", "straight")], "label → "),
    "text": ({"answer": "cut"}, "'answer' pairs 'cut'"),
    "three": ({"answer": ("cut", "straight", "clean")}, "give two conditions, all three different"),
    "clean": ({"answer": ("cut", "clean")}, "give two conditions, all three different"),
    "unknown": ({"answer": ("cut", "strait")}, "condition 'strait' is not in the results.*Did you mean straight"),
}


@pytest.mark.parametrize("why", UNPAIRED)
def test_what_is_no_pair_of_conditions_is_refused(why):
    pairs, match = UNPAIRED[why]
    with pytest.raises(ValueError, match=match):
        direct_against_total(seeds_of(1)[0], pairs, **AGAINST)


def test_conditions_that_no_model_has_together_are_refused():
    one, other = seeds_of(2)
    frame = together(one[one["condition"] != "cut"], other[other["condition"] != "straight"])
    with pytest.raises(ValueError, match="no trained model has 'log_prob' in all of 'clean', 'cut', 'straight'"):
        direct_against_total(frame, PAIRS, **AGAINST)


def test_every_metric_has_the_unit_that_its_docstring_names():
    known = {**measures.METRICS, **measures.AGAINST_CLEAN, "logit_diff": measures.logit_diff}
    assert set(UNITS) == set(known)
    for name, unit in UNITS.items():
        assert f"Unit: {unit}" in " ".join(known[name].__doc__.split()), name


def test_a_column_that_is_no_metric_has_no_unit():
    frame = seeds_of(1)[0].rename(columns={"log_prob": "weight"})
    assert set(direct_against_total(frame, PAIRS, clean="clean", metric="weight")["unit"]) == {""}


# A study of the model made by hand ------------------------------------------------------------------------------------

HIDDEN = [cut(Edges(layer=0, dest="answer", source="match"))]
QUERY = Heads(layer=1, pos="last", part="q")
N = 60


@pytest.fixture(scope="module")
def by_hand():
    model = lookup_by_hand(TASK)
    conditions = {
        "clean": [],
        "corrupt": corrupted("other"),
        "query restored": [*corrupted("other"), freeze(QUERY)],
        "key restored": [*corrupted("other"), freeze(Heads(layer=1, pos="answer", part="k"))],
        "query corrupted": [patch(QUERY, donor="other", align="position")],
        "hidden cut": HIDDEN,
        "hidden cut, direct": direct(model, HIDDEN),
    }
    measured = {"metrics": ("logit_margin", "accuracy"), "n": N, "data_seed": 3}
    study = Study(conditions=conditions, donors={"other": {"corrupt_seed": 4}}, **measured)
    frame, _ = run_study(study, TASK, {"m": [Trained(model, 0, Path(), [], {})]}, progress=False)
    return frame


def test_in_a_study_the_query_carries_everything_and_the_key_nothing(by_hand):
    restored = ["query restored", "key restored", "query corrupted", "hidden cut, direct"]
    table = normalised(by_hand, restored, clean="clean", corrupt="corrupt", metric="logit_margin")
    assert table["estimate"].tolist() == pytest.approx([1, 0, 0, 1], abs=1e-6)
    batch = TASK.sample(N, 3)
    alike = int((TASK.corrupt(batch, 4).labels[:, -1] == batch.labels[:, -1]).sum())
    assert 0 < alike < N and (table["undefined"] == alike).all()


def test_in_a_study_the_hidden_step_is_all_indirect(by_hand):
    batch = TASK.sample(N, 3)
    wrong = float((batch.tokens[:, -2] != batch.labels[:, -1]).double().mean())
    pairs = {"hidden": ("hidden cut", "hidden cut, direct")}
    table = direct_against_total(by_hand, pairs, clean="clean", metric="accuracy")
    assert table["estimate"].tolist() == pytest.approx([wrong, 0, wrong], abs=1e-12)
    assert table["unit"].tolist() == ["fraction"] * 3 and 0 < wrong < 1
