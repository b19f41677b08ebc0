"""The translation task: every sentence against a grammar written out slowly, its edges by hand, and its guessers."""

import pickle
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import product

import pytest
import torch
from pydantic import ValidationError

from tasks.sentences import ADJECTIVE, ARTICLE, MARK, NOUN, VERB
from tasks.translate import Translate
from workbench.batch import UNREAD
from workbench.task import Task, identity

MODES = ["always", "sometimes", "never"]
TASKS = [Translate(adjectives=mode, order=order) for mode in MODES for order in ("nouns first", "nouns last")]
SMALL = {"nouns": 4, "adjective_words": 2, "verbs": 2}
DICTIONARY = dict(
    dog="lumo", cat="kesa", bird="tovo", horse="rina", cow="balo", goat="soga", frog="mipo", bear="dura", duck="feno",
    owl="gata", pig="nolo", hen="zira", crab="pavo", seal="hula", swan="wemo", mole="jada",
    small="rik", red="mos", old="vel", quiet="tan", young="pir", green="gud", tall="shol", brave="kav",
    saw="paz", chased="lor", found="ked", heard="nim", met="bur", followed="sev", called="jop", pushed="tig",
)  # fmt: skip
ADJECTIVES = ["small", "red", "old", "quiet", "young", "green", "tall", "brave"]
VERBS = ["saw", "chased", "found", "heard", "met", "followed", "called", "pushed"]


def by_hand(text, order="nouns first"):
    """The target as [(word, source position translated, source position agreed with or None)], read word by word."""
    words = text.split()
    deed = next(pos for pos, word in enumerate(words) if word in VERBS)
    said = []
    for start, stop in ((0, deed), (deed + 1, len(words))):
        noun = words[stop - 1]
        singular = noun.removesuffix("s") if noun.removesuffix("s") in DICTIONARY else noun
        gender = DICTIONARY[singular][-1]
        phrase = [(DICTIONARY[singular] + ("i" if noun != singular else ""), stop - 1, None)]
        if stop - start == 3:
            phrase.append((DICTIONARY[words[start + 1]] + gender, start + 1, stop - 1))
        said += phrase if order == "nouns first" else phrase[::-1]
    plural = words[deed - 1].endswith("s")
    verb = (DICTIONARY[words[deed]] + ("ent" if plural else "et"), deed, deed - 1)
    return [*said, verb] if order == "nouns first" else [verb, *said]


def sentence(batch, example):
    return " ".join(word for word in batch.context.words(example) if word != "<pad>")


def edges(mask):
    return {tuple(edge) for edge in mask.nonzero().tolist()}


