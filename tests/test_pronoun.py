"""The pronoun task: its sentences, roles and labels by reading their words, and what a guesser gets on it."""

import math
from itertools import permutations, product

import pytest
import torch
from pydantic import ValidationError

from tasks.pronoun import ADJECTIVES, ADVERBS, KINDS, NOUN, OTHER, VERB, Pronoun
from workbench.batch import UNREAD
from workbench.task import Task, identity

TASKS = [
    Pronoun(),
    Pronoun(form="its", verbs=1),
    Pronoun(form="both", kinds=6, words=3, nouns=5, fillers=6),
    Pronoun(kinds=2, words=2, verbs=1, nouns=2, fillers=0),
]
SMALL = Pronoun(nouns=2, fillers=1)
TEXT = "the restaurant refused the sandwich because it only cooks ?"
KIND_OF = {noun: kind for kind, (nouns, _, _) in enumerate(KINDS) for noun in nouns}
FITS = {word: kind for kind, (_, verbs, had) in enumerate(KINDS) for word in (*verbs, *had)}


def near(share, expected, n):
    """Within 4 standard errors of an exact rate."""
    return abs(float(share) - expected) <= 4 * math.sqrt(expected * (1 - expected) / n)


def places(batch, example):
    return {name: set(mask[example].nonzero().flatten().tolist()) for name, mask in batch.roles.items()}


def read(words):
    """What a sentence says, word by word: its roles, and the word that it asks for."""
    nouns = [at for at, word in enumerate(words) if word in KIND_OF]
    (it,) = (at for at, word in enumerate(words) if word in ("it", "its"))
    (verb,) = (at for at, word in enumerate(words) if word in FITS)
    (referent,) = (at for at in nouns if KIND_OF[words[at]] == FITS[words[verb]])
    others = [at for at in nouns if at != referent]
    roles = {"last": {len(words) - 1}, "it": {it}, "verb": {verb}, "referent": {referent}, "nearest": {max(others)}}
    return {**roles, "distractors": set(others), "nouns": set(nouns)}, words[referent]


# What is drawn


@pytest.mark.parametrize("task", TASKS)
def test_every_label_and_role_is_what_a_reader_of_the_words_finds(task):
    batch = task.sample(300, seed=3)
    assert batch.tokens.shape == (300, task.length) and batch.valid.all()
    for example in range(300):
        words = batch.words(example)
        roles, asked = read(words)
        assert places(batch, example) == roles
        assert [int(label) for label in batch.labels[example, :-1]] == [UNREAD] * (task.length - 1)
        assert batch.word(int(batch.labels[example, -1])) == asked
        assert len({KIND_OF[words[at]] for at in roles["nouns"]}) == task.nouns == len(roles["nouns"])
        classes = [NOUN if word in KIND_OF else VERB if word in FITS else OTHER for word in words]
        assert batch.classes[example].tolist() == classes


@pytest.mark.parametrize("task", TASKS)
def test_sentences_without_their_fillers_are_the_frame(task):
    batch = task.sample(200, seed=1)
    for example in range(200):
        words = batch.words(example)
        bare = [word for word in words if word not in (*ADJECTIVES, *ADVERBS)]
        assert len(words) - len(bare) == task.fillers
        links = ["refused", "from", "near", "without", "behind"][: task.nouns - 1]
        assert bare[0::3][: task.nouns] == ["the"] * task.nouns
        assert bare[2::3][: task.nouns] == [*links, "because"]
        pronoun, verb, end = bare[3 * task.nouns :]
        column = {"it": 1, "its": 2}[pronoun]
        assert verb in KINDS[FITS[verb]][column] and end == "?" == words[-1]
        assert pronoun == task.form or task.form == "both"


def test_adjectives_stand_before_nouns_and_what_is_had_and_adverbs_elsewhere():
    batch = Pronoun(form="both", fillers=6).sample(400, seed=0)
    seen = set()
    for example in range(400):
        words = batch.words(example)
        its = words.index("its") if "its" in words else len(words)
        described = [*KIND_OF, *(thing for kind in KINDS for thing in kind[2])]
        for at, word in enumerate(words):
            if word in (*ADJECTIVES, *ADVERBS):
                after = next(other for other in words[at:] if other not in (*ADJECTIVES, *ADVERBS))
                assert (word in ADJECTIVES) == (after in described), words
                seen.add((word in ADJECTIVES, after in KIND_OF, at > its))
    assert (True, False, True) in seen and (False, False, False) in seen and (True, True, False) in seen


