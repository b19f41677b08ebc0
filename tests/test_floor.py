"""The floor: operations that must be done, against counts made by hand and by walking through every weight."""

from dataclasses import astuple

import pytest
import torch

from workbench.floor import LayerWork, Work, clean_work, cut_work
from workbench.models.config import Mask, ModelConfig
from workbench.models.masks import visible

LOOKUP = ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=2, n_heads=1)
CELLS = [(layer, d, s) for layer in (0, 1) for d in range(9) for s in range(d + 1) if (d, s) != (0, 0)]


def sees(config, length=None):
    at = torch.arange(length or config.n_ctx)[None]
    return [visible(config.mask(layer), at)[0] for layer in range(config.n_layers)]


def cell(layer, dest, source, config=LOOKUP, read=(8,), heads=None):
    return cut_work(config, sees(config), layer=layer, dest=[dest], source=[source], read=read, heads=heads)


# The sweep of the lookup model, counted by hand

W_O = 2 * 32 * 32
MLP = 2 * 2 * 32 * 128
KEY_AND_VALUE = 2 * 2 * 32 * 32
QUERY = 2 * 32 * 32
SCORE = MIXED = 2 * 32
READ_OUT = 2 * 32 * 16


def test_there_are_44_cells_a_layer():
    assert [sum(layer == one for layer, *_ in CELLS) for one in (0, 1)] == [44, 44]


def test_a_cut_in_layer_0_recomputes_a_row_its_key_and_value_and_the_last_row():
    by_hand = 5 * MIXED + W_O + MLP + KEY_AND_VALUE + SCORE + MIXED + W_O + MLP + READ_OUT
    assert cell(0, 5, 2).flops(LOOKUP) == by_hand


def test_a_cut_at_the_last_row_of_layer_0_needs_its_query_and_every_score():
    by_hand = 8 * MIXED + W_O + MLP + KEY_AND_VALUE + QUERY + 9 * (SCORE + MIXED) + W_O + MLP + READ_OUT
    assert cell(0, 8, 2).flops(LOOKUP) == by_hand


def test_a_cut_in_the_last_layer_recomputes_the_row_that_is_read():
    assert cell(1, 8, 2).flops(LOOKUP) == 8 * MIXED + W_O + MLP + READ_OUT


def test_a_cut_in_the_last_layer_at_a_row_that_is_not_read_is_no_work():
    assert cell(1, 7, 2) == Work((LayerWork(), LayerWork()), 0)


def test_the_whole_sweep_over_4000_sequences_is_8_3_gflop():
    before_last = [(d, s) for d in range(1, 8) for s in range(d + 1)]
    by_hand = sum(d * MIXED + W_O + MLP + KEY_AND_VALUE + SCORE + MIXED + W_O + MLP + READ_OUT for d, _ in before_last)
    by_hand += 9 * (8 * MIXED + W_O + MLP + KEY_AND_VALUE + QUERY + 9 * (SCORE + MIXED) + W_O + MLP + READ_OUT)
    by_hand += 9 * (8 * MIXED + W_O + MLP + READ_OUT)
    total = Work((LayerWork(), LayerWork()))
    for one in CELLS:
        total += cell(*one)
    assert (total * 4000).flops(LOOKUP) == 4000 * by_hand == 8_302_592_000
    assert 8.0e9 <= 4000 * by_hand <= 8.5e9


# Against a walk through the model: which vectors differ, row by row

CONFIGS = [
    LOOKUP,
    ModelConfig(d_vocab=11, n_ctx=6, d_model=12, n_layers=3, n_heads=3, norm="pre"),
    ModelConfig(d_vocab=11, n_ctx=6, d_model=12, n_layers=4, n_heads=4, n_kv_heads=2, norm="none", attn_only=True),
    ModelConfig(d_vocab=11, n_ctx=6, d_model=12, n_layers=2, n_heads=2, masks=(Mask(causal=False),)),
    ModelConfig(d_vocab=11, n_ctx=8, d_model=12, n_layers=3, n_heads=2, masks=(Mask(window=2),)),
]


