"""The lecture's table: rows, verdicts, files, and the committed report."""

import contextlib
import csv
import io
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analyses.lecture import main, study
from analyses.lecture_claims import CLAIMS, claims, parts
from analyses.lecture_evidence import contrasts
from analyses.lecture_report import SAID
from analyses.lecture_table import table
from tasks.lookup import Lookup
from workbench.fitting import training_batches
from workbench.recipe import Recipe
from workbench.results import check
from workbench.tables import percent, to_csv

COMMITTED = Path(__file__).parent.parent / "reports" / "lecture"
COLUMNS = ["id", "kind", "statement", "lecture", "estimate", "low", "high", "n_models", "n_examples", "verdict"]
TWO, ONE = "two layers", "one layer"

MEASURED = {
    "base-2": (TWO, "clean", "accuracy", 1.0, 0.005),
    "base-1": (ONE, "clean", "accuracy", 0.42, 0.005),
    "guess-any": (None, None, None, 0.125, 0.0005),
    "guess-seen": (None, None, None, 0.35, 0.005),
    "guess-mode": (None, None, None, 0.43, 0.005),
    "prev": (TWO, "clean", "prev", 0.99, 0.005),
    "match": (TWO, "clean", "match", 0.99, 0.005),
    "spread": (TWO, "clean", "spread", 0.17, 0.005),
    "cut-answer": (TWO, "cut-answer", "accuracy", 0.14, 0.005),
    "cut-other": (TWO, "cut-other", "accuracy", 1.0, 0.005),
    "cut-largest": (TWO, "cut-largest", "accuracy", 1.0, 0.005),
    "uniform": (TWO, "uniform", "accuracy", 1.0, 0.005),
    "no-update": (TWO, "no-update", "accuracy", 1.0, 0.005),
    "cut-hidden": (TWO, "cut-hidden", "accuracy", 0.36, 0.005),
    "unseen-letter": (TWO, "clean", "unseen-letter", 0.001, 0.0005),
}
"""Each row of LECTURE.md: where it is found in the results, the lecture's figure, half of that figure's last digit."""

CLAIM_IDS = ["drew-on", "mattered", "relation", "one-head"]
GUESSES = {"any": 0.125, "seen": 0.34375, "mode": 0.412109375}
FIGURES = {
    "patterns": ["layer 1", "layer 2", "c", "7"],
    "route": ["layer 1", "layer 2"],
    "accuracy": ["layer 2, last: cut the matching digit", "one layer, nothing cut", "guess: any digit"],
    "training": ["step"],
    "weights": ["layer 1"],
}
FILES = {"README.md", "table.csv", "claims.csv", "parts.csv", "contrasts.csv", "results.parquet", "provenance.json"}
FILES |= {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")}


# Verdicts, on results made up for it


IDEAL = {"cut-answer": 0.13, "cut-hidden": 0.36, "prev": 0.98, "match": 0.98, "spread": 0.17, "unseen-letter": 0.002,
         "largest-weight": 0.3, "hidden-weight": 0.98, "one layer": 0.4}  # fmt: skip
WEIGHTS = ("prev", "match", "spread", "unseen-letter", "largest-weight", "hidden-weight")


def results(n=2000, seeds=3, **shares):
    """A results frame with these accuracies by condition and these weights; accuracy is 1 where nothing is said."""
    shares = IDEAL | {name.replace("_", "-"): share for name, share in shares.items()}
    cells = []
    done = [(TWO, condition) for condition in study(1).conditions] + [(ONE, "clean")]
    for seed, (model, condition) in itertools.product(range(seeds), done):
        share = shares.get("one layer" if model == ONE else condition, 1.0)
        right = (np.arange(n) < round(share * n)).astype(float)
        cell = {"model": model, "model_seed": seed, "condition": condition, "example": np.arange(n),
                "skipped": None, "accuracy": right}  # fmt: skip
        known = model == TWO and condition == "clean"
        # Examples differ by turns, and their mean is the share itself.
        wave = np.where(np.arange(n) % 2, 1e-4, -1e-4)
        cells.append(pd.DataFrame(cell | {name: shares[name] + wave if known else np.nan for name in WEIGHTS}))
    frame = pd.concat(cells, ignore_index=True)
    return frame.astype(dict.fromkeys(("model", "condition", "skipped"), "category"))


def beside(sign, steps):
    """Each row's figure in the lecture, moved by half its last digit and so many steps more; one above 1 stays."""
    moved = {}
    for id, (_, _, metric, lecture, half) in MEASURED.items():
        value = lecture + sign * (half + steps * (5e-4 if metric == "accuracy" else 1e-6))
        moved[id] = value if value <= 1 else lecture
    return moved


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("steps", "verdict"), [(-1, "agrees"), (0, "agrees"), (1, "differs"), (9, "differs")])
def test_a_measurement_agrees_up_to_half_the_last_digit_of_the_lectures_figure(sign, steps, verdict):
    values = beside(sign, steps)
    names = {"base-1": "one layer", "base-2": "clean"}
    frame = results(seeds=1, **{names.get(id, id): value for id, value in values.items()})
    rows = table(frame, {name: values[f"guess-{name}"] for name in GUESSES}).set_index("id").loc[list(MEASURED)]
    assert rows["estimate"].to_dict() == pytest.approx(values, abs=1e-12)
    at_most_1 = {id for id in MEASURED if values[id] == MEASURED[id][3]}
    assert rows["verdict"].to_dict() == {id: "agrees" if id in at_most_1 else verdict for id in MEASURED}


