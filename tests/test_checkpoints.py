"""Checkpoints: the same bits back, found by what defines them, and a clear error for every kind of damage."""

import hashlib
import json
import os
import pickle
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors

from tasks.lookup import Lookup
from workbench import checkpoints, fitting, task, training
from workbench.checkpoints import ABOUT, WEIGHTS, key, load, provenance, save
from workbench.holdings import place as home
from workbench.models.config import Mask, ModelConfig
from workbench.models.transformer import Transformer
from workbench.recipe import Recipe
from workbench.training import definition

CONFIG = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=2, n_heads=2)
CURVE = [{"step": 1, "loss": 2.7725887, "accuracy": 0.0625}]


def model_of(seed=0, dtype=torch.float32):
    return Transformer(CONFIG, seed=seed).to(dtype)


def defined(**changes):
    told = {"task": Lookup(), "config": CONFIG, "recipe": Recipe(), "seed": 0, "trainer": "single", "device": "cpu"}
    return definition(**(told | changes))


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "one", model_of(), defined(), CURVE)


def about(folder):
    return json.loads((folder / ABOUT).read_text())


def rewrite(folder, **changes):
    (folder / ABOUT).write_text(json.dumps(about(folder) | changes))


def reweigh(folder, raw):
    """Other weights, with the SHA-256 that fits them."""
    (folder / WEIGHTS).write_bytes(raw)
    rewrite(folder, weights_sha256=hashlib.sha256(raw).hexdigest())


def tensors(folder):
    return read_tensors((folder / WEIGHTS).read_bytes())


def refused(folder, kind=ValueError):
    """The message of the error with which the folder is refused."""
    with pytest.raises(kind) as caught:
        load(folder)
    return str(caught.value)


# Round trip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_weights_come_back_bit_for_bit_in_their_dtype(tmp_path, dtype):
    model = model_of(dtype=dtype)
    back = load(save(tmp_path / "one", model, defined(), CURVE))
    assert back.model.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        there = back.model.state_dict()[name]
        assert there.dtype == dtype and torch.equal(there, value)


def test_everything_else_comes_back(folder):
    back = load(str(folder))
    assert (back.seed, back.curve, back.folder, back.model.config) == (0, CURVE, folder, CONFIG)
    assert back.about["definition"] == defined()
    assert not back.model.training
    assert set(back.about["made_with"]) == {"versions", "machine", "commit"}


def test_the_same_model_gives_the_same_weights_file(tmp_path):
    one, other = (save(tmp_path / name, model_of(), defined(), CURVE) for name in "ab")
    assert (one / WEIGHTS).read_bytes() == (other / WEIGHTS).read_bytes()


# Key


def test_the_key_is_the_same_for_the_same_definition_in_any_order():
    one = key(defined())
    assert len(one) == 20 and set(one) <= set("0123456789abcdef")
    assert key(dict(reversed(defined().items()))) == one == key(defined())


