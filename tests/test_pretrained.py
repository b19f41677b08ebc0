"""Models that others saved: the same numbers back, a clear error for every kind of damage, and no code run."""

import json
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.utils import logging

from tests import foreign
from workbench.models import pretrained
from workbench.models.families import Unsupported
from workbench.models.pretrained import load_pretrained
from workbench.models.weights import read_json

CONFIG, WEIGHTS, INDEX, PICKLED = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
)
NAME = "transformer.h.1.attn.c_attn.weight"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    foreign.made("gpt2").save_pretrained(folder := tmp_path_factory.mktemp("original") / "gpt2")
    return folder


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(original, tmp_path / "gpt2"))


def state(model):
    """The numbers of a wrapped model, by their names in its file."""
    return {name.removeprefix("inner."): value for name, value in model.state_dict().items()}


def refused(folder, kind=ValueError):
    """The message of the error with which the folder is refused."""
    with pytest.raises(kind) as caught:
        load_pretrained(folder)
    assert caught.type is kind
    return str(caught.value)


def configure(folder, **changes):
    known = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps({name: value for name, value in known.items() if value is not ...}))


def reweigh(folder, change):
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, **change(tensors)}, folder / WEIGHTS, {"format": "pt"})


def lose(folder, name):
    tensors = load_file(folder / WEIGHTS)
    del tensors[name]
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def shard(folder, **renamed):
    """The weights in two files with an index, in which tensors may be renamed to other files."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    where = {name: SHARDS[i % 2] for i, name in enumerate(sorted(tensors))}
    for file in SHARDS:
        save_file({name: tensors[name] for name in tensors if where[name] == file}, folder / file, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where | renamed}))


def pickle_as(folder, value=None):
    """The weights, or something else, in a .bin."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(tensors if value is None else value, folder / PICKLED)
    return tensors


def same(model, tensors):
    found = state(model)
    return all(torch.equal(found[name], value) for name, value in tensors.items())


# Round trip


@pytest.mark.parametrize("name", foreign.NAMES)
def test_every_number_of_every_family_comes_back(name, tmp_path):
    model = foreign.made(name)
    model.save_pretrained(tmp_path / name)
    back = state(load_pretrained(tmp_path / name))
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[key], value) for key, value in model.state_dict().items())


def test_nothing_is_printed_and_the_settings_of_transformers_stay(folder, capfd):
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    configure(folder, use_return_dict=1)
    refused(folder)
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_shards_hold_the_same_model(folder):
    tensors = load_file(folder / WEIGHTS)
    shard(folder)
    assert same(load_pretrained(folder), tensors)


def test_what_was_checked_is_what_is_read_where_one_file_and_shards_are_there(folder):
    """transformers reads the one file: shards that are sound must not vouch for it."""
    shutil.copy(folder / WEIGHTS, folder / "whole")
    shard(folder)
    (folder / "whole").rename(folder / WEIGHTS)
    reweigh(folder, lambda tensors: {NAME: tensors[NAME].fill_(float("nan"))})
    assert refused(folder).startswith(f"{folder / WEIGHTS}: '{NAME}' holds NaN")


def test_the_configuration_cannot_name_another_file_of_weights(folder):
    tensors = load_file(folder / WEIGHTS)
    save_file({name: torch.full_like(value, 7) for name, value in tensors.items()}, folder / "other.safetensors")
    configure(folder, transformers_weights="other.safetensors")
    assert same(load_pretrained(folder), tensors)


def test_a_model_that_was_read_does_not_change_with_its_file(folder):
    tensors = {name: value.clone() for name, value in load_file(folder / WEIGHTS).items()}
    model = load_pretrained(folder)
    with open(folder / WEIGHTS, "r+b") as file:
        file.write(bytes((folder / WEIGHTS).stat().st_size))
    assert same(model, tensors)


# Folder and configuration


def test_a_missing_folder_is_told(tmp_path):
    assert refused(tmp_path / "no", FileNotFoundError) == f"{tmp_path / 'no' / CONFIG}: no such file; there is: nothing"


def test_a_missing_configuration_is_told_with_what_there_is(folder):
    (folder / CONFIG).unlink()
    assert refused(folder, FileNotFoundError).startswith(
        f"{folder / CONFIG}: no such file; there is: generation_config"
    )


