"""The masked task: its clauses, masks, clues and labels by reading their words, and what half a sentence gives."""

import math
from itertools import product

import pytest
import torch
from pydantic import ValidationError

from tasks.masked import ADJECTIVES, ADVERBS, AGREEING, KINDS, MASK, NOUN, OTHER, Masked
from workbench.batch import UNREAD
from workbench.task import Task, identity

TASKS = [
    Masked(),
    Masked(kinds=6, words=2, clauses=5, each=2, fillers=7),
    Masked(kinds=2, words=1, clauses=2, each=1, fillers=0),
]
SMALL = Masked(clauses=2, fillers=2)
TEXT = "a [MASK] of old ships moved , some of the bees still [MASK] ."
KIND_OF = {noun: kind for kind, (_, _, nouns) in enumerate(KINDS) for noun in nouns}
FIXED_BY = {word: kind for kind, (collective, verb, _) in enumerate(KINDS) for word in (collective, verb)}


def near(share, expected, n):
    """Within 4 standard errors of an exact rate."""
    return abs(float(share) - expected) <= 4 * math.sqrt(expected * (1 - expected) / n)


def places(batch, example):
    return {name: set(mask[example].nonzero().flatten().tolist()) for name, mask in batch.roles.items()}


def clauses_of(words):
    """The clauses of a sentence, each as its positions, without the comma or full stop."""
    found, here = [], []
    for at, word in enumerate(words):
        if word in (",", "."):
            found.append(here)
            here = []
        else:
            here.append(at)
    assert not here, "the sentence ends in a full stop"
    return found


def read(words):
    """What a sentence says: its roles, the word at each mask, and each mask's clue."""
    names = ("masked", "by_right", "by_left", "clue", "right_clue", "left_clue", "nouns")
    roles, labels, told_by = {name: set() for name in names}, {}, {}
    for clause in clauses_of(words):
        (noun,) = (at for at in clause if words[at] in KIND_OF)
        roles["nouns"].add(noun)
        masks = [at for at in clause if words[at] == MASK]
        for mask in masks:
            side, column = ("right", 0) if mask < noun else ("left", 1)
            labels[mask], told_by[mask] = KINDS[KIND_OF[words[noun]]][column], noun
            for name, at in (("masked", mask), (f"by_{side}", mask), ("clue", noun), (f"{side}_clue", noun)):
                roles[name].add(at)
        agreeing = [words[at] for at in clause if words[at] in FIXED_BY]
        assert len(masks) + len(agreeing) == 1
        assert all(FIXED_BY[word] == KIND_OF[words[noun]] for word in agreeing)
    return roles, labels, told_by


# What is drawn


@pytest.mark.parametrize("task", TASKS)
def test_every_label_role_and_clue_is_what_a_reader_of_the_words_finds(task):
    batch = task.sample(200, seed=3)
    assert batch.tokens.shape == (200, task.length) and batch.valid.all()
    for example in range(200):
        words = batch.words(example)
        roles, labels, told_by = read(words)
        assert places(batch, example) == roles
        assert len(roles["by_right"]) == len(roles["by_left"]) == task.each
        found = {at: label for at, label in enumerate(batch.labels[example].tolist()) if label != UNREAD}
        assert {at: batch.word(label) for at, label in found.items()} == labels
        edges = batch.relations["told_by"][example].nonzero().tolist()
        assert dict(edges) == told_by and len(edges) == len(told_by)
        agreeing = {word: AGREEING for word in (*FIXED_BY, MASK)} | {noun: NOUN for noun in KIND_OF}
        assert batch.classes[example].tolist() == [agreeing.get(word, OTHER) for word in words]


@pytest.mark.parametrize("task", TASKS)
def test_other_is_the_noun_of_another_clause(task):
    batch = task.sample(200, seed=2)
    seen = set()
    for example in range(200):
        words, edges = batch.words(example), batch.relations["other"][example].nonzero().tolist()
        clause = {at: index for index, clause in enumerate(clauses_of(words)) for at in clause}
        assert {dest for dest, _ in edges} == places(batch, example)["masked"] and len(edges) == 2 * task.each
        assert all(words[source] in KIND_OF and clause[source] != clause[dest] for dest, source in edges)
        seen |= {(clause[dest], clause[source]) for dest, source in edges}
    assert seen == {pair for pair in product(range(task.clauses), repeat=2) if pair[0] != pair[1]}


