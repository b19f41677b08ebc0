"""The two-relations task: its lists, facts, roles and labels by brute force, and what one fact or a set gives."""

import math
from collections import Counter
from itertools import product

import pytest
import torch
from pydantic import ValidationError

from tasks.two_relations import DIGIT, LETTER, TwoRelations
from workbench.batch import UNREAD
from workbench.task import Task, identity

TASKS = [TwoRelations(), TwoRelations(letters=26, digits=10, pairs=5), TwoRelations(letters=2, digits=2, pairs=2)]
SMALL = TwoRelations(digits=7, pairs=2)
TEXT = "c 5 a 2 a 6 c 3 a"


def near(share, expected, n):
    """Within 4 standard errors of an exact rate."""
    return abs(float(share) - expected) <= 4 * math.sqrt(expected * (1 - expected) / n)


def place(mask):
    (at,) = mask.nonzero().flatten().tolist()
    return at


def check(task, batch, example):
    """Asserts every label, role and relation of an example, from its words."""
    words, half = batch.words(example), 2 * task.pairs
    last = len(words) - 1
    lists = [{words[at]: at for at in range(start, start + half, 2)} for start in (0, half)]
    assert len(lists[0]) == task.pairs and lists[0].keys() == lists[1].keys()
    first, second = (where[words[last]] for where in lists)
    assert batch.labels[example].tolist()[:-1] == [UNREAD] * last
    assert batch.word(int(batch.labels[example, -1])) == words[first + 1] + words[second + 1]
    roles = {name: set(mask[example].nonzero().flatten().tolist()) for name, mask in batch.roles.items()}
    (one,), (two,) = roles.pop("first_other"), roles.pop("second_other")
    assert one < half < two and words[one - 1] == words[two - 1] != words[last]
    assert roles == {
        "last": {last},
        "first_fact": {first + 1},
        "second_fact": {second + 1},
        "first_match": {first},
        "second_match": {second},
        "digits": set(range(1, last, 2)),
        "letters": set(range(0, last, 2)),
    }
    relations = {name: mask[example].nonzero().tolist() for name, mask in batch.relations.items()}
    assert relations == {
        "first": [[last, first + 1]],
        "second": [[last, second + 1]],
        "previous": [[at, at - 1] for at in range(1, last, 2)],
    }
    assert batch.classes[example].tolist() == [DIGIT if word.isdigit() else LETTER for word in words]


# What is drawn


@pytest.mark.parametrize("task", TASKS)
def test_every_sequence_its_label_roles_and_relations_by_brute_force(task):
    batch = task.sample(300, seed=3)
    assert batch.tokens.shape == (300, task.length) and batch.valid.all()
    for example in range(300):
        check(task, batch, example)


def test_letters_digits_orders_and_the_asked_pair_are_uniform_and_independent():
    n = 6000
    batch = TwoRelations().sample(n, seed=0)
    for position in range(0, 12, 2):
        assert all(near((batch.tokens[:, position] == letter).float().mean(), 1 / 8, n) for letter in range(8))
        assert all(near((batch.tokens[:, position + 1] == 8 + d).float().mean(), 1 / 5, n) for d in range(5))
    first, second = (batch.roles[name].int().argmax(1) for name in ("first_fact", "second_fact"))
    for one, two in product((1, 3, 5), (7, 9, 11)):
        assert near(((first == one) & (second == two)).float().mean(), 1 / 9, n)
    facts = batch.tokens.gather(1, torch.stack([first, second], 1)) - 8
    for one, two in product(range(5), repeat=2):
        assert near(((facts[:, 0] == one) & (facts[:, 1] == two)).float().mean(), 1 / 25, n)


def test_the_others_are_of_every_other_letter_equally_often():
    n = 6000
    batch = TwoRelations().sample(n, seed=2)
    counts = Counter(
        (place(asked), place(other))
        for asked, other in zip(batch.roles["first_fact"], batch.roles["first_other"], strict=True)
    )
    assert set(counts) == {(one, two) for one, two in product((1, 3, 5), repeat=2) if one != two}
    assert all(near(count / n, 1 / 6, n) for count in counts.values())


def test_every_two_facts_in_every_order_have_an_answer_of_their_own():
    task = TwoRelations(letters=2, digits=4, pairs=2)
    labels = [int(task.encode(f"a {one} b 0 b 0 a {two} a").labels[0, -1]) for one, two in product(range(4), repeat=2)]
    assert labels == list(range(6, 22)) and task.vocabulary[6:9] == ("00", "01", "02")


