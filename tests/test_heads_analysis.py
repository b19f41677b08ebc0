"""One head against several: names of patterns, the study, the verdicts, and the committed report."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import heads, heads_claims, heads_tables
from analyses.heads_facts import Facts
from analyses.heads_names import best, weighed
from analyses.heads_tables import FOUR, ONE, TWO, Seen, first_right
from tasks.two_relations import TwoRelations
from workbench.models.built import build
from workbench.tables import to_csv

COMMITTED = Path(__file__).parent.parent / "reports" / "heads"


# Models, task and study


def test_models_of_one_depth_have_as_many_parameters_whatever_their_heads():
    configs = heads.configs(TwoRelations())
    sizes = {label: sum(one.numel() for one in build(config, seed=0).parameters()) for label, config in configs.items()}
    for layers in {layers for _, layers in heads.SHAPES.values()}:
        assert len({sizes[label] for label, shape in heads.SHAPES.items() if shape[1] == layers}) == 1


def test_a_head_of_several_has_its_share_of_the_width():
    assert {config.n_heads * config.d_head for config in heads.configs(TwoRelations()).values()} == {32}


def test_the_facts_together_are_the_two_facts():
    batch, same = Facts().sample(50, seed=3), TwoRelations().sample(50, seed=3)
    assert torch.equal(batch.tokens, same.tokens) and torch.equal(batch.labels, same.labels)
    assert torch.equal(batch.roles["facts"], same.roles["first_fact"] | same.roles["second_fact"])
    assert not (batch.roles["facts"] & batch.roles["others"]).any()


@pytest.mark.parametrize("shape", list(heads.SHAPES.values()))
def test_every_cut_has_a_control_and_every_head_is_removed_once(shape):
    n_heads, n_layers = shape
    conditions = heads.facts_study(n_heads, n_layers, 10).conditions
    assert sum(label.endswith("no head") for label in conditions) == n_heads * n_layers
    for label, edits in conditions.items():
        if label.split(": ")[-1] in ("copy", "first", "second"):
            assert len(conditions[f"{label} control"]) == len(edits)
    assert ("equal" in conditions) == (n_layers == 2)


# Names


def even(n_heads=2):
    """Three positions, causal, and what each row sees; every head's weights are even."""
    visible = torch.ones(3, 3).tril().bool()[None]
    return (visible / visible.sum(-1, keepdim=True)).double()[:, None].expand(-1, n_heads, -1, -1).clone(), visible


def test_the_weight_of_a_name_is_over_rows_that_have_its_edge():
    pattern, visible = even()
    first = torch.tensor([[[False] * 3, [True, False, False], [True, False, False]]])
    rows = torch.ones(1, 3, dtype=torch.bool)
    found = list(weighed(pattern, rows, {"first": first}, visible))
    assert [row["weight"] for row in found] == pytest.approx([(1 / 2 + 1 / 3) / 2] * 2)


def test_even_rows_are_spread_wholly_and_pointed_ones_not_at_all():
    pattern, visible = even()
    pattern[0, 1] = torch.eye(3)
    rows = torch.tensor([[False, True, True]])
    spread = [row["spread"] for row in weighed(pattern, rows, {"itself": torch.eye(3).bool()[None]}, visible)]
    assert spread == pytest.approx([1.0, 0.0])


def test_the_best_name_is_the_one_with_the_most_weight():
    place = {"model": "m", "model_seed": 0, "part": "", "layer": 0, "head": 0, "rows": "last", "spread": 0.5}
    table = pd.DataFrame([{**place, "name": name, "weight": weight} for name, weight in (("a", 0.2), ("b", 0.7))])
    assert best(table)["name"].tolist() == ["b"]


def test_a_model_that_never_learns_counts_its_last_step():
    curve = pd.DataFrame({"model": "m", "model_seed": [0, 0, 1, 1], "step": [1, 10, 1, 10],
                          "accuracy": [0.1, 1.0, 0.1, 0.2]})  # fmt: skip
    assert first_right(curve).tolist() == [10, 10]
    assert first_right(curve.assign(accuracy=[1.0, 1.0, 0.1, 0.2])).tolist() == [1, 10]


# Verdicts


ACCURACY = {"1 head, 2 layers": 0.3, "1 head, 2 layers, longer": 0.3, "1 head, 1 layer": 0.2, "4 heads, 1 layer": 0.2}


def made(n=500, seeds=3, accuracy=None, lost=None):
    """Results in which two heads divide the facts and one head learns neither; `lost` is by condition of two heads."""
    accuracy = {**ACCURACY, **(accuracy or {})}
    taken = {"L1H1: first": 0.8, "L1H0: second": 0.8, "equal": 0.6, "first": 0.8, "second": 0.8, **(lost or {})}
    studies = {label: heads.facts_study(*shape, 1) for label, shape in heads.SHAPES.items()}
    studies |= {label: heads.translate_study(n, 1) for label, n in heads.TRANSLATORS.items()}
    cells = []
    for label, study in studies.items():
        for seed in range(seeds):
            for condition in study.conditions:
                share = accuracy.get(label, 1.0) - (taken.get(condition, 0.0) if label == TWO else 0.0)
                right = np.arange(n) < round(share * n) - (2 * seed if share < 1 else 0)  # trained models differ
                cell = {"model": label, "model_seed": seed, "condition": condition, "example": np.arange(n),
                        "skipped": None, "accuracy": right.astype(float)}  # fmt: skip
                whole = {"exact_match": right.astype(float) if label in heads.TRANSLATORS else np.nan}
                cells.append(pd.DataFrame(cell | whole))
    frame = pd.concat(cells, ignore_index=True).astype(dict.fromkeys(("model", "condition", "skipped"), "category"))
    return Seen(frame, pd.DataFrame(_names(seeds)), pd.DataFrame(_curves(seeds)))


