"""The rxnmapper model's files, tokens, reactions, maps and masks; what needs the wheel fetches it, and is slow."""

import hashlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors

from analyses import rxnmapper_model
from analyses.rxnmapper_batch import COPIES, Masked, batch_of, masked
from analyses.rxnmapper_mapping import (
    UNMAPPED,
    agreement,
    baselines,
    commonest_agreement,
    mapped,
    one_to_one_agreement,
    random_agreement,
    same_order_agreement,
    table,
    used_once,
)
from analyses.rxnmapper_model import (
    ABOUT,
    LAYER_AND_HEAD,
    UNUSED,
    WEIGHTS,
    checked,
    fetch,
    folder,
    load,
    patterns,
    unpack,
)
from analyses.rxnmapper_reactions import parse, reactions
from analyses.rxnmapper_tokens import SPECIAL, arrow, element, read_vocabulary, tokenizer, words
from workbench.batch import UNREAD
from workbench.metrics import loss

SPECIALS = tuple(SPECIAL.values())
VOCABULARY = (*SPECIALS, *sorted({word for reaction in reactions().values() for word in words(reaction)}))
EVERY_REACTION = pytest.mark.parametrize("name", reactions())


def sha256(raw):
    return hashlib.sha256(raw).hexdigest()


# A handmade wheel

SMALL = {
    "architectures": ["AlbertForMaskedLM"],
    "model_type": "albert",
    "vocab_size": len(VOCABULARY),
    "embedding_size": 4,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}


def small_model():
    from transformers import AlbertConfig, AlbertForMaskedLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AlbertForMaskedLM(AlbertConfig(**SMALL)).eval()


def state_of(model):
    return dict(model.state_dict()) | {"albert.pooler.weight": torch.ones(8, 8), "albert.pooler.bias": torch.ones(8)}


def saved(value):
    raw = io.BytesIO()
    torch.save(value, raw)
    return raw.getvalue()


def wheel_of(state=None, config=SMALL, weights=None, extra=(), without=()):
    inside = {
        "config.json": json.dumps(config),
        "vocab.txt": "\n".join(VOCABULARY) + "\n",
        "pytorch_model.bin": weights or saved(state or state_of(small_model())),
        "training_args.bin": pickle.dumps(1),
    }
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, content in inside.items():
            if name not in without:
                archive.writestr(f"{rxnmapper_model.INSIDE}/{name}", content)
        for name in extra:
            archive.writestr(name, "out")
    return raw.getvalue()


def kept(tmp_path, **changes):
    raw = wheel_of(**changes)
    return unpack(raw, folder(tmp_path), sha256(raw))


def rewrite(place, name, raw):
    """Another file, with the SHA-256 that fits it."""
    (place / name).write_bytes(raw)
    about = json.loads((place / ABOUT).read_text())
    about["sha256"][name] = sha256(raw)
    (place / ABOUT).write_text(json.dumps(about))


def test_a_wheel_gives_four_files_and_none_that_is_pickled(tmp_path):
    assert sorted(os.listdir(kept(tmp_path))) == ["config.json", "fetched.json", "model.safetensors", "vocab.txt"]


def test_the_model_comes_back_with_its_weights_and_logits(tmp_path):
    kept(tmp_path)
    model, original = load(tmp_path), small_model()
    tokens = torch.arange(12).reshape(2, 6)
    assert not model.training and model.state_dict().keys() == original.state_dict().keys()
    assert all(torch.equal(value, original.state_dict()[name]) for name, value in model.state_dict().items())
    assert torch.allclose(model(tokens).logits, original(tokens).logits, atol=1e-6)


def test_loading_leaves_the_random_stream_as_it_was(tmp_path):
    kept(tmp_path)
    before = torch.get_rng_state()
    load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_tied_weights_are_kept_once_and_unused_ones_not_at_all(tmp_path):
    names = set(read_tensors((kept(tmp_path) / WEIGHTS).read_bytes()))
    assert names == set(state_of(small_model())) - set(rxnmapper_model.TIED) - UNUSED