def test_the_same_seed_gives_the_same_batch_and_another_seed_another():
    task = TwoRelations()
    assert task.sample(50, seed=7).digest() == task.sample(50, seed=7).digest()
    assert not torch.equal(task.sample(50, seed=7).tokens, task.sample(50, seed=8).tokens)


def test_sampling_leaves_the_global_random_state_alone():
    state = torch.get_rng_state()
    TwoRelations().corrupt(TwoRelations().sample(20, seed=1), seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [0, -3])
def test_a_batch_of_no_examples_is_refused(n):
    with pytest.raises(ValueError, match=f"asked for {n} examples; ask for 1 or more"):
        TwoRelations().sample(n, seed=0)


# The counterfactual


@pytest.mark.parametrize("task", TASKS)
def test_corrupt_changes_one_fact_and_the_label_and_nothing_else(task):
    clean = task.sample(300, seed=0)
    corrupted = task.corrupt(clean, seed=1)
    changed = corrupted.tokens != clean.tokens
    assert (changed.sum(1) == 1).all()
    assert not (changed & ~(clean.roles["first_fact"] | clean.roles["second_fact"])).any()
    assert (corrupted.labels[:, -1] != clean.labels[:, -1]).all()
    for example in range(300):
        check(task, corrupted, example)
    for name, mask in {**clean.roles, **clean.relations}.items():
        assert torch.equal({**corrupted.roles, **corrupted.relations}[name], mask), name


def test_corrupt_changes_either_fact_to_every_other_digit_equally_often():
    n = 6000
    clean = TwoRelations().sample(n, seed=0)
    corrupted = TwoRelations().corrupt(clean, seed=1)
    first = (corrupted.tokens != clean.tokens)[clean.roles["first_fact"]]
    assert near(first.float().mean(), 1 / 2, n)
    steps = (corrupted.tokens - clean.tokens).sum(1) % 5
    assert all(near((steps == step).float().mean(), 1 / 4, n) for step in range(1, 5))


def test_corrupt_is_the_same_for_the_same_seed_only():
    task, clean = TwoRelations(), TwoRelations().sample(50, seed=0)
    assert task.corrupt(clean, seed=1).digest() == task.corrupt(clean, seed=1).digest()
    assert not torch.equal(task.corrupt(clean, seed=1).tokens, task.corrupt(clean, seed=2).tokens)


@pytest.mark.parametrize("other", [{"letters": 9}, {"pairs": 2}, {"digits": 8}])
def test_a_batch_of_another_task_is_refused(other):
    with pytest.raises(ValueError, match=r"this batch is not of TwoRelations\(letters=8, digits=5, pairs=3\)"):
        TwoRelations().corrupt(TwoRelations(**other).sample(3, seed=0), seed=0)


# Sequences written by hand


@pytest.mark.parametrize("task", TASKS)
def test_encode_and_words_are_inverse(task):
    batch = task.sample(40, seed=5)
    for example in range(40):
        text = " ".join(batch.words(example))
        one = task.encode(text)
        assert " ".join(one.words(0)) == text and torch.equal(one.labels[0], batch.labels[example])
        check(task, one, 0)
        assert one.digest() == task.encode(f"  {text} ").digest()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("c 5 a 2 a", "has 5 tokens; this task has 9: twice 2 times a letter and a digit, then one of the letters"),
        ("", "has 0 tokens"),
        (TEXT.replace("5", "9"), r"'9' is no token of this task; there are: a b c d e f g h 0 1 2 3 4 5 6 00 01"),
        ("5 c a 2 a 6 c 3 a", "does not alternate letters and digits: twice 2 times"),
        ("c 5 a 2 a 6 c 3 1", "does not alternate letters and digits"),
        ("c 5 a 26 a 6 c 3 a", "does not alternate letters and digits"),
        ("c 5 c 2 a 6 c 3 a", "repeats a letter in its first list; they must be distinct"),
        ("c 5 a 2 a 6 b 3 a", "has the letters c a in its first list and a b in its second; they must be the same"),
        ("c 5 a 2 a 6 a 3 a", "has the letters c a in its first list and a a in its second"),
        ("c 5 a 2 a 6 c 3 b", "asks for 'b', which no pair has; end with one of its letters"),
    ],
)
def test_encode_says_what_is_wrong_with_a_sequence(text, said):
    with pytest.raises(ValueError, match=said):
        SMALL.encode(text)


