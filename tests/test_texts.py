"""Batches from texts: a role is the tokens of its words, whatever the tokenizer; what is ambiguous is said."""

import re
import subprocess
import sys
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from workbench.batch import UNREAD
from workbench.texts import Every, Nth, Same, Span, Tokens, from_texts

SENTENCES = [
    "the quick brown fox jumps over the lazy dog",
    "a dog and the cat sat on the mat",
    "Mary gave the book to John",
    "café au lait is good",
    "漢字 is fun 🙂🙂",
] * 5


def wordlevel():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", "<mask>"], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def bytelevel(prefix=False, trim=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    return tokenizer


def metaspace():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, unk_token="<unk>", special_tokens=["<unk>", "<mask>"], show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def byte_fallback():
    """As Llama's: a normaliser writes the spaces, and a character that is not known falls into its bytes."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdeghotT"]
    vocabulary = {piece: k for k, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=70, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def trimmed():
    return bytelevel(prefix=True, trim=True)


def prefixed():
    return bytelevel(prefix=True)


RAW = [wordlevel, bytelevel, trimmed, prefixed, metaspace, byte_fallback, wordpiece]


@cache
def built(make, fast=False):
    return PreTrainedTokenizerFast(tokenizer_object=make()) if fast else make()


EACH = pytest.mark.parametrize(
    "tokenizer",
    [pytest.param(built(make, fast), id=f"{make.__name__}{'-fast' * fast}") for make in RAW for fast in (False, True)],
)


def at(mask):
    """[batch pos] as the positions of each text."""
    return [row.nonzero().flatten().tolist() for row in mask]


def offsets(tokenizer, text):
    raw = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return raw.encode(text).offsets


def words(text, where, make=wordlevel, **options):
    """The tokens of one text's role."""
    batch = from_texts(built(make), [text], {"it": where}, **options)
    return [batch.words(0)[pos] for pos in at(batch.roles["it"])[0]]


def refused(said, texts, roles=None, make=wordlevel, kind=ValueError, **options):
    with pytest.raises(kind, match=said):
        from_texts(built(make), texts, roles, **options)


# Which tokens a role is


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("dog", ["dog"]),
        ("cat sat", ["cat", "sat"]),
        (Span(2, 5), ["dog"]),
        (Span(4, 7), ["dog", "and"]),
        (re.compile(r"\bs\w+"), ["sat"]),
        (re.compile(r"the (\w+) sat"), ["cat"]),
        (re.compile(r"(the) (cat)"), ["the", "cat"]),
        (re.compile(r"(?:the) (?P<who>cat)"), ["cat"]),
        (re.compile(r"(dog)|cat"), ["dog"]),
        (0, ["a"]),
        (-1, ["mat"]),
        (Tokens(0, -1), ["a", "mat"]),
        (Tokens(*range(1, 3)), ["dog", "and"]),
        (Nth("the", 1), ["the"]),
        (Every("the"), ["the", "the"]),
        (Every(re.compile(r"\wat\b")), ["cat", "sat", "mat"]),
        (Nth(re.compile(r"the (\w+)"), -1), ["mat"]),
        (["dog"], ["dog"]),
        ([None], []),
    ],
)
def test_a_role_is_the_tokens_of_what_is_named(where, found):
    assert words("a dog and the cat sat on the mat", where) == found


def test_nth_counts_from_0_and_from_the_end():
    batch = from_texts(
        built(wordlevel),
        ["the dog the cat the mat"],
        {"first": Nth("the", 0), "third": Nth("the", 2), "last": Nth("the", -1)},
    )
    assert [at(batch.roles[name]) for name in ("first", "third", "last")] == [[[0]], [[4]], [[4]]]


def test_a_list_names_one_place_for_each_text():
    batch = from_texts(
        built(wordlevel), ["a dog", "the cat sat", "a mat"], {"it": ["dog", Tokens(0, 2), None], "first": [0, 0, 0]}
    )
    assert at(batch.roles["it"]) == [[1], [0, 2], []]
    assert at(batch.roles["first"]) == [[0], [0], [0]]


