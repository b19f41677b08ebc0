"""Batch: what it refuses when made, what its names select, what it shows, what changes its digest."""

import copy
import dataclasses
import pickle
import textwrap

import pytest
import torch

from workbench.batch import UNREAD, Batch
from workbench.nearest import nearest


def mask(*rows):
    """Rows of '*' and '.' as a boolean mask."""
    return torch.tensor([[cell == "*" for cell in row] for row in rows])


def edge(example, dest, source):
    """A relation of one edge in one example."""
    out = torch.zeros(2, 4, 4, dtype=torch.bool)
    out[example, dest, source] = True
    return out


TOKENS = torch.tensor([[4, 7, 4, 1], [2, 3, 5, 0]])
LABELS = torch.tensor([[UNREAD, UNREAD, UNREAD, 7], [UNREAD, 6, 2, UNREAD]])
VALID = mask("****", "***.")
LAST = mask("...*", "..*.")
FIRST = mask("*.*.", "*...")
BEFORE = torch.stack([mask("....", "*...", ".*..", "*.*."), mask("....", "*...", ".*..", "....")])
CLASSES = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 0]])
PARTS = {
    "tokens": TOKENS,
    "labels": LABELS,
    "valid": VALID,
    "roles": {"last": LAST, "first": FIRST},
    "relations": {"before": BEFORE},
    "classes": CLASSES,
    "vocabulary": tuple("abcdefgh"),
}


def made(**changes):
    return Batch(**{**PARTS, **changes})


# What is refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": TOKENS[0], "valid": None}, r"tokens must be integers \[batch pos\]; got torch.int64 \[4\]"),
        ({"tokens": TOKENS[:, :, None], "valid": None}, r"tokens must be integers .* \[2, 4, 1\]"),
        ({"tokens": TOKENS.float()}, r"tokens must be integers .* torch.float32"),
        ({"tokens": TOKENS > 2}, r"tokens must be integers .* torch.bool"),
        ({"labels": LABELS.float()}, r"labels must be integers .* torch.float32"),
        ({"classes": CLASSES.double()}, r"classes must be integers .* torch.float64"),
        ({"labels": LABELS[:, :3]}, r"labels has shape \[2, 3\]; the tokens ask for \[2, 4\]"),
        ({"valid": VALID[:1]}, r"valid has shape \[1, 4\]"),
        ({"classes": CLASSES[:, 1:]}, r"classes has shape \[2, 3\]"),
        ({"roles": {"last": LAST[0]}}, r"role 'last' has shape \[4\]"),
        ({"relations": {"before": LAST}}, r"relation 'before' has shape \[2, 4\]; the tokens ask for \[2, 4, 4\]"),
        ({"valid": VALID.long()}, r"'valid' must be a boolean mask; got torch.int64"),
        ({"valid": VALID.long(), "roles": {"valid": LAST}}, r"'valid' must be a boolean mask; got torch.int64"),
        ({"roles": {"last": LAST.float()}}, r"'last' must be a boolean mask; got torch.float32"),
        ({"relations": {"before": BEFORE.int()}}, r"'before' must be a boolean mask; got torch.int32"),
        ({"roles": {"last": LAST, "before": LAST}}, r"\['before'\] name a role and a relation"),
        ({"roles": {"last": mask("....", "...*")}}, r"'last' includes padding"),
        ({"relations": {"before": edge(1, dest=2, source=3)}}, r"'before' includes padding"),
        ({"relations": {"before": edge(1, dest=3, source=2)}}, r"'before' includes padding"),
        ({"labels": LABELS.index_fill(1, torch.tensor([3]), 1)}, r"labels are read at padding; set them to -100"),
        ({"labels": LABELS.to("meta")}, r"labels lies on meta, the tokens on cpu; move the batch with batch.to"),
        ({"relations": {"before": BEFORE.to("meta")}}, r"relation 'before' lies on meta"),
    ],
)
def test_a_batch_whose_parts_disagree_is_refused_by_name(changes, said):
    with pytest.raises(ValueError, match=said):
        made(**changes)


def test_a_batch_with_every_part_is_accepted():
    batch = made()
    assert (len(batch), batch.device.type) == (2, "cpu")
    assert set(batch.roles) == {"last", "first"} and set(batch.relations) == {"before"}


def test_without_a_mask_every_position_is_valid():
    batch = Batch(TOKENS, torch.full_like(TOKENS, UNREAD))
    assert batch.valid.all() and batch.valid.shape == TOKENS.shape and batch.classes is None


# Frozen


@pytest.mark.parametrize("part", [field.name for field in dataclasses.fields(Batch)])
def test_no_part_can_be_replaced(part):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made(), part, None)


