"""Maps of edges, dose curves and forests: which numbers are drawn where, every seed visible, and what is refused."""

from io import BytesIO
from itertools import combinations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from drawn import labelled, texts, tick_labels
from matplotlib.text import Annotation

from workbench import figures
from workbench.figures.effects import seed_means, there
from workbench.figures.squares import STRIP, Scale
from workbench.grids import grid
from workbench.interventions import Edges, Heads, cut, scale, zero
from workbench.page_contrasts import contrast_table
from workbench.results import paired_tests, summary
from workbench.study import Study

CLEAN, CHANGE = 0.75, {"answer": -0.5, "match": -0.25, "other": 0.25}


def edges(**columns):
    """Two dests × three sources in three model seeds, whose mean is exact."""
    rows = [
        (dest, source, seed, (change if dest == "last" else 0.0) + shift)
        for dest in ("last", "digits")
        for source, change in CHANGE.items()
        for seed, shift in enumerate((-0.125, 0.0, 0.125))
    ]
    return pd.DataFrame(rows, columns=["dest", "source", "model_seed", "effect"]).assign(**columns)


def written(figure, axes=0):
    """(row, column) → number."""
    found = [text for text in figure.axes[axes].texts if not isinstance(text, Annotation)]
    return {tuple(round(place) for place in reversed(text.get_position())): text.get_text() for text in found}


def measured(conditions, values, seeds=(0, 1), n=4):
    """A study and its results: condition → the number of right answers of n, one more in each further seed."""
    study = Study(conditions=conditions, n=n, data_seed=0)
    rows = [
        ("m", seed, condition, example, None, float(example < values[condition] + place))
        for condition in conditions
        for place, seed in enumerate(seeds)
        for example in range(n)
    ]
    columns = ["model", "model_seed", "condition", "example", "skipped", "accuracy"]
    kinds = {"model": "category", "skipped": "category", "condition": pd.CategoricalDtype(list(conditions))}
    return study, pd.DataFrame(rows, columns=columns).astype(kinds)


# The map of edges


