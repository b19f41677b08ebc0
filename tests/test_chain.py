"""From texts and models to the table: chains in which a wrong number once came out without a word."""

import pytest
import torch
from foreign import batch_for, made, shared
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from workbench import Batch, Edges, Study, contrast, cut, joined, run, run_study, wrap
from workbench.examples import Examples

TOKENS = torch.randint(4, 31, (9, 6), generator=torch.Generator().manual_seed(0))
AT = torch.arange(6).expand(9, 6)
LABELS = torch.where(AT == 5, TOKENS.roll(1, 1), -100)
BATCH = Batch(TOKENS, LABELS, roles={"last": AT == 5, "first": AT == 0})
CUT = cut(Edges(layer=1, dest="last", source="first"))


def frame(model, conditions, label="gpt2", batch=BATCH):
    study = Study(conditions=conditions, n=len(batch), data_seed=0, metrics=("log_prob",))
    return run_study(study, Examples("texts", batch), {label: [wrap(model)]}, progress=False)[0]


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert"])
def test_left_padding_of_a_classifier_that_reads_the_first_position_is_refused(family):
    name = {"bert": "Bert", "roberta": "Roberta", "electra": "Electra", "albert": "Albert"}[family]
    model = wrap(made(family, cls=f"{name}ForSequenceClassification"))
    valid = torch.tensor([[False, True, True], [True, True, True]])
    tokens = torch.tensor([[6, 7, 8], [9, 10, 11]])
    with pytest.raises(ValueError, match="pad on the right"):
        run(model, Batch(tokens, torch.full_like(tokens, -100), valid))
    run(model, Batch(tokens, torch.full_like(tokens, -100), valid.flip(1)))


def test_two_models_of_one_number_are_not_paired():
    one, other = frame(made("gpt2", seed=0), {"clean": []}), frame(made("gpt2", seed=1), {"cut": [CUT]})
    with pytest.raises(ValueError, match="other weights"):
        joined([one, other])
    same = joined([one, frame(made("gpt2", seed=0), {"cut": [CUT]})])
    assert contrast(same, "clean", "cut", "log_prob").n_models.item() == 1


def test_frames_joined_once_are_still_not_paired_with_other_examples():
    elsewhere = Batch(TOKENS.flip(0), LABELS, roles=BATCH.roles)
    first = joined([frame(made("gpt2"), {"clean": []}), frame(made("gpt2", seed=1), {"clean": []}, "other")])
    second = joined([frame(made("gpt2"), {"cut": [CUT]}, batch=elsewhere),
                     frame(made("gpt2", seed=1), {"cut": [CUT]}, "other", elsewhere)])  # fmt: skip
    with pytest.raises(ValueError, match="other examples"):
        joined([first, second])
    assert len(joined([first, frame(made("gpt2"), {"cut": [CUT]})])) == 27


def test_an_alignment_and_a_role_of_the_context_do_not_share_a_name():
    context = Batch(TOKENS, torch.full_like(TOKENS, -100), roles={"name": AT == 1})
    edges = torch.zeros(9, 6, 6, dtype=torch.bool)
    with pytest.raises(ValueError, match="'name' names an alignment and a role"):
        Batch(TOKENS, LABELS, context=context, alignments={"name": edges})


def word_level(**more):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.mark.parametrize("made_of", [word_level, lambda: PreTrainedTokenizerFast(tokenizer_object=word_level())])
def test_an_answer_that_the_tokenizer_does_not_know_is_refused(made_of):
    with pytest.raises(ValueError, match="one token it knows"):
        Batch.from_texts(made_of(), ["the cat"], {"last": -1}, labels={"last": "zebra"})


def test_an_unknown_answer_of_a_unigram_is_refused():
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("the", -1.0), ("cat", -1.0)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="one token it knows"):
        Batch.from_texts(tokenizer, ["the cat"], {"last": -1}, labels={"last": "zebra"})


def letters():
    return Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2, "d": 3}, []))


def test_an_answer_of_which_the_tokenizer_drops_a_part_is_refused():
    with pytest.raises(ValueError, match="one token it knows"):
        Batch.from_texts(letters(), ["abcd"], {"last": -1}, labels={"last": "Σ!c"})


def test_a_tokenizer_that_counts_characters_wrongly_is_refused():
    with pytest.raises(ValueError, match="counts characters wrongly"):
        Batch.from_texts(letters(), ["Σabcd"], {"role": "b"})
    assert Batch.from_texts(letters(), ["abcd"], {"role": "b"}).roles["role"].tolist() == [[False, True, False, False]]


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_cross_attention_row_that_cannot_reach_what_is_read_is_noted(family):
    batch = batch_for(family)
    at = torch.arange(batch.tokens.shape[1]).expand_as(batch.tokens)
    labels = torch.where(at == at.shape[1] - 1, batch.tokens, -100)
    batch = Batch(batch.tokens, labels, roles={"first": at == 0, "last": at == at.shape[1] - 1}, context=batch.context)
    edges = Edges(layer=1, kind="cross", dest="first")
    out = run(shared(family), batch, [cut(edges, empty="no-update")])
    assert any("cannot reach what is read in 2 of 2" in note for note in out.notes)
    assert torch.equal(out.logits[:, -1], run(shared(family), batch).logits[:, -1])
    reached = run(shared(family), batch, [cut(Edges(layer=1, kind="cross", dest="last"), empty="no-update")])
    assert not reached.notes
    assert not torch.equal(reached.logits[:, -1], out.logits[:, -1])


def test_inputs_may_not_choose_which_logits_come_out():
    batch = batch_for("gpt2").with_inputs(logits_to_keep=torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="logits_to_keep"):
        run(shared("gpt2"), batch)


def test_a_model_whose_numbers_changed_their_type_after_wrapping_is_refused():
    inner = made("llama")
    wrapped = wrap(inner)
    inner.double()
    with pytest.raises(RuntimeError, match="wrap it again"):
        run(wrapped, batch_for("llama"))


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_edits_land_where_a_float64_model_takes_its_softmax_in_float32(family):
    model, batch = wrap(made(family, dtype=torch.float64)), batch_for(family)
    cut_there = run(model, batch, [cut(Edges(layer=1, dest="last", source="first"))])
    assert not torch.equal(cut_there.logits, run(model, batch).logits)
