import doctest
import importlib
import re
import subprocess
import sys
from io import BytesIO
from itertools import combinations, pairwise

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.path import Path

from workbench import figures

TOKENS = list("c5a2f7b0a")
CAUSAL = np.tril(np.ones((9, 9), bool))
MODULES = ("curves", "export", "frames", "grid", "measured", "patterns", "route", "style")


def lookup(dest: int, source: int) -> np.ndarray:
    """A causal pattern that is uniform but for one row, which gives one source 0.97."""
    weights = CAUSAL / CAUSAL.sum(1, keepdims=True)
    weights[dest] = np.where(CAUSAL[dest], 0.03 / dest, 0.0)
    weights[dest, source] = 0.97
    return weights


def labelled(figure: Figure, label: str, axes: int = 0) -> list:
    return [artist for artist in figure.axes[axes].get_children() if artist.get_label() == label]


def crosses(figure: Figure) -> np.ndarray:
    """The middles [cross xy] of the crosses."""
    (patch,) = labelled(figure, "hidden")
    assert not patch.get_fill()
    vertices = patch.get_path().vertices.reshape(-1, 4, 2)
    assert list(patch.get_path().codes) == [Path.MOVETO, Path.LINETO] * (2 * len(vertices))
    return vertices.mean(1).round(6)


def texts(figure: Figure) -> str:
    found = figure.findobj(matplotlib.text.Text)
    return " ".join(text.get_text().replace("\n", " ") for text in found)


def tick_labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def summary_and_seeds() -> tuple[pd.DataFrame, pd.DataFrame]:
    means = {"clean": 1.0, "cut-answer": 0.13, "cut-hidden": 0.36}
    seeds = pd.DataFrame(
        [(c, s, min(m + 0.004 * s, 1.0)) for c, m in means.items() for s in range(10)],
        columns=["condition", "model_seed", "value"],
    )
    grouped = seeds.groupby("condition", sort=False)["value"]
    return pd.DataFrame({"estimate": grouped.mean(), "low": grouped.min(), "high": grouped.max()}).reset_index(), seeds


def training() -> pd.DataFrame:
    return pd.DataFrame(
        [
            (model, seed, step, 2.0 / (1 + step), step / 4)
            for model, seeds in (("two layers", 3), ("_one $layer$", 2))
            for seed in range(seeds)
            for step in range(4)
        ],
        columns=["model", "model_seed", "step", "loss", "accuracy"],
    )


def weights() -> pd.DataFrame:
    return pd.DataFrame(
        [(0, h, d, s, 0.9 - 0.01 * seed, seed) for h in (0, 1) for d, s in (("digits", "previous"), ("last", "answer"))
         for seed in range(10)],
        columns=["layer", "head", "dest", "source", "weight", "model_seed"],
    )  # fmt: skip


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    return every_figure()


def every_figure() -> dict[str, Figure]:
    return {
        "grid": figures.pattern_grid(lookup(3, 2), TOKENS, TOKENS, visible=CAUSAL, boxed=[(3, 2)], title="layer 1"),
        "grids": figures.pattern_grids({"a": lookup(3, 2), "b": lookup(8, 3)}, TOKENS, TOKENS, visible=CAUSAL),
        "route": figures.route(TOKENS, [[(3, 2, "carries a")], [(8, 3, "2")]]),
        "accuracy": figures.accuracy_under_intervention(*summary_and_seeds(), {"guess: any digit": 0.125}),
        "curves": figures.training_curves(training()),
        "weights": figures.weights_by_role(weights()),
    }


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module):
    assert doctest.testmod(importlib.import_module(f"workbench.figures.{module}")).failed == 0


# pattern grids


