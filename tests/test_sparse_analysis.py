"""The analysis of sparse attention: reach, best rates, influence, the verdicts, and the committed report."""

from itertools import permutations, product
from pathlib import Path

import pandas as pd
import pytest
import torch

from analyses import sparse
from analyses.sparse import settings, tasks
from analyses.sparse_claims import sufficient, verdicts
from analyses.sparse_reach import asks, best_rate, influence, reach, seen, two_steps
from analyses.sparse_report import allowed, crossing, measured
from tasks.induction import Induction
from tasks.lookup import Lookup
from workbench import ModelConfig, Transformer
from workbench.models.config import Mask
from workbench.tables import to_csv

COMMITTED = Path(__file__).parent.parent / "reports" / "sparse"
SMALL = Induction(words=6, length=6, shortest=2, longest=3)


# Reach


def test_a_window_reaches_its_width_less_one_further_in_each_layer():
    assert [int(after[11].sum()) for after in reach([Mask(window=4)] * 3, 12)] == [4, 7, 10]


def test_a_block_never_reaches_beyond_its_border():
    assert [after[7].nonzero().flatten().tolist() for after in reach([Mask(block=4)] * 3, 12)] == [[4, 5, 6, 7]] * 3


def test_every_other_position_is_never_reached_by_a_dilated_window():
    assert reach([Mask(window=5, dilation=2)] * 4, 9)[-1][8].nonzero().flatten().tolist() == [0, 2, 4, 6, 8]


def test_the_first_position_is_reached_by_all_and_relays_nothing():
    after = reach([Mask(window=2, n_global=1)] * 2, 9)[-1]
    assert after[0].nonzero().flatten().tolist() == [0]
    assert after[8].nonzero().flatten().tolist() == [0, 6, 7, 8]


@pytest.mark.parametrize("task", ["lookup", "induction"])
def test_reach_is_what_paths_through_the_masks_give(task):
    for masks in settings(task).values():
        length, layers = tasks()[task].length, seen(masks, tasks()[task].length)
        known = {dest: {dest} for dest in range(length)}
        for layer in layers:
            known = {d: set().union(known[d], *(known[s] for s in range(length) if layer[d, s])) for d in known}
        last = reach(masks, length)[-1]
        assert {d: set(last[d].nonzero().flatten().tolist()) for d in known} == known


def test_there_are_at_most_8_settings_a_task_of_1_to_4_layers():
    for task in tasks():
        assert len(settings(task)) == 8
        assert {len(masks) for masks in settings(task).values()} <= {1, 2, 3, 4}


# Best rates


