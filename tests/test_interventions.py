"""Interventions as values: equal, hashable, to JSON and back without loss, and impossible ones refused."""

import copy
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from workbench.interventions import (
    Edges,
    Heads,
    Intervention,
    Stream,
    add,
    custom,
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

EDGES = Edges(layer=1, head=0, dest="last", source="answer")
ROW = Edges(layer=0, dest="last")
HEADS = Heads(layer=0, head=2, pos="answer", part="z")
STREAM = Stream(layer=1, pos="last", part="mlp_out")
KEYS = Heads(layer=1, head=0, pos="answer", part="k")

LABELS = {
    cut(EDGES): "cut L1H0 last←answer",
    cut(EDGES, empty="no-update"): "cut L1H0 last←answer (empty rows: no-update)",
    cut(EDGES, empty="self"): "cut L1H0 last←answer (empty rows: self)",
    keep_only(EDGES): "keep only L1H0 last←answer",
    uniform(ROW): "uniform L0 last←every",
    uniform(Edges(layer=0)): "uniform L0 every←every",
    shuffle(ROW, seed=3): "shuffle L0 last←every seed 3",
    scale(EDGES, by=0.5): "scale L1H0 last←answer by 0.5",
    zero(EDGES): "zero after softmax L1H0 last←answer",
    zero(HEADS): "zero L0H2.z answer",
    zero(STREAM): "zero L1.mlp_out last",
    zero(Stream(layer=0, part="resid_pre")): "zero L0.resid_pre every",
    mean(HEADS, donor="reference"): "mean L0H2.z answer over reference",
    resample(STREAM, donor="same", seed=4): "resample L1.mlp_out last from same seed 4",
    patch(HEADS, donor="corrupt", align="role"): "patch L0H2.z answer from corrupt by role",
    patch(EDGES, donor="corrupt", align="position"): "patch L1H0 last←answer from corrupt by position",
    add(STREAM, donor="corrupt", align="position"): "add L1.mlp_out last from corrupt by position",
    scale(STREAM, by=-2.0): "scale L1.mlp_out last by -2",
    freeze(EDGES): "freeze L1H0 last←answer",
    freeze(HEADS): "freeze L0H2.z answer",
    path(zero, HEADS, KEYS): "path zero L0H2.z answer → L1H0.k answer",
    path(patch, HEADS, KEYS, donor="d", align="role"): "path patch L0H2.z answer from d by role → L1H0.k answer",
}
EACH = pytest.mark.parametrize("one", LABELS, ids=str)


@EACH
def test_the_label_says_the_operation_and_the_place(one: Intervention):
    assert str(one) == LABELS[one]


def test_labels_are_distinct():
    assert len(set(LABELS.values())) == len(LABELS)


def test_zero_after_the_softmax_is_not_labelled_as_a_cut():
    assert "after softmax" in str(zero(EDGES))
    assert zero(EDGES) != cut(EDGES)


@EACH
def test_the_json_round_trip_is_exact(one: Intervention):
    text = one.model_dump_json()
    again = Intervention.model_validate_json(text)
    assert again == one
    assert hash(again) == hash(one)
    assert again.model_dump_json() == text
    assert type(again.where) is type(one.where)
    assert type(again.what) is type(one.what)


@EACH
def test_copies_and_pickles_are_equal(one: Intervention):
    assert copy.deepcopy(one) == one == pickle.loads(pickle.dumps(one))


def test_every_two_different_interventions_differ():
    assert len(set(LABELS)) == len(LABELS)


def test_equal_arguments_make_equal_values_with_equal_hashes():
    assert cut(Edges(layer=1, head=0, dest="last", source="answer")) == cut(EDGES)
    assert len({cut(EDGES), cut(EDGES.model_copy())}) == 1


def test_head_0_and_every_head_are_not_the_same():
    assert cut(Edges(layer=0, head=0, source="a")) != cut(Edges(layer=0, source="a"))


@given(st.floats(min_value=1e-300, max_value=1e300, allow_nan=False, allow_subnormal=False))
@settings(derandomize=True, max_examples=50)
def test_the_factor_of_a_scale_survives_json_to_the_last_bit(by: float):
    assert Intervention.model_validate_json(scale(EDGES, by=by).model_dump_json()).what.by == by


def test_values_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        EDGES.layer = 2
    with pytest.raises(ValidationError, match="frozen"):
        cut(EDGES).where = ROW


@EACH
def test_unknown_keys_are_refused_at_every_depth(one: Intervention):
    for depth in ((), ("where",), ("what",)):
        written = json.loads(one.model_dump_json())
        inner = written
        for key in depth:
            inner = inner[key]
        inner["colour"] = "red"
        with pytest.raises(ValidationError, match="colour"):
            Intervention.model_validate(written)


@pytest.mark.parametrize("kind", [Edges, Heads, Stream])
def test_a_misspelt_argument_of_a_location_is_refused(kind):
    with pytest.raises(TypeError, match=r"no field 'posn'\. (Did you mean|There are)"):
        kind(layer=0, posn="last")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cut(HEADS), "'cut' does not act on Heads .*there are: zero"),
        (lambda: uniform(STREAM), "'uniform' does not act on Stream"),
        (lambda: keep_only(HEADS), "'keep_only' does not act on Heads"),
        (lambda: mean(EDGES, donor="d"), "'mean' does not act on Edges .*there are: cut"),
        (lambda: resample(EDGES, donor="d", seed=0), "'resample' does not act on Edges"),
        (lambda: add(EDGES, donor="d", align="role"), "'add' does not act on Edges"),
        (lambda: path(zero, STREAM, KEYS), "'path' does not act on Stream"),
        (lambda: path(cut, HEADS, KEYS), "'cut' does not act on Heads"),
        (lambda: path(zero, HEADS, HEADS.model_copy(update={"layer": 1})), "q, k or v, not in 'z'"),
        (lambda: path(zero, KEYS, KEYS), "later layer: the sender is in layer 1"),
        (lambda: scale(EDGES, by=0), "above 0, not 0.0; use cut or zero"),
        (lambda: scale(EDGES, by=-1), "above 0"),
        (lambda: scale(HEADS, by=float("nan")), "finite"),
        (lambda: scale(HEADS, by=float("inf")), "finite"),
        (lambda: keep_only(ROW), "name a source"),
        (lambda: scale(ROW, by=2), "name a source"),
        (lambda: shuffle(EDGES, seed=0), "leave `source` out"),
        (lambda: cut(EDGES, empty="none"), "empty"),
        (lambda: patch(HEADS, donor="d", align="token"), "align"),
        (lambda: Edges(layer=-1), "layer"),
        (lambda: Edges(layer=0, head=-1), "head"),
        (lambda: Heads(layer=0, part="w"), "part"),
        (lambda: Heads(layer=0, part="resid_pre"), "part"),
        (lambda: Stream(layer=0, part="z"), "part"),
        (lambda: Intervention(where=None, what=cut(EDGES).what), "needs a location"),
    ],
)
def test_what_is_impossible_is_refused_in_words(make, says: str):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: patch(HEADS, donor="d"),
        lambda: add(HEADS, donor="d"),
        lambda: mean(HEADS),
        lambda: resample(HEADS, donor="d"),
        lambda: shuffle(ROW),
        lambda: scale(HEADS),
        lambda: cut(EDGES, by=2),
        lambda: freeze(EDGES, donor="d"),
        lambda: path(zero, HEADS, KEYS, donor="d"),
    ],
)
def test_what_decides_a_result_has_no_default_and_what_has_no_effect_is_refused(make):
    with pytest.raises(TypeError):
        make()


def test_shuffle_refuses_a_source_when_read_from_a_file_too():
    written = json.loads(shuffle(ROW, seed=0).model_dump_json())
    written["where"]["source"] = "answer"
    with pytest.raises(ValueError, match="source"):
        Intervention.model_validate(written)


def test_two_scales_that_differ_have_labels_that_differ():
    assert str(scale(HEADS, by=0.12345678)) != str(scale(HEADS, by=0.12345679))


def test_a_custom_function_is_named_in_its_label_and_cannot_be_written():
    one = custom(("z", 0), abs)
    assert str(one) == "custom abs at z L0"
    assert str(custom("embed", abs)) == "custom abs at embed"
    with pytest.raises(PydanticSerializationError, match="cannot be written to a file"):
        one.model_dump_json()
