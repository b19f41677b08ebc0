"""The benchmark of a GPU: the same code on a CPU is right, and a page that no GPU made says so."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from analyses import gpu_benchmark
from analyses.gpu_benchmark import COMMAND, QUICK, agreement, command, main, matrix_rate, sweeps, training
from analyses.training_benchmark import operations
from workbench.devices import one_thread

CPU = torch.device("cpu")
COMMITTED = Path(__file__).parents[1] / "reports" / "benchmarks" / "gpu.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with one_thread():
        folder = main(device="cpu", quick=True, compiling=False, out=tmp_path_factory.mktemp("reports"))
    return (folder / "gpu.md").read_text(encoding="utf-8")


def test_a_page_that_a_cpu_made_says_that_no_gpu_was_measured_and_how_to_do_it(page):
    assert "**Not measured on a GPU.**" in page and "Measured on the card" not in page
    assert COMMAND in page and "--device cpu --quick" in page


def test_the_committed_page_says_whether_a_gpu_was_measured():
    said = COMMITTED.read_text(encoding="utf-8")
    made_by = said.split("This page was made by `")[1].split("`")[0]
    assert ("--device cpu" in made_by) == ("**Not measured on a GPU.**" in said)
    assert COMMAND in said


def test_a_page_of_a_card_does_not_say_that_none_was_measured():
    card = torch.device("cuda")
    assert gpu_benchmark._measured(card, False) == "Measured on the card that is described below."
    assert "mean nothing" in gpu_benchmark._measured(card, True)


@pytest.mark.parametrize("device", ["cuda:99", "tpu"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path, device):
    with pytest.raises(ValueError, match=rf"no device '{device}' on this machine; there are: auto, cpu"):
        main(device=device, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_ends_with_a_sentence_where_the_device_is_not_there(tmp_path):
    with pytest.raises(SystemExit, match=r"^gpu_benchmark: no device 'cuda:99' on this machine; there are: auto, cpu"):
        command(["--device", "cuda:99", "--out", str(tmp_path)])


def test_the_command_asks_for_a_cuda_card_and_the_whole_size_unless_told(monkeypatch):
    asked = []
    monkeypatch.setattr(gpu_benchmark, "main", lambda **options: asked.append(options))
    command([])
    command(["--device", "cpu", "--quick", "--no-compile", "--out", "elsewhere"])
    assert asked == [
        {"device": "cuda", "quick": False, "compiling": True, "out": Path("reports")},
        {"device": "cpu", "quick": True, "compiling": False, "out": Path("elsewhere")},
    ]


def test_seeds_of_the_ensemble_end_where_each_ends_alone():
    table = agreement(CPU, QUICK)
    assert table["seed"].tolist() == [0, QUICK.seeds - 1]
    assert table["largest difference of a weight"].max() <= 1e-4
    assert table["median difference"].max() <= 1e-6
    assert table["difference of the last loss"].max() <= 1e-5


def test_an_ensemble_of_other_seeds_would_be_seen(monkeypatch):
    fit = gpu_benchmark.fit
    monkeypatch.setattr(gpu_benchmark, "fit", lambda task, config, recipe, seed: fit(task, config, recipe, seed + 7))
    assert agreement(CPU, QUICK)["median difference"].min() > 1e-3


def test_sweeps_have_every_edge_but_row_0s_and_the_cpus_logits():
    table = sweeps(CPU, QUICK)
    assert table["engine"].tolist() == ["fast path", "hooks"]
    assert table["cells"].tolist() == [88, 88] and set(table["sequences"]) == {QUICK.sequences}
    assert table.filter(like="largest difference").to_numpy().max() <= 5e-6


def test_the_share_is_the_operations_of_all_seeds_over_time_and_rate():
    table, drawing = training(CPU, QUICK, False, rate=1e9)
    assert table["seeds at once"].tolist() == [1, QUICK.seeds] and set(table["compiled"]) == {"no"}
    flops = operations() * QUICK.batch_size / 256 * table["seeds at once"]
    want = flops / (table["ms a step"] / 1e3) / 1e9
    pd.testing.assert_series_equal(table["share of the matrix rate"], want, rtol=0.01, check_names=False)
    assert table["times one seed's"].iloc[0] == 1 and drawing > 0


def test_the_matrix_rate_is_of_this_world():
    assert 1e7 < matrix_rate(CPU, QUICK) < 1e16
