"""Relations from a recorded pattern: the top source of each row, and its control from the same row."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from small import BATCH, small

from workbench import control_of, derive, record, top_source
from workbench.roles import Control, Derived, TopSource, control_relation, top_relation


def causal(n_pos, n=1):
    return torch.ones(n_pos, n_pos, dtype=torch.bool).tril().expand(n, -1, -1)


def everywhere(n_pos, n=1):
    return torch.ones(n, n_pos, dtype=torch.bool)


def sources(relation):
    """[batch dest source] as, per example, the list of sources of each row."""
    return [[row.nonzero().flatten().tolist() for row in example] for example in relation]


def edges(n_pos, **by_row):
    """One example's relation from `row3=1` or `row3=[0, 1]`."""
    out = torch.zeros(1, n_pos, n_pos, dtype=torch.bool)
    for row, source in by_row.items():
        out[0, int(row.removeprefix("row")), source] = True
    return out


# The top source


def test_the_top_source_of_a_row_is_its_largest_weight():
    pattern = torch.tensor([[[1.0, 0, 0], [0.3, 0.7, 0], [0.2, 0.5, 0.3]]])
    assert sources(top_relation(pattern, everywhere(3), causal(3))) == [[[0], [1], [1]]]


def test_ties_go_to_the_lowest_position():
    pattern = torch.tensor([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.4, 0.4]]])
    assert sources(top_relation(pattern, everywhere(3), causal(3))) == [[[0], [0], [1]]]


def test_ties_go_to_the_lowest_position_that_is_visible():
    visible = causal(3).clone()
    visible[0, :, 0] = False
    assert sources(top_relation(torch.full((1, 3, 3), 0.5), everywhere(3), visible)) == [[[], [1], [1]]]


def test_a_hidden_source_is_never_the_top_one():
    pattern = torch.tensor([[[0.1, 0.9], [0.1, 0.9]]])
    assert sources(top_relation(pattern, everywhere(2), causal(2))) == [[[0], [1]]]


def test_a_row_whose_visible_weights_are_all_0_still_has_a_visible_top():
    assert sources(top_relation(torch.zeros(1, 2, 2), everywhere(2), causal(2))) == [[[0], [0]]]


def test_a_row_that_sees_nothing_has_no_top():
    nothing = torch.zeros(1, 2, 2, dtype=torch.bool)
    assert sources(top_relation(torch.rand(1, 2, 2), everywhere(2), nothing)) == [[[], []]]


def test_rows_outside_dest_have_no_top():
    dest = torch.tensor([[False, False, True], [True, False, False]])
    pattern = torch.tensor([[0.2, 0.5, 0.3]]).expand(2, 3, 3)
    assert sources(top_relation(pattern, dest, causal(3, 2))) == [[[], [], [1]], [[0], [], []]]


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 6), st.sampled_from([torch.float32, torch.bfloat16]))
def test_the_top_source_is_that_of_a_loop_over_rows(seed, n_pos, dtype):
    generator = torch.Generator().manual_seed(seed)
    pattern = (torch.randint(4, (3, n_pos, n_pos), generator=generator) / 4).to(dtype)
    visible = torch.rand(3, n_pos, n_pos, generator=generator) < 0.6
    dest = torch.rand(3, n_pos, generator=generator) < 0.7
    expected = [[[] for _ in range(n_pos)] for _ in range(3)]
    for b in range(3):
        for row in range(n_pos):
            seen = [k for k in range(n_pos) if visible[b, row, k]]
            if dest[b, row] and seen:
                expected[b][row] = [max(seen, key=lambda k: (float(pattern[b, row, k]), -k))]
    assert sources(top_relation(pattern, dest, visible)) == expected


# Its control

CLASSES = torch.tensor([[0, 1, 0, 1, 0, 0]])
TOP = edges(6, row5=2, row1=1)


def drawn(relation=TOP, visible=None, classes=CLASSES, seed=0):
    visible = causal(relation.shape[-1], len(relation)) if visible is None else visible
    return control_relation(relation, visible, classes, seed)


def test_a_control_lies_in_the_same_row_of_the_same_class_and_is_not_the_top_itself():
    for seed in range(50):
        rows = sources(drawn(seed=seed))[0]
        assert rows[:5] == [[]] * 5, "no top, no control; and row 1 sees no digit but its top"
        (control,) = rows[5]
        assert control in (0, 4, 5)