def test_tied_weights_are_one_tensor_when_loaded(tmp_path):
    kept(tmp_path)
    model = load(tmp_path)
    assert model.predictions.decoder.weight is model.albert.embeddings.word_embeddings.weight


def test_weights_that_should_be_tied_and_differ_are_refused(tmp_path):
    state = state_of(small_model())
    state["predictions.decoder.bias"] = state["predictions.bias"] + 1
    with pytest.raises(ValueError, match=r"predictions\.decoder\.bias and predictions\.bias are tied"):
        kept(tmp_path, state=state)


def test_another_wheel_is_refused_and_nothing_is_kept(tmp_path):
    with pytest.raises(ValueError, match=r"rxnmapper==0\.4\.3 has SHA-256 [0-9a-f]{64}; 27876a42"):
        unpack(wheel_of(), folder(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["/etc/out", "../out", "rxnmapper/../../out", "..\\out", "C:/out"])
def test_a_wheel_with_a_name_that_leaves_its_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="leaves its folder; nothing of it was kept"):
        kept(tmp_path, extra=[name])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "pytorch_model.bin"])
def test_a_wheel_without_one_of_the_files_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"the wheel holds no {rxnmapper_model.INSIDE}/{name}; there are: "):
        kept(tmp_path, without=[name])


class Trap:
    def __reduce__(self):
        return (os.mkdir, ("sprung",))


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        kept(tmp_path, weights=saved({"predictions.bias": Trap()}))
    assert not Path("sprung").exists()
    pickle.loads(pickle.dumps(Trap()))
    assert Path("sprung").exists()


def test_a_missing_model_names_the_command_that_fetches_it(tmp_path, monkeypatch):
    command = r"fetch the model once with `python -m analyses\.rxnmapper_model"
    with pytest.raises(FileNotFoundError, match=f"{command} {tmp_path}`"):
        load(tmp_path)
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"{command}`"):
        load()


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "model.safetensors"])
def test_a_damaged_or_missing_file_is_named(tmp_path, name):
    place = kept(tmp_path)
    raw = (place / name).read_bytes()
    (place / name).write_bytes(raw + b" ")
    with pytest.raises(FileNotFoundError, match=f"{name} is not what was fetched"):
        load(tmp_path)
    (place / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"there is no {name}"):
        load(tmp_path)


def test_a_record_that_cannot_be_read_is_named(tmp_path):
    (kept(tmp_path) / ABOUT).write_text("{")
    with pytest.raises(FileNotFoundError, match=r"fetched\.json cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: {n: v for n, v in found.items() if n != "predictions.bias"}, r"no weights for pred.*s\.bias"),
        (lambda found: found | {"extra": torch.ones(1)}, "the model has no place for extra"),
        (lambda found: found | {"predictions.bias": found["predictions.bias"].double() + 1e-12}, "did not land"),
    ],
    ids=["one missing", "one too many", "one that changes on landing"],
)
def test_a_weight_that_does_not_land_is_named(tmp_path, change, said):
    place = kept(tmp_path)
    rewrite(place, WEIGHTS, write_tensors(change(read_tensors((place / WEIGHTS).read_bytes()))))
    with pytest.raises(ValueError, match=said):
        load(tmp_path)


def test_another_architecture_is_refused(tmp_path):
    kept(tmp_path, config=SMALL | {"architectures": ["BertForMaskedLM"]})
    with pytest.raises(ValueError, match=r"the architecture is \['BertForMaskedLM'\]; this reads AlbertForMaskedLM"):
        load(tmp_path)


def test_patterns_are_rows_that_sum_to_one_over_what_is_no_padding(tmp_path):
    kept(tmp_path)
    batch = batch_of(["CCBr.[OH-]>>CCO", "CI>>C"], VOCABULARY)
    found = patterns(load(tmp_path), batch)
    assert found.shape == (3, 2, 2, 11, 11)
    assert torch.allclose(found.sum(-1), torch.ones(3, 2, 2, 11))
    assert (found[:, 1, :, :, ~batch.valid[1]] == 0).all() and (found[:, 1, :, :, batch.valid[1]] > 0).all()


