"""The induction task: its blocks, roles, relations and labels by brute force, and what a guesser gets on it."""

import math
from itertools import permutations

import pytest
import torch
from pydantic import ValidationError

from tasks.induction import Induction
from workbench.batch import UNREAD
from workbench.task import Task, identity

TASKS = [
    Induction(),
    Induction(words=8, length=9, shortest=2, longest=4),
    Induction(words=6, length=12, shortest=6, longest=6),
    Induction(words=62, length=40, shortest=2, longest=20),
]
SMALL = Induction(length=9, shortest=2, longest=4)
TEXT = "k c a f c a f b h"


def near(share, expected, n):
    """Within 4 standard errors of an exact rate."""
    return abs(float(share) - expected) <= 4 * math.sqrt(expected * (1 - expected) / n)


def places(mask):
    return set(mask.nonzero().flatten().tolist())


def edges(mask):
    return {tuple(edge) for edge in mask.nonzero().tolist()}


def block_of(words):
    """Start and size of the one block that comes twice, found by trying all."""
    found = [
        (start, size)
        for size in range(len(words) // 2, 1, -1)
        for start in range(len(words) - 2 * size + 1)
        if words[start : start + size] == words[start + size : start + 2 * size]
    ]
    assert len(found) == 1
    return found[0]


def check(batch, example):
    """Asserts every label, role and relation of an example, from its words."""
    words = batch.words(example)
    start, size = block_of(words)
    second = range(start + size, start + 2 * size)
    read = second[:-1]
    assert len(set(words)) == len(words) - size, "outside the second copy all tokens differ"
    labels = batch.labels[example].tolist()
    for at, label in enumerate(labels):
        # The answer, by the rule alone: what followed the earlier copy of this token.
        answer = words[words.index(words[at]) + 1] if at in read else None
        assert (label == UNREAD) == (answer is None)
        assert answer is None or batch.word(label) == answer == words[at + 1]
    roles = {name: places(mask[example]) for name, mask in batch.roles.items()}
    assert roles == {"first": set(range(start, start + size)), "second": set(second), "last": {read[-1]}}
    relations = {name: edges(mask[example]) for name, mask in batch.relations.items()}
    assert relations == {
        "match": {(at, at - size + 1) for at in read},
        "same": {(at, at - size) for at in second},
        "previous": {(at, at - 1) for at in range(1, len(words))},
    }


# What is drawn


@pytest.mark.parametrize("task", TASKS)
def test_every_sequence_its_labels_roles_and_relations_by_brute_force(task):
    batch = task.sample(200, seed=3)
    assert batch.tokens.shape == (200, task.length) and batch.valid.all()
    for example in range(200):
        check(batch, example)
        assert task.shortest <= block_of(batch.words(example))[1] <= task.longest


def test_sizes_starts_and_tokens_are_uniform():
    n = 8000
    task = TASKS[1]
    batch = task.sample(n, seed=0)
    size, start = batch.roles["first"].sum(1), batch.roles["first"].int().argmax(1)
    for one in (2, 3, 4):
        assert near((size == one).float().mean(), 1 / 3, n)
        starts = start[size == one]
        assert sorted(starts.unique().tolist()) == list(range(9 - 2 * one + 1))
        assert all(near((starts == at).float().mean(), 1 / (10 - 2 * one), len(starts)) for at in starts.unique())
    assert all(near((batch.tokens[:, 0] == token).float().mean(), 1 / 8, n) for token in range(8))


def test_the_same_seed_gives_the_same_batch_and_another_seed_another():
    task = Induction()
    assert task.sample(50, seed=7).digest() == task.sample(50, seed=7).digest()
    assert not torch.equal(task.sample(50, seed=7).tokens, task.sample(50, seed=8).tokens)


def test_sampling_leaves_the_global_random_state_alone():
    state = torch.get_rng_state()
    Induction().corrupt(Induction().sample(20, seed=1), seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [0, -3])
def test_a_batch_of_no_examples_is_refused(n):
    with pytest.raises(ValueError, match=f"asked for {n} examples; ask for 1 or more"):
        Induction().sample(n, seed=0)


# The counterfactual


@pytest.mark.parametrize("task", TASKS)
def test_corrupt_moves_every_token_of_the_block_and_nothing_else(task):
    clean = task.sample(200, seed=0)
    corrupted = task.corrupt(clean, seed=1)
    assert torch.equal(corrupted.tokens != clean.tokens, clean.roles["first"] | clean.roles["second"])
    read = clean.labels != UNREAD
    assert torch.equal(corrupted.labels != clean.labels, read)
    for example in range(200):
        check(corrupted, example)
        assert sorted(corrupted.words(example)) == sorted(clean.words(example))
    for name, mask in {**clean.roles, **clean.relations}.items():
        assert torch.equal({**corrupted.roles, **corrupted.relations}[name], mask), name


def test_corrupt_draws_every_single_cycle_of_a_block_equally_often():
    n = 6000
    task = Induction(words=4, length=8, shortest=4, longest=4)
    clean = task.encode("a b c d a b c d").select(torch.zeros(n, dtype=torch.long))
    drawn = ["".join(words) for words in map(task.corrupt(clean, seed=1).words, range(n))]

    def one_cycle(order):
        at, turns = order["abcd".index("a")], 1
        while at != "a":
            at, turns = order["abcd".index(at)], turns + 1
        return turns == 4

    cycles = {"".join(order) * 2 for order in permutations("abcd") if one_cycle(order)}
    assert len(cycles) == 6 == len(set(drawn)) and set(drawn) == cycles
    assert all(near(drawn.count(order) / n, 1 / 6, n) for order in cycles)


def test_corrupt_is_the_same_for_the_same_seed_only():
    clean = Induction().sample(50, seed=0)
    assert Induction().corrupt(clean, seed=1).digest() == Induction().corrupt(clean, seed=1).digest()
    assert not torch.equal(Induction().corrupt(clean, seed=1).tokens, Induction().corrupt(clean, seed=2).tokens)


@pytest.mark.parametrize("other", [{"words": 31}, {"length": 22}])
def test_a_batch_of_another_task_is_refused(other):
    with pytest.raises(ValueError, match=r"this batch is not of Induction\(words=32"):
        Induction().corrupt(Induction(**other).sample(3, seed=0), seed=0)


# Sequences written by hand


@pytest.mark.parametrize("task", TASKS)
def test_encode_and_words_are_inverse(task):
    batch = task.sample(30, seed=5)
    for example in range(30):
        assert (
            task.encode(" ".join(batch.words(example))).digest() == batch.select(slice(example, example + 1)).digest()
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b a b", "has 4 tokens; this task has 9"),
        ("", "has 0 tokens"),
        ("k c a f c a f b 7", r"'7' is no token of this task; there are: a b c"),
        ("k c a f d e g b h", "has no block that comes twice, once right after the other; ask for 9 tokens in which 2"),
        ("k c a f c b f d h", "has no block that comes twice"),
        ("c a f b c a f k h", "has its second block in another order than its first"),
        ("k c a f a c f b h", "has its second block in another order than its first"),
        ("a a b c d e f g h", "has a block of 1 tokens; ask for 9 tokens in which 2 to 4 come again"),
    ],
)
def test_encode_says_what_is_wrong_with_a_sequence(text, said):
    with pytest.raises(ValueError, match=said):
        SMALL.encode(text)