# What is drawn


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_every_target_and_every_edge_by_a_grammar_written_out(task):
    batch = task.sample(300, seed=3)
    assert batch.tokens.shape == (300, task.length) and batch.context.tokens.shape == (300, task.context_length)
    for example in range(300):
        target = by_hand(sentence(batch, example), task.order)
        n, words = len(target), [word for word, _, _ in target]
        rest = task.length - n - 1
        assert batch.words(example) == ["<begin>", *words, *["<pad>"] * rest]
        labels = batch.labels[example].tolist()
        assert [batch.word(label) for label in labels[: n + 1]] == [*words, "<end>"]
        assert labels[n + 1 :] == [UNREAD] * rest
        assert batch.valid[example].tolist() == [True] * (n + 1) + [False] * rest
        aligned, agrees = (batch.alignments[name][example] for name in ("aligned", "agrees"))
        assert edges(aligned) == {(pos, source) for pos, (_, source, _) in enumerate(target)}
        assert edges(agrees) == {(pos, noun) for pos, (_, _, noun) in enumerate(target) if noun is not None}
        # Position j holds the word that position j - 1 predicted.
        holds = {source: pos + 1 for pos, (_, source, _) in enumerate(target)}
        wanted = {(pos, holds[noun]) for pos, (_, _, noun) in enumerate(target) if noun is not None}
        assert edges(batch.relations["carried"][example]) == {(dest, at) for dest, at in wanted if at <= dest}


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_every_role_and_class_by_the_words(task):
    batch = task.sample(200, seed=4)
    kinds = {"the": ARTICLE} | {word: VERB for word in VERBS}
    for example in range(200):
        words = sentence(batch, example).split()
        deed = next(pos for pos, word in enumerate(words) if word in VERBS)
        nouns = [deed - 1, len(words) - 1]
        adjectives = [pos for pos in range(1, len(words)) if words[pos - 1] == "the" and pos not in nouns]
        places = {name: mask[example].nonzero().flatten().tolist() for name, mask in batch.context.roles.items()}
        assert places == {"articles": [0, deed + 1], "nouns": nouns, "subject": nouns[:1], "object": nouns[1:],
                          "adjectives": adjectives, "verb": [deed]}  # fmt: skip
        classes = [kinds.get(word, NOUN if pos in nouns else ADJECTIVE) for pos, word in enumerate(words)]
        assert batch.context.classes[example].tolist() == classes + [MARK] * (task.context_length - len(words))
        sources = [source for _, source, _ in by_hand(" ".join(words), task.order)]
        predicts = {name: [pos for pos, source in enumerate(sources) if source in places[name]]
                    for name in ("nouns", "subject", "object", "adjectives", "verb")}  # fmt: skip
        n = len(sources)
        predicts |= {"begin": [0], "words": [*range(n)], "end": [n], "last": [n]}
        assert {k: v[example].nonzero().flatten().tolist() for k, v in batch.roles.items()} == predicts
        held = [MARK, *(classes[source] for source in sources)]
        assert batch.classes[example].tolist() == held + [MARK] * (task.length - n - 1)


def test_nothing_is_read_in_the_context_and_its_padding_is_to_the_right():
    context = Translate().sample(200, seed=0).context
    assert (context.labels == UNREAD).all()
    pad = len(Translate().vocabulary) - 1
    assert torch.equal(context.valid, context.tokens != pad)
    assert (context.valid[:, 1:] <= context.valid[:, :-1]).all()


def test_lengths_vary_only_where_adjectives_are_said_sometimes():
    for task in TASKS:
        batch = task.sample(200, seed=0)
        lengths = {(len(sentence(batch, k).split()), int(batch.valid[k].sum())) for k in range(200)}
        assert (
            lengths == {"always": {(7, 6)}, "never": {(5, 4)}, "sometimes": {(5, 4), (6, 5), (7, 6)}}[task.adjectives]
        )


def test_the_words_of_a_whole_sentence_read_it_in_the_lectures_shape():
    batch = Translate(adjectives="always").sample(3, seed=0)
    rows = batch.alignments["aligned"][0][batch.roles["words"][0]]
    assert rows.shape == (5, 7) and (rows.sum(1) == 1).all()


def test_edges_of_a_sentence_by_hand():
    batch = Translate().encode("the small dog saw the cats")
    assert batch.words(0) == ["<begin>", "lumo", "riko", "kesai", "pazet", "<pad>"]
    assert edges(batch.alignments["aligned"][0]) == {(0, 2), (1, 1), (2, 5), (3, 3)}
    assert edges(batch.alignments["agrees"][0]) == {(1, 2), (3, 2)}
    assert edges(batch.relations["carried"][0]) == {(1, 1), (3, 1)}


def test_edges_of_a_sentence_with_nouns_last_by_hand():
    batch = Translate(order="nouns last").encode("the horses chased the old owl")
    assert batch.words(0) == ["<begin>", "lorent", "rinai", "vela", "gata", "<pad>"]
    assert edges(batch.alignments["aligned"][0]) == {(0, 2), (1, 1), (2, 4), (3, 5)}
    assert edges(batch.alignments["agrees"][0]) == {(0, 1), (2, 5)}
    assert not batch.relations["carried"].any()


