"""Lines in panels: what is drawn of a table, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from workbench.figures import to_png
from workbench.figures.panels import lines_by_panel


def table(panels=("learned", "rotary"), xs=(4, 5, 8), seeds=(0, 1)):
    rows = [
        {"panel": panel, "x": x, "model_seed": seed, "value": 0.1 * x + 0.05 * seed}
        for panel in panels
        for x in xs
        for seed in seeds
    ]
    return pd.DataFrame(rows)


def drawn(axes, label):
    return [line for line in axes.get_lines() if line.get_label() == label and len(line.get_xdata())]


def test_every_trained_model_is_a_line_and_their_mean_another():
    axes = lines_by_panel(table(), x_label="pairs", value_label="accuracy").axes[1]
    assert [list(line.get_ydata()) for line in drawn(axes, "one trained model")] == [
        pytest.approx([0.4, 0.5, 0.8]), pytest.approx([0.45, 0.55, 0.85])
    ]  # fmt: skip
    (mean,) = drawn(axes, "mean")
    assert list(mean.get_xdata()) == [4, 5, 8]
    assert list(mean.get_ydata()) == pytest.approx([0.425, 0.525, 0.825])


def test_a_panel_of_one_model_has_no_mean():
    figure = lines_by_panel(table(seeds=(0,)), x_label="pairs", value_label="accuracy")
    assert all(not drawn(axes, "mean") for axes in figure.axes)
    assert not figure.legends


def test_references_are_drawn_in_every_panel_and_named_once():
    known = pd.Series({4: 0.1, 8: 0.2})
    figure = lines_by_panel(table(), x_label="pairs", value_label="accuracy", references={"$guess": known})
    assert [list(drawn(axes, "reference")[0].get_ydata()) for axes in figure.axes] == [[0.1, 0.2]] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "$guess"


def test_panels_keep_their_order_and_share_their_axes():
    figure = lines_by_panel(table(("rotary", "learned", "none")), x_label="x", value_label="y", columns=2, share=True)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["rotary", "learned", "none"]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_names_on_the_axis_keep_apart():
    axes = lines_by_panel(table(xs=(4, 16, 64, 256)), x_label="x", value_label="y").axes[0]
    assert list(axes.get_xticks()) == [4, 64, 256]


def test_the_same_table_gives_the_same_bytes():
    first, second = (to_png(lines_by_panel(table(), x_label="x", value_label="y")) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (table().drop(columns="x"), "lacks the columns"),
        (table().iloc[:0], "no rows"),
        (pd.concat([table(), table()]), "twice"),
        (table().assign(value=np.inf), "infinite"),
    ],
)
def test_a_table_that_cannot_be_drawn_is_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        lines_by_panel(wrong, x_label="x", value_label="y")


def test_less_than_one_column_is_refused():
    with pytest.raises(ValueError, match="columns is 0"):
        lines_by_panel(table(), x_label="x", value_label="y", columns=0)