def test_sources_stand_in_rows_and_dests_in_columns_with_the_mean_of_the_seeds():
    axes = figures.dest_source_map(edges()).axes[0]
    assert axes.images[0].get_array().tolist() == [[-0.5, 0], [-0.25, 0], [0.25, 0]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("destination (query)", "source (key)")
    assert tick_labels(axes.xaxis) == ["last", "digits"] and tick_labels(axes.yaxis) == list(CHANGE)
    assert written(axes.figure)[0, 0] == "−0.500" and written(axes.figure)[2, 0] == "0.250"


def test_dest_rows_are_the_transpose():
    axes = figures.dest_source_map(edges(), orientation="dest-rows").axes[0]
    assert axes.images[0].get_array().tolist() == [[-0.5, -0.25, 0.25], [0, 0, 0]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source (key)", "destination (query)")


def test_every_seed_is_a_dot_at_its_place_on_the_scale():
    figure = figures.dest_source_map(edges())
    dots = [dots.get_offsets() for dots in labelled(figure, "one trained model")]
    assert len(dots) == 6 and all(len(own) == 3 for own in dots)
    scale_of = Scale.of(edges()["effect"].to_numpy())
    left, right, below = STRIP
    expected = left + (right - left) * (np.array([-0.625, -0.5, -0.375]) + 0.625) / (2 * 0.625)
    assert (scale_of.low, scale_of.high) == (-0.625, 0.625)
    assert dots[0][:, 0].tolist() == pytest.approx(expected.tolist())
    assert dots[0][:, 1].mean() == pytest.approx(below)
    assert "mean of 3 trained models" in texts(figure)


def test_equal_seeds_do_not_hide_each_other():
    figure = figures.dest_source_map(np.full((3, 1, 1), 0.5))
    (dots,) = labelled(figure, "one trained model")
    assert len({tuple(place) for place in dots.get_offsets().tolist()}) == 3


def test_signed_effects_have_a_scale_centred_on_0_and_what_is_below_it_is_hatched():
    figure = figures.dest_source_map(edges())
    image = figure.axes[0].images[0]
    assert image.norm.vmin == -image.norm.vmax
    hatched = {(round(one.get_y() + 0.5), round(one.get_x() + 0.5)) for one in labelled(figure, "below 0")}
    assert hatched == {(0, 0), (1, 0)} and all(one.get_hatch() for one in labelled(figure, "below 0"))
    assert "Hatched: below −0.031." in texts(figure)


def test_unsigned_effects_have_a_scale_from_0_and_no_hatching():
    figure = figures.dest_source_map(edges(effect=edges()["effect"].abs()))
    image = figure.axes[0].images[0]
    assert image.norm.vmin == 0 and image.norm.vmax == 0.625
    assert not labelled(figure, "below 0") and "Hatched" not in texts(figure)


def test_noise_that_is_written_as_0_makes_no_scale_signed():
    assert Scale.of(np.array([-1e-9, 0.5])).low == 0


def test_scales_without_any_effect_still_have_two_ends():
    assert Scale.of(np.zeros(3)) == Scale(0.0, 1.0)


def test_opposite_ends_of_a_signed_scale_look_the_same_in_grey_which_is_why_one_is_hatched():
    colours = Scale(-1.0, 1.0).colours(np.array([0.1, 0.5, 0.9]))[:, :3] @ (0.2126, 0.7152, 0.0722)
    assert colours[1] > 2 * colours[0] and colours[1] > 2 * colours[2]


def test_masked_edges_are_crossed_out_and_others_without_a_value_say_not_measured():
    values = np.array([[0.5, np.nan], [np.nan, 0.25]])
    figure = figures.dest_source_map(values, hidden=[(0, 1)], dest_labels="ab", source_labels="ab")
    (crosses,) = labelled(figure, "hidden")
    middles = {tuple(np.round(line.mean(0)).tolist()) for line in crosses.get_segments()}
    assert middles == {(0.0, 1.0)}  # source 1 in row 1, dest 0 in column 0
    assert written(figure) == {(0, 0): "0.500", (0, 1): "–", (1, 1): "0.250"}
    assert "–: not measured." in texts(figure) and "Crossed: hidden by the mask." in texts(figure)


def test_equal_tokens_keep_their_own_places():
    axes = figures.dest_source_map(np.eye(3), dest_labels="a2a", source_labels="a2a").axes[0]
    assert tick_labels(axes.xaxis) == tick_labels(axes.yaxis) == ["a", "2", "a"]
    assert axes.images[0].get_array().tolist() == np.eye(3).tolist()


def test_arrays_of_several_models_are_averaged_and_shown_one_by_one():
    figure = figures.dest_source_map(np.stack([np.zeros((2, 2)), np.ones((2, 2))]))
    assert set(written(figure).values()) == {"0.500"}
    assert [len(dots.get_offsets()) for dots in labelled(figure, "one trained model")] == [2] * 4


def test_layers_and_heads_have_panels_on_one_scale_with_the_note_said_once():
    frame = pd.concat([edges(layer=0, head="every"), edges(layer=1, head="every", effect=1.0)])
    figure = figures.dest_source_map(frame)
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["layer 0, every head", "layer 1, every head"]
    assert figure.axes[0].images[0].norm.vmax == figure.axes[1].images[0].norm.vmax == 1.0
    assert texts(figure).count("mean of 3 trained models") == 1


def test_beyond_24_squares_a_side_numbers_are_left_out_and_the_figure_says_so():
    figure = figures.dest_source_map(np.full((2, 25, 25), 0.5))
    assert written(figure) == {} and "Numbers are left out beyond 24 squares a side." in texts(figure)
    assert "mean of 2 trained models" in texts(figure)


def test_role_weights_are_a_map_from_0_to_1_with_every_seed():
    table = edges(layer=0, head=1, weight=0.25).drop(columns="effect")
    table.loc[table["source"] == "answer", "weight"] = 0.875
    figure = figures.role_weights_map(table)
    image = figure.axes[0].images[0]
    assert image.get_array().tolist() == [[0.875, 0.875], [0.25, 0.25], [0.25, 0.25]]
    assert (image.norm.vmin, image.norm.vmax) == (0, 1)
    assert sum(len(dots.get_offsets()) for dots in labelled(figure, "one trained model")) == 18
    assert figure.axes[0].get_title(loc="left") == "layer 0, head 1" and "mean attention weight" in texts(figure)


@pytest.mark.parametrize(
    ("effects", "options", "message"),
    [
        (edges().drop(columns="source"), {}, r"lacks the columns \['source'\]"),
        (edges().iloc[:0], {}, "has no rows"),
        (pd.concat([edges(), edges()]), {}, "gives .* twice"),
        (edges(effect=np.inf), {}, "'effect' is infinite"),
        (edges(effect=np.nan), {}, "holds no number"),
        (edges(), {"hidden": [("last", "answer")]}, r"\('last', 'answer'\).* is hidden and has a value; make it NaN"),
        (edges(), {"hidden": [("last", "first")]}, r"hidden names \('last', 'first'\).* not on the axes"),
        (edges(), {"limits": (0.0, 1.0)}, r"runs from -0.625 to 0.375, beyond \(0.0, 1.0\)"),
        (edges(), {"orientation": "sideways"}, "orientation 'sideways' is not known"),
        (edges(), {"columns": 0}, "columns is 0"),
        (np.zeros(3), {}, r"shape \[3\]; give \[dest source\]"),
        (np.zeros((0, 2)), {}, r"shape \[0, 2\]"),
    ],
)
def test_maps_that_cannot_be_drawn_are_refused(effects, options, message):
    with pytest.raises(ValueError, match=message):
        figures.dest_source_map(effects, **options)


@pytest.mark.parametrize("column", ["model", "edit"])
def test_edges_of_two_models_or_edits_share_no_map(column):
    frame = pd.concat([edges(**{column: "A"}), edges(**{column: "B"}).replace("last", "first")])
    with pytest.raises(ValueError, match=rf"'{column}' of frame holds 2 values \(A, B\)"):
        figures.dest_source_map(frame)
    figures.dest_source_map(frame[frame[column] == "A"])


def test_role_weights_of_two_models_share_no_map():
    table = edges(layer=0, head=0, weight=0.5)
    with pytest.raises(ValueError, match=r"'model' of table holds 2 values \(A, B\)"):
        figures.role_weights_map(table.assign(model=table["model_seed"].map({0: "A", 1: "B", 2: "B"})))


def test_role_weights_outside_0_to_1_are_refused():
    with pytest.raises(ValueError, match=r"holds 2, outside 0\.\.1"):
        figures.role_weights_map(edges(layer=0, head=0, weight=2.0))


# What the conditions do, read from their interventions


def test_effects_by_edge_come_from_the_interventions_and_not_from_the_labels():
    where = {name: Edges(layer=1, dest="last", source=source) for name, source in (("b", "answer"), ("a", "other"))}
    conditions = {"clean": [], **{name: [cut(one)] for name, one in where.items()}}
    study, results = measured(conditions, {"clean": 3, "b": 0, "a": 2})
    table = figures.effects_by_edge(study, results)
    assert table[["model_seed", "layer", "head", "dest", "source", "effect"]].values.tolist() == [
        [0, 1, "every", "last", "answer", -0.75],
        [0, 1, "every", "last", "other", -0.25],
        [1, 1, "every", "last", "answer", -0.75],
        [1, 1, "every", "last", "other", -0.25],
    ]
    assert set(table["edit"]) == {"cut one edge"} and set(table["condition"]) == {"a", "b"}


def test_effects_by_head_keep_families_of_other_edits_apart():
    conditions = {"clean": [], **grid(cut, Edges, layer=[0, 1], head=0, dest="last"),
                  **grid(zero, Heads, layer=0, head=[0, 1], part="z")}  # fmt: skip
    study, results = measured(conditions, dict.fromkeys(conditions, 1) | {"clean": 3})
    table = figures.effects_by_head(study, results)
    assert table.groupby("edit", sort=False)["condition"].nunique().to_dict() == {
        "cut each head last←every": 2, "zero each head.z every": 2
    }  # fmt: skip
    assert (table["effect"] == -0.5).all()


def test_conditions_of_several_interventions_belong_to_no_family():
    one, other = (cut(Edges(layer=0, head=head)) for head in (0, 1))
    study, results = measured({"clean": [], "both": [one, other], "one": [one]}, {"clean": 3, "both": 0, "one": 1})
    assert there(study) == set()
    with pytest.raises(ValueError, match=r"alike but for the head; there are: clean: nothing; both"):
        figures.effects_by_head(study, results)


def test_doses_are_the_factors_of_the_interventions():
    conditions = {"x": [scale(Edges(layer=0, dest="last", source="a"), by=4)],
                  "y": [scale(Edges(layer=0, dest="last", source="a"), by=0.5)],
                  "z": [scale(Edges(layer=0, dest="last", source="b"), by=0.5)]}  # fmt: skip
    study, results = measured(conditions, {"x": 3, "y": 1, "z": 0}, seeds=(7,))
    table = figures.values_by_dose(study, results)
    assert table[["edit", "dose", "model_seed", "value"]].values.tolist() == [
        ["scale L0 last←a", 4.0, 7, 0.75], ["scale L0 last←a", 0.5, 7, 0.25]
    ]  # fmt: skip
    assert there(study) == {"dose"}


@pytest.mark.parametrize("of", [figures.effects_by_edge, figures.values_by_dose])
def test_studies_without_such_conditions_are_refused_with_what_there_is(of):
    study, results = measured({"clean": [], "one": [cut(Edges(layer=0, source="a"))]}, {"clean": 3, "one": 1})
    with pytest.raises(ValueError, match=r"no two conditions .*; there are: clean: nothing; one: cut L0 every←a"):
        of(study, results)


def test_effects_need_a_condition_without_interventions():
    conditions = grid(cut, Edges, layer=0, source=["a", "b"])
    study, results = measured(conditions, dict.fromkeys(conditions, 1))
    with pytest.raises(ValueError, match="no condition without interventions; add 'clean'"):
        figures.effects_by_edge(study, results)
    assert there(study) == set()


def test_unknown_metrics_are_answered_with_the_nearest():
    _, results = measured({"clean": []}, {"clean": 3})
    with pytest.raises(ValueError, match=r"metric 'acuracy' is not in the results.*accuracy"):
        seed_means(results, "acuracy")


# Dose curves


def doses(**columns):
    rows = [(dose, seed, 0.5 + 0.125 * seed + dose / 8) for dose in (2.0, 0.0, 1.0) for seed in (0, 1)]
    return pd.DataFrame(rows, columns=["dose", "model_seed", "value"]).assign(**columns)


def dose_summary(**columns):
    means = doses().groupby("dose")["value"].mean().rename("estimate").reset_index()
    return means.assign(low=means["estimate"] - 0.25, high=means["estimate"] + 0.25).assign(**columns)


def curve(**options):
    given = {"seeds": doses(), "summary": dose_summary()} | options
    return figures.dose_curve(given.pop("seeds"), given.pop("summary"), **given)


def test_a_curve_has_a_thin_line_a_seed_in_order_of_dose_and_a_thick_one_for_the_mean():
    figure = curve(clean=pd.DataFrame({"model_seed": [0, 1], "value": [0.5, 1.0]}))
    seeds = [line for line in labelled(figure, "one trained model") if len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in seeds] == [[0, 1, 2]] * 2
    assert [line.get_ydata().tolist() for line in seeds] == [[0.5, 0.625, 0.75], [0.625, 0.75, 0.875]]
    (mean,) = labelled(figure, "mean")
    assert mean.get_ydata().tolist() == [0.5625, 0.6875, 0.8125]
    assert mean.get_linewidth() > 2 * seeds[0].get_linewidth()
    (clean,) = labelled(figure, "clean")
    assert set(clean.get_ydata()) == {0.75}


def test_a_curve_draws_its_intervals_and_says_how_many_models_and_what_the_clean_level_is():
    figure = curve(clean=pd.DataFrame({"model_seed": [0, 1], "value": [0.5, 1.0]}), share=True, value_label="accuracy")
    (bars,) = labelled(figure, "interval")
    ends = [line[:, 1].tolist() for line in bars.get_segments()]
    assert ends == [[0.3125, 0.8125], [0.4375, 0.9375], [0.5625, 1.0625]]
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["one trained model (2 of them)", "mean, with its interval over trained models", "without it: 75.0%"]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("scaled by a factor of", "accuracy")


def test_doses_far_apart_are_on_a_logarithmic_axis_and_those_with_0_are_not():
    far = {0.0: 0.01, 1.0: 1.0, 2.0: 4.0}
    seeds, means = (frame.assign(dose=frame["dose"].map(far)) for frame in (doses(), dose_summary()))
    figure = curve(seeds=seeds, summary=means)
    assert figure.axes[0].get_xscale() == "log" and curve().axes[0].get_xscale() == "linear"
    assert tick_labels(figure.axes[0].xaxis) == ["0.01", "1", "4"]


def test_references_stand_beside_the_curve_and_apart_from_each_other():
    figure = curve(references={"any": 0.5, "seen": 0.501, "mode": 0.502}, share=True)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text() in ("any", "seen", "mode")]
    assert len(boxes) == 3 and not any(one.overlaps(two) for one, two in combinations(boxes, 2))
    assert min(box.x0 for box in boxes) >= figure.axes[0].bbox.x1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": doses().drop(columns="dose")}, r"seeds lacks the columns \['dose'\]"),
        ({"seeds": pd.concat([doses(), doses()])}, "seeds gives .* twice"),
        ({"seeds": doses(value=np.nan)}, "NaN or infinite; leave out what was not measured"),
        ({"seeds": doses().query("dose > 0")}, r"the doses \[0.0\] are in one of seeds and summary only"),
        ({"seeds": doses().query("dose == 1"), "summary": dose_summary().query("dose == 1")}, "two doses or more"),
        ({"summary": dose_summary(low=2.0)}, "estimate lies outside low..high"),
        ({"clean": pd.DataFrame({"value": [1.0]})}, r"clean lacks the columns \['model_seed'\]"),
    ],
)
def test_curves_that_cannot_be_drawn_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        curve(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": doses().assign(model=["A", "B"] * 3)}, r"'model' of seeds holds 2 values \(A, B\)"),
        ({"seeds": doses(edit="x"), "summary": dose_summary(edit="y")}, r"'edit' of seeds and summary .* \(x, y\)"),
        ({"seeds": doses(model="A"), "clean": pd.DataFrame({"model": "B", "model_seed": [0], "value": 1.0})},
         r"'model' of seeds and clean .* \(A, B\)"),
    ],
)  # fmt: skip
def test_a_curve_is_of_one_kind_of_model_and_one_edit(options, message):
    with pytest.raises(ValueError, match=message):
        curve(**options)


