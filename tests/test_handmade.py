"""Every edit of a model whose circuit is known by construction does what it must, example by example."""

import math

import pytest
import torch
from handmade import lookup_by_hand, previous_token
from small import named

from tasks.lookup import Lookup
from workbench.batch import UNREAD, Batch
from workbench.donors import derangement
from workbench.interventions import (
    Edges,
    Heads,
    Stream,
    add,
    cut,
    freeze,
    keep_only,
    mean,
    patch,
    path,
    resample,
    scale,
    shuffle,
    uniform,
    zero,
)
from workbench.running import record, run

LAST_ROW = Edges(layer=0, dest="last")
HIDDEN = Edges(layer=0, dest="answer", source="match")
ANSWER = Edges(layer=1, dest="last", source="answer")
OTHER = Edges(layer=1, dest="last", source="other")


class Hand:
    """The handmade model of a task, a batch, its counterfactuals, and what every position's digit is."""

    def __init__(self, task: Lookup):
        self.task, self.model, self.batch = task, lookup_by_hand(task), task.sample(40, seed=3)
        self.corrupt = task.corrupt(self.batch, seed=4)
        self.right = self.batch.labels[:, -1]

    def digit_at(self, role: str) -> torch.Tensor:
        return self.batch.tokens[self.batch.roles[role]]

    def latest(self, *, but_answer: bool) -> torch.Tensor:
        """The digit of the latest pair, or of the latest that was not asked."""
        asked_last = self.batch.roles["answer"][:, -2] if but_answer else torch.zeros(len(self.batch), dtype=torch.bool)
        return torch.where(asked_last, self.batch.tokens[:, -4], self.batch.tokens[:, -2])

    def logits(self, interventions=(), **donors: Batch) -> torch.Tensor:
        """[batch d_vocab] at the last position."""
        return run(self.model, self.batch, list(interventions), donors=named(donors, interventions)).logits[:, -1]

    def says(self, *interventions, **donors: Batch) -> torch.Tensor:
        return self.logits(interventions, **donors).argmax(-1)


@pytest.fixture(scope="module", params=[Lookup(), Lookup(letters=5, digits=3, pairs=3), Lookup(pairs=2)], ids=str)
def hand(request) -> Hand:
    return Hand(request.param)