def test_each_hidden_cell_has_one_cross_and_no_fill():
    figure = figures.pattern_grid(lookup(3, 2), TOKENS, TOKENS, visible=CAUSAL)
    dest, source = np.nonzero(~CAUSAL)
    assert {tuple(xy) for xy in crosses(figure)} == set(zip(dest, source, strict=True))
    assert len(crosses(figure)) == (~CAUSAL).sum() == 36
    image = figure.axes[0].images[0]
    assert (image.get_array().mask == ~CAUSAL.T).all()
    assert image.cmap(np.ma.masked)[3] == 0


def test_without_a_mask_no_triangle_is_assumed():
    uniform = torch.full((9, 9), 1 / 9, dtype=torch.bfloat16)
    figure = figures.pattern_grid(uniform, TOKENS, TOKENS)
    assert len(crosses(figure)) == 0
    assert not np.ma.is_masked(figure.axes[0].images[0].get_array())


def test_a_mask_that_is_no_triangle_is_drawn_as_it_is():
    visible = np.eye(9, dtype=bool) | (np.arange(9) == 4)
    figure = figures.pattern_grid(np.eye(9), TOKENS, TOKENS, visible=visible, orientation="dest-rows")
    source, dest = crosses(figure).astype(int).T
    drawn = np.ones((9, 9), bool)
    drawn[dest, source] = False
    assert (drawn == visible).all()


@pytest.mark.parametrize(("orientation", "corner"), [("lecture", (7.5, 2.5)), ("dest-rows", (2.5, 7.5))])
def test_boxes_stand_at_their_cells_in_both_orientations(orientation, corner):
    figure = figures.pattern_grid(lookup(8, 3), TOKENS, TOKENS, boxed=[(8, 3)], orientation=orientation)
    (box,) = labelled(figure, "boxed")
    assert (*box.get_xy(), box.get_width(), box.get_height()) == (*corner, 1, 1)
    column, row = (int(edge + 0.5) for edge in corner)
    assert figure.axes[0].images[0].get_array()[row, column] == pytest.approx(0.97)


def test_lecture_orientation_has_sources_in_rows_and_the_other_one_queries():
    lecture = figures.pattern_grid(lookup(8, 3), TOKENS, TOKENS).axes[0]
    other = figures.pattern_grid(lookup(8, 3), TOKENS, TOKENS, orientation="dest-rows").axes[0]
    assert (lecture.get_ylabel(), lecture.get_xlabel()) == ("source (key)", "destination (query)")
    assert (other.get_xlabel(), other.get_ylabel()) == ("source (key)", "destination (query)")
    assert np.array_equal(lecture.images[0].get_array(), other.images[0].get_array().T)
    assert lecture.get_ylim() == (8.5, -0.5)


def test_cross_attention_is_a_rectangle_with_its_own_tokens_on_each_axis():
    rng = np.random.default_rng(0)
    figure = figures.pattern_grid(rng.dirichlet(np.ones(5), 7), list("abcde"), list("tuvwxyz"))
    axes = figure.axes[0]
    assert axes.images[0].get_array().shape == (5, 7)
    assert (tick_labels(axes.yaxis), tick_labels(axes.xaxis)) == (list("abcde"), list("tuvwxyz"))


def test_the_colour_scale_runs_from_0_to_1_whatever_the_weights():
    figure = figures.pattern_grids({"a": np.full((2, 2), 0.5), "b": np.full((2, 2), 0.01)}, "ab", "ab")
    assert [axes.images[0].get_clim() for axes in figure.axes[:2]] == [(0, 1), (0, 1)]
    assert [axes.get_ylabel() for axes in figure.axes[2:]] == ["attention weight"]


def test_the_colour_scale_darkens_steadily_in_grey():
    colours = figures.pattern_grid([[1.0]], "a", "a").axes[0].images[0].cmap(np.linspace(0, 1, 64))[:, :3]
    assert (np.diff(colours @ [0.299, 0.587, 0.114]) < 0).all()


