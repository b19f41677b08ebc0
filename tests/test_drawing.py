"""One example as text: every row in its columns, whatever the words and however many."""

import unicodedata

import pytest
import torch

from tasks.lookup import Lookup
from workbench.batch import UNREAD, Batch
from workbench.drawing import WIDTH, _columns, draw


def batch_of(words, **parts):
    """One example of these words, at none of which anything is read."""
    tokens = torch.arange(len(words))[None]
    return Batch(tokens, torch.full_like(tokens, UNREAD), vocabulary=tuple(words), **parts)


def drawn(batch, example=0):
    return draw(batch, example, UNREAD)


def mask(*on, length):
    """Of one example, the positions named."""
    found = torch.zeros(1, length, dtype=torch.bool)
    found[0, list(on)] = True
    return found


def rows(panel):
    """Name → cells of a panel whose words hold no blanks."""
    return {line.split()[0]: line.split()[1:] for line in panel.split("\n")}


def aligned(panel):
    """Whether every row of a panel ends in the same column."""
    return len({_columns(line) for line in panel.split("\n")}) == 1


def test_an_example_is_drawn_with_a_row_a_role_and_its_sources():
    batch = batch_of("abc", roles={"last": mask(2, length=3)})
    edges = torch.tensor([[[False] * 3, [True, False, False], [True, True, False]]])
    batch = Batch(batch.tokens, torch.tensor([[UNREAD, UNREAD, 1]]), roles=batch.roles, relations={"seen": edges},
                  vocabulary=batch.vocabulary)  # fmt: skip
    assert drawn(batch) == (
        "position  0   1     2\n"
        "token     a   b     c\n"
        "label     .   .     b\n"
        "last      .   .     *\n"
        "seen      .  ←0  ←0,1"
    )


def test_padding_has_a_row_where_there_is_any():
    batch = batch_of("ab")
    padded = Batch(batch.tokens, batch.labels, valid=torch.tensor([[True, False]]), vocabulary=("a", "b"))
    assert rows(drawn(padded))["padding"] == [".", "#"]
    assert "padding" not in rows(drawn(batch))


def test_tokens_without_a_vocabulary_are_numbers():
    assert rows(drawn(Batch(torch.tensor([[7, 12]]), torch.full((1, 2), UNREAD))))["token"] == ["7", "12"]


# Panels


@pytest.mark.parametrize("length", [1, 30, 36, 37, 100])
def test_long_examples_stand_in_panels_that_hold_every_position_once(length):
    words = [f"w{i:02}"[:3] for i in range(length)]
    panels = drawn(batch_of(words)).split("\n\n")
    assert [cell for panel in panels for cell in rows(panel)["position"]] == [str(i) for i in range(length)]
    assert [cell for panel in panels for cell in rows(panel)["token"]] == words
    for panel in panels:
        assert aligned(panel) and max(map(_columns, panel.split("\n"))) <= WIDTH


def test_every_panel_has_every_row():
    batch = batch_of(["word"] * 60, roles={"some": mask(0, 59, length=60)})
    panels = drawn(batch).split("\n\n")
    assert len(panels) > 1
    assert {tuple(rows(panel)) for panel in panels} == {("position", "token", "label", "some")}
    assert rows(panels[-1])["some"][-1] == "*" and rows(panels[0])["some"][0] == "*"


def test_a_panel_is_as_full_as_its_width_allows():
    """Eight columns of names, then five a position of two digits' and three letters' width."""
    first, second = drawn(batch_of(["abc"] * 30)).split("\n\n")
    assert len(rows(first)["token"]) == (WIDTH - len("position")) // 5 == 22
    assert len(rows(second)["token"]) == 8


def test_a_word_wider_than_a_panel_stands_alone():
    panels = drawn(batch_of(["a", "x" * (WIDTH + 1), "b"])).split("\n\n")
    assert [rows(panel)["position"] for panel in panels] == [["0"], ["1"], ["2"]]


def test_an_example_of_no_positions_is_empty():
    assert drawn(Batch(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0, dtype=torch.long))) == ""


# Characters


@pytest.mark.parametrize(
    ("word", "columns"),
    [
        ("a", 1),
        ("日本", 4),
        ("ｱ", 1),
        ("Ａ", 2),
        ("e\u0301", 1),
        ("a\u20dd", 1),
        ("x\ufe0f", 1),
        ("🙂", 2),
        ("ب", 1),
        ("", 0),
    ],
)
def test_columns_are_those_of_a_terminal(word, columns):
    assert _columns(word) == columns
    assert aligned(drawn(batch_of(["ab", word, "c"])))


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("a\nb", "a⏎b"),
        ("\t", "⇥"),
        ("\r", "�"),
        ("\x1b[31m", "�[31m"),
        ("\x00\x7f\x85", "���"),
        ("\u200b\u202e\u2066\ufeff", "����"),
        ("\u2028\u2029", "��"),
        ("\ud800", "�"),
        ("<script>|`$x$`", "<script>|`$x$`"),
    ],
    ids=ascii,
)
def test_what_would_break_the_lines_is_shown_in_its_place(word, shown):
    panel = drawn(batch_of(["a", word]))
    assert rows(panel)["token"] == ["a", shown]
    assert len(panel.split("\n")) == len(panel.splitlines()) == 3 and aligned(panel)
    panel.encode("utf-8")


def test_no_unseen_character_of_a_word_or_a_name_reaches_the_drawing():
    odd = "".join(map(chr, range(0x3000))) + "\ud800\udfff\ufeff\U000e0001"
    unseen = [letter for letter in odd if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert len(unseen) > 80
    batch = batch_of(["a", "".join(unseen)], roles={f"role{''.join(unseen)}": mask(1, length=2)})
    assert not {*unseen} - {"\n"} & {*drawn(batch)}


def test_labels_and_names_are_shown_as_words_are():
    batch = Batch(
        torch.tensor([[0, 1]]), torch.tensor([[1, 0]]), roles={"ro\nle": mask(0, length=2)},
        relations={"re\x1b[2J": torch.ones(1, 2, 2, dtype=torch.bool)}, vocabulary=("a", "\n"),
    )  # fmt: skip
    assert rows(drawn(batch)) == {
        "position": ["0", "1"], "token": ["a", "⏎"], "label": ["⏎", "a"], "ro⏎le": ["*", "."],
        "re�[2J": ["←0,1", "←0,1"],
    }  # fmt: skip


# Context, and which example


def test_the_context_is_drawn_beneath_with_rows_of_its_own():
    context = batch_of(["x", "日"], roles={"opening": mask(0, length=2)})
    alignment = torch.tensor([[[True, False], [False, True], [False, False]]])
    said = drawn(batch_of("abc", context=context, alignments={"copied": alignment}))
    own, beneath = said.split("\n\ncontext\n")
    assert rows(own)["copied"] == ["←0", "←1", "."] and "opening" not in rows(own)
    assert rows(beneath) == {"position": ["0", "1"], "token": ["x", "日"], "label": [".", "."], "opening": ["*", "."]}


def test_examples_are_counted_from_both_ends():
    batch = Lookup().sample(3, seed=0)
    assert draw(batch, -1, UNREAD) == draw(batch, 2, UNREAD) != draw(batch, 0, UNREAD)


@pytest.mark.parametrize("example", [3, -4, 100])
def test_an_example_that_is_not_there_is_refused(example):
    with pytest.raises(IndexError, match=f"no example {example}: the batch has 3, counted from 0"):
        draw(Lookup().sample(3, seed=0), example, UNREAD)
