"""The rxnmapper cuts: conditions, single edges, values kept on disk, claims, report; what needs the wheel is slow."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from test_rxnmapper import VOCABULARY, fetched, kept, small_model  # noqa: F401 (fetched is a fixture)

from analyses import rxnmapper_cuts
from analyses.rxnmapper import Evidence, clean_patterns, main, results_frame
from analyses.rxnmapper_batch import batch_of, masked
from analyses.rxnmapper_cuts import conditions, cut_values, measured, random_edges, top_edges, trimmed
from analyses.rxnmapper_mapping import UNMAPPED, agreement
from analyses.rxnmapper_mapping import mapped as map_atoms
from analyses.rxnmapper_model import patterns
from analyses.rxnmapper_reactions import reactions
from analyses.rxnmapper_report import SENTENCES, claims_of, claims_table, write
from workbench import judge, run, together, wrap
from workbench.metrics import accuracy, loss
from workbench.results import check

COMMITTED = Path(__file__).parent.parent / "reports" / "rxnmapper"
TWO = batch_of(["CCBr.O>>CCO", "CI>>CI"], VOCABULARY)
SOME = batch_of(list(reactions().values())[:5], VOCABULARY)
MADE = masked(SOME, copies=3, seed=0)
SMALL = {one.label: one for one in conditions(range(3), 2, edges=False)}


# Conditions


def test_the_conditions_are_clean_96_heads_12_layers_8_columns_all_and_3_single_edges():
    made = conditions(range(12), 8)
    families = [one.family for one in made]
    assert [families.count(name) for name in ("clean", "head", "layer", "column", "all", "edge")] == [
        1,
        96,
        12,
        8,
        1,
        3,
    ]
    assert len({one.label for one in made}) == len({one.interventions for one in made}) == 121


@pytest.mark.parametrize(
    ("label", "cuts"),
    [
        ("clean", []),
        ("L1H0", ["cut L1H0 product←reactant"]),
        ("L2", ["cut L2 product←reactant"]),
        ("H1", ["cut L0H1 product←reactant", "cut L1H1 product←reactant", "cut L2H1 product←reactant"]),
        ("all", ["cut L0 product←reactant", "cut L1 product←reactant", "cut L2 product←reactant"]),
    ],
)
def test_a_condition_cuts_what_its_label_says(label, cuts):
    assert [str(one) for one in SMALL[label].interventions] == cuts


def test_single_edges_are_cut_in_the_published_head():
    said = [str(one.interventions[0]) for one in conditions([10], 8) if one.family == "edge"]
    assert said == [f"cut L10H5 product←{name}" for name in ("top edge", "random edge", "top edge of the copy")]


# Single edges

AT = torch.tensor([[UNMAPPED] * 7 + [1, 2, 5, UNMAPPED], [UNMAPPED] * 4 + [1, 1] + [UNMAPPED] * 5])


def test_top_edges_lead_from_each_product_atom_to_the_atom_it_is_mapped_to():
    assert top_edges(AT).nonzero().tolist() == [[0, 7, 1], [0, 8, 2], [0, 9, 5], [1, 4, 1], [1, 5, 1]]


def test_random_edges_lead_from_each_product_atom_to_another_reactant_atom():
    for seed in range(20):
        edges = random_edges(AT, TWO, seed=seed)
        assert torch.equal(edges.sum(-1), TWO.role("product").long())
        assert not (edges & ~TWO.edges("product", "reactant")).any() and not (edges & top_edges(AT)).any()


def test_random_edges_are_drawn_evenly_and_by_the_seed():
    drawn = torch.stack([random_edges(AT, TWO, seed=seed) for seed in range(600)])
    counts = drawn.sum(0)[0, 7]
    assert (counts > 0).nonzero().flatten().tolist() == [2, 3, 5] and (counts[[2, 3, 5]] - 200).abs().max() < 50
    assert torch.equal(drawn[3], random_edges(AT, TWO, seed=3)) and not torch.equal(drawn[3], drawn[4])


def test_another_reaction_leaves_the_edges_drawn_before_it():
    alone = random_edges(AT[:1], TWO.select(slice(0, 1)), seed=0)
    assert torch.equal(random_edges(AT, TWO, seed=0)[:1], alone)


def test_a_reaction_with_one_reactant_atom_has_no_other_edge():
    batch = batch_of(["CO>>CO", "C>>CC"], VOCABULARY)
    at = batch.role("reactant").int().argmax(1, keepdim=True).masked_fill(~batch.role("product"), UNMAPPED)
    with pytest.raises(ValueError, match=r"examples \[1\] have one reactant atom"):
        random_edges(at, batch, seed=0)


# Values


@pytest.fixture(scope="module")
def model():
    return wrap(small_model())


def by_run(model, interventions):
    """The values from one `run` of the whole batch, padding and all."""
    logits = run(model, MADE.batch, interventions).logits
    return [MADE.per_reaction(measure(logits, MADE.batch)).tolist() for measure in (loss, accuracy)]


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("label", ["clean", "L1H0", "L2", "H1", "all"])
def test_values_in_chunks_ordered_by_length_are_those_of_the_batch_run_whole(model, label, chunk):
    found = cut_values(model, MADE, SMALL[label].interventions, chunk=chunk)
    assert list(found.columns) == ["loss", "accuracy"] and len(found) == 5
    for name, expected in zip(found.columns, by_run(model, SMALL[label].interventions), strict=True):
        assert found[name].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_cut_changes_the_values(model):
    clean, *others = (cut_values(model, MADE, SMALL[label].interventions)["loss"] for label in ("clean", "L1H0", "all"))
    assert all((other - clean).abs().min() > 1e-7 for other in others)


def test_a_cut_that_has_nothing_to_cut_is_refused(model):
    nothing = replace(MADE, batch=MADE.batch.with_roles(reactant=torch.zeros_like(MADE.batch.valid)))
    with pytest.raises(Exception, match="reactant"):
        cut_values(model, nothing, SMALL["L1H0"].interventions)


def test_a_trimmed_batch_lacks_only_columns_that_are_padding_everywhere():
    related = TWO.with_relations(top=top_edges(AT))
    short = trimmed(related.select(slice(1, 2)))
    assert short.tokens.shape == (1, 7) and short.valid.all()
    assert short.words(0) == ["[CLS]", "C", "I", ">>", "C", "I", "[SEP]"]
    assert short.edges(None, "top").nonzero().tolist() == [[0, 4, 1], [0, 5, 1]]
    assert trimmed(related).digest() == related.digest()


# Values kept on disk


@pytest.fixture(scope="module")
def run_once(tmp_path_factory):
    """A home with a small model, and what two workers measured there."""
    place = tmp_path_factory.mktemp("home")
    kept(place)
    several = [SMALL[label] for label in ("clean", "L1H0", "H1")]
    return place, several, measured(MADE, several, place=place, progress=False)


def files(place):
    return sorted((place / "rxnmapper").iterdir())


def test_workers_measure_what_this_process_would(run_once, model):
    _, several, values = run_once
    assert list(values) == ["clean", "L1H0", "H1"]
    for one in several:
        expected = cut_values(model, MADE, one.interventions)
        pd.testing.assert_frame_equal(values[one.label][["loss", "accuracy"]], expected, rtol=1e-6)
        assert (values[one.label]["seconds"] > 0).all()


def test_values_that_are_kept_are_not_measured_again(run_once, monkeypatch):
    place, several, values = run_once
    assert [path.suffix for path in files(place)] == [".parquet"] * 3
    monkeypatch.setattr(rxnmapper_cuts, "_run_all", None)
    again = measured(MADE, several, place=place, progress=False)
    assert all(again[label].equals(values[label]) for label in values)


def test_a_run_that_was_stopped_goes_on_with_what_is_left(run_once, monkeypatch):
    place, several, _ = run_once
    asked = []
    monkeypatch.setattr(rxnmapper_cuts, "_run_all", lambda made, jobs, *_: asked.extend(jobs))
    with pytest.raises(ValueError, match="cannot be read"):
        measured(MADE, [*several, SMALL["all"]], place=place, progress=False)
    ((interventions, path),) = asked
    assert interventions == SMALL["all"].interventions and path not in files(place)


@pytest.mark.parametrize("other", ["masks", "cut", "weights"])
def test_values_of_other_masks_cuts_or_weights_are_not_taken(run_once, monkeypatch, tmp_path, other):
    place, _, _ = run_once
    made = masked(SOME, copies=3, seed=1) if other == "masks" else MADE
    if other == "weights":
        place = tmp_path
        kept(place, state={name: value * 2 for name, value in _state().items()})
    asked = []
    monkeypatch.setattr(rxnmapper_cuts, "_run_all", lambda made, jobs, *_: asked.extend(jobs))
    with pytest.raises(ValueError, match="cannot be read"):
        measured(made, [SMALL["L2H0" if other == "cut" else "L1H0"]], place=place, progress=False)
    assert asked[0][1].name not in {path.name for path in files(run_once[0])}


def _state():
    from test_rxnmapper import state_of

    return state_of(small_model())


@pytest.mark.parametrize("damage", ["bytes", "columns", "rows"])
def test_damaged_values_are_refused_with_what_mends_them(run_once, damage, monkeypatch):
    place, several, _ = run_once
    path = next(path for path in files(place))
    whole = path.read_bytes()
    if damage == "bytes":
        path.write_bytes(whole[:100])
    else:
        values = pd.read_parquet(path)
        (values.drop(columns="accuracy") if damage == "columns" else values.iloc[:2]).to_parquet(path, index=False)
    try:
        with pytest.raises(ValueError, match=r"\.parquet (cannot be read|does not hold).*delete it, and run again"):
            measured(MADE, several, place=place, progress=False)
    finally:
        path.write_bytes(whole)


def test_a_missing_model_is_refused_with_the_command_that_fetches_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"fetch the model once with `python -m analyses.rxnmapper_model"):
        main(out=tmp_path / "out", place=tmp_path, progress=False)
    assert not (tmp_path / "out").exists()


def test_more_models_than_the_published_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match="seeds=3 was asked; there is one published model"):
        main(out=tmp_path, seeds=3)


# What the weights show


def test_one_pass_shows_maps_and_weights(monkeypatch):
    import analyses.rxnmapper as module

    monkeypatch.setattr(module, "LAYER_AND_HEAD", (2, 1))
    inner = small_model()
    inner.set_attn_implementation("eager")
    shown, recorded = clean_patterns(inner, TWO), patterns(inner, TWO)
    assert shown["heads"]["weight"].between(0.01, 0.99).all() and len(shown["heads"]) == 6
    atoms = [[7, 8, 9], [4, 5]]
    sources = [[1, 2, 3, 5], [1, 2]]
    by_hand = np.mean([recorded[2, n, 1][atoms[n]][:, sources[n]].sum(-1).mean().item() for n in range(2)])
    largest = np.mean([recorded[2, n, 1][atoms[n]][:, sources[n]].amax(-1).mean().item() for n in range(2)])
    assert shown["heads"].query("layer == 2 and head == 1")["weight"].item() == pytest.approx(by_hand, abs=1e-6)
    assert shown["top_weight"] == pytest.approx(largest, abs=1e-6)
    assert torch.equal(shown["at"], map_atoms(recorded[2], TWO)[:, 1])
    assert torch.equal(shown["agreement"], agreement(map_atoms(recorded[2], TWO), TWO)[:, 1])


# Claims, on results made up for it

N = 60
FULL = conditions([5, 10], 8)


def results(right=0.99, **losses):
    """A results frame with these mean losses by condition; 0.1 where nothing is said, everything cut 0.6."""
    noise = np.random.default_rng(0)
    means = {"clean": 0.1, "all": 0.6, "top edge": 0.11} | {
        name.replace("_", " "): mean for name, mean in losses.items()
    }
    values = {
        one.label: pd.DataFrame(
            {"loss": means.get(one.label, 0.1) + 0.001 * noise.standard_normal(N), "accuracy": 0.9, "seconds": 60.0}
        )
        for one in FULL
    }
    return values, results_frame(values, FULL, torch.linspace(right - 0.005, right + 0.005, N, dtype=torch.double))


def verdicts(**losses):
    return claims_table(results(**losses)[1]).set_index("id")["verdict"].to_dict()


def test_the_results_frame_is_one_that_is_checked_and_halfway_is_the_mean_of_clean_and_all():
    values, frame = results()
    check(frame)
    half = frame.loc[frame["condition"] == "halfway", "loss"].to_numpy()
    assert half == pytest.approx((values["clean"]["loss"] + values["all"]["loss"]).to_numpy() / 2)
    assert frame.loc[frame["condition"] != "clean", "agreement"].isna().all()


def test_each_claim_is_supported_where_it_holds():
    assert verdicts(L10H5=0.4, H5=0.5) == dict.fromkeys(SENTENCES, "supported")


@pytest.mark.parametrize(
    ("id", "losses"),
    [
        ("pattern", {"right": 0.9}),
        ("matters", {"L10H5": 0.05}),
        ("largest", {"L5H3": 0.45}),
        ("enough", {"L10H5": 0.3}),
        ("column", {"H5": 0.3}),
        ("top edge", {"top_edge": 0.05}),
    ],
)
def test_each_claim_falls_where_it_does_not_hold(id, losses):
    assert verdicts(**({"L10H5": 0.4, "H5": 0.5} | losses))[id] == "not supported"


def test_what_differs_by_chance_alone_is_undecided():
    said = verdicts(L10H5=0.1, H5=0.35)
    assert said["matters"] == said["largest"] == said["column"] == "undecided"


def test_the_largest_is_compared_with_each_other_head_at_a_level_that_holds_for_all_together():
    _, frame = results(L10H5=0.4)
    parts, level = claims_of(frame)["largest"]
    assert [claim.b for claim in parts] == [f"L{a}H{b}" for a in (5, 10) for b in range(8) if (a, b) != (10, 5)]
    assert level == pytest.approx(1 - 0.05 / 15)
    assert together([judge(claim, frame, level) for claim in parts]) == "supported"


# The report


PROTOTYPE = pd.DataFrame(
    {"cut between": ["atoms", "whole sides"], "clean": 0.0048, "head": [0.01, 0.0167], "all": 1.342}
)


def evidence(**losses):
    chosen = dict(list(reactions().items())[:N])
    batch = batch_of(list(chosen.values()), VOCABULARY)
    _, frame = results(**losses)
    rows = pd.DataFrame([(a, b) for a in (5, 10) for b in range(8)], columns=["layer", "head"])
    shown = dict.fromkeys(["agreement", "hetero", "one_to_one", "used_once"], rows["head"] / 7)
    return Evidence(
        reactions=chosen, batch=batch, made=masked(batch, copies=3, seed=0), conditions=FULL,
        heads=rows.assign(**shown, weight=0.5), baselines={"random": 0.5, "same order": 0.6, "commonest": 0.7},
        frame=frame, same_top=0.9, top_weight=0.6, prototype=PROTOTYPE, seed=0, seconds=120.0, quick=False,
    )  # fmt: skip


TABLES = {"claims", "cuts", "heads", "single"}
PRINTED = {"claims", "top-heads", "layers", "columns", "all-and-edges", "prototype", "single-reactions"}
FIGURES = {"agreement", "effect", "effect-against-weight", "effect-against-agreement"}
FILES = {"README.md", "results.csv", "provenance.json", *(f"{name}.csv" for name in TABLES)}
FILES |= {f"{name}.{kind}" for name in PRINTED for kind in ("md", "tex")} | {f"{name}.svg" for name in FIGURES}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write(tmp_path_factory.mktemp("out") / "rxnmapper", evidence(L10H5=0.4, H5=0.5, L5H3=0.2))


def test_the_report_has_its_files_and_links_to_no_other(report):
    assert {path.name for path in report.iterdir()} == FILES
    readme = (report / "README.md").read_text()
    assert set(re.findall(r"\]\((\S+)\)", readme)) == {f"{name}.svg" for name in FIGURES}


def test_the_cuts_table_holds_every_effect_with_its_interval_median_share_and_family(report):
    cuts = pd.read_csv(report / "cuts.csv").set_index("condition")
    assert list(cuts.index) == [one.label for one in FULL if one.label != "clean"]
    losses = pd.read_csv(report / "results.csv")
    change = losses["L10H5"] - losses["clean"]
    row = cuts.loc["L10H5"]
    assert row["effect"] == pytest.approx(change.mean(), abs=1e-5) and row["median"] == pytest.approx(
        change.median(), abs=1e-5
    )
    half = 2.001 * change.std() / np.sqrt(N)
    assert (row["low"], row["high"]) == pytest.approx((change.mean() - half, change.mean() + half), abs=1e-5)
    assert row["worse"] == 1 and row["reactions"] == N
    assert cuts["tests"].to_dict() == {one.label: {"head": 16, "layer": 2, "column": 8, "all": 1, "edge": 3}[one.family]
                                       for one in FULL if one.label != "clean"}  # fmt: skip


def test_single_reactions_are_those_with_11_product_atoms(report):
    single = pd.read_csv(report / "single.csv")
    chosen = [name for name, one in list(reactions().items())[:N] if len(atoms(one)) == 11]
    assert list(single["reaction"]) == chosen and len(chosen) > 2
    assert set(single["rank of the cut"]) == {1} and set(single["largest head"]) == {"L10H5"}


def atoms(reaction):
    batch = batch_of([reaction], VOCABULARY)
    return batch.role("product")[0].nonzero()


def test_the_readme_says_each_verdict_and_who_is_largest(report):
    readme = (report / "README.md").read_text()
    for id, sentence in SENTENCES.items():
        assert re.search(rf"\| {id} \| {re.escape(sentence)} .*\| supported \|", readme)
    assert "It is the largest of the single-head cuts by the mean; the next is L5H3" in readme


def test_the_readme_says_where_the_published_head_is_not_the_largest(tmp_path):
    readme = (write(tmp_path / "rxnmapper", evidence(L10H5=0.2, L5H3=0.4)) / "README.md").read_text()
    assert "It is number 2 of the single-head cuts by the mean; the largest is L5H3" in readme


def test_the_readme_says_that_the_prototype_is_met_only_where_it_is(report, tmp_path):
    met = "The second row gives the prototype's figures"
    assert met in (report / "README.md").read_text()
    other = replace(evidence(L10H5=0.4), prototype=PROTOTYPE.assign(all=1.2))
    assert met not in (write(tmp_path / "rxnmapper", other) / "README.md").read_text()


def test_the_report_comes_out_the_same_but_for_its_provenance(report, tmp_path):
    again = write(tmp_path / "rxnmapper", evidence(L10H5=0.4, H5=0.5, L5H3=0.2))
    for name in FILES - {"provenance.json"}:
        assert (again / name).read_bytes() == (report / name).read_bytes(), name


# The committed report


def test_the_committed_report_has_its_files_and_no_machines_paths():
    assert {path.name for path in COMMITTED.iterdir()} == FILES
    for path in COMMITTED.iterdir():
        text = path.read_text()
        assert not re.search(r"/root|/work|/home|/tmp", text), path.name
        if path.suffix == ".svg":
            assert len("".join(ElementTree.fromstring(text).itertext())) > 100


def test_the_committed_tables_follow_from_the_committed_losses():
    losses = pd.read_csv(COMMITTED / "results.csv").drop(columns="reaction")
    cuts = pd.read_csv(COMMITTED / "cuts.csv").set_index("condition")
    assert losses.shape == (130, 121)
    for label in cuts.index:
        change = losses[label] - losses["clean"]
        assert cuts.loc[label, "effect"] == pytest.approx(change.mean(), abs=2e-6)
    assert (cuts["low"] <= cuts["effect"]).all() and (cuts["effect"] <= cuts["high"]).all()


def test_the_committed_provenance_names_model_batch_and_every_condition():
    about = json.loads((COMMITTED / "provenance.json").read_text())
    assert about["model"]["from"] == "rxnmapper==0.4.3" and len(about["conditions"]) == 121
    assert about["command"] == "workbench reproduce rxnmapper" and about["seconds_on_one_thread"] > 60


# With the wheel


@pytest.mark.slow
def test_a_quick_run_writes_a_report_that_says_so(fetched, tmp_path):  # noqa: F811
    folder = main(out=tmp_path, quick=True, progress=False, place=fetched)
    readme = (folder / "README.md").read_text()
    assert {path.name for path in folder.iterdir()} == FILES and "**A quick run" in readme
    assert len(pd.read_csv(folder / "heads.csv")) == 24
    agreeing = pd.read_csv(folder / "heads.csv").query("layer == 10 and head == 5")["agreement"].item()
    assert agreeing > 0.95