def _names(seeds):
    """In layer 1 head 1 shows the first fact, head 0 the second; half of a model's heads show nothing."""
    places = [(label, "", layer, head) for label, (n, layers) in heads.SHAPES.items() for layer in range(layers)
              for head in range(n)]  # fmt: skip
    places += [(label, part, layer, head) for label, n in heads.TRANSLATORS.items()
               for part in ("encoder", "decoder", "cross") for layer in range(2) for head in range(n)]  # fmt: skip
    for label, part, layer, head in places:
        for seed in range(seeds):
            shown = {"the first fact": head == 1, "the second fact": head == 0}
            for name, strong in shown.items():
                weight = (0.9 if strong and layer == 1 and head < 2 else 0.1) - seed / 1000
                row = {"model": label, "model_seed": seed, "part": part, "layer": layer, "head": head}
                yield row | {
                    "rows": "predicting a word" if part else "last",
                    "name": name,
                    "weight": weight,
                    "spread": 0.4,
                }


def _curves(seeds):
    for label in (*heads.SHAPES, *heads.TRANSLATORS):
        for seed in range(seeds):
            learned = label not in ACCURACY
            for step in (1, 300 + seed, 1000):
                yield {"model": label, "model_seed": seed, "step": step, "loss": 1.0,
                       "accuracy": 1.0 if learned and step > 1 else 0.3}  # fmt: skip


def outcomes(seen):
    return heads_claims.verdicts(seen).set_index("id")["verdict"]


@pytest.fixture(scope="module")
def ideal():
    return made()


def test_every_claim_but_of_depth_is_supported_where_everything_is_as_it_says(ideal):
    found = outcomes(ideal)
    shares = found.filter(like="unnamed")
    assert set(found.drop(shares.index)) == {"supported"}
    assert set(shares) == {"undecided"}, "every made model has the same share, so that there is no interval"


@pytest.mark.parametrize(
    ("change", "ids"),
    [
        ({"accuracy": {ONE: 0.99}}, ["blind", "two"]),
        ({"accuracy": {FOUR: 0.9}}, ["four"]),
        ({"lost": {"equal": 0.0}}, ["equal"]),
        ({"lost": {"L1H1: first": 0.0}}, ["own-first"]),
        ({"lost": {"L1H1: second": 0.2}}, ["other-second"]),
        ({"accuracy": {"translate, 4 heads": 0.9}}, ["translate-4"]),
    ],
)
def test_results_that_speak_against_a_claim_do_not_support_it(change, ids):
    found = outcomes(made(**change))
    assert set(found[ids]) == {"not supported"}


def test_heads_that_share_a_fact_do_not_divide_them(ideal):
    names = ideal.names.assign(weight=ideal.names["weight"].clip(upper=0.4 - ideal.names["model_seed"] / 1000))
    assert outcomes(Seen(ideal.frame, names, ideal.curves))["divided"] == "not supported"


def test_counts_are_of_heads_with_a_name_and_an_effect(ideal):
    table = heads_tables.tables(ideal)["counts"].set_index("model")
    assert table.loc[TWO, ["heads", "nameable", "nameable, large effect", "nameable, no effect"]].tolist() == [
        12,
        6,
        0,
        6,
    ]


# The quick run, and the committed report


@pytest.mark.slow
def test_a_quick_run_writes_its_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    folder = heads.main(out=tmp_path, quick=True, progress=False)
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "A quick run" in page and "workbench reproduce heads --quick --seeds 2" in page
    assert_rebuilt(folder)


def assert_rebuilt(folder):
    frame, *others = (pd.read_parquet(folder / f"{name}.parquet") for name in ("results", "names", "curves"))
    # Parquet does not keep categories where all is missing.
    seen = Seen(frame.astype({"skipped": "category"}), *others)
    for name, table in {"verdicts": heads_claims.verdicts(seen), **heads_tables.tables(seen)}.items():
        assert to_csv(table) == (folder / f"{name}.csv").read_text(encoding="utf-8"), name


def test_the_committed_tables_are_rebuilt_from_the_committed_results():
    assert_rebuilt(COMMITTED)


def test_the_committed_report_has_5_models_of_each_kind_and_2000_examples():
    table = pd.read_csv(COMMITTED / "conditions.csv")
    assert (table["n_models"] >= 5).all() and (table["n_examples"] >= 2000).all()
    assert set(table["model"]) == {*heads.SHAPES, *heads.TRANSLATORS}
    assert (COMMITTED / "results.parquet").stat().st_size < 2e6


def test_the_committed_models_that_did_not_learn_are_told():
    table = pd.read_csv(COMMITTED / "models.csv").set_index("model")
    text = (COMMITTED / "README.md").read_text(encoding="utf-8")
    assert table.loc[[ONE, TWO], "seed_low"].min() > 0.99
    assert table.loc[FOUR, "seed_low"] > 0.99 or "did not learn" in text
