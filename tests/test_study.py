"""Claims and their verdicts."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from workbench.study import Claim, judge, together

SAYS = {"id": "answer", "statement": "The digit matters.", "metric": "accuracy", "a": "clean"}


def claim(**changes):
    return Claim(**{**SAYS, "direction": "greater", "margin": 0.5, **changes})


def results(means, n=200, kind="two layers"):
    """One trained model per entry of each condition's list of accuracies."""
    cells = [
        pd.DataFrame(
            {"model": kind, "model_seed": seed, "condition": condition, "example": np.arange(n), "skipped": None,
             "accuracy": (np.arange(n) < round(mean * n)).astype(float)}
        )
        for condition, accuracies in means.items()
        for seed, mean in enumerate(accuracies)
    ]  # fmt: skip
    return pd.concat(cells, ignore_index=True).astype(dict.fromkeys(("model", "condition", "skipped"), "category"))


FRAME = results({"clean": [1, 1, 1], "cut": [0.12, 0.14, 0.13], "control": [1, 1, 1], "wild": [0.1, 0.5, 0.9]})

VERDICTS = [
    (dict(b="cut", margin=0.5), "supported"),
    (dict(b="cut", margin=0.95), "not supported"),
    (dict(b="wild", margin=0.5), "undecided"),
    (dict(a="cut", b="clean", direction="less", margin=0.5), "supported"),
    (dict(b="cut", direction="less", margin=0.0), "not supported"),
    (dict(b="control", direction="within", margin=0.05), "supported"),
    (dict(b="cut", direction="within", margin=0.05), "not supported"),
    (dict(a="cut", b="clean", direction="within", margin=0.05), "not supported"),
    (dict(b="wild", direction="within", margin=0.3), "undecided"),
    (dict(margin=0.9), "supported"),
    (dict(a="cut", margin=0.9), "not supported"),
    (dict(a="cut", direction="less", margin=0.2), "supported"),
    (dict(direction="less", margin=0.2), "not supported"),
    (dict(a="cut", direction="within", margin=0.1, reference=0.125), "supported"),
    (dict(a="cut", direction="within", margin=0.05, reference=0.36), "not supported"),
]


@pytest.mark.parametrize(("changes", "verdict"), VERDICTS)
def test_a_claim_is_judged_by_where_its_whole_interval_lies(changes, verdict):
    assert judge(claim(**changes), FRAME).verdict == verdict


def test_a_verdict_carries_its_numbers():
    made = claim(b="cut")
    verdict = judge(made, FRAME, level=0.9)
    assert (verdict.claim, verdict.n_models, verdict.n_examples, verdict.level) == (made, 3, 200, 0.9)
    assert verdict.estimate == pytest.approx(0.87)
    assert verdict.low < verdict.estimate < verdict.high
    assert verdict.interval == "over models and examples"


def test_a_higher_level_decides_less():
    made = claim(b="cut", margin=0.75)
    assert [judge(made, FRAME, level).verdict for level in (0.9, 0.999)] == ["supported", "undecided"]


def test_perfect_accuracy_does_not_support_a_margin_finer_than_its_examples_show():
    assert judge(claim(margin=0.999), FRAME).verdict == "undecided"


def test_without_an_interval_a_claim_is_undecided():
    frame = FRAME.assign(accuracy=3.0)
    assert judge(claim(margin=0.5), frame).verdict == "undecided"


def test_n_examples_is_none_where_trained_models_differ():
    frame = pd.concat([results({"clean": [1, 1]}), results({"clean": [1]}, n=10).assign(model_seed=2)])
    frame = frame.astype(dict.fromkeys(("model", "condition", "skipped"), "category"))
    assert judge(claim(margin=0.5), frame).n_examples is None


def test_an_unknown_condition_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"'cutt' is not in the results.*Did you mean cut\?"):
        judge(claim(b="cutt"), FRAME)


accuracies = st.lists(st.integers(0, 10).map(lambda k: k / 10), min_size=1, max_size=3)


@settings(max_examples=60)
@given(
    accuracies, st.integers(0, 10), st.sampled_from([0.05, 0.3, 0.8]), st.sampled_from(["greater", "less", "within"])
)
def test_a_verdict_is_exclusive_and_holds_for_every_value_of_the_interval(means, other, margin, direction):
    frame = results({"clean": means, "cut": [other / 10] * len(means)}, n=10)
    verdict = judge(claim(b="cut", direction=direction, margin=margin), frame)
    holds = {"greater": lambda q: q > margin, "less": lambda q: q < -margin, "within": lambda q: abs(q) < margin}
    inside = [holds[direction](q) for q in np.linspace(verdict.low, verdict.high, 201)]
    if verdict.verdict == "undecided":
        assert any(inside)
        assert not all(inside)
    else:
        assert all(inside) if verdict.verdict == "supported" else not any(inside)


def test_an_interval_that_touches_the_margin_from_outside_does_not_support():
    frame = results({"clean": [0, 0]})
    assert judge(claim(direction="less", margin=0.0), frame).verdict == "not supported"


# Claims as values


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(b="clean"), "contrasts 'clean' with itself"),
        (dict(direction="within"), "reference is missing"),
        (dict(reference=0.5), "reference is 0.5"),
        (dict(direction="within", b="cut", reference=0.5), "reference is 0.5"),
        (dict(direction="within", b="cut", margin=0), "make it positive"),
        (dict(b="cut", margin=-0.1), "0 or more"),
        (dict(direction="more"), "direction"),
        (dict(margin=float("nan")), "margin"),
        (dict(id=""), "id"),
        (dict(treshold=1), "treshold"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(changes, why):
    with pytest.raises(ValidationError if "treshold" not in changes else TypeError, match=why):
        claim(**changes)


def test_a_claim_is_frozen_and_survives_json():
    made = claim(b="cut")
    with pytest.raises(ValidationError, match="frozen"):
        made.margin = 0.1
    assert Claim.model_validate_json(made.model_dump_json()) == made
    assert hash(made) == hash(claim(b="cut"))


# Several parts


def test_parts_are_put_together_strictly():
    yes, no, open_ = (judge(claim(**changes), FRAME) for changes, _ in VERDICTS[:3])
    assert together([yes, yes]) == "supported"
    assert together([yes, open_]) == "undecided"
    assert together([yes, open_, no]) == "not supported"


def test_no_parts_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        together(iter(()))