def test_missing_weights_are_told_with_what_there_is(folder):
    (folder / WEIGHTS).unlink()
    said = refused(folder, FileNotFoundError)
    assert said.startswith(f"{folder}: no weights: none of {WEIGHTS}, {INDEX}, {PICKLED}; there is: {CONFIG}")


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"a": "\xff"}', b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"layer_norm_epsilon": NaN}', b"\x80\x04N."],
    ids=["empty", "truncated", "latin-1", "byte order mark", "deep", "NaN", "pickle"],
)
def test_a_configuration_that_is_no_json_is_refused(folder, raw):
    (folder / CONFIG).write_bytes(raw)
    assert refused(folder).startswith(f"{folder / CONFIG}: no valid JSON (")


def test_infinity_is_a_number_in_a_configuration(folder):
    (folder / CONFIG).write_text('{"limit": Infinity}')
    assert read_json(folder / CONFIG) == {"limit": float("inf")}


@pytest.mark.parametrize(("text", "kind"), [("[]", "list"), ("3", "int"), ("null", "NoneType"), ('"x"', "str")])
def test_a_configuration_that_is_no_object_is_refused(folder, text, kind):
    (folder / CONFIG).write_text(text)
    assert refused(folder) == f"{folder / CONFIG}: a JSON object was expected; there is a {kind}"


@pytest.mark.parametrize("value", [..., None, [], [3], {}, "GPT2LMHeadModel"], ids=str)
def test_a_configuration_without_architectures_is_refused(folder, value):
    configure(folder, architectures=value)
    assert refused(folder).startswith(f"{folder / CONFIG}: 'architectures' does not name a class")


@pytest.mark.parametrize(
    "name",
    ["Nope", "os", "__import__", "pipeline", "GPT2Config", "GPT2Tokenizer", "AutoModel", "logging", "utils.logging",
     "GPT2LMHeadModel.from_pretrained", "../x", "", "__class__", "torch"],
)  # fmt: skip
def test_a_name_that_is_no_model_is_refused_and_not_called(folder, name):
    configure(folder, architectures=[name])
    assert refused(folder) == f"{folder / CONFIG}: {name!r} is no model of the installed transformers"


@pytest.mark.parametrize("name", ["PreTrainedModel", "GPT2PreTrainedModel"])
def test_a_class_of_which_no_model_is_made_is_refused(folder, name):
    configure(folder, architectures=[name])
    assert refused(folder).startswith(f"{folder / CONFIG}: {name} cannot be built from it and the weights (")


def test_a_class_without_logits_is_refused_by_folder(folder):
    configure(folder, architectures=["GPT2Model"])
    assert refused(folder, Unsupported).startswith(f"{folder}: GPT2Model gives no logits")


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_a_model_far_larger_than_its_weights_takes_no_memory(folder, name, monkeypatch):
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", None)
    configure(folder, architectures=[name])
    numbers = sum(value.numel() for value in load_file(folder / WEIGHTS).values())
    assert f"numbers, and the weights are {numbers:,})" in refused(folder)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"n_head": 3}, "`embed_dim` must be divisible by num_heads"),
        ({"n_layer": "2"}, "Field 'n_layer' expected int, got str (value: '2')"),
        ({"n_layer": 0}, "a model without layers"),
        ({"n_layer": -1}, "a model without layers"),
        ({"n_head": 0}, "ZeroDivisionError"),
        ({"activation_function": "os.system"}, "KeyError: 'os.system'"),
        ({"to_dict": 1}, "'int' object is not callable"),
        ({"use_return_dict": 1}, "has no setter"),
        ({"__class__": "x"}, "__class__ must be set to a class"),
        ({"quantization_config": {"quant_method": "fp8"}}, "the weights are quantized"),
        ({"dtype": "int8"}, "not a floating-point dtype"),
    ],
    ids=str,
)
def test_a_configuration_of_which_no_model_can_be_made_is_refused(folder, change, fault):
    configure(folder, **change)
    said = refused(folder)
    assert said.startswith(f"{folder / CONFIG}: GPT2LMHeadModel cannot be built from it and the weights (")
    assert fault in said and "\n" not in said


def test_a_configuration_outside_the_folder_is_not_read(folder):
    shutil.copy(folder / CONFIG, folder.parent / "config.5.0.0.json")
    configure(folder, configuration_files=["../config.5.0.0.json"])
    said = f"{folder / CONFIG}: names the file '../config.5.0.0.json', which is outside {folder}; it is not read"
    assert refused(folder) == said


