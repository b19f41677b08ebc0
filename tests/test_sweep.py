"""Sweeps: every cell is what `run` gives by itself, and none is missing without being counted."""

import numpy as np
import pytest
import torch
from models_of import batch_for, kind_of
from small import BATCH, CORRUPT, TASK, small
from sweeps import FEW, HAND, padded, quiet, several

from workbench.batch import Batch
from workbench.conditions import corrupted
from workbench.interventions import (
    add,
    cut,
    freeze,
    keep_only,
    mean,
    patch,
    resample,
    scale,
    shuffle,
    uniform,
    zero,
)
from workbench.locations import Edges, Heads, Stream
from workbench.metrics import METRICS
from workbench.models.config import Mask, ModelConfig
from workbench.models.transformer import Transformer
from workbench.position_roles import position_names, with_positions
from workbench.running import MissingExamples, run
from workbench.schema import check

# What is swept


def test_a_sweep_of_the_lookup_model_has_88_edges_and_counts_the_two_left_out():
    swept = quiet(HAND, FEW, cut)
    assert len(swept.places) == len(swept.effects()) == 88
    assert swept.left_out["condition"].tolist() == ["cut L0H0 0←0", "cut L1H0 0←0"]
    (note,) = swept.notes.loc[swept.notes["condition"].isna(), "note"]
    assert note.startswith("2 of 90 cells were left out (cut L0H0 0←0, cut L1H0 0←0)") and "empty='no-update'" in note


def test_only_the_edges_that_the_handmade_circuit_uses_matter():
    drawn = TASK.sample(60, seed=3)
    digits = drawn.tokens[:, 1::2].sort(1).values
    batch = drawn.select((digits.diff(dim=1) > 0).all(1))  # no digit twice: a wrong one is seen to be wrong
    asked = batch.roles["match"].int().argmax(1).tolist()
    assert {0, 2, 4, 6} == set(asked)
    table = quiet(HAND, batch, cut).effects().set_index(["layer", "dest", "source"])["estimate"]
    # The letter before each digit is carried to it, and the last position reads the digit. Of the last pair the letter
    # is not needed: where none matches, the model says the latest digit that it sees.
    expected = {(1, 8, at + 1): -asked.count(at) / len(asked) for at in (0, 2, 4, 6)}
    expected |= {(0, at + 1, at): -asked.count(at) / len(asked) for at in (0, 2, 4)}
    assert table[table != 0].to_dict() == pytest.approx(expected)


def test_a_row_may_be_emptied_where_the_caller_says_what_becomes_of_it():
    swept = quiet(HAND, FEW, cut, empty="no-update")
    assert len(swept.places) == 90 and swept.left_out.empty
    assert not swept.notes["condition"].isna().any()


def test_a_mask_gives_fewer_edges():
    model = Transformer(ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=1, n_heads=2, masks=[Mask(window=2)]), 0)
    swept = quiet(model, FEW, cut)
    assert len(swept.places) == 2 * 8 * 2
    assert (swept.places["dest"] - swept.places["source"]).isin([0, 1]).all()


def test_a_sweep_can_be_narrowed():
    places = quiet(small(), FEW, cut, layers=1, heads=[1], dest=8, source=range(3)).places
    assert places[["layer", "head", "dest", "source"]].values.tolist() == [[1, 1, 8, 0], [1, 1, 8, 1], [1, 1, 8, 2]]


def test_heads_may_be_edited_together():
    swept = quiet(small(), FEW, cut, heads="together", dest=8, source=[0, 1], metrics="logit_margin")
    assert swept.places["head"].tolist() == ["every"] * 4
    assert swept.places["condition"].iloc[0] == "cut L0 8←0"


def test_heads_are_swept_by_part_and_role():
    places = quiet(small(), FEW, zero, "heads", part=["q", "z"], pos=["last", "answer"]).places
    assert len(places) == 2 * 2 * 2 * 2
    assert set(zip(places["part"], places["pos"], strict=True)) == {
        (part, pos) for part in ("q", "z") for pos in ("last", "answer")
    }


