"""One example through one model: the words of the prediction, the patterns and the file."""

from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from tasks.lookup import Lookup
from tasks.translate import Translate
from workbench import Batch, EncoderDecoder, EncoderDecoderConfig, ModelConfig, Transformer, show
from workbench.cli import app

TEXT = "c 5 a 2 f 7 b 0 a"
FIRST_BYTES = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}


@pytest.fixture
def model():
    return Transformer(ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=2, n_heads=2), seed=0)


@pytest.fixture
def checkpoint(model, tmp_path, monkeypatch):
    """A folder that loads as the untrained model."""
    monkeypatch.setattr("workbench.checkpoints.load", lambda folder: SimpleNamespace(model=model))
    monkeypatch.setattr("workbench.cli.load_entry", lambda kind, name: Lookup)
    return tmp_path


def certain_of(word: int, second: int) -> Transformer:
    """A model whose logits do not depend on its input: 3 for one word, 2 for another, 0 for the rest."""
    model = Transformer(ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=1, n_heads=1), seed=0)
    with torch.no_grad():
        model.unembed.W_U.zero_()
        model.unembed.b_U.zero_()
        model.unembed.b_U[word], model.unembed.b_U[second] = 3.0, 2.0
    return model


def test_prediction_is_said_with_probability_verdict_and_runner_up():
    two, zero = Lookup().vocabulary.index("2"), Lookup().vocabulary.index("0")
    reading = show.read_example(certain_of(two, zero), Lookup().encode(TEXT))
    likely = torch.softmax(torch.tensor([3.0, 2.0] + [0.0] * 14), 0)
    assert reading.text.splitlines()[0] == TEXT
    assert reading.text.splitlines()[1] == f"position 8: 2 ({likely[0]:.3f}), correct; then 0 ({likely[1]:.3f})"


def test_wrong_prediction_names_the_right_one():
    five, two = Lookup().vocabulary.index("5"), Lookup().vocabulary.index("2")
    reading = show.read_example(certain_of(five, two), Lookup().encode(TEXT))
    assert "wrong, 2 is right" in reading.text


def test_every_read_position_is_a_line(model):
    batch = Lookup().encode(TEXT)
    twice = batch.labels.clone()
    twice[0, 3] = 1
    reading = show.read_example(model, Batch(batch.tokens, twice, vocabulary=batch.vocabulary))
    assert [prediction.position for prediction in reading.predictions] == [3, 8]


def test_every_head_of_every_layer_has_its_pattern(model):
    reading = show.read_example(model, Lookup().encode(TEXT))
    assert list(reading.patterns) == ["L0H0", "L0H1", "L1H0", "L1H1"]
    for pattern in reading.patterns.values():
        assert torch.allclose(pattern.sum(-1), torch.ones(9))
        assert (pattern[~reading.visible] == 0).all()


def test_two_examples_are_refused(model):
    with pytest.raises(ValueError, match=r"one example .* has 2"):
        show.read_example(model, Lookup().sample(2, seed=0))


@pytest.mark.parametrize("suffix", FIRST_BYTES)
def test_suffix_says_what_is_drawn(checkpoint, suffix):
    file = checkpoint / "new" / f"patterns{suffix}"
    show.show(Lookup(), TEXT, file, checkpoint)
    assert file.read_bytes().startswith(FIRST_BYTES[suffix])


def test_command_prints_the_prediction_and_draws(checkpoint):
    file = checkpoint / "p.svg"
    words = ["show", "lookup", "--tokens", TEXT, "--checkpoint", str(checkpoint), "--out", str(file)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == TEXT
    assert result.stdout.splitlines()[-1] == f"patterns: {file}"
    assert file.exists()


def test_unknown_suffix_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match=r"suffix is '\.gif'; use one of \.svg"):
        show.show(None, TEXT, tmp_path / "patterns.gif")


def test_sequence_that_the_task_refuses_writes_nothing(checkpoint):
    with pytest.raises(ValueError, match="has 2 tokens; this task has 9"):
        show.show(Lookup(), "a 1", checkpoint / "p.svg", checkpoint)
    assert not (checkpoint / "p.svg").exists()


def test_missing_checkpoint_says_how_to_get_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="workbench train lookup"):
        show.show(Lookup(), TEXT, tmp_path / "p.svg", tmp_path / "nowhere")


def test_model_of_another_vocabulary_is_refused(checkpoint):
    with pytest.raises(ValueError, match="knows 16 tokens and 9 positions; the task 'lookup' has 18 tokens"):
        show.show(Lookup(digits=10), TEXT, checkpoint / "p.svg", checkpoint)


def test_a_task_that_reads_no_sequence_is_refused_in_words(tmp_path):
    class Mute:
        name = "mute"

    with pytest.raises(ValueError, match="'mute' reads no sequence"):
        show.show(Mute(), "a b", tmp_path / "mute.svg")


def test_models_and_tasks_of_several_stacks_are_refused_in_words(tmp_path):
    """Their patterns would stand under the same names."""
    task = Translate()
    side = {"d_vocab": len(task.vocabulary), "n_ctx": 8, "d_model": 8, "n_layers": 1, "n_heads": 1}
    model = EncoderDecoder(EncoderDecoderConfig(encoder={**side, "masks": [{"causal": False}]}, decoder=side), seed=0)
    with pytest.raises(ValueError, match="this model has encoder, decoder, cross"):
        show.read_example(model, task.sample(1, seed=0))
    with pytest.raises(ValueError, match="the task 'translate' has a context"):
        show.show(task, "the dog saw the cats", tmp_path / "x.svg")
    assert not list(tmp_path.iterdir())
