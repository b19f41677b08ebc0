"""`explain` and the counts behind it: by hand, against torch's own counter, against the floor of single cuts."""

from dataclasses import replace

import pytest
import torch
from models_of import KINDS, batch_for, kind_of
from small import BATCH, CORRUPT, small
from torch.utils.flop_counter import FlopCounterMode

from workbench.batch import UNREAD, Batch
from workbench.block import planned
from workbench.chunks import computed
from workbench.clean import Clean
from workbench.counting import Count
from workbench.edits import MissingExamples
from workbench.engine import run_each
from workbench.explaining import explain
from workbench.floor import clean_work, cut_work
from workbench.hooks import alone
from workbench.interventions import Edges, Heads, Stream, custom, cut, freeze, patch, scale, zero
from workbench.models import rowlayer, rowwise
from workbench.models.config import Mask, ModelConfig
from workbench.models.masks import visible
from workbench.models.transformer import Transformer
from workbench.passes import execute
from workbench.scene import scene_of

WIDTH, MLP_WIDTH, WORDS, LENGTH = 8, 32, 10, 6
W = 2 * WIDTH * WIDTH
"""One row through W_Q, W_K, W_V or W_O of all heads together."""
MLP = 2 * 2 * WIDTH * MLP_WIDTH
PAIR = 2 * WIDTH
"""A score, or a share of z, of one row and one source in all heads together."""
OUT = 2 * WIDTH * WORDS


def model_of(**changes):
    config = {"d_vocab": WORDS, "n_ctx": LENGTH, "d_model": WIDTH, "n_layers": 2, "n_heads": 1, **changes}
    return Transformer(ModelConfig(**config), seed=0)


def batch_of(n=1, read=(LENGTH - 1,)):
    """Examples of six positions, each a role of its own: p0 ... p5."""
    tokens = torch.randint(WORDS, (n, LENGTH), generator=torch.Generator().manual_seed(0))
    at = torch.arange(LENGTH).expand(n, -1)
    labels = torch.where(torch.isin(at, torch.tensor(read)), tokens, UNREAD)
    roles = {f"p{p}": at == p for p in range(LENGTH)}
    return Batch(tokens, labels, roles=roles | {"two": (at == 1) | (at == 2)})


def told(model, interventions, batch=None, **kwargs):
    return explain(model, batch_of() if batch is None else batch, interventions, **kwargs)


def edge(layer, dest, source, **more):
    return cut(Edges(layer=layer, dest=f"p{dest}", source=f"p{source}", **more))


# Counted by hand: one head, causal, six positions, the last of which is read

LAST_ROW = W + MLP + OUT
"""From z to the logits, of one row."""


def test_a_cut_in_the_last_layer_mixes_one_row_anew():
    one = told(model_of(), [edge(1, 5, 2)])
    assert one.computed == one.floor == 6 * PAIR + LAST_ROW


def test_a_cut_in_layer_0_goes_on_by_one_key_and_value():
    one = told(model_of(), [edge(0, 3, 1)])
    first, second = W + MLP, 2 * W + PAIR + PAIR + LAST_ROW
    assert one.floor == 4 * PAIR + first + second
    # The engine mixes all six sources of the row in layer 0; in layer 1 it mixes them and adds what differs.
    assert one.computed == 6 * PAIR + first + second + 6 * PAIR


def test_a_cut_at_the_row_that_is_read_has_its_query_and_all_its_scores_anew():
    one = told(model_of(), [edge(0, 5, 1)])
    first, second = 6 * PAIR + W + MLP, 3 * W + 6 * (PAIR + PAIR) + LAST_ROW
    assert one.floor == first + second
    # Beside the clean keys and values the engine puts the one in place that differs.
    assert one.computed == first + second + PAIR + PAIR


def test_an_edit_of_z_is_written_and_goes_through_the_mlp():
    one = told(model_of(), [zero(Heads(layer=1, pos="p5", part="z"))])
    assert one.computed == one.floor == LAST_ROW


