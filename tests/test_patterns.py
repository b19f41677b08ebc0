"""Recorded weights: mean weights by role and relation against explicit loops, and relations derived from them."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from small import BATCH, small

from workbench import (
    Edges,
    Mask,
    MissingExamples,
    ModelConfig,
    Transformer,
    control_of,
    derive,
    edge_weights,
    pattern_table,
    record,
    top_source,
)
from workbench.batch import UNREAD, Batch

COLUMNS = ["model", "layer", "head", "dest", "source", "weight_per_edge", "mass_per_dest", "n_edges", "n_dests",
           "n_examples"]  # fmt: skip


def reseeded(model, seed):
    return Transformer(model.config, seed=seed).double()


def padded():
    """Two examples, the second with two positions of padding; `some` is empty in the first, `ahead` partly hidden."""
    valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    some = torch.tensor([[False] * 5, [True, False, True, False, False]])
    ahead = torch.zeros(2, 5, 5, dtype=torch.bool)
    ahead[0, 1, [0, 3]] = ahead[0, 2, 4] = ahead[1, 2, 1] = True
    labels = torch.full((2, 5), UNREAD)
    labels[:, 0] = 1
    return Batch(torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]]), labels, valid, {"some": some}, {"ahead": ahead})


def listed(batch, dest, source):
    """Per example, the visible edges that dest and source name, one by one (causal; padding is never seen)."""
    out = []
    for b in range(len(batch)):
        found = []
        for row in range(batch.tokens.shape[1]):
            for k in range(row + 1):
                asked = bool(batch.roles[dest][b, row]) if dest else bool(batch.valid[b, row])
                if source is None:
                    asked &= bool(batch.valid[b, k])
                elif source in batch.relations:
                    asked &= bool(batch.relations[source][b, row, k])
                else:
                    asked &= bool(batch.roles[source][b, k])
                if asked and batch.valid[b, k]:
                    found.append((row, k))
        out.append(found)
    return out


def by_loop(model, batch, layer, head, dest, source):
    pattern = record(model, batch, [("pattern", layer)])["pattern", layer]
    edges = listed(batch, dest, source)
    weights = [float(pattern[b, head, row, k]) for b, found in enumerate(edges) for row, k in found]
    dests = {(b, row) for b, found in enumerate(edges) for row, _ in found}
    n_edges, n_dests = len(weights), len(dests)
    return {
        "weight_per_edge": sum(weights) / n_edges if n_edges else math.nan,
        "mass_per_dest": sum(weights) / n_dests if n_dests else math.nan,
        "n_edges": n_edges, "n_dests": n_dests, "n_examples": sum(map(bool, edges)),
    }  # fmt: skip


# The table


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    "pair", [("digits", "letters"), ("digits", "previous"), (None, "previous"), ("last", "digits"), (None, "answer"),
             ("answer", "previous"), ("match", "answer")],
)  # fmt: skip
def test_the_table_is_what_loops_over_edges_give(heads, pair):
    model = small(heads=heads)
    table = pattern_table(model, BATCH, [pair])
    assert list(table.columns) == COLUMNS
    assert list(zip(table["layer"], table["head"], strict=True)) == [(la, h) for la in (0, 1) for h in range(heads)]
    for row in table.to_dict("records"):
        expected = by_loop(model, BATCH, row["layer"], row["head"], *pair)
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-10, nan_ok=True)


@pytest.mark.parametrize("pair", [(None, "some"), ("some", "some"), (None, "ahead"), ("some", "ahead")])
def test_padding_and_edges_that_the_mask_hides_do_not_count(pair):
    model, batch = small(n_ctx=5), padded()
    for row in pattern_table(model, batch, [pair]).to_dict("records"):
        expected = by_loop(model, batch, row["layer"], row["head"], *pair)
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-10)
    ahead = pattern_table(model, batch, [(None, "ahead")]).iloc[0]
    assert (ahead["n_edges"], ahead["n_dests"], ahead["n_examples"]) == (2, 2, 2)


def test_a_pair_without_a_visible_edge_has_a_row_with_counts_of_0():
    row = pattern_table(small(), BATCH, [("match", "answer")]).iloc[0]
    assert row[["n_edges", "n_dests", "n_examples"]].tolist() == [0, 0, 0]
    assert math.isnan(row["weight_per_edge"])
    assert math.isnan(row["mass_per_dest"])


def test_a_relation_says_what_a_product_of_roles_cannot():
    """Four digits see one letter, two, three and four; only one of these ten edges a digit's own."""
    table = pattern_table(small(heads=1), BATCH, [("digits", "previous"), ("digits", "letters")]).query("layer == 0")
    own, product = table.to_dict("records")
    assert (own["n_edges"], product["n_edges"]) == (4 * len(BATCH), 10 * len(BATCH))
    assert (own["n_dests"], product["n_dests"]) == (4 * len(BATCH),) * 2
    assert own["weight_per_edge"] == own["mass_per_dest"]
    assert product["mass_per_dest"] == pytest.approx(product["weight_per_edge"] * 10 / 4)
    assert abs(own["weight_per_edge"] - product["weight_per_edge"]) > 1e-3