def test_shared_keys_are_swept_as_often_as_they_are_there():
    model = Transformer(ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=1, n_heads=4, n_kv_heads=2), seed=0)
    assert len(quiet(model, FEW, zero, "heads", part="k").places) == 2
    assert len(quiet(model, FEW, zero, "heads", part="q").places) == 4


def test_the_stream_is_swept_by_layer_site_and_position():
    places = quiet(small(), FEW, zero, "stream", pos=["last", 0]).places
    assert places["part"].drop_duplicates().tolist() == ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"]
    assert len(places) == 2 * 5 * 2 and places["pos"].drop_duplicates().tolist() == ["last", 0]


def test_sites_that_a_model_lacks_are_not_swept_unless_asked_for():
    places = quiet(HAND, FEW, zero, "stream", pos="last").places
    assert "mlp_out" not in set(places["part"])
    with pytest.raises(KeyError, match="no site 'mlp_out'"):
        quiet(HAND, FEW, zero, "stream", part="mlp_out", pos="last")


def test_without_a_position_a_cell_is_every_position():
    places = quiet(small(), FEW, zero, "heads").places
    assert places["pos"].tolist() == ["every"] * 4 and places["condition"].iloc[0] == "zero L0H0.z every"


def test_pairs_of_roles_without_an_edge_are_counted():
    swept = quiet(small(), FEW, zero, "roles", dest=["answer", "last"], source=["last", "match"])
    assert len(swept.places) == 2 * 2 * 3
    (note,) = swept.notes.loc[swept.notes["condition"].isna(), "note"]
    assert note == "2 pairs of roles have no edge in any example: L0 answer←last, L1 answer←last"


def test_a_relation_can_be_a_source():
    places = quiet(small(), FEW, cut, "roles", dest="digits", source="previous").places
    assert places["condition"].iloc[0] == "cut L0H0 digits←previous"


def test_keeping_only_what_some_row_does_not_see_is_left_out():
    swept = quiet(small(), FEW, keep_only, "roles", dest="letters", source=["digits", "letters"], layers=0)
    assert swept.places["source"].tolist() == ["letters", "letters"]
    assert swept.left_out["source"].tolist() == ["digits", "digits"]


def test_shuffle_sweeps_rows():
    swept = quiet(small(), FEW, shuffle, seed=1, metrics="logit_margin")
    assert swept.places[["dest", "source"]].values.tolist() == [[at, "every"] for at in range(9)] * 4


# Each cell is what `run` gives

CELLS = {
    "cut": (cut, "edges", {"dest": 8}),
    "zero": (zero, "edges", {"dest": 8, "source": [3]}),
    "scale": (scale, "edges", {"dest": 8, "by": 2.0}),
    "uniform": (uniform, "edges", {"dest": [7, 8], "source": [3, 5]}),
    "keep only": (keep_only, "edges", {"dest": 8, "source": [3, 5]}),
    "shuffle": (shuffle, "edges", {"dest": 8, "seed": 3}),
    "patch edges": (patch, "edges", {"dest": 8, "source": [1], "donor": "other", "align": "position"}),
    "patch edges by role": (patch, "edges", {"dest": 8, "source": [1], "donor": "other", "align": "role"}),
    "roles": (cut, "roles", {"dest": "last", "source": ["answer", "other"]}),
    "heads": (zero, "heads", {"pos": ["last", 3]}),
    "mean": (mean, "heads", {"pos": "answer", "donor": "other"}),
    "resample": (resample, "heads", {"pos": "last", "donor": "other", "seed": 0}),
    "add": (add, "stream", {"pos": "answer", "donor": "other", "align": "role", "part": "attn_out"}),
    "patch": (patch, "stream", {"pos": "last", "donor": "other", "align": "role"}),
    "freeze": (freeze, "heads", {"pos": "last", "beside": corrupted("other")}),
}


