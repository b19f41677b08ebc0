"""The benchmarks' harness: contestants give the same answers or are refused, and times and ratios are what they say."""

import math
import platform
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from analyses import benchmark_growth, benchmark_machine, benchmark_recording, benchmark_timing, benchmark_training
from analyses import benchmarks as analysis
from analyses.benchmark_cases import large_sweep, lookup_sweep, random_batch, twin_of, with_places
from analyses.benchmark_claims import over_rounds
from analyses.benchmark_plain import native, plain, twin
from analyses.benchmark_sweeps import (
    Place,
    Sweep,
    engines,
    lens_bridge,
    lens_on_ours,
    looped,
    nnsight_trace,
    ours,
    torch_hooks,
)
from analyses.benchmark_timing import (
    Chunks,
    Contestant,
    WrongAnswer,
    agree,
    over_floor,
    ratios,
    table,
    timed,
    tried,
)
from workbench import Edges, ModelConfig, Transformer, cut, run

TOOLS = {"torch": torch_hooks, "lens": lens_on_ours, "bridge": lens_bridge, "nnsight": nnsight_trace}
TOLERANCE = 5e-6


def config(**changes):
    return ModelConfig(**{"d_vocab": 11, "n_ctx": 7, "d_model": 12, "n_layers": 2, "n_heads": 3, **changes})


def tokens(n=5, length=7, d_vocab=11):
    return torch.randint(d_vocab, (n, length), generator=torch.Generator().manual_seed(3))


def close(given, right):
    return float((given - right).abs().max()) <= TOLERANCE * float(right.abs().max())


# The same model without the workbench


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("act_fn", ["relu", "gelu"])
def test_the_plain_decoder_is_our_model(norm, act_fn):
    model = Transformer(config(norm=norm, act_fn=act_fn), seed=0)
    with torch.no_grad():
        assert close(plain(model)(tokens()), model(tokens()))


@pytest.mark.parametrize("act_fn", ["relu", "gelu"])
def test_the_native_bridge_is_our_model_where_it_can_be(act_fn):
    model = twin(config(act_fn=act_fn), seed=0)
    with torch.no_grad():
        assert close(native(model)(tokens()), model(tokens()))


def test_the_native_bridge_is_refused_a_model_that_it_cannot_be():
    with pytest.raises(ValueError, match="norm='post'"):
        native(Transformer(config(norm="post"), seed=0))
    with pytest.raises(ValueError, match="no output bias"):
        native(Transformer(config(norm="pre"), seed=0))


@pytest.mark.parametrize(
    "changes",
    [{"positions": "rotary"}, {"norm": "none"}, {"n_kv_heads": 1}, {"attn_only": True}, {"act_fn": "silu"},
     {"masks": [{"window": 2}]}],
    ids=str,
)  # fmt: skip
def test_the_plain_decoder_is_refused_a_model_that_it_cannot_be(changes):
    with pytest.raises(ValueError, match="the plain decoder has learned positions"):
        plain(Transformer(config(**changes), seed=0))


# The same answers


@pytest.fixture(scope="module")
def small():
    return twin_of(lookup_sweep(6))


@pytest.fixture(scope="module")
def heads():
    return large_sweep(3, length=7, layers=2, heads=3, width=12, d_vocab=11)


def contestants(sweep, tool, size=4):
    work, _ = looped(sweep, tool(sweep), [size])
    return [Contestant("ours", ours(sweep, "hooks")), Contestant("tool", work, against="ours")]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("which", ["small", "heads"])
def test_every_loop_answers_as_ours_does_whatever_its_chunks(tool, which, request):
    found = agree(contestants(request.getfixturevalue(which), TOOLS[tool]))
    assert found["difference"].max() <= TOLERANCE


def test_both_engines_answer_alike(small, heads):
    for sweep in (small, heads):
        agree([Contestant("plain", ours(sweep, "hooks")), Contestant("fast", ours(sweep, "auto"), against="plain")])


def test_ours_is_what_run_gives_cell_by_cell(heads):
    answers = ours(heads, "hooks")()
    right = run(heads.model, heads.batch, [cut(heads.cells[4])]).logits[:, -1]
    assert list(answers) == list("012345") and answers["4"].shape == (3, 11)
    assert close(answers["4"], right)


def test_every_cell_of_the_sweeps_goes_the_fast_way(small, heads):
    assert engines(small) == {"rows": 88}
    assert engines(heads) == {"rows": 6}
    with heads.model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda value, hook: value)]):
        assert [way.split(":")[0] for way in engines(heads)] == ["hooks"]


def test_a_loop_that_cuts_nothing_is_refused(small):
    def lazy(sweep):
        return lambda place, examples: sweep.plain(sweep.batch.tokens[examples])

    with pytest.raises(WrongAnswer, match=r"'tool' differs from 'ours' by .*; it is not timed"):
        agree(contestants(small, lazy))


