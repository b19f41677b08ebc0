"""What a study declares to be run on: tasks by name, models trained, found or loaded; and run as declared."""

import pandas as pd
import pytest
from pydantic import ValidationError

from tasks.lookup import Lookup
from workbench import Edges, Study, cut, read_study, run_study, study_text
from workbench.checkpoints import key
from workbench.declared import (
    Checkpoints,
    Pretrained,
    TaskOf,
    Training,
    config_of,
    definitions_of,
    models_of,
    number_of,
)
from workbench.store import Store
from workbench.studies import run_declared

RECIPE = {"steps": 3, "warmup": 1, "batch_size": 8}
SMALL = {"n_layers": 2, "n_heads": 1, "d_model": 8, "norm": "post"}
CUT = (cut(Edges(layer=1, dest="last", source="answer")),)
ONE = {"config": {**SMALL, "n_layers": 1}, "recipe": RECIPE, "seeds": 2}
MODELS = {"two": Training(config=SMALL, recipe=RECIPE, seeds=2), "one": Training(**ONE)}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


def study(**changes):
    given = {"task": {"name": "lookup"}, "models": MODELS, "conditions": {"clean": (), "cut": CUT}, "n": 20,
             "data_seed": 1, "metrics": ("accuracy", "loss"), "only": {"two": ("cut",)}}  # fmt: skip
    return Study(**{**given, **changes})


def test_a_declared_task_is_made():
    assert TaskOf(name="lookup").made() == Lookup()


@pytest.mark.parametrize(("arguments", "kind"), [({"nothing": 1}, ValueError)])
def test_wrong_arguments_of_a_task_are_refused(arguments, kind):
    with pytest.raises(kind, match="nothing"):
        TaskOf(name="lookup", arguments=arguments).made()


def test_a_task_that_is_not_installed_is_answered_with_the_nearest():
    with pytest.raises(LookupError, match="lookup"):
        TaskOf(name="lokup").made()


def test_a_number_of_seeds_counts_from_zero():
    assert Training(config=SMALL, seeds=3).seeds == (0, 1, 2)
    assert Training(config=SMALL, seeds=[4, 2]).seeds == (4, 2)


@pytest.mark.parametrize("seeds", [0, [], True, "3", -1])
def test_no_seeds_are_refused(seeds):
    with pytest.raises(ValidationError, match="seeds"):
        Training(config=SMALL, seeds=seeds)


def test_models_are_counted():
    assert [number_of(one) for one in (MODELS["two"], Checkpoints(folders=("a",)), Pretrained(folders=("a", "b")))] == [
        2, 1, 2,
    ]  # fmt: skip


def test_vocabulary_and_length_are_the_tasks_unless_said():
    made = config_of(MODELS["two"], Lookup())
    assert (made.d_vocab, made.n_ctx) == (len(Lookup().vocabulary), Lookup().length)
    assert config_of(Training(config={**SMALL, "n_ctx": 20}, seeds=1), Lookup()).n_ctx == 20


def test_declared_models_are_trained_and_have_the_keys_that_were_foretold(home):
    found = models_of(MODELS, Lookup(), home=home, progress=False)
    assert {label: [one.seed for one in several] for label, several in found.items()} == {"two": [0, 1], "one": [0, 1]}
    for label, several in found.items():
        foretold = [key(one) for one in definitions_of(MODELS[label], Lookup())]
        assert [one.folder.name for one in several] == foretold


def test_checkpoints_are_loaded_from_their_folders(home):
    trained = models_of(MODELS, Lookup(), home=home, progress=False)["one"]
    declared = {"them": Checkpoints(folders=tuple(str(one.folder) for one in trained))}
    again = models_of(declared, Lookup(), home=home)["them"]
    assert [one.about["weights_sha256"] for one in again] == [one.about["weights_sha256"] for one in trained]


def test_a_declared_study_is_the_one_run_by_hand(home):
    frame, _ = run_declared(study(only={}, models={"two": MODELS["two"]}), home=home, progress=False)
    models = models_of({"two": MODELS["two"]}, Lookup(), home=home, progress=False)
    by_hand, _ = run_study(study(only={}), Lookup(), models, progress=False)
    pd.testing.assert_frame_equal(frame, by_hand, check_exact=True)


def test_conditions_for_some_models_are_run_on_those(home):
    frame, _ = run_declared(study(), home=home, progress=False)
    pairs = frame[["model", "condition"]].drop_duplicates().astype(str)
    assert set(map(tuple, pairs.to_numpy())) == {("two", "clean"), ("two", "cut"), ("one", "clean")}
    again, _ = run_declared(study(), home=home, progress=False)
    pd.testing.assert_frame_equal(again, frame, check_exact=True)


def test_checkpoints_share_the_cells_of_the_models_that_they_are(home):
    run_declared(study(), home=home, progress=False)
    before = set(Store(home / "cells").cells()["cell"])
    trained = models_of(MODELS, Lookup(), home=home, progress=False)["one"]
    models = {"them": {"kind": "checkpoints", "folders": [str(one.folder) for one in trained]}}
    run_declared(study(models=models, only={}, conditions={"clean": ()}), home=home, progress=False)
    assert set(Store(home / "cells").cells()["cell"]) == before


@pytest.mark.parametrize("lacking", [{"task": None}, {"models": {}, "only": {}}])
def test_a_study_that_declares_nothing_to_run_on_is_refused(lacking, tmp_path):
    with pytest.raises(ValueError, match="declares no task or no models"):
        run_declared(study(**lacking), home=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_for_models_that_are_not_there_is_refused():
    with pytest.raises(ValidationError, match="only names the models 'three'; there are: two, one"):
        study(only={"three": ("cut",)})
    with pytest.raises(ValidationError, match=r"only.two names 'cutt'; there are: clean, cut"):
        study(only={"two": ("cutt",)})


def test_a_study_with_only_is_not_run_by_hand(home):
    models = models_of(MODELS, Lookup(), home=home, progress=False)
    with pytest.raises(ValueError, match="run_declared"):
        run_study(study(), Lookup(), models, progress=False)


def test_a_declared_study_survives_its_file(tmp_path):
    (tmp_path / "s.json").write_text(study_text(study()))
    assert read_study(tmp_path / "s.json") == study()


def test_an_unknown_kind_of_models_is_refused():
    with pytest.raises(ValidationError, match="kind"):
        study(models={"m": {"kind": "borrowed", "folders": ["a"]}}, only={})
