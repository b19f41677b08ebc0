"""Cells are kept under the name of the model that gave them: edited weights, hooks, and frames that do not belong
together are found out."""

import pandas as pd
import pytest
import torch

from tasks.lookup import Lookup
from workbench import Edges, ModelConfig, Recipe, Study, Transformer, cut, joined, run_study, sweep, train, zero
from workbench.cells import configuration
from workbench.genuine import HOOKED, departure
from workbench.locations import Stream
from workbench.models.config import EncoderDecoderConfig

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


# Models that were changed in more than weights


def other_act(model):
    model.blocks[0].mlp.act = torch.sin


def other_norm(model):
    model.blocks[1].norm = "none"


def no_norm(model):
    model.blocks[1].ln2 = torch.nn.Identity()


def own_method(model):
    attn = model.blocks[0].attn
    attn.output = lambda z, empty=None: type(attn).output(attn, z, empty) * 2


def own_class(model):
    class Halved(type(model.blocks[0].mlp)):
        def forward(self, x):
            return super().forward(x) / 2

    model.blocks[0].mlp.__class__ = Halved


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_act, "blocks.0.mlp.act is not what its configuration builds"),
        (other_norm, "blocks.1.norm is not what its configuration builds"),
        (no_norm, "blocks.1.ln2 is an Identity"),
        (own_method, "blocks.0.attn has a method of its own, output"),
        (own_class, "blocks.0.mlp is a Halved"),
    ],
)
@pytest.mark.parametrize("bare", [False, True])
def test_a_model_that_computes_something_else_is_noted_and_not_kept(trained, tmp_path, change, why, bare):
    """Neither does it get the cells of the one that it was, nor does that one get its."""
    given = {"m": [trained.model if bare else trained]}
    clean, notes = run_study(study(), TASK, given, store=tmp_path / "cells", progress=False)
    assert notes.empty
    kept = sorted(path.name for path in (tmp_path / "cells" / "blocks").iterdir())
    change(trained.model)
    if change is no_norm and not bare:  # whose weights are fewer then, too
        with pytest.raises(ValueError, match="no longer those of its checkpoint"):
            run_study(study(), TASK, given, store=tmp_path / "cells", progress=False)
        return
    changed, notes = run_study(study(), TASK, given, store=tmp_path / "cells", progress=False)
    assert losses(changed) == losses(run_study(study(), TASK, given, progress=False)[0]) != losses(clean)
    assert [note for note in notes["note"] if why in note and "not kept" in note]
    assert sorted(path.name for path in (tmp_path / "cells" / "blocks").iterdir()) == kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize(
    "asked", [{"positions": "rotary"}, {"positions": "sinusoidal"}, {"masks": [{"window": 2}]}, {"attn_only": True}]
)
def test_a_model_as_it_was_built_departs_from_nothing(asked, dtype):
    config = {"d_vocab": 16, "n_ctx": 9, "d_model": 8, "n_layers": 2, "n_heads": 2, **asked}
    one = Transformer(ModelConfig(**config), seed=5).to(dtype)
    assert departure(one) is None and departure(one.train().eval()) is None
    one.run_with_cache(torch.zeros(1, 9, dtype=torch.long))
    assert departure(one) is None


OTHER_WORDS = Lookup(letters=6, digits=10)


def test_a_model_is_not_measured_on_tokens_that_are_other_words_than_it_was_trained_on(trained, tmp_path):
    """There are as many, so that nothing else would say so."""
    assert len(OTHER_WORDS.vocabulary) == len(TASK.vocabulary)
    why = r"'m', model seed 0, was trained on task 'lookup'.*token 6 was .g. and is .0. here"
    with pytest.raises(ValueError, match=why):
        run_study(study(), OTHER_WORDS, {"m": [trained]}, progress=False)
    with pytest.raises(ValueError, match=why):
        sweep({"m": [trained]}, OTHER_WORDS.sample(20, seed=0), cut, over="edges", layers=1, progress=False)
    sweep({"m": [trained.model]}, OTHER_WORDS.sample(20, seed=0), cut, over="edges", layers=1, progress=False)
    run_study(study(), Lookup(pairs=3), {"m": [trained]}, progress=False)  # the same words


def test_a_study_under_autocast_is_refused(trained, tmp_path):
    """It would be kept under the name of one that was not, and worker processes would know nothing of it."""
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=r"autocast is on.*bfloat16"):
        run_study(study(), TASK, {"m": [trained]}, store=tmp_path / "cells", progress=False)