def test_an_edit_of_what_leaves_a_layer_computes_nothing_there():
    one = told(model_of(), [scale(Stream(layer=0, pos="p3", part="resid_post"), by=2.0)])
    second = 2 * W + PAIR + PAIR + LAST_ROW
    assert (one.floor, one.computed) == (second, second + 6 * PAIR)
    last = told(model_of(), [scale(Stream(layer=1, pos="p5", part="resid_post"), by=2.0)])
    assert last.computed == last.floor == OUT


def test_an_edit_of_what_the_mlp_adds_does_not_run_the_mlp():
    one = told(model_of(), [zero(Stream(layer=1, pos="p5", part="mlp_out"))])
    assert one.computed == one.floor == OUT


def test_an_edit_of_a_value_makes_no_key_and_no_value():
    one = told(model_of(), [zero(Heads(layer=1, pos="p2", part="v"))])
    assert one.floor == PAIR + LAST_ROW
    assert one.computed == PAIR + 7 * PAIR + LAST_ROW  # its score is made again, and z is summed before it is changed


def test_an_edit_of_a_query_has_all_scores_of_its_row():
    one = told(model_of(), [scale(Heads(layer=1, pos="p5", part="q"), by=2.0)])
    assert one.computed == one.floor == 6 * PAIR + 6 * PAIR + LAST_ROW


def test_the_floor_of_one_head_of_two_is_that_head_s():
    model = model_of(n_heads=2)
    one, both = told(model, [edge(1, 5, 2, head=0)]), told(model, [edge(1, 5, 2)])
    assert both.computed == one.computed == both.floor == 6 * PAIR + LAST_ROW
    assert one.floor == 6 * PAIR // 2 + W // 2 + MLP + OUT


def test_grouped_keys_are_counted_once_a_group():
    model = model_of(n_heads=4, n_kv_heads=2)
    one = told(model, [edge(0, 3, 1)])
    assert one.floor == 4 * PAIR + W + MLP + (W // 2 + W // 2 + PAIR + PAIR + LAST_ROW)
    value = told(model, [zero(Heads(layer=1, head=1, pos="p2", part="v"))])
    assert value.floor == PAIR // 2 + W // 2 + MLP + OUT  # two of the four heads read it


def test_a_model_of_attention_only_has_no_mlp_to_count():
    one = told(model_of(attn_only=True), [edge(1, 5, 2)])
    assert one.computed == one.floor == 6 * PAIR + W + OUT


def test_with_all_positions_asked_for_every_later_row_is_computed():
    one = told(model_of(), [edge(1, 3, 2)], positions="all")
    assert one.computed == 6 * PAIR + LAST_ROW and one.floor == 4 * PAIR + LAST_ROW
    first = told(model_of(), [scale(Stream(layer=0, pos="p3", part="resid_post"), by=2.0)], positions="all")
    row_3, later = W + 4 * (PAIR + PAIR), 2 * (PAIR + PAIR)
    assert first.floor == 2 * W + row_3 + later + 3 * LAST_ROW
    assert first.together[0][1] == ["layer 0: 1 of 6 rows", "layer 1: 3 of 6 rows, 1 of 6 keys and values"]


def test_the_clean_run_is_every_row_before_the_last_layer_and_the_read_ones_in_it():
    full = 6 * (4 * W + MLP) + 36 * (PAIR + PAIR)
    last = 6 * (W + W) + (W + W + MLP) + 6 * (PAIR + PAIR)
    assert told(model_of(), [], batch_of(5)).clean == 5 * (full + last + OUT)
    assert told(model_of(), [], batch_of(5), positions="all").clean == 5 * (2 * full + 6 * OUT)


def test_what_is_put_back_everywhere_is_not_computed():
    edits = [scale(Stream(layer=0, pos="p3", part="resid_post"), by=2.0), freeze(Stream(layer=1, part="attn_out"))]
    one = told(model_of(), edits, positions="all")
    assert one.computed == one.floor == MLP + OUT


def test_counts_grow_with_examples_and_a_pass_is_counted_for_each_condition():
    conditions = {f"cut {source}": [edge(1, 5, source)] for source in range(5)}
    one, ten = (told(model_of(), conditions, batch_of(n)) for n in (1, 10))
    assert (ten.computed, ten.floor, ten.clean) == (10 * one.computed, 10 * one.floor, 10 * one.clean)
    assert ten.passes == 5 * ten.clean and ten.n == 10


def test_rows_that_depend_on_the_example_count_as_the_most_for_the_engine_and_as_they_are_for_the_floor():
    batch = batch_of(2)
    mask = batch.roles["p2"].clone()
    mask[1] |= batch.roles["p3"][1]  # one source in the first example, two in the second
    one = told(model_of(), [zero(Heads(layer=1, pos="some", part="v"))], batch.with_roles(some=mask))
    assert one.floor == 3 * PAIR + 2 * LAST_ROW
    assert one.computed == 2 * (2 * PAIR + 8 * PAIR + LAST_ROW)


# Against the floor of single cuts


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_heads": 2, "norm": "pre", "n_layers": 3},
        {"n_heads": 4, "n_kv_heads": 2, "attn_only": True, "norm": "none"},
        {"masks": (Mask(causal=False),)},
        {"masks": (Mask(window=3),), "n_layers": 3},
    ],
    ids=["plain", "heads", "grouped", "encoder", "window"],
)
def test_the_floor_of_every_cut_is_that_of_cut_work_but_for_the_source_that_is_cut(changes):
    model, batch = model_of(**changes), batch_of(2)
    config = model.config
    sees = [visible(config.mask(layer), torch.arange(LENGTH)[None])[0] for layer in range(config.n_layers)]
    for head in (None, 0):
        for layer in range(config.n_layers):
            for dest, source in sees[layer].nonzero().tolist():
                one = explain(model, batch, [edge(layer, dest, source, head=head)])
                heads = config.n_heads if head is None else 1
                work = cut_work(config, sees, layer=layer, dest=[dest], source=[source], read=[5], heads=heads)
                summed = 2 * config.d_head * heads * bool(work.layers[layer].mlps)
                assert one.floor == 2 * (work.flops(config) + summed), (head, layer, dest, source)
                assert one.computed >= one.floor