def test_patterns_are_refused_where_the_attention_gives_none(tmp_path):
    kept(tmp_path)
    with pytest.raises(ValueError, match=r"attention is 'sdpa', which gives no patterns; load\(attention='eager'\)"):
        patterns(load(tmp_path, attention="sdpa"), batch_of(["CO>>CO"], VOCABULARY))


# Fetching


def pip_gives(monkeypatch, raw, code=0):
    asked = []

    def run(command, **_):
        asked.append(command)
        if raw is not None:
            (Path(command[command.index("-d") + 1]) / "rxnmapper-0.4.3-py3-none-any.whl").write_bytes(raw)
        return subprocess.CompletedProcess(command, code, "", "no route to the index")

    monkeypatch.setattr(rxnmapper_model.subprocess, "run", run)
    return asked


def test_fetching_asks_pip_once_and_then_keeps_what_is_there(tmp_path, monkeypatch):
    raw = wheel_of()
    monkeypatch.setattr(rxnmapper_model.unpack, "__defaults__", (sha256(raw),))
    asked = pip_gives(monkeypatch, raw)
    assert fetch(tmp_path) == fetch(tmp_path) == folder(tmp_path)
    assert [command[:4] for command in asked] == [[sys.executable, "-m", "pip", "download"]]
    assert asked[0][-1] == "rxnmapper==0.4.3" and "--no-deps" in asked[0]


def test_fetching_mends_a_damaged_folder(tmp_path, monkeypatch):
    raw = wheel_of()
    monkeypatch.setattr(rxnmapper_model.unpack, "__defaults__", (sha256(raw),))
    pip_gives(monkeypatch, raw)
    (fetch(tmp_path) / WEIGHTS).write_bytes(b"")
    fetch(tmp_path)
    load(tmp_path)


@pytest.mark.parametrize(("raw", "code"), [(None, 1), (None, 0)])
def test_pips_words_are_handed_on_where_it_gives_no_wheel(tmp_path, monkeypatch, raw, code):
    pip_gives(monkeypatch, raw, code)
    with pytest.raises(RuntimeError, match="gave no wheel; pip says: no route to the index"):
        fetch(tmp_path)


def test_fetching_another_wheel_is_refused(tmp_path, monkeypatch):
    pip_gives(monkeypatch, wheel_of())
    with pytest.raises(ValueError, match="another build or a damaged download"):
        fetch(tmp_path)


@pytest.mark.parametrize("given", [["a", "b"], ["--help"]])
def test_the_command_takes_a_folder_or_nothing(given):
    with pytest.raises(SystemExit, match="HOME"):
        rxnmapper_model.main(given)


def test_importing_fetches_nothing_and_leaves_transformers_alone():
    names = ", ".join(f"analyses.rxnmapper_{name}" for name in ("model", "tokens", "reactions", "mapping", "batch"))
    code = f"import sys; sys.addaudithook(lambda e, a: 1 / 0 if e == 'subprocess.Popen' else 0); import {names}; "
    code += "print([n for n in ('transformers', 'tokenizers') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Tokens


@pytest.mark.parametrize(
    ("token", "number"),
    [("C", 6), ("c", 6), ("Cl", 17), ("Br", 35), ("[nH]", 7), ("[Cl-]", 17), ("[C@@H]", 6), ("[13CH3]", 6)]
    + [("[se]", 34), ("[As]", 33), ("[NaH]", 11), ("[CH3-]", 6), ("[B]", 5), ("[P@@H]", 15), ("[NH3+2]", 7)]
    + [("[H]", 1), ("[2H]", 1), ("[H+]", 1), ("[Hg+2]", 80), ("[Sc+3]", 21), ("[Sn]", 50), ("[nH+]", 7), ("[Cn]", 112)]
    + [(token, 0) for token in (*SPECIALS, "[unused1]", "(", "=", "1", "%10", ">>", "~", "*", "[Xx]")],
)
def test_the_element_of_a_token(token, number):
    assert element(token) == number


