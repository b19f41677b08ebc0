"""What a study will do is told before it does it: counts that come true, and nothing trained or written."""

import pytest

from workbench import Edges, Study, cut
from workbench.planning import Planned, plan, told
from workbench.studies import run_declared

CUT = (cut(Edges(layer=1, dest="last", source="answer")),)
TWO = {
    "kind": "training", "config": {"n_layers": 2, "n_heads": 1, "d_model": 8}, "seeds": 2,
    "recipe": {"steps": 3, "warmup": 1, "batch_size": 8},
}  # fmt: skip
ONE = {**TWO, "config": {**TWO["config"], "n_layers": 1}, "seeds": 1}


def study(**changes):
    given = {"task": {"name": "lookup"}, "models": {"two": TWO, "one": ONE}, "conditions": {"clean": (), "cut": CUT},
             "n": 20, "data_seed": 1, "only": {"two": ("cut",)}}  # fmt: skip
    return Study(**{**given, **changes})


def counts(planned):
    return [(one.label, one.models, one.trained, one.cells, one.measured) for one in planned]


def test_a_plan_counts_models_and_cells_and_writes_nothing(tmp_path):
    planned = plan(study(), home=tmp_path)
    assert counts(planned) == [("two", 2, 0, 4, 0), ("one", 1, 0, 1, 0)]
    assert [one.conditions for one in planned] == [("clean", "cut"), ("clean",)]
    assert all(one.training_seconds > 0 and one.measuring_seconds > 0 for one in planned)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_comes_true(tmp_path):
    some = study(models={"two": TWO}, conditions={"clean": ()}, only={})
    run_declared(some, home=tmp_path, progress=False)
    assert counts(plan(some, home=tmp_path)) == [("two", 2, 2, 2, 2)]
    assert counts(plan(study(), home=tmp_path)) == [("two", 2, 2, 4, 2), ("one", 1, 0, 1, 0)]
    run_declared(study(), home=tmp_path, progress=False)
    done = plan(study(), home=tmp_path)
    assert counts(done) == [("two", 2, 2, 4, 4), ("one", 1, 1, 1, 1)]
    assert [(one.training_seconds, one.measuring_seconds) for one in done] == [(0, 0), (0, 0)]


@pytest.mark.slow
def test_what_changes_a_study_changes_what_is_there(tmp_path):
    run_declared(study(), home=tmp_path, progress=False)
    assert counts(plan(study(data_seed=2), home=tmp_path)) == [("two", 2, 2, 4, 0), ("one", 1, 1, 1, 0)]
    assert counts(plan(study(metrics=("loss",)), home=tmp_path))[0] == ("two", 2, 2, 4, 0)
    longer = {**TWO, "recipe": {**TWO["recipe"], "steps": 4}}
    assert counts(plan(study(models={"two": longer}), home=tmp_path)) == [("two", 2, 0, 4, 0)]


@pytest.mark.slow
def test_loaded_checkpoints_are_there(tmp_path):
    run_declared(study(), home=tmp_path, progress=False)
    folders = sorted(str(one) for one in (tmp_path / "checkpoints").iterdir() if one.is_dir())
    loaded = study(models={"them": {"kind": "checkpoints", "folders": folders[:1]}}, only={}, conditions={"clean": ()})
    assert counts(plan(loaded, home=tmp_path)) == [("them", 1, 1, 1, 1)]


def test_a_plan_is_told_with_its_sums():
    two = Planned("two", 2, 1, ("clean", "cut"), 4, 1, 90.0, 0.5)
    assert told([two, Planned("one", 1, 1, ("clean",), 1, 1, 0.0, 0.0)]) == (
        "two: 2 models (1 there), 2 conditions, 4 cells (1 there); about 90 s of training and 500 ms of measuring on "
        "one processor\n  clean\n  cut\n"
        "one: 1 models (1 there), 1 conditions, 1 cells (1 there); about 0 s of training and 0 s of measuring on one "
        "processor\n  clean\n"
        "5 cells, 3 of them to be measured; about 90 s on one processor"
    )


@pytest.mark.parametrize("lacking", [{"task": None}, {"models": {}, "only": {}}])
def test_a_study_that_declares_nothing_to_run_on_cannot_be_planned(lacking, tmp_path):
    with pytest.raises(ValueError, match="nothing to plan"):
        plan(study(**lacking), home=tmp_path)


def test_a_role_that_is_not_there_is_refused_by_the_plan_or_the_run(tmp_path):
    wrong = study(conditions={"clean": (), "cut": (cut(Edges(layer=1, dest="last", source="anwser")),)})
    with pytest.raises(KeyError, match=r"condition 'cut' of task 'lookup'.*anwser"):
        run_declared(wrong, home=tmp_path, progress=False)