def test_weights_of_at_least_five_hundredths_are_printed_on_small_grids():
    figure = figures.pattern_grid([[0.951, 0.049], [0.95, 0.05]], "ab", "ab", orientation="dest-rows")
    printed = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert printed == {(0, 0): "0.95", (0, 1): "0.95", (1, 1): "0.05"}


def test_printed_weights_stand_out_from_their_cells():
    axes = figures.pattern_grid([np.linspace(0, 1, 16)], [*"abcdefghijklmnop"], "z").axes[0]
    grey = np.array([0.299, 0.587, 0.114])
    for text in axes.texts:
        ground = axes.images[0].to_rgba(float(text.get_text()))[:3] @ grey
        ink = np.array(matplotlib.colors.to_rgb(text.get_color())) @ grey
        assert abs(ground - ink) > 0.4


@pytest.mark.parametrize(("length", "note"), [(64, False), (65, True), (512, True)])
def test_labels_are_thinned_above_64_tokens_and_the_figure_says_so(length, note):
    tokens = [f"t{i}" for i in range(length)]
    figure = figures.pattern_grid(np.eye(length), tokens, tokens, visible=np.tril(np.ones((length, length), bool)))
    labels = tick_labels(figure.axes[0].xaxis)
    assert ("labelled, as position: token" in texts(figure)) == note
    assert len(labels) <= 64
    assert labels[1] == {64: "t1", 65: "4: t4", 512: "16: t16"}[length]
    assert figure.axes[0].images[0].get_array().shape == (length, length)


@pytest.mark.parametrize("length", [64, 512, 1500])
def test_tick_labels_do_not_touch_on_long_sequences(length):
    tokens = [f"tok{i % 7}" for i in range(length)]
    figure = figures.pattern_grid(np.eye(length), tokens, tokens)
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))


def test_beyond_512_tokens_tiles_keep_the_largest_weight_and_the_note_gives_their_size():
    pattern = np.full((600, 700), 1e-4)
    pattern[599, 101] = 0.9
    figure = figures.pattern_grid(pattern, ["s"] * 700, ["d"] * 600, boxed=[(599, 101)])
    shown = figure.axes[0].images[0].get_array()
    assert shown.shape == (350, 300)
    assert shown[50, 299] == 0.9 and (shown > 0.5).sum() == 1
    assert "2 to a square" in texts(figure) and "largest weight of its tile" in texts(figure)
    (box,) = labelled(figure, "boxed")
    assert box.get_center() == pytest.approx((299, 50))


def test_a_tile_is_hidden_only_where_all_of_its_cells_are():
    visible = np.zeros((513, 513), bool)
    visible[:, 1] = True
    figure = figures.pattern_grid(visible.astype(float), ["s"] * 513, ["d"] * 513, visible=visible)
    mask = figure.axes[0].images[0].get_array().mask
    assert mask.shape == (257, 257) and not mask[0].any() and mask[1:].all()
    assert "hidden by the mask" in texts(figure) and len(crosses(figure)) > 0


def test_a_short_axis_is_not_pooled_with_a_long_one():
    figure = figures.pattern_grid(np.full((5, 700), 1 / 700), ["s"] * 700, list("abcde"))
    assert figure.axes[0].images[0].get_array().shape == (350, 5)
    assert tick_labels(figure.axes[0].xaxis) == list("abcde")


def test_a_grid_is_drawn_into_given_axes():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert figures.pattern_grid(np.eye(2), "ab", "ab", ax=right, title="here") is figure
    assert right.get_title(loc="left") == "here" and not left.images


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


# the route


