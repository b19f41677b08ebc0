"""A study is measured by the engine, or through hooks where that is asked for."""

from pathlib import Path

import numpy as np
import pytest
from small import ANSWER, OTHER, TASK, small

from workbench import Heads, Study, cut, run_study, zero
from workbench.cells import Naming
from workbench.checkpoints import Trained
from workbench.engine import measure_each
from workbench.measuring import shared

CONDITIONS = {"clean": (), "cut": (cut(ANSWER),), "other": (cut(OTHER),), "z": (zero(Heads(layer=0, part="z")),)}
STUDY = Study(conditions=CONDITIONS, metrics=("loss", "accuracy"), n=40, data_seed=3)


def measured(engine, model):
    return run_study(STUDY, TASK, {"m": [Trained(model, 0, Path(), [], {})]}, engine=engine, progress=False)[0]


def test_both_engines_give_the_same_table_within_rounding():
    model = small(norm="post", heads=2)
    auto, hooks = measured("auto", model), measured("hooks", model)
    assert auto[["condition", "example"]].equals(hooks[["condition", "example"]])
    np.testing.assert_allclose(auto["loss"], hooks["loss"], rtol=1e-5)
    assert auto["accuracy"].equals(hooks["accuracy"])


def test_the_engine_that_is_asked_for_is_the_one_that_measures(monkeypatch):
    asked = []

    def noted(*args, engine, **kwargs):
        asked.append(engine)
        return measure_each(*args, engine=engine, **kwargs)

    monkeypatch.setattr("workbench.measuring.measure_each", noted)
    measured("hooks", small())
    measured("auto", small())
    assert asked == ["hooks", "auto"]


def test_what_went_through_hooks_on_request_is_kept_apart_in_the_store():
    auto, hooks = (Naming(shared(STUDY, TASK, engine)) for engine in ("auto", "hooks"))
    model = {"weights_sha256": "0", "config": "{}"}
    both = [naming.keys_in(model, "float32", "cpu") for naming in (auto, hooks)]
    assert "engine" not in auto.every
    assert not set(both[0].values()) & set(both[1].values())


def test_an_unknown_engine_is_refused_before_anything_is_measured():
    with pytest.raises(ValueError, match="engine='fast'; there are: 'auto', 'hooks'"):
        measured("fast", small())