def test_the_configuration_that_was_checked_is_the_one_that_is_used(folder):
    """transformers would take that of the version nearest to its own."""
    shutil.copy(folder / CONFIG, folder / "config.5.0.0.json")
    configure(folder, configuration_files=["config.5.0.0.json"], n_head=4)
    assert load_pretrained(folder).inner.config.n_head == 4


def test_a_kernel_that_the_configuration_names_is_not_fetched(folder, monkeypatch):
    asked, real = [], transformers.PreTrainedModel._check_and_adjust_attn_implementation

    def watched(model, name, *args, **kwargs):
        asked.append(name)
        return real(model, name, *args, **kwargs)

    monkeypatch.setattr(transformers.PreTrainedModel, "_check_and_adjust_attn_implementation", watched)
    configure(folder, _attn_implementation="evil/kernel", attn_implementation="evil/kernel")
    load_pretrained(folder)
    assert asked and set(asked) == {"eager"}


@pytest.mark.parametrize("where", ["config", "tokenizer", "both"])
def test_code_in_the_folder_is_never_run(folder, tmp_path, where):
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'sprung')!r})\nclass M: pass\n")
    if where != "config":
        tokenize(folder, tokenizer_class="M", auto_map={"AutoTokenizer": ["evil.M", "evil.M"]})
    if where == "tokenizer":
        load_pretrained(folder)
    else:
        configure(folder, architectures=["M"], auto_map={"AutoConfig": "evil.M", "AutoModelForCausalLM": "evil.M"})
        assert refused(folder).startswith(f"{folder / CONFIG}: 'M' is no model of the installed transformers (its code")
    assert not (tmp_path / "sprung").exists()
    exec((folder / "evil.py").read_text(), {})
    assert (tmp_path / "sprung").exists()


# Safetensors


@pytest.mark.parametrize("left", [0, 7, 8, 100, -1])
def test_truncated_weights_are_refused(folder, left):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:left])
    assert refused(folder).startswith(f"{folder / WEIGHTS}: no valid safetensors (")


@pytest.mark.parametrize("place", [0, 5, 7, 9])
def test_a_bit_flipped_in_the_header_is_refused(folder, place):
    raw = bytearray((folder / WEIGHTS).read_bytes())
    raw[place] ^= 1
    (folder / WEIGHTS).write_bytes(raw)
    assert refused(folder).startswith(f"{folder / WEIGHTS}: no valid safetensors (")


def test_a_pickle_by_the_name_of_safetensors_is_not_unpickled(folder):
    pickle_as(folder)
    (folder / PICKLED).rename(folder / WEIGHTS)
    assert refused(folder).startswith(f"{folder / WEIGHTS}: no valid safetensors (")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_one_number_that_is_none_is_refused_by_the_name_of_its_tensor(folder, value, dtype):
    def change(tensors):
        tensors[NAME][3, 2] = value
        return {NAME: tensors[NAME].to(dtype)}

    reweigh(folder, change)
    said = f"{folder / WEIGHTS}: '{NAME}' holds NaN or infinity; no result from such weights means anything"
    assert refused(folder) == said


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu])
def test_nan_is_found_in_numbers_of_8_bits(folder, dtype):
    reweigh(folder, lambda tensors: {NAME: torch.full_like(tensors[NAME], float("nan")).to(dtype)})
    assert refused(folder).startswith(f"{folder / WEIGHTS}: '{NAME}' holds NaN or infinity")


def test_complex_weights_are_refused(folder):
    reweigh(folder, lambda tensors: {NAME: tensors[NAME].to(torch.complex64)})
    assert refused(folder) == f"{folder / WEIGHTS}: '{NAME}' holds complex numbers; weights are real"


def test_whole_numbers_in_place_of_weights_are_refused(folder):
    reweigh(folder, lambda tensors: {NAME: tensors[NAME].to(torch.int32)})
    said = f"{folder}: the weights hold whole numbers for {NAME!r}, which GPT2LMHeadModel has as floats"
    assert refused(folder) == said


def test_a_missing_tensor_is_named(folder):
    lose(folder, NAME)
    assert refused(folder).startswith(f"{folder}: the weights lack {NAME} of GPT2LMHeadModel as {CONFIG} describes it")


def test_an_output_layer_that_is_not_tied_and_not_there_is_named(folder):
    configure(folder, tie_word_embeddings=False)
    assert refused(folder).startswith(f"{folder}: the weights lack lm_head.weight")


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder):
    reweigh(folder, lambda _: {"transformer.ln_f.bias": torch.zeros(15)})
    said = f"{folder}: the weights have another shape for transformer.ln_f.bias ([15] in the file, [16] wanted)"
    assert refused(folder).startswith(said)