def test_a_block_longer_than_the_longest_is_refused():
    with pytest.raises(ValueError, match="has a block of 4 tokens; ask for 9 tokens in which 2 to 3 come again"):
        Induction(length=9, shortest=2, longest=3).encode("a b c d a b c d e")


def test_the_drawing_in_the_docstring_is_what_show_prints():
    drawn = [line.split() for line in SMALL.encode(TEXT).show(0).splitlines()]
    written = [line.split()[: len(drawn[0])] for line in Induction.__doc__.splitlines()]
    start = written.index(drawn[0])
    assert written[start : start + len(drawn)] == drawn


# Guessing


def enumerated(task):
    """Accuracy of the guessers over every block and every order of the tokens, example by example."""
    blocks = [
        (start, size, 1 / (task.longest - task.shortest + 1) / (task.length - 2 * size + 1))
        for size in range(task.shortest, task.longest + 1)
        for start in range(task.length - 2 * size + 1)
    ]
    right, rules = {"any": 0.0, "seen": 0.0, "once": 0.0}, {}
    for start, size, share in blocks:
        orders = list(permutations(range(task.words), task.length - size))
        for order in orders:
            words = [*order[: start + size], *order[start : start + size], *order[start + size :]]
            for at in range(start + size, start + 2 * size - 1):
                seen, answer, weight = words[: at + 1], words[at + 1], share / len(orders) / (size - 1)
                once = [word for word in seen if seen.count(word) == 1]
                for name, guesses in {"any": range(task.words), "seen": seen, "once": once}.items():
                    right[name] += weight * sum(guess == answer for guess in guesses) / len(guesses)
                for source in range(at + 1):
                    rules[at, source] = rules.get((at, source), 0) + weight * (words[source] == answer)
    best = {at: max(value for (dest, _), value in rules.items() if dest == at) for at, _ in rules}
    return {**right, "position": sum(best.values())}


