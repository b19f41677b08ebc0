from functools import cache
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from drawn import CAUSAL, TOKENS, labelled, lookup, texts, tick_labels
from matplotlib.figure import Figure
from matplotlib.path import Path

from workbench import figures


def cells(figure: Figure, axes: int = 0):
    """The coloured cells of a grid; their middles are at halves."""
    (mesh,) = figure.axes[axes].collections
    return mesh


def shades(figure: Figure) -> np.ma.MaskedArray:
    return cells(figure).get_array()


@cache
def long_grid(length: int) -> Figure:
    tokens = [f"t{i}" for i in range(length)]
    return figures.pattern_grid(np.eye(length), tokens, tokens, visible=np.tril(np.ones((length, length), bool)))


def crosses(figure: Figure) -> np.ndarray:
    """The cells [cross xy] that are crossed."""
    (patch,) = labelled(figure, "hidden")
    assert not patch.get_fill()
    vertices = patch.get_path().vertices.reshape(-1, 4, 2)
    assert list(patch.get_path().codes) == [Path.MOVETO, Path.LINETO] * (2 * len(vertices))
    return vertices.mean(1).round(6) - 0.5


def test_each_hidden_cell_has_one_cross_and_no_fill():
    figure = figures.pattern_grid(lookup(3, 2), TOKENS, TOKENS, visible=CAUSAL)
    dest, source = np.nonzero(~CAUSAL)
    assert {tuple(xy) for xy in crosses(figure)} == set(zip(dest, source, strict=True))
    assert len(crosses(figure)) == (~CAUSAL).sum() == 36
    assert (shades(figure).mask == ~CAUSAL.T).all()
    assert cells(figure).cmap(np.ma.masked)[3] == 0


def test_without_a_mask_no_triangle_is_assumed():
    uniform = torch.full((9, 9), 1 / 9, dtype=torch.bfloat16)
    figure = figures.pattern_grid(uniform, TOKENS, TOKENS)
    assert len(crosses(figure)) == 0
    assert not np.ma.is_masked(shades(figure))


def test_a_mask_that_is_no_triangle_is_drawn_as_it_is():
    visible = np.eye(9, dtype=bool) | (np.arange(9) == 4)
    figure = figures.pattern_grid(np.eye(9), TOKENS, TOKENS, visible=visible, orientation="dest-rows")
    source, dest = crosses(figure).astype(int).T
    drawn = np.ones((9, 9), bool)
    drawn[dest, source] = False
    assert (drawn == visible).all()


@pytest.mark.parametrize(("orientation", "corner"), [("lecture", (8, 3)), ("dest-rows", (3, 8))])
def test_boxes_stand_at_their_cells_in_both_orientations(orientation, corner):
    figure = figures.pattern_grid(lookup(8, 3), TOKENS, TOKENS, boxed=[(8, 3)], orientation=orientation)
    (box,) = labelled(figure, "boxed")
    assert (*box.get_xy(), box.get_width(), box.get_height()) == (*corner, 1, 1)
    column, row = corner
    assert shades(figure)[row, column] == pytest.approx(0.97)


def test_lecture_orientation_has_sources_in_rows_and_the_other_one_queries():
    drawn = [figures.pattern_grid(lookup(8, 3), TOKENS, TOKENS, orientation=way) for way in ("lecture", "dest-rows")]
    lecture, other = (figure.axes[0] for figure in drawn)
    assert (lecture.get_ylabel(), lecture.get_xlabel()) == ("source (key)", "destination (query)")
    assert (other.get_xlabel(), other.get_ylabel()) == ("source (key)", "destination (query)")
    assert np.array_equal(shades(drawn[0]), shades(drawn[1]).T)
    assert lecture.get_ylim() == other.get_ylim() == (9, 0)


def test_cross_attention_is_a_rectangle_with_its_own_tokens_on_each_axis():
    rng = np.random.default_rng(0)
    figure = figures.pattern_grid(rng.dirichlet(np.ones(5), 7), list("abcde"), list("tuvwxyz"))
    axes = figure.axes[0]
    assert shades(figure).shape == (5, 7)
    assert (tick_labels(axes.yaxis), tick_labels(axes.xaxis)) == (list("abcde"), list("tuvwxyz"))


def test_the_colour_scale_runs_from_0_to_1_whatever_the_weights():
    figure = figures.pattern_grids({"a": np.full((2, 2), 0.5), "b": np.full((2, 2), 0.01)}, "ab", "ab")
    assert [cells(figure, axes).get_clim() for axes in (0, 1)] == [(0, 1), (0, 1)]
    assert [axes.get_ylabel() for axes in figure.axes[2:]] == ["attention weight"]


def test_the_colour_scale_darkens_steadily_in_grey():
    colours = cells(figures.pattern_grid([[1.0]], "a", "a")).cmap(np.linspace(0, 1, 64))[:, :3]
    assert (np.diff(colours @ [0.299, 0.587, 0.114]) < 0).all()


def test_weights_of_at_least_five_hundredths_are_printed_on_small_grids():
    figure = figures.pattern_grid([[0.951, 0.049], [0.95, 0.05]], "ab", "ab", orientation="dest-rows")
    printed = {text.get_position(): text.get_text() for text in figure.axes[0].texts if text.get_text()}
    assert printed == {(0.5, 0.5): "0.95", (0.5, 1.5): "0.95", (1.5, 1.5): "0.05"}