def test_a_whole_row_holds_a_mass_of_1():
    whole = BATCH.with_roles(whole=torch.ones_like(BATCH.valid))
    assert pattern_table(small(), whole, [("last", "whole")])["mass_per_dest"].tolist() == pytest.approx([1.0] * 4)


def test_by_default_the_table_has_every_pair_of_roles_and_every_relation():
    table = pattern_table(small(heads=1), BATCH)
    pairs = set(zip(table["dest"], table["source"], strict=True))
    assert pairs == {(a, b) for a in BATCH.roles for b in BATCH.roles} | {("every", "previous")}
    assert len(table) == 2 * len(pairs)


def test_several_models_have_the_rows_that_each_has_alone():
    models = {"wide": small(heads=2), "narrow": small(heads=1), "again": reseeded(small(heads=1), 1)}
    pairs = [("last", "answer"), (None, "previous")]
    table = pattern_table(models, BATCH, pairs)
    alone = [pattern_table(model, BATCH, pairs).assign(model=label) for label, model in models.items()]
    pd.testing.assert_frame_equal(table, pd.concat(alone, ignore_index=True))
    weights = [table.loc[table["model"] == label, "weight_per_edge"].tolist() for label in ("narrow", "again")]
    assert weights[0] != weights[1]


def test_an_unknown_role_in_the_table_is_answered_with_those_there_are():
    with pytest.raises(KeyError, match=r"no role or relation 'anwser'.*answer"):
        pattern_table(small(), BATCH, [("last", "anwser")])
    with pytest.raises(KeyError, match=r"no role 'previous' \(it is a relation"):
        pattern_table(small(), BATCH, [("previous", "last")])


# Weights per example


@pytest.mark.parametrize("head", [None, 0, 1])
@pytest.mark.parametrize(
    ("dest", "source"), [("last", "digits"), (None, "previous"), ("answer", None), ("last", "last")]
)
def test_edge_weights_are_each_examples_own_mean(head, dest, source):
    model = small(heads=2)
    found = edge_weights(model, BATCH, {"w": Edges(layer=1, head=head, dest=dest, source=source)})["w"]
    pattern = record(model, BATCH, [("pattern", 1)])["pattern", 1]
    heads = [0, 1] if head is None else [head]
    for b, edges in enumerate(listed(BATCH, dest, source)):
        weights = [float(pattern[b, h, row, k]) for row, k in edges for h in heads]
        assert float(found[b]) == pytest.approx(sum(weights) / len(weights), abs=1e-10)


def test_edge_weights_of_an_example_without_such_an_edge_are_nan():
    found = edge_weights(small(n_ctx=5), padded(), {"some": Edges(layer=0, source="some"), "all": Edges(layer=1)})
    assert torch.isnan(found["some"]).tolist() == [True, False]
    assert torch.isnan(found["all"]).tolist() == [False, False]


def test_edge_weights_of_several_layers_come_from_one_run():
    model, calls = small(), []
    record(model, BATCH, ["pattern"])  # a model is checked when it is first used, by a run of its own
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    both = edge_weights(model, BATCH, {"a": Edges(layer=0, source="previous"), "b": Edges(layer=1, source="previous")})
    handle.remove()
    assert len(calls) == 1
    assert list(both) == ["a", "b"]
    assert not torch.allclose(both["a"], both["b"])


def test_edge_weights_in_bfloat16_are_averaged_in_float32():
    model = small(dtype=torch.bfloat16)
    pattern = record(model, BATCH, [("pattern", 0)])["pattern", 0]
    found = edge_weights(model, BATCH, {"w": Edges(layer=0, head=0, dest="last", source="digits")})["w"]
    assert found.dtype == torch.float32
    assert torch.allclose(found, pattern[:, 0, 8, 1:8:2].float().mean(-1), atol=1e-6)


@pytest.mark.parametrize(
    ("edges", "why"),
    [
        (Edges(layer=0, dest="lats"), "no role 'lats'.*last"),
        (Edges(layer=0, source="pervious"), "no role or relation 'pervious'.*previous"),
        (Edges(layer=2, dest="last"), "2"),
        (Edges(layer=0, head=2, dest="last"), "no head 2; this model has heads 0 to 1"),
    ],
)
def test_weights_of_what_is_not_there_are_refused(edges, why):
    with pytest.raises(KeyError, match=why):
        edge_weights(small(heads=2), BATCH, {"w": edges})


# Derived relations


def test_top_sources_are_derived_anew_for_each_model():
    asked = {"largest": top_source(0)}
    first, second = small(heads=1), reseeded(small(heads=1), 1)
    tops = [derive(model, BATCH, asked).relations["largest"] for model in (first, second)]
    assert not torch.equal(*tops)
    for model, found in zip((first, second), tops, strict=True):
        pattern = record(model, BATCH, [("pattern", 0)])["pattern", 0][:, 0]
        assert torch.equal(found.int().argmax(-1), pattern.argmax(-1))
        assert (found.sum(-1) == 1).all()


