"""Images with maps of their patches beside them, and many single edges in one picture."""

import numpy as np
import pandas as pd
import pytest

from workbench.figures import to_svg
from workbench.figures.corners import corner_shares, effects_of_edges
from workbench.figures.images import maps_beside_images

IMAGES = np.linspace(0, 1, 32).reshape(2, 4, 4)
MAPS = {"weight": np.array([[[0.1, 0.4], [0.3, 0.2]], [[0.0, 0.8], [0.1, 0.1]]]), "effect": np.zeros((2, 2, 2))}
BOUNDS = {"weights": (0.02, 0.12), "effects": (0.01, 0.1)}


def test_each_image_stands_in_a_row_with_a_map_of_each_kind():
    figure = maps_beside_images(IMAGES, MAPS, names=["one", "two"])
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn[:3]] == ["image", "weight", "effect"]
    shown = [np.asarray(axes.images[0].get_array()) for axes in drawn]
    assert (shown[0] == IMAGES[0]).all() and (shown[3] == IMAGES[1]).all()
    assert (shown[4] == MAPS["weight"][1]).all()


def test_the_maps_of_a_column_have_one_scale_from_0_to_its_largest_number():
    figure = maps_beside_images(IMAGES, MAPS, names=["one", "two"])
    scales = [axes.images[0].get_clim() for axes in figure.axes[:6]]
    assert scales[1] == scales[4] == (0, 0.8) and scales[2] == scales[5] == (0, 1.0)


def test_numbers_are_printed_in_few_patches_and_not_in_many():
    few = maps_beside_images(IMAGES, MAPS, names=["one", "two"]).axes[1]
    assert [text.get_text() for text in few.texts] == [".10", ".40", ".30", ".20"]
    many = maps_beside_images(IMAGES, {"weight": np.ones((2, 6, 6))}, names=["one", "two"]).axes[1]
    assert not many.texts


@pytest.mark.parametrize(
    ("images", "maps", "names", "says"),
    [
        (IMAGES[0], MAPS, ["one"], "give \\[image row column\\]"),
        (IMAGES, {}, ["one", "two"], "a map or more"),
        (IMAGES, MAPS, ["one"], "1 names for 2 images"),
        (IMAGES, {"weight": MAPS["weight"][:1]}, ["one", "two"], "the map 'weight' is \\[1, 2, 2\\] for 2 images"),
        (IMAGES, {"weight": -MAPS["weight"]}, ["one", "two"], "a number below 0"),
        (IMAGES, {"weight": MAPS["weight"] * np.nan}, ["one", "two"], "holds NaN"),
    ],
)
def test_what_does_not_fit_is_refused(images, maps, names, says):
    with pytest.raises(ValueError, match=says):
        maps_beside_images(images, maps, names=names)


def edges(weights, effects):
    return pd.DataFrame({"w": weights, "e": effects})


def test_the_ends_of_a_corner_count_and_what_lies_beyond_does_not():
    table = edges([0.12, 0.12, 0.119, 0.02, 0.02, 0.021], [0.01, 0.011, 0.01, 0.1, 0.099, 0.1])
    assert corner_shares(table, "w", "e", **BOUNDS) == (1 / 6, 1 / 6)


def test_every_edge_is_drawn_and_the_shares_of_the_corners_are_written():
    table = edges([0.5, 0.01, 0.2, 0.2], [0.0, 0.4, 0.2, 0.2]).assign(model_seed=0)
    figure = effects_of_edges(table, {"cut": ("w", "e"), "again": ("w", "e")}, **BOUNDS)
    for axes in figure.axes[:2]:
        assert axes.collections[0].get_array().sum() == 4
        assert [text.get_text() for text in axes.texts] == ["25.0%", "25.0%"]


def test_edges_outside_a_corner_leave_it_at_nothing():
    assert corner_shares(edges([0.05, 0.06], [0.05, 0.0]), "w", "e", **BOUNDS) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("table", "bounds", "says"),
    [
        (edges([], []), BOUNDS, "has no rows"),
        (edges([0.1], [np.nan]), BOUNDS, "holds no number"),
        (edges([0.1, 0.2], [0.1, np.nan]), BOUNDS, "is NaN for some edges"),
        (edges([0.1], [0.1]), {**BOUNDS, "weights": (0.2, 0.1)}, "weights is \\(0.2, 0.1\\)"),
        (edges([0.1], [0.1]), {**BOUNDS, "effects": (0.1, 0.1)}, "effects is \\(0.1, 0.1\\)"),
        (edges([0.1], [0.1]).drop(columns="w"), BOUNDS, "lacks the columns"),
    ],
)
def test_edges_that_cannot_be_drawn_are_refused(table, bounds, says):
    with pytest.raises(ValueError, match=says):
        effects_of_edges(table, {"cut": ("w", "e")}, **bounds)


def test_the_same_figure_gives_the_same_bytes():
    one, two = (to_svg(maps_beside_images(IMAGES, MAPS, names=["one", "$x_1$"])) for _ in range(2))
    assert one == two and b"$x_1$" in one