def test_the_clean_run_is_that_of_a_mask_that_hides_nothing():
    model = model_of(masks=(Mask(causal=False),))
    sees = [torch.ones(LENGTH, LENGTH, dtype=torch.bool)] * 2
    assert told(model, []).clean == clean_work(model.config, sees, [5]).flops(model.config)


# Against torch's own counter, in every kind of model


def placed(kind):
    batch = batch_for(KINDS[kind])
    at = torch.arange(batch.tokens.shape[1]).expand_as(batch.tokens)
    context = batch.context
    if context is not None:
        there = torch.arange(context.tokens.shape[1]).expand_as(context.tokens)
        context = context.with_roles(early=(there == 1) | (there == 2))
    batch = replace(batch, context=context)
    return batch.with_roles(two=(at == 2) | (at == 4), late=(at == 4) | (at == 5), early=(at == 2) | (at == 3))


def edits_for(model):
    """Lists whose every product is one of matrices, several rows by several sources, which torch counts."""
    side = {"stack": "decoder"} if "encoder" in model.parts else {}
    out = {part: [scale(Heads(layer=0, pos="two", part=part, **side), by=2.0)] for part in ("q", "k", "v", "z")}
    out["result"] = [scale(Heads(layer=0, head=0, pos="two", part="result", **side), by=2.0)]
    stream = ["resid_pre", "attn_out", "resid_mid", "resid_post", *([] if model.attn_only else ["mlp_out"])]
    out |= {part: [scale(Stream(layer=0, pos="two", part=part, **side), by=2.0)] for part in stream}
    later = scale(Stream(layer=0, pos="two", part="resid_post", **side), by=2.0)
    out["put back"] = [later, freeze(Stream(layer=1, part="attn_out", **side))]
    out["half put back"] = [later, freeze(Stream(layer=1, pos="late", part="attn_out", **side))]
    out["query put back"] = [later, freeze(Heads(layer=1, part="q", **side))]
    out["cut"] = [cut(Edges(layer=0, dest="late", source="late", **side))]
    if side:
        out["encoder"] = [scale(Stream(layer=0, pos="early", part="resid_post", stack="encoder"), by=2.0)]
        out["crossing"] = [cut(Edges(layer=0, dest="late", source="early", kind="cross"))]
    return out


