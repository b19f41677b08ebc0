"""The lookup task: its sequences, roles and labels by brute force, and what a guesser gets on it."""

import math
from collections import Counter
from itertools import product

import pytest
import torch
from pydantic import ValidationError

from tasks.lookup import DIGIT, LETTER, Lookup
from workbench.batch import UNREAD
from workbench.task import Task, derive_seed, identity

SIZES = [(8, 8, 4), (4, 3, 4), (26, 10, 3), (2, 2, 2)]
TEXT = "c 5 a 2 f 7 b 0 a"


def task_of(size):
    letters, digits, pairs = size
    return Lookup(letters=letters, digits=digits, pairs=pairs)


def near(share, expected, n):
    """Within 4 standard errors of an exact rate."""
    return abs(share - expected) <= 4 * math.sqrt(expected * (1 - expected) / n)


def tensors(batch):
    parts = {"tokens": batch.tokens, "labels": batch.labels, "classes": batch.classes}
    return {**parts, **batch.roles, **batch.relations}


# What is drawn


@pytest.mark.parametrize("size", SIZES)
def test_every_sequence_its_label_and_its_roles_by_brute_force(size):
    task = task_of(size)
    batch = task.sample(500, seed=3)
    assert batch.tokens.shape == (500, task.length) == (500, 2 * task.pairs + 1)
    last = task.length - 1
    for example in range(500):
        words = batch.words(example)
        pairs = {words[pos]: words[pos + 1] for pos in range(0, last, 2)}
        assert len(pairs) == task.pairs, "the letters are distinct"
        assert all(letter.isalpha() and digit.isdigit() for letter, digit in pairs.items())
        (match,) = (pos for pos in range(0, last, 2) if words[pos] == words[last])
        labels = [int(label) for label in batch.labels[example]]
        assert labels[:last] == [UNREAD] * last
        assert batch.word(labels[last]) == pairs[words[last]] == words[match + 1]
        places = {name: set(mask[example].nonzero().flatten().tolist()) for name, mask in batch.roles.items()}
        (other,) = places.pop("other")
        assert other % 2 == 1 and other not in (last, match + 1)
        assert places == {
            "last": {last},
            "answer": {match + 1},
            "match": {match},
            "digits": set(range(1, last, 2)),
            "letters": set(range(0, last, 2)),
        }
        classes = [DIGIT if word.isdigit() else LETTER for word in words]
        assert batch.classes[example].tolist() == classes
        for dest in range(task.length):
            for source in range(task.length):
                expected = words[dest].isdigit() and source == dest - 1
                assert bool(batch.relations["previous"][example, dest, source]) == expected
    assert batch.valid.all() and batch.vocabulary == task.vocabulary


def test_the_vocabulary_is_letters_then_digits():
    assert Lookup(letters=3, digits=2, pairs=2).vocabulary == ("a", "b", "c", "0", "1")
    assert len(Lookup().vocabulary) == 16 and Lookup().length == 9


def test_letters_digits_and_the_asked_pair_are_uniform():
    n = 4000
    batch = Lookup().sample(n, seed=0)
    for pos in range(0, 8, 2):
        assert near(batch.roles["match"][:, pos].float().mean(), 1 / 4, n)
        for letter in range(8):
            assert near((batch.tokens[:, pos] == letter).float().mean(), 1 / 8, n)
        for digit in range(8, 16):
            assert near((batch.tokens[:, pos + 1] == digit).float().mean(), 1 / 8, n)


def test_the_asked_pair_is_independent_of_its_digit():
    n = 4000
    batch = Lookup().sample(n, seed=1)
    for pos in range(0, 8, 2):
        for digit in range(8, 16):
            both = batch.roles["match"][:, pos] & (batch.labels[:, -1] == digit)
            assert near(both.float().mean(), 1 / 32, n)


def test_other_is_every_other_digit_equally_often_and_never_the_answer():
    n = 6000
    batch = Lookup().sample(n, seed=2)
    assert not (batch.roles["other"] & batch.roles["answer"]).any()
    counts = Counter()
    for answer, other in zip(batch.roles["answer"].int().argmax(1), batch.roles["other"].int().argmax(1), strict=True):
        counts[int(answer), int(other)] += 1
    assert set(counts) == {(one, two) for one in (1, 3, 5, 7) for two in (1, 3, 5, 7) if one != two}
    assert all(near(count / n, 1 / 12, n) for count in counts.values())


def test_the_same_seed_gives_the_same_batch_and_another_seed_another():
    task = Lookup()
    assert task.sample(50, seed=7).digest() == task.sample(50, seed=7).digest()
    assert task.sample(50, seed=7).digest() != task.sample(50, seed=8).digest()


def test_sampling_neither_reads_nor_moves_the_global_random_state():
    torch.manual_seed(0)
    first, state = Lookup().sample(20, seed=1), torch.get_rng_state()
    torch.manual_seed(1)
    assert Lookup().sample(20, seed=1).digest() == first.digest()
    torch.manual_seed(0)
    Lookup().corrupt(first, seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [0, -3])