@pytest.mark.parametrize("tool", TOOLS)
def test_a_loop_that_cuts_another_edge_is_refused(heads, tool):
    (mistaken,) = Sweep(heads.model, heads.batch, (heads.cells[-1],)).places

    def wrong(sweep):
        forward = TOOLS[tool](sweep)
        return lambda place, examples: forward(mistaken if place.layer == 0 else place, examples)

    with pytest.raises(WrongAnswer):
        agree(contestants(heads, wrong))


def test_an_answer_that_is_no_number_or_of_another_shape_is_refused():
    right = Contestant("right", lambda: {"logits": torch.ones(2, 3)})
    for answer, said in (
        ({"logits": torch.full((2, 3), torch.nan)}, "inf"),
        ({"logits": torch.ones(2, 1)}, r"gives logits \[2, 1\]; \[2, 3\] were asked"),
        ({"other": torch.ones(2, 3)}, "answers other; logits were asked"),
    ):
        with pytest.raises(WrongAnswer, match=said):
            agree([right, Contestant("given", lambda answer=answer: answer, against="right")])


def test_answers_may_differ_by_the_tolerance_and_no_more():
    def given(by):
        one = Contestant("one", lambda: {"x": torch.tensor([4.0, 1.0], dtype=torch.float64)})
        return [one, Contestant("two", lambda: {"x": torch.tensor([4.0, 1.0 + by], dtype=torch.float64)}, "one")]

    assert agree(given(0.75), 0.1875 + 1e-12)["difference"].item() == 0.1875
    with pytest.raises(WrongAnswer, match=r"0\.188 of the largest number, and 0\.18 is allowed"):
        agree(given(0.75), 0.18)


def test_who_is_compared_with_nobody_is_refused():
    with pytest.raises(KeyError, match=r"'a' is to be compared with 'c'; there are: a"):
        agree([Contestant("a", dict, against="c")])


def test_a_weight_put_to_zero_leaves_the_others_in_proportion():
    pattern = torch.tensor([[[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]]])
    out = Place(0, None, 2, 1).without(pattern.clone(), slice(0, 1))
    assert out[0, 0, 2].tolist() == pytest.approx([2 / 7, 0, 5 / 7])
    assert torch.equal(out[0, 0, :2], pattern[0, 0, :2])


def test_a_place_is_each_examples_own_where_edges_differ():
    place = Place(0, 1, 2, torch.tensor([0, 1, 2]))
    hidden = place.hide(torch.zeros(2, 2, 3, 3), slice(1, 3)).isinf().nonzero().tolist()
    assert hidden == [[0, 1, 2, 1], [1, 1, 2, 2]]


def test_a_role_of_several_positions_is_no_cell():
    batch = random_batch(2, 7, 11)
    sweep = Sweep(twin(config(), 0), batch.with_roles(two=batch.roles["last"] | batch.roles["some"]),
                  (Edges(layer=0, dest="last", source="two"),))  # fmt: skip
    with pytest.raises(ValueError, match="role 'two' is to be one position"):
        _ = sweep.places
    with pytest.raises(ValueError, match="a sweep of no cells"):
        Sweep(sweep.model, batch, ())


# The floor of the sweeps


def test_the_lookup_sweep_has_88_cells_and_a_floor_of_8_3_gflop():
    sweep = lookup_sweep(2)
    assert len(sweep.cells) == len(set(sweep.cells)) == 88
    assert sweep.flops() * 2000 == 8_302_592_000


def test_whole_passes_over_the_lookup_sweep_are_counted_by_hand():
    projections, mlp, attention, read_out = 4 * 2 * 32 * 32, 4 * 32 * 128, 45 * 2 * 2 * 32, 9 * 2 * 32 * 16
    assert lookup_sweep(3).clean_flops(everywhere=True) == 3 * (2 * (9 * (projections + mlp) + attention) + read_out)


def test_a_sweep_over_heads_counts_each_examples_own_edge(heads):
    width, d_head, length, vocab = 12, 4, 7, 11
    row = 2 * d_head * (length - 1) + 2 * d_head * width + 4 * width * 48
    later = 3 * (4 * 2 * width * d_head + 2 * 2 * d_head * length) + 4 * width * 48
    by_hand = 3 * (row + later) + 3 * row + 6 * 2 * width * vocab
    assert heads.flops() == len(heads.batch) * by_hand


# Times and ratios


def clock(monkeypatch, seconds):
    """perf_counter as a clock that work moves on."""
    now = SimpleNamespace(time=0.0)
    monkeypatch.setattr(benchmark_timing.time, "perf_counter", lambda: now.time)

    def work(name):
        def does():
            now.time += seconds[name].pop(0) if isinstance(seconds[name], list) else seconds[name]
            return {}

        return does

    return work