@pytest.mark.parametrize("name", CELLS)
def test_each_cell_is_what_run_gives_by_itself(name):
    operation, over, options = CELLS[name]
    model, batch = small(), BATCH.select(slice(0, 6))
    corrupt = CORRUPT.select(slice(0, 6))
    donors = {"other": corrupt} if "donor" in options or "beside" in options else {}
    swept = quiet(model, batch, operation, over, metrics=["logit_margin", "accuracy"], donors=donors, **options)
    names = position_names([batch, *donors.values()])
    batch, donors = with_positions(batch, names), {key: with_positions(one, names) for key, one in donors.items()}
    arguments = {key: value for key, value in options.items() if key in ("by", "seed", "donor", "align")}
    kind = {"heads": Heads, "stream": Stream}.get(over, Edges)
    for _, place in swept.places.iterrows():
        where = {key: _named(place[key]) for key in place.index if key not in ("condition", "layer", "head")}
        where |= {key: int(place[key]) for key in ("layer", "head") if key in place.index}
        one = operation(kind(**where), **arguments)
        out = run(model, batch, [*options.get("beside", ()), one], donors=donors, positions="read")
        cell = swept.frame[swept.frame["condition"] == str(one)]
        for metric in ("logit_margin", "accuracy"):
            alone = METRICS[metric](out.logits, out.batch).numpy()
            assert cell[metric].to_numpy() == pytest.approx(alone, abs=1e-6)


def _named(value):
    return None if value == "every" else str(value)


def test_the_first_condition_is_the_clean_run():
    swept = quiet(small(), FEW, cut, dest=8, metrics="logit_margin")
    clean = run(small(), FEW, positions="read")
    own = swept.frame[swept.frame["condition"] == "clean"]["logit_margin"].to_numpy()
    assert swept.frame["condition"].cat.categories[0] == "clean"
    assert own == pytest.approx(METRICS["logit_margin"](clean.logits, FEW).numpy(), abs=1e-6)


def test_what_is_in_force_beside_every_cell_has_a_condition_of_its_own():
    donors = {"other": CORRUPT}
    swept = quiet(small(), BATCH, freeze, "stream", part="resid_post", layers=1, metrics="logit_margin",
                  donors=donors, beside=corrupted("other"))  # fmt: skip
    values = swept.frame.groupby("condition", observed=True)["logit_margin"].mean()
    corrupt = run(small(), BATCH, corrupted("other"), donors=donors, positions="read")
    assert values["beside"] == pytest.approx(float(METRICS["logit_margin"](corrupt.logits, BATCH).mean()), abs=1e-6)
    assert swept.effects().iloc[0]["estimate"] == pytest.approx(0, abs=1e-6)
    change = values["clean"] - values["beside"]
    assert swept.effects(against="beside").iloc[0]["estimate"] == pytest.approx(change, abs=1e-6)


def test_cells_that_go_through_hooks_are_counted_and_give_the_same():
    fast, plain = (
        quiet(small(), FEW, cut, layers=1, dest=8, metrics="logit_margin", engine=name) for name in ("auto", "hooks")
    )
    assert plain.frame["logit_margin"].to_numpy() == pytest.approx(fast.frame["logit_margin"].to_numpy(), abs=1e-6)
    (note,) = plain.notes.loc[plain.notes["condition"].isna(), "note"]
    assert note.startswith("18 of 18 cells went through hooks")
    assert not fast.notes["condition"].isna().any()


# Several models


def test_models_of_other_sizes_have_cells_of_their_own():
    shallow = Transformer(small().config.model_copy(update={"n_layers": 1}), seed=5).double()
    swept = quiet({"two": [small()], "one": [shallow]}, FEW, cut, dest=8, metrics="logit_margin")
    check(swept.frame)
    effects = swept.effects()
    assert effects["model"].value_counts().to_dict() == {"two": 4 * 9, "one": 2 * 9}
    assert len(swept.places) == 4 * 9


def test_each_model_of_several_is_measured_as_by_itself():
    models = several()
    together = quiet(models, FEW, cut, dest=8, metrics="logit_margin")
    for seed, model in enumerate(models):
        alone = quiet(model, FEW, cut, dest=8, metrics="logit_margin")
        own = together.frame[together.frame["model_seed"] == seed]
        assert np.array_equal(own["logit_margin"], alone.frame["logit_margin"])