def test_a_batch_of_no_examples_is_refused(n):
    with pytest.raises(ValueError, match=f"asked for {n} examples; ask for 1 or more"):
        Lookup().sample(n, seed=0)


# The counterfactual


@pytest.mark.parametrize("size", SIZES)
def test_corrupt_keeps_the_pairs_and_asks_another_of_their_letters(size):
    task = task_of(size)
    clean = task.sample(300, seed=0)
    corrupted = task.corrupt(clean, seed=1)
    assert torch.equal(corrupted.tokens[:, :-1], clean.tokens[:, :-1])
    assert (corrupted.tokens[:, -1] != clean.tokens[:, -1]).all()
    for example in range(300):
        words = corrupted.words(example)
        answer = words.index(words[-1]) + 1
        assert answer < task.length - 1
        assert corrupted.roles["answer"][example].nonzero().flatten().tolist() == [answer]
        assert corrupted.roles["match"][example].nonzero().flatten().tolist() == [answer - 1]
        assert corrupted.word(int(corrupted.labels[example, -1])) == words[answer]
    assert not (corrupted.roles["other"] & corrupted.roles["answer"]).any()
    assert not (corrupted.roles["answer"] & clean.roles["answer"]).any()


def test_corrupt_asks_each_other_letter_equally_often():
    n = 6000
    clean = Lookup().sample(n, seed=0)
    before, after = clean.roles["match"].int().argmax(1), Lookup().corrupt(clean, seed=1).roles["match"].int().argmax(1)
    steps = Counter(((after - before) % 8).tolist())
    assert set(steps) == {2, 4, 6} and all(near(count / n, 1 / 3, n) for count in steps.values())


def test_corrupt_is_the_same_for_the_same_seed_only():
    clean = Lookup().sample(50, seed=0)
    assert Lookup().corrupt(clean, seed=1).digest() == Lookup().corrupt(clean, seed=1).digest()
    assert not torch.equal(Lookup().corrupt(clean, seed=1).tokens, Lookup().corrupt(clean, seed=2).tokens)


@pytest.mark.parametrize("other", [{"letters": 9}, {"pairs": 3}, {"digits": 7}])
def test_a_batch_of_another_task_is_refused(other):
    batch = Lookup(**other).sample(3, seed=0)
    with pytest.raises(ValueError, match=r"this batch is not of Lookup\(letters=8, digits=8, pairs=4\)"):
        Lookup().corrupt(batch, seed=0)
    with pytest.raises(ValueError, match="this batch is not of Lookup"):
        Lookup().sampled_guessing(batch, seed=0)


# Sequences written by hand


def test_encode_and_words_are_inverse():
    task = Lookup()
    batch = task.sample(40, seed=5)
    for example in range(40):
        text = " ".join(batch.words(example))
        one = task.encode(text)
        assert " ".join(one.words(0)) == text
        for name, value in tensors(batch).items():
            if name != "other":
                assert torch.equal(tensors(one)[name][0], value[example]), name
        assert not (one.roles["other"] & one.roles["answer"]).any()


def test_encode_draws_the_same_other_every_time():
    assert Lookup().encode(TEXT).digest() == Lookup().encode(f"  {TEXT} ").digest()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("c 5 a 2 a", r"has 5 tokens; this task has 9: 4 times a letter and a digit"),
        ("", r"has 0 tokens"),
        ("c 5 a 2 f 7 b 0 z", r"'z' is no token of this task; there are: a b c d e f g h 0 1 2 3 4 5 6 7"),
        ("c 5 a 2 f 7 b 8 a", r"'8' is no token"),
        ("5 c a 2 f 7 b 0 a", r"does not alternate letters and digits: 4 times a letter"),
        ("c 5 a 2 f 7 b 0 2", r"does not alternate letters and digits"),
        ("c 5 c 2 f 7 b 0 c", r"repeats a letter among its pairs; they must be distinct"),
        ("c 5 a 2 f 7 b 0 g", r"asks for 'g', which no pair has; end with one of its letters"),
    ],
)
def test_encode_says_what_is_wrong_with_a_sequence(text, said):
    with pytest.raises(ValueError, match=said):
        Lookup().encode(text)


def test_the_drawing_in_the_docstring_is_what_show_prints():
    drawn = [line.split() for line in Lookup().encode(TEXT).show(0).splitlines()]
    written = [line.split()[: len(drawn[0])] for line in Lookup.__doc__.splitlines()]
    start = written.index(drawn[0])
    assert written[start : start + len(drawn)] == drawn
    assert [row[0] for row in drawn][3:] == ["last", "answer", "match", "other", "digits", "letters", "previous"]


# Guessing


