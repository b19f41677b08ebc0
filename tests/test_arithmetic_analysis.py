"""The lecture's worked numbers: what agrees, what differs, and that a wrong number would be found out."""

import io
from pathlib import Path

import pandas as pd
import pytest

from analyses import arithmetic_cells, arithmetic_scores, arithmetic_sizes, arithmetic_variance
from analyses.arithmetic import figures, finding, main
from analyses.arithmetic_printed import above, printed, same, table, verdicts
from analyses.finding import page
from workbench import rows
from workbench.models.attention import Attention
from workbench.tables import to_csv

COMMITTED = Path(__file__).parent.parent / "reports" / "arithmetic"
DIFFER = {"never-zero-32", "bert-size", "mlp-all-base", "mlp-all-gpt2"}
"""Where the sources' numbers are not ours, for the reasons that the page gives."""


def everything():
    return [*arithmetic_scores.worked(), *arithmetic_cells.worked(), *arithmetic_sizes.worked()]


@pytest.fixture(scope="module")
def known():
    return {one.id: one for one in everything()}


def differing(known):
    return {id for id, one in known.items() if not one.agrees}


def test_all_numbers_agree_but_those_that_the_page_explains(known):
    assert differing(known) == DIFFER


@pytest.mark.parametrize(
    ("id", "value"),
    [("score-restaurant", 3.2), ("score-sandwich", 0.8), ("score-because", -0.3), ("weight-restaurant", 0.89213),
     ("even-2", 0.063379), ("causal-4", 10), ("grid-8", 64), ("quadruples", 4), ("patches", 196),
     ("mlp-all-base", 0.39942)],
)  # fmt: skip
def test_a_number_is_what_it_is_by_hand(known, id, value):
    assert known[id].value == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(("value", "agrees"), [(0.885, True), (0.8949, True), (0.8849, False), (0.8951, False)])
def test_a_printed_number_agrees_where_ours_rounds_to_it(value, agrees):
    assert printed("id", "what", "0.89", value).agrees is agrees


def test_printed_numbers_may_have_a_sign_and_commas():
    assert printed("id", "what", "50,176", 50176).agrees and not printed("id", "what", "50,176", 50177).agrees
    assert printed("id", "what", "−0.3", -0.3).agrees and not printed("id", "what", "−0.3", 0.3).agrees


def test_a_number_that_differs_is_said_to_differ():
    several = [printed("a", "what", "3", 4), same("b", "what", "the same", 0.1), above("c", "what", "large", 0.1, 1)]
    assert set(table(several)["verdict"]) == {"differs"}
    assert set(verdicts(several)["verdict"]) == {"not supported"}


def test_scores_without_their_divisor_are_found_out(monkeypatch):
    divided = Attention.scores
    monkeypatch.setattr(Attention, "scores", lambda self, q, k, bias=None: divided(self, q, k, bias) * 2)
    found = differing({one.id: one for one in everything()})
    assert {"score-restaurant", "weight-restaurant", "matrix-form"} <= found


def test_a_softmax_with_a_temperature_is_found_out(monkeypatch):
    plain = rows.softmax
    monkeypatch.setattr(rows, "softmax", lambda scores: plain(scores / 2))
    assert {"weight-restaurant", "weight-because", "even-2"} <= differing({o.id: o for o in everything()})


def test_queries_as_initialised_have_a_ninth_of_the_variance():
    found = arithmetic_variance.measured(range(3))
    own = found[(found["drawn"] == arithmetic_variance.INITIALISED) & (found["width"] == 256)]
    assert own["ratio"].mean() == pytest.approx(1 / 9, rel=0.1)
    assert found.loc[found["drawn"] == "N(0, 1)", "ratio"].mean() == pytest.approx(1, rel=0.03)


def random_verdicts(found, seeds):
    joined = pd.concat(arithmetic_variance.verdicts(found, range(seeds)), ignore_index=True)
    return joined.set_index("id")["verdict"].to_dict()


@pytest.fixture(scope="module")
def draws():
    return pd.read_parquet(COMMITTED / "draws.parquet")


def test_a_doctored_variance_flips_its_verdict(draws):
    n = draws["seed"].nunique()
    assert random_verdicts(draws, n)["variance-256"] == "supported"
    doctored = draws.assign(ratio=draws["ratio"].where(draws["width"] != 256, draws["ratio"] * 1.1))
    assert random_verdicts(doctored, n)["variance-256"] == "not supported"


def test_committed_tables_are_those_of_the_committed_draws(draws, known):
    assert to_csv(arithmetic_variance.table(draws)) == (COMMITTED / "variance.csv").read_text(encoding="utf-8")
    assert to_csv(arithmetic_sizes.table()) == (COMMITTED / "parameters.csv").read_text(encoding="utf-8")
    worked = pd.read_csv(COMMITTED / "worked.csv", keep_default_na=False)
    assert worked[["id", "verdict"]].values.tolist() == table(known.values())[["id", "verdict"]].values.tolist()


def test_committed_verdicts_are_those_of_the_committed_draws(draws, known):
    written = pd.read_csv(COMMITTED / "verdicts.csv").set_index("id")["verdict"].to_dict()
    exact = verdicts(known.values()).set_index("id")["verdict"].to_dict()
    assert written == exact | random_verdicts(draws, draws["seed"].nunique())


def test_the_page_explains_every_number_that_differs(known):
    text = (COMMITTED / "README.md").read_text(encoding="utf-8")
    where = text[text.index("### Where we differ") :]
    assert all(f"`{id}`" in where for id in DIFFER | {"variance-own"})


@pytest.mark.slow
def test_a_quick_run_writes_the_whole_report(tmp_path):
    folder = main(out=tmp_path, quick=True, progress=False)
    assert {path.name for path in folder.iterdir()} == {path.name for path in COMMITTED.iterdir()}
    written = pd.read_csv(io.StringIO((folder / "verdicts.csv").read_text(encoding="utf-8")))
    assert set(written.loc[written["verdict"] == "not supported", "id"]) == DIFFER | {"variance-own"}
    assert "A quick run" in page(finding(range(2), quick=True))


def test_the_figures_name_their_axes(draws):
    labels = {name: {axes.get_xlabel() for axes in figure.axes} for name, figure in figures(draws).items()}
    assert labels["variance"] == {"head width"} and len(labels["saturation"]) == 1