def one_hot(hand: Hand, tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(tokens, len(hand.task.vocabulary)).double()


def test_it_solves_the_task_on_every_example(hand: Hand):
    assert torch.allclose(hand.logits(), one_hot(hand, hand.right), rtol=0, atol=1e-12)


def test_it_solves_the_task_in_float32(hand: Hand):
    assert torch.equal(run(lookup_by_hand(hand.task).float(), hand.batch).logits[:, -1].argmax(-1), hand.right)


def test_its_patterns_are_the_circuit(hand: Hand):
    pattern = record(hand.model, hand.batch, ["pattern"])
    before = torch.cat([torch.zeros(1), torch.arange(hand.task.length - 1)]).long()
    assert torch.equal(pattern["pattern", 0].argmax(-1), before.expand(len(hand.batch), 1, -1))
    assert torch.equal(pattern["pattern", 1][:, 0, -1].argmax(-1), hand.batch.roles["answer"].int().argmax(-1))
    assert torch.allclose(pattern["pattern", 1][:, 0, -1].amax(-1), torch.ones(()).double(), rtol=0, atol=1e-12)


def test_without_the_answer_the_latest_other_digit_is_said(hand: Hand):
    said = hand.logits([cut(ANSWER)])
    assert torch.allclose(said, one_hot(hand, hand.latest(but_answer=True)), rtol=0, atol=1e-12)


def test_cutting_another_digit_changes_nothing(hand: Hand):
    assert torch.allclose(hand.logits([cut(OTHER)]), hand.logits(), rtol=0, atol=1e-12)


def test_zero_after_the_softmax_leaves_nothing_to_say(hand: Hand):
    assert hand.logits([zero(ANSWER)]).abs().max() < 1e-12


def test_only_another_digit_is_said_where_only_it_can_be_seen(hand: Hand):
    assert torch.equal(hand.says(keep_only(OTHER)), hand.digit_at("other"))


def test_uniform_over_the_digits_says_their_frequencies(hand: Hand):
    counts = one_hot(hand, hand.batch.tokens[:, 1::2]).mean(1)
    assert torch.allclose(hand.logits([uniform(Edges(layer=1, dest="last", source="digits"))]), counts, atol=1e-12)


def test_uniform_over_all_sources_counts_the_letters_in(hand: Hand):
    counts = one_hot(hand, hand.batch.tokens[:, 1::2]).sum(1) / hand.task.length
    assert torch.allclose(hand.logits([uniform(Edges(layer=1, dest="last"))]), counts, atol=1e-12)


def test_scales_multiply_and_large_enough_ones_move_the_whole_weight(hand: Hand):
    """The other digit's weight is between e^-200 and e^-800 of the answer's."""
    once = scale(OTHER, by=math.exp(150))
    assert torch.equal(hand.says(once), hand.right)
    assert torch.equal(hand.says(*[once] * 6), hand.digit_at("other"))


def test_shuffle_says_what_stands_where_the_weight_went(hand: Hand):
    moved = [shuffle(Edges(layer=1, dest="last"), seed=5)]
    to = record(hand.model, hand.batch, ["pattern"], moved)["pattern", 1][:, 0, -1].argmax(-1)
    token = hand.batch.tokens.gather(1, to[:, None])[:, 0]
    digit = token >= hand.task.letters
    assert 0 < digit.sum() < len(digit)
    assert torch.equal(hand.says(*moved)[digit], token[digit])
    assert hand.logits(moved)[~digit].abs().max() < 1e-12


@pytest.mark.parametrize(
    "edit",
    [
        uniform(LAST_ROW),
        zero(Stream(layer=0, pos="last", part="attn_out")),
        cut(LAST_ROW, empty="no-update"),
        cut(LAST_ROW, empty="self"),
        shuffle(LAST_ROW, seed=0),
        mean(Heads(layer=0, pos="last", part="z"), donor="corrupt"),
    ],
    ids=str,
)
def test_nothing_that_layer_0_does_at_the_last_position_matters(hand: Hand, edit):
    assert torch.allclose(hand.logits([edit], corrupt=hand.corrupt), hand.logits(), rtol=0, atol=1e-12)


def test_cutting_the_largest_weight_of_layer_0_at_the_last_position_changes_nothing(hand: Hand):
    largest = torch.zeros(len(hand.batch), hand.task.length, hand.task.length, dtype=torch.bool)
    largest[:, -1, -2] = True
    batch = hand.batch.with_relations(largest=largest)
    out = run(hand.model, batch, [cut(Edges(layer=0, dest="last", source="largest"))])
    assert not out.notes
    assert torch.allclose(out.logits[:, -1], hand.logits(), rtol=0, atol=1e-12)


def test_without_the_hidden_step_the_latest_digit_is_said(hand: Hand):
    """No digit carries the asked letter any more, the answer included: it wins only where it is the latest."""
    assert torch.equal(hand.says(cut(HIDDEN)), hand.latest(but_answer=False))


def test_freezing_the_later_weights_saves_the_answer_from_the_hidden_cut(hand: Hand):
    assert torch.equal(hand.says(cut(HIDDEN), freeze(Edges(layer=1, dest="last"))), hand.right)
    assert torch.equal(hand.says(cut(HIDDEN), freeze(Heads(layer=1, pos="answer", part="k"))), hand.right)


def test_freezing_the_query_does_not_save_it(hand: Hand):
    said = hand.says(cut(HIDDEN), freeze(Heads(layer=1, pos="last", part="q")))
    assert torch.equal(said, hand.latest(but_answer=False))


def test_a_patch_by_role_and_one_by_position_differ_as_they_must(hand: Hand):
    """The counterfactual asks for another letter of the same pairs: by role the answer gets that letter, so that none
    carries the asked one; by position every digit keeps its own."""
    place = Heads(layer=0, head=0, pos="answer", part="z")
    by_role = hand.says(patch(place, donor="corrupt", align="role"), corrupt=hand.corrupt)
    by_position = hand.says(patch(place, donor="corrupt", align="position"), corrupt=hand.corrupt)
    assert torch.equal(by_role, hand.latest(but_answer=False))
    assert torch.equal(by_position, hand.right)


def test_patching_weights_by_role_and_by_position_differ_as_they_must(hand: Hand):
    """By role the answer's weight is 1 in both runs; by position the weight of another pair, which is 0, comes in."""
    by_role = hand.says(patch(ANSWER, donor="corrupt", align="role"), corrupt=hand.corrupt)
    by_position = hand.logits([patch(ANSWER, donor="corrupt", align="position")], corrupt=hand.corrupt)
    assert torch.equal(by_role, hand.right)
    assert by_position.abs().max() < 1e-12


def test_patching_the_asked_letter_answers_the_other_question(hand: Hand):
    query = Heads(layer=1, pos="last", part="q")
    said = hand.says(patch(query, donor="corrupt", align="role"), corrupt=hand.corrupt)
    assert torch.equal(said, hand.corrupt.labels[:, -1])


def test_adding_the_donor_says_both_answers(hand: Hand):
    both = hand.logits([add(Heads(layer=1, pos="last", part="z"), donor="corrupt", align="role")], corrupt=hand.corrupt)
    want = one_hot(hand, hand.right) + one_hot(hand, hand.corrupt.labels[:, -1])
    assert torch.allclose(both, want, rtol=0, atol=1e-12)


def test_resampling_says_the_answer_of_the_example_drawn(hand: Hand):
    said = hand.says(resample(Heads(layer=1, pos="last", part="z"), donor="same", seed=7), same=hand.batch)
    assert torch.equal(said, hand.right[derangement(len(hand.batch), 7)])


def test_the_mean_says_the_frequencies_of_the_answers(hand: Hand):
    said = hand.logits([mean(Heads(layer=1, pos="last", part="z"), donor="reference")], reference=hand.corrupt)
    frequencies = one_hot(hand, hand.corrupt.labels[:, -1]).mean(0)
    assert torch.allclose(said, frequencies.expand_as(said), rtol=0, atol=1e-12)


SENDER = Heads(layer=0, head=0, pos="answer", part="z")


def test_the_path_into_the_later_keys_carries_the_hidden_step(hand: Hand):
    said = hand.says(path(zero, SENDER, Heads(layer=1, head=0, pos="answer", part="k")))
    assert torch.equal(said, hand.latest(but_answer=False))


@pytest.mark.parametrize("part", ["q", "v"])
def test_the_paths_into_queries_and_values_carry_nothing(hand: Hand, part: str):
    out = run(hand.model, hand.batch, [path(zero, SENDER, Heads(layer=1, head=0, part=part))])
    assert torch.equal(out.logits, run(hand.model, hand.batch).logits)


# A head that copies the previous token, and one that does nothing -----------------------------------------------------


def tokens_of(n: int = 6, n_ctx: int = 5, d_vocab: int = 4) -> Batch:
    tokens = torch.randint(d_vocab, (n, n_ctx), generator=torch.Generator().manual_seed(0))
    second = torch.zeros_like(tokens, dtype=torch.bool)
    second[:, 1] = True
    return Batch(tokens, torch.full_like(tokens, UNREAD).index_fill(1, torch.tensor([4]), 0), roles={"second": second})


@pytest.mark.parametrize("n_heads", [1, 2])
def test_the_previous_token_is_said_everywhere(n_heads: int):
    batch = tokens_of()
    said = run(previous_token(4, 5, n_heads), batch).logits.argmax(-1)
    assert torch.equal(said, torch.cat([batch.tokens[:, :1], batch.tokens[:, :-1]], 1))


def test_left_padding_moves_the_circuit_along():
    batch = tokens_of()
    pad = torch.zeros(len(batch), 2, dtype=torch.long)
    valid = torch.cat([pad, torch.ones_like(batch.tokens)], 1).bool()
    padded = Batch(torch.cat([pad, batch.tokens], 1), torch.cat([pad + UNREAD, batch.labels], 1), valid)
    model = previous_token(4, 7)
    assert torch.equal(run(model, padded).logits[:, 2:], run(model, batch).logits)


def test_ablating_the_inert_head_changes_nothing_and_the_working_one_silences_the_model():
    model, batch = previous_token(4, 5, n_heads=2), tokens_of()
    inert = run(model, batch, [zero(Heads(layer=0, head=1, part="z"))])
    assert torch.equal(inert.logits, run(model, batch).logits)
    assert not inert.notes  # it landed, and z was not 0 before: no effect is a finding here, not a failure
    assert not run(model, batch, [zero(Heads(layer=0, head=0, part="z"))]).logits.any()


@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.parametrize("edit", [zero, uniform, cut], ids=["zero", "uniform", "cut"])
def test_other_heads_keep_their_z_when_one_is_edited(head: int, edit):
    model, batch = previous_token(4, 5, n_heads=2), tokens_of()
    where = Heads(layer=0, head=head, part="z") if edit is zero else Edges(layer=0, head=head, source="second")
    how = {} if edit is zero else {"empty": "no-update"}
    clean = record(model, batch, ["z"])["z", 0]
    edited = record(model, batch, ["z"], [edit(where, **how)])["z", 0]
    assert torch.equal(edited[:, :, 1 - head], clean[:, :, 1 - head])
    assert not torch.equal(edited[:, :, head], clean[:, :, head])