def counts(model, batch, edits):
    """Operations of a list of edits: as torch counts the engine's, as `Count` does, and the floor."""
    with alone(model):
        scene = scene_of(
            model,
            batch,
            {"": edits},
            donors=None,
            positions="all",
            on_missing="raise",
            left_out=None,
            chunk_size=99,
            say=str,
        )
        first, found, (group,) = planned(scene, [scene.prepare({"": edits}, str)[""].edits], None)

        def recorded(keys):
            return execute(model, scene.batch, [], read=None, keep=keys, chunk_size=99)

        out = recorded(rowwise.foreseen(group))
        clean = Clean(scene, out.logits, None, dict(out.kept), lambda key: recorded([key]).kept[key])
        computed(model, group, clean)  # what it looks up is recorded now
        with FlopCounterMode(display=False) as counter:
            computed(model, group, clean)
        count = Count(scene, len(scene.batch) // len(first.batch))
        return counter.get_total_flops(), count.computed(group), count.floor(group, found)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_computed_is_what_torch_counts(kind, monkeypatch):
    # Products into a tensor that is there already, of which torch counts nothing, are made as others.
    monkeypatch.setattr(rowlayer.RowLayer, "_onward", False)
    model, batch = kind_of(kind), placed(kind)
    for name, edits in edits_for(model).items():
        by_torch, by_us, floor = counts(model, batch, edits)
        assert by_us == by_torch, name
        assert 0 < floor <= by_us, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_clean_run_is_what_torch_counts(kind):
    model, batch = kind_of(kind), batch_for(KINDS[kind])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.logits(batch, None)
    embedded = 2 * len(batch) * 7 * 5 * 6 * (kind == "patches")  # 7 patches of 5 numbers, to width 6
    assert explain(model, batch, [], positions="all").clean == counter.get_total_flops() - embedded


# Two stacks


def test_a_cut_in_the_encoder_reaches_the_decoder_by_keys_and_values_of_its_context():
    model, batch = kind_of("encoder–decoder"), placed("encoder–decoder")
    one = explain(model, batch, [scale(Stream(layer=1, pos="early", part="resid_post", stack="encoder"), by=2.0)])
    assert one.together[0][1][:2] == [
        "encoder layer 1: 2 of 5 rows",
        "decoder layer 0: 6 of 6 rows, 2 keys and values of the context",
    ]


def test_an_edit_of_the_decoder_s_last_mlp_crosses_nothing():
    model, batch = kind_of("encoder–decoder"), placed("encoder–decoder")
    edit = [scale(Stream(layer=1, pos="two", part="mlp_out", stack="decoder"), by=2.0)]
    one = explain(model, batch, edit, positions="all")
    assert one.computed == one.floor == len(batch) * 2 * 2 * 6 * 11  # two rows, read out


# What is said of each condition

MIXED = {
    "clean": [],
    "cut": [edge(1, 5, 2)],
    "again": [edge(1, 5, 2)],
    "unread": [edge(1, 3, 2)],
    "own": [custom(("z", 0), lambda z: z / 2)],
}


def test_every_condition_is_somewhere():
    one = told(model_of(), MIXED)
    assert [list(labels) for labels, _ in one.together] == [["cut", "again"]]
    assert list(one.unreached) == ["clean", "unread"]
    assert one.hooks == {"own": "a custom function changes a whole tensor"}
    assert one.passes == 4 * one.clean


def test_a_list_that_stands_twice_is_computed_once_as_the_engine_does():
    assert told(model_of(), MIXED).computed == told(model_of(), [edge(1, 5, 2)]).computed


def test_the_engine_does_as_explained():
    explained, got = told(model_of(), MIXED), run_each(model_of(), batch_of(), MIXED, positions="read")
    for label, one in got.items():
        why = explained.hooks.get(label)
        assert one.engine == ("rows" if why is None else f"hooks: {why}")


def test_nothing_that_can_reach_what_is_read_is_no_work():
    one = told(model_of(), {"unread": [edge(1, 3, 2)]})
    assert (one.computed, one.floor, list(one.together)) == (0, 0, [])
    assert "floor" not in str(one)


def test_a_model_with_a_hook_of_others_goes_through_hooks_alone():
    model = model_of()
    model.blocks[0].hook_resid_pre.add_hook(lambda tensor, hook: tensor)
    one = told(model, {"cut": [edge(1, 5, 2)]})
    assert one.hooks == {"cut": "the model carries a hook that is not ours"}
    assert (one.computed, one.clean, one.passes) == (0, 0, 0)
    assert str(one) == "through hooks, a pass each: cut: the model carries a hook that is not ours"


def test_the_text_says_rows_operations_and_the_share_of_the_floor():
    assert str(told(model_of(), MIXED)).splitlines() == [
        "by rows: cut, again",
        "  layer 1: 1 of 6 rows",
        "not run, since it cannot change what is read: clean, unread",
        "through hooks, a pass each: own: a custom function changes a whole tensor",
        "1.408 kFLOP by rows, 13.54 kFLOP in one clean run (examples: 1)",
        "a pass for each condition: 54.14 kFLOP, 3.6 times as much as both",
        "floor: 1.408 kFLOP, 100.0% of what is computed by rows",
    ]


def test_many_conditions_are_named_by_three_and_their_number():
    each = {f"s{source}": [edge(1, 5, source)] for source in range(5)}
    assert "by rows: s0, s1, s2 and 2 more" in str(told(model_of(), each))


def test_one_list_needs_no_label():
    assert str(told(model_of(), [edge(1, 5, 2)])).startswith("by rows: the list\n")


def test_large_counts_come_in_larger_units():
    said = str(told(model_of(), [edge(1, 5, 2)], batch_of(10_000)))
    assert "14.08 MFLOP by rows, 135.4 MFLOP in one clean run (examples: 10000)" in said


def test_explaining_runs_nothing(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("the model was run")

    monkeypatch.setattr(Transformer, "forward", fail)
    assert explain(small(), BATCH, [cut(Edges(layer=1, dest="last", source="answer"))]).computed > 0
    with pytest.raises(AssertionError, match="the model was run"):
        run_each(small(), BATCH, {"clean": []})


# What is refused


def test_a_role_that_is_not_there_is_refused_with_the_label():
    with pytest.raises(KeyError, match=r"condition 'mine'.*nowhere"):
        told(model_of(), {"mine": [cut(Edges(layer=1, dest="nowhere", source="p2"))]})


def test_an_example_that_lacks_a_role_is_refused_or_left_out():
    batch = batch_of(2)
    mask = batch.roles["p2"].clone()
    mask[1] = False
    batch, edits = batch.with_roles(some=mask), [cut(Edges(layer=1, dest="p5", source="some"))]
    with pytest.raises(MissingExamples):
        told(model_of(), edits, batch)
    assert told(model_of(), edits, batch, on_missing="skip").n == 1


def test_a_donor_that_nothing_names_is_refused():
    with pytest.raises(TypeError, match="no intervention names 'other'"):
        explain(small(), BATCH, {"cut": [cut(Edges(layer=1, dest="last", source="answer"))]}, donors={"other": CORRUPT})


def test_a_donor_that_is_missing_is_refused():
    edits = [patch(Heads(layer=0, pos="answer", part="z"), donor="other", align="role")]
    with pytest.raises(KeyError, match="other"):
        explain(small(), BATCH, edits)
    assert explain(small(), BATCH, edits, donors={"other": CORRUPT}).computed > 0