def test_a_word_of_several_tokens_is_all_of_them():
    assert words("a dog", "dog", byte_fallback) == ["d", "o", "g"]
    assert words("the good book", "book", wordpiece) == ["boo", "##k"]


@EACH
@pytest.mark.parametrize("asked", ["dog", " dog", "dog ", " dog "])
def test_a_space_at_the_edge_of_what_is_asked_changes_no_token(tokenizer, asked):
    plain, spaced = (from_texts(tokenizer, ["the dog sat"], {"it": where}) for where in ("dog", asked))
    own = [k for k, (a, b) in enumerate(offsets(tokenizer, "the dog sat")) if "the dog sat"[a:b].strip()]
    alike = [sorted({*own} & {*at(batch.roles["it"])[0]}) for batch in (plain, spaced)]
    assert alike[0] == alike[1] != []


@pytest.mark.parametrize("make", [bytelevel, prefixed, trimmed])
def test_the_space_that_a_token_carries_joins_no_neighbour(make):
    assert words("a dog and the cat", "and ", make)[-1].endswith("d")
    assert "Ġthe" not in words("a dog and the cat", "and ", make)
    assert words("a dog and the cat", " the", make) == ["Ġthe"]
    assert words("a dog and the cat", "the", make) == ["Ġthe"]


@pytest.mark.parametrize("make", [metaspace, byte_fallback, prefixed])
def test_a_space_put_before_the_text_is_no_part_of_its_first_word(make):
    """These tokenizers say of it that it stands for the first letter."""
    text = "zgto"
    first = built(make).encode(text)
    assert first.tokens[0] in ("▁", "Ġ") and first.offsets[0] == (0, 1)
    batch = from_texts(built(make), [text], {"it": text})
    assert at(batch.roles["it"]) == [[*range(1, len(first.ids))]]


def test_an_underscore_that_is_written_in_the_text_is_no_space():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "▁": 1, "Ġ": 2}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    batch = from_texts(tokenizer, ["a ▁ a Ġ"], {"line": "▁", "letter": "Ġ"})
    assert at(batch.roles["line"]) == [[1]] and at(batch.roles["letter"]) == [[3]]