def test_the_route_draws_each_token_once_a_row_and_each_arrow_from_source_up_to_dest():
    figure = figures.route(TOKENS, [[(3, 2, "carries a"), (1, 0, "carries c")], [(8, 3, "2")]])
    boxes, arrows = labelled(figure, "token"), labelled(figure, "arrow")
    assert len(boxes) == 27 and len(arrows) == 3
    middles = [box.get_x() + box.get_width() / 2 for box in boxes[:9]]
    drawn = []
    for arrow in arrows:
        (start, low), (end, high) = arrow._posA_posB
        assert low < high
        drawn.append((int(np.abs(np.array(middles) - end).argmin()), int(np.abs(np.array(middles) - start).argmin())))
    assert drawn == [(3, 2), (1, 0), (8, 3)]
    assert "inputs" in texts(figure) and "after layer 1" in texts(figure) and "carries c" in texts(figure)


def test_route_labels_and_tokens_do_not_overlap():
    arrows = [[(1, 0, "carries c"), (3, 2, "carries a"), (5, 4, "carries f"), (7, 6, "carries b"), (8, 0, "more")]]
    figure = figures.route([*TOKENS[:-1], "internationalisation"], arrows)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize(
    ("tokens", "arrows", "options", "message"),
    [
        ("ab", [[(2, 0, "x")]], {}, "source 0 to dest 2 in layer 0"),
        ("ab", [[(1, -1, "x")]], {}, "source -1"),
        ("ab", [], {}, "no layer"),
        ("", [[]], {}, "0 tokens"),
        ("a" * 41, [[]], {}, "41 tokens"),
        ("ab", [[]], {"layer_names": ["one", "two"]}, "2 names.*1 layers"),
    ],
)
def test_the_route_refuses_what_it_cannot_draw(tokens, arrows, options, message):
    with pytest.raises(ValueError, match=message):
        figures.route(tokens, arrows, **options)


# measurements


def test_every_seed_is_a_dot_and_every_condition_a_mean_with_its_interval():
    summary, seeds = summary_and_seeds()
    order = ["cut-hidden", "clean"]
    figure = figures.accuracy_under_intervention(summary, seeds, {}, order, {"clean": "nothing $cut$"})
    axes = figure.axes[0]
    assert tick_labels(axes.yaxis) == ["cut-hidden", "nothing $cut$"]
    dots = [dots.get_offsets() for dots in labelled(figure, "one trained model")][:2]
    for row, condition in enumerate(order):
        assert list(dots[row][:, 0]) == list(seeds.loc[seeds["condition"] == condition, "value"])
        assert (abs(dots[row][:, 1] - row) < 0.5).all() and len(set(dots[row][:, 1])) == 10
    means = [line.get_xdata()[0] for line in labelled(figure, "mean")]
    intervals = [tuple(line.get_xdata()) for line in labelled(figure, "interval")]
    asked = summary.set_index("condition").loc[order]
    assert means == list(asked["estimate"])
    assert intervals == list(zip(asked["low"], asked["high"], strict=True))


def test_accuracy_runs_from_0_to_100_percent():
    axes = figures.accuracy_under_intervention(*summary_and_seeds(), {}).axes[0]
    assert axes.get_xlim() == (-0.01, 1.01)
    assert tick_labels(axes.xaxis) == ["0%", "20%", "40%", "60%", "80%", "100%"]