def test_an_embedding_of_another_vocabulary_is_named(folder):
    configure(folder, vocab_size=30)
    assert "another shape for transformer.wte.weight ([31, 16] in the file, [30, 16] wanted)" in refused(folder)


def test_the_name_of_a_tensor_cannot_write_on_the_terminal(folder):
    reweigh(folder, lambda _: {"\x1b[2J": torch.full((1,), float("nan"))})
    assert refused(folder).startswith(f"{folder / WEIGHTS}: '\\x1b[2J' holds NaN")


# Shards


def test_a_truncated_index_is_refused(folder):
    shard(folder)
    (folder / INDEX).write_bytes((folder / INDEX).read_bytes()[:-9])
    assert refused(folder).startswith(f"{folder / INDEX}: no valid JSON (")


@pytest.mark.parametrize("value", [{}, {"weight_map": {}}, {"weight_map": [1]}, {"weight_map": None}], ids=str)
def test_an_index_without_a_map_is_refused(folder, value):
    shard(folder)
    (folder / INDEX).write_text(json.dumps(value))
    assert refused(folder).startswith(f"{folder / INDEX}: no 'weight_map'")


@pytest.mark.parametrize("name", ["none.safetensors", "", ".", 3, None])
def test_a_shard_that_is_not_there_is_named(folder, name):
    shard(folder, **{NAME: name})
    said = f"{folder / INDEX}: names the file {str(name)!r}, which is not in {folder}"
    assert refused(folder, FileNotFoundError) == said


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "a/../../gpt2x", "a\0b"])
def test_a_shard_outside_the_folder_is_not_read(folder, original, name):
    shutil.copytree(original, folder.parent / "other")
    shard(folder, **{NAME: name})
    said = f"{folder / INDEX}: names the file {name!r}, which is outside {folder}; it is not read"
    assert refused(folder) == said


def test_a_shard_that_is_a_link_out_of_the_folder_is_not_read(folder, original):
    shard(folder, **{NAME: "link.safetensors"})
    (folder / "link.safetensors").symlink_to(original / WEIGHTS)
    assert refused(folder).startswith(f"{folder / INDEX}: names the file 'link.safetensors', which is outside")


@pytest.mark.parametrize("left", [0, 100])
def test_a_truncated_shard_is_named(folder, left):
    shard(folder)
    (folder / SHARDS[1]).write_bytes((folder / SHARDS[1]).read_bytes()[:left])
    assert refused(folder).startswith(f"{folder / SHARDS[1]}: no valid safetensors (")


# .bin


class Trap:
    """Makes a folder where it is unpickled."""

    def __init__(self, place):
        self.place = str(place)

    def __reduce__(self):
        return (os.mkdir, (self.place,))


def kept(folder):
    """The files in which .bin files are kept, by their path."""
    return sorted((folder.parent / "home" / "foreign").rglob("*.*"))


def test_a_bin_is_read_once_and_kept_as_safetensors(folder, monkeypatch):
    tensors = pickle_as(folder)
    assert same(load_pretrained(folder), tensors)
    (file,) = (path for path in kept(folder) if path.name == WEIGHTS)
    monkeypatch.setattr(torch, "load", None)
    assert same(load_pretrained(folder), tensors)
    assert load_file(file).keys() == tensors.keys()


def test_a_bin_may_be_kept_elsewhere(folder, tmp_path):
    pickle_as(folder)
    load_pretrained(folder, place=tmp_path / "here")
    assert len(list((tmp_path / "here" / "foreign").rglob(WEIGHTS))) == 1
    assert kept(folder) == []


def test_tied_and_trained_tensors_of_a_bin_are_kept(folder):
    tensors = load_file(folder / WEIGHTS)
    embedding = torch.nn.Parameter(tensors["transformer.wte.weight"])
    pickle_as(folder, tensors | {"transformer.wte.weight": embedding, "lm_head.weight": embedding})
    assert same(load_pretrained(folder), tensors)


def test_a_bin_that_changes_is_read_anew(folder):
    tensors = pickle_as(folder)
    load_pretrained(folder)
    torch.save(tensors | {NAME: tensors[NAME] + 1}, folder / PICKLED)
    assert torch.equal(state(load_pretrained(folder))[NAME], tensors[NAME] + 1)


def test_a_bin_damaged_after_it_was_kept_is_noticed(folder):
    pickle_as(folder)
    load_pretrained(folder)
    (folder / PICKLED).write_bytes((folder / PICKLED).read_bytes()[:-100])
    assert refused(folder).startswith(f"{folder / PICKLED}: cannot be read as plain weights (")


