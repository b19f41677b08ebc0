"""`workbench probe FOLDER`: one line a site for a sound folder, one paragraph and exit code 2 for every other."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests import foreign
from tests.small import small
from workbench.checkpoints import save
from workbench.cli import app
from workbench.liveness import probe
from workbench.sites import SITES

CONFIG, WEIGHTS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
CURVE = [{"step": 1, "loss": 2.0, "accuracy": 0.5}]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with one of ours and one of transformers'."""
    place = tmp_path_factory.mktemp("saved")
    save(place / "ours", small(), {"seed": 0}, CURVE)
    foreign.made("gpt2").save_pretrained(place / "gpt2")
    return place


@pytest.fixture
def place(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(saved, tmp_path / "saved"))


def asked(folder):
    return CliRunner().invoke(app, ["probe", str(folder)])


def refused(folder, *said):
    """Exit code 2, nothing on stdout, one printable paragraph on stderr with all of this in it."""
    result = asked(folder)
    assert result.exit_code == 2 and result.stdout == "" and "Traceback" not in result.stderr
    (line,) = result.stderr.removesuffix("\n").split("\n")
    assert line.startswith("workbench: ") and line.isprintable()
    for words in said:
        assert str(words) in line


def configure(folder, name=CONFIG, **changes):
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))


def reweigh(folder, **changes):
    save_file(load_file(folder / WEIGHTS) | changes, folder / WEIGHTS, {"format": "pt"})


# Sound folders


@pytest.mark.parametrize("name", ["ours", "gpt2"])
def test_a_sound_folder_is_told_a_line_a_site(place, name):
    result = asked(place / name)
    assert (result.exit_code, result.stderr) == (0, "")
    sites, weakest = result.stdout.removesuffix("\n").split("\n\n")
    names = [line.split()[0] for line in sites.split("\n")]
    assert {"scores", "pattern", "z", "resid_post"} <= {*names} <= {*SITES}
    assert all(line.split()[1] in ("live", "read-only", "absent") for line in sites.split("\n"))
    assert weakest.startswith("the weakest live site is ") and "\n" not in weakest


def test_every_site_of_ours_is_live_in_one_line(place):
    lines = asked(place / "ours").stdout.split("\n\n")[0].split("\n")
    assert sorted(line.split()[0] for line in lines) == sorted(SITES)
    assert {line.split()[1] for line in lines} == {"live"}
    assert {line.split(None, 2)[2] for line in lines if SITES[line.split()[0]].layered} == {"layers 0–1"}


def test_a_model_of_two_stacks_is_told_by_stack(tmp_path):
    foreign.made("t5").save_pretrained(tmp_path / "t5")
    said = asked(tmp_path / "t5").stdout
    for part in ("encoder", "decoder", "cross"):
        assert any(line.split()[:2] == [f"{part}.pattern", "live"] for line in said.split("\n"))


def test_the_command_says_what_the_function_measures(place):
    live = {one.site for one in probe(small()) if one.status == "live"}
    assert {line.split()[0] for line in asked(place / "ours").stdout.split("\n\n")[0].split("\n")} == live


def test_a_bin_is_told_as_its_safetensors(place):
    before = asked(place / "gpt2").stdout
    torch.save(load_file(place / "gpt2" / WEIGHTS), place / "gpt2" / PICKLED)
    (place / "gpt2" / WEIGHTS).unlink()
    assert asked(place / "gpt2").stdout == before == asked(place / "gpt2").stdout


# Folders that are none


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    refused(
        tmp_path / "none", tmp_path / "none", "is no folder; a saved model is a folder with model.json or config.json"
    )


def test_a_file_is_refused(place):
    refused(place / "gpt2" / CONFIG, place / "gpt2" / CONFIG, "is no folder")


def test_a_folder_of_something_else_is_refused(tmp_path):
    refused(tmp_path, tmp_path / CONFIG, "no such file; there is: nothing")


# Checkpoints of ours


@pytest.mark.parametrize("left", [0, 8, 100, -1])
def test_truncated_weights_of_ours_are_refused(place, left):
    file = place / "ours" / WEIGHTS
    file.write_bytes(file.read_bytes()[:left])
    refused(place / "ours", file, "the weights are not those that model.json records")