@pytest.mark.parametrize("sizes", [(5, 6, 2, 3), (4, 6, 3, 3), (5, 7, 2, 2), (4, 6, 2, 3), (4, 4, 2, 2)])
def test_guessing_is_the_enumeration_of_every_sequence(sizes):
    task = Induction(**dict(zip(("words", "length", "shortest", "longest"), sizes, strict=True)))
    assert task.guessing() == pytest.approx(enumerated(task), abs=1e-12)


def test_positions_alone_solve_the_task_only_where_the_block_has_one_size():
    assert Induction(shortest=6, longest=6).guessing()["position"] == pytest.approx(1, abs=1e-12)
    assert Induction().guessing()["position"] == pytest.approx(0.2684094990, abs=1e-9)


def test_guessers_that_play_get_what_is_exact():
    n, task = 4000, Induction()
    batch, generator = task.sample(n, seed=0), torch.Generator().manual_seed(1)
    played = {"any": 0.0, "seen": 0.0, "once": 0.0}
    for tokens, labels in zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True):
        read = [at for at, label in enumerate(labels) if label != UNREAD]
        for at in read:
            seen = tokens[: at + 1]
            once = [token for token in seen if seen.count(token) == 1]
            for name, guesses in {"any": range(task.words), "seen": seen, "once": once}.items():
                guess = guesses[int(torch.randint(len(guesses), (1,), generator=generator))]
                played[name] += (guess == labels[at]) / len(read)
    for name, right in played.items():
        # Several positions are read in an example, so this allows more than the share of examples varies by.
        assert near(right / n, task.guessing()[name], n), name


# The task as a value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"shortest": 9}, "the shortest block, 9, is longer than the longest, 8"),
        ({"longest": 13}, "two copies of 13 tokens need 26 positions, and there are 24; ask for a shorter block"),
        ({"words": 19}, "24 positions with a block of 4 need 20 distinct tokens, and there are 19; ask for fewer"),
        ({"shortest": 1}, "shortest"),
        ({"words": 63}, "words"),
        ({"period": 4}, "period"),
    ],
)
def test_arguments_that_no_sequence_can_meet_are_refused(arguments, said):
    with pytest.raises(ValidationError, match=said):
        Induction(**arguments)


def test_induction_offers_what_a_task_must_and_is_a_value():
    task = Induction(words=40)
    assert isinstance(task, Task) and task.name == "induction" and len(set(task.vocabulary)) == 40
    assert Induction.model_validate_json(task.model_dump_json()) == task != Induction()
    assert identity(task) == identity(Induction(words=40)) != identity(Induction())
    with pytest.raises(ValidationError, match="frozen"):
        task.words = 50