def test_every_reaction_is_its_tokens_joined():
    assert all("".join(words(reaction)) == reaction for reaction in reactions().values())


@pytest.mark.parametrize(("text", "left"), [("CC>>C C", ""), ("CCx>>C", "x"), ("C[>>C", r"\["), ("CQ.CZ>>C", "Q', 'Z")])
def test_text_that_no_token_covers_is_refused(text, left):
    with pytest.raises(ValueError, match=rf"{re.escape(repr(text))} holds .*{left}.*, which is no SMILES token"):
        words(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [("CC", "has 0 '>>'"), ("C>>C>>C", "has 2 '>>'"), (">>C", "no atom on one side"), ("C>>", "no atom on one side")],
)
def test_what_is_no_reaction_has_no_arrow(text, said):
    with pytest.raises(ValueError, match=said):
        arrow(words(text))


def test_the_tokenizer_cuts_every_reaction_as_the_expression_does():
    cut = tokenizer(VOCABULARY)
    for reaction in reactions().values():
        assert cut(reaction).tokens() == ["[CLS]", *words(reaction), "[SEP]"]


def test_offsets_point_at_the_tokens_in_the_text():
    reaction = "CCBr.[OH-]>>CCO"
    found = tokenizer(VOCABULARY)(reaction, return_offsets_mapping=True)["offset_mapping"]
    assert [reaction[start:stop] for start, stop in found] == ["", *words(reaction), ""]


def test_the_tokenizer_gives_the_batchs_ids_and_padding():
    some = list(reactions().values())[:20]
    batch, found = batch_of(some, VOCABULARY), tokenizer(VOCABULARY)(some, padding=True, return_tensors="pt")
    assert torch.equal(found["input_ids"], batch.tokens)
    assert torch.equal(found["attention_mask"].bool(), batch.valid)


def test_what_the_vocabulary_has_not_becomes_unknown():
    assert tokenizer(VOCABULARY)("CQ[Xx]").tokens() == ["[CLS]", "C", "[UNK]", "[UNK]", "[SEP]"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("[PAD]\n[UNK]\n[CLS]\n[SEP]\n>>", r"no \[MASK\]"), ("\n".join([*VOCABULARY, "C"]), "C more than once")],
)
def test_a_vocabulary_with_a_word_missing_or_twice_is_refused(tmp_path, text, said):
    (tmp_path / "vocab.txt").write_text(text)
    with pytest.raises(ValueError, match=rf"vocab\.txt has {said}"):
        read_vocabulary(tmp_path / "vocab.txt")


# Reactions


def faults(reaction):
    """What is wrong with a reaction, counted: parentheses, ring digits, product atoms that come from nowhere."""
    tokens, found = words(reaction), set()
    for molecule in re.split(r"\.|>>", reaction):
        parts = words(molecule)
        depth = [parts[:n].count("(") - parts[:n].count(")") for n in range(len(parts) + 1)]
        if min(depth) < 0 or depth[-1]:
            found.add("parentheses")
        rings = Counter(part for part in parts if part.isdigit() or part.startswith("%"))
        if any(n % 2 for n in rings.values()):
            found.add("rings")
        if not any(map(element, parts)):
            found.add("no atom")
    at = arrow(tokens)
    before, after = (Counter(map(element, side)) for side in (tokens[:at], tokens[at + 1 :]))
    if any(after[atom] > before[atom] for atom in after if atom):
        found.add("balance")
    return found


@EVERY_REACTION
def test_a_reaction_is_paired_and_balanced_and_not_long(name):
    reaction = reactions()[name]
    assert faults(reaction) == set() and len(words(reaction)) <= 98


@pytest.mark.parametrize(
    ("reaction", "fault"),
    [
        ("C(C>>CC", {"parentheses"}),
        ("C)C(>>CC", {"parentheses"}),
        ("C1CC>>CCC", {"rings"}),
        ("CC..C>>CC", {"no atom"}),
        ("CC>>CO", {"balance"}),
        ("CCO>>CCCO", {"balance"}),
    ],
)
def test_a_faulty_reaction_would_be_found(reaction, fault):
    assert faults(reaction) == fault


