"""Generation: what each way of choosing gives, interventions in force at every step, and how it refuses."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from tasks.lookup import Lookup
from tasks.translate import Translate
from workbench import (
    Batch,
    Edges,
    EncoderDecoder,
    EncoderDecoderConfig,
    Heads,
    Mask,
    MissingExamples,
    ModelConfig,
    Transformer,
    cut,
    generate,
    load,
    mean,
    patch,
    resample,
    run,
    shuffle,
)

LOOKUP = Lookup()
TRAINED = load(LOOKUP.checkpoint).model
WORDS = 5
SMALL = Transformer(ModelConfig(d_vocab=WORDS, n_ctx=8, d_model=8, n_layers=2, n_heads=2), seed=3).double()


def unread(batch):
    return replace(batch, labels=torch.full_like(batch.tokens, -100))


def prompts_of(rows, valid=None, **roles):
    tokens = torch.tensor(rows)
    valid = None if valid is None else torch.tensor(valid)
    return Batch(tokens, torch.full_like(tokens, -100), valid=valid, roles=roles)


def next_log_probs(model, tokens):
    """The slow way: a whole pass over one sequence, and its last position."""
    return torch.log_softmax(model(torch.tensor([tokens]))[0, -1].double(), -1).detach()


PROMPTS = prompts_of([[0, 1], [2, 3], [4, 4]])


# Greedy


def test_greedy_takes_the_largest_logit_at_every_step():
    got = generate(SMALL, PROMPTS, 4)
    for row, new in zip(PROMPTS.tokens.tolist(), got.new.tolist(), strict=True):
        total = 0.0
        for token in new:
            known = next_log_probs(SMALL, row)
            assert token == int(known.argmax())
            total, row = total + float(known[token]), [*row, token]
        assert got.log_prob[PROMPTS.tokens.tolist().index(row[:2])] == pytest.approx(total, abs=1e-10)


def test_a_trained_lookup_model_says_the_digit_asked_for():
    batch = LOOKUP.sample(50, seed=7)
    got = generate(TRAINED, unread(batch), 1)
    assert (got.new[:, 0] == batch.labels[:, -1]).all()
    assert got.words(0) == [batch.word(int(batch.labels[0, -1]))]


def test_prompts_padded_on_the_right_or_left_go_on_from_their_own_end():
    alone = generate(SMALL, prompts_of([[2, 3]]), 3).new
    right = generate(SMALL, prompts_of([[2, 3, 0, 0], [1, 1, 1, 1]],
                                       [[True, True, False, False], [True] * 4]), 3)  # fmt: skip
    left = generate(SMALL, prompts_of([[0, 0, 2, 3]], [[False, False, True, True]]), 3)
    assert torch.equal(right.new[:1], alone) and torch.equal(left.new, alone)
    assert right.batch.tokens[0, :5].tolist() == [2, 3, *alone[0].tolist()]
    assert right.batch.valid[0].tolist() == [True] * 5 + [False] * 2


def test_an_example_that_said_its_end_says_no_more():
    whole = generate(SMALL, PROMPTS, 4)
    end = int(whole.new[0, 1])
    got = generate(SMALL, PROMPTS, 4, end=end)
    for mine, full, ended in zip(got.new.tolist(), whole.new.tolist(), got.ended.tolist(), strict=True):
        upto = full.index(end) + 1 if end in full else 4
        assert mine == full[:upto] + [-100] * (4 - upto)
        assert ended == (end in full)


def test_the_batch_that_comes_back_has_the_roles_of_generation():
    got = generate(SMALL, PROMPTS, 3)
    assert got.batch.tokens.shape == (3, 5)
    assert got.batch.roles["generated"][0].tolist() == [False, False, True, True, True]
    assert got.batch.roles["current"][0].tolist() == [False] * 4 + [True]


# Interventions


def test_a_cut_at_the_current_position_holds_at_every_step():
    first = torch.tensor([[True, False]] * 3)
    prompts = replace(PROMPTS, roles={"first": first})
    edits = [cut(Edges(layer=layer, dest="current", source="first")) for layer in (0, 1)]
    got = generate(SMALL, prompts, 3, interventions=edits)
    said = prompts.tokens
    for step in range(3):
        at = torch.arange(said.shape[1]).expand_as(said)
        labels = torch.full_like(said, -100)
        labels[:, -1] = 0
        now = Batch(said, labels, roles={"current": at == said.shape[1] - 1, "first": at == 0})
        token = run(SMALL, now, edits).logits[:, -1].argmax(-1)
        assert torch.equal(got.new[:, step], token)
        said = torch.cat([said, token[:, None]], 1)
    assert not torch.equal(got.log_prob, generate(SMALL, PROMPTS, 3).log_prob)


def test_cutting_the_answer_at_the_current_position_loses_it():
    batch = LOOKUP.sample(200, seed=8)
    answer = [cut(Edges(layer=1, dest="current", source="answer"))]
    right = generate(TRAINED, unread(batch), 1, interventions=answer).new[:, 0] == batch.labels[:, -1]
    other = [cut(Edges(layer=1, dest="current", source="other"))]
    kept = generate(TRAINED, unread(batch), 1, interventions=other).new[:, 0] == batch.labels[:, -1]
    assert right.float().mean() < 0.3 and kept.float().mean() > 0.95


def test_donors_stand_in_for_the_examples_that_still_go_on():
    batch = LOOKUP.sample(6, seed=9)
    other = LOOKUP.corrupt(batch, seed=1)
    edits = [patch(Heads(layer=1, pos="last", part="z"), donor="other", align="role")]
    got = generate(TRAINED, unread(batch), 1, interventions=edits, donors={"other": other})
    want = run(TRAINED, batch, edits, donors={"other": other}, positions="read").logits[:, 0].argmax(-1)
    assert torch.equal(got.new[:, 0], want)


def test_a_role_that_no_example_has_is_refused_and_not_ignored():
    none = torch.zeros(3, 2, dtype=torch.bool)
    prompts = replace(PROMPTS, roles={"none": none})
    with pytest.raises(MissingExamples):
        generate(SMALL, prompts, 2, interventions=[cut(Edges(layer=0, dest="current", source="none"))])


def test_a_mean_is_over_the_whole_donor_at_every_step():
    at = torch.arange(2).expand(3, 2)
    prompts = replace(PROMPTS, roles={"first": at == 0})
    tokens = torch.randint(WORDS, (40, 2), generator=torch.Generator().manual_seed(4))
    many = Batch(tokens, torch.full_like(tokens, -100), roles={"first": torch.arange(2).expand(40, 2) == 0})
    edits = [mean(Heads(layer=0, pos="first", part="v"), donor="many")]
    got = generate(SMALL, prompts, 1, interventions=edits, donors={"many": many})
    asked = replace(prompts, labels=torch.tensor([[-100, 0]] * 3))
    want = run(SMALL, asked, edits, donors={"many": many}).logits[:, -1].double().log_softmax(-1)
    assert torch.allclose(got.log_prob, want.max(-1).values, atol=1e-12)


def test_what_draws_over_the_examples_that_run_together_is_refused():
    edits = [resample(Heads(layer=0, pos="current", part="z"), donor="other", seed=0)]
    with pytest.raises(ValueError, match="depends on which examples run together"):
        generate(SMALL, PROMPTS, 2, interventions=edits, donors={"other": PROMPTS})
    with pytest.raises(ValueError, match="depends on which examples run together"):
        generate(SMALL, PROMPTS, 2, interventions=[shuffle(Edges(layer=0, dest="current"), seed=0)])


def test_a_donor_of_a_mean_and_of_a_patch_is_refused():
    first = Heads(layer=0, pos="first", part="v")
    prompts = replace(PROMPTS, roles={"first": torch.tensor([[True, False]] * 3)})
    other = patch(Heads(layer=1, pos="first", part="v"), donor="other", align="role")
    edits = [mean(first, donor="other"), other]
    with pytest.raises(ValueError, match=r"\['other'\] are donors of a mean and of another edit"):
        generate(SMALL, prompts, 1, interventions=edits, donors={"other": prompts})


# Drawing


def test_draws_follow_the_models_own_distribution():
    n = 4000
    many = prompts_of([[0, 1]] * n)
    got = generate(SMALL, many, 1, how="sample", temperature=0.7, seed=0).new[:, 0]
    want = torch.softmax(next_log_probs(SMALL, [0, 1]) / 0.7, -1)
    share = torch.bincount(got, minlength=WORDS) / n
    assert ((share - want).abs() < 4 * (want * (1 - want) / n).sqrt() + 1e-9).all()


def test_top_k_draws_among_the_k_largest_alone():
    many = prompts_of([[0, 1]] * 500)
    got = generate(SMALL, many, 1, how="sample", top_k=2, seed=0).new[:, 0]
    assert set(got.tolist()) == set(next_log_probs(SMALL, [0, 1]).topk(2).indices.tolist())
    one = generate(SMALL, many, 3, how="sample", top_k=1, seed=0).new
    assert torch.equal(one, generate(SMALL, many, 3).new)


def test_a_seed_draws_the_same_again_whoever_ended_before():
    whole = generate(SMALL, PROMPTS, 4, how="sample", seed=5)
    assert torch.equal(whole.new, generate(SMALL, PROMPTS, 4, how="sample", seed=5).new)
    end = int(whole.new[0, 0])
    cut_short = generate(SMALL, PROMPTS, 4, how="sample", seed=5, end=end).new
    for mine, full in zip(cut_short.tolist(), whole.new.tolist(), strict=True):
        kept = [token for token in mine if token != -100]
        assert kept == full[: len(kept)]
    assert not torch.equal(whole.new, generate(SMALL, PROMPTS, 4, how="sample", seed=6).new)


# Beams


def every_continuation(row, n_new, end=None):
    """All continuations and their log-probabilities, by brute force."""
    out = {}
    for said in itertools.product(range(WORDS), repeat=n_new):
        said = said[: said.index(end) + 1] if end in said else said
        total, seen = 0.0, list(row)
        for token in said:
            total += float(next_log_probs(SMALL, seen)[token])
            seen.append(token)
        out[said] = total
    return out


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("end", [None, 2])
def test_beams_wide_enough_find_the_best_of_all_continuations(penalty, end):
    got = generate(SMALL, PROMPTS, 3, how="beam", beams=WORDS**2, length_penalty=penalty, end=end)
    for i, row in enumerate(PROMPTS.tokens.tolist()):
        known = every_continuation(row, 3, end)
        best = max(known, key=lambda said: known[said] / len(said) ** penalty)
        assert tuple(token for token in got.new[i].tolist() if token != -100) == best
        assert float(got.log_prob[i]) == pytest.approx(known[best], abs=1e-9)


def test_one_beam_is_greedy():
    one, greedy = generate(SMALL, PROMPTS, 4, how="beam", beams=1), generate(SMALL, PROMPTS, 4)
    assert torch.equal(one.new, greedy.new) and torch.allclose(one.log_prob, greedy.log_prob)


def test_more_beams_never_find_a_worse_continuation_than_every_beam_does():
    scores = [generate(SMALL, PROMPTS, 3, how="beam", beams=beams).log_prob for beams in (1, WORDS**2)]
    assert (scores[1] >= scores[0] - 1e-12).all()


# A context


def translator():
    task = Translate()
    side = {"d_vocab": len(task.vocabulary), "d_model": 8, "n_layers": 1, "n_heads": 2}
    config = EncoderDecoderConfig(
        encoder=ModelConfig(**side, n_ctx=task.context_length, masks=[{"causal": False}]),
        decoder=ModelConfig(**side, n_ctx=task.length),
    )
    return task, EncoderDecoder(config, seed=0).double()


def test_a_translator_goes_on_from_begin_and_reads_its_context():
    task, model = translator()
    batch = task.sample(4, seed=0)
    got = generate(model, task.prompts(batch), task.length - 1)
    said = batch.tokens[:, :1]
    for step in range(task.length - 1):
        logits = model(said, batch.context.tokens, torch.ones_like(said, dtype=torch.bool), batch.context.valid)
        token = logits[:, -1].argmax(-1)
        assert torch.equal(got.new[:, step], token)
        said = torch.cat([said, token[:, None]], 1)


def test_a_cut_of_the_context_holds_while_translating():
    task, model = translator()
    batch = task.sample(4, seed=0)
    edits = [cut(Edges(layer=0, kind="cross", dest="current", source="nouns"))]
    got = generate(model, task.prompts(batch), 3, interventions=edits)
    said = batch.tokens[:, :1]
    for step in range(3):
        at = torch.arange(said.shape[1]).expand_as(said)
        last = at == step
        now = Batch(said, torch.where(last, 0, -100), roles={"current": last}, context=batch.context)
        token = run(model, now, edits).logits[:, -1].argmax(-1)
        assert torch.equal(got.new[:, step], token)
        said = torch.cat([said, token[:, None]], 1)
    assert not torch.equal(got.log_prob, generate(model, task.prompts(batch), 3).log_prob)


# Refusals


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"how": "gready"}, "greedy"),
        ({"n_new": 0}, "1 token or more"),
        ({"how": "sample"}, "needs seed="),
        ({"seed": 3}, "seed=3 has no effect"),
        ({"top_k": 3}, "have no effect with how='greedy'"),
        ({"how": "sample", "seed": 0, "temperature": 0.0}, "above 0"),
        ({"how": "beam", "beams": 0}, "above 0"),
        ({"end": 99}, "no token of this model"),
    ],
)
def test_what_does_not_fit_together_is_refused(asked, words):
    with pytest.raises(ValueError, match=words):
        generate(SMALL, PROMPTS, **{"n_new": 2, **asked})


def test_prompts_that_use_generations_own_roles_are_refused():
    with pytest.raises(ValueError, match=r"\['current'\] are roles that generation sets"):
        generate(SMALL, prompts_of([[0, 1]], current=torch.tensor([[False, True]])), 1)


def test_a_prompt_of_padding_alone_is_refused():
    with pytest.raises(ValueError, match=r"examples \[1\] have no prompt"):
        generate(SMALL, prompts_of([[0, 1], [0, 0]], [[True, True], [False, False]]), 1)


def test_more_tokens_than_the_model_has_positions_are_refused():
    with pytest.raises(ValueError, match="9 positions; this model has 8"):
        generate(SMALL, PROMPTS, 8)


def test_every_log_probability_is_that_of_what_was_said():
    got = generate(SMALL, PROMPTS, 3, how="sample", seed=1)
    assert all(math.isfinite(one) and one < 0 for one in got.log_prob.tolist())


def test_a_model_that_reads_in_both_directions_does_not_generate():
    told = {"d_vocab": WORDS, "n_ctx": 8, "d_model": 8, "n_layers": 2, "n_heads": 1}
    both = Transformer(ModelConfig(**told, masks=(Mask(), Mask(causal=False))), seed=0)
    with pytest.raises(ValueError, match="positions read what comes after them"):
        generate(both, PROMPTS, 1)


# What was generated, named


@pytest.mark.parametrize("how", ["greedy", "beam"])
def test_what_was_generated_can_be_cut_from_the_second_token_on(how):
    edit = cut(Edges(layer=0, dest="current", source="generated"), empty="self")
    got = generate(SMALL, PROMPTS, 3, interventions=[edit], how=how, **({"beams": 1} if how == "beam" else {}))
    for i, row in enumerate(PROMPTS.tokens.tolist()):
        for step in range(3):
            said = torch.tensor([row])
            place = torch.arange(len(row))[None]
            batch = Batch(
                said, torch.full_like(said, -100).masked_fill(place == len(row) - 1, 0),
                roles={"current": place == len(row) - 1, "generated": place >= PROMPTS.tokens.shape[1]},
            )  # fmt: skip
            logits = run(SMALL, batch, [edit] if step else [], positions="read").logits
            row = [*row, int(logits[0, -1].argmax())]
        assert got.new[i].tolist() == row[PROMPTS.tokens.shape[1] :]
    assert any("acts from the second token on" in note for note in got.notes)
    assert not torch.equal(got.new, generate(SMALL, PROMPTS, 3).new)


def test_what_was_generated_is_nothing_where_one_token_is_asked_for():
    edit = cut(Edges(layer=0, dest="current", source="generated"), empty="self")
    with pytest.raises(ValueError, match="nothing is generated before the first token"):
        generate(SMALL, PROMPTS, 1, interventions=[edit])


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        ({"interventions": cut(Edges(layer=0, dest="current"))}, TypeError, "interventions come as a list"),
        ({"end": "7"}, TypeError, "end='7' is no token's number"),
        ({"n_new": "3"}, ValueError, "n_new is '3'"),
    ],
)
def test_what_is_no_list_and_no_number_is_refused_in_words(given, kind, why):
    with pytest.raises(kind, match=why):
        generate(SMALL, PROMPTS, **{"n_new": 2, **given})