@pytest.mark.parametrize("part", ["roles", "relations"])
def test_no_name_can_be_added_to_a_batch_that_is_made(part):
    with pytest.raises(TypeError, match="does not support item assignment"):
        getattr(made(), part)["new"] = LAST


def test_the_dictionaries_handed_in_are_copied():
    roles = {"last": LAST}
    batch = made(roles=roles)
    roles["late"] = FIRST
    assert list(batch.roles) == ["last"]


def test_with_roles_and_relations_make_new_batches():
    batch = made()
    more = batch.with_roles(late=FIRST).with_relations(own=torch.eye(4, dtype=torch.bool) & VALID[:, None])
    assert set(more.roles) == {"last", "first", "late"} and set(more.relations) == {"before", "own"}
    assert set(batch.roles) == {"last", "first"} and set(batch.relations) == {"before"}
    assert torch.equal(more.role("last"), LAST) and more.vocabulary == batch.vocabulary


def test_with_roles_and_relations_check_what_they_are_given():
    with pytest.raises(ValueError, match="role 'late' has shape"):
        made().with_roles(late=LAST[:1])
    with pytest.raises(ValueError, match=r"\['last'\] name a role and a relation"):
        made().with_relations(last=BEFORE)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_a_batch_survives_copying_and_the_way_to_another_process(copied):
    assert copied(made()).digest() == made().digest()


# Names


def test_a_role_is_its_mask_and_none_is_every_valid_position():
    assert torch.equal(made().role("first"), FIRST)
    assert torch.equal(made().role(None), VALID)


def test_an_unknown_role_is_refused_with_the_roles_there_are():
    with pytest.raises(KeyError, match=r"no role 'lsat'\. There are: first, last\. Did you mean last\?"):
        made().role("lsat")
    with pytest.raises(KeyError, match=r"There are: none"):
        made(roles={}).role("last")


def test_a_relation_asked_for_as_a_role_is_said_to_be_one():
    with pytest.raises(KeyError, match=r"no role 'before' \(it is a relation, which names edges, not positions\)"):
        made().role("before")


ROLES = {None: VALID, "last": LAST, "first": FIRST}


@pytest.mark.parametrize("dest", ROLES)
@pytest.mark.parametrize("source", ROLES)
def test_two_roles_name_every_edge_between_them(dest, source):
    edges = made().edges(dest, source)
    for b in range(2):
        for i in range(4):
            for k in range(4):
                assert edges[b, i, k] == (ROLES[dest][b, i] and ROLES[source][b, k])


@pytest.mark.parametrize("dest", ROLES)
def test_a_relation_names_its_own_edges_in_the_rows_of_dest(dest):
    edges = made().edges(dest, "before")
    for b in range(2):
        for i in range(4):
            for k in range(4):
                assert edges[b, i, k] == (BEFORE[b, i, k] and ROLES[dest][b, i])


def test_a_relation_without_dest_is_whole_and_with_dest_is_smaller():
    assert torch.equal(made().edges(None, "before"), BEFORE)
    assert 0 < made().edges("last", "before").sum() < BEFORE.sum()


def test_unknown_names_of_edges_are_refused_with_roles_and_relations():
    with pytest.raises(KeyError, match=r"no role or relation 'befor'\. There are: before, first, last\. Did you mean"):
        made().edges("last", "befor")
    with pytest.raises(KeyError, match=r"no role 'before' \(it is a relation"):
        made().edges("before", "last")


def test_nearest_lists_everything_and_guesses_only_what_is_near():
    assert nearest("anwser", ["answer", "last"]) == "There are: answer, last. Did you mean answer?"
    assert nearest("zzz", ["answer", "last"]) == "There are: answer, last."
    assert nearest("zzz", []) == "There are: none."


# What is read


def test_read_positions_repeat_the_first_where_fewer_are_read():
    assert made().read_positions().tolist() == [[3, 3], [1, 2]]


def test_read_positions_are_in_order_and_cover_every_label():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        labels = torch.where(torch.rand(5, 7, generator=generator) < 0.4, 1, UNREAD)
        labels[0, 2] = 1
        labels[:, 6] = UNREAD
        read = Batch(torch.zeros_like(labels), labels).read_positions()
        assert read.shape == (5, int((labels != UNREAD).sum(1).max()))
        for row, places in zip(labels, read.tolist(), strict=True):
            asked = (row != UNREAD).nonzero().flatten().tolist()
            assert places[: len(asked)] == asked
            assert set(places[len(asked) :]) <= {asked[0] if asked else 0}


def test_read_positions_are_all_positions_where_some_example_is_read_everywhere():
    labels = torch.tensor([[1, 1, 1], [UNREAD, UNREAD, 1]])
    assert Batch(torch.zeros_like(labels), labels).read_positions().tolist() == [[0, 1, 2], [0, 1, 2]]