def test_the_noun_meant_is_uniform_over_nouns_and_over_places():
    n = 6000
    batch = Pronoun().sample(n, seed=0)
    for noun in range(16):
        assert near((batch.labels[:, -1] == noun).float().mean(), 1 / 16, n)
    rank = (batch.roles["nouns"].cumsum(1) * batch.roles["referent"]).sum(1)
    assert all(near((rank == place).float().mean(), 1 / 3, n) for place in (1, 2, 3))


def test_verb_and_pronoun_do_not_keep_their_places():
    batch = Pronoun().sample(400, seed=0)
    for role in ("it", "verb", "referent", "nearest"):
        assert len(batch.roles[role].int().argmax(1).unique()) > 3


def test_every_verb_and_both_forms_are_drawn_equally_often():
    n = 8000
    batch = Pronoun(form="both").sample(n, seed=5)
    verbs = batch.tokens[batch.roles["verb"]]
    assert len(verbs) == n and len(verbs.unique()) == 16
    assert all(near((verbs == verb).float().mean(), 1 / 16, n) for verb in verbs.unique())


def test_the_same_seed_gives_the_same_batch_and_another_seed_another():
    task = Pronoun()
    assert task.sample(50, seed=7).digest() == task.sample(50, seed=7).digest()
    assert not torch.equal(task.sample(50, seed=7).tokens, task.sample(50, seed=8).tokens)


def test_sampling_leaves_the_global_random_state_alone():
    state = torch.get_rng_state()
    Pronoun().corrupt(Pronoun().sample(20, seed=1), seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [0, -3])
def test_a_batch_of_no_examples_is_refused(n):
    with pytest.raises(ValueError, match=f"asked for {n} examples; ask for 1 or more"):
        Pronoun().sample(n, seed=0)


# The counterfactual


@pytest.mark.parametrize("task", TASKS)
def test_corrupt_changes_the_verb_alone_and_with_it_the_noun_meant(task):
    clean = task.sample(300, seed=0)
    corrupted = task.corrupt(clean, seed=1)
    assert torch.equal(corrupted.tokens != clean.tokens, clean.roles["verb"])
    assert (corrupted.labels[:, -1] != clean.labels[:, -1]).all()
    for example in range(300):
        roles, asked = read(corrupted.words(example))
        assert places(corrupted, example) == roles and corrupted.word(int(corrupted.labels[example, -1])) == asked
    for role in ("last", "it", "verb", "nouns"):
        assert torch.equal(corrupted.roles[role], clean.roles[role])


def test_corrupt_means_each_other_noun_equally_often():
    n = 6000
    clean = Pronoun().sample(n, seed=0)
    ranks = [
        (batch.roles["nouns"].cumsum(1) * batch.roles["referent"]).sum(1)
        for batch in (clean, Pronoun().corrupt(clean, seed=1))
    ]
    steps = (ranks[1] - ranks[0]) % 3
    assert steps.unique().tolist() == [1, 2] and near((steps == 1).float().mean(), 1 / 2, n)


def test_corrupt_is_the_same_for_the_same_seed_only():
    clean = Pronoun().sample(50, seed=0)
    assert Pronoun().corrupt(clean, seed=1).digest() == Pronoun().corrupt(clean, seed=1).digest()
    assert not torch.equal(Pronoun().corrupt(clean, seed=1).tokens, Pronoun().corrupt(clean, seed=2).tokens)


@pytest.mark.parametrize("other", [{"kinds": 5}, {"fillers": 2}, {"form": "its"}])
def test_a_batch_of_another_task_is_refused(other):
    with pytest.raises(ValueError, match=r"this batch is not of Pronoun\(kinds=4"):
        Pronoun().corrupt(Pronoun(**other).sample(3, seed=0), seed=0)


# Sentences written by hand


@pytest.mark.parametrize("task", TASKS)
def test_encode_and_words_are_inverse(task):
    batch = task.sample(40, seed=5)
    for example in range(40):
        assert (
            task.encode(" ".join(batch.words(example))).digest() == batch.select(slice(example, example + 1)).digest()
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the restaurant because it cooks ?", r"has 6 tokens; this task has 10: 'the NOUN refused the NOUN because"),
        ("", "has 0 tokens"),
        (TEXT.replace("only", "never"), "'never' is no token of this task; there are: restaurant bakery"),
        (TEXT.replace("it only", "only it").replace("cooks ?", "? cooks"), "is no sentence of this task: 'the NOUN"),
        (TEXT.replace("only", "old"), "is no sentence of this task"),
        ("the old restaurant refused sandwich the because it cooks ?", "is no sentence of this task"),
        (TEXT.replace("sandwich", "bakery"), "has two nouns of one kind; each must be of another"),
        (TEXT.replace("cooks", "sleeps"), "ends in 'sleeps', which fits none of its nouns"),
    ],
)
def test_encode_says_what_is_wrong_with_a_sentence(text, said):
    with pytest.raises(ValueError, match=said):
        SMALL.encode(text)


