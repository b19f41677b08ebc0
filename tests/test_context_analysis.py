"""The analysis `context`: its relations and distances, its verdicts, its report."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.context import DECODER, ENCODER, KINDS, LAYERS, configs, main, of_masked, of_pronoun, tasks
from analyses.context_claims import BEFORE, verdicts
from analyses.context_measure import ROLES, asking, before, even_sided, label, vectors_apart, with_sides
from analyses.context_report import MASKED, PRONOUN, tables
from tasks.masked import Masked
from tasks.pronoun import Pronoun
from workbench import Transformer
from workbench.batch import UNREAD
from workbench.tables import to_csv

COMMITTED = Path(__file__).parent.parent / "reports" / "context"
committed = pytest.mark.skipif(not COMMITTED.is_dir(), reason="no report is committed yet")
SIDES = ("right", "left")


# Sentences and relations


@pytest.fixture(scope="module")
def batch():
    return even_sided(Masked().sample(300, seed=0))


def test_of_an_even_sided_sentence_as_many_neighbours_can_be_cut_on_either_side_the_clue_among_them(batch):
    assert 50 < len(batch) < 300
    with_all = with_sides(batch)
    near = {side: with_all.relations[f"near_{side}"] for side in SIDES}
    assert near["left"].sum(2).equal(near["right"].sum(2))
    masked = batch.roles["masked"][:, :, None]
    for side in SIDES:
        told = batch.relations["told_by"] & batch.roles[f"by_{side}"][:, :, None]
        assert (told & near[side]).equal(told) and told.any((1, 2)).all()
        assert not (near[side] & masked & ~with_all.relations[side]).any()


def test_the_sentences_left_out_have_a_clue_further_away_than_the_nearer_end():
    whole = Masked().sample(300, seed=0)
    kept, n_far = even_sided(whole), 0
    for example in range(len(whole)):
        ends = []
        for mask, clue in whole.relations["told_by"][example].nonzero().tolist():
            ends.append(abs(mask - clue) > min(mask, whole.tokens.shape[1] - 1 - mask))
        n_far += any(ends)
    assert len(kept) == len(whole) - n_far


def test_the_two_sides_of_a_position_are_all_others(batch):
    found = with_sides(batch).relations
    itself = torch.eye(batch.tokens.shape[1], dtype=torch.bool).expand(len(batch), -1, -1)
    assert (found["right"] ^ found["left"] ^ itself).all()
    assert found["right"][0, 3].nonzero().flatten().tolist() == list(range(4, batch.tokens.shape[1]))


@pytest.mark.parametrize("side", SIDES)
def test_only_masks_of_one_side_are_read(batch, side):
    one = asking(batch, side)
    read = one.labels != UNREAD
    assert read.equal(batch.roles[f"by_{side}"]) and read.equal(one.roles["asked"])
    assert one.labels[read].equal(batch.labels[read])


# Distances


def test_roles_before_are_those_left_of_what_differs():
    assert {role for name in ROLES for role in before(name)} == set(BEFORE)


@pytest.mark.parametrize("task", [Pronoun(), Masked()], ids=lambda task: task.name)
@pytest.mark.parametrize("kind", KINDS)
def test_left_of_what_differs_only_an_encoders_vectors_part(task, kind):
    model = Transformer(configs(task)[kind], seed=0)
    table = vectors_apart(model, task.sample(30, seed=0), task, task.name)
    assert len(table) == len(ROLES[task.name]) * (1 + LAYERS[task.name])
    left = table[table["role"].isin(before(task.name))]
    assert (left[left["stage"] == 0]["largest"] == 0).all()
    later = left[left["stage"] > 0]
    assert (later["largest"] == 0).all() if kind == DECODER else (later["distance"] > 1e-4).all()


def test_distances_are_those_of_the_vectors():
    task = Pronoun()
    model, batch = Transformer(configs(task)[ENCODER], seed=0), task.sample(5, seed=0)
    table = vectors_apart(model, batch, task, "pronoun").set_index(["role", "stage"])
    from workbench import record

    other = task.corrupt(batch, seed=1)
    a, b = (record(model, one, [("resid_post", 1)])["resid_post", 1][:, -1].double() for one in (batch, other))
    by_hand = ((a - b).norm(dim=1) / ((a.norm(dim=1) + b.norm(dim=1)) / 2)).mean()
    angle = (1 - (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).mean()
    row = table.loc[("last", 2)]
    assert row["distance"] == pytest.approx(float(by_hand)) and row["cosine"] == pytest.approx(float(angle))
    assert row["largest"] == pytest.approx(float((a - b).abs().max()))


# Verdicts

SEEDS, N = 4, 1500


def frame(kinds, weights=()):
    """A results frame: kind → condition → accuracy; `weights`: name → mean in the clean condition of each kind."""
    cells = []
    for kind, conditions in kinds.items():
        for condition, share in conditions.items():
            for seed in range(SEEDS):
                right = (np.arange(N) < round((share + 0.002 * (seed % 2)) * N)).astype(float)
                known = dict(weights) if condition == "clean" else dict.fromkeys(dict(weights), np.nan)
                jitter = {name: value + 1e-4 * seed * (name[-1] == "1") for name, value in known.items()}
                cells.append(pd.DataFrame({"model": kind, "model_seed": seed, "condition": condition,
                                           "example": np.arange(N), "skipped": None, "accuracy": right, **jitter}))
    whole = pd.concat(cells, ignore_index=True)
    return whole.astype(dict.fromkeys(("model", "condition", "skipped"), "category"))


def distances(**changes):
    """A table of distances as it is where a decoder is blind to its right."""
    rows = []
    for task, roles in ROLES.items():
        for kind in KINDS:
            for role in roles:
                for stage in range(1 + LAYERS[task]):
                    for seed in range(SEEDS):
                        same = stage == 0 and role not in ("verb", "clue")
                        blind = kind == DECODER and role in BEFORE
                        value = 0.0 if same or blind else 0.4 + 0.01 * seed
                        rows.append({"task": task, "kind": kind, "role": role, "stage": stage, "model_seed": seed,
                                     "distance": value, "cosine": value / 2, "largest": value})  # fmt: skip
    table = pd.DataFrame(rows)
    for (kind, role, stage), value in changes.get("at", {}).items():
        which = (table["kind"] == kind) & (table["role"] == role) & (table["stage"] == stage)
        for column in ("distance", "largest"):
            table.loc[which, column] = value + 1e-3 * table.loc[which, "model_seed"]
    return table


ANSWERS = {"clean": 0.99, "cut-last-referent": 0.3, "cut-last-nearest": 0.98, "cut-it-referent": 0.99}
RIGHT = {"clean": 0.99, "cut-right": 0.4, "cut-left": 0.99, "cut-near-right": 0.4, "cut-near-left": 0.99,
         "all-right": 0.24, "cut-told": 0.4, "cut-other": 0.99}  # fmt: skip
LEFT = {"clean": 0.99, "cut-right": 0.99, "cut-left": 0.4, "cut-near-right": 0.99, "cut-near-left": 0.4,
        "all-right": 0.98, "cut-told": 0.4, "cut-other": 0.99}  # fmt: skip
WEIGHTS = {"it-referent-1": 0.07, "it-distractors-1": 0.07, "last-referent-2": 0.5, "last-distractors-2": 0.1}


def outcomes(decoder=(), encoder=(), right=(), left=(), causal=(), weights=(), apart=None):
    pronoun = frame({DECODER: {**ANSWERS, **dict(decoder)}, ENCODER: {**ANSWERS, **dict(encoder)}}, WEIGHTS)
    seeds = pronoun["model_seed"] * 1e-3
    pronoun["last-referent-2"] += seeds
    pronoun["it-referent-1"] += seeds
    pronoun.loc[pronoun["model"] == ENCODER, "it-referent-1"] += 0.1
    for (kind, name), value in dict(weights).items():
        pronoun.loc[pronoun["model"] == kind, name] = value + seeds[pronoun["model"] == kind]
    masked = frame({
        label(ENCODER, "right"): {**RIGHT, **dict(right)}, label(ENCODER, "left"): {**LEFT, **dict(left)},
        label(DECODER, "right"): {"clean": 0.25, **dict(causal)}, label(DECODER, "left"): {"clean": 0.99},
    })  # fmt: skip
    table = distances() if apart is None else apart
    found = SimpleNamespace(tasks=tasks(), apart=table, pronoun=pronoun, masked=masked)
    return verdicts(found).set_index("id")["verdict"].to_dict()


def test_every_claim_is_supported_by_what_would_support_it():
    said = outcomes()
    assert set(said.values()) == {"supported"}, said


@pytest.mark.parametrize(
    ("claim", "doctored"),
    [
        ("same-embedding", {"apart": distances(at={(ENCODER, "it", 0): 1e-9})}),
        ("decoder-left", {"apart": distances(at={(DECODER, "mask before", 2): 1e-9})}),
        ("encoder-left-pronoun", {"apart": distances(at={(ENCODER, "it", 3): 0.01})}),
        ("encoder-left-masked", {"apart": distances(at={(ENCODER, "mask before", 2): 0.01})}),
        ("encoder-first-layer", {"apart": distances(at={(ENCODER, "it", 1): 0.01})}),
        ("decoder-after", {"apart": distances(at={(DECODER, "last", 3): 0.01})}),
        ("pronoun-decoder-learned", {"decoder": {"clean": 0.7}}),
        ("pronoun-encoder-last", {"encoder": {"cut-last-referent": 0.98}}),
        ("pronoun-decoder-it", {"decoder": {"cut-it-referent": 0.5}}),
        ("pronoun-decoder-it-weight", {"weights": {(DECODER, "it-referent-1"): 0.2}}),
        ("pronoun-encoder-it-weight", {"weights": {(ENCODER, "it-referent-1"): 0.07}}),
        ("pronoun-decoder-last-weight", {"weights": {(DECODER, "last-referent-2"): 0.1}}),
        ("encoder-right", {"right": {"clean": 0.6}}),
        ("decoder-right", {"causal": {"clean": 0.5}}),
        ("right-cut-right", {"right": {"cut-right": 0.98}}),
        ("right-cut-left", {"left": {"cut-right": 0.4}}),
        ("left-cut-left", {"left": {"cut-left": 0.98}}),
        ("left-cut-right", {"right": {"cut-left": 0.4}}),
        ("matched-right", {"right": {"cut-near-left": 0.4}}),
        ("matched-left", {"left": {"cut-near-right": 0.4}}),
        ("clue-right", {"right": {"cut-other": 0.4}}),
        ("row-not-blind", {"right": {"cut-right": 0.25}}),
        ("made-causal-right", {"right": {"all-right": 0.9}}),
        ("made-causal-left", {"left": {"all-right": 0.5}}),
    ],
)
def test_a_claim_is_not_supported_by_results_that_speak_against_it(claim, doctored):
    assert outcomes(**doctored)[claim] == "not supported"


# The report


def test_every_condition_has_words():
    assert set(PRONOUN) == set(of_pronoun(1).conditions)
    assert set(MASKED) == set(of_masked(ENCODER, 1).conditions) >= set(of_masked(DECODER, 1).conditions)


def test_importing_the_analysis_imports_no_torch():
    code = "import sys, analyses.context; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def rows():
    return {name: pd.read_parquet(COMMITTED / f"{name}.parquet") for name in ("apart", "pronoun", "masked")}


@committed
def test_the_committed_tables_are_those_of_the_committed_rows():
    made = tables(**rows())
    assert set(made) == {path.stem for path in COMMITTED.glob("*.csv")} - {"verdicts"}
    for name, table in made.items():
        assert to_csv(table) == (COMMITTED / f"{name}.csv").read_text(), name


@committed
def test_the_committed_verdicts_follow_from_the_committed_rows():
    said = pd.read_csv(COMMITTED / "verdicts.csv").set_index("id")["verdict"]
    made = verdicts(SimpleNamespace(tasks=tasks(), **rows())).set_index("id")["verdict"]
    assert made.to_dict() == said.to_dict()


@committed
def test_the_committed_report_has_five_models_of_each_kind():
    known = json.loads((COMMITTED / "provenance.json").read_text())
    assert {len(several) for several in known["checkpoints"].values()} == {5}


@pytest.mark.slow
def test_the_quick_run_writes_a_whole_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "runs"))
    folder = main(out=tmp_path, quick=True, progress=False)
    text = (folder / "README.md").read_text()
    assert "quick run" in text
    for figure in folder.glob("*.svg"):
        assert figure.name in text, figure.name