def test_there_are_130_reactions_of_many_kinds():
    assert len(reactions()) == len(set(reactions().values())) == 130


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a | C>>C\nno bar", "line 2: 'no bar' is not"),
        ("| C>>C", "line 1"),
        ("a |", "line 1"),
        ("a | C>>C\n\n# b\na | O>>O", "line 4: 'a . O>>O' has a name or a reaction that stands above"),
        ("a | C>>C\nb | C>>C", "line 2: 'b . C>>C' has"),
    ],
)
def test_a_line_that_is_no_reaction_is_named(text, said):
    with pytest.raises(ValueError, match=said):
        parse(text, "mine")


# Batches

TWO = batch_of(["CCBr.[OH-]>>CCO", "CI>>CI"], VOCABULARY)


def test_roles_are_the_atoms_of_each_side():
    assert TWO.tokens.shape == (2, 11)
    assert TWO.words(0) == ["[CLS]", *words("CCBr.[OH-]>>CCO"), "[SEP]"]
    assert TWO.words(1) == ["[CLS]", *words("CI>>CI"), "[SEP]", *["[PAD]"] * 4]
    assert TWO.valid.sum(1).tolist() == [11, 7]
    at = {role: [row.nonzero().flatten().tolist() for row in mask] for role, mask in TWO.roles.items()}
    assert at == {"product": [[7, 8, 9], [4, 5]], "hetero": [[9], [5]], "reactant": [[1, 2, 3, 5], [1, 2]]}
    assert TWO.classes.tolist() == [[0, 6, 6, 35, 0, 8, 0, 6, 6, 8, 0], [0, 6, 53, 0, 6, 53, 0, 0, 0, 0, 0]]
    assert (TWO.labels == UNREAD).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["CC"], "has 0 '>>'"),
        (["C>>C", "C>>[Fm]"], r"'C>>\[Fm\]' holds \[Fm\], which the vocabulary has not"),
        (["C>>[MASK]C"], r"holds \[MASK\], which"),
        (["C" * 254 + ">>" + "C" * 256], "has 511 tokens; the model takes 510"),
        ([], "one or more"),
        ("C>>C", "come as a list"),
    ],
)
def test_what_is_no_reaction_gives_no_batch(given, said):
    with pytest.raises(ValueError, match=said):
        batch_of(given, VOCABULARY)


def test_the_longest_reaction_fits():
    assert batch_of(["C" * 254 + ">>" + "C" * 255], VOCABULARY).tokens.shape == (1, 512)


@pytest.mark.parametrize("copies", [1, 2, 3, 50])
def test_every_product_atom_is_masked_in_exactly_one_copy(copies):
    batch = batch_of(list(reactions().values()), VOCABULARY)
    made = masked(batch, copies=copies, seed=0)
    hidden = made.batch.role("masked").long()
    times = torch.zeros(batch.tokens.shape, dtype=torch.long).index_add(0, made.reaction, hidden)
    assert torch.equal(times, batch.role("product").long())
    n_masked = hidden.sum(1)
    for example, atoms in enumerate(batch.role("product").sum(1).tolist()):
        mine = n_masked[made.reaction == example]
        assert len(mine) == min(copies, atoms) and mine.min() >= 1 and mine.max() - mine.min() <= 1


def test_a_masked_copy_hides_its_labels_and_nothing_else():
    made = masked(TWO, copies=2, seed=0)
    hidden, original = made.batch.role("masked"), TWO.select(made.reaction)
    assert made.reaction.tolist() == [0, 0, 1, 1]
    assert (made.batch.tokens[hidden] == VOCABULARY.index("[MASK]")).all()
    assert torch.equal(made.batch.tokens[~hidden], original.tokens[~hidden])
    assert torch.equal(made.batch.labels[hidden], original.tokens[hidden])
    assert (made.batch.labels[~hidden] == UNREAD).all()
    assert set(made.batch.roles) == {"product", "hetero", "reactant", "masked"}
    assert all(torch.equal(made.batch.role(name), mask) for name, mask in original.roles.items())
    assert torch.equal(made.batch.valid, original.valid) and torch.equal(made.batch.classes, original.classes)