def test_the_lectures_figures_are_those_it_prints(ideal):
    measured = ideal[1].set_index("id")["lecture"]
    assert {id: measured[id] for id in MEASURED} == {id: row[3] for id, row in MEASURED.items()}
    assert measured.drop(list(MEASURED)).isna().all()


def test_what_the_lecture_does_not_measure_has_no_verdict(ideal):
    measured = ideal[1]
    assert set(measured.loc[measured["verdict"] == "", "id"]) == {
        "cut-largest-control", "cut-hidden-control", "largest-weight", "hidden-weight"
    }  # fmt: skip


IDEALLY = {"drew-on": "supported", "mattered": "supported", "relation": "supported", "one-head": "not supported"}
NOT = "not supported"
FLIPS = [
    ({}, {}),
    ({"match": 0.1}, {"drew-on": NOT, "relation": NOT}),
    ({"match": 0.9}, {"relation": NOT}),
    ({"prev": 0.9}, {"relation": NOT}),
    ({"cut-answer": 1.0}, {"mattered": NOT, "relation": NOT}),
    ({"cut-answer": 0.6}, {"mattered": NOT, "relation": NOT}),
    ({"cut-other": 0.13}, {"mattered": NOT, "relation": NOT}),
    ({"spread": 0.1}, {"mattered": NOT}),
    ({"cut-largest": 0.9}, {"mattered": NOT}),
    ({"unseen-letter": 0.05}, {"mattered": NOT}),
    ({"cut-hidden": 1.0}, {"mattered": NOT, "relation": NOT, "one-head": "supported"}),
    ({"cut-hidden-control": 0.36}, {"mattered": NOT, "relation": NOT}),
    ({"cut-hidden": 0.99}, {"mattered": NOT, "relation": NOT, "one-head": "undecided"}),
    ({"cut-largest": 0.99}, {"mattered": "undecided"}),
    ({"uniform": 0.1, "no-update": 0.1, "one layer": 1.0}, {}),
]


@pytest.fixture(scope="module")
def ideal():
    frame = results()
    return frame, table(frame, GUESSES)


@pytest.mark.parametrize(("changes", "flipped"), FLIPS, ids=lambda one: " ".join(map(str, one)) or "ideal")
def test_a_claim_stands_or_falls_with_each_of_its_parts(changes, flipped, ideal):
    found = claims(results(n=1000, seeds=1, **changes), ideal[1]).set_index("id")["verdict"]
    assert found[CLAIM_IDS].to_dict() == IDEALLY | flipped