def test_every_round_has_each_contestant_once_and_begins_with_another(monkeypatch):
    work = clock(monkeypatch, {"a": 1.0, "b": 2.0, "c": 4.0})
    found = timed([Contestant("a", work("a")), Contestant("b", work("b")), Contestant("c", work("c"), rounds=2)], 3)
    turns = found.groupby("round")["contestant"].agg("".join).tolist()
    assert turns == ["abc", "bca", "ab"]
    assert found.set_index("contestant")["seconds"].to_dict() == {"a": 1.0, "b": 2.0, "c": 4.0}


def times():
    rows = [(0, "ours", 1.0, 10.0), (0, "tool", 4.0, 10.0), (1, "ours", 2.0, 5.0), (1, "tool", 6.0, 5.0),
            (2, "ours", 1.0, 20.0)]  # fmt: skip
    return pd.DataFrame(rows, columns=["round", "contestant", "seconds", "rate"])


def test_a_ratio_is_taken_within_a_round():
    assert ratios(times(), "tool", "ours").to_dict() == {0: 4.0, 1: 3.0}


def test_a_ratio_to_one_that_was_not_timed_is_refused():
    with pytest.raises(KeyError, match="'other' was not timed; there are: ours, tool"):
        ratios(times(), "other", "ours")


def test_the_floor_is_what_the_rate_of_the_same_round_makes_of_it():
    assert over_floor(times(), "ours", flops=5).to_dict() == {0: 2.0, 1: 2.0, 2: 4.0}


def test_the_table_has_medians_and_quartiles_over_the_rounds_that_were_timed():
    found = table(times(), [Contestant("ours", dict), Contestant("tool", dict, note="slow")], "ours", flops=5)
    rows = found.set_index("contestant")
    assert rows.loc["tool", ["rounds", "seconds", "seconds q1", "seconds q3"]].tolist() == [2, 5.0, 4.5, 5.5]
    assert rows.loc["tool", ["ratio", "ratio q1", "ratio q3", "note"]].tolist() == [3.5, 3.25, 3.75, "slow"]
    assert rows.loc["ours", ["rounds", "seconds", "ratio"]].tolist() == [3, 1.0, 1.0]
    assert rows.loc["floor", ["seconds", "ratio"]].tolist() == [0.5, 0.5]


def test_one_that_others_are_only_compared_with_has_no_row():
    found = table(times(), [Contestant("ours", dict), Contestant("reference", dict, rounds=0)], "ours")
    assert found["contestant"].tolist() == ["ours"]


def test_the_best_chunk_is_that_of_the_shortest_trial(monkeypatch):
    work = clock(monkeypatch, {8: [9.0, 3.0, 3.0], 4: [1.0, 2.0, 2.5], 2: [0.5, 4.0, 2.1]})
    found = tried(work, [8, 4, 2, 4])  # the first trial of each only warms up
    assert found.seconds == {8: 3.0, 4: 2.0, 2: pytest.approx(2.1)}
    assert found.best == 4
    assert str(found) == "4 sequences at a time (8 at once: 1.50 times as long)"


def test_where_all_at_once_serves_best_nothing_else_is_said():
    assert str(Chunks({8: 1.0, 4: 2.0})) == "8 sequences at a time"


@pytest.mark.parametrize(
    ("values", "verdict"), [([26, 25], "supported"), ([26, 24], "undecided"), ([3, 4], "not supported")]
)
def test_a_claim_holds_where_every_round_bears_it_out(values, verdict):
    row = over_rounds("a", "A.", "ratio", pd.Series(values), low=25.0).iloc[0]
    assert row["verdict"] == verdict
    assert (row["estimate"], row["low"], row["high"]) == (sum(values) / 2, min(values), max(values))
    assert row["must lie"] == "at least 25"


def test_a_claim_on_no_round_is_refused():
    with pytest.raises(ValueError, match="one finite number a round"):
        over_rounds("a", "A.", "ratio", pd.Series([], dtype=float), high=3.0)


# The machine


def test_the_rate_counts_a_multiply_add_as_two(monkeypatch):
    ticks = iter([0.0, 1.0, 5.0, 5.5, 9.0, 11.0])  # three products of 1, 0.5 and 2 seconds
    monkeypatch.setattr(benchmark_machine.time, "perf_counter", lambda: next(ticks))
    assert benchmark_machine.matrix_rate(sizes=(4,), repeats=3) == 2 * 4**3 / 1.0


def test_the_machine_is_described_without_its_name_or_a_folder():
    found = benchmark_machine.description().set_index("property")["value"]
    assert found["threads of torch"] == str(torch.get_num_threads())
    assert {"processor", "memory", "torch"} <= set(found.index)
    assert not [value for value in found if platform.node() in value.split() or str(Path.home()) in value]


# Growth


