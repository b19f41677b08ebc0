"""What a study will do is told before it does it: counts that come true, and nothing trained or written."""

import shutil

import pytest
import torch

from tasks.lookup import Lookup
from workbench import Edges, Study, cut, load, save
from workbench.checkpoints import key
from workbench.declared import models_of
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


@pytest.mark.parametrize("done", [(), ("clean",), ("cut", "same"), ("clean", "cut", "same", "other")])
def test_the_cost_is_told_in_the_passes_that_a_model_takes_at_the_most(tmp_path, monkeypatch, done):
    """What is the same under two names is measured once, and a block runs once without interventions."""
    from workbench import measuring

    other = (cut(Edges(layer=0, source="previous"), empty="no-update"),)
    conditions = {"clean": (), "cut": CUT, "same": CUT, "other": other, "base": ()}
    whole = study(models={"one": {**TWO, "seeds": 1}}, conditions=conditions, only={})
    if done:
        some = {name: conditions[name] for name in done}
        run_declared(study(models=whole.models, conditions=some, only={}), home=tmp_path, progress=False)
    monkeypatch.setattr("workbench.planning._timed_pass", lambda *_: 1.0)
    (planned,) = plan(whole, home=tmp_path)
    runs, each = [], measuring.measure_each

    def counted(model, batch, conditions, *args, **kwargs):
        if len(batch) == whole.n:  # not a rehearsal on a few
            runs.append(1 + sum(map(bool, conditions.values())))
        return each(model, batch, conditions, *args, **kwargs)

    monkeypatch.setattr(measuring, "measure_each", counted)
    run_declared(whole, home=tmp_path, progress=False)
    assert planned.measuring_seconds == sum(runs)
    assert planned.cells == 5


def moved_to_a_gpu(home):
    """Every checkpoint as one that was trained as part of an ensemble on a GPU, with other weights."""
    for folder in [one for one in (home / "checkpoints").iterdir() if one.is_dir()]:
        trained = load(folder)
        torch.nn.init.normal_(trained.model.embed.W_E)
        definition = {**trained.about["definition"], "trainer": "ensemble", "device": "cuda"}
        save(home / "checkpoints" / key(definition), trained.model, definition, trained.curve)
        shutil.rmtree(folder)


def test_models_that_were_trained_on_a_gpu_are_found_where_there_is_none(tmp_path, monkeypatch):
    whole = study()
    run_declared(whole, home=tmp_path, progress=False)
    moved_to_a_gpu(tmp_path)
    shutil.rmtree(tmp_path / "cells")
    assert counts(plan(whole, home=tmp_path)) == [("two", 2, 2, 4, 0), ("one", 1, 1, 1, 0)]
    with monkeypatch.context() as patched:
        patched.setattr("workbench.training._fit_all", lambda *_: pytest.fail("trained again"))
        frame, _ = run_declared(whole, home=tmp_path, progress=False)
        models = models_of(whole.models, Lookup(), home=tmp_path)
    assert [one.about["definition"]["trainer"] for one in [*models["two"], *models["one"]]] == ["ensemble"] * 3
    assert [one.seed for one in models["two"]] == [0, 1]
    weights = {str(one.seed): one.about["weights_sha256"] for one in models["two"]}
    assert {seed: said["weights"] for seed, said in frame.attrs["measured"]["two"].items()} == weights
    done = plan(whole, home=tmp_path)
    assert counts(done) == [("two", 2, 2, 4, 4), ("one", 1, 1, 1, 1)]
    assert [(one.training_seconds, one.measuring_seconds) for one in done] == [(0, 0), (0, 0)]


def test_what_this_machine_trained_comes_before_what_a_gpu_did_and_seeds_stay_in_order(tmp_path):
    two = study(models={"two": TWO}, only={}).models
    mine = models_of(two, Lookup(), home=tmp_path, progress=False)["two"]
    definition = {**mine[0].about["definition"], "trainer": "ensemble", "device": "cuda"}
    save(tmp_path / "checkpoints" / key(definition), mine[0].model, definition, mine[0].curve)
    assert models_of(two, Lookup(), home=tmp_path)["two"][0].folder == mine[0].folder
    shutil.rmtree(mine[0].folder)
    found = models_of(two, Lookup(), home=tmp_path)["two"]
    assert [(one.seed, one.about["definition"]["device"]) for one in found] == [(0, "cuda"), (1, "cpu")]


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