def test_a_verb_after_its_and_a_thing_after_it_are_refused():
    task = Pronoun(nouns=2, fillers=0, form="both")
    for right, asked in (("its fur", "dog"), ("it sleeps", "dog"), ("its recipe", "pie")):
        batch = task.encode(f"the dog refused the pie because {right} ?")
        assert batch.word(int(batch.labels[0, -1])) == asked
    for wrong in ("its sleeps", "it fur"):
        with pytest.raises(ValueError, match="'the NOUN refused the NOUN because it VERB or its THING"):
            task.encode(f"the dog refused the pie because {wrong} ?")


def test_the_drawing_in_the_docstring_is_what_show_prints():
    drawn = [line.split() for line in SMALL.encode(TEXT).show(0).splitlines()]
    written = [line.split()[: len(drawn[0])] for line in Pronoun.__doc__.splitlines()]
    start = written.index(drawn[0])
    assert written[start : start + len(drawn)] == drawn


# Guessing


def enumerated(task):
    """Accuracy of the guessers over every sentence (order of kinds, nouns, noun meant) and every guess."""
    vocabulary = [noun for kind in KINDS[: task.kinds] for noun in kind[0][: task.words]]
    right, count = {"any": 0.0, "seen": 0.0, "nearest": 0.0, "verb": 0.0}, 0
    for kinds in permutations(range(task.kinds), task.nouns):
        for nouns in product(*(KINDS[kind][0][: task.words] for kind in kinds)):
            for meant in range(task.nouns):
                fitting = KINDS[kinds[meant]][0][: task.words]
                guesses = {"any": vocabulary, "seen": nouns, "nearest": nouns[-1:], "verb": fitting}
                for name, those in guesses.items():
                    right[name] += sum(guess == nouns[meant] for guess in those) / len(those)
                count += 1
    return {name: value / count for name, value in right.items()}


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 3, 3), (3, 4, 2), (3, 2, 3)])
def test_guessing_is_the_enumeration_of_every_sentence(sizes):
    task = Pronoun(kinds=sizes[0], words=sizes[1], nouns=sizes[2])
    assert task.guessing() == pytest.approx(enumerated(task), abs=1e-12)


def test_guessing_at_the_default_size_is_exact():
    assert Pronoun().guessing() == {"any": 1 / 16, "seen": 1 / 3, "nearest": 1 / 3, "verb": 1 / 4}


@pytest.mark.parametrize("task", TASKS[:3])
def test_guessers_that_play_get_what_is_exact(task):
    n = 5000
    batch, generator = task.sample(n, seed=0), torch.Generator().manual_seed(1)
    right, n_nouns = batch.labels[:, -1], task.kinds * task.words
    nouns = batch.tokens[batch.roles["nouns"]].unflatten(0, (n, task.nouns))
    drawn = torch.randint(task.words, (n,), generator=generator)
    played = {
        "any": torch.randint(n_nouns, (n,), generator=generator),
        "seen": nouns.gather(1, torch.randint(task.nouns, (n, 1), generator=generator))[:, 0],
        "nearest": nouns[:, -1],
        "verb": right // task.words * task.words + drawn,
    }
    for name, rate in task.guessing().items():
        assert near((played[name] == right).float().mean(), rate, n), name


# The task as a value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"nouns": 5}, "5 nouns of different kinds need 5 kinds, and there are 4; ask for fewer nouns or more kinds"),
        ({"nouns": 1}, "nouns"),
        ({"kinds": 7}, "kinds"),
        ({"words": 1}, "words"),
        ({"verbs": 0}, "verbs"),
        ({"fillers": -1}, "fillers"),
        ({"form": "they"}, "form"),
        ({"length": 9}, "length"),
    ],
)
def test_arguments_that_no_sentence_can_meet_are_refused(arguments, said):
    with pytest.raises(ValidationError, match=said):
        Pronoun(**arguments)


def test_pronoun_offers_what_a_task_must_and_is_a_value():
    task = Pronoun(form="both")
    assert isinstance(task, Task) and task.name == "pronoun" and len(set(task.vocabulary)) == len(task.vocabulary)
    assert Pronoun.model_validate_json(task.model_dump_json()) == task != Pronoun()
    assert identity(task) == identity(Pronoun(form="both")) != identity(Pronoun())
    with pytest.raises(ValidationError, match="frozen"):
        task.nouns = 2


def test_no_word_belongs_to_two_kinds_or_has_two_uses():
    words = [word for kind in KINDS for column in kind for word in column]
    assert len(set(words)) == len(words)