def test_a_model_under_two_numbers_is_refused():
    with pytest.raises(ValueError, match="have the same weights"):
        quiet([small(), small()], FEW, cut)


# Examples that lack something


def test_an_example_that_lacks_an_edge_raises():
    with pytest.raises(MissingExamples, match=r"(?s)sweep over edges, 'model', model seed 0: .*on_missing='skip'"):
        quiet(small(), padded(), cut)


def test_an_example_that_lacks_an_edge_is_left_out_of_every_condition_and_counted():
    swept = quiet(small(), padded(), cut, on_missing="skip")
    check(swept.frame)
    assert swept.frame.groupby("condition", observed=True)["skipped"].count().eq(1).all()
    row = swept.effects().iloc[0]
    assert (row["planned"], row["run"], row["skipped"]) == (3, 2, 1)


def test_edges_that_every_example_sees_need_nothing_skipped():
    assert quiet(small(), padded(), cut, dest=2).effects()["skipped"].eq(0).all()


def test_an_example_that_lacks_a_role_raises():
    batch = FEW.with_roles(some=FEW.roles["last"] & (torch.arange(8) > 0)[:, None])
    with pytest.raises(MissingExamples, match="role 'some' is empty in 1 of 8 examples"):
        quiet(small(), batch, zero, "heads", pos="some")
    assert quiet(small(), batch, zero, "heads", pos="some", on_missing="skip").effects()["run"].eq(7).all()


def test_chunks_of_examples_change_nothing():
    whole, chunked = (
        quiet(small(), padded(), cut, on_missing="skip", metrics="logit_margin", chunk_size=size) for size in (4096, 2)
    )
    assert whole.frame["logit_margin"].to_numpy() == pytest.approx(
        chunked.frame["logit_margin"].to_numpy(), abs=1e-6, nan_ok=True
    )
    assert whole.frame["skipped"].tolist() == chunked.frame["skipped"].tolist()


def left_padded():
    """Two examples of 3 and 2 positions; the second begins with padding, so that its row 1 sees position 1 alone."""
    valid = torch.tensor([[True, True, True], [False, True, True]])
    tokens = torch.tensor([[1, 2, 3], [0, 2, 3]])
    return Batch(tokens, torch.where(valid, tokens, -100), valid)


def test_an_edge_that_is_all_that_a_skipped_example_has_in_a_row_is_left_out_too():
    swept = quiet(small(), left_padded(), cut, layers=0, heads=0, on_missing="skip")
    assert swept.frame.loc[swept.frame["skipped"].notna(), "example"].unique().tolist() == [1]
    assert swept.left_out[["dest", "source"]].values.tolist() == [[0, 0], [1, 1]]
    assert swept.places[["dest", "source"]].values.tolist() == [[1, 0], [2, 0], [2, 1], [2, 2]]


def test_every_example_is_skipped_for_what_it_lacks_first():
    skipped = quiet(small(), padded(), cut, on_missing="skip").frame["skipped"].dropna()
    assert skipped.unique().tolist() == ["cut L0H0 3←0: position 3 is padding"]


def test_what_skipped_examples_lacked_is_noted():
    swept = quiet(small(), padded(), scale, by=2.0, source=0, on_missing="skip")
    (note,) = swept.notes.loc[swept.notes["condition"].isna(), "note"]
    assert note == "2 of 3 examples ran; 1 lacked what some cell acts on (scale L0H0 3←0 by 2: position 3 is padding)"


def test_the_note_on_skipped_examples_counts_what_most_lacked():
    batch = FEW.with_roles(
        some=FEW.roles["last"] & (torch.arange(8) > 0)[:, None], few=FEW.roles["last"] & (torch.arange(8) < 5)[:, None]
    )
    swept = quiet(small(), batch, zero, "heads", pos=["some", "few"], on_missing="skip")
    (note,) = swept.notes.loc[swept.notes["condition"].isna(), "note"]
    assert note == (
        "4 of 8 examples ran; 4 lacked what some cell acts on (3 of them, zero L0H0.z few: role 'few' is empty)"
    )


