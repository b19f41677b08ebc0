"""The analysis `patches`: its roles and controls, its numbers on cases made by hand, its verdicts, its report."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.patches import LAYERS, configs, main, study
from analyses.patches_claims import EVEN, LARGE, SMALL, corners, of_large, of_small, rank_correlations, verdicts
from analyses.patches_measure import KINDS, by_patch, with_halves, with_most, with_patches_moved, without_positions
from analyses.patches_report import LABELS, tables
from tasks.patches import Patches
from workbench import Transformer, record, run
from workbench.checkpoints import Trained
from workbench.tables import to_csv

COMMITTED = Path(__file__).parent.parent / "reports" / "patches"
committed = pytest.mark.skipif(not COMMITTED.is_dir(), reason="no report is committed yet")
with_digits = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed")
pytestmark = with_digits


@pytest.fixture(scope="module")
def batch():
    return with_halves(Patches(part="test").sample(40, seed=0), seed=1)


@pytest.fixture(scope="module")
def models():
    return {name: Transformer(config, seed=0) for name, config in configs(Patches()).items()}


# Roles and controls


def test_as_many_patches_are_pale_as_are_inked_and_none_is_both(batch):
    inked, pale = batch.roles["inked"], batch.roles["pale"]
    assert inked.sum(1).equal(pale.sum(1)) and (inked.sum(1) > 0).all() and not (inked & pale).any()
    assert not (inked | pale)[:, 0].any()


def test_no_patch_that_is_left_out_has_more_ink_than_an_inked_one_or_less_than_a_pale_one(batch):
    ink = batch.inputs["patches"].sum(2)
    inked, pale = batch.roles["inked"][:, 1:], batch.roles["pale"][:, 1:]
    assert (ink.masked_fill(~inked, torch.inf).amin(1) >= ink.masked_fill(inked, 0).amax(1)).all()
    assert (ink.masked_fill(~pale, 0).amax(1) <= ink.masked_fill(pale, torch.inf).amin(1)).all()


def test_the_largest_patch_is_the_rows_largest_weight_on_a_patch_and_its_control_the_nearest_in_ink(batch, models):
    model = models["positions"]
    found, ink = with_most(model, batch, seed=3), batch.inputs["patches"].double().sum(2)
    for layer in range(LAYERS):
        row = record(model, batch, [("pattern", layer)])["pattern", layer][:, 0, 0, 1:]
        most, like = (found.relations[f"{name}-{layer}"] for name in ("most", "like"))
        assert (most.sum((1, 2)) == 1).all() and (like.sum((1, 2)) == 1).all() and not (most & like).any()
        assert most[:, 0, 1:].int().argmax(1).equal(row.argmax(1))
        away = (ink - ink[most[:, 0, 1:]][:, None]).abs()
        nearest = away.masked_fill(most[:, 0, 1:], torch.inf).amin(1)
        assert away[like[:, 0, 1:]].equal(nearest)


def test_moved_patches_are_the_same_ones_elsewhere_and_their_roles_go_with_them(batch):
    moved = with_patches_moved(batch, seed=2)
    still, there = batch.inputs["patches"], moved.inputs["patches"]
    assert not still.equal(there)
    assert still.sum(2).sort(1).values.equal(there.sum(2).sort(1).values)
    assert moved.labels.equal(batch.labels)
    lightest = there.sum(2).masked_fill(~moved.roles["inked"][:, 1:], torch.inf).amin(1)
    assert lightest.equal(still.sum(2).masked_fill(~batch.roles["inked"][:, 1:], torch.inf).amin(1))
    assert moved.roles["centre"].equal(batch.roles["centre"])


# Positions


def test_without_positions_the_places_of_patches_are_alike_and_the_class_tokens_stays(models):
    one = Trained(models["positions"], 0, Path(), [], {})
    before = one.model.pos_embed.W_pos.clone()
    for averaged in (True, False):
        after = without_positions(one, averaged=averaged).model.pos_embed.W_pos
        assert after[0].equal(before[0]) and after[1:].equal(after[1:2].expand_as(after[1:]))
        assert torch.allclose(after[1], before[1:].mean(0) if averaged else torch.zeros_like(before[1]))
    assert one.model.pos_embed.W_pos.equal(before)


def test_moving_patches_changes_the_logits_of_a_model_with_positions_alone(batch, models):
    moved = with_patches_moved(batch, seed=2)
    for name, model in models.items():
        still, there = (run(model, one, positions="read").logits for one in (batch, moved))
        assert torch.allclose(still, there, atol=1e-5) == (name == "no positions")


# Single patches


def test_the_effect_of_each_patch_is_that_of_cutting_it(batch, models):
    model = models["positions"]
    few = batch.select(slice(3))
    table = by_patch(model, few).set_index(["image", "patch"])
    assert len(table) == 3 * 16
    pattern = record(model, few, [("pattern", 1)])["pattern", 1][:, 0, 0]
    assert table["weight-1"].to_numpy().reshape(3, 16) == pytest.approx(pattern[:, 1:].numpy(), abs=1e-5)
    from workbench import Edges, cut
    from workbench.metrics import tv_to_clean

    clean = run(model, few, positions="read").logits
    named = few.with_roles(fifth=(torch.arange(17) == 6).expand(3, -1))
    for column, layers, dest in (("cut-1", [1], "class"), ("hide", [0, 1], None)):
        edits = [cut(Edges(layer=layer, dest=dest, source="fifth")) for layer in layers]
        by_hand = tv_to_clean(run(model, named, edits, positions="read").logits, named, clean)
        assert table.xs(5, level="patch")[column].to_numpy() == pytest.approx(by_hand.numpy(), abs=1e-5)


def edges(**columns):
    return pd.DataFrame({"model_seed": 0, "image": 0, **columns})


def test_corners_count_edges_by_weight_and_effect():
    table = edges(w=[LARGE, LARGE, SMALL, SMALL, 0.05], e=[0.01, 0.011, 0.1, 0.099, 0.0])
    assert corners(table, "w", "e") == (0.2, 0.2)
    assert of_large(table, "w", "e") == [0.5] and of_small(table, "w", "e") == [0.5]


def test_a_model_without_a_large_weight_has_none_without_effect():
    assert of_large(edges(w=[EVEN], e=[0.0]), "w", "e") == [0.0]


def test_rank_correlation_is_taken_within_an_image_and_then_averaged():
    one = edges(w=[0.1, 0.2, 0.7], e=[0.0, 0.1, 0.9])
    other = edges(w=[10.0, 20.0, 70.0], e=[3.0, 2.0, 1.0]).assign(image=1)
    still = edges(w=[0.3, 0.3], e=[0.0, 1.0]).assign(image=2)
    assert rank_correlations(pd.concat([one, other, still]), "w", "e") == pytest.approx([0.0])


# Verdicts

SEEDS, N = 4, 1500


def results(**shares):
    """A results frame in which each condition has this accuracy, 0.95 where nothing is said, and every weight 0.05."""
    plan, cells = study(N), []
    shares = {name.replace("_", "-"): share for name, share in shares.items()}
    for seed in range(SEEDS):
        for condition in plan.conditions:
            right = (np.arange(N) < round((shares.get(condition, 0.95) + 0.005 * (seed % 2)) * N)).astype(float)
            weights = {name: (0.05 + 0.001 * seed if condition == "clean" else np.nan) for name in plan.weights}
            if condition == "clean":
                weights["ink-1"] = shares.get("ink-1", 0.12) + 0.002 * seed
            keys = {"model": "positions", "model_seed": seed, "condition": condition, "example": np.arange(N)}
            cells.append(pd.DataFrame({**keys, "skipped": None, "accuracy": right, **weights}))
    return pd.concat(cells, ignore_index=True).astype(dict.fromkeys(("model", "condition", "skipped"), "category"))


def places(**shares):
    given = {"positions": 0.95, "positions, patches moved": 0.2, "positions averaged": 0.3, "no positions": 0.7}
    given |= {"positions set to zero": 0.3, "no positions, patches moved": 0.7, **shares}
    cells = [
        pd.DataFrame({"model": kind, "model_seed": seed, "condition": "clean", "example": np.arange(N), "skipped": None,
                      "accuracy": (np.arange(N) < round((share + 0.005 * (seed % 2)) * N)).astype(float)})
        for kind, share in given.items() for seed in range(SEEDS)
    ]  # fmt: skip
    return pd.concat(cells, ignore_index=True).astype(dict.fromkeys(("model", "condition", "skipped"), "category"))


def patches_of(**shifted):
    """Edges of which a large weight is idle, a small one hides much, and cutting goes with the weight."""
    weight = np.tile(np.linspace(0.0, 0.3, 16), SEEDS * 10)
    index = {"model_seed": np.repeat(np.arange(SEEDS), 160), "image": np.tile(np.repeat(np.arange(10), 16), SEEDS)}
    noise = np.random.default_rng(0).normal(size=len(weight))
    columns = {"weight-0": weight, "weight-1": weight, "cut-0": weight, "cut-1": 0.03 * weight + 5e-4 * noise,
               "hide": 0.11 - 0.1 * weight + 0.01 * noise}  # fmt: skip
    return pd.DataFrame({**index, "patch": np.tile(np.arange(16), SEEDS * 10), "ink": 0.5, **columns, **shifted})


def found(**changes):
    ideal = {"no_update_0": 0.95, "no_update_1": 0.1, "uniform": 0.5, "cut_inked": 0.4, "hide_inked": 0.2,
             "cut_most_1": 0.7, "cut_like_1": 0.94}  # fmt: skip
    given = {name: changes.pop(name) for name in list(changes) if name not in ("places", "edges", "apart")}
    return {"digits": SimpleNamespace(frame=results(**ideal | given), places=places(**changes.get("places", {})),
                                      edges=changes.get("edges", patches_of()), apart=changes.get("apart", [1e-7])),
            }  # fmt: skip


def outcomes(**changes):
    table = verdicts(found(**changes)).set_index("id")["verdict"]
    return {id.removeprefix("digits-"): verdict for id, verdict in table.items()}


def test_every_claim_is_supported_by_what_would_support_it():
    said = outcomes()
    assert set(said.values()) == {"supported"}, said


@pytest.mark.parametrize(
    ("claim", "doctored"),
    [
        ("learned", {"clean": 0.5}),
        ("first-row-idle", {"no_update_0": 0.5}),
        ("last-row-matters", {"no_update_1": 0.9}),
        ("weights-matter", {"uniform": 0.95}),
        ("ink-matters", {"cut_inked": 0.95}),
        ("most-matters", {"cut_most_1": 0.94}),
        ("hidden-ink", {"hide_inked": 0.4}),
        ("ink-weight", {"ink_1": 0.05}),
        ("positions-help", {"places": {"no positions": 0.95}}),
        ("moved", {"places": {"positions, patches moved": 0.95}}),
        ("removed-late", {"places": {"positions averaged": 0.95}}),
        ("no-order", {"apart": [1e-7, 1e-3]}),
    ],
)
def test_a_claim_is_not_supported_by_results_that_speak_against_it(claim, doctored):
    assert outcomes(**doctored)[claim] == "not supported"


def test_claims_on_single_patches_fail_where_effects_are_otherwise():
    weights, noise = patches_of()["weight-1"], np.random.default_rng(1).normal(size=SEEDS * 160)
    doctored = {"cut-1": 0.105 - 0.3 * weights + 0.02 * noise, "hide": 4 * weights**2 + 0.01 * noise}
    said = outcomes(edges=patches_of(**doctored))
    # No small weight has a large effect in any model: shares that do not vary have no interval, and decide nothing.
    assert said["effect-without-weight"] == "undecided"
    claims = ("weight-without-effect", "row-order", "whole-order")
    assert {claim: said[claim] for claim in claims} == dict.fromkeys(claims, "not supported")


# The report


def test_every_condition_has_words():
    assert set(LABELS) == set(study(1).conditions)


def test_importing_the_analysis_imports_no_torch():
    code = "import sys, analyses.patches; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@committed
def test_the_committed_tables_are_those_of_the_committed_rows():
    sources = [path.stem.removeprefix("results-") for path in sorted(COMMITTED.glob("results-*.parquet"))]
    rows = {
        source: SimpleNamespace(**{
            field: pd.read_parquet(COMMITTED / f"{name}-{source}.parquet")
            for field, name in {"frame": "results", "places": "places", "edges": "edges"}.items()
        })
        for source in sources
    }  # fmt: skip
    made = tables(rows)
    assert set(made) == {path.stem for path in COMMITTED.glob("*.csv")} - {"verdicts"}
    for name, table in made.items():
        assert to_csv(table) == (COMMITTED / f"{name}.csv").read_text(), name


@committed
def test_the_committed_verdicts_follow_from_the_committed_rows():
    said = pd.read_csv(COMMITTED / "verdicts.csv").set_index("id")
    apart = {id.split("-")[0]: [row["estimate"]] for id, row in said.iterrows() if id.endswith("-no-order")}
    rows = {
        source: SimpleNamespace(**{
            field: pd.read_parquet(COMMITTED / f"{name}-{source}.parquet")
            for field, name in {"frame": "results", "places": "places", "edges": "edges"}.items()
        }, apart=apart[source])
        for source in apart
    }  # fmt: skip
    assert verdicts(rows).set_index("id")["verdict"].to_dict() == said["verdict"].to_dict()


@committed
def test_the_committed_report_has_five_models_of_each_kind_and_every_kind_of_position():
    known = json.loads((COMMITTED / "provenance.json").read_text())
    assert {len(several) for several in known["checkpoints"].values()} == {5}
    for path in COMMITTED.glob("positions-*.csv"):
        assert tuple(pd.read_csv(path)["model"]) == KINDS


@pytest.mark.slow
def test_the_quick_run_writes_a_whole_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "runs"))
    folder = main(out=tmp_path, quick=True, progress=False)
    text = (folder / "README.md").read_text()
    assert "quick run" in text and {path.suffix for path in folder.iterdir()} >= {".md", ".csv", ".svg", ".parquet"}
    for figure in ("accuracy", "positions", "weights", "edges", "maps"):
        assert f"{figure}-digits.svg" in text and (folder / f"{figure}-digits.svg").is_file()