def test_deriving_leaves_the_batch_as_it_was_and_keeps_what_it_has():
    out = derive(small(heads=1), BATCH, {"largest": top_source(0, dest="last")})
    assert set(BATCH.relations) == {"previous"}
    assert set(out.relations) == {"previous", "largest"}
    assert torch.equal(out.tokens, BATCH.tokens)


def test_each_head_has_a_top_source_of_its_own():
    model = small(heads=2)
    out = derive(model, BATCH, {f"top{head}": top_source(0, head) for head in (0, 1)})
    pattern = record(model, BATCH, [("pattern", 0)])["pattern", 0]
    for head in (0, 1):
        assert torch.equal(out.relations[f"top{head}"].int().argmax(-1), pattern[:, head].argmax(-1))
    assert not torch.equal(out.relations["top0"], out.relations["top1"])


def test_a_head_must_be_named_where_there_are_several():
    with pytest.raises(ValueError, match="this model has 2 heads; say which"):
        derive(small(heads=2), BATCH, {"largest": top_source(0, dest="last")})


def test_a_head_that_is_not_there_is_refused():
    with pytest.raises(KeyError, match="no head 2; this model has heads 0 to 1"):
        derive(small(heads=2), BATCH, {"largest": top_source(0, 2)})


def test_a_layer_or_role_that_is_not_there_is_refused():
    with pytest.raises(KeyError, match="2"):
        derive(small(heads=1), BATCH, {"largest": top_source(2)})
    with pytest.raises(KeyError, match="no role 'lats'"):
        derive(small(heads=1), BATCH, {"largest": top_source(0, dest="lats")})


def test_a_control_of_an_unknown_relation_is_refused():
    with pytest.raises(KeyError, match=r"'control' is the control of 'larges', which is no relation.*largest"):
        derive(small(heads=1), BATCH, {"largest": top_source(0), "control": control_of("larges", seed=0)})


def test_a_control_may_not_come_before_what_it_controls_for():
    with pytest.raises(KeyError, match="which is no relation"):
        derive(small(heads=1), BATCH, {"control": control_of("largest", seed=0), "largest": top_source(0)})


def test_a_control_of_a_relation_of_the_batch_is_drawn_too():
    batch = replace(BATCH, classes=torch.zeros_like(BATCH.tokens))
    out = derive(small(heads=1), batch, {"control": control_of("previous", seed=0)}).relations["control"]
    rows = out.any(-1)
    assert torch.equal(rows, BATCH.roles["digits"])
    assert not (out & BATCH.relations["previous"]).any()


def test_a_batch_without_classes_has_no_controls():
    with pytest.raises(ValueError, match=r"'control': a control is drawn within a token class.*no classes"):
        derive(small(heads=1), replace(BATCH, classes=None), {"control": control_of("previous", seed=0)})


def lonely():
    """In examples 0 and 2 the first digit's letter is the only letter that the row sees."""
    only = torch.zeros_like(BATCH.relations["previous"])
    only[[0, 2], 1, 0] = only[1, 3, 2] = True
    return BATCH.with_relations(only=only)


def test_an_example_whose_control_finds_no_other_source_is_named():
    with pytest.raises(MissingExamples, match=r"'control': no other visible source.*in 2 examples \(0, 2\)"):
        derive(small(heads=1), lonely(), {"control": control_of("only", seed=0)})


def test_an_example_without_the_relation_needs_no_control():
    batch = lonely().select(torch.tensor([1, 3]))
    out = derive(small(heads=1), batch, {"control": control_of("only", seed=0)}).relations["control"]
    assert out.flatten(1).sum(1).tolist() == [1, 0]


def test_a_control_that_finds_nothing_may_be_left_empty():
    asked = {"control": control_of("only", seed=0)}
    out = derive(small(heads=1), lonely(), asked, on_missing="skip").relations["control"]
    assert out[:4].flatten(1).sum(1).tolist() == [0, 1, 0, 0]


def test_a_control_of_a_tasks_relation_is_refused_where_layers_see_different_sources():
    told = {"d_vocab": 16, "n_ctx": 9, "d_model": 8, "n_layers": 2, "n_heads": 1}
    several = Transformer(ModelConfig(**told, masks=(Mask(window=3), Mask())), seed=0)
    batch = BATCH.with_relations(found=BATCH.edges("last", "answer"))
    with pytest.raises(ValueError, match="the layers of this model see different sources"):
        derive(several, batch, {"drawn": control_of("found", seed=0)})
    alike = Transformer(ModelConfig(**told, masks=(Mask(), Mask())), seed=0)
    assert derive(alike, batch, {"drawn": control_of("found", seed=0)}).relations["drawn"].sum() == len(batch)
    named = {"top": top_source(1, dest="last"), "drawn": control_of("top", seed=0)}
    assert derive(several, batch, named, on_missing="skip").relations["drawn"].any()