def other(value):
    """Another value of the same kind, that every field of Recipe and ModelConfig would take."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 + 0.01
    if isinstance(value, tuple):
        return (Mask(window=2),)
    return {"relu": "gelu", "post": "pre", "learned": "none", None: 0.5}[value]


@pytest.mark.parametrize("field", Recipe.model_fields)
def test_the_key_changes_with_every_field_of_the_recipe(field):
    changed = Recipe(**{field: other(getattr(Recipe(), field))})
    assert key(defined(recipe=changed)) != key(defined())


@pytest.mark.parametrize("field", ModelConfig.model_fields)
def test_the_key_changes_with_every_field_of_the_config(field):
    changed = CONFIG.model_copy(update={field: other(getattr(CONFIG, field))})
    assert key(defined(config=changed)) != key(defined())


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"trainer": "ensemble"},
        {"device": "cuda"},
        {"task": Lookup(letters=9)},
        {"task": Lookup(digits=9)},
        {"task": Lookup(pairs=3)},
    ],
    ids=str,
)
def test_the_key_changes_with_every_part_of_the_definition(change):
    assert key(defined(**change)) != key(defined())


@pytest.mark.parametrize(
    ("where", "name"), [(fitting, "MEANING"), (Recipe, "MEANING"), (ModelConfig, "MEANING"), (Lookup, "MEANING")]
)
def test_the_key_changes_with_every_meaning(monkeypatch, where, name):
    before = key(defined())
    monkeypatch.setattr(where, name, 99)
    assert key(defined()) != before


class Relabelled(Lookup):
    """Draws the same tokens; another role."""

    def sample(self, n, seed):
        drawn = super().sample(n, seed)
        return drawn.with_roles(answer=drawn.roles["other"])


def test_the_key_changes_with_what_the_task_really_draws():
    assert Relabelled().model_dump() == Lookup().model_dump()
    assert task.identity(Relabelled())["digest"] != task.identity(Lookup())["digest"]
    assert key(defined(task=Relabelled())) != key(defined())


def test_the_key_does_not_change_with_versions_or_commit(monkeypatch, tmp_path):
    before = key(defined())
    monkeypatch.setattr(checkpoints, "provenance", lambda: {"versions": {"torch": "9"}, "commit": "f00"})
    monkeypatch.setattr(torch, "__version__", "9")
    assert key(defined()) == before
    saved = load(save(tmp_path / "one", model_of(), defined(), CURVE))
    assert saved.about["made_with"]["commit"] == "f00" and key(saved.about["definition"]) == before


def test_a_definition_that_is_no_json_has_no_key():
    with pytest.raises(ValueError, match="not JSON compliant"):
        key({"rate": float("nan")})


# Writers


def test_the_first_of_two_writers_wins(folder):
    assert save(folder, model_of(seed=1), defined(), CURVE) == folder
    assert torch.equal(load(folder).model.embed.W_E, model_of(seed=0).embed.W_E)
    assert os.listdir(folder.parent) == ["one"]


def test_a_writer_overtaken_at_the_last_moment_leaves_what_is_there(tmp_path, monkeypatch):
    rename = Path.rename

    def overtaken(beside, target):
        monkeypatch.setattr(Path, "rename", rename)
        save(target, model_of(seed=1), defined(), CURVE)
        return rename(beside, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    save(tmp_path / "one", model_of(seed=0), defined(), CURVE)
    assert torch.equal(load(tmp_path / "one").model.embed.W_E, model_of(seed=1).embed.W_E)
    assert os.listdir(tmp_path) == ["one"]


def test_many_writers_leave_one_whole_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "provenance", dict)
    together, errors = threading.Barrier(6), []

    def write(seed):
        try:
            together.wait(30)
            save(tmp_path / "one", model_of(seed), defined(), CURVE)
        except Exception as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert errors == [] and os.listdir(tmp_path) == ["one"]
    load(tmp_path / "one")


@pytest.mark.parametrize("step", ["write_text", "rename"])
def test_a_writer_that_fails_leaves_nothing(tmp_path, monkeypatch, step):
    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(Path, step, full)
    with pytest.raises(OSError, match="no space left"):
        save(tmp_path / "one", model_of(), defined(), CURVE)
    assert os.listdir(tmp_path) == []


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    model = model_of()
    model.unembed.b_U.data[3] = float("inf")
    with pytest.raises(ValueError, match=r"one: unembed\.b_U holds NaN or infinity"):
        save(tmp_path / "one", model, defined(), CURVE)
    assert os.listdir(tmp_path) == []


def test_a_definition_without_a_seed_is_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"has an int 'seed'; this has \['what'\]"):
        save(tmp_path / "one", model_of(), {"what": "mine"}, CURVE)
    assert os.listdir(tmp_path) == []


# Damage


@pytest.mark.parametrize("name", [WEIGHTS, ABOUT])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert refused(folder, FileNotFoundError).startswith(f"{folder / name}: no such file")


def test_a_missing_folder_is_named(tmp_path):
    assert f"{tmp_path / 'none'}" in refused(tmp_path / "none", FileNotFoundError)


@pytest.mark.parametrize("left", [0, 7, 8, 100, -1])
def test_truncated_weights_are_refused(folder, left):
    raw = (folder / WEIGHTS).read_bytes()[:left]
    (folder / WEIGHTS).write_bytes(raw)
    assert refused(folder).startswith(f"{folder / WEIGHTS}: the weights are not those")
    reweigh(folder, raw)
    assert refused(folder).startswith(f"{folder / WEIGHTS}: no valid safetensors")


@pytest.mark.parametrize("place", [0.0, 0.3, 0.9, 1.0])
def test_one_flipped_bit_is_refused(folder, place):
    raw = bytearray((folder / WEIGHTS).read_bytes())
    raw[int(place * (len(raw) - 1))] ^= 1
    (folder / WEIGHTS).write_bytes(raw)
    assert f"{folder / WEIGHTS}: " in refused(folder) and "SHA-256 differs" in refused(folder)


@pytest.mark.parametrize("text", ["", "{", '{"config": ', "\xff", "no json"])
def test_broken_json_is_refused(folder, text):
    (folder / ABOUT).write_bytes(text.encode("latin-1"))
    assert refused(folder).startswith(f"{folder / ABOUT}: no valid JSON")


@pytest.mark.parametrize("value", [[], 3, None, "text", {}])
def test_json_that_is_no_checkpoint_is_refused(folder, value):
    (folder / ABOUT).write_text(json.dumps(value))
    assert refused(folder).startswith(f"{folder / ABOUT}: a checkpoint records ['config', 'curve',")


def test_an_unknown_key_is_refused_by_name(folder):
    rewrite(folder, hidden="x")
    assert str(folder / ABOUT) in refused(folder) and "'hidden'" in refused(folder)


def both(folder, config):
    """The configuration changed in both of its places."""
    rewrite(folder, config=config, definition=about(folder)["definition"] | {"config": config})


@pytest.mark.parametrize(
    ("change", "named"),
    [({"n_expert": 3}, "n_expert"), ({"norm": "sandwich"}, "norm"), ({"n_layers": "two"}, "n_layers")],
)
def test_a_configuration_that_is_none_is_refused_by_the_name_of_the_field(folder, change, named):
    both(folder, about(folder)["config"] | change)
    assert refused(folder).startswith(f"{folder / ABOUT}: the configuration cannot be read") and named in refused(
        folder
    )


@pytest.mark.parametrize("config", [None, [], 3])
def test_a_configuration_that_is_no_object_is_refused(folder, config):
    both(folder, config)
    assert str(folder / ABOUT) in refused(folder)


def test_a_configuration_that_is_not_the_one_defined_is_refused(folder):
    """The shapes are the same for every activation: only the text tells."""
    rewrite(folder, config=about(folder)["config"] | {"act_fn": "gelu"})
    assert refused(folder).startswith(f"{folder / ABOUT}: the configuration is not the one in the definition")


@pytest.mark.parametrize("seed", [None, "0", 1.5])
def test_a_definition_without_a_model_seed_is_refused(folder, seed):
    rewrite(folder, definition=about(folder)["definition"] | {"seed": seed})
    assert refused(folder) == f"{folder / ABOUT}: the definition has no model seed"


def without(found):
    return {name: value for name, value in found.items() if name != "unembed.b_U"}


@pytest.mark.parametrize(
    "change",
    [without, lambda found: found | {"extra": torch.ones(2)}, lambda found: found | {"unembed.b_U": torch.ones(15)}],
    ids=["one missing", "one too many", "one too short"],
)
def test_tensors_that_do_not_fit_the_configuration_are_refused(folder, change):
    reweigh(folder, write_tensors(change(tensors(folder))))
    message = refused(folder)
    assert message.startswith(f"{folder / WEIGHTS}: the weights do not fit") and (
        "b_U" in message or "extra" in message
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda found: {},
        lambda found: {name: value.long() for name, value in found.items()},
        lambda found: found | {"unembed.b_U": found["unembed.b_U"].double()},
    ],
    ids=["none", "integers", "mixed"],
)
def test_weights_of_no_single_floating_dtype_are_refused(folder, change):
    reweigh(folder, write_tensors(change(tensors(folder))))
    assert refused(folder).startswith(f"{folder / WEIGHTS}: weights are of one floating dtype")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(folder, value):
    found = tensors(folder)
    found["blocks.1.attn.W_Q"][0, 0, 0] = value
    reweigh(folder, write_tensors(found))
    assert refused(folder) == f"{folder / WEIGHTS}: blocks.1.attn.W_Q holds NaN or infinity"


class Trap:
    def __reduce__(self):
        return (os.mkdir, ("sprung",))


def test_nothing_is_unpickled(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for raw in (pickle.dumps(Trap()), pickle.dumps({"unembed.b_U": Trap()})):
        reweigh(folder, raw)
        assert refused(folder).startswith(f"{folder / WEIGHTS}: no valid safetensors")
    torch.save({"unembed.b_U": Trap()}, tmp_path / "pickled")
    reweigh(folder, (tmp_path / "pickled").read_bytes())
    assert "no valid safetensors" in refused(folder)
    assert not Path("sprung").exists()
    pickle.loads(pickle.dumps(Trap()))
    assert Path("sprung").exists()


# Where, and with what


def test_the_folder_of_runs_is_the_one_given_then_the_environments_then_runs(monkeypatch, tmp_path):
    monkeypatch.delenv("WORKBENCH_HOME", raising=False)
    assert home() == Path("runs")
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    assert home() == tmp_path
    assert home("elsewhere") == Path("elsewhere")


def test_models_are_kept_under_the_environments_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    one = training.train(Lookup(), CONFIG, Recipe(steps=1, batch_size=2), 0, device="cpu", progress=False)
    assert one.folder == tmp_path / "checkpoints" / key(one.about["definition"])
    assert (one.folder / WEIGHTS).is_file()


def test_what_it_was_made_with_is_recorded_and_no_git_is_no_error(monkeypatch):
    assert provenance()["versions"]["torch"] == torch.__version__
    monkeypatch.setenv("PATH", "")
    assert provenance()["commit"] is None
