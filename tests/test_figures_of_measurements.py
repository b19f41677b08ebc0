from itertools import combinations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from drawn import TOKENS, labelled, summary_and_seeds, texts, tick_labels, training, weights

from workbench import figures


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


def test_an_accuracy_that_is_almost_all_is_not_said_to_be_all():
    summary = pd.DataFrame({"condition": ["clean"], "estimate": [0.9996], "low": [0.9991], "high": [0.99985]})
    seeds = pd.DataFrame({"condition": ["clean"], "model_seed": [0], "value": [0.9996]})
    figure = figures.accuracy_under_intervention(summary, seeds, {"guess": 0.0004})
    said = [text.get_text() for text in figure.axes[0].texts]
    assert "99.96%  [99.9%, 99.98%]" in said and "guess 0.04%" in said


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
        looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines if len(line.get_xdata())]
        assert len(looks) == 5 and looks[0] == looks[2] and looks[3] == looks[4]
        assert looks[0][0] != looks[3][0] and looks[0][1] != looks[3][1]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["two layers (3 seeds)", "_one $layer$ (2 seeds)"]


def test_training_curves_join_the_steps_that_were_measured_whatever_the_index():
    curves = training()
    curves.loc[curves["step"] % 2 == 1, "accuracy"] = np.nan
    curves.index = [0] * len(curves)
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


def test_a_model_of_which_nothing_was_measured_keeps_its_place_in_the_legend():
    curves = training()
    curves.loc[curves["model"] == "two layers", ["loss", "accuracy"]] = np.nan
    legend = figures.training_curves(curves).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["two layers (3 seeds)", "_one $layer$ (2 seeds)"]
    assert [line.get_linestyle() for line in legend.get_lines()] == ["-", "--"]


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