def test_subject_and_object_are_every_pair_of_two_nouns_equally_often():
    n, task = 12_000, Translate(nouns=4)
    context = task.sample(n, seed=0).context
    nouns = ((context.tokens[context.roles[name]] - 1) % 4 for name in ("subject", "object"))
    pairs = Counter(zip(*(column.tolist() for column in nouns), strict=True))
    assert set(pairs) == {(one, two) for one in range(4) for two in range(4) if one != two}
    assert all(abs(count / n - 1 / 12) < 4 * (11 / 144 / n) ** 0.5 for count in pairs.values())


def test_no_word_means_two_things():
    words = Translate(nouns=16).vocabulary
    assert len(set(words)) == len(words) == 1 + 32 + 8 + 8 + 32 + 16 + 16 + 3


def test_the_same_seed_gives_the_same_batch_and_another_seed_another():
    task = Translate()
    assert task.sample(50, seed=7).digest() == task.sample(50, seed=7).digest()
    assert task.sample(50, seed=7).digest() != task.sample(50, seed=8).digest()


def test_drawing_leaves_the_global_random_state_alone():
    torch.manual_seed(0)
    state, batch = torch.get_rng_state(), Translate().sample(20, seed=1)
    Translate().corrupt(batch, seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [0, -3])
def test_a_batch_of_no_examples_is_refused(n):
    with pytest.raises(ValueError, match=f"asked for {n} examples; ask for 1 or more"):
        Translate().sample(n, seed=0)


# The counterfactual


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_corrupt_changes_the_subject_alone_in_gender_and_number(task):
    clean = task.sample(300, seed=0)
    other = task.corrupt(clean, seed=1)
    assert torch.equal(clean.context.tokens != other.context.tokens, clean.context.roles["subject"])
    for masks, others in ((clean.roles, other.roles), (clean.alignments, other.alignments)):
        assert all(torch.equal(masks[name], others[name]) for name in masks)
    assert torch.equal(clean.relations["carried"], other.relations["carried"])
    # The words that differ are the subject's translation and those that agree with it.
    subject = clean.context.roles["subject"][:, None, :]
    touched = ((clean.alignments["aligned"] | clean.alignments["agrees"]) & subject).any(2)
    assert torch.equal(clean.labels != other.labels, touched)
    for example in range(100):
        target = by_hand(sentence(other, example), task.order)
        assert task.said(other.labels)[example] == " ".join(word for word, _, _ in target)


def test_corrupt_takes_every_noun_that_fits_equally_often():
    n, task = 4000, Translate(nouns=8)
    text = "the dog saw the cat"
    batch = task.encode(text).select(torch.zeros(n, dtype=torch.long))
    corrupted = task.corrupt(batch, seed=0)
    subjects = Counter(sentence(corrupted, example).split()[1] for example in range(n))
    assert set(subjects) == {"horses", "goats", "bears"}
    assert all(abs(count / n - 1 / 3) < 4 * (2 / 9 / n) ** 0.5 for count in subjects.values())


def test_corrupt_is_the_same_for_the_same_seed_only():
    task, clean = Translate(), Translate().sample(50, seed=0)
    assert task.corrupt(clean, seed=1).digest() == task.corrupt(clean, seed=1).digest()
    assert task.corrupt(clean, seed=1).digest() != task.corrupt(clean, seed=2).digest()


@pytest.mark.parametrize("other", [{"nouns": 11}, {"adjectives": "never"}])
def test_a_batch_of_another_task_is_refused(other):
    batch = Translate(**other).sample(3, seed=0)
    for method in (lambda: Translate().corrupt(batch, seed=0), lambda: Translate().prompts(batch)):
        with pytest.raises(ValueError, match=r"this batch is not of Translate\(nouns=12"):
            method()


# Sentences written by hand


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_encode_gives_back_what_was_drawn(task):
    batch = task.sample(40, seed=5)
    for example in range(40):
        one = batch.select(torch.tensor([example]))
        assert task.encode(sentence(batch, example)).digest() == one.digest()