@pytest.mark.parametrize("raw", ["", "{", "[]", "[" * 100_000, "\xff"], ids=["empty", "cut", "list", "deep", "latin"])
def test_a_damaged_record_of_ours_is_refused(place, raw):
    (place / "ours" / "model.json").write_text(raw, encoding="latin-1")
    refused(place / "ours", place / "ours" / "model.json")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"n_expert": 3}, "n_expert"),
        ({"n_layers": "2"}, "n_layers"),
        ({"n_layers": 2.0}, "n_layers"),
        ({"n_layers": True}, "n_layers"),
        ({"attn_only": 1}, "attn_only"),
        ({"norm": "sandwich"}, "norm"),
    ],
    ids=str,
)
def test_a_configuration_of_another_version_is_refused_by_the_name_of_the_field(place, change, fault):
    config = json.loads((place / "ours" / "model.json").read_text())["config"]
    configure(place / "ours", "model.json", config=config | change)
    refused(place / "ours", place / "ours" / "model.json", "the configuration cannot be read", fault)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"format": 2}, "a checkpoint records"),
        ({"definition": {"seed": True}}, "the definition has no model seed"),
        ({"definition": {"seed": 0.0}}, "the definition has no model seed"),
        ({"curve": "x"}, "the training curve is no list of points"),
        ({"curve": [1]}, "the training curve is no list of points"),
        ({"weights_sha256": None}, "SHA-256 differs"),
    ],
    ids=str,
)
def test_a_record_with_other_fields_is_refused(place, change, fault):
    configure(place / "ours", "model.json", **change)
    refused(place / "ours", place / "ours", fault)


def test_a_model_too_large_for_any_memory_is_refused(place):
    config = json.loads((place / "ours" / "model.json").read_text())["config"]
    configure(place / "ours", "model.json", config=config | {"d_vocab": 10**15})
    refused(place / "ours", place / "ours" / WEIGHTS, "the weights do not fit the configuration in model.json")


# Folders of transformers


@pytest.mark.parametrize("left", [0, 8, 100, -1])
def test_truncated_weights_are_refused(place, left):
    file = place / "gpt2" / WEIGHTS
    file.write_bytes(file.read_bytes()[:left])
    refused(place / "gpt2", file, "truncated or damaged")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(place, value):
    reweigh(place / "gpt2", **{"transformer.ln_f.bias": torch.full((16,), value)})
    refused(place / "gpt2", place / "gpt2" / WEIGHTS, "'transformer.ln_f.bias' holds NaN or infinity")


def test_weights_of_another_shape_are_refused(place):
    reweigh(place / "gpt2", **{"transformer.ln_f.bias": torch.zeros(15)})
    refused(place / "gpt2", place / "gpt2", "another shape for transformer.ln_f.bias ([15] in the file, [16] wanted)")


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": None}, {"architectures": ["os"]}, {"architectures": ["\x1b[2J"]}, {"n_head": 3},
        {"n_layer": 0}, {"n_layer": "two"}, {"vocab_size": 30}, {"use_return_dict": 1}, {"model_type": "bert"},
        {"architectures": ["LlamaForCausalLM"]}, {"architectures": ["GPT2Model"]}, {"activation_function": "\x1b[2J"},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}}, {"n_head": -1},
    ],
    ids=ascii,
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_refused(place, change):
    configure(place / "gpt2", **change)
    refused(place / "gpt2", place / "gpt2")


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "none.safetensors"])
def test_shards_that_are_not_in_the_folder_are_refused(place, name):
    (place / "gpt2" / WEIGHTS).unlink()
    index = place / "gpt2" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    refused(place / "gpt2", index, repr(name))


@pytest.mark.parametrize("raw", [b"", b"x", pickle.dumps({"a": 1}), pickle.dumps(print, 4)], ids=range(4))
def test_a_bin_that_is_none_is_refused(place, raw):
    (place / "gpt2" / WEIGHTS).unlink()
    (place / "gpt2" / PICKLED).write_bytes(raw)
    refused(place / "gpt2", place / "gpt2" / PICKLED)


def test_a_program_prints_one_paragraph_and_no_traceback(place):
    """The same outside a test, where warnings and the libraries' own notes would be printed."""
    (place / "gpt2" / WEIGHTS).unlink()
    (place / "gpt2" / PICKLED).write_bytes(pickle.dumps(print, 4))  # torch warns of the protocol
    code = "import sys; from workbench.cli import main; sys.argv = ['workbench', 'probe', sys.argv[1]]; main()"
    command = [sys.executable, "-c", code, str(place / "gpt2")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"workbench: {place / 'gpt2' / PICKLED}: cannot be read as plain weights")
    assert result.stderr.count("\n") == 1