def test_the_space_that_ends_a_token_joins_no_neighbour():
    tokenizer = Tokenizer(models.WordLevel({"dog ": 0, "sat\n": 1, "the": 2}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+\s?"), "isolated")
    batch = from_texts(tokenizer, ["dog sat\nthe"], {"sat": " sat", "the": "\nthe", "line": "\n", "dog": "dog"})
    assert [at(batch.roles[name])[0] for name in ("dog", "sat", "the", "line")] == [[0], [1], [2], [1]]


def test_whitespace_asked_for_alone_is_the_token_that_holds_it():
    assert words("a\nb", "\n", bytelevel) == ["Ċ"]
    assert words("the dog", " ", bytelevel) == words("the dog", "dog", bytelevel)


@EACH
@pytest.mark.parametrize("asked", ["é", "漢", "字", "🙂", "is"])
def test_characters_of_several_bytes_are_found(tokenizer, asked):
    text = f"at {asked} the"
    batch = from_texts(tokenizer, [text], {"it": asked})
    found = [offsets(tokenizer, text)[pos] for pos in at(batch.roles["it"])[0]]
    assert text[found[0][0] : found[-1][1]].strip() == asked


def test_every_byte_of_a_character_is_in_the_role():
    assert words("a 漢 b", "漢", byte_fallback) == ["<0xE6>", "<0xBC>", "<0xA2>"]
    assert words("a🙂b", "🙂", byte_fallback) == ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>"]


def test_a_special_token_in_the_text_is_found_and_those_around_it_are_not():
    batch = from_texts(built(wordpiece), ["the [MASK] sat"], {"masked": "[MASK]", "text": Span(0, 14), "first": 0})
    assert [batch.words(0)[pos] for pos in at(batch.roles["masked"])[0]] == ["[MASK]"]
    assert at(batch.roles["text"])[0] == list(range(1, batch.tokens.shape[1] - 1))
    assert batch.words(0)[0] == "[CLS]" and at(batch.roles["first"]) == [[0]]
    assert batch.valid.all()
    bare = from_texts(built(wordpiece), ["the [MASK] sat"], add_special_tokens=False)
    assert torch.equal(bare.tokens, batch.tokens[:, 1:-1])


LETTERS = st.text(alphabet="abdegot é漢字🙂\n", max_size=12)


@EACH
@settings(max_examples=40)
@given(before=LETTERS, asked=LETTERS.filter(str.strip), after=LETTERS)
def test_the_tokens_of_a_substring_hold_it_and_each_overlaps_it(tokenizer, before, asked, after):
    text, start, end = before + asked + after, len(before), len(before + asked)
    earlier = sum(text.startswith(asked, k) for k in range(start))
    unique = earlier == sum(text.startswith(asked, k) for k in range(start + 1, len(text))) == 0
    batch = from_texts(tokenizer, [text], {"it": asked if unique else Nth(asked, earlier), "span": Span(start, end)})
    assert torch.equal(batch.roles["it"], batch.roles["span"])
    kept = [offsets(tokenizer, text)[pos] for pos in at(batch.roles["it"])[0]]
    held = text[min(first for first, _ in kept) : max(stop for _, stop in kept)]
    assert asked.strip() in held
    assert all(start < stop and first < end for first, stop in kept)
    # A token that tells nothing but a space may stand for no character at all.
    assert all(first < stop or start < first for first, stop in kept)


# Padding

TEXTS = ["the dog", "a dog and the cat sat", "the cat"]


@EACH
def test_left_and_right_padding_hold_the_same_tokens_roles_and_labels(tokenizer):
    roles = {"animal": ["dog", "cat", "cat"], "last": -1}
    left, right = (from_texts(tokenizer, TEXTS, roles, labels="next", padding=side) for side in ("left", "right"))
    assert left.tokens.shape == right.tokens.shape and not left.valid[0, 0] and not right.valid[0, -1]
    assert left.valid[:, -1].all() and right.valid[:, 0].all()
    for name, pick in {
        "tokens": lambda batch: batch.tokens,
        "labels": lambda batch: batch.labels,
        "animal": lambda batch: batch.roles["animal"],
        "last": lambda batch: batch.roles["last"],
    }.items():
        for i in range(3):
            assert torch.equal(pick(left)[i, left.valid[i]], pick(right)[i, right.valid[i]]), name


@EACH
def test_the_tokens_are_the_tokenizers_own(tokenizer):
    batch = from_texts(tokenizer, TEXTS)
    raw = getattr(tokenizer, "backend_tokenizer", tokenizer)
    for i, text in enumerate(TEXTS):
        assert batch.tokens[i, batch.valid[i]].tolist() == raw.encode(text).ids
        assert batch.words(i)[: int(batch.valid[i].sum())] == raw.encode(text).tokens
    assert not batch.roles and (batch.labels == UNREAD).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_tokenizer_that_pads_is_left_as_it_was_and_its_padding_dropped(side):
    tokenizer = wordlevel()
    tokenizer.enable_padding(direction=side, pad_id=1, pad_token="<mask>", length=9)
    tokenizer.enable_truncation(8, stride=1)
    before = tokenizer.to_str()
    batch = from_texts(tokenizer, TEXTS, {"last": -1})
    assert tokenizer.to_str() == before
    assert torch.equal(batch.valid, from_texts(built(wordlevel), TEXTS).valid)
    assert batch.tokens[~batch.valid].tolist() == [1] * 8 and at(batch.roles["last"]) == [[1], [5], [1]]


@pytest.mark.parametrize("fails", [False, True])
def test_a_fast_tokenizer_is_left_as_it_was(fails):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordlevel(), pad_token="<mask>", padding_side="left")
    tokenizer(["the dog sat on the mat"] * 2, padding="max_length", truncation=True, max_length=3)
    tokenizer.backend_tokenizer.encode_special_tokens = True
    before = tokenizer.backend_tokenizer.to_str()
    assert '"max_length":3' in before
    if fails:
        with pytest.raises(ValueError, match="is not in text 0"):
            from_texts(tokenizer, TEXTS, {"it": "zebra"})
    else:
        assert from_texts(tokenizer, TEXTS).valid.sum(1).tolist() == [2, 6, 2]
    assert tokenizer.backend_tokenizer.to_str() == before and tokenizer.padding_side == "left"
    assert tokenizer.backend_tokenizer.encode_special_tokens


def test_padding_is_the_pad_token_or_the_end_or_0():
    # The id of <unk> is 0, which is an id like any other.
    for pad, end, word in [("the", "dog", "the"), ("<unk>", "dog", "<unk>"), (None, "dog", "dog")]:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordlevel(), pad_token=pad, eos_token=end)
        batch = from_texts(tokenizer, TEXTS)
        assert batch.words(0)[-1] == word
    assert from_texts(built(wordlevel), TEXTS).tokens[0, -1] == 0