def test_names_of_the_guessing_rates_do_not_overlap_each_other_or_a_leader():
    rates = {"guess: any digit": 0.125, "guess: a seen digit": 0.34375, "guess: the most frequent": 0.412, "x": 0.41}
    figure = figures.accuracy_under_intervention(*summary_and_seeds(), rates)
    assert sorted(line.get_xdata()[0] for line in labelled(figure, "reference")) == sorted(rates.values())
    names = [text for text in figure.axes[0].texts if any(text.get_text().startswith(f"{rate} ") for rate in rates)]
    leaders = [text.arrow_patch for text in figure.axes[0].texts if getattr(text, "arrow_patch", None)]
    boxes = [matplotlib.text.Text.get_window_extent(name) for name in names]
    boxes += [leader.get_window_extent() for leader in leaders]
    assert len(names) == len(leaders) == 4
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_what_was_not_measured_is_said_and_no_bar_is_made_up():
    summary, seeds = summary_and_seeds()
    summary = summary.assign(estimate=[np.nan, 0.15, 0.36], low=np.nan, high=np.nan)
    figure = figures.accuracy_under_intervention(summary, seeds, {})
    assert texts(figure).count("not measured") == 1
    assert len(labelled(figure, "mean")) == 2 and not labelled(figure, "interval")
    assert "interval" not in texts(figure)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"summary": a["summary"].drop(columns="low")}, r"lacks the columns \['low'\]"),
        (lambda a: a | {"summary": a["summary"].iloc[:0]}, "summary has no rows"),
        (lambda a: a | {"summary": pd.concat([a["summary"]] * 2)}, "twice"),
        (lambda a: a | {"seeds": pd.concat([a["seeds"]] * 2)}, "seeds gives.*twice"),
        (lambda a: a | {"seeds": a["seeds"][a["seeds"]["condition"] != "clean"]}, r"seeds lacks.*\['clean'\]"),
        (lambda a: a | {"order": ["clear"]}, r"lacks the conditions \['clear'\].*'cut-answer'"),
        (lambda a: a | {"order": []}, "no condition"),
        (lambda a: a | {"labels": {"clear": "x"}}, r"labels names \['clear'\]"),
        (lambda a: a | {"summary": a["summary"].assign(estimate=43.0)}, "43, outside 0..1"),
        (lambda a: a | {"references": {"guess": 12.5}}, "references holds 12.5"),
        (lambda a: a | {"summary": a["summary"].assign(high=a["summary"]["low"])}, "outside low..high"),
    ],
)
def test_accuracy_refuses_frames_that_do_not_fit(change, message):
    summary, seeds = summary_and_seeds()
    given = change({"summary": summary, "seeds": seeds, "references": {"guess": 0.125}})
    with pytest.raises(ValueError, match=message):
        figures.accuracy_under_intervention(**given)


def test_training_curves_draw_a_line_a_seed_and_kinds_differ_in_colour_and_style():
    figure = figures.training_curves(training())
    for axes in figure.axes:
        looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
        assert len(looks) == 5 and looks[0] == looks[2] and looks[3] == looks[4]
        assert looks[0][0] != looks[3][0] and looks[0][1] != looks[3][1]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["two layers (3 seeds)", "_one $layer$ (2 seeds)"]


def test_training_curves_join_the_steps_that_were_measured():
    curves = training()
    curves.loc[curves["step"] % 2 == 1, "accuracy"] = np.nan
    figure = figures.training_curves(curves)
    assert list(figure.axes[1].lines[0].get_xdata()) == [0, 2]
    assert list(figure.axes[0].lines[0].get_xdata()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        (training().drop(columns="loss"), r"curves lacks the columns \['loss'\]"),
        (training().iloc[:0], "no rows"),
        (training().assign(step=0), "twice"),
        (training().assign(loss=np.inf), "infinite"),
        (training().assign(accuracy=40.0), "outside 0..1"),
    ],
)
def test_training_curves_refuse_frames_that_do_not_fit(curves, message):
    with pytest.raises(ValueError, match=message):
        figures.training_curves(curves)


def test_weights_by_role_show_every_seed_and_name_what_a_head_lacks():
    table = weights()
    table = table[(table["head"] == 0) | (table["dest"] == "last")]
    figure = figures.weights_by_role(table, layer_names=["layer 1"])
    first, second = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["layer 1, head 0", "layer 1, head 1"]
    assert tick_labels(first.yaxis) == ["digits ← previous", "last ← answer"]
    assert [len(dots.get_offsets()) for dots in second.collections] == [0, 10]
    assert [text.get_text() for text in second.texts] == ["not measured"] and not first.texts
    assert [line.get_xdata()[0] for line in labelled(figure, "mean", 1)] == [pytest.approx(0.855)]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (weights().drop(columns="head"), {}, r"lacks the columns \['head'\]"),
        (weights().iloc[:0], {}, "no rows"),
        (weights().assign(model_seed=0), {}, "twice"),
        (weights().assign(weight=1.5), {}, "1.5, outside 0..1"),
        (weights().assign(layer=1), {"layer_names": ["layer 1"]}, "1 names"),
    ],
)
def test_weights_by_role_refuse_frames_that_do_not_fit(table, options, message):
    with pytest.raises(ValueError, match=message):
        figures.weights_by_role(table, **options)


