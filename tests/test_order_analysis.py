"""What tells a transformer the order of its tokens: permutations, sinusoids, and the committed report."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import order_permutations, order_sinusoids
from analyses.order import DECODERS, LONGER, N_CTX, POSITIONED, configs, main, task
from analyses.order_claims import comparisons, trained_claims
from analyses.order_report import lengths, tables
from analyses.verdicts import from_claims, side_by_side
from workbench import Transformer
from workbench.tables import to_csv

COMMITTED = Path(__file__).parent.parent / "reports" / "order"
TOKENS = task().sample(8, seed=3).tokens


def test_every_kind_differs_from_the_first_in_its_positions_or_its_mask_alone():
    first = configs()["learned"]
    for config in configs().values():
        assert config.model_copy(update={"positions": first.positions, "masks": first.masks}) == first
    assert task(max(LONGER)).length <= N_CTX


def test_longer_sequences_have_the_same_words():
    assert {task(pairs).vocabulary for pairs in LONGER} == {task().vocabulary}


@pytest.mark.parametrize("seed", range(3))
def test_an_encoder_without_positions_permutes_its_outputs_with_its_inputs(seed):
    model = Transformer(configs()["encoder, none"], seed=seed)
    assert max(order_permutations.disorder(model, TOKENS)) < order_permutations.SAME
    assert order_permutations.woman(model) < order_permutations.SAME


@pytest.mark.parametrize("kind", [*POSITIONED, "none"])
def test_positions_or_a_causal_mask_change_more_than_the_order(kind):
    model = order_permutations.filled(configs()[kind], seed=0)
    assert min(order_permutations.disorder(model, TOKENS)) > order_permutations.CHANGED


def test_numbers_per_offset_tell_an_encoder_nothing_before_they_are_trained():
    relative = configs()["encoder, none"].model_copy(update={"positions": "relative"})
    assert max(order_permutations.disorder(Transformer(relative, seed=0), TOKENS)) < order_permutations.SAME


def test_the_last_position_of_one_causal_layer_does_not_know_the_order_and_that_of_two_does():
    bare = configs()["encoder, none"]
    one = Transformer(order_permutations.single(bare), seed=0)
    two = Transformer(configs()["none"], seed=0)
    assert max(order_permutations.disorder(one, TOKENS, last_only=True)) < order_permutations.SAME
    assert max(order_permutations.disorder(two, TOKENS, last_only=True)) > order_permutations.CHANGED


def test_no_permutation_leaves_everything_in_its_place():
    found = order_permutations.permutations(9)
    assert len(found) == order_permutations.N_PERMUTATIONS
    for order in found:
        assert sorted(order.tolist()) == list(range(9)) and order.tolist() != list(range(9))
    assert {int((order != torch.arange(9)).sum()) for order in found[::2]} == {2}


@pytest.mark.parametrize("k", [1, 7, 100])
@pytest.mark.parametrize("width", [4, 32, 512])
def test_an_offset_is_one_matrix_at_every_place(k, width):
    assert order_sinusoids.linear_error(k, width, 300) < 1e-11
    matrix = order_sinusoids.offset_matrix(k, width)
    assert torch.allclose(matrix @ matrix.T, torch.eye(width, dtype=torch.float64))


def test_the_matrix_of_another_offset_does_not_fit():
    known = order_sinusoids.table(300, 32)
    wrong = order_sinusoids.offset_matrix(2, 32)
    assert (known[:-1] @ wrong.T - known[1:]).abs().max() > 0.1


def test_no_matrix_fits_random_vectors_unless_they_are_few():
    drawn = torch.randn(200, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert order_sinusoids.best_fit(drawn) == pytest.approx((1 - 32 / 199) ** 0.5, rel=0.05)
    assert order_sinusoids.best_fit(drawn[:18]) < 1e-10
    assert order_sinusoids.best_fit(order_sinusoids.table(200, 32)) < 1e-10


def test_a_model_refuses_more_tokens_than_it_has_positions():
    assert order_sinusoids.refused(5, 6) and not order_sinusoids.refused(6, 6)


# The committed report


@pytest.fixture(scope="module")
def results():
    return pd.read_parquet(COMMITTED / "results.parquet")


def judged(frame):
    mode = task().guessing()["mode"]
    rows = [from_claims(trained_claims(mode), frame), from_claims(comparisons(), side_by_side(frame))]
    return pd.concat(rows, ignore_index=True).set_index("id")["verdict"].to_dict()


def test_committed_tables_are_those_of_the_committed_rows(results):
    permuted = pd.read_parquet(COMMITTED / "permutations.parquet")
    places = pd.read_parquet(COMMITTED / "places.parquet")
    for name, table in tables(results, permuted, places).items():
        assert to_csv(table) == (COMMITTED / f"{name}.csv").read_text(encoding="utf-8"), name


@pytest.mark.slow
def test_committed_verdicts_are_those_of_the_committed_rows(results):
    written = pd.read_csv(COMMITTED / "verdicts.csv").set_index("id")["verdict"].to_dict()
    found = judged(results)
    assert found == {id: written[id] for id in found}


def test_there_are_five_models_of_each_kind_and_enough_examples(results):
    assert results.groupby("model", observed=True)["model_seed"].nunique().eq(5).all()
    assert results["example"].nunique() >= 2000 and results["skipped"].isna().all()


@pytest.mark.slow
def test_doctored_rows_flip_their_verdicts(results):
    doctored = results.copy()
    kind, cut = doctored["model"] == "learned", doctored["condition"]
    doctored.loc[kind & (cut == "cut-hidden"), "accuracy"] = 1.0
    clean = kind & (cut == "clean")
    doctored.loc[clean, "accuracy"] = np.where(doctored.loc[clean, "example"] % 2, 1.0, 0.0)
    before, after = judged(results), judged(doctored)
    assert before["learns-learned"] == before["first-step-learned"] == "supported"
    assert after["learns-learned"] == after["first-step-learned"] == after["as-good"] == "not supported"
    others = {id for id in before if not id.endswith("learned") and id != "as-good"}
    assert {id: after[id] for id in others} == {id: before[id] for id in others}


def test_the_figure_has_every_length_and_every_model(results):
    table = lengths(results)
    assert set(table["x"]) == {4, *LONGER}
    assert table.groupby("panel").size().eq(4 * 5).all() and set(DECODERS) < set(table["panel"])


@pytest.mark.slow
def test_a_quick_run_writes_the_whole_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "runs"))
    folder = main(out=tmp_path, quick=True, progress=False)
    assert {path.name for path in folder.iterdir()} == {path.name for path in COMMITTED.iterdir()}
    assert "A quick run" in (folder / "README.md").read_text(encoding="utf-8")