def test_a_text_over_the_limit_is_refused_and_one_at_it_is_not():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordlevel(), model_max_length=6)
    assert from_texts(tokenizer, TEXTS).tokens.shape == (3, 6)
    with pytest.raises(ValueError, match=r"text 1 'a .* the mat' has 7 tokens; the tokenizer's .* 6\. Shorten it"):
        from_texts(tokenizer, ["a dog", "a dog sat and sat the mat"])


def test_a_raw_tokenizer_that_would_truncate_refuses():
    tokenizer = wordlevel()
    tokenizer.enable_truncation(3)
    assert from_texts(tokenizer, ["the dog sat"]).tokens.shape == (1, 3)
    with pytest.raises(ValueError, match=r"text 1 'a dog and .*' is cut short by .* to 3 tokens.*no_truncation"):
        from_texts(tokenizer, TEXTS)


# Labels


def labelled(labels, texts=TEXTS, roles=None, tokenizer=None, **options):
    """What is read at each position: its word, or '.'."""
    roles = {"last": -1, "animal": Every(re.compile("dog|cat"))} if roles is None else roles
    batch = from_texts(tokenizer or built(wordlevel), texts, roles, labels=labels, **options)
    return ["".join("." if k == UNREAD else f"[{batch.word(k)}]" for k in row) for row in batch.labels.tolist()]


@pytest.mark.parametrize(
    ("labels", "read"),
    [
        (None, ["......", "......", "......"]),
        ("next", ["[dog].....", "[dog][and][the][cat][sat].", "[cat]....."]),
        ({"last": "mat"}, [".[mat]....", ".....[mat]", ".[mat]...."]),
        ({"last": ["mat", "fox", "dog"]}, [".[mat]....", ".....[fox]", ".[dog]...."]),
        ({"last": 0}, [".[<unk>]....", ".....[<unk>]", ".[<unk>]...."]),
        ({"last": [None, "fox", None]}, ["......", ".....[fox]", "......"]),
        ({"animal": Same()}, [".[dog]....", ".[dog]..[cat].", ".[cat]...."]),
        ({"animal": [None, Same(), "fox"]}, ["......", ".[dog]..[cat].", ".[fox]...."]),
        ({"last": ["dog", "fox", "cat"], "animal": Same()}, [".[dog]....", ".[dog]..[cat][fox]", ".[cat]...."]),
    ],
)
def test_labels_are_read_where_they_are_named(labels, read):
    assert labelled(labels) == read


def test_the_next_token_is_read_through_left_padding():
    assert labelled("next", padding="left")[0] == "....[dog]."


def test_an_answer_gets_no_special_tokens_and_keeps_its_space():
    assert labelled({"last": "a"}, ["the"], {"last": 1}, built(wordpiece))[0].startswith(".[a].")
    assert labelled({"last": " the"}, ["a"], {"last": -1}, built(bytelevel)) == ["[Ġthe]"]
    assert labelled({"last": "the"}, ["a"], {"last": -1}, built(bytelevel)) == ["[the]"]