def test_a_kept_file_that_changes_is_refused_with_how_to_mend_it(folder):
    tensors = pickle_as(folder)
    load_pretrained(folder)
    file = next(path for path in kept(folder) if path.name == WEIGHTS)
    raw = file.read_bytes()
    for changed in (raw[:-1], raw[:-1] + bytes([raw[-1] ^ 1]), b""):
        file.write_bytes(changed)
        assert refused(folder).startswith(f"{file}: not the weights that were kept of {folder / PICKLED} (SHA-256")
    shutil.rmtree(file.parent)
    assert same(load_pretrained(folder), tensors)


def test_a_kept_file_that_is_lost_is_refused_with_how_to_mend_it(folder):
    pickle_as(folder)
    load_pretrained(folder)
    file = next(path for path in kept(folder) if path.name == WEIGHTS)
    file.unlink()
    assert refused(folder, FileNotFoundError).startswith(f"{file}: no such file; delete {file.parent}, and it is made")


def test_safetensors_win_over_a_bin(folder):
    tensors = load_file(folder / WEIGHTS)
    torch.save({name: value + 1 for name, value in tensors.items()}, folder / PICKLED)
    assert same(load_pretrained(folder), tensors) and kept(folder) == []


@pytest.mark.parametrize("plain", [True, False])
def test_code_in_a_bin_is_not_run(folder, tmp_path, plain):
    trap = Trap(tmp_path / "sprung")
    tensors = load_file(folder / WEIGHTS)
    pickle_as(folder, tensors | {"trap": trap})
    if plain:
        (folder / PICKLED).write_bytes(pickle.dumps(trap, protocol=2))
    said = refused(folder)
    assert said.startswith(f"{folder / PICKLED}: cannot be read as plain weights (unsupported GLOBAL posix.mkdir")
    assert said.endswith("it is damaged, or holds code, which is not run")
    assert not (tmp_path / "sprung").exists() and kept(folder) == []
    pickle.loads(pickle.dumps(trap))
    assert (tmp_path / "sprung").exists()


def test_nobody_is_advised_to_unpickle(folder):
    pickle_as(folder, torch.nn.Linear(2, 2))
    said = refused(folder)
    assert said.startswith(f"{folder / PICKLED}: cannot be read as plain weights (Unsupported global: GLOBAL torch.nn.")
    assert "weights_only" not in said and "add_safe_globals" not in said and "\x1b" not in said


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {"state_dict": tensors},
        lambda tensors: list(tensors.values()),
        lambda tensors: dict(enumerate(tensors.values())),
        lambda tensors: {name: value.to("meta") for name, value in tensors.items()},
        lambda tensors: {name: value.to_sparse() for name, value in tensors.items()},
        lambda tensors: tensors | {"epoch": 3},
        lambda tensors: 3,
    ],
    ids=["nested", "list", "numbered", "meta", "sparse", "more", "number"],
)
def test_a_bin_of_something_else_than_named_tensors_is_refused(folder, change):
    pickle_as(folder, change(load_file(folder / WEIGHTS)))
    assert refused(folder) == f"{folder / PICKLED}: holds something else than named tensors"
    assert kept(folder) == []


def test_a_bin_that_holds_nan_is_refused_and_not_kept(folder):
    tensors = load_file(folder / WEIGHTS)
    pickle_as(folder, tensors | {NAME: tensors[NAME] * float("nan")})
    assert refused(folder).startswith(f"{folder / PICKLED}: '{NAME}' holds NaN") and kept(folder) == []


@pytest.mark.parametrize("raw", [b"", b"hello", b"\x80\x04N."], ids=["empty", "text", "pickled None"])
def test_a_bin_that_is_none_is_refused(folder, raw):
    pickle_as(folder)
    (folder / PICKLED).write_bytes(raw)
    assert refused(folder).startswith(f"{folder / PICKLED}: ")