def test_the_seed_says_what_is_masked_together():
    batch = batch_of(list(reactions().values()), VOCABULARY)
    one, same, other = (masked(batch, copies=3, seed=seed).batch for seed in (0, 0, 1))
    assert one.digest() == same.digest() != other.digest()


def test_another_reaction_leaves_the_masks_of_those_before_it():
    some = list(reactions().values())[:5]
    one, more = (masked(batch_of(some[:n], VOCABULARY), copies=3, seed=0) for n in (4, 5))
    length = one.batch.tokens.shape[1]
    assert torch.equal(more.batch.role("masked")[: len(one.batch), :length], one.batch.role("masked"))


def test_a_mean_over_a_reactions_copies_counts_each_atom_once():
    made = masked(TWO, copies=2, seed=0)
    assert made.batch.role("masked").sum(1).tolist() == [2, 1, 1, 1]
    assert made.per_reaction(torch.tensor([3.0, 6.0, 1.0, 2.0])).tolist() == [4.0, 1.5]


def test_values_of_another_batch_are_refused():
    with pytest.raises(ValueError, match=r"values \[3\] are of another batch: here are 4 copies"):
        masked(TWO, copies=2, seed=0).per_reaction(torch.ones(3))


def test_fewer_than_one_copy_is_refused():
    with pytest.raises(ValueError, match="copies=0: each reaction needs at least one"):
        masked(TWO, copies=0, seed=0)


# Maps


def pattern_of(batch, pairs, weight=0.5):
    """[batch head dest source] of one head: 0 but at (example, dest, source)."""
    n, length = batch.tokens.shape
    pattern = torch.zeros(n, 1, length, length)
    for example, dest, source in pairs:
        pattern[example, 0, dest, source] = weight
    return pattern


RIGHT = [(0, 7, 1), (0, 8, 2), (0, 9, 5), (1, 4, 1), (1, 5, 2)]


def test_a_right_map_agrees_and_is_one_to_one():
    at = mapped(pattern_of(TWO, RIGHT), TWO)
    assert at.tolist() == [[[-1] * 7 + [1, 2, 5, -1]], [[-1] * 4 + [1, 2] + [-1] * 5]]
    for measure in (agreement, one_to_one_agreement, used_once):
        assert measure(at, TWO).tolist() == [[1.0], [1.0]]


def test_agreement_counts_atoms_of_the_same_element():
    at = mapped(pattern_of(TWO, [(0, 7, 3), (0, 8, 1), (0, 9, 1), (1, 4, 2), (1, 5, 1)]), TWO)
    assert agreement(at, TWO).tolist() == [[pytest.approx(1 / 3)], [0.0]]
    assert agreement(at, TWO, "hetero").tolist() == [[0.0], [0.0]]
    assert one_to_one_agreement(at, TWO).tolist() == [[0.0], [0.0]]
    assert used_once(at, TWO).tolist() == [[0.5], [1.0]]


def test_ties_go_to_the_lowest_reactant_atom():
    assert mapped(torch.zeros(2, 1, 11, 11), TWO)[0, 0, 7:10].tolist() == [1, 1, 1]
    assert mapped(pattern_of(TWO, [(0, 7, 3), (0, 7, 5)]), TWO)[0, 0, 7] == 3


def test_only_reactant_atoms_are_mapped_to():
    others = [(0, dest, source) for dest in (7, 8, 9) for source in (0, 4, 6, 7, 8, 9, 10)]
    pattern = pattern_of(TWO, others, weight=0.9) + pattern_of(TWO, RIGHT, weight=0.01)
    assert mapped(pattern, TWO)[0, 0, 7:10].tolist() == [1, 2, 5]


def test_layers_are_mapped_one_by_one():
    right, none = pattern_of(TWO, RIGHT), torch.zeros(2, 1, 11, 11)
    both = mapped(torch.stack([right, none]), TWO)
    assert torch.equal(both[0], mapped(right, TWO)) and torch.equal(both[1], mapped(none, TWO))
    assert agreement(both, TWO).shape == (2, 2, 1)


