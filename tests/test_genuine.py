"""Cells are kept under the name of the model that gave them: edited weights, hooks, and frames that do not belong
together are found out."""

import pandas as pd
import pytest
import torch

from tasks.lookup import Lookup
from workbench import Edges, ModelConfig, Recipe, Study, Transformer, cut, joined, run_study, train, zero
from workbench.cells import configuration
from workbench.locations import Stream
from workbench.models.config import EncoderDecoderConfig
from workbench.work import HOOKED

TASK = Lookup()
CONFIG = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=2, n_heads=1)


@pytest.fixture
def trained(tmp_path):
    return train(TASK, CONFIG, Recipe(steps=2, batch_size=4, warmup=1), 0, home=tmp_path, progress=False)


def study(n=20, data_seed=0, **conditions):
    return Study(conditions={"clean": (), **conditions}, metrics=("loss",), n=n, data_seed=data_seed)


def losses(frame):
    return frame["loss"].tolist()


def edited(trained):
    with torch.no_grad():
        trained.model.unembed.W_U += 1
        trained.model.unembed.W_U[0] *= 3


def test_a_model_whose_weights_were_edited_is_refused_under_its_old_name(trained, tmp_path):
    run_study(study(), TASK, {"m": [trained]}, store=tmp_path / "cells", progress=False)
    edited(trained)
    with pytest.raises(ValueError, match=r"'m', model seed 0: its weights are no longer those of its checkpoint"):
        run_study(study(), TASK, {"m": [trained]}, store=tmp_path / "cells", progress=False)


def test_the_bare_model_is_measured_as_it_is(trained, tmp_path):
    before, _ = run_study(study(), TASK, {"m": [trained.model]}, store=tmp_path / "cells", progress=False)
    edited(trained)
    after, _ = run_study(study(), TASK, {"m": [trained.model]}, store=tmp_path / "cells", progress=False)
    assert losses(before) != losses(after)
    assert losses(after) == losses(run_study(study(), TASK, {"m": [trained.model]}, progress=False)[0])


def test_a_model_in_another_dtype_is_still_itself(trained):
    trained.model.double()
    frame, _ = run_study(study(), TASK, {"m": [trained]}, progress=False)
    assert frame.attrs["dtypes"] == {"m": ["float64"]}
    edited(trained)
    with pytest.raises(ValueError, match="no longer those of its checkpoint"):
        run_study(study(), TASK, {"m": [trained]}, progress=False)


def test_what_was_measured_under_a_hook_is_noted_and_not_kept(trained, tmp_path):
    clean, _ = run_study(study(), TASK, {"m": [trained]}, progress=False)
    handle = trained.model.blocks[0].hook_mlp_out.register_forward_hook(lambda _m, _i, out: out * 1.5)
    hooked, notes = run_study(study(), TASK, {"m": [trained]}, store=tmp_path / "cells", progress=False)
    handle.remove()
    assert HOOKED in notes["note"].tolist() and losses(hooked) != losses(clean)
    again, notes = run_study(study(), TASK, {"m": [trained]}, store=tmp_path / "cells", progress=False)
    assert losses(again) == losses(clean) and HOOKED not in notes["note"].tolist()


def test_what_a_pair_means_changes_with_what_its_sides_mean(monkeypatch):
    assert EncoderDecoderConfig.MEANING == ModelConfig.MEANING - 1
    known = configuration(Transformer(CONFIG, seed=0))
    monkeypatch.setattr(ModelConfig, "MEANING", 99)
    assert configuration(Transformer(CONFIG, seed=0)) != known


# Frames that are joined


def models(n=2):
    return [Transformer(CONFIG, seed=seed) for seed in range(n)]


def measured(label="m", several=None, **asked):
    return run_study(study(**asked), TASK, {label: several or models()}, progress=False)[0]


def test_one_condition_that_means_two_things_is_refused():
    first = measured(cut=(cut(Edges(layer=0, dest="last", source="answer")),))
    second = measured(cut=(zero(Stream(layer=0, part="mlp_out")),))
    with pytest.raises(ValueError, match=r"the condition 'cut' of 'm' is .*cut.* in one frame and .*zero"):
        joined([first, second])
    assert len(joined([first, measured("other", cut=(zero(Stream(layer=0, part="mlp_out")),))])) == 160


def test_models_of_one_label_measured_on_other_examples_are_refused():
    second = measured(data_seed=5)
    second["model_seed"] += 2
    second.attrs["measured"] = {"m": {str(int(seed) + 2): said for seed, said in second.attrs["measured"]["m"].items()}}
    with pytest.raises(ValueError, match="the models under 'm' were not all measured on the same examples"):
        joined([measured(), second])


def test_a_frame_that_does_not_say_what_was_measured_is_refused():
    frame = measured()
    bare = frame.copy()
    bare.attrs = {}
    with pytest.raises(ValueError, match="frame 1 does not say what was measured on what"):
        joined([frame, bare])


def test_parquet_keeps_what_was_measured(tmp_path):
    frame = measured()
    frame.to_parquet(tmp_path / "a.parquet")
    assert pd.read_parquet(tmp_path / "a.parquet").attrs == frame.attrs


def test_kinds_measured_on_other_examples_are_not_put_side_by_side():
    from analyses.verdicts import side_by_side

    with pytest.raises(ValueError, match=r"'a' and 'b' were not all measured on the same examples"):
        side_by_side(joined([measured("a"), measured("b", data_seed=5)]))
    assert "a · clean" in side_by_side(joined([measured("a"), measured("b")]))["condition"].tolist()