@pytest.mark.parametrize("order", ["nouns first", "nouns last"])
@pytest.mark.parametrize(
    "text", ["the small dogs saw the red cat", "the dog chased the owls", "the old owl met the bird"]
)
def test_translate_says_what_the_grammar_says(text, order):
    assert Translate(order=order).translate(text) == " ".join(word for word, _, _ in by_hand(text, order))


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        ({}, "the dog saw the unicorn", "'unicorn' is no source word of this task; there are: the dog cat"),
        ({"nouns": 4}, "the dog saw the cow", "'cow' is no source word"),
        ({}, "the lumo saw the cat", "'lumo' is no source word"),
        ({}, "the dog saw", r"is no sentence of this task: the \[adjective\] noun verb the \[adjective\] noun"),
        ({}, "", "is no sentence of this task"),
        ({}, "the small red dog saw the cat", "is no sentence"),
        ({"adjectives": "always"}, "the dog saw the red cat", "is no sentence of this task: the adjective noun verb"),
        ({"adjectives": "never"}, "the dog saw the red cat", "is no sentence of this task: the noun verb the noun"),
        ({}, "the dog saw the dogs", "has one noun twice; subject and object must be two nouns"),
    ],
)
def test_encode_says_what_is_wrong_with_a_sentence(arguments, text, said):
    with pytest.raises(ValueError, match=said):
        Translate(**arguments).encode(text)


def test_the_drawing_in_the_docstring_is_what_show_prints():
    shown = Translate(adjectives="always").encode("the small dog saw the red cats").show(0)
    drawn = [line.split() for line in shown.splitlines()]
    lines = [line.split() for line in Translate.__doc__.splitlines()]
    start = lines.index(drawn[0])
    assert [line[: len(row)] for line, row in zip(lines[start:], drawn, strict=False)] == drawn


# Generation


def test_prompts_hold_begin_alone_and_the_whole_context():
    task, batch = Translate(), Translate().sample(20, seed=0)
    prompts = task.prompts(batch)
    assert prompts.tokens.shape == (20, 1) and {prompts.word(int(token)) for token in prompts.tokens} == {"<begin>"}
    assert (prompts.labels == UNREAD).all() and not prompts.alignments
    assert prompts.context.digest() == batch.context.digest()
    assert task.said(prompts.tokens) == task.said(prompts.labels) == [""] * 20


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_the_targets_themselves_are_right_with_and_without_begin(task):
    batch = task.sample(50, seed=0)
    begin, pad = len(task.vocabulary) - 3, len(task.vocabulary) - 1
    rows = batch.labels.masked_fill(~batch.valid, pad)
    whole = torch.cat([torch.full((50, 1), begin), rows], 1)
    assert task.right(rows, batch).tolist() == task.right(whole, batch).tolist() == [True] * 50
    assert task.said(rows) == task.said(whole) == task.said(batch.labels)
    assert task.said(rows) == [" ".join(w for w, _, _ in by_hand(sentence(batch, k), task.order)) for k in range(50)]


def test_what_follows_the_end_does_not_count_and_all_before_it_does():
    task = Translate(adjectives="never")
    batch = task.encode("the dog saw the cat").select(torch.zeros(6, dtype=torch.long))
    rows = ["lumo kesa pazet <end> lumo", "lumo kesa pazet lumo <end>", "lumo kesa pazet lumo lumo",
            "lumo kesa <end> <pad> <pad>", "lumo kesa pazent <end> <end>", "<end> lumo kesa pazet <end>"]  # fmt: skip
    tokens = torch.tensor([[task.vocabulary.index(word) for word in row.split()] for row in rows])
    assert task.right(tokens, batch).tolist() == [True, False, False, False, False, False]
    assert task.said(tokens) == ["lumo kesa pazet", "lumo kesa pazet lumo", "lumo kesa pazet lumo lumo", "lumo kesa",
                                 "lumo kesa pazent", ""]  # fmt: skip


def test_rows_without_targets_are_refused():
    task, batch = Translate(), Translate().sample(4, seed=0)
    with pytest.raises(ValueError, match="3 generated rows need 3 targets"):
        task.right(batch.labels[:3], batch)
    with pytest.raises(ValueError, match="this batch is not of"):
        task.right(batch.labels, task.prompts(batch))