def test_a_clean_level_that_is_almost_all_is_not_said_to_be_all():
    figure = curve(clean=pd.DataFrame({"model_seed": [0], "value": [0.9996]}), share=True)
    assert figure.legends[0].get_texts()[-1].get_text() == "without it: 99.96%"


# Contrasts


CONDITIONS = {"clean": [], "cut": [cut(Edges(layer=0, source="a"))], "other": [cut(Edges(layer=0, source="b"))]}
PAIRS = [("cut", "clean"), ("other", "clean")]


def contrasted():
    return measured(CONDITIONS, {"clean": 30, "cut": 4, "other": 29}, n=40)[1]


def test_a_contrast_table_has_the_estimate_its_interval_and_the_largest_of_the_corrected_p():
    results = contrasted()
    table, tests = contrast_table(results, PAIRS), paired_tests(results, PAIRS, "accuracy")
    assert table["estimate"].tolist() == [-26 / 40, -1 / 40]
    assert (table["family"] == 4).all() and (table["n_models"] == 2).all()
    for row in table.to_dict("records"):
        own = tests.loc[tests["a"] == row["a"], "p_holm"]
        assert (row["smallest_p"], row["largest_p"]) == (own.min(), own.max())
        assert row["low"] < row["estimate"] < row["high"]
    assert table["n_below"].tolist() == [2, 0]