def by_hand(weights, batch, example):
    """One head's map, agreement, share used once, and agreement that is one to one, in plain Python."""
    atoms = {role: batch.role(role)[example].nonzero().flatten().tolist() for role in ("product", "reactant")}
    chosen = {dest: max(atoms["reactant"], key=lambda k: (float(weights[dest, k]), -k)) for dest in atoms["product"]}
    same = {dest: batch.classes[example, dest] == batch.classes[example, at] for dest, at in chosen.items()}
    uses = Counter(chosen.values())
    alone = [same[dest] and uses[at] == 1 for dest, at in chosen.items()]
    once = sum(n == 1 for n in uses.values()) / len(uses)
    return chosen, float(sum(same.values())) / len(same), once, float(sum(alone)) / len(alone)


def test_maps_and_measures_are_those_of_plain_python():
    batch = batch_of(list(reactions().values())[::13], VOCABULARY)
    n, length = batch.tokens.shape
    drawn = torch.randint(0, 4, (n, 3, length, length), generator=torch.Generator().manual_seed(0)) / 4
    at = mapped(drawn, batch)
    found = [measure(at, batch) for measure in (agreement, used_once, one_to_one_agreement)]
    for example in range(n):
        for head in range(3):
            chosen, *values = by_hand(drawn[example, head], batch, example)
            assert at[example, head].tolist() == [chosen.get(dest, UNMAPPED) for dest in range(length)]
            assert [float(one[example, head]) for one in found] == pytest.approx(values, abs=1e-12)


def test_guessing_by_hand():
    assert random_agreement(TWO).tolist() == pytest.approx([(2 / 4 + 2 / 4 + 1 / 4) / 3, 1 / 2])
    assert same_order_agreement(TWO).tolist() == pytest.approx([2 / 3, 1])
    assert commonest_agreement(TWO).tolist() == pytest.approx([2 / 3, 1 / 2])
    assert random_agreement(TWO, "hetero").tolist() == [0.25, 0.5]
    assert baselines(TWO, "hetero") == {"random": 0.375, "same order": 0.5, "commonest": 0.0}


def test_the_same_order_ends_at_the_last_reactant_atom():
    assert same_order_agreement(batch_of(["CO>>COO", "OC>>OCC"], VOCABULARY)).tolist() == [1.0, 1.0]


def test_random_agreement_is_the_mean_over_random_maps():
    n, length = TWO.tokens.shape
    drawn = torch.rand(n, 20_000, length, length, generator=torch.Generator().manual_seed(0))
    found = agreement(mapped(drawn, TWO), TWO).mean(1)
    assert found.tolist() == pytest.approx(random_agreement(TWO).tolist(), abs=0.01)


def test_a_product_of_carbon_alone_has_no_agreement_in_other_atoms():
    batch = batch_of(["CBr.C>>CC"], VOCABULARY)
    at = mapped(torch.zeros(1, 1, *batch.tokens.shape[1:] * 2), batch)
    assert agreement(at, batch).item() == 1 and agreement(at, batch, "hetero").isnan().all()