# bytes


@pytest.mark.parametrize(
    ("export", "names"),
    [(figures.to_svg, ()), (figures.to_png, ()), (figures.to_pdf, ("route", "curves"))],
)
def test_the_same_figure_gives_the_same_bytes_drawn_twice_and_exported_twice(drawn, export, names):
    again = every_figure()
    for name in names or drawn:
        once = export(drawn[name])
        assert once == export(again[name]) == export(again[name]), name


@pytest.mark.parametrize("export", [figures.to_svg, figures.to_png, figures.to_pdf])
def test_exports_hold_no_date_and_no_version(drawn, export):
    exported = export(drawn["route"])
    for trace in (b"matplotlib v", b"matplotlib.org", b"dc:date", b"creationdate", b"producer", b"software"):
        assert trace not in exported.lower(), trace


def test_svg_and_pdf_keep_text_as_text():
    figure = figures.pattern_grid(np.eye(2), ["$x_1$", "<b>&"], ["a", "b"])
    svg = figures.to_svg(figure).decode()
    found = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    assert {"$x_1$", "&lt;b&gt;&amp;", "source (key)", "attention weight"} <= set(found)
    assert b"/Type3" not in figures.to_pdf(figure) and b"/FontFile2" in figures.to_pdf(figure)


def test_text_from_data_is_never_read_as_mathematics():
    summary, seeds = summary_and_seeds()
    odd = "$\\frac"
    drawn = [
        figures.pattern_grids({odd: np.eye(2)}, [odd, "a_b"], [odd, "^"], title=odd),
        figures.route([odd, "_"], [[(1, 0, odd)]], layer_names=[odd], title=odd),
        figures.accuracy_under_intervention(summary, seeds, {odd: 0.1}, labels={"clean": odd}, interval=odd, title=odd),
        figures.training_curves(training().query("model == 'two layers'").assign(model=odd), title=odd),
        figures.weights_by_role(weights().assign(dest=odd), layer_names=[odd], title=odd),
    ]
    for figure in drawn:
        figure.savefig(BytesIO(), format="svg")  # under the caller's own settings, which parse mathematics
        found = [text for text in figure.findobj(matplotlib.text.Text) if "$" in text.get_text()]
        assert found and not any(text.get_parse_math() for text in found)


def test_unprintable_characters_are_written_as_escapes():
    axes = figures.pattern_grid(np.eye(2), ["\n", "\x00"], ["a", "b"]).axes[0]
    assert tick_labels(axes.yaxis) == ["\\n", "\\x00"]


def test_the_callers_settings_neither_change_nor_matter():
    plain = figures.to_svg(figures.training_curves(training()))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "figure.dpi": 40}):
        before = dict(matplotlib.rcParams)
        assert figures.to_svg(figures.training_curves(training())) == plain
        assert dict(matplotlib.rcParams) == before


def test_nothing_is_cut_off(drawn):
    for name, figure in drawn.items():
        taken, page = figure.get_tightbbox(), figure.bbox_inches.padded(0.01)
        assert page.contains(taken.x0, taken.y0) and page.contains(taken.x1, taken.y1), name


def test_importing_figures_opens_no_plotting_state_and_sets_no_theme():
    code = (
        "import matplotlib; before = dict(matplotlib.rcParams); import sys, workbench.figures; "
        "assert 'matplotlib.pyplot' not in sys.modules; assert dict(matplotlib.rcParams) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