def test_a_contrast_table_refuses_unknown_models_and_pairs_given_twice():
    with pytest.raises(ValueError, match="model 'n' is not in the results"):
        contrast_table(contrasted(), PAIRS, model="n")
    with pytest.raises(ValueError, match="each once"):
        contrast_table(contrasted(), [*PAIRS, ("clean", "cut")])


def forest(table=None, tests=None, **options):
    results = contrasted()
    table = contrast_table(results, PAIRS) if table is None else table
    tests = paired_tests(results, PAIRS, "accuracy") if tests is None else tests
    return figures.contrast_forest(table, tests, **options)


def test_a_forest_has_a_dot_a_seed_filled_where_its_own_p_is_small():
    figure = forest(share=True)
    rows = tick_labels(figure.axes[0].yaxis)
    assert rows == ["cut", "other"]
    small = [dots.get_offsets() for dots in labelled(figure, "one trained model, p < 0.05") if len(dots.get_offsets())]
    large = [dots.get_offsets() for dots in labelled(figure, "one trained model, p ≥ 0.05") if len(dots.get_offsets())]
    assert [own[:, 0].tolist() for own in small] == [[-0.65, -0.65]]
    assert [own[:, 0].tolist() for own in large] == [[-0.025, -0.025]]
    assert [line.get_xdata()[0] for line in labelled(figure, "mean")] == pytest.approx([-0.65, -0.025])
    assert len(labelled(figure, "interval")) == 2