def test_claims_are_the_measurements_in_order_and_then_the_four_claims(ideal):
    made = claims(*ideal)
    assert list(made.columns) == COLUMNS
    assert made["id"].tolist() == [*MEASURED, *CLAIM_IDS]
    assert made["kind"].tolist() == ["measurement"] * 15 + ["claim"] * 4


def test_every_part_of_every_claim_is_listed_with_its_own_verdict(ideal):
    listed = parts(ideal[0])
    assert listed["claim"].value_counts().to_dict() == {id: len(several) for id, (_, several) in CLAIMS.items()}
    assert set(listed.loc[listed["claim"] != "one-head", "verdict"]) == {"supported"}
    assert parts(results(spread=0.1))["verdict"].ne(listed["verdict"]).sum() == 1


def test_results_that_lack_a_condition_are_refused():
    frame = results(n=4)
    frame = frame[frame["condition"] != "uniform"]
    with pytest.raises(ValueError, match="condition 'uniform' is not in the results"):
        table(frame, GUESSES)


# The whole of it, once: few steps, few sequences


@pytest.fixture(scope="session")
def reports(tmp_path_factory):
    """The report of a quick run, that of a second one, what each printed, and when each checkpoint was written."""
    place = tmp_path_factory.mktemp("lecture")
    folders, printed, written = [], [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(place / "home"))
        for name in ("first", "second"):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                folders.append(main(out=place / name, seeds=2, quick=True, progress=False))
            printed.append(out.getvalue())
            kept = sorted((place / "home" / "checkpoints").glob("*/*"))
            written.append({path.relative_to(place): path.stat().st_mtime_ns for path in kept})
    return {"place": place, "folders": folders, "printed": printed, "written": written}


@pytest.fixture(scope="session")
def report(reports):
    return reports["folders"][0]


@pytest.fixture(scope="session")
def frame(report):
    return pd.read_parquet(report / "results.parquet")


@pytest.fixture(scope="session")
def claimed(report):
    return pd.read_csv(report / "claims.csv")


def test_a_report_is_a_folder_of_its_name_with_every_file(reports, report):
    assert report == reports["place"] / "first" / "lecture"
    assert {path.name for path in report.iterdir()} == FILES


def test_claims_csv_has_the_columns_and_rows_of_the_contract(report, claimed):
    with (report / "claims.csv").open(encoding="utf-8", newline="") as file:
        assert next(csv.reader(file)) == COLUMNS
    assert claimed["id"].tolist() == [*MEASURED, *CLAIM_IDS]
    assert claimed["kind"].tolist() == ["measurement"] * 15 + ["claim"] * 4
    assert set(claimed.loc[:14, "verdict"]) <= {"agrees", "differs"}
    assert set(claimed.loc[15:, "verdict"]) <= {"supported", "not supported", "undecided"}
    assert claimed["statement"].is_unique


def test_shares_lie_in_0_to_1_and_contrasts_in_minus_1_to_1(report, claimed):
    shares = claimed.loc[claimed["kind"] == "measurement", ["lecture", "estimate", "low", "high"]]
    assert ((shares >= 0) & (shares <= 1)).all(axis=None)
    differences = claimed.loc[claimed["kind"] == "claim", ["estimate", "low", "high"]]
    differences = pd.concat([differences, pd.read_csv(report / "contrasts.csv")[["estimate", "low", "high"]]])
    assert ((differences >= -1) & (differences <= 1)).all(axis=None)
    every = pd.concat([shares, differences])
    assert ((every["low"] <= every["estimate"]) & (every["estimate"] <= every["high"])).all()


def within(values):
    """The two halves of an interval for one model's mean: exact for 0/1, else Student's t over the examples."""
    if values.isin([0, 1]).all():
        found = stats.binomtest(int(values.sum()), len(values)).proportion_ci(0.95, "exact")
    else:
        found = stats.t.interval(0.95, len(values) - 1, loc=values.mean(), scale=stats.sem(values))
    return values.mean() - max(found[0], 0), min(found[1], 1) - values.mean()