def test_a_table_has_a_row_per_layer_and_head_in_order():
    right, wrong = pattern_of(TWO, RIGHT), pattern_of(TWO, [(0, 7, 3), (0, 8, 3), (0, 9, 3), (1, 4, 2), (1, 5, 1)])
    pattern = torch.stack([torch.cat([wrong, right], 1), torch.cat([wrong, wrong], 1)])
    found = table(mapped(pattern, TWO), TWO)
    assert list(found.columns) == ["layer", "head", "agreement", "hetero", "one_to_one", "used_once"]
    assert list(zip(found["layer"], found["head"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found["agreement"].tolist() == [0, 1, 0, 0] and found["used_once"].tolist() == [0.5, 1, 0.5, 0.5]


def test_maps_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"this batch asks for \[\.\.\. batch=2 head dest=11 source=11\]"):
        mapped(torch.zeros(3, 1, 11, 11), TWO)
    with pytest.raises(ValueError, match=r"a table needs \[layer batch head dest\]"):
        table(torch.zeros(2, 1, 11).long(), TWO)


def test_nan_is_refused_where_it_is_read_and_only_there():
    padded = pattern_of(TWO, RIGHT)
    padded[1, 0, 8] = torch.nan
    assert agreement(mapped(padded, TWO), TWO).tolist() == [[1.0], [1.0]]
    with pytest.raises(ValueError, match="holds NaN from product to reactant atoms"):
        mapped(pattern_of(TWO, [(0, 7, 1)], weight=torch.nan), TWO)


# With the wheel


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    """The folder of runs into which the command put the model."""
    place = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "analyses.rxnmapper_model", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder(place))
    return place


@pytest.fixture(scope="module")
def measured(fetched):
    """The model, its vocabulary, and every head's map of every reaction."""
    vocabulary = read_vocabulary(checked(fetched) / "vocab.txt")
    model, batch = load(fetched), batch_of(list(reactions().values()), vocabulary)
    return model, vocabulary, batch, torch.stack([mapped(layer, batch) for layer in patterns(model, batch)])


@pytest.mark.slow
def test_the_published_vocabulary_holds_every_token_and_each_in_brackets_is_an_atom(fetched):
    vocabulary = read_vocabulary(checked(fetched) / "vocab.txt")
    assert len(vocabulary) == 591 and set(VOCABULARY) <= set(vocabulary)
    others = {word for word in vocabulary if word.startswith("[") and not element(word)}
    assert others == {*SPECIALS, *(f"[unused{n}]" for n in range(1, 11))}
    cut = tokenizer(vocabulary)
    assert all(cut(one).tokens() == ["[CLS]", *words(one), "[SEP]"] for one in reactions().values())


@pytest.mark.slow
def test_the_published_model_loads_without_the_wheel(fetched, monkeypatch):
    monkeypatch.setattr(rxnmapper_model.subprocess, "run", None)
    model = load(fetched)
    assert (model.config.num_hidden_layers, model.config.num_attention_heads, model.training) == (12, 8, False)
    assert sum(value.numel() for value in model.parameters()) == 735_567


# The reactions of the wheel's README and tests, and the reactant atom that its mapper gives each product atom.
PUBLISHED = {
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F": [0, 1, 2, 3, 15, 14, 13, 12, 11, 10, 9],
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12": [12, 11, 10, *range(13, 30)],
}


@pytest.mark.slow
@pytest.mark.parametrize("reaction", PUBLISHED)
def test_the_published_head_gives_the_published_maps(measured, reaction):
    model, vocabulary, _, _ = measured
    layer, head = LAYER_AND_HEAD
    batch = batch_of([reaction], vocabulary)
    at = mapped(patterns(model, batch)[layer], batch)[0, head][batch.role("product")[0]]
    assert (batch.role("reactant")[0].cumsum(0)[at] - 1).tolist() == PUBLISHED[reaction]


@pytest.mark.slow
def test_head_5_maps_atoms_in_every_layer_but_the_first_and_no_other_head_does(measured):
    _, _, batch, at = measured
    found = table(at, batch)
    mapping = (found["head"] == 5) & (found["layer"] > 0)
    assert found["agreement"][mapping].min() > 0.99 and found["agreement"][~mapping].max() < 0.9
    assert found["hetero"][mapping].min() > 0.96 > max(baselines(batch, "hetero").values())
    assert 0.56 < random_agreement(batch).mean() < 0.58
    assert 0.78 < commonest_agreement(batch).mean() < 0.79


@pytest.mark.slow
def test_the_masked_atoms_are_told_from_the_rest(measured):
    model, _, batch, _ = measured
    made = masked(batch, copies=COPIES, seed=0)
    assert isinstance(made, Masked) and len(made.batch) == 390
    with torch.no_grad():
        logits = model(input_ids=made.batch.tokens, attention_mask=made.batch.valid.long()).logits
    assert 0.12 < made.per_reaction(loss(logits, made.batch)).mean() < 0.135