def test_a_forest_prints_the_numbers_the_p_and_the_size_of_the_family():
    figure = forest(share=True, label="accuracy")
    said = texts(figure)
    assert "−65.0" in said and "p < 0.001" in said and "p = 1" in said
    assert "corrected by Holm in a family of 4 tests." in said and "one trained model (2 of them)" in said
    assert figure.axes[0].get_xlabel().replace("\n", " ") == "accuracy: difference from clean (percentage points)"


def one_contrast(estimate, low, high, p):
    """What a forest prints beside a contrast of one trained model, of shares."""
    table = pd.DataFrame({"a": ["cut"], "b": ["clean"], "estimate": [estimate], "low": [low], "high": [high]})
    tests = pd.DataFrame(
        {"a": "cut", "b": "clean", "model_seed": [0], "difference": [estimate], "p_holm": [p], "family": 1}
    )
    return figures.contrast_forest(table, tests, share=True).axes[0].texts[0].get_text()


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((-0.0004, -0.0006, -0.0002, 0.0496), "−0.04  [−0.06, −0.02]   p = 0.0496"),
        ((-0.001, -0.0014, -0.0006, 0.5), "−0.10  [−0.14, −0.06]   p = 0.5"),
        ((-0.65, -0.7, -0.6, 0.0504), "−65.0  [−70.0, −60.0]   p = 0.05"),
        ((0.0, 0.0, 0.0, 1.0), "0.0  [0.0, 0.0]   p = 1"),
        ((1e-17, -0.1, 0.1, 1.0), "0.0  [−10.0, +10.0]   p = 1"),
        ((0.25, np.nan, np.nan, np.nan), "+25.0   no test"),
    ],
)
def test_an_interval_beside_0_and_a_p_below_5_percent_read_as_what_they_are(numbers, said):
    assert one_contrast(*numbers) == said