def test_nothing_is_read_at_an_empty_role():
    assert labelled({"it": Same()}, roles={"it": ["dog", None, "cat"]}) == [".[dog]....", "......", ".[cat]...."]
    assert labelled({"it": ["fox", None, "fox"]}, roles={"it": ["dog", None, "cat"]})[1] == "......"


@pytest.mark.parametrize(
    ("labels", "kind", "said"),
    [
        ("prev", ValueError, r"labels is None, 'next' or a mapping of roles to answers; got 'prev'"),
        (["mat"], ValueError, r"labels is None, 'next' or a mapping"),
        ({"lst": "mat"}, KeyError, r"answers a role 'lst' .* There are: last, animal. Did you mean last\?"),
        ({"last": ["mat"]}, ValueError, r"the answer at 'last' lists 1 for 3 texts"),
        ({"last": None}, TypeError, r"the answer at 'last' is None for all texts; leave it out"),
        ({"animal": "mat"}, ValueError, r"'animal' is read at one position; the role has 2 in text 1 'a dog"),
        ({"last": ["mat", "the mat", "mat"]}, ValueError, r"text 1 'a dog.*': 'the mat' is \['the', 'mat'\] to the"),
        (
            {"last": ["mat", "mat", "zebra"]},
            ValueError,
            r"text 2 'the cat': 'zebra' is \['<unk>'\] .* one token it knows",
        ),
        ({"last": ""}, ValueError, r"text 0 'the dog': '' is \[\] to the tokenizer"),
        ({"last": 10_000}, ValueError, r"10000 is no answer; .* a token id below \d+"),
        ({"last": built(wordlevel).get_vocab_size()}, ValueError, r"is no answer; .* a token id below \d+"),
        ({"last": -1}, ValueError, r"-1 is no answer"),
        ({"last": True}, ValueError, r"True is no answer"),
        ({"last": 1.0}, ValueError, r"1.0 is no answer"),
        (
            {"last": ["fox"] * 3, "animal": Same()},
            ValueError,
            r"'animal': another .* token 1 of text 0 'the dog'; keep",
        ),
    ],
)
def test_an_answer_that_cannot_be_read_is_refused(labels, kind, said):
    with pytest.raises(kind, match=said):
        labelled(labels)


def test_an_answer_to_an_empty_role_is_refused():
    with pytest.raises(ValueError, match=r"the role has 0 in text 1 'a dog.*list the answers with None for that text"):
        labelled({"it": "fox"}, roles={"it": ["dog", None, "cat"]})


def test_an_unknown_answer_is_refused_by_a_fast_tokenizer_too():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=metaspace(), unk_token="<unk>")
    with pytest.raises(ValueError, match=r"'Ω' is \[.*'<unk>'\] to the tokenizer"):
        labelled({"last": "Ω"}, ["the"], {"last": -1}, tokenizer)


# What is ambiguous or missing


def test_an_ambiguous_substring_names_its_candidates_with_the_words_around_them():
    refused(
        re.escape(
            "role 'it': 'the' occurs 3 times in text 1 'a dog and the cat sat on the other mat', which one is meant? "
            "There are: Span(10, 13) in 'dog and [the] cat sat', Span(25, 28) in 'sat on [the] other mat', "
            "Span(30, 33) in 'the o[the]r mat'. Say Nth('the', 0) for the first, Every('the') for all, one of these "
            "spans, or more of the words there"
        ),
        ["the cat", "a dog and the cat sat on the other mat"],
        {"it": "the"},
    )