def grown(power=1.5):
    rows = [
        {"axis": "cells", "x": x, "round": r, "contestant": name, "seconds": times * (1 + 0.1 * r) * x**power}
        for x in (1, 2, 4, 8)
        for r in (0, 1, 2)
        for name, times in (("this workbench", 1.0), ("this workbench, plain path", 3.0))
    ]
    return pd.DataFrame(rows)


def test_a_power_is_found_again_with_an_interval_of_no_width():
    found = benchmark_growth.fits(benchmark_growth.points(grown()))
    assert found["slope"].tolist() == pytest.approx([1.5, 1.5])
    assert found[["low", "high"]].to_numpy() == pytest.approx(1.5, abs=1e-6)
    assert found["constant"].tolist() == pytest.approx([math.log2(1.1), math.log2(3.3)])


def test_the_interval_of_a_slope_is_students_over_points():
    table = pd.DataFrame({"panel": "cells", "contestant": "ours", "x": [1, 2, 4], "value": [1.0, 4.0, 4.0]})
    row = benchmark_growth.fits(table).iloc[0]
    # Residuals about y = 1/3 + x: −1/3, 2/3, −1/3; with one degree of freedom t is 12.706.
    half = 12.7062 * math.sqrt((6 / 9) / 1 / 2)
    assert (row["slope"], row["low"], row["high"]) == pytest.approx((1.0, 1 - half, 1 + half), rel=1e-4)


def test_a_line_through_one_point_is_refused():
    with pytest.raises(ValueError, match="a line through 1 point of 'cells'"):
        benchmark_growth.fits(benchmark_growth.points(grown()).query("x == 1"))


def test_gains_are_ratios_within_rounds():
    found = benchmark_growth.gains(grown().query("x <= 2"))
    assert found["x"].tolist() == [1, 2]
    assert found[["lowest", "ratio", "highest"]].to_numpy() == pytest.approx(3.0)


def test_a_growing_sweep_has_the_sizes_that_it_is_asked_for():
    sweep = benchmark_growth.sweep(cells=5, sequences=3, length=6, layers=3, heads=2)
    config = sweep.model.config
    assert len(set(sweep.cells)) == 5 and sweep.batch.tokens.shape == (3, 6)
    assert (config.n_layers, config.n_heads, config.d_model) == (3, 2, 64)
    with pytest.raises(ValueError, match="6 positions have 20 edges"):
        benchmark_growth.sweep(cells=21, sequences=3, length=6, layers=3, heads=2)


# Training and recording


def test_the_plain_loop_trains_the_same_model():
    found = agree(benchmark_training.contestants(steps=3), benchmark_training.TOLERANCE)
    assert len(found) == 2


def test_another_training_is_refused():
    ours, *_ = benchmark_training.contestants(steps=3)
    (other, *_) = benchmark_training.contestants(steps=4)
    other = Contestant("other", other.work, against=ours.name)
    with pytest.raises(WrongAnswer):
        agree([ours, other], benchmark_training.TOLERANCE)


def test_seeds_a_minute_are_extrapolated_to_the_whole_recipe():
    timings = pd.DataFrame({"seconds": [3.0]})
    found = benchmark_training.per_minute(timings, steps=100)
    assert found["seeds a minute, extrapolated"].item() == pytest.approx(60 / 30)


def test_every_tool_records_the_same_weights(small):
    asked = Sweep(Transformer(small.model.config, seed=1), with_places(small.batch), small.cells)
    found = agree(benchmark_recording.contestants(asked, small, (4,)))
    assert len(found) == 4 and found["difference"].max() <= TOLERANCE


# The whole


def test_it_is_an_installed_analysis():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["workbench.analyses"]["benchmarks"] == "analyses.benchmarks:main"


def test_seeds_are_refused():
    with pytest.raises(ValueError, match="rounds are repeated, not seeds"):
        analysis.main(out=None, seeds=3)


def test_a_missing_tool_is_refused_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"nnsight is not installed.*attention-workbench\[conformance\]"):
        analysis.main(out=None)


@pytest.mark.slow
def test_the_quick_run_writes_tables_figure_and_machine(tmp_path, capsys):
    folder = analysis.main(out=tmp_path, quick=True, progress=False)
    names = {file.name for file in folder.iterdir()}
    assert names == {
        *(f"{name}.csv" for name in ("lookup", "lookup-one-thread", "large", "training-loops", "recording", "rounds",
                                     "growth", "slopes", "gains", "machine", "verdicts")),
        "README.md", "growth.svg", "provenance.json",
    }  # fmt: skip
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "A quick run" in page and "| floor |" in page and "nan" not in page.replace("provenance", "")
    rounds = pd.read_csv(folder / "rounds.csv")
    assert set(rounds["benchmark"]) == {"lookup", "one thread", "large", "training", "recording"}
    assert "Growth: fitted slopes" in capsys.readouterr().out