@pytest.mark.parametrize("task", TASKS)
def test_clauses_without_their_fillers_are_of_the_two_forms(task):
    batch = task.sample(200, seed=1)
    for example in range(200):
        words, fillers = batch.words(example), 0
        for clause in clauses_of(words):
            said = [words[at] for at in clause]
            bare = [word for word in said if word not in (*ADJECTIVES, *ADVERBS)]
            fillers += len(said) - len(bare)
            noun = next(at for at, word in enumerate(said) if word in KIND_OF)
            assert all(word not in ADVERBS for word in said[:noun]) and not set(said[noun:]) & set(ADJECTIVES)
            if bare[0] == "a":
                assert (bare[2], bare[4]) == ("of", "moved") and bare[3] in KIND_OF
            else:
                assert bare[:3] == ["some", "of", "the"] and bare[3] in KIND_OF
            assert len(bare) == 5
        assert fillers == task.fillers


def test_kinds_are_uniform_and_independent_from_clause_to_clause():
    n = 8000
    batch = Masked().sample(n, seed=0)
    nouns = batch.tokens[batch.roles["nouns"]].unflatten(0, (n, 3)) - 8
    assert all(near((nouns[:, 0] == noun).float().mean(), 1 / 12, n) for noun in range(12))
    for one, two in ((0, 1), (1, 2)):
        assert near((nouns[:, one] // 3 == nouns[:, two] // 3).float().mean(), 1 / 4, n)


def test_masks_fall_on_every_clause_equally_often():
    n = 6000
    batch = Masked().sample(n, seed=4)
    clause = ((batch.tokens == batch.vocabulary.index(",")).cumsum(1) * batch.roles["by_right"]).sum(1)
    assert all(near((clause == index).float().mean(), 1 / 3, n) for index in range(3))


def test_the_same_seed_gives_the_same_batch_and_another_seed_another():
    task = Masked()
    assert task.sample(50, seed=7).digest() == task.sample(50, seed=7).digest()
    assert not torch.equal(task.sample(50, seed=7).tokens, task.sample(50, seed=8).tokens)


def test_sampling_leaves_the_global_random_state_alone():
    state = torch.get_rng_state()
    Masked().corrupt(Masked().sample(20, seed=1), seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [0, -3])
def test_a_batch_of_no_examples_is_refused(n):
    with pytest.raises(ValueError, match=f"asked for {n} examples; ask for 1 or more"):
        Masked().sample(n, seed=0)


# The counterfactual


@pytest.mark.parametrize("task", TASKS)
def test_corrupt_changes_the_clues_alone_and_every_label(task):
    clean = task.sample(200, seed=0)
    corrupted = task.corrupt(clean, seed=1)
    assert torch.equal(corrupted.tokens != clean.tokens, clean.roles["clue"])
    assert torch.equal(corrupted.labels != clean.labels, clean.roles["masked"])
    for example in range(200):
        roles, labels, _ = read(corrupted.words(example))
        assert places(corrupted, example) == roles
        assert all(corrupted.word(int(corrupted.labels[example, at])) == word for at, word in labels.items())
    for name in ("told_by", "other"):
        assert torch.equal(corrupted.relations[name], clean.relations[name])


def test_corrupt_draws_each_other_kind_equally_often_and_by_its_seed():
    n = 6000
    task, clean = Masked(), Masked().sample(6000, seed=0)
    one, two = task.corrupt(clean, seed=1), task.corrupt(clean, seed=2)
    assert one.digest() == task.corrupt(clean, seed=1).digest()
    assert not torch.equal(one.tokens, two.tokens)
    at = clean.roles["by_left"]
    steps = (one.labels[at] - clean.labels[at]) % 4
    assert steps.unique().tolist() == [1, 2, 3] and all(near((steps == s).float().mean(), 1 / 3, n) for s in (1, 2, 3))


@pytest.mark.parametrize("other", [{"kinds": 5}, {"fillers": 2}, {"clauses": 4}])
def test_a_batch_of_another_task_is_refused(other):
    with pytest.raises(ValueError, match=r"this batch is not of Masked\(kinds=4"):
        Masked().corrupt(Masked(**other).sample(3, seed=0), seed=0)


# Sentences written by hand


@pytest.mark.parametrize("task", TASKS)
def test_encode_and_words_are_inverse(task):
    batch = task.sample(40, seed=5)
    for example in range(40):
        text = " ".join(batch.words(example))
        one = task.encode(text)
        assert " ".join(one.words(0)) == text and torch.equal(one.labels[0], batch.labels[example])
        assert places(one, 0) == places(batch, example)
        assert torch.equal(one.relations["told_by"][0], batch.relations["told_by"][example])
        assert one.digest() == task.encode(f"  {text} ").digest()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a [MASK] of ships moved .", "has 6 tokens; this task has 14: 2 clauses, each 'a COLLECTIVE of NOUN moved'"),
        ("", "has 0 tokens"),
        (TEXT.replace("still", "never"), r"'never' is no token of this task; there are: pack fleet swarm bunch howled"),
        (TEXT[:-1] + ",", "is not 2 clauses with commas between and a full stop at the end"),
        (TEXT.replace(" ,", " old"), "is not 2 clauses with commas between"),
        (TEXT.replace("old", "often"), "'a .* often ships moved' is no clause of this task: 2 clauses, each"),
        (TEXT.replace("still [MASK]", "[MASK] still"), "is no clause of this task"),
        (TEXT.replace("still [MASK]", "still buzzed"), "masks 1 collectives and 0 verbs; this task masks 1 of each"),
        (TEXT.replace("still [MASK]", "still sailed"), "'sailed' does not go with 'bees'; 'buzzed' does"),
        (TEXT.replace("a [MASK]", "a swarm"), "'swarm' does not go with 'ships'; 'fleet' does"),
    ],
)
def test_encode_says_what_is_wrong_with_a_sentence(text, said):
    with pytest.raises(ValueError, match=said):
        SMALL.encode(text)