def test_the_drawing_in_the_docstring_is_what_show_prints():
    drawn = [line.split() for line in SMALL.encode(TEXT).show(0).splitlines()]
    written = [line.split()[: len(drawn[0])] for line in TwoRelations.__doc__.splitlines()]
    start = written.index(drawn[0])
    assert written[start : start + len(drawn)] == drawn


# Guessing


def enumerated(digits, pairs):
    """Accuracy over every pair of digits for every letter: the first letter is asked, as good as any."""
    right, known = Counter(), {"first fact": {}, "second fact": {}, "unordered": {}}
    everything = list(product(range(digits), repeat=2))
    for values in product(range(digits), repeat=2 * pairs):
        firsts, seconds = values[:pairs], values[pairs:]
        answers = list(zip(firsts, seconds, strict=True))
        right["any"] += everything.count(answers[0]) / len(everything)
        right["seen"] += answers.count(answers[0]) / pairs
        right["apart"] += list(product(firsts, seconds)).count(answers[0]) / pairs**2
        one, two = firsts[0], seconds[0]
        for name, what in {"first fact": one, "second fact": two, "unordered": frozenset((one, two))}.items():
            known[name].setdefault(what, Counter())[answers[0]] += 1
    for name, table in known.items():
        right[name] = sum(max(answers.values()) for answers in table.values())
    return {name: count / digits ** (2 * pairs) for name, count in right.items()}


@pytest.mark.parametrize(("digits", "pairs"), [(2, 2), (3, 2), (4, 2), (5, 2), (8, 2), (3, 3)])
def test_guessing_is_the_enumeration_of_every_sequence(digits, pairs):
    task = TwoRelations(digits=digits, pairs=pairs)
    assert task.guessing() == pytest.approx(enumerated(digits, pairs), abs=1e-12)


def test_guessing_at_the_default_size_is_exact():
    assert TwoRelations().guessing() == pytest.approx(
        {
            "any": 1 / 25,
            "seen": 9 / 25,
            "apart": (7 / 15) ** 2,
            "first fact": 1 / 5,
            "second fact": 1 / 5,
            "unordered": 3 / 5,
        },
        abs=1e-12,
    )


def test_guessers_that_play_get_what_is_exact():
    n, task = 8000, TwoRelations()
    batch, generator = task.sample(n, seed=0), torch.Generator().manual_seed(1)
    right = batch.labels[:, -1] - 13
    first, second = (batch.tokens[batch.roles[name]] - 8 for name in ("first_fact", "second_fact"))
    others = [batch.tokens[batch.roles[name]] - 8 for name in ("first_other", "second_other")]
    swapped = torch.rand(n, generator=generator) < 0.5
    own = torch.rand(n, generator=generator) < 1 / 3
    apart = [
        batch.tokens.gather(1, start + 1 + 2 * torch.randint(3, (n, 1), generator=generator))[:, 0] - 8
        for start in (0, 6)
    ]
    played = {
        "any": torch.randint(25, (n,), generator=generator),
        "seen": torch.where(own, 5 * first + second, 5 * others[0] + others[1]),
        "apart": 5 * apart[0] + apart[1],
        "first fact": 5 * first + 3,
        "second fact": 5 * 3 + second,
        "unordered": torch.where(swapped, 5 * first + second, 5 * second + first),
    }
    for name, rate in task.guessing().items():
        assert near((played[name] == right).float().mean(), rate, n), name


# The task as a value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"letters": 2}, "3 pairs need 3 distinct letters, and there are 2; ask for fewer pairs or more letters"),
        ({"letters": 27}, "letters"),
        ({"digits": 1}, "digits"),
        ({"digits": 11}, "digits"),
        ({"pairs": 1}, "pairs"),
        ({"symbols": 8}, "symbols"),
    ],
)
def test_arguments_that_no_sequence_can_meet_are_refused(arguments, said):
    with pytest.raises(ValidationError, match=said):
        TwoRelations(**arguments)


def test_two_relations_offers_what_a_task_must_and_is_a_value():
    task = TwoRelations(pairs=4)
    assert isinstance(task, Task) and task.name == "two-relations" and len(set(task.vocabulary)) == 8 + 5 + 25
    assert TwoRelations.model_validate_json(task.model_dump_json()) == task != TwoRelations()
    assert identity(task) == identity(TwoRelations(pairs=4)) != identity(TwoRelations())
    with pytest.raises(ValidationError, match="frozen"):
        task.pairs = 2
