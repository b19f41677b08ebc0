"""Verdicts of analyses: what each row says, and that a doctored number flips it."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analyses import verdicts
from workbench import Claim


def frame_of(means, n=400):
    """A results frame: (model, condition) → accuracy of each of three seeds."""
    rows = []
    for (model, condition), seeds in means.items():
        for seed, mean in enumerate(seeds):
            right = (np.arange(n) < round(mean * n)).astype(float)
            rows.append(
                pd.DataFrame({"model": model, "model_seed": seed, "condition": condition, "example": range(n),
                              "skipped": None, "accuracy": right})
            )  # fmt: skip
    out = pd.concat(rows, ignore_index=True)
    for name in ("model", "condition", "skipped"):
        kinds = list(dict.fromkeys(out[name].dropna()))
        out[name] = pd.Categorical(out[name], kinds)
    return out


MEANS = {("one", "clean"): (0.9, 0.91, 0.9), ("one", "cut"): (0.2, 0.21, 0.22), ("two", "clean"): (1.0, 1.0, 1.0)}


def claim(**more):
    told = {"id": "cut", "statement": "It matters.", "metric": "accuracy", "a": "one · clean", "b": "one · cut"}
    return Claim(**{**told, "direction": "greater", "margin": 0.5, **more})


def test_a_claim_is_judged_and_a_doctored_frame_flips_it():
    frame = verdicts.side_by_side(frame_of(MEANS))
    row = verdicts.from_claims([claim()], frame).iloc[0]
    assert row["verdict"] == "supported" and row["estimate"] == pytest.approx(0.69333, abs=1e-4)
    assert (row["n_models"], row["n_examples"], row["must lie"]) == (3, 400, "above 0.5")
    doctored = verdicts.side_by_side(frame_of(MEANS | {("one", "cut"): (0.8, 0.81, 0.8)}))
    assert verdicts.from_claims([claim()], doctored)["verdict"].item() == "not supported"


def test_kinds_of_model_are_contrasted_side_by_side():
    frame = verdicts.side_by_side(frame_of(MEANS))
    assert list(frame["condition"].cat.categories) == ["one · clean", "one · cut", "two · clean"]
    row = verdicts.from_claims([claim(id="two", a="two · clean", b="one · clean", margin=0.05)], frame).iloc[0]
    assert row["estimate"] == pytest.approx(0.09667, abs=1e-4) and row["verdict"] == "supported"


def test_the_interval_over_seeds_is_students():
    values = [1.0, 2.0, 4.0, 5.0]
    row = verdicts.from_seeds("a", "It is.", "number", values, "greater", 0.0).iloc[0]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (row["low"], row["high"]) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize(
    ("values", "direction", "margin", "reference", "verdict"),
    [
        ([10, 11, 12], "greater", 5, 0, "supported"),
        ([10, 11, 12], "less", 5, 0, "not supported"),
        ([10, 11, 12], "greater", 11, 0, "undecided"),
        ([10, 11, 12], "within", 5, 11, "supported"),
        ([10, 11, 12], "within", 2, 30, "not supported"),
        ([10], "greater", 5, 0, "undecided"),
        ([10, 10, 10], "greater", 5, 0, "undecided"),
    ],
)
def test_a_number_a_model_decides_by_its_interval(values, direction, margin, reference, verdict):
    assert verdicts.from_seeds("a", "It is.", "n", values, direction, margin, reference)["verdict"].item() == verdict


@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_missing_numbers_are_refused(values):
    with pytest.raises(ValueError, match="claim 'a' wants one finite number per trained model"):
        verdicts.from_seeds("a", "It is.", "n", values, "greater", 0)


def test_an_exact_number_lies_inside_or_not():
    assert verdicts.exact("a", "It is.", "n", 0.89, 0.885, 0.895)["verdict"].item() == "supported"
    assert verdicts.exact("a", "It is.", "n", 0.9, 0.885, 0.895)["verdict"].item() == "not supported"


def test_two_claims_of_one_id_are_refused():
    one = verdicts.exact("a", "It is.", "n", 1, 0, 2)
    assert len(verdicts.joined(one, verdicts.exact("b", "It is.", "n", 1, 0, 2))) == 2
    with pytest.raises(ValueError, match="two claims have the id 'a'"):
        verdicts.joined(one, one)


def test_numbers_that_differ_by_rounding_decide_nothing():
    row = verdicts.from_seeds("a", "It is.", "n", [0.1 + 0.2, 0.3, 0.3], "greater", 0.1).iloc[0]
    assert row["verdict"] == "undecided" and np.isnan(row["low"])