def test_a_forest_is_of_one_kind_of_model():
    results = contrasted()
    table, tests = contrast_table(results, PAIRS), paired_tests(results, PAIRS, "accuracy")
    assert set(table["model"]) == {"m"}
    for options in ({"table": table.assign(model=["m", "n"])}, {"tests": tests.assign(model="n")}):
        with pytest.raises(ValueError, match=r"'model' of table and tests holds 2 values \(m, n\)"):
            forest(**({"table": table, "tests": tests} | options))


def test_contrasts_with_different_bases_name_both_sides():
    results = contrasted()
    pairs = [("cut", "clean"), ("cut", "other")]
    figure = forest(contrast_table(results, pairs), paired_tests(results, pairs, "accuracy"))
    assert tick_labels(figure.axes[0].yaxis) == ["cut − clean", "cut − other"]
    assert figure.axes[0].get_xlabel() == "difference a − b"


def test_forests_that_cannot_be_drawn_are_refused():
    results = contrasted()
    table, tests = contrast_table(results, PAIRS), paired_tests(results, PAIRS, "accuracy")
    for options, message in (
        ({"table": table.drop(columns="low")}, r"table lacks the columns \['low'\]"),
        ({"tests": tests.query("a == 'cut'")}, r"tests lack the contrasts \[\('other', 'clean'\)\]"),
        ({"tests": pd.concat([tests, tests])}, "tests gives .* twice"),
        ({"tests": tests.assign(family=range(4))}, "families of .*; correct them all together"),
        ({"labels": {("a", "b"): "x"}}, r"labels names \[\('a', 'b'\)\]"),
        ({"table": table.assign(low=0.9)}, "estimate lies outside low..high"),
    ):
        with pytest.raises(ValueError, match=message):
            forest(**options)