def test_the_first_of_two_writers_wins(folder, monkeypatch):
    tensors, rename = pickle_as(folder), Path.rename

    def overtaken(beside, target):
        monkeypatch.setattr(Path, "rename", rename)
        load_pretrained(folder)
        return rename(beside, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    assert same(load_pretrained(folder), tensors)
    assert len(list((folder.parent / "home" / "foreign").iterdir())) == 1


def _load(folder, together, said):
    together.wait(60)
    try:
        load_pretrained(folder)
        said.put("")
    except Exception as error:
        said.put(repr(error))


def test_two_processes_convert_at_once(folder):
    tensors, spawning = pickle_as(folder), multiprocessing.get_context("fork")
    together, said = spawning.Barrier(2), spawning.SimpleQueue()
    both = [spawning.Process(target=_load, args=(folder, together, said)) for _ in range(2)]
    for one in both:
        one.start()
    assert [said.get() for _ in both] == ["", ""]
    for one in both:
        one.join(60)
    assert len(list((folder.parent / "home" / "foreign").iterdir())) == 1
    assert same(load_pretrained(folder), tensors)


def test_a_writer_that_fails_leaves_nothing(folder, monkeypatch):
    pickle_as(folder)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="no space left"):
        load_pretrained(folder)
    assert list((folder.parent / "home" / "foreign").iterdir()) == []


# Tokenizers


def tokenize(folder, words=31, added=(), **about):
    """A tokenizer of so many words for the folder."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_tokens(list(added))
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"} | about
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


@pytest.mark.parametrize("words", [10, 31])
def test_a_tokenizer_that_fits_comes_with_the_model(folder, words):
    tokenize(folder, words)
    assert load_pretrained(folder).tokenizer("w3 w1")["input_ids"] == [3, 1]


def test_a_folder_without_a_tokenizer_has_none(folder):
    assert load_pretrained(folder).tokenizer is None


@pytest.mark.parametrize(("words", "added"), [(32, ()), (31, ("<new>",)), (30, ("<new>", "<newer>"))])
def test_a_token_that_the_model_does_not_embed_is_refused(folder, words, added):
    tokenize(folder, words, added)
    assert refused(folder) == (
        f"{folder}: the tokenizer has a token 31, and the model embeds tokens 0 to 30: the vocabulary does not fit the "
        "model"
    )


def test_words_and_merges_alone_are_a_tokenizer_too(folder):
    (folder / "vocab.json").write_text(json.dumps({f"w{i}": i for i in range(40)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    assert "and the model embeds tokens 0 to 30: the vocabulary does not fit" in refused(folder)


def test_a_tokenizer_whose_words_are_missing_is_refused(folder):
    (folder / "vocab.txt").write_text("a\nb\nc\n")
    assert refused(folder).startswith(f"{folder}: its tokenizer, GPT2Tokenizer, has no tokens but special ones")


@pytest.mark.parametrize("name", ["../tokenizer.5.0.0.json", "/etc/tokenizer.5.0.0.json"])
def test_a_tokenizer_outside_the_folder_is_not_read(folder, name):
    tokenize(folder, fast_tokenizer_files=[name])
    shutil.move(folder / "tokenizer.json", folder.parent / "tokenizer.5.0.0.json")
    said = f"{folder / 'tokenizer_config.json'}: names the file {name!r}, which is outside {folder}; it is not read"
    assert refused(folder) == said


@pytest.mark.parametrize("key", ["vocab_file", "tokenizer_file"])
def test_no_other_words_than_the_folders_are_read(folder, key):
    tokenize(folder, 3)
    (folder / "tokenizer.json").rename(folder.parent / "other.json")
    configured = {"tokenizer_class": "BertTokenizer", key: str(folder.parent / "other.json")}
    (folder / "tokenizer_config.json").write_text(json.dumps(configured))
    assert refused(folder).startswith(f"{folder}: its tokenizer, BertTokenizer, has no tokens but special ones")


@pytest.mark.parametrize("raw", ["", '{"a"', "[]", '{"model": {"vocab": {"a": -1}}}'])
def test_a_damaged_tokenizer_is_refused(folder, raw):
    tokenize(folder)
    (folder / "tokenizer.json").write_text(raw)
    assert refused(folder).startswith(f"{folder}: its tokenizer cannot be read (")


@pytest.mark.parametrize(("raw", "fault"), [("[]", "a JSON object was expected"), ("{", "no valid JSON")])
def test_a_damaged_description_of_a_tokenizer_is_refused(folder, raw, fault):
    tokenize(folder)
    (folder / "tokenizer_config.json").write_text(raw)
    assert refused(folder).startswith(f"{folder / 'tokenizer_config.json'}: {fault}")


def test_errors_are_told_on_one_printable_line():
    said = pretrained._said(ValueError("a\nb\x1b[2J" + "x" * 400))
    assert said.startswith("ValueError: a b�[2Jxx") and len(said) == 300 and said.endswith("…")