def test_printed_weights_stand_out_from_their_cells():
    figure = figures.pattern_grid(np.linspace(0.05, 1, 256).reshape(16, 16), "abcdefghijklmnop", "abcdefghijklmnop")
    grey = np.array([0.299, 0.587, 0.114])
    assert len(figure.axes[0].texts) == 256
    for text in figure.axes[0].texts:
        ground = cells(figure).to_rgba(float(text.get_text()))[:3] @ grey
        ink = np.array(matplotlib.colors.to_rgb(text.get_color())) @ grey
        assert abs(ground - ink) > 0.35


@pytest.mark.parametrize(("length", "note"), [(64, False), (65, True), (512, True)])
def test_labels_are_thinned_above_64_tokens_and_the_figure_says_so(length, note):
    figure = long_grid(length)
    labels = tick_labels(figure.axes[0].xaxis)
    assert ("labelled, as position: token" in texts(figure)) == note
    assert len(labels) <= 64
    assert labels[1] == {64: "t1", 65: "4: t4", 512: "16: t16"}[length]
    assert shades(figure).shape == (length, length)


@pytest.mark.parametrize("length", [64, 512, 1500])
def test_tick_labels_do_not_touch_on_long_sequences(length):
    axes = long_grid(length).axes[0]
    for axis in (axes.xaxis, axes.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))


def test_beyond_512_tokens_tiles_keep_the_largest_weight_and_the_note_gives_their_size():
    pattern = np.full((600, 700), 1e-4)
    pattern[599, 101] = 0.9
    figure = figures.pattern_grid(pattern, ["s"] * 700, ["d"] * 600, boxed=[(599, 101)])
    shown = shades(figure)
    assert shown.shape == (350, 300)
    assert shown[50, 299] == 0.9 and (shown > 0.5).sum() == 1
    assert "2 to a square" in texts(figure) and "largest weight of its tile" in texts(figure)
    (box,) = labelled(figure, "boxed")
    assert box.get_center() == pytest.approx((299.5, 50.5))


def test_a_tile_is_hidden_only_where_all_of_its_cells_are():
    visible = np.zeros((513, 513), bool)
    visible[:, 1] = True
    figure = figures.pattern_grid(visible.astype(float), ["s"] * 513, ["d"] * 513, visible=visible)
    mask = shades(figure).mask
    assert mask.shape == (257, 257) and not mask[0].any() and mask[1:].all()
    assert "hidden by the mask" in texts(figure) and len(crosses(figure)) > 0


def test_a_short_axis_is_not_pooled_with_a_long_one():
    figure = figures.pattern_grid(np.full((5, 700), 1 / 700), ["s"] * 700, list("abcde"))
    assert shades(figure).shape == (350, 5)
    assert tick_labels(figure.axes[0].xaxis) == list("abcde")


def test_a_grid_is_drawn_into_given_axes():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert figures.pattern_grid(np.eye(2), "ab", "ab", ax=right, title="here") is figure
    assert right.get_title(loc="left") == "here" and right.collections and not left.collections


def test_several_patterns_are_boxed_by_name():
    figure = figures.pattern_grids({"one": np.eye(2), "two": np.eye(2)}, "ab", "ab", boxed={"two": [(1, 1)]})
    assert [len(labelled(figure, "boxed", axes)) for axes in (0, 1)] == [0, 1]


@pytest.mark.parametrize(
    ("pattern", "options", "message"),
    [
        (np.eye(3), {}, r"shape \[3, 3\].*2 dest and 2 source"),
        (np.ones((1, 2, 2)), {}, r"one head of one example"),
        ([[np.nan, 0], [0, 1]], {}, r"NaN.*dest, source = \[0, 0\]"),
        ([[3.2, 0], [0, 1]], {}, r"outside 0..1.*not scores"),
        ([[-0.2, 0], [0, 1]], {}, r"outside 0..1"),
        (np.eye(2), {"boxed": [(0, 2)]}, r"dest 0, source 2.*outside the grid"),
        (np.eye(2), {"boxed": [(-1, 0)]}, r"outside the grid"),
        (np.eye(2), {"visible": np.ones((2, 3), bool)}, r"visible has shape \[2, 3\]"),
        (np.eye(2), {"visible": np.zeros((2, 2))}, r"float64, not booleans"),
        (np.eye(2), {"visible": np.array([[True, True], [True, False]])}, r"weight on 1 hidden cells.*\[1, 1\]"),
        (np.eye(2), {"orientation": "upside"}, r"'upside'.*'lecture'"),
    ],
)
def test_a_grid_refuses_what_it_cannot_draw(pattern, options, message):
    with pytest.raises(ValueError, match=message):
        figures.pattern_grid(pattern, "ab", "ab", **options)


@pytest.mark.parametrize(
    ("patterns", "options", "message"),
    [
        ({}, {}, "no pattern"),
        ({"one": np.eye(2)}, {"boxed": {"two": []}}, r"boxed names \['two'\].*\['one'\]"),
        ({"one": np.eye(2)}, {"visible": {"two": None}}, r"visible names \['two'\]"),
        ({"one": np.eye(2)}, {"columns": 0}, r"columns is 0"),
    ],
)
def test_grids_refuse_names_that_no_pattern_has(patterns, options, message):
    with pytest.raises(ValueError, match=message):
        figures.pattern_grids(patterns, "ab", "ab", **options)