# Guessing


def sentences(task):
    """Every sentence with its probability, written out."""
    nouns = [noun for noun in DICTIONARY][: task.nouns]
    adjectives = ADJECTIVES[: task.adjective_words]
    none, some = {"always": (0, 1), "sometimes": (Fraction(1, 2), Fraction(1, 2)), "never": (1, 0)}[task.adjectives]
    described = [(" ", Fraction(none))] + [(f" {word} ", Fraction(some) / len(adjectives)) for word in adjectives]
    pairs = [(one, two) for one in nouns for two in nouns if one != two]
    for (subject, object_), s, o, verb in product(pairs, ("", "s"), ("", "s"), VERBS[: task.verbs]):
        for (first, p), (second, q) in product(described, described):
            if p * q:
                text = f"the{first}{subject}{s} {verb} the{second}{object_}{o}"
                yield text, p * q / (len(pairs) * 4 * task.verbs)


def enumerated(task):
    rates, prefixes = Counter(), defaultdict(Counter)
    alike = defaultdict(set)
    for text, _ in sentences(task):
        for word, source, _ in by_hand(text, task.order):
            said = text.split()[source]
            alike["verb" if said in VERBS else "adjective" if said in ADJECTIVES else "noun"].add(word)
    of = {word: words for words in alike.values() for word in words}
    for text, weight in sentences(task):
        target = by_hand(text, task.order)
        words, share = [word for word, _, _ in target], weight / (len(target) + 1)
        in_order = [word for word, _, _ in sorted(target, key=lambda said: said[1])]
        rates["class"] += share * (1 + sum(Fraction(1, len(of[word])) for word in words))
        rates["source order"] += share * (1 + sum(map(str.__eq__, words, in_order)))
        rates["no agreement"] += share * (1 + sum(Fraction(1, 1 if noun is None else 2) for _, _, noun in target))
        for pos, word in enumerate([*words, "<end>"]):
            prefixes[tuple(words[:pos])][word] += share
    rates["target alone"] = sum(max(counts.values()) for counts in prefixes.values())
    return {name: float(rate) for name, rate in rates.items()}


@pytest.mark.parametrize("order", ["nouns first", "nouns last"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [SMALL, {"nouns": 5, "adjective_words": 1, "verbs": 3}])
def test_guessing_is_the_enumeration_of_every_sentence(sizes, mode, order):
    task = Translate(adjectives=mode, order=order, **sizes)
    assert task.guessing() == pytest.approx(enumerated(task), abs=1e-12)


def test_a_translator_without_agreement_gets_three_quarters_of_a_whole_sentence():
    rates = Translate(adjectives="always").guessing()
    assert rates["no agreement"] == pytest.approx(4.5 / 6) and rates["source order"] == pytest.approx(2 / 6)


# The task as a value


@pytest.mark.parametrize("arguments", [{"nouns": 3}, {"nouns": 17}, {"adjective_words": 0}, {"verbs": 9},
                                       {"adjectives": "often"}, {"order": "any"}, {"tense": "past"}])  # fmt: skip
def test_arguments_that_no_sentence_can_meet_are_refused(arguments):
    with pytest.raises(ValidationError, match=next(iter(arguments))):
        Translate(**arguments)


def test_a_task_is_frozen_equal_by_value_and_an_exact_round_trip():
    task = Translate(nouns=6, order="nouns last")
    with pytest.raises(ValidationError, match="frozen"):
        task.nouns = 4
    task.sample(2, seed=0)
    assert Translate.model_validate_json(task.model_dump_json()) == task != Translate()
    assert pickle.loads(pickle.dumps(task)) == task


def test_translate_offers_what_a_task_must():
    assert isinstance(Translate(), Task) and Translate.name == "translate"
    assert identity(Translate()) == identity(Translate()) != identity(Translate(order="nouns last"))
