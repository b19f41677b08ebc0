"""The analysis of induction: the training that is looked at, when things happen, the verdicts, the committed report."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import induction
from analyses.induction import ONE, TWO, base, configs, recipe, steps_of, study, task
from analyses.induction_report import tables, verdicts
from analyses.induction_training import looked_at, snapshots, watched
from workbench import Recipe, train
from workbench.tables import to_csv

COMMITTED = Path(__file__).parent.parent / "reports" / "induction"
SHORT = Recipe(steps=12, warmup=3, batch_size=8, lr=1e-2)


# The training that is looked at


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return train(task(), configs()[TWO], SHORT, 7, device="cpu", home=tmp_path_factory.mktemp("home"), progress=False)


def test_a_training_that_is_looked_at_is_the_training_bit_for_bit(short):
    batch, looks = task().sample(4, seed=1), []
    for step, model in snapshots(task(), configs()[TWO], SHORT, 7, every=5):
        looks.append((step, looked_at(model, batch)))
    assert [step for step, _ in looks] == [0, 5, 10, 12]
    ours, theirs = model.state_dict(), short.model.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_a_watched_training_ends_in_what_its_checkpoint_gives(short):
    rows = watched(task(), SHORT, [short], every=6)
    assert rows["step"].tolist() == [0, 6, 12] and set(rows["model_seed"]) == {7}
    batch = task().sample(induction.WATCHED, induction.WATCHED_SEED)
    assert rows.iloc[-1].drop(["model_seed", "step"]).to_dict() == looked_at(short.model, batch)


def test_a_watched_training_of_another_recipe_is_refused(short):
    with pytest.raises(RuntimeError, match="model seed 7 ends in other weights"):
        watched(task(), SHORT.model_copy(update={"lr": 2e-2}), [short], every=6)


@pytest.mark.parametrize("change", [{"dropout": 0.1}, {"label_smoothing": 0.1}, {"stop_at": 0.9}])
def test_a_recipe_that_is_not_followed_is_refused(change):
    with pytest.raises(ValueError, match="leave dropout, label_smoothing and stop_at out"):
        next(snapshots(task(), configs()[TWO], SHORT.model_copy(update=change), 0, every=5))


# When things happen


def training(**changed):
    """Ten looks at one model whose loss falls at step 50, and whose weights rise at 40 and 30."""
    step = np.arange(0, 100, 10)
    values = {"loss": np.where(step < 50, 2.0, 0.1), "prefix": np.where(step < 40, 0.1, 0.9),
              "previous": np.where(step < 30, 0.1, 0.9), "accuracy": 0.5, "floor": 2.0}  # fmt: skip
    return pd.DataFrame({"model_seed": 0, "step": step} | values | changed)


def test_the_steps_are_those_from_which_half_way_is_passed_for_good():
    assert steps_of(training()).iloc[0].to_dict() == {"model_seed": 0, "drop": 50, "prefix": 40, "previous": 30}


def test_a_weight_that_falls_back_appears_when_it_comes_to_stay():
    back = [0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.9, 0.9, 0.9]
    assert steps_of(training(prefix=back))["prefix"].item() == 70


def test_a_loss_that_never_falls_below_one_layers_has_the_last_step():
    assert steps_of(training(floor=1.0, loss=2.0))["drop"].item() == 90


def test_a_larger_share_of_the_way_is_passed_later():
    slow = training(loss=np.linspace(2, 0, 10), prefix=np.linspace(0, 1, 10))
    drops = [steps_of(slow, share)["drop"].item() for share in (0.25, 0.5, 0.75)]
    assert drops == [30, 50, 70]


# The study and its verdicts


def test_controls_cut_as_many_edges_of_the_same_rows():
    from workbench import derive
    from workbench.models.built import build

    batch = derive(build(configs()[TWO], seed=0), task().sample(20, seed=0), study(1).derived)
    for name in ("match", "previous", "same"):
        edges, control = batch.relations[name], batch.relations[f"{name}-control"]
        assert torch.equal(edges.sum(-1), control.sum(-1))
        assert not (edges & control).any()


def test_only_what_both_depths_have_is_asked_of_one_layer():
    assert list(base(1).conditions) == ["clean"]
    assert all(one.layer == 0 for one in base(1).weights.values())


@pytest.fixture(scope="module")
def committed():
    return pd.read_parquet(COMMITTED / "results.parquet"), pd.read_parquet(COMMITTED / "training.parquet")


def test_the_committed_tables_are_those_of_the_committed_rows(committed):
    made = tables(*committed)
    for name, table in made.items():
        assert to_csv(table) == (COMMITTED / f"{name}.csv").read_text(encoding="utf-8"), name


def test_the_committed_verdicts_are_those_of_the_committed_rows(committed):
    assert to_csv(verdicts(*committed)) == (COMMITTED / "verdicts.csv").read_text(encoding="utf-8")


def outcomes(frame, rows):
    return verdicts(frame, rows).set_index("id")["verdict"]


@pytest.mark.parametrize(
    ("condition", "claim"),
    [("cut-match", "match-edge"), ("cut-previous", "previous-edge"), ("zero-0", "head-1"), ("zero-1", "head-2")],
)
def test_a_change_that_changed_nothing_refutes_its_claim(committed, condition, claim):
    frame, rows = committed
    there = frame["condition"] == condition
    doctored = frame.assign(accuracy=frame["accuracy"].where(~there, 1.0))
    assert outcomes(doctored, rows)[claim] == "not supported"


def test_prefix_matching_that_comes_later_is_not_together_with_the_drop(committed):
    frame, rows = committed
    late = rows.assign(prefix=rows["prefix"].where(rows["step"] > rows["step"].max() - 50, 0.0))
    assert outcomes(frame, late)["together"] == "not supported"


def test_one_layer_that_solves_the_task_refutes_its_claim(committed):
    frame, rows = committed
    doctored = frame.assign(accuracy=frame["accuracy"].where(frame["model"] != ONE, 0.98))
    assert outcomes(doctored, rows)["one-layer"] == "not supported"


@pytest.mark.slow
def test_the_quick_run_writes_a_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    folder = induction.main(out=tmp_path, quick=True, progress=False)
    assert "A quick run" in (folder / "README.md").read_text(encoding="utf-8")
    assert pd.read_parquet(folder / "training.parquet")["step"].max() == recipe(quick=True).steps
