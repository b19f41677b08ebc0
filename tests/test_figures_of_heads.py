"""Every head as a map and as effect against weight: what is drawn where, in which shape, and what is refused."""

from io import BytesIO
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from drawn import labelled, texts, tick_labels
from matplotlib import colormaps
from matplotlib.text import Annotation

from workbench import figures
from workbench.figures.squares import STRIP, UNSIGNED

BOUNDS = {"weights": (0.1, 0.5), "effects": (0.01, 0.1)}


def heads(layers=3, n_heads=2, **columns):
    frame = pd.DataFrame([(a, b) for a in range(layers) for b in range(n_heads)], columns=["layer", "head"])
    given = {"effect": np.linspace(0, 0.5, len(frame)), "weight": np.linspace(1, 0, len(frame))}
    return frame.assign(**(given | columns))


def numbers(figure):
    found = [text for text in figure.axes[0].texts if not isinstance(text, Annotation)]
    return {tuple(round(place) for place in reversed(text.get_position())): text.get_text() for text in found}


def legend(figure):
    return [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]


# The map


def test_each_head_stands_in_its_layers_row_and_its_own_column_with_its_number():
    shuffled = heads(effect=[0, 0.1, 0.2, 0.3, 0.4, -0.5]).sample(frac=1, random_state=0)
    figure = figures.layer_head_map(shuffled, value="effect")
    assert numbers(figure) == {
        (0, 0): "0.000", (0, 1): "0.100", (1, 0): "0.200", (1, 1): "0.300", (2, 0): "0.400", (2, 1): "−0.500"
    }  # fmt: skip
    axes = figure.axes[0]
    assert axes.images[0].get_array().tolist() == [[0, 0.1], [0.2, 0.3], [0.4, -0.5]]
    assert tick_labels(axes.yaxis) == ["0", "1", "2"] and tick_labels(axes.xaxis) == ["0", "1"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_layers_that_were_left_out_have_no_row():
    figure = figures.layer_head_map(heads().query("layer != 1"), value="effect")
    assert tick_labels(figure.axes[0].yaxis) == ["0", "2"]


@pytest.mark.parametrize(
    ("effect", "written"), [([0, 0.0255], ["0.0000", "0.0255"]), ([-1e-9, 2.5], ["0.00", "2.50"]), ([0, 0], ["0", "0"])]
)
def test_the_largest_number_is_written_with_three_digits_and_none_as_minus_nothing(effect, written):
    figure = figures.layer_head_map(heads(1, effect=effect), value="effect")
    assert list(numbers(figure).values()) == written


def test_a_head_that_was_not_measured_says_so():
    frame = heads(effect=[0.1, np.nan, 0.2, 0.3, 0.4, 0.5]).drop(index=5)
    assert [at for at, text in numbers(figures.layer_head_map(frame, value="effect")).items() if text == "–"] == [
        (0, 1),
        (2, 1),
    ]


def test_marked_heads_are_boxed_where_they_stand():
    figure = figures.layer_head_map(heads().query("layer > 0"), value="effect", marked=[(2, 1)])
    (box,) = labelled(figure, "marked")
    assert (box.get_x(), box.get_y(), box.get_width(), box.get_height()) == (0.5, 0.5, 1, 1)


def seeded(effects=(-0.25, 0.0, 0.25), weights=(0.25, 0.5, 0.75)):
    """Two heads in three model seeds; head 1 does and weighs half as much."""
    rows = [(0, head, seed, e / (1 + head), w / (1 + head)) for head in (0, 1)
            for seed, (e, w) in enumerate(zip(effects, weights, strict=True))]  # fmt: skip
    return pd.DataFrame(rows, columns=["layer", "head", "model_seed", "effect", "weight"])


def test_with_model_seeds_the_number_is_their_mean_and_each_is_a_dot():
    figure = figures.layer_head_map(seeded((0.25, 0.5, 0.75)), value="effect")
    assert list(numbers(figure).values()) == ["0.500", "0.250"]
    dots = [dots.get_offsets()[:, 0].tolist() for dots in labelled(figure, "one trained model")]
    left, right, _ = STRIP
    assert dots[0] == pytest.approx([left + (right - left) * share for share in (1 / 3, 2 / 3, 1)])
    assert dots[1] == pytest.approx([1 + left + (right - left) * share for share in (1 / 6, 1 / 3, 1 / 2)])
    assert "mean of 3 trained models" in texts(figure)


def test_one_model_is_said_to_be_one():
    figure = figures.layer_head_map(seeded().query("model_seed == 0"), value="effect")
    assert "One trained model." in texts(figure) and not labelled(figure, "one trained model")


def test_a_head_and_model_seed_given_twice_are_refused():
    with pytest.raises(ValueError, match=r"gives .*model_seed.* twice"):
        figures.layer_head_map(pd.concat([seeded(), seeded()]), value="effect")


def test_signed_effects_have_one_scale_on_both_sides_of_0_and_what_is_below_is_hatched():
    figure = figures.layer_head_map(heads(1, effect=[-0.25, 0.5]), value="effect")
    image = figure.axes[0].images[0]
    assert (image.norm.vmin, image.norm.vmax) == (-0.5, 0.5)
    (hatched,) = labelled(figure, "below 0")
    assert (hatched.get_x(), hatched.get_y()) == (-0.5, -0.5) and hatched.get_hatch()
    assert "Hatched: below −0.025." in texts(figure)


def test_unsigned_effects_have_a_scale_from_0_and_no_hatching():
    figure = figures.layer_head_map(heads(1, effect=[0.25, 0.5]), value="effect")
    assert (figure.axes[0].images[0].norm.vmin, figure.axes[0].images[0].norm.vmax) == (0, 0.5)
    assert not labelled(figure, "below 0")


def test_with_model_seeds_each_head_is_its_mean_joined_to_a_dot_a_seed():
    figure = figures.effect_against_weight(seeded(), **BOUNDS)
    (dots,) = labelled(figure, "one trained model")
    (hairs,) = labelled(figure, "to the mean")
    assert dots.get_offsets().tolist() == seeded()[["weight", "effect"]].to_numpy().tolist()
    assert [line[1].tolist() for line in hairs.get_segments()] == [[0.5, 0.0]] * 3 + [[0.25, 0.0]] * 3
    assert legend(figure)[0] == "large weight, no effect: 1 of 2 heads (L0H0)"
    assert "Marks: mean of 3 trained models." in texts(figure)


def test_the_scale_is_lighter_the_larger_the_value_so_that_grey_tells_the_same():
    light = colormaps[UNSIGNED](np.linspace(0, 1, 64))[:, :3] @ (0.2126, 0.7152, 0.0722)
    assert (np.diff(light) > 0).all()


def test_each_number_stands_out_from_its_square():
    figure = figures.layer_head_map(heads(12, 8), value="effect")
    image = figure.axes[0].images[0]
    for text in [text for text in figure.axes[0].texts if not isinstance(text, Annotation)]:
        column, row = map(int, text.get_position())
        light = np.dot(image.to_rgba(image.get_array()[row, column])[:3], (0.2126, 0.7152, 0.0722))
        assert (text.get_color() == "black") == (light > 0.45)


# Effect against weight


CORNERS = [
    # weight, effect, where it belongs; ends count
    (0.5, 0.01, "large weight, no effect"),
    (0.9, -0.01, "large weight, no effect"),
    (0.9, 0.02, "other heads"),
    (0.4, 0.0, "other heads"),
    (0.1, 0.1, "small weight, large effect"),
    (0.0, -0.3, "small weight, large effect"),
    (0.2, 0.3, "other heads"),
    (0.05, 0.09, "other heads"),
]


def corners():
    return pd.DataFrame(
        [(0, head, weight, effect) for head, (weight, effect, _) in enumerate(CORNERS)],
        columns=["layer", "head", "weight", "effect"],
    )


def test_each_head_is_a_dot_at_its_weight_and_effect_in_the_shape_of_its_corner():
    figure = figures.effect_against_weight(corners(), **BOUNDS)
    shapes = set()
    for kind in dict.fromkeys(kind for *_, kind in CORNERS):
        (dots,) = labelled(figure, kind)
        assert dots.get_offsets().tolist() == [[a, b] for a, b, other in CORNERS if other == kind]
        shapes.add(dots.get_paths()[0].vertices.tobytes())
    assert len(shapes) == 3


def test_the_heads_in_the_corners_are_counted_and_named():
    assert legend(figures.effect_against_weight(corners(), **BOUNDS)) == [
        "large weight, no effect: 2 of 8 heads (L0H0, L0H1)",
        "small weight, large effect: 2 of 8 heads (L0H4, L0H5)",
    ]


def test_an_empty_corner_is_said_to_be_empty():
    assert legend(figures.effect_against_weight(heads(1, weight=0.3), **BOUNDS)) == [
        "large weight, no effect: 0 of 2 heads",
        "small weight, large effect: 0 of 2 heads",
    ]


def test_the_corners_are_hatched_where_their_bounds_are():
    figure = figures.effect_against_weight(corners(), **BOUNDS)
    (idle,) = labelled(figure, "corner: large weight, no effect")
    above, below = labelled(figure, "corner: small weight, large effect")
    assert (idle.get_x(), idle.get_y(), idle.get_height()) == (0.5, -0.01, 0.02)
    assert above.get_y() == 0.1 and above.get_x() + above.get_width() == pytest.approx(0.1)
    assert below.get_y() + below.get_height() == pytest.approx(-0.1)
    assert len({idle.get_hatch(), above.get_hatch()}) == 2


def test_the_corner_of_large_effects_is_drawn_where_no_head_is_in_it():
    figure = figures.effect_against_weight(heads(effect=0.0), **BOUNDS)
    (above,) = labelled(figure, "corner: small weight, large effect")
    assert figure.axes[0].get_ylim()[1] > above.get_y()


def test_other_columns_can_be_drawn():
    frame = heads().rename(columns={"weight": "agreement", "effect": "rise"})
    axes = figures.effect_against_weight(frame, weight="agreement", effect="rise", **BOUNDS).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("agreement", "rise")


def test_marked_heads_are_ringed_and_named():
    figure = figures.effect_against_weight(heads(), marked=[(2, 1)], **BOUNDS)
    (ring,) = labelled(figure, "marked")
    assert ring.get_offsets().tolist() == [[0.0, 0.5]] and "L2H1" in texts(figure)


# Both


def both():
    frame, said = heads(12, 8), {"title": "the $effect$ of each cut", "marked": [(0, 0), (11, 7)]}
    return {
        "map": figures.layer_head_map(frame, value="effect", **said),
        "scatter": figures.effect_against_weight(frame, **said, **BOUNDS),
    }


@pytest.mark.parametrize("name", ["map", "scatter"])
def test_nothing_is_cut_off_and_text_stays_text(name):
    figure = both()[name]
    taken, page = figure.get_tightbbox(), figure.bbox_inches.padded(0.01)
    assert page.contains(taken.x0, taken.y0) and page.contains(taken.x1, taken.y1)
    figure.savefig(BytesIO(), format="svg")  # under the caller's own settings, which parse mathematics
    found = [text for text in figure.findobj(matplotlib.text.Text) if "$" in text.get_text()]
    assert found and not any(text.get_parse_math() for text in found)
    written = " ".join(ElementTree.fromstring(figures.to_svg(figure)).itertext())
    assert "the $effect$ of each cut" in written


@pytest.mark.parametrize("name", ["map", "scatter"])
def test_the_same_figure_comes_out_the_same(name):
    assert figures.to_svg(both()[name]) == figures.to_svg(both()[name])


def draw_map(frame, **options):
    return figures.layer_head_map(frame, **({"value": "effect"} | options))


def draw_scatter(frame, **options):
    return figures.effect_against_weight(frame, **(BOUNDS | options))


@pytest.mark.parametrize("draw", [draw_map, draw_scatter])
@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (heads().drop(columns="effect"), {}, r"lacks the columns \['effect'\]"),
        (heads().iloc[:0], {}, "has no rows"),
        (pd.concat([heads(), heads().iloc[:1]]), {}, "gives .* twice"),
        (heads(effect=np.inf), {}, "'effect' is infinite"),
        (heads(effect=np.nan), {}, "holds no number|is NaN for some heads"),
        (heads(), {"marked": [(3, 0)]}, r"marked names \[\(3, 0\)\].*it has 6 heads"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, frame, options, message):
    with pytest.raises(ValueError, match=message):
        draw(frame, **options)


@pytest.mark.parametrize("draw", [draw_map, draw_scatter])
def test_two_kinds_of_model_whose_seeds_differ_are_no_mean_of_two_models(draw):
    frame = pd.concat([heads(model="A", model_seed=0, effect=-0.9), heads(model="B", model_seed=1, effect=0.0)])
    said = r"'model' of frame holds 2 values \(A, B\).*choose one, as frame\[frame\['model'\] == 'A'\], and draw"
    with pytest.raises(ValueError, match=said):
        draw(frame)
    draw(frame[frame["model"] == "A"])


@pytest.mark.parametrize("draw", [draw_map, draw_scatter])
def test_two_edits_at_different_heads_share_no_map(draw):
    frame = heads(2).assign(edit=["cut", "cut", "zero", "zero"])
    with pytest.raises(ValueError, match=r"'edit' of frame holds 2 values \(cut, zero\)"):
        draw(frame)
    draw(frame[frame["edit"] == "cut"])


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("bounds", [(0.5, 0.1), (0.1, 0.1), (-0.1, 0.1)])
def test_bounds_out_of_order_are_refused(name, bounds):
    with pytest.raises(ValueError, match=rf"{name} is .*give what is small and what is large"):
        draw_scatter(heads(), **{name: bounds})