def everything(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


@pytest.mark.parametrize("task", list(tasks().values()), ids=list(tasks()))
def test_who_knows_everything_is_always_right(task):
    assert best_rate(task, everything(task.length)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("task", list(tasks().values()), ids=list(tasks()))
def test_who_knows_one_token_guesses(task):
    alone = torch.eye(task.length, dtype=torch.bool)
    guess = {"lookup": 1 / 8, "induction": 1 / 31}[task.name]  # what comes next differs from the token itself
    assert best_rate(task, alone) == pytest.approx(guess, abs=1e-12)


def test_who_knows_the_digits_alone_says_the_most_frequent():
    known = everything(9)
    known[8, 0:8:2] = False
    assert best_rate(Lookup(), known) == pytest.approx(Lookup().guessing()["mode"], abs=1e-12)


def slow_best(task, known):
    """The best guesser by counting every sequence: for what is known at a place, the token that is most often next."""
    counts, sizes = {}, range(task.shortest, task.longest + 1)
    for size in sizes:
        starts = range(task.length - 2 * size + 1)
        draws = list(permutations(range(task.words), task.length - size))
        for start, draw in product(starts, draws):
            tokens = [draw[place if place < start + size else place - size] for place in range(task.length)]
            for read in range(start + size, start + 2 * size - 1):
                weight = 1 / (len(sizes) * len(starts) * len(draws) * (size - 1))
                key = (read, tuple(tokens[place] for place in range(task.length) if known[read, place]))
                said = counts.setdefault(key, {})
                said[tokens[read + 1]] = said.get(tokens[read + 1], 0) + weight
    return sum(max(said.values()) for said in counts.values())


@pytest.mark.parametrize(
    "mask",
    [Mask(window=2), Mask(window=3), Mask(window=2, dilation=2), Mask(window=3, dilation=2), Mask(block=3),
     Mask(window=2, n_global=1), Mask(block=2)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("layers", [1, 2])
def test_the_best_rate_of_induction_is_that_of_counting_every_sequence(mask, layers):
    known = reach([mask] * layers, SMALL.length)[-1]
    assert best_rate(SMALL, known) == pytest.approx(slow_best(SMALL, known), abs=1e-12)


def test_what_is_asked_adds_up_to_one():
    for task in (*tasks().values(), SMALL):
        assert sum(ask.weight for ask in asks(task)) == pytest.approx(1, abs=1e-12)


def test_two_steps_need_two_layers_in_their_order():
    full, before = Mask(), Mask(window=2)
    shares = [two_steps(Lookup(), masks) for masks in ([full], [full, full], [before, full], [full, before])]
    assert shares == [0, 1, 1, 0.25]


# Influence


@pytest.mark.parametrize(
    "mask", [Mask(window=3), Mask(block=4), Mask(window=2, n_global=1), Mask(window=3, dilation=2)], ids=str
)
def test_influence_is_exactly_what_the_mask_lets_through(mask):
    task = Lookup()
    config = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=2, n_heads=1, norm="pre", masks=(mask,))
    moved = influence(Transformer(config, seed=0), task, task.sample(5, seed=0))
    for layer, can in enumerate(reach([mask] * 2, 9)):
        assert torch.equal((moved[layer] > 0).any(-1), can)


def test_what_moves_beyond_reach_is_counted():
    moved = torch.eye(9).expand(1, 2, 9, 9)[..., None].repeat(1, 1, 1, 1, 3)
    moved[0, 1, 8, 0, 2] = 0.5
    row = crossing({("lookup", "window 3 × 2"): moved}).iloc[1]
    assert row["moved beyond"] == 1 and row["last moved"] == 1


# The verdicts and the committed report


@pytest.fixture(scope="module")
def committed():
    results = {name: pd.read_parquet(COMMITTED / f"{name}.parquet") for name in tasks()}
    return results, pd.read_csv(COMMITTED / "crossing.csv")


def test_the_committed_tables_are_those_of_the_committed_rows(committed):
    results, _ = committed
    assert to_csv(measured(allowed(), results)) == (COMMITTED / "settings.csv").read_text(encoding="utf-8")


def test_the_committed_verdicts_are_those_of_the_committed_rows(committed):
    results, crossed = committed
    assert to_csv(verdicts(results, allowed(), crossed)) == (COMMITTED / "verdicts.csv").read_text(encoding="utf-8")


def doctored(results, label, accuracy):
    lookup = results["lookup"]
    return {**results, "lookup": lookup.assign(accuracy=lookup["accuracy"].where(lookup["model"] != label, accuracy))}


def test_a_setting_that_fails_does_not_suffice(committed):
    fits = sufficient(doctored(committed[0], "full × 2", 0.98)).set_index("id")["verdict"]
    assert fits["lookup: full × 2"] == "not supported"


@pytest.mark.parametrize(
    ("label", "accuracy", "claim"),
    [("window 3 × 2", 1.0, "bound"), ("full × 1", 1.0, "rule"), ("full, then window 2", 1.0, "order"),
     ("window 3 × 4", 0.3, "depth")],
)  # fmt: skip
def test_a_claim_falls_with_the_accuracy_that_it_rests_on(committed, label, accuracy, claim):
    results, crossed = committed
    changed = verdicts(doctored(results, label, accuracy), allowed(), crossed).set_index("id")["verdict"]
    assert changed[claim] == "not supported"


@pytest.mark.parametrize(("column", "value", "claim"), [("moved beyond", 1, "leak"), ("moved", 1, "arrives")])
def test_a_claim_on_crossing_falls_with_what_crossed(committed, column, value, claim):
    results, crossed = committed
    found = verdicts(results, allowed(), crossed.assign(**{column: value})).set_index("id")["verdict"]
    assert found[claim] == "not supported"


@pytest.mark.slow
def test_the_quick_run_writes_a_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    folder = sparse.main(out=tmp_path, quick=True, progress=False)
    assert "A quick run" in (folder / "README.md").read_text(encoding="utf-8")