def test_a_batch_in_which_nothing_is_read_has_no_read_positions():
    with pytest.raises(ValueError, match="nothing is read in this batch: every label is -100"):
        made(labels=torch.full_like(LABELS, UNREAD)).read_positions()
    with pytest.raises(ValueError, match="nothing is read"):
        made().select(slice(0, 0)).read_positions()


# Parts of a batch


def tensors(batch):
    """Every tensor of a batch by name."""
    named = {"tokens": batch.tokens, "labels": batch.labels, "valid": batch.valid, "classes": batch.classes}
    return {**named, **batch.roles, **batch.relations}


@pytest.mark.parametrize(
    ("examples", "kept"),
    [(torch.tensor([1, 0, 1]), [1, 0, 1]), (torch.tensor([False, True]), [1]), (slice(0, 1), [0]), (slice(0, 0), [])],
)
def test_select_takes_the_same_examples_of_every_part(examples, kept):
    whole, part = tensors(made()), tensors(made().select(examples))
    assert whole.keys() == part.keys()
    for name, value in part.items():
        assert torch.equal(value, whole[name][kept]), name


def test_select_keeps_the_vocabulary_and_a_batch_without_classes():
    part = made(classes=None).select(slice(0, 1))
    assert part.classes is None and part.vocabulary == tuple("abcdefgh")


def test_select_refuses_what_there_is_not():
    with pytest.raises(IndexError):
        made().select(torch.tensor([2]))
    with pytest.raises(ValueError, match=r"\[batch pos\]"):
        made().select(1)


def test_to_moves_every_part(monkeypatch):
    batch, moved = made(), []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: moved.append((id(self), device)) or self)
    batch.to("cpu")
    assert sorted(moved) == sorted((id(value), "cpu") for value in tensors(batch).values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_to_gives_a_batch_on_the_other_device():
    assert {value.device.type for value in tensors(made().to("cuda")).values()} == {"cuda"}


# Digest


def flipped(masks):
    """The same mask with its first cell the other way round."""
    out = masks.clone()
    out.view(-1)[0] ^= True
    return out


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": TOKENS + 1},
        {"tokens": TOKENS.int()},
        {"labels": LABELS.clamp_max(6)},
        {"valid": VALID | True},
        {"roles": {"last": LAST, "first": flipped(FIRST)}},
        {"roles": {"last": LAST}},
        {"roles": {"last": LAST, "begin": FIRST}},
        {"roles": {"last": FIRST, "first": LAST}},
        {"relations": {"before": flipped(BEFORE)}},
        {"relations": {"ahead": BEFORE}},
        {"relations": {}},
        {"classes": CLASSES + 1},
        {"classes": None},
        {"vocabulary": tuple("abcdefgi")},
        {"vocabulary": ()},
    ],
)
def test_the_digest_changes_with_any_part(changes):
    assert made(**changes).digest() != made().digest()


def test_the_digest_changes_with_the_order_of_examples():
    assert made().select(torch.tensor([1, 0])).digest() != made().digest()


def test_the_digest_is_the_same_for_the_same_content():
    assert made().digest() == made(tokens=TOKENS.clone(), roles={"first": FIRST, "last": LAST}).digest()
    assert made().digest() == made(tokens=TOKENS.T.contiguous().T).digest()
    assert len(made().digest()) == 64


# Text


def test_show_draws_tokens_labels_roles_and_sources_in_columns():
    expected = """\
        position  0   1   2     3
        token     e   h   e     b
        label     .   .   .     h
        last      .   .   .     *
        first     *   .   *     .
        before    .  ←0  ←1  ←0,2"""
    assert made().show(0) == textwrap.dedent(expected)


def test_show_marks_padding_only_where_there_is_some():
    expected = """\
        position  0   1   2  3
        token     c   d   f  a
        label     .   g   c  .
        padding   .   .   .  #
        last      .   .   *  .
        first     *   .   .  .
        before    .  ←0  ←1  ."""
    assert made().show(1) == textwrap.dedent(expected)


def test_show_writes_numbers_where_there_are_no_words():
    assert made(vocabulary=(), roles={}, relations={}).show(0).splitlines()[1] == "token     4  7  4  1"
    assert made(vocabulary=tuple("abcde")).words(0) == ["e", "7", "e", "b"]
    assert made().word(-1) == "-1"


@pytest.mark.parametrize("name", ["position", "token", "label"])
def test_no_role_takes_the_place_of_what_show_always_draws(name):
    try:
        batch = made(roles={name: LAST}, relations={})
    except ValueError:
        return
    assert batch.show(0).splitlines()[:3] == made().show(0).splitlines()[:3]


def test_show_of_an_example_that_is_not_there_raises():
    with pytest.raises(IndexError):
        made().show(2)
