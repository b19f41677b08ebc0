"""What a sweep measured, what is read from it and drawn of it; and what cannot be swept."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from models_of import batch_for, kind_of
from small import BATCH, CORRUPT, TASK, small
from sweeps import FEW, HAND, padded, quiet, several
from torch.nn import Linear

import workbench
from workbench.batch import Batch
from workbench.interventions import (
    custom,
    cut,
    mean,
    patch,
    path,
    resample,
    scale,
    shuffle,
    zero,
)
from workbench.locations import Edges
from workbench.metrics import METRICS
from workbench.models.config import ModelConfig
from workbench.models.transformer import Transformer
from workbench.position_roles import described, position_names, with_positions
from workbench.results import contrast
from workbench.schema import KEYS, check
from workbench.studies import joined, run_study
from workbench.study import Study
from workbench.sweep_plan import OPERATIONS, acted_on


def effect_of(swept, **place):
    table = swept.effects()
    for name, value in place.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


# The frame, and what is read from it


def test_the_frame_is_a_results_frame():
    swept = quiet(several(), FEW, cut, metrics=["accuracy", "kl_to_clean"])
    check(swept.frame)
    assert list(swept.frame.columns) == [*KEYS, "accuracy", "kl_to_clean"]
    assert len(swept.frame) == 2 * (1 + len(swept.places)) * 8
    assert set(swept.frame["condition"].cat.categories) == {"clean", *swept.places["condition"]}


@pytest.mark.parametrize("metric", ["accuracy", "logit_margin"])
def test_effects_are_what_contrast_gives(metric):
    swept = quiet(several(3), FEW, cut, dest=8, layers=1, metrics=["logit_margin", "accuracy"])
    for _, row in swept.effects(metric).iterrows():
        one = contrast(swept.frame, row["condition"], "clean", metric).iloc[0]
        for name in one.index.drop(["model", "a", "b"]):
            assert row[name] == one[name] or (pd.isna(row[name]) and pd.isna(one[name])), name


def test_effects_begin_with_the_first_metric():
    swept = quiet(HAND, FEW, cut, dest=8, metrics=["logit_margin", "accuracy"])
    assert set(swept.effects()["metric"]) == {"logit_margin"}


def test_means_are_of_each_model_and_average_to_the_effect():
    swept = quiet(several(3), FEW, zero, "heads", pos="last", metrics="logit_margin")
    means = swept.means()
    assert len(means) == 3 * 4 and means["model_seed"].drop_duplicates().tolist() == [0, 1, 2]
    averaged = means.groupby("condition")["effect"].mean()[swept.places["condition"]]
    assert averaged.to_numpy() == pytest.approx(swept.effects()["estimate"].to_numpy())


def test_a_cell_that_cannot_reach_what_is_read_says_so():
    row = effect_of(quiet(HAND, FEW, cut), layer=1, dest=7, source=1)
    assert row["unchanged"] and row["estimate"] == 0
    assert row["note"].startswith("cannot reach what is read in 8 of 8 examples; its effect there is 0 by construction")


def test_a_cell_that_matters_has_no_note():
    row = effect_of(quiet(small(), FEW, cut, metrics="logit_margin"), layer=1, head=0, dest=8, source=1)
    assert row["note"] == "" and not row["unchanged"]


def test_a_note_of_some_models_names_them():
    masked = Transformer(small().config.model_copy(update={"n_layers": 1}), seed=1).double()
    swept = quiet({"m": [small(), masked]}, FEW, cut, layers=0, heads=0, dest=3, source=0, metrics="logit_margin")
    row = swept.effects().iloc[0]
    assert "cannot reach what is read in 8 of 8 examples" in row["note"] and "(model seeds 1)" in row["note"]
    assert not row["unchanged"] and row["n_models"] == 2


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (lambda swept: swept.effects("acuracy"), r"metric 'acuracy' was not measured.*Did you mean accuracy"),
        (lambda swept: swept.means("loss"), "metric 'loss' was not measured"),
        (lambda swept: swept.effects(against="cleen"), "no condition 'cleen' to compare with; there are: clean"),
        (lambda swept: swept.heat_map(model="other"), "one kind of model, not model='other'; there are: model"),
        (lambda swept: swept.heat_map(layer=7), r"no cell of 'model' has \{'layer': 7\}"),
    ],
)
def test_what_was_not_measured_cannot_be_asked(say, message):
    with pytest.raises(ValueError, match=message):
        say(quiet(HAND, FEW, cut, dest=8))


def test_what_is_printed_counts_cells_that_cannot_reach_what_is_read():
    assert repr(quiet(HAND, FEW, cut, layers=1)) == (
        "Swept(44 cells over edges, 1 left out, 35 that cannot reach what is read; 1 model, 8 examples; accuracy)"
    )
    assert "cannot reach" not in repr(quiet(HAND, FEW, cut, layers=1, dest=8))


def test_a_cell_that_reaches_what_is_read_in_one_model_is_not_counted():
    shallow = Transformer(small().config.model_copy(update={"n_layers": 1}), seed=1).double()
    swept = quiet({"m": [small(), shallow]}, FEW, cut, layers=0, heads=0, dest=3, source=0)
    assert repr(swept) == "Swept(1 cell over edges, 0 left out; 2 models, 8 examples; accuracy)"


def test_what_is_printed_counts_the_examples_that_ran():
    skipped = quiet(small(), padded(), cut, on_missing="skip")
    assert "1 model, 2 of 3 examples;" in repr(skipped)
    assert "1 model, 3 examples;" in repr(quiet(small(), padded(), cut, dest=2))


def test_notes_on_the_whole_sweep_come_first():
    notes = quiet(several(), FEW, cut)
    whole = notes.notes["condition"].isna().tolist()
    assert whole == sorted(whole, reverse=True) and whole[:2] == [True, True] and not whole[-1]


# What the frame says of itself


def study_of(conditions):
    study = Study(n=8, data_seed=3, metrics=["logit_margin"], conditions=conditions)
    return run_study(study, TASK, {"studied": [small()]}, progress=False)[0]


def test_the_frame_says_what_was_measured():
    attrs = quiet(several(), FEW, cut, dest=8, source=3, layers=1, heads=0).frame.attrs
    assert attrs["examples"] == FEW.digest() and attrs["dtypes"] == {"model": ["float64"]}
    assert [said["examples"] for said in attrs["measured"]["model"].values()] == [FEW.digest()] * 2
    assert list(attrs["measured"]["model"]) == ["0", "1"]
    assert list(attrs["conditions"]["model"]) == ["clean", "cut L1H0 8←3"]


def test_the_frame_says_it_as_a_study_does():
    one = cut(Edges(layer=1, head=0, dest="last", source="answer"))
    studied = study_of({"clean": (), str(one): (one,)}).attrs
    swept = quiet(
        {"studied": [small()]}, FEW, cut, "roles", dest="last", source="answer", layers=1, heads=0
    ).frame.attrs  # fmt: skip
    assert swept == studied and list(swept) == list(studied)


def test_what_is_in_force_beside_every_cell_is_in_what_the_frame_says():
    plain, beside = (
        quiet({name: [small()]}, BATCH, zero, "heads", layers=1, heads=0, pos="last", **options).frame
        for name, options in (("m", {}), ("m", {"beside": [cut(Edges(layer=0, dest="last", source="answer"))]}))
    )
    with pytest.raises(ValueError, match=r"the condition 'zero L1H0\.z last' of 'm' is .* in one frame and"):
        joined([plain, beside])


def test_frames_of_sweeps_and_studies_are_joined():
    swept = quiet({"swept": several()}, FEW, zero, "heads", pos="last", metrics="logit_margin").frame
    frame = joined([study_of({"clean": ()}), swept])
    check(frame)
    assert len(frame) == 8 + len(swept) and frame.attrs["examples"] == FEW.digest()


def test_sweeps_of_other_examples_are_not_joined():
    one, other = (quiet(small(), batch, zero, "heads", pos="last").frame for batch in (FEW, BATCH))
    with pytest.raises(ValueError, match="'model', model seed 0, was measured on other examples in one frame"):
        joined([one, other])


def test_models_of_one_kind_with_other_conditions_say_all_of_them():
    shallow = Transformer(small().config.model_copy(update={"n_layers": 1}), seed=5).double()
    swept = quiet([shallow, small()], FEW, zero, "heads", heads=0, pos="last")
    assert list(swept.frame.attrs["conditions"]["model"]) == list(swept.frame["condition"].cat.categories)


# Positions as roles


def test_positions_are_the_same_row_in_every_example():
    masks = with_positions(FEW, position_names([FEW])).roles
    assert all(masks[str(at)].stride(0) == 0 for at in range(9))
    assert masks["3"].tolist() == [[at == 3 for at in range(9)]] * 8


def test_positions_never_name_padding():
    masks = with_positions(padded(), position_names([padded()])).roles
    assert masks["3"].any(1).tolist() == [True, False, True]


def test_roles_that_are_numbers_keep_their_names():
    batch = FEW.with_roles(**{"3": FEW.roles["last"]})
    swept = quiet(HAND, batch, cut, dest=8, layers=1)
    assert swept.places["condition"].iloc[3] == "cut L1H0 position 8←position 3"
    assert swept.places["source"].iloc[3] == 3


def test_names_of_positions_that_are_all_taken_are_refused():
    batch = FEW.with_roles(**{"3": FEW.roles["last"], "position 2": FEW.roles["answer"]})
    with pytest.raises(ValueError, match=r"roles are named \['position 2'\] as a sweep names positions"):
        quiet(HAND, batch, cut)


def test_positions_are_called_by_what_stands_there_in_every_example():
    batch = Batch(
        torch.tensor([[5, 1], [5, 2]]), torch.tensor([[-100, 1], [-100, 1]]), vocabulary=tuple("abcdef"),
        roles={"end": torch.tensor([[False, True]] * 2)},
    )  # fmt: skip
    assert described(batch) == {0: "0 “f”", 1: "1 end"}
    assert described(FEW)[8] == "8 last" and described(Batch(batch.tokens, batch.labels))[1] == "1"


# What cannot be swept


@pytest.mark.parametrize(
    ("kind", "message", "options"),
    [
        (TypeError, r"over=\['edges', 'heads'\]; a sweep is over one of: 'edges'", {"over": ["edges", "heads"]}),
        (ValueError, "no sweep over='edge'. There are: edges, roles, heads, stream. Did you mean", {"over": "edge"}),
        (TypeError, "no sweep of 'cut'; hand over a function", {"operation": "cut"}),
        (TypeError, "no sweep of <function path", {"operation": path}),
        (TypeError, "no sweep of <function custom", {"operation": custom}),
        (ValueError, "cut does not act on heads, but over='edges' or over='roles'; .*: .*mean", {"over": "heads"}),
        (ValueError, "mean does not act on edges, but over='heads' or over='stream'", {"operation": mean}),
        (TypeError, "scale needs by=", {"operation": scale}),
        (ValueError, "a sweep of scale over edges: an attention weight", {"operation": scale, "by": -1.0}),
        (ValueError, "a sweep of cut over edges: empty Input should be", {"empty": "nothing"}),
        (TypeError, "neither a sweep over edges nor cut takes layer=.*Did you mean layers", {"layer": 1}),
        (TypeError, "pos= narrows no sweep over edges; what does: layers, heads, dest, source", {"pos": "last"}),
        (TypeError, "dest= narrows no sweep over heads", {"operation": zero, "over": "heads", "dest": 8}),
        (TypeError, "heads= narrows no sweep over stream", {"operation": zero, "over": "stream", "heads": 0}),
        (TypeError, "its cells have no source", {"operation": shuffle, "seed": 0, "source": 3}),
        (KeyError, "no layer 2; there are: 0 to 1", {"layers": [0, 2]}),
        (KeyError, "no head 2; there are: 0 to 1", {"heads": 2}),
        (KeyError, "no position 9; there are: 0 to 8", {"dest": 9}),
        (KeyError, "no position -1; there are: 0 to 8", {"source": -1}),
        (ValueError, r"the layers asked for are \[\]; name at least one", {"layers": []}),
        (ValueError, r"the heads asked for are \[0, 0\]; name at least one, each once", {"heads": [0, 0]}),
        (TypeError, r"dest='last': over='edges' takes positions by number.*it stands at dest=\[8\]", {"dest": "last"}),
        (TypeError, "a sweep over roles names dest by role, not 8", {"over": "roles", "dest": 8}),
        (KeyError, "no role 'lst'.*Did you mean last", {"over": "roles", "dest": "lst"}),
        (KeyError, "no part 'zz'; there are: q, k, v, z, result", {"operation": zero, "over": "heads", "part": "zz"}),
        (KeyError, "no position 9", {"operation": zero, "over": "heads", "pos": 9}),
        (KeyError, "no role 'lst'", {"operation": zero, "over": "heads", "pos": "lst"}),
        (KeyError, "no metric 'acuracy'.*Did you mean accuracy", {"metrics": "acuracy"}),
        (KeyError, "no part 'resid'; there are: resid_pre, .*, resid_post. Did you mean resid_p",
         {"operation": zero, "over": "stream", "part": "resid"}),
        (KeyError, "no head 'all'; there are: 0 to 1; leave heads= out for each, 'together' for all", {"heads": "all"}),
        (KeyError, "name a metric or more, of: accuracy", {"metrics": ()}),
        (TypeError, "metrics: <built-in function len> is no name; name one or several.*accuracy", {"metrics": len}),
        (TypeError, r"resample needs donor= and seed=, as sweep\(models, batch, resample, 'heads', donor='other', "
         r"seed=0, donors=\{'other': batch\}\)", {"operation": resample, "over": "heads"}),
        (TypeError, r"resample needs seed=, .* donor='b', seed=0, donors=\{'b': batch\}\)",
         {"operation": resample, "over": "heads", "donor": "b"}),
        (KeyError, r"no donor 'other' was given; say donors=\{'other': batch\}",
         {"operation": patch, "donor": "other", "align": "role"}),
        (TypeError, "nothing in this sweep names 'other'", {"donors": {"other": CORRUPT}}),
        (TypeError, "donors come by name", {"donors": CORRUPT}),
        (TypeError, "beside is a list of interventions", {"beside": cut(Edges(layer=0, dest="last"))}),
        (ValueError, "on_missing='drop'; there are: 'raise', 'skip'", {"on_missing": "drop"}),
        (ValueError, "chunk_size=0", {"chunk_size": 0}),
        (ValueError, "has no cell here; no example sees such an edge", {"dest": 0, "source": 5}),
        (ValueError, "has no cell here; 4 edits were left out", {"dest": 0, "source": 0}),
        (TypeError, "the batch is a Tensor", {"batch": FEW.tokens}),
        (TypeError, r"'model' holds a str; read the checkpoint: load\('runs/one'\)", {"models": "runs/one"}),
        (TypeError, r"'a' holds a PosixPath; .*load\('runs/one'\)", {"models": {"a": [Path("runs/one")]}}),
        (TypeError, r"'model' holds a Linear.*hand over wrap\(model\)", {"models": Linear(2, 2)}),
        (TypeError, r"'a' holds a Linear.*hand over wrap\(model\)", {"models": {"a": Linear(2, 2)}}),
        (TypeError, "models come as lists by label", {"models": {"a": small()}}),
        (ValueError, "no trained models to study", {"models": []}),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_in_words(kind, message, options):
    given = {"models": small(), "batch": FEW, "operation": cut, "over": "edges"} | options
    with pytest.raises(kind, match=message):
        quiet(given.pop("models"), given.pop("batch"), given.pop("operation"), given.pop("over"), **given)


def test_every_operation_but_paths_can_be_swept():
    functions = {name for name, home in workbench.PUBLIC.items() if home == "interventions"}
    assert set(OPERATIONS) == functions - {"Intervention", "path", "custom"}
    assert all(acted_on(getattr(workbench, name)) for name in OPERATIONS)


def test_a_metric_without_a_mean_is_refused(monkeypatch):
    monkeypatch.setitem(METRICS, "endless", lambda logits, batch: torch.full((len(logits),), torch.inf))
    with pytest.raises(ValueError, match="metric 'endless' is infinite"):
        quiet(HAND, FEW, cut, dest=8, metrics="endless")


# The picture


def panels(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}


def marks(axes, label):
    return {
        (round(one.get_y() + 0.5), round(one.get_x() + 0.5)) for one in axes.patches if one.get_label() == label
    }


def test_edges_are_drawn_source_by_dest_in_a_panel_for_each_head():
    figure = quiet(several(), FEW, cut, metrics="logit_margin").heat_map()
    there = panels(figure)
    assert list(there) == [f"layer {layer}, head {head}" for layer in range(2) for head in range(2)]
    axes = there["layer 1, head 0"]
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "8 last"
    assert axes.get_xlabel() == "destination (query)" and axes.get_ylabel() == "source (key)"


def test_squares_that_change_no_logit_are_dotted_and_the_figure_says_so():
    figure = quiet(HAND, FEW, cut).heat_map()
    dotted = marks(panels(figure)["layer 1, head 0"], "unchanged")
    assert {(source, dest) for dest in range(1, 8) for source in range(dest + 1)} <= dotted
    assert not any((at, 8) in dotted for at in (7,) if FEW.roles["answer"][:, 7].any())
    assert "Dotted: the logits stay the same bit for bit." in figure.get_supxlabel()


def test_edges_left_out_are_not_crossed_as_hidden_ones_are():
    axes = panels(quiet(HAND, FEW, cut).heat_map())["layer 0, head 0"]
    (crosses,) = (one for one in axes.collections if one.get_label() == "hidden")
    middles = {tuple(path.vertices.mean(0).round().astype(int)) for path in crosses.get_paths()}
    assert middles == {(dest, source) for dest in range(9) for source in range(dest + 1, 9)}
    assert "–" in [text.get_text() for text in axes.texts]


def test_a_dash_says_that_a_square_was_not_measured_without_a_stroke_that_would_hide_it():
    axes = panels(quiet(HAND, FEW, cut).heat_map())["layer 0, head 0"]
    (dash,) = (text for text in axes.texts if text.get_text() == "–")
    assert not dash.get_path_effects() and dash.get_color() == "black" and dash.get_fontsize() > 10


def rows_of(figure):
    """Title → the height at which its panel stands, from the top: 0, 1, ..."""
    there = {title: round(axes.get_position().y0, 2) for title, axes in panels(figure).items()}
    heights = sorted(set(there.values()), reverse=True)
    return {title: heights.index(height) for title, height in there.items()}


def test_every_layer_begins_a_row_of_panels():
    model = small(heads=4)
    rows = rows_of(quiet(model, FEW, cut, dest=8, source=[0, 1], metrics="logit_margin").heat_map())
    assert rows == {f"layer {layer}, head {head}": layer for layer in range(2) for head in range(4)}


def test_many_heads_take_several_rows_a_layer():
    model = small(heads=8)
    rows = rows_of(quiet(model, FEW, cut, dest=8, source=[0, 1], metrics="logit_margin").heat_map())
    assert rows == {f"layer {layer}, head {head}": 2 * layer + head // 4 for layer in range(2) for head in range(8)}


@pytest.mark.parametrize(
    ("options", "title"),
    [
        ({"stack": "encoder"}, "encoder layer 0, head 0"),
        ({"stack": "decoder"}, "decoder layer 0, head 0"),
        ({"kind": "cross"}, "cross layer 0, head 0"),
    ],
)
def test_panels_name_the_part_of_a_model_with_several(options, title):
    model = kind_of("encoder–decoder")
    swept = quiet(model, batch_for(model.config), cut, layers=0, heads=0, metrics="log_prob", **options)
    assert list(panels(swept.heat_map())) == [title]


def test_what_a_figure_says_of_hatches_and_models_cannot_be_taken_for_more():
    said = quiet(several(), FEW, cut, metrics="logit_margin").heat_map().get_supxlabel().replace("\n", " ")
    assert "mean of 2 models. Dots: one a model," in said and "trained" not in said
    assert "Hatched: below 0 by more than 5% of the scale's end." in said
    assert "the “token” or else the role" in said


def test_a_figure_says_how_many_examples_ran():
    said = quiet(small(), padded(), cut, on_missing="skip").heat_map().get_supxlabel().replace("\n", " ")
    assert said.startswith("2 of 3 examples ran; 1 lacked what some cell acts on (cut L0H0 3←0: position 3 is")
    assert "examples ran" not in quiet(small(), padded(), cut, dest=2).heat_map().get_supxlabel()


def test_the_label_of_the_colour_bar_stays_inside_a_small_figure():
    options = {"donor": "other", "seed": 0, "donors": {"other": CORRUPT}, "metrics": "logit_margin"}
    swept = quiet(several(), BATCH, resample, "heads", layers=1, pos="last", **options)
    figure = swept.heat_map(against="resample L1H0.z last from other seed 0")
    box = figure.axes[-1].yaxis.label.get_window_extent(FigureCanvasAgg(figure).get_renderer())
    assert box.y0 >= 0 and box.y1 <= figure.bbox.height and box.x1 <= figure.bbox.width


@pytest.mark.parametrize(
    ("operation", "over", "options", "titles"),
    [
        (zero, "heads", {"pos": ["last", 3]}, ["z, last", "z, position 3"]),
        (zero, "heads", {}, ["z, every position"]),
        (zero, "stream", {"pos": [0, 8], "part": ["attn_out", "resid_mid"]}, ["attn_out", "resid_mid"]),
        (zero, "stream", {"pos": "last"}, ["last"]),
        (cut, "roles", {"dest": "last", "source": "answer", "layers": 1}, ["layer 1, head 0", "layer 1, head 1"]),
        (cut, "roles", {"dest": "last", "source": "answer", "layers": 0, "heads": "together"}, ["layer 0, every head"]),
        (shuffle, "edges", {"seed": 0, "layers": 1, "heads": 0}, ["layer 1, head 0"]),
    ],
)  # fmt: skip
def test_every_kind_of_sweep_has_its_panels(operation, over, options, titles):
    swept = quiet(small(), FEW, operation, over, metrics="logit_margin", **options)
    assert list(panels(swept.heat_map())) == titles


def test_some_cells_can_be_drawn_alone():
    swept = quiet(small(), FEW, cut, metrics="logit_margin")
    assert list(panels(swept.heat_map(layer=1, head=[1]))) == ["layer 1, head 1"]
    with pytest.raises(TypeError, match="part= chooses no cells over edges: layer, head, dest, source do"):
        swept.heat_map(part="z")


def test_a_figure_of_two_kinds_of_model_is_of_the_one_named():
    swept = quiet({"a": several()[:1], "b": several()[1:]}, FEW, zero, "heads", metrics="logit_margin")
    with pytest.raises(ValueError, match="one kind of model, not model=None; there are: a, b"):
        swept.heat_map()
    with pytest.raises(ValueError, match="say model='a'"):
        swept.heat_map()
    assert "One model." in swept.heat_map(model="b").get_supxlabel()


def test_more_panels_than_fit_are_refused():
    model = Transformer(ModelConfig(d_vocab=16, n_ctx=9, d_model=48, n_layers=1, n_heads=48, d_head=1), seed=0)
    swept = quiet(model, FEW, cut, dest=8, source=[0, 1], metrics="logit_margin")
    with pytest.raises(ValueError, match=r"48 panels, one for each layer and head, do not fit; .*layer= or head="):
        swept.heat_map()


def test_a_sweep_draws_nothing_until_it_is_asked():
    code = "import sys, workbench; workbench.sweep; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
