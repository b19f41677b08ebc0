"""The benchmark of memory: what it subtracts is what tensors take, and a row says what was measured."""

import pandas as pd
import pytest
import torch

from analyses import memory_benchmark
from analyses.memory_benchmark import FEW, LISTS, MIB, growth, memory, page
from workbench import Batch


@pytest.fixture(scope="module")
def row():
    held = torch.ones(600 * MIB // 4)
    (found,) = memory([20], ["record"], tell=str).to_dict("records")
    assert held.nbytes == 600 * MIB
    return found


def _table(*beside):
    sizes = (4_000, 20_000, 100_000)
    return pd.DataFrame(
        [{"what": LISTS["cuts"], "examples": n, "beside MiB": held} for n, held in zip(sizes, beside, strict=True)]
    )


# The parts of a row


@pytest.mark.parametrize(("name", "conditions"), [("cuts", 88), ("roles", 8), ("patch", 6), ("mean", 6),
                                                  ("resample", 6)])  # fmt: skip
def test_each_list_measures_as_many_conditions_as_its_row_says(name, conditions):
    found = memory_benchmark._work(name, memory_benchmark._given(FEW))
    assert len(found) == conditions
    assert f" {conditions} " in LISTS[name]
    assert {one.engine for one in found.values()} == {"rows"}


def test_the_result_of_a_list_is_its_values_and_the_kept_examples_once():
    found = memory_benchmark._work("roles", memory_benchmark._given(FEW))
    assert memory_benchmark._size(found) == FEW * (8 * 4 + 8)


def test_the_result_of_a_recording_is_two_layers_weights_and_the_logits():
    found = memory_benchmark._work("record", memory_benchmark._given(FEW))
    assert memory_benchmark._size(found) == FEW * 4 * (2 * 9 * 9 + 9 * 16)


def test_the_result_of_a_sweep_is_its_frame():
    found = memory_benchmark._work("sweep", memory_benchmark._given(FEW))
    assert len(found.frame) == 89 * FEW
    assert memory_benchmark._size(found) == found.frame.memory_usage(deep=True).sum()


def test_a_spread_mask_counts_what_it_lies_in_and_a_shared_one_once():
    tokens = torch.zeros(1000, 4, dtype=torch.long)
    spread = torch.tensor([True, False, False, False]).expand(1000, 4)
    batch = Batch(tokens, tokens, roles={"a": spread, "b": spread})
    assert memory_benchmark._bytes(memory_benchmark._tensors(batch)) == 1000 * 4 * 8 + 1000 * 4 + 4


def test_the_highest_memory_is_seen_though_it_was_given_back():
    before = memory_benchmark._highest()
    torch.ones(before // 4)  # as much again as was ever held
    assert memory_benchmark._highest() > before


# A process of its own


def test_a_row_is_made_apart_and_does_not_begin_with_this_processes_memory(row):
    assert row["what"] == LISTS["record"] and row["examples"] == 20
    assert 0 <= row["peak MiB"] < 100
    assert row["beside MiB"] == pytest.approx(row["peak MiB"] - row["batch MiB"] - row["result MiB"], abs=0.11)


def test_an_unknown_measurement_is_refused_before_any_is_made():
    with pytest.raises(KeyError, match="'cat' is no measurement; there are: cuts, roles"):
        memory([10**9], ["cuts", "cat"])


# The report


def test_growth_begins_where_there_are_several_blocks():
    (found,) = growth(_table(10, 100, 180)).to_dict("records")
    assert found == {"what": LISTS["cuts"], "streams": "yes", "bytes an example": round(80 * MIB / 80_000)}


def test_one_size_tells_no_growth():
    assert growth(_table(10, 100, 180).head(1))["bytes an example"].isna().all()


def test_the_page_has_the_table_the_growth_and_the_machine(row):
    said = page(pd.DataFrame([row]))
    assert f"| 20 | {row['peak MiB']:g} |" in said
    assert "| what | streams | bytes an example |" in said
    assert "| processor |" in said
