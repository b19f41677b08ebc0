"""Figures of growth: points where they were measured, fitted lines, slopes in words, and what is refused."""

import pandas as pd
import pytest
from matplotlib.figure import Figure

from workbench.figures import to_svg
from workbench.figures.growth import growth_curves


def points(**changes):
    x = [1, 2, 4]
    both = [("ours", [0.1, 0.2, 0.4]), ("plain", [1.0, 1.0, 1.0])]
    rows = [
        {"panel": "cells", "contestant": name, "x": at, "value": value, "low": value * 0.9, "high": value * 1.1}
        for name, values in both
        for at, value in zip(x, values, strict=True)
    ]
    return pd.DataFrame(rows).assign(**changes)


def fits():
    return pd.DataFrame(
        [
            {"panel": "cells", "contestant": "ours", "slope": 1.0, "low": 0.9, "high": 1.1, "constant": -3.321928},
            {"panel": "cells", "contestant": "plain", "slope": 0.0, "low": float("nan"), "high": 0.0, "constant": 0.0},
        ]
    )


def many():
    """A point of each of seven contestants."""
    return pd.concat([points().iloc[:1].assign(contestant=name) for name in "abcdefg"])


def test_both_axes_are_logarithmic_and_every_point_stands_where_it_was_measured():
    (axes,) = growth_curves(points(), fits()).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.lines[0].get_xydata().tolist() == [[1, 0.1], [2, 0.2], [4, 0.4]]


def test_the_fitted_line_goes_through_points_that_grow_by_its_power():
    (axes,) = growth_curves(points(), fits()).axes
    assert axes.lines[1].get_ydata() == pytest.approx([0.1, 0.4], rel=1e-5)


def test_slopes_are_said_with_their_intervals_and_without_where_there_is_none():
    (axes,) = growth_curves(points(), fits()).axes
    assert axes.get_title(loc="left") == "cells\nours: 1.00 (0.90 to 1.10)\nplain: 0.00"


def test_each_size_that_is_varied_has_a_panel_of_its_own():
    more = pd.concat([points(), points(panel="length")])
    lines = pd.concat([fits(), fits().assign(panel="length")])
    figure = growth_curves(more, lines, title="growth")
    assert isinstance(figure, Figure)
    assert [axes.get_xlabel() for axes in figure.axes] == ["cells", "length"]


def test_the_same_points_give_the_same_bytes():
    one, other = (to_svg(growth_curves(points(), fits())) for _ in range(2))
    assert one == other and b"fitted power" in one


@pytest.mark.parametrize(
    ("table", "lines", "said"),
    [
        (points().drop(columns="low"), fits(), "low"),
        (pd.concat([points(), points()]), fits(), "twice"),
        (points(value=0.0), fits(), "not above 0"),
        (points(x=[0, 1, 2, 0, 1, 2]), fits(), "not above 0"),
        (points(), fits().iloc[:1], r"\('cells', 'plain'\) have no fit"),
        (points(value=float("nan")), fits(), "not above 0"),
        (points(x=range(6), contestant=list("abcdef")).iloc[1:], fits(), "have no fit"),
        (many(), many()[["panel", "contestant"]].assign(slope=1, low=1, high=1, constant=0), "7 contestants"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(table, lines, said):
    with pytest.raises(ValueError, match=said):
        growth_curves(table, lines)