def by_pandas(frame, id):
    """The mean over trained models of their mean over examples, with its interval, and the counts."""
    model, condition, metric, *_ = MEASURED[id]
    rows = frame[(frame["model"] == model) & (frame["condition"] == condition) & frame["skipped"].isna()]
    means = rows.astype({metric: float}).groupby("model_seed")[metric].mean()
    over_models = stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5
    halves = [within(values) for _, values in rows.astype({metric: float}).groupby("model_seed")[metric]]
    down, up = zip(*halves, strict=True)
    low, high = means.mean() - np.hypot(over_models, max(down)), means.mean() + np.hypot(over_models, max(up))
    low, high = np.clip([low, high], 0, 1)
    return {"estimate": means.mean(), "low": low, "high": high, "n_models": len(means), "n_examples": 200}


@pytest.mark.parametrize("id", [id for id, row in MEASURED.items() if row[0]])
def test_a_measurement_is_what_plain_pandas_makes_of_the_results(id, frame, claimed):
    row, expected = claimed.set_index("id").loc[id], by_pandas(frame, id)
    if expected["low"] == expected["high"]:
        expected = {name: value for name, value in expected.items() if name not in ("low", "high")}
    assert {name: row[name] for name in expected} == pytest.approx(expected, abs=2e-6)
    lecture, half = MEASURED[id][3:]
    assert row["verdict"] == ("agrees" if abs(expected["estimate"] - lecture) <= half else "differs")


def test_the_guesses_are_exact(claimed):
    counts = [Counter(drawn) for drawn in itertools.product(range(8), repeat=4)]
    exact = {
        "guess-any": 1 / 8,
        "guess-seen": np.mean([sum(k * k for k in count.values()) / 16 for count in counts]),
        "guess-mode": np.mean([max(count.values()) / 4 for count in counts]),
    }
    for id, value in exact.items():
        row = claimed.set_index("id").loc[id]
        assert (row["estimate"], row["low"], row["high"]) == (pytest.approx(value, abs=5e-7),) * 3
        assert row["n_models"] == 0


def test_the_results_are_a_results_frame_of_both_depths(frame):
    check(frame)
    assert len(frame) == 2 * (9 + 1) * 200
    assert set(frame["model"].cat.categories) == {TWO, ONE}
    assert list(frame["condition"].cat.categories) == list(study(1).conditions)
    assert frame["skipped"].isna().all()


def test_sequences_met_in_training_are_marked(frame):
    task = Lookup()
    test = [tuple(row) for row in task.sample(200, 0).tokens.tolist()]
    for seed in (0, 1):
        batches = training_batches(task, Recipe(steps=150, warmup=30, batch_size=64), seed)
        met = {tuple(row) for parts, *_ in batches for row in parts["tokens"].tolist()}
        rows = frame[(frame["model"] == TWO) & (frame["model_seed"] == seed) & (frame["condition"] == "clean")]
        assert rows.sort_values("example")["drawn"].tolist() == [float(row in met) for row in test]
    assert frame.loc[frame["condition"] != "clean", "drawn"].isna().all()


# Files


def test_tables_are_rebuilt_from_the_results_byte_for_byte(report):
    assert_rebuilt(report)


def assert_rebuilt(folder):
    frame = pd.read_parquet(folder / "results.parquet")
    measured = table(frame, Lookup().guessing())
    made = {"table": measured, "claims": claims(frame, measured), "parts": parts(frame), "contrasts": contrasts(frame)}
    for name, rows in made.items():
        assert (folder / f"{name}.csv").read_bytes() == to_csv(rows).encode(), name


def test_the_readme_shows_the_table(report):
    assert_shown(report)