def test_a_control_is_uniform_over_its_candidates():
    n = 6000
    found = drawn(TOP.expand(n, -1, -1), classes=CLASSES.expand(n, -1), visible=causal(6, n))[:, 5].int().argmax(-1)
    counts = Counter(found.tolist())
    assert set(counts) == {0, 4, 5}
    assert all(abs(count - n / 3) < 4 * (n * 2 / 9) ** 0.5 for count in counts.values())


def test_rows_of_one_example_draw_independently():
    n = 2000
    relation = edges(6, row4=0, row5=0).expand(n, -1, -1)
    found = drawn(relation, causal(6, n), torch.zeros(n, 6, dtype=torch.long))[:, 4:].int().argmax(-1)
    pairs = Counter(map(tuple, found.tolist()))
    assert set(pairs) == {(a, b) for a in (1, 2, 3, 4) for b in (1, 2, 3, 4, 5)}
    assert min(pairs.values()) > n / 20 / 2


def test_the_same_seed_gives_the_same_control_and_another_seed_another():
    relation, classes, visible = TOP.expand(40, -1, -1), CLASSES.expand(40, -1), causal(6, 40)
    first, again, other = (control_relation(relation, visible, classes, seed) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_control_touches_no_global_random_state():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    drawn()
    assert torch.equal(before, torch.get_rng_state())


def test_a_control_is_visible():
    visible = causal(6).clone()
    visible[0, 5, [0, 5]] = False
    assert {sources(drawn(visible=visible, seed=seed))[0][5][0] for seed in range(20)} == {4}


def test_a_row_with_no_candidate_gets_no_control():
    assert sources(drawn(edges(4, row3=1), classes=torch.tensor([[0, 1, 0, 0]]))) == [[[], [], [], []]]


def test_an_empty_relation_has_an_empty_control():
    assert not drawn(edges(6)).any()


@pytest.mark.parametrize("numbers", [(0, 1), (-1, -2), (-2, -3), (7, -1)])
def test_classes_are_told_apart_whatever_integers_they_are(numbers):
    letter, digit = numbers
    classes = torch.where(CLASSES == 0, letter, digit)
    found = {sources(drawn(classes=classes, seed=seed))[0][5][0] for seed in range(60)}
    assert found == {0, 4, 5}


def test_a_relation_with_several_sources_a_row_has_no_control():
    with pytest.raises(ValueError, match="one source a row; this one has rows with several"):
        drawn(edges(6, row5=[0, 2]))


def test_the_control_of_a_recorded_top_source_is_from_its_row_and_class():
    """R11, on a model: every row of `last` has a top, and a control by the same rule."""
    model = small(heads=1)
    batch = derive(model, BATCH, {"largest": top_source(0, dest="last"), "control": control_of("largest", seed=0)})
    pattern = record(model, BATCH, [("pattern", 0)])["pattern", 0][:, 0]
    largest, control = batch.relations["largest"], batch.relations["control"]
    for b in range(len(batch)):
        ((dest, top),), ((row, other),) = largest[b].nonzero().tolist(), control[b].nonzero().tolist()
        assert dest == row == 8
        assert top == int(pattern[b, 8].argmax())
        assert other != top
        assert batch.classes[b, other] == batch.classes[b, top]


# As values


def test_derived_relations_survive_json_by_their_kind():
    both = TypeAdapter(Derived)
    for one in (top_source(1, 0, "last"), top_source(0), control_of("largest", seed=3)):
        assert both.validate_json(both.dump_json(one)) == one
        assert hash(one) == hash(one.model_copy())


@pytest.mark.parametrize(
    ("one", "label"),
    [
        (top_source(1, 0, "last"), "top source of L1H0 last"),
        (top_source(0), "top source of L0 every"),
        (control_of("largest", seed=3), "control of largest, seed 3"),
    ],
)
def test_derived_relations_say_what_they_are(one, label):
    assert str(one) == label


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (TopSource, {"layer": -1}),
        (TopSource, {"layer": 0, "head": -1}),
        (TopSource, {"layer": 0, "source": "last"}),
        (Control, {"of": "largest"}),
        (Control, {"of": "largest", "seed": 0, "role": "last"}),
    ],
)
def test_impossible_or_unknown_arguments_are_refused(kind, arguments):
    unknown = set(arguments) - set(kind.model_fields)
    with pytest.raises(TypeError if unknown else ValidationError):
        kind(**arguments)


def test_a_control_needs_a_seed():
    with pytest.raises(TypeError, match="seed"):
        control_of("largest")