def test_the_values_that_an_error_names_mend_it():
    text = "a dog and the cat sat on the mat"
    for where, n in [(Nth("the", 0), 1), (Span(25, 28), 1), (Every("the"), 2), ("on the", 2)]:
        assert len(words(text, where)) == n


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("aaa", "aa", r"'aa' occurs 2 times in text 0 'aaa'.*Span\(0, 2\).*Span\(1, 3\)"),
        ("a " * 9, "a", r"occurs 9 times.*Span\(10, 11\) in '[^']*', and 3 more\. Say"),
        ("a " * 6, "a", r"occurs 6 times.*Span\(10, 11\) in '[^']*'\. Say"),
        ("漢" * 40 + "a" + "字" * 40 + "a", "a", rf"Span\(40, 41\) in '{'漢' * 24}\[a\]{'字' * 24}', Span"),
        ("a dog a cat", re.compile("a (dog|cat)"), r"re.compile.* occurs 2 times.*Span\(2, 5\).*Every\(re.compile"),
        ("a dog a cat", Nth("a", 3), r"occurs 3 times .*Nth\(what='a', n=3\) is not there.*Span\(0, 1\)"),
        ("a dog", Nth("dog", 1), r"occurs once .* is not there"),
        ("a dog", Nth("dog", -2), r"occurs once .* is not there"),
        ("the big dog", "dgo", r"role 'it': 'dgo' is not in text 0 'the big dog'. Did you mean 'dog'\? Mend it"),
        ("The big (Dog).", "dog", r"'dog' is not in .* Did you mean 'Dog'\?"),
        ("the big dog", "the bog", r"'the bog' is not in .* Did you mean 'the big'"),
        ("the big dog", "zzz", r"'zzz' is not in .* No word of it is near\. .* a list with None there"),
        ("the big dog", Every("zzz"), r"'zzz' is not in text 0"),
        ("the big dog", Nth("zzz", 0), r"'zzz' is not in text 0"),
        ("x" * 80, "dog", rf"is not in text 0 '{'x' * 59}…'"),
        ("y" * 60, "dog", rf"is not in text 0 '{'y' * 60}'"),
        ("the big dog", "", r"an empty substring is everywhere"),
        ("the big dog", re.compile("cat"), r"re.compile\('cat'\) matches no characters of text 0 'the big dog'"),
        ("the big dog", re.compile("(cat)?dog"), r"matches no characters"),
        ("the big dog", re.compile("x*"), r"matches no characters"),
        ("a dog", Span(3, 6), r"Span\(start=3, end=6\) is no part of text 0 'a dog', which has 5 characters"),
        ("a dog", Span(-3, 5), r"is no part of text 0"),
        ("a dog", Span(2, 2), r"is no part of text 0"),
        ("a dog", Span(0.0, 2), r"is no part of text 0"),
        ("a dog", Span(1, 2), r"' ', Span\(1, 2\) of text 0 'a dog', covers no token"),
        ("a dog", " ", r"covers no token: the tokenizer drops it\. Name a word next to it"),
        ("a dog", 2, r"no token 2 in text 0 'a dog', which has 2; say -2 to 1"),
        ("a dog", -3, r"no token -3 in text 0 'a dog'"),
        ("a dog", Tokens(0, 5), r"no token 5 in"),
        ("a dog", Tokens(1, -1), r"Tokens\(1, -1\) names a token twice in text 0 'a dog', which has 2"),
    ],
)
def test_a_role_that_is_not_one_place_is_refused(text, where, said):
    refused(said, [text], {"it": where})


@pytest.mark.parametrize(
    ("where", "kind", "said"),
    [
        (["dog"], ValueError, r"role 'it' lists 1 for 2 texts; .* Several tokens are Tokens\(0, 2\)"),
        (None, TypeError, r"role 'it' is None for all texts"),
        (True, TypeError, r"text 0 'a dog': True is a bool; a role is a substring, a compiled"),
        (1.5, TypeError, r"1.5 is a float"),
        ([["dog"], "dog"], TypeError, r"\['dog'\] is a list"),
        (re.compile(b"dog"), TypeError, r"a compiled regular expression of str"),
        (["dog", Same()], TypeError, r"text 1 'the dog': Same\(\) is a Same"),
    ],
)
def test_what_is_no_place_is_refused(where, kind, said):
    refused(said, ["a dog", "the dog"], {"it": where}, kind=kind)


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: Tokens(), ValueError, r"Tokens takes one index or several, each once; got \(\)"),
        (lambda: Tokens(0, 0), ValueError, r"each once; got \(0, 0\)"),
        (lambda: Tokens("a"), ValueError, r"got \('a',\)"),
        (lambda: Nth(3, 0), TypeError, r"Nth looks for a substring or a compiled regular expression; got 3"),
        (lambda: Nth("a", "b"), TypeError, r"Nth counts occurrences by an int; got 'b'"),
        (lambda: Every(Nth("a", 0)), TypeError, r"Every looks for a substring"),
    ],
)
def test_a_value_that_says_nothing_is_refused(make, kind, said):
    with pytest.raises(kind, match=said):
        make()