# All


def every():
    odd = "the $\\frac <b>"
    results, heads = contrasted(), pd.DataFrame({"layer": 0, "head": 0, "model_seed": [0, 1], "effect": [-1.0, 2.0]})
    return {
        "edges": figures.dest_source_map(edges().replace("last", odd), title=odd),
        "panels": figures.dest_source_map(pd.concat([edges(layer=odd, head=h) for h in (0, 1)]), label=odd),
        "curve": curve(title=odd, value_label=odd, dose_label=odd, references={odd: 0.25}, interval=odd),
        "forest": forest(label=odd, title=odd, labels={("cut", "clean"): odd}),
        "heads": figures.layer_head_map(heads, value="effect", title=odd),
        "summary": figures.accuracy_under_intervention(
            summary(results), seed_means(results, "accuracy"), {odd: 0.5}, title=odd
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def drawn():
    return every()


def test_nothing_is_cut_off(drawn):
    for name, figure in drawn.items():
        taken, page = figure.get_tightbbox(), figure.bbox_inches.padded(0.01)
        assert page.contains(taken.x0, taken.y0) and page.contains(taken.x1, taken.y1), name


def test_text_from_data_is_never_read_as_mathematics(drawn):
    for name, figure in drawn.items():
        figure.savefig(BytesIO(), format="svg")  # under the caller's own settings, which parse mathematics
        found = [text for text in figure.findobj(matplotlib.text.Text) if "$" in text.get_text()]
        assert found and not any(text.get_parse_math() for text in found), name


def test_the_same_figure_comes_out_the_same(drawn):
    for name, figure in every().items():
        assert figures.to_svg(figure) == figures.to_svg(drawn[name]), name


def test_a_figure_goes_out_in_three_formats(drawn):
    files = figures.figure_files("a", drawn["curve"])
    starts = {name: content[:5] for name, content in files.items()}
    assert starts == {"a.svg": b"<?xml", "a.pdf": b"%PDF-", "a.png": b"\x89PNG\r"}
