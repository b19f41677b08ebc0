"""Grids: one condition for each combination, labelled by what it does, in Python and in files."""

import pytest

from workbench import Edges, Heads, cut, read_study, scale, zero
from workbench.grids import combinations, declared, grid

HEADER = 'format = 1\nn = 10\ndata_seed = 0\ntask = { name = "lookup" }\n'
GRID = """
[conditions]
clean = []

[grids.cuts]
where = { type = "edges", layer = [0, 1], head = [0, 1], dest = "last" }
what = { op = "cut" }
"""


def test_a_grid_has_every_combination_in_order():
    found = grid(cut, Edges, layer=range(2), head=[0, 1], dest="last")
    assert found == {
        f"cut L{layer}H{head} last←every": [cut(Edges(layer=layer, head=head, dest="last"))]
        for layer in (0, 1)
        for head in (0, 1)
    }
    assert list(found)[:2] == ["cut L0H0 last←every", "cut L0H1 last←every"]


def test_what_is_no_field_of_the_location_goes_to_the_operation():
    found = grid(scale, Edges, layer=0, source="answer", by=[0.5, 2.0])
    assert [one[0] for one in found.values()] == [scale(Edges(layer=0, source="answer"), by=by) for by in (0.5, 2.0)]


def test_roles_may_be_listed():
    assert len(grid(zero, Heads, layer=[0, 1], pos=["last", "answer"], part="z")) == 4


def test_a_grid_of_one_is_one_condition():
    assert list(grid(cut, Edges, layer=1, dest="last")) == [str(cut(Edges(layer=1, dest="last")))]


def test_text_is_one_value():
    assert list(combinations({"a": "xy", "b": [1, 2]})) == [{"a": "xy", "b": 1}, {"a": "xy", "b": 2}]


@pytest.mark.parametrize("empty", [[], (), range(0)])
def test_an_empty_list_is_refused_with_its_name(empty):
    with pytest.raises(ValueError, match="the grid's 'layer' is empty"):
        grid(cut, Edges, layer=empty)


def test_something_listed_twice_is_refused():
    with pytest.raises(ValueError, match="a grid names 'cut L0 every←every' twice"):
        grid(cut, Edges, layer=[0, 0])
    with pytest.raises(ValueError, match="twice"):
        declared({"type": "edges", "layer": [0, 0]}, {"op": "cut"})


def test_a_field_that_nothing_has_is_refused():
    with pytest.raises(TypeError, match="haed"):
        grid(cut, Edges, layer=0, haed=[0, 1])


def test_a_declared_grid_is_the_one_that_python_makes():
    where = {"type": "edges", "layer": [0, 1], "head": [0, 1], "dest": "last"}
    found = declared(where, {"op": "cut"})
    assert found == grid(cut, Edges, layer=[0, 1], head=[0, 1], dest="last")


def test_a_grid_in_a_file_is_its_conditions(tmp_path):
    (tmp_path / "s.toml").write_text(HEADER + GRID)
    found = read_study(tmp_path / "s.toml").conditions
    made = grid(cut, Edges, layer=[0, 1], head=[0, 1], dest="last")
    assert dict(found) == {"clean": (), **{label: tuple(edits) for label, edits in made.items()}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GRID.replace('what = { op = "cut" }', ""), r"grids.cuts needs 'where' and .what., .*; there is \['where'\]"),
        (GRID.replace("[0, 1]", "[]"), "the grid's 'layer' is empty"),
        (GRID.replace("clean = []", '"cut L0H0 last←every" = []'), "another condition are both labelled"),
        (GRID.replace("layer", "lyaer"), "lyaer"),
    ],
)
def test_a_wrong_grid_in_a_file_is_refused(tmp_path, text, why):
    (tmp_path / "s.toml").write_text(HEADER + text)
    with pytest.raises(ValueError, match=why):
        read_study(tmp_path / "s.toml")


def test_a_list_in_a_models_configuration_is_a_model_each(tmp_path):
    models = '[models.m]\nkind = "training"\nseeds = 1\nconfig = { n_layers = [1, 2], n_heads = 1, d_model = 8 }\n'
    (tmp_path / "s.toml").write_text(HEADER + "conditions = { clean = [] }\n" + models)
    found = read_study(tmp_path / "s.toml").models
    assert {label: one.config["n_layers"] for label, one in found.items()} == {"m n_layers=1": 1, "m n_layers=2": 2}