def test_the_values_are_hashable_and_equal_by_what_they_say():
    for make in (lambda: Span(0, 2), lambda: Tokens(0, 2), lambda: Nth(re.compile("a"), 1), lambda: Every("a"), Same):
        assert make() == make() and len({make(), make()}) == 1
    assert repr(Tokens(0, -1)) == "Tokens(0, -1)" and Tokens(0, 2) != Tokens(2, 0)


# Arguments


@pytest.mark.parametrize(
    ("texts", "options", "kind", "said"),
    [
        ([], {}, ValueError, "texts is empty"),
        ("a dog", {}, TypeError, r"texts is a list of strings; got 'a dog'. Say \[text\]"),
        (None, {}, TypeError, "texts is a list of strings; got None"),
        (["a", 3], {}, TypeError, "text 1 is a int, 3"),
        (["a", ""], {}, ValueError, "text 1 '' has no tokens; leave it out"),
        (["a"], {"roles": ["dog"]}, TypeError, r"roles is a mapping of names; got \['dog'\]"),
        (["a"], {"roles": {3: "a"}}, TypeError, "roles is a mapping of names"),
        (["a"], {"roles": {"token": "a"}}, ValueError, r"\['token'\] cannot name a role"),
        (["a"], {"padding": "middle"}, ValueError, "padding is 'left' or 'right'; got 'middle'"),
    ],
)
def test_arguments_that_make_no_batch_are_refused(texts, options, kind, said):
    refused(said, texts, kind=kind, **options)


class Slow(PreTrainedTokenizer):
    vocab_size = 1

    def get_vocab(self):
        return {"a": 0}

    def _tokenize(self, text):
        return text.split()


def no_offsets(texts, return_offsets_mapping, **options):
    raise ValueError("return_offsets_mapping is not supported")


@pytest.mark.parametrize("tokenizer", [Slow(), no_offsets, lambda texts, **options: {"input_ids": [[0]]}, "gpt2"])
def test_a_tokenizer_without_offsets_is_refused(tokenizer):
    kind = type(tokenizer).__name__
    with pytest.raises(TypeError, match=rf"\(return_offsets_mapping=True\), and {kind} does not.*Use a fast tokenizer"):
        from_texts(tokenizer, ["a"])


def test_a_tokenizers_other_errors_are_its_own():
    def broken(texts, **options):
        raise ValueError("no model")

    with pytest.raises(ValueError, match=r"^no model$"):
        from_texts(broken, ["a"])


def test_anything_that_gives_offsets_is_a_tokenizer():
    def letters(texts, **options):
        assert options["return_offsets_mapping"]
        spans = [[(k, k + 1) for k in range(len(text))] for text in texts]
        return {"input_ids": [[ord(letter) for letter in text] for text in texts], "offset_mapping": spans}

    batch = from_texts(letters, ["a dog"], {"it": "dog"}, labels={"it": Same()})
    assert at(batch.labels != UNREAD) == at(batch.roles["it"]) == [[2, 3, 4]]
    assert batch.vocabulary == () and batch.words(0)[2] == str(ord("d"))


def test_the_vocabulary_is_the_tokens_by_their_id_and_gaps_are_numbers():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "dog": 3}))
    assert from_texts(tokenizer, ["dog"]).vocabulary == ("a", "1", "2", "dog")


def test_importing_the_module_loads_no_tokenizer():
    code = (
        "import sys, workbench.texts; print([name for name in ('transformers', 'tokenizers') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