def enumerated(digits, pairs):
    """Accuracy of the guessers over every sequence of digits, every asked pair and every guess they may make."""
    right = Counter()
    for drawn, asked in product(product(range(digits), repeat=pairs), range(pairs)):
        most = max(drawn.count(digit) for digit in drawn)
        modes = sorted({digit for digit in drawn if drawn.count(digit) == most})
        for name, guesses in {"any": range(digits), "seen": drawn, "mode": modes}.items():
            right[name] += sum(guess == drawn[asked] for guess in guesses) / len(guesses)
    return {name: count / (digits**pairs * pairs) for name, count in right.items()}


@pytest.mark.parametrize(("digits", "pairs"), [(8, 4), (2, 2), (3, 5), (10, 3), (5, 2), (2, 8)])
def test_guessing_is_the_enumeration_of_every_sequence(digits, pairs):
    assert Lookup(digits=digits, pairs=pairs).guessing() == pytest.approx(enumerated(digits, pairs), abs=1e-12)


def test_guessing_at_the_default_size_is_exact():
    assert Lookup().guessing() == {"any": 0.125, "seen": 0.34375, "mode": 0.412109375}


def test_guessing_does_not_depend_on_the_letters():
    assert Lookup(letters=26).guessing() == Lookup(letters=4).guessing()


def test_guessing_refuses_what_it_cannot_enumerate():
    with pytest.raises(ValueError, match=r"70,607,460 multisets of digits are too many .* use sampled_guessing"):
        Lookup(letters=26, digits=10, pairs=26).guessing()


@pytest.mark.parametrize("size", [(8, 8, 4), (5, 3, 5)])
def test_sampled_guessers_get_what_is_exact(size):
    task, n = task_of(size), 20_000
    played = task.sampled_guessing(task.sample(n, seed=0), seed=1)
    assert played.keys() == task.guessing().keys()
    for name, rate in task.guessing().items():
        assert set(played[name].tolist()) == {0.0, 1.0} and len(played[name]) == n
        assert near(float(played[name].mean()), rate, n), name


def test_the_mode_is_always_guessed_where_there_is_one():
    often, seldom = Lookup().encode("a 1 b 1 c 1 d 2 b"), Lookup().encode("a 1 b 1 c 1 d 2 d")
    for seed in range(30):
        assert Lookup().sampled_guessing(often, seed)["mode"].tolist() == [1.0]
        assert Lookup().sampled_guessing(seldom, seed)["mode"].tolist() == [0.0]


def test_guessers_play_by_their_seed():
    task, batch = Lookup(), Lookup().sample(200, seed=0)
    first = task.sampled_guessing(batch, seed=0)
    for name, right in task.sampled_guessing(batch, seed=0).items():
        assert torch.equal(right, first[name])
    assert any(not torch.equal(right, first[name]) for name, right in task.sampled_guessing(batch, seed=1).items())


# The task as a value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"letters": 3}, "4 pairs need 4 distinct letters, and there are 3; ask for fewer pairs or more letters"),
        ({"letters": 27}, "letters"),
        ({"letters": 1, "pairs": 2}, "letters"),
        ({"digits": 1}, "digits"),
        ({"digits": 11}, "digits"),
        ({"pairs": 1}, "pairs"),
        ({"letters": "many"}, "letters"),
        ({"symbols": 8}, "symbols"),
    ],
)
def test_arguments_that_no_sequence_can_meet_are_refused(arguments, said):
    with pytest.raises(ValidationError, match=said):
        Lookup(**arguments)


def test_a_task_is_frozen_equal_by_value_and_an_exact_round_trip():
    task = Lookup(letters=10, pairs=3)
    with pytest.raises(ValidationError, match="frozen"):
        task.pairs = 4
    assert Lookup.model_validate_json(task.model_dump_json()) == task != Lookup()


def test_lookup_offers_what_a_task_must():
    assert isinstance(Lookup(), Task) and Lookup.name == "lookup"
    assert isinstance(Lookup.MEANING, int) and Lookup.MEANING >= 1
    assert not isinstance(object(), Task)


def test_the_identity_holds_arguments_meaning_and_what_is_drawn(monkeypatch):
    first = identity(Lookup())
    assert first == identity(Lookup()) and first["meaning"] == Lookup.MEANING
    assert first["arguments"] == {"letters": 8, "digits": 8, "pairs": 4}
    assert identity(Lookup(digits=7)) != first
    monkeypatch.setattr(Lookup, "MEANING", Lookup.MEANING + 1)
    assert identity(Lookup()) != first


def test_derived_seeds_differ_by_every_part_and_its_place():
    parts = [("train", 0, 1), ("train", 1, 0), ("train", 0), ("test", 0, 1), ("train", "0, 1"), ("train 0", 1)]
    seeds = [derive_seed(*one) for one in parts]
    assert len(set(seeds)) == len(parts) and all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed("train", 0, 1) == seeds[0]