def test_a_position_that_some_example_pads_is_called_so_and_the_others_are_named():
    said = r"position 3 is padding in 1 of 3 examples .*sweep without padding: dest=\[0, 1, 2\] and source=\[0, 1, 2\]"
    with pytest.raises(MissingExamples, match=said):
        quiet(small(), padded(), cut)
    assert quiet(small(), padded(), cut, dest=[0, 1, 2], source=[0, 1, 2]).effects()["skipped"].eq(0).all()
    with pytest.raises(MissingExamples, match=r"sweep without padding: pos=\['first', 2\]"):
        quiet(small(), padded(), zero, "heads", pos=["first", 2, 3])


@pytest.mark.parametrize("on_missing", ["raise", "skip"])
def test_cells_that_exclude_each_other_are_named(on_missing):
    said = (
        r"these cells exclude each other: of 60 examples 'cut L0H. answer←other' has nothing to act on in 30, "
        r"'cut L0H. other←answer' has nothing to act on in 30; name dest= and source="
    )
    with pytest.raises(MissingExamples, match=said):
        quiet(small(), TASK.sample(60, seed=3), cut, "roles", on_missing=on_missing)


def test_roles_of_which_no_example_has_all_are_named_with_what_lacks_them():
    at = torch.arange(8) % 3
    roles = {f"not {one}": FEW.roles["last"] & (at != one)[:, None] for one in range(3)}
    said = r"no example has what all cells act on: of 8 examples .* in 3.*name pos="
    with pytest.raises(MissingExamples, match=said):
        quiet(small(), FEW.with_roles(**roles), zero, "heads", pos=list(roles), on_missing="skip")


def test_resampling_padded_batches_names_what_has_one_size():
    options = {"donor": "other", "seed": 0, "donors": {"other": padded()}}
    said = r"resample what has one size in every example: pos=\['first'\] or pos=\[0, 1, 2\]"
    with pytest.raises(ValueError, match=said) as caught:
        quiet(small(), padded(), resample, "stream", part="resid_post", **options)
    assert "align=" not in str(caught.value)
    for pos in ("first", [0, 1, 2]):
        assert len(quiet(small(), padded(), resample, "stream", part="resid_post", pos=pos, **options).places)


# Models of two stacks


@pytest.mark.parametrize(
    ("options", "cells"),
    [
        ({"stack": "decoder"}, 2 * 2 * (6 * 7 // 2 - 1)),
        ({"stack": "encoder"}, 2 * 3 * 5 * 5),
        ({"kind": "cross"}, 2 * 2 * 6 * 5),
    ],
)
def test_a_part_of_a_model_with_several_is_swept(options, cells):
    model = kind_of("encoder–decoder")
    batch = batch_for(model.config)
    swept = quiet(model, batch, cut, layers=range(2), metrics="log_prob", **options)
    assert len(swept.places) == cells
    label = swept.places["condition"].iloc[-1]
    place = label.removeprefix("cut ").split()[0].split(".")[0]
    assert place == ("cross" if "kind" in options else options["stack"])


def test_a_model_with_several_parts_needs_one_to_be_named():
    model = kind_of("encoder–decoder")
    with pytest.raises(KeyError, match="say which part of this model: stack='encoder', stack='decoder', kind='cross'"):
        quiet(model, batch_for(model.config), cut)


def test_cross_attention_writes_into_the_stream_too():
    model = kind_of("encoder–decoder")
    places = quiet(model, batch_for(model.config), zero, "stream", kind="cross", metrics="log_prob").places
    assert places["part"].drop_duplicates().tolist() == ["attn_out", "resid_mid"]


def test_a_model_of_one_stack_has_no_encoder():
    with pytest.raises(KeyError, match="one stack of layers and no encoder part"):
        quiet(small(), FEW, cut, stack="encoder")