def slow_cut(config, layer, dest, source, read, heads):
    """Operations by asking of each vector whether it changed and whether it matters, one at a time."""
    masks, n = [one.tolist() for one in sees(config)], config.n_ctx

    def matters(row, after):
        if after == config.n_layers - 1:
            return row in read
        later = [r for r in range(n) if (r == row or masks[after + 1][r][row])]
        return any(matters(r, after + 1) for r in later)

    def changed(row, after):
        if after < layer:
            return False
        if after == layer:
            return row == dest and masks[layer][dest][source]
        return changed(row, after - 1) or any(masks[after][row][s] and changed(s, after - 1) for s in range(n))

    total = 0
    for at in range(layer, config.n_layers):
        width, d_head = config.d_model, config.d_head
        mlp = 0 if config.attn_only else 4 * width * config.d_mlp
        rows = [row for row in range(n) if changed(row, at) and matters(row, at)]
        if at == layer:
            kept = sum(masks[at][dest]) - 1
            total += len(rows) * (heads * (2 * d_head * kept + 2 * d_head * width) + mlp)
            continue
        new = [row for row in range(n) if changed(row, at - 1)]
        read_by = [s for s in new if any(masks[at][row][s] for row in rows)]
        total += len(read_by) * config.n_kv_heads * 2 * 2 * width * d_head
        for row in rows:
            pairs = [s for s in range(n) if masks[at][row][s] and (row in new or s in new)]
            total += config.n_heads * (len(pairs) * 2 * 2 * d_head + 2 * d_head * width) + mlp
            total += config.n_heads * 2 * width * d_head if row in new else 0
    out = [row for row in read if changed(row, config.n_layers - 1)]
    return total + len(out) * 2 * config.d_model * config.d_vocab


@pytest.mark.parametrize("config", CONFIGS, ids=["lookup", "heads", "grouped", "encoder", "window"])
def test_every_single_cut_counts_as_a_walk_through_the_model_does(config):
    n = config.n_ctx
    for layer in range(config.n_layers):
        for dest in range(n):
            for source in range(n):
                for read in ((n - 1,), (1, n - 2)):
                    counted = cell(layer, dest, source, config, read, heads=1).flops(config)
                    assert counted == slow_cut(config, layer, dest, source, read, heads=1), (layer, dest, source, read)


def test_cutting_every_head_sums_every_head_anew():
    config = CONFIGS[1]
    one, every = (cell(2, 5, 1, config, (5,), heads).layers[2] for heads in (1, None))
    assert (one.mixed, one.outputs, one.mlps) == (5, 1, 1)
    assert (every.mixed, every.outputs, every.mlps) == (15, 3, 1)


def test_an_edge_that_the_mask_hides_is_no_work():
    assert cell(0, 2, 5).flops(LOOKUP) == 0


# The clean run


def test_a_plain_forward_pass_is_every_weight_at_every_row():
    projections, scores = 4 * 2 * 32 * 32, 45 * (SCORE + MIXED)
    by_hand = 2 * (9 * (projections + MLP) + scores) + 9 * READ_OUT
    assert clean_work(LOOKUP, sees(LOOKUP), range(9)).flops(LOOKUP) == by_hand


def test_reading_the_last_position_leaves_one_row_of_the_last_layer():
    last = clean_work(LOOKUP, sees(LOOKUP), [8]).layers[1]
    assert last == LayerWork(queries=1, keys=9, values=9, scores=9, mixed=9, outputs=1, mlps=1)


def test_a_window_of_two_needs_as_many_rows_as_it_reaches():
    config = ModelConfig(d_vocab=11, n_ctx=8, d_model=12, n_layers=3, n_heads=2, masks=(Mask(window=2),))
    assert [one.mlps for one in clean_work(config, sees(config), [7]).layers] == [3, 2, 1]


def test_grouped_keys_are_counted_once_a_group():
    first = clean_work(CONFIGS[2], sees(CONFIGS[2]), range(6)).layers[0]
    assert (first.queries, first.keys, first.values, first.outputs) == (24, 12, 12, 24)


def test_a_model_of_attention_only_has_no_mlp_to_count():
    config = CONFIGS[2]
    assert LayerWork(mlps=5).flops(config) == 0


# Sums, and what is refused


def test_work_adds_and_multiplies_count_by_count():
    one = Work((LayerWork(1, 2, 3, 4, 5, 6, 7),), 8)
    assert astuple((one + one * 2).layers[0]) == (3, 6, 9, 12, 15, 18, 21)
    assert (one + one * 2).unembedded == 24


def test_work_of_another_number_of_layers_is_refused():
    with pytest.raises(ValueError, match="1 layers was to be counted for a model of 2"):
        Work((LayerWork(),)).flops(LOOKUP)
    with pytest.raises(ValueError, match="of two models"):
        Work((LayerWork(),)) + Work(())


def test_masks_of_another_number_of_layers_are_refused():
    with pytest.raises(ValueError, match="1 layers' masks for a model of 2"):
        clean_work(LOOKUP, sees(LOOKUP)[:1], [8])


def test_a_position_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="position 9 is read; there are positions 0 to 8"):
        cell(0, 3, 2, read=(9,))


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"cut in layer 2.*layers 0 to 1"):
        cell(2, 3, 2)
