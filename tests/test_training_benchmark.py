"""The benchmark of training: all ways train the same models, and the table says what was timed."""

import os
from pathlib import Path

import pandas as pd
import pytest
import torch

from analyses import training_optimiser, training_ways
from analyses.training_benchmark import operations, seeds_per_minute
from analyses.training_parts import parts
from analyses.training_plain import Plain
from analyses.training_verdict import verdict
from analyses.training_ways import config
from tasks.lookup import Lookup
from workbench.fitting import fresh

REPORTS = Path(__file__).parents[1] / "reports" / "benchmarks"
FEW = ["fit, one process", "ensemble of 2", "our model, every position", "plain PyTorch, every position",
       "plain PyTorch, read positions"]  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return seeds_per_minute(steps=3, rounds=2, together=2, names=FEW)


# The plain loop


@pytest.mark.parametrize("heads", [1, 4])
def test_the_plain_model_has_our_models_logits(heads):
    model = fresh(config().model_copy(update={"n_heads": heads, "n_kv_heads": heads, "d_head": 32 // heads}), 3)
    tokens = Lookup().sample(20, seed=0).tokens
    with torch.no_grad():
        want = model(tokens)
        whole, last = Plain(model)(tokens, False), Plain(model)(tokens, True)
    assert last.shape == (20, 1, 16)
    assert (whole - want).abs().max() <= 5e-6 * want.abs().max()
    assert (last - want[:, -1:]).abs().max() <= 5e-6 * want.abs().max()


def test_the_plain_model_refuses_a_model_that_it_is_not():
    with pytest.raises(ValueError, match="post-norm model, and the model has norm='pre'"):
        Plain(fresh(config().model_copy(update={"norm": "pre"}), 0))


# The table


def test_each_way_has_a_row_and_ends_at_the_same_loss(table):
    assert table["way"].tolist() == FEW
    assert table["loss"].max() - table["loss"].min() <= 1e-3
    assert (table["ms a step"] > 0).all() and (table["lowest"] <= table["highest"]).all()


def test_seeds_a_minute_are_of_a_thousand_steps_and_the_start_is_counted_once(table):
    a_seed = table["ms a step"]  # a thousand steps, in seconds
    pd.testing.assert_series_equal(table["seeds a minute"], 60 / a_seed, rtol=0.01, check_names=False)
    want = 60 * 2 / (2 * a_seed + table["start s"])
    got = table["with the start, 2 seeds"]
    assert ((got - want).abs() <= 0.02 * want + 0.01 * got).all()
    assert (got <= table["seeds a minute"]).all()


def test_times_are_against_fits(table):
    assert table["against fit"].iloc[0] == 1
    want = table["ms a step"] / table["ms a step"].iloc[0]
    pd.testing.assert_series_equal(table["against fit"], want, rtol=0.01, check_names=False)


def test_two_processes_train_two_seeds_at_once():
    table = seeds_per_minute(steps=3, rounds=1, names=["fit, two processes"])
    assert table["cores"].tolist() == [2] and table["against fit"].isna().all()
    assert table["seeds a minute"].iloc[0] == pytest.approx(120 / table["ms a step"].iloc[0], rel=0.01)


def test_a_way_that_trains_another_model_is_not_timed_with_the_rest(monkeypatch):
    class Other(Plain):
        def forward(self, tokens, only_last):
            return 2 * super().forward(tokens, only_last)

    monkeypatch.setattr(training_ways, "Plain", Other)
    with pytest.raises(AssertionError, match="'plain PyTorch, read positions' ends at a loss of"):
        seeds_per_minute(steps=2, rounds=1, names=["fit, one process", "plain PyTorch, read positions"])


def test_a_way_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(KeyError, match="'fast' is no way of training; there are: fit, one process, fit, two"):
        seeds_per_minute(names=["fast"])


def test_what_the_compiler_is_told_is_taken_back(table):
    assert "TORCHINDUCTOR_FORCE_DISABLE_CACHES" not in os.environ


# The optimiser


def test_the_optimisers_are_compared_on_models_that_stay_equal():
    saved = training_optimiser.saving(steps=30)
    assert saved["q1"] <= saved["median"] <= saved["q3"] and abs(saved["median"]) < 20


def test_an_optimiser_that_makes_other_weights_is_not_timed(monkeypatch):
    class Slower(training_optimiser.AdamW):
        def descend(self, loss, rate):
            super().descend(loss, rate / 2)

    monkeypatch.setattr(training_optimiser, "AdamW", Slower)
    with pytest.raises(AssertionError, match=r"is not what torch\.optim\.AdamW makes of it"):
        training_optimiser.saving(steps=2)


# The floor


def test_parts_of_a_step_are_whole():
    table = parts(steps=12)
    assert table["part"].tolist() == ["data", "forward", "backward", "optimiser"]
    assert table["share %"].sum() == pytest.approx(100, abs=0.3)
    assert table["share %"].iloc[1:3].sum() > 50


def test_operations_are_those_of_the_products_three_times():
    """Forward by hand; a gradient by each factor costs as much again."""
    rows, read, width, hidden = 256 * 9, 256, 32, 128
    first = 4 * rows * width**2 + 2 * 256 * 81 * width + 2 * rows * width * hidden
    second = 2 * (rows + read) * width**2 + 2 * 256 * 9 * width + 2 * read * width * hidden
    assert operations() == 3 * 2 * (first + second + read * width * 16)


# What is said


def made(**changes):
    """A table in which two processes win and compiling takes 60 seconds."""
    rows = {
        "fit, one process": (0, 10.0, 6.0), "fit, two processes": (0, 10.0, 12.0), "ensemble of 8": (0, 9.0, 6.7),
        "ensemble of 8, compiled": (60, 6.0, 10.0), "our model, every position": (0, 15.0, 4.0),
        "our model, read positions": (0, 11.0, 5.5), "our model, read positions, compiled": (60, 14.0, 5.0),
        "plain PyTorch, read positions": (0, 8.0, 7.5), "plain PyTorch, read positions, compiled": (60, 7.5, 8.0),
        **changes,
    }  # fmt: skip
    names = ("start s", "ms a step", "seeds a minute")
    table = pd.DataFrame([{"way": way, **dict(zip(names, row, strict=True))} for way, row in rows.items()])
    return table.assign(lowest=table["ms a step"] - 1, highest=table["ms a step"] + 1)


def said(**changes):
    return verdict(made(**changes), "fit, one process", "fit, two processes")


def test_the_way_that_trains_most_is_named():
    assert "The fastest of ours on this CPU is fit, two processes: 12.0 seeds a minute" in said()
    assert "is ensemble of 8: 12.0" in said(**{"ensemble of 8": (0, 4.0, 15.0)})


def test_compiling_is_paid_back_after_as_many_steps_as_it_saves_its_start():
    assert "ensemble of 8, compiled: 6.00 ms a step and seed (5.00 to 7.00) against 9.00 (8.00 to 10.00)" in said()
    assert "after 60 s: paid back after 2,500 steps; a training has 1,000." in said()


def test_compiling_that_makes_steps_slower_never_pays_and_rounds_that_overlap_show_no_gain():
    lines = {line.split(":")[0]: line for line in said().splitlines()}
    assert lines["- our model, read positions, compiled"].endswith("after 60 s: slower, it never pays.")
    assert lines["- plain PyTorch, read positions, compiled"].endswith("rounds overlap, no gain was seen.")


def test_an_ensemble_is_compared_with_fit_on_one_core_too():
    assert "On one core, the ensemble of 8 takes 0.90 times `fit`'s time a step and seed (8.00 to 10.00 ms" in said()


def test_a_table_without_the_processes_has_no_verdict():
    with pytest.raises(KeyError, match="two processes"):
        verdict(made().iloc[[0, *range(2, 9)]], "fit, one process", "fit, two processes")


def test_the_committed_page_has_the_committed_table():
    table = pd.read_csv(REPORTS / "training.csv")
    page = (REPORTS / "training.md").read_text(encoding="utf-8")
    assert set(table["way"]) >= {"fit, one process", "fit, two processes", "ensemble of 8", "ensemble of 8, compiled"}
    for row in table.itertuples():
        assert f"| {row.way} | {row.cores} |" in page