def test_the_drawing_in_the_docstring_is_what_show_prints():
    drawn = [line.split() for line in SMALL.encode(TEXT).show(0).splitlines()]
    written = [line.split()[: len(drawn[0])] for line in Masked.__doc__.splitlines()]
    start = written.index(drawn[0])
    assert written[start : start + len(drawn)] == drawn


# Guessing


def enumerated(kinds):
    """Accuracy over one mask of each form, over every pair of kinds and every guess that is left."""
    collectives, verbs = [list(column[:kinds]) for column in list(zip(*KINDS, strict=True))[:2]]
    right = {"any": 0.0, "blind": 0.0, "left only": 0.0, "right only": 0.0}
    for one, two in product(range(kinds), repeat=2):
        for answer, same_form, told in (
            (collectives[one], collectives, "right only"),
            (verbs[two], verbs, "left only"),
        ):
            guesses = {"any": collectives + verbs, "blind": same_form, "left only": same_form, "right only": same_form}
            for name, those in (guesses | {told: [answer]}).items():
                right[name] += sum(guess == answer for guess in those) / len(those) / 2
    return {name: value / kinds**2 for name, value in right.items()}


@pytest.mark.parametrize("kinds", [2, 4, 6])
def test_guessing_is_the_enumeration_of_every_pair_of_kinds(kinds):
    assert Masked(kinds=kinds).guessing() == pytest.approx(enumerated(kinds), abs=1e-12)


def test_guessing_at_the_default_size_is_exact():
    assert Masked().guessing() == {"any": 0.125, "blind": 0.25, "left only": 0.625, "right only": 0.625}


@pytest.mark.parametrize(
    ("side", "told", "untold"), [("left", "by_left", "by_right"), ("right", "by_right", "by_left")]
)
def test_the_best_reader_of_one_side_is_right_there_and_blind_elsewhere(side, told, untold):
    """The best guess from one side, read off the data: for what stands on it (bare), the likeliest word."""
    n = 20_000
    task = Masked(kinds=3, words=1, clauses=2, fillers=0)
    batch = task.sample(n, seed=0)
    for role, rate in ((told, 1), (untold, task.guessing()["blind"])):
        counts = {}
        for tokens, at, label in zip(
            batch.tokens.tolist(), batch.roles[role].int().argmax(1).tolist(), batch.labels[batch.roles[role]].tolist(),
            strict=True,
        ):  # fmt: skip
            seen = tuple(tokens[:at] if side == "left" else tokens[at + 1 :])
            counts.setdefault(seen, []).append(label)
        best = sum(max(labels.count(word) for word in set(labels)) for labels in counts.values()) / n
        assert best == 1 if rate == 1 else rate <= best < rate + 0.02, role


# The task as a value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"each": 2}, r"2 masks of each form need 4 clauses, and there are 3; ask for fewer masks \(`each`\) or more"),
        ({"clauses": 1}, "clauses"),
        ({"kinds": 7}, "kinds"),
        ({"words": 0}, "words"),
        ({"fillers": -1}, "fillers"),
        ({"masks": 2}, "masks"),
    ],
)
def test_arguments_that_no_sentence_can_meet_are_refused(arguments, said):
    with pytest.raises(ValidationError, match=said):
        Masked(**arguments)


def test_masked_offers_what_a_task_must_and_is_a_value():
    task = Masked(kinds=5)
    assert isinstance(task, Task) and task.name == "masked" and len(set(task.vocabulary)) == len(task.vocabulary)
    assert Masked.model_validate_json(task.model_dump_json()) == task != Masked()
    assert identity(task) == identity(Masked(kinds=5)) != identity(Masked())
    with pytest.raises(ValidationError, match="frozen"):
        task.kinds = 2


def test_no_word_belongs_to_two_kinds_or_has_two_uses():
    words = [word for collective, verb, nouns in KINDS for word in (collective, verb, *nouns)]
    assert len(set(words)) == len(words)