def assert_shown(folder):
    """The main table of the README, cell by cell, against the results."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    section = text.split("## The lecture's figures and ours\n")[1]
    lines = list(itertools.takewhile(lambda line: line.startswith("|"), section.strip().splitlines()))
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    measured = table(pd.read_parquet(folder / "results.parquet"), Lookup().guessing()).set_index("id")
    assert [cells[0] for cells in body] == list(MEASURED)
    for cells in body:
        shown, row = dict(zip(head, cells, strict=True)), measured.loc[cells[0]]
        assert shown["lecture"] == SAID[cells[0]]
        assert shown["here"] == percent(row["estimate"])
        assert shown["models"] == str(row["n_models"])
        assert shown["verdict"] == row["verdict"]
        exact = row["low"] == row["high"]
        assert shown["95% interval"] == ("exact" if exact else f"{percent(row['low'])} to {percent(row['high'])}")


def test_the_readme_tells_every_claims_verdict(report, claimed):
    text = (report / "README.md").read_text(encoding="utf-8")
    for row in claimed[claimed["kind"] == "claim"].to_dict("records"):
        assert f"**{row['statement']}** (`{row['id']}`): {row['verdict']}." in text


def test_every_difference_from_the_lecture_is_told(report, claimed):
    text = (report / "README.md").read_text(encoding="utf-8")
    told = re.findall(r"^- `([a-z0-9-]+)`: ", text.split("### Where we differ")[1].split("###")[0], re.MULTILINE)
    assert told == claimed.loc[claimed["verdict"] == "differs", "id"].tolist()
    assert len(told) > 3


def test_two_layer_models_that_did_not_learn_are_named(report, frame):
    text = (report / "README.md").read_text(encoding="utf-8")
    clean = frame[(frame["model"] == TWO) & (frame["condition"] == "clean")]
    for seed, share in clean.groupby("model_seed")["accuracy"].mean().items():
        assert (f"model seed {seed}: {percent(share)}" in text) == (share < 0.995)


def test_a_quick_run_says_that_its_figures_mean_nothing(report):
    assert "its figures mean nothing" in (report / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", [".md", ".csv", ".svg"])
def test_no_text_holds_a_path_a_date_or_a_commit(reports, report, suffix):
    commit = json.loads((report / "provenance.json").read_text(encoding="utf-8"))["made_with"]["commit"]
    for path in report.glob(f"*{suffix}"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.:/<])/(home|root|tmp|work|usr|Users|private|var)/", text), path.name
        assert str(reports["place"]) not in text, path.name
        assert not re.search(r"\b20\d\d-\d\d-\d\d\b|\b\d\d:\d\d:\d\d\b", text), path.name
        assert not commit or commit[:7] not in text, path.name


def test_the_readme_links_only_to_files_of_the_report(report):
    text = (report / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)]+)\)", text))
    assert linked == {f"{name}.svg" for name in FIGURES}
    assert set(re.findall(r"`([a-z]+\.(?:csv|json|parquet))`", text)) == FILES - {"README.md"} - {
        path.name for path in report.glob("*.[ps][nv]g")
    }


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_a_picture_and_a_drawing_whose_text_is_text(report, name):
    assert (report / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    drawing = ElementTree.parse(report / f"{name}.svg").getroot()
    said = " ".join("".join(one.itertext()) for one in drawing.iter("{http://www.w3.org/2000/svg}text"))
    for words in FIGURES[name]:
        assert words in said, said


def test_the_results_stay_under_2_megabytes(report):
    assert (report / "results.parquet").stat().st_size < 2e6


def test_provenance_names_the_command_the_versions_and_every_checkpoint(reports, report):
    about = json.loads((report / "provenance.json").read_text(encoding="utf-8"))
    assert about["command"] == "workbench reproduce lecture --quick --seeds 2"
    assert {"torch", "numpy", "python"} <= set(about["made_with"]["versions"])
    keys = [one["key"] for several in about["checkpoints"].values() for one in several]
    assert {path.parts[2] for path in reports["written"][0]} == set(keys)
    assert [one["seed"] for one in about["checkpoints"][TWO]] == [0, 1]
    assert str(reports["place"]) not in (report / "provenance.json").read_text(encoding="utf-8")


def test_a_second_call_trains_nothing(reports):
    first, second = reports["written"]
    assert len(first) == 2 * 4, "weights and description of two models of each depth"
    assert second == first


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_second_call_ends_in_the_same_bytes(reports, name):
    first, second = ((folder / name).read_bytes() for folder in reports["folders"])
    if name == "provenance.json":
        commits = [json.loads(one)["made_with"].pop("commit") for one in (first, second)]
        if commits[0] != commits[1]:
            pytest.skip("the commit changed between the two calls")
    assert first == second


def test_the_table_is_printed_with_a_line_per_row(reports):
    first, second = reports["printed"]
    assert first == second
    assert [line.split()[0] for line in first.splitlines()[1:20]] == [*MEASURED, *CLAIM_IDS]
    assert ("differ from the committed report" in first) == COMMITTED.is_dir()


# The committed report


@pytest.fixture(scope="session")
def committed():
    assert (COMMITTED / "results.parquet").is_file(), (
        f"{COMMITTED} has no report; write it with `workbench reproduce lecture --seeds 10 --out reports`"
    )
    return pd.read_csv(COMMITTED / "claims.csv").set_index("id")


def test_the_committed_tables_are_rebuilt_from_the_committed_results(committed):
    assert_rebuilt(COMMITTED)


def test_the_committed_readme_shows_the_committed_table(committed):
    assert_shown(COMMITTED)


def test_the_committed_report_has_every_file_and_small_results(committed):
    assert {path.name for path in COMMITTED.iterdir()} == FILES | {"index.html"}
    assert (COMMITTED / "results.parquet").stat().st_size < 2e6
    about = json.loads((COMMITTED / "provenance.json").read_text(encoding="utf-8"))
    assert "--quick" not in about["command"]


def test_the_committed_report_has_10_models_of_each_depth_and_4000_sequences(committed):
    own = committed.drop(index=["guess-any", "guess-seen", "guess-mode"])
    assert (own["n_models"] >= 10).all()
    assert (own["n_examples"] == 4000).all()


def test_two_layers_are_right_on_every_sequence_or_the_failing_seed_is_told(committed):
    frame, text = pd.read_parquet(COMMITTED / "results.parquet"), (COMMITTED / "README.md").read_text(encoding="utf-8")
    clean = frame[(frame["model"] == TWO) & (frame["condition"] == "clean")]
    for seed, share in clean.groupby("model_seed")["accuracy"].mean().items():
        assert share == 1 or f"| {TWO} | {seed} | {percent(share)} |" in text
        assert share >= 0.995 or f"model seed {seed}: {percent(share)}" in text


@pytest.mark.parametrize("id", ["cut-other", "cut-largest", "uniform", "no-update"])
def test_what_the_output_does_not_need_costs_less_than_1_answer_in_100(committed, id):
    assert committed.loc[id, "estimate"] >= 0.99


@pytest.mark.parametrize("id", ["prev", "match"])
def test_both_heads_give_their_relation_more_than_95_hundredths(committed, id):
    assert committed.loc[id, "estimate"] > 0.95


def test_cutting_the_answer_leaves_a_blind_guess(committed):
    assert committed.loc["cut-answer", "estimate"] == pytest.approx(1 / 8, abs=0.02)


def test_cutting_the_hidden_link_leaves_about_a_guess_among_the_digits_seen(committed):
    assert committed.loc["cut-hidden", "estimate"] == pytest.approx(GUESSES["seen"], abs=0.08)


def test_one_layer_is_not_better_than_the_most_frequent_digit(committed):
    assert committed.loc["base-1", "low"] <= committed.loc["guess-mode", "estimate"] + 0.01


def test_the_four_claims_have_the_verdicts_that_the_lecture_argues_for(committed):
    assert committed.loc[CLAIM_IDS, "verdict"].to_dict() == IDEALLY


def test_the_committed_page_is_of_the_committed_table_and_of_the_study_in_the_file(committed):
    from workbench.study_file import read_study

    page = (COMMITTED / "index.html").read_text(encoding="utf-8")
    study = read_study(Path(__file__).parents[1] / "analyses" / "lecture.toml")
    numbers = {round(float(number), 6) for number in re.findall(r"\b[01](?:\.\d+)?\b", page)}
    for condition in study.conditions:
        assert f">{condition}<" in page
        if condition in committed.index:
            assert round(float(committed.loc[condition, "estimate"]), 6) in numbers
