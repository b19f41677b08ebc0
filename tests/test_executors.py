"""Studies run: every condition on the same examples, missing ones counted, donors, notes, and how it fails."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from small import ANSWER, OTHER, TASK, named, small

from tasks.lookup import Lookup
from workbench import (
    Donor,
    Edges,
    EmptyRow,
    Heads,
    MissingExamples,
    Stream,
    Study,
    Transformer,
    add,
    contrast,
    control_of,
    custom,
    cut,
    derive,
    edge_weights,
    freeze,
    joined,
    mean,
    patch,
    resample,
    run,
    run_study,
    summary,
    top_source,
    uniform,
    zero,
)
from workbench.checkpoints import Trained
from workbench.measuring import rehearse, shared
from workbench.metrics import METRICS
from workbench.schema import KEYS, check

N, DATA_SEED = 30, 5
CONDITIONS = {"clean": (), "cut": (cut(ANSWER),), "control": (cut(OTHER),)}
WEIGHTS = {"match": ANSWER, "prev": Edges(layer=0, source="previous")}


class Holed(Lookup):
    """Lookup with a role that is empty in every third example, a relation empty in every fifth, and one that the mask
    hides in every seventh."""

    def sample(self, n, seed):
        batch = super().sample(n, seed)
        index = torch.arange(n)
        step = batch.relations["previous"].clone()
        step[index % 5 == 0] = False
        ahead = batch.relations["previous"].clone()
        ahead[index % 7 == 0] = ahead[index % 7 == 0].transpose(-1, -2)
        hole = batch.roles["answer"] & (index % 3 != 0)[:, None]
        return batch.with_roles(hole=hole).with_relations(step=step, ahead=ahead)


HOLED = Holed()


def trained(seed, task=TASK, **config):
    fixed = {"heads": 1, "dtype": torch.float32, **config}
    model = small(**fixed)
    model = Transformer(model.config, seed=seed).to(fixed["dtype"]).eval()
    return Trained(model, seed, Path("nowhere"), [], {"definition": {"seed": seed}})


MODELS = {"two": [trained(0), trained(3)], "one": [trained(0, n_layers=1)]}


def study(**changes):
    given = {"conditions": CONDITIONS, "n": N, "data_seed": DATA_SEED, **changes}
    return Study(**given)


def measured(task=TASK, models=None, **changes):
    return run_study(study(**changes), task, models or {"two": MODELS["two"]}, progress=False)


def cell(frame, condition, seed=0, model="two"):
    return frame[(frame["condition"] == condition) & (frame["model_seed"] == seed) & (frame["model"] == model)]


def values(frame, condition, metric, seed=0, model="two"):
    return torch.tensor(cell(frame, condition, seed, model).sort_values("example")[metric].to_numpy())


# The frame


def test_a_study_gives_a_results_frame_with_a_row_per_model_condition_and_example():
    frame, notes = measured(weights=WEIGHTS, metrics=("accuracy", "loss"))
    check(frame)
    assert list(frame.columns) == [*KEYS, "accuracy", "loss", "match", "prev"]
    assert len(frame) == 2 * 3 * N
    assert list(frame["condition"].cat.categories) == ["clean", "cut", "control"]
    assert sorted(frame["model_seed"].unique()) == [0, 3]
    assert list(notes.columns) == ["model", "model_seed", "condition", "note"]
    assert notes.empty


def test_several_kinds_of_models_keep_their_order():
    frame, _ = run_study(study(conditions={"clean": ()}), TASK, MODELS, progress=False)
    assert list(frame["model"].cat.categories) == ["two", "one"]
    assert len(frame) == 3 * N


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_cell_is_what_run_gives_that_model_in_that_condition(condition, seed):
    frame, _ = measured(metrics=tuple(METRICS))
    batch = TASK.sample(N, DATA_SEED)
    model = next(one.model for one in MODELS["two"] if one.seed == seed)
    logits = run(model, batch, CONDITIONS[condition], positions="read").logits
    for name, metric in METRICS.items():
        assert torch.allclose(values(frame, condition, name, seed), metric(logits, batch), rtol=1e-5, atol=1e-6), name


def test_every_condition_sees_the_same_examples():
    frame, _ = measured(conditions={"a": (), "b": (), "cut": (cut(ANSWER),)}, metrics=("loss",))
    assert torch.equal(values(frame, "a", "loss"), values(frame, "b", "loss"))
    for condition in ("a", "b", "cut"):
        assert cell(frame, condition)["example"].tolist() == list(range(N))
    assert not torch.equal(values(frame, "a", "loss"), values(frame, "cut", "loss"))


def test_the_same_study_gives_the_same_frame_and_another_data_seed_another():
    first, again, other = (measured(metrics=("loss",), data_seed=seed)[0] for seed in (5, 5, 6))
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    assert not first["loss"].equals(other["loss"])


def test_weights_are_kept_per_example_where_nothing_is_done():
    frame, _ = measured(weights=WEIGHTS)
    expected = edge_weights(MODELS["two"][0].model, TASK.sample(N, DATA_SEED), WEIGHTS)
    for name in WEIGHTS:
        assert torch.allclose(values(frame, "clean", name), expected[name], atol=0)
        assert cell(frame, "cut")[name].isna().all()


def test_derived_relations_are_each_models_own():
    largest = cut(Edges(layer=0, dest="last", source="largest"))
    derived = {"largest": top_source(0, dest="last"), "beside": control_of("largest", seed=1)}
    beside = cut(Edges(layer=0, dest="last", source="beside"))
    frame, _ = measured(conditions={"top": (largest,), "beside": (beside,)}, derived=derived, metrics=("loss",))
    for one in MODELS["two"]:
        batch = derive(one.model, TASK.sample(N, DATA_SEED), derived)
        for condition, edit in {"top": largest, "beside": beside}.items():
            logits = run(one.model, batch, [edit], positions="read").logits
            assert torch.allclose(values(frame, condition, "loss", one.seed), METRICS["loss"](logits, batch), rtol=1e-5)


def test_a_bfloat16_model_has_its_metrics_in_float32():
    half = trained(0, dtype=torch.bfloat16)
    frame, _ = measured(models={"half": [half]}, metrics=("loss",), weights={"match": ANSWER})
    assert (frame["loss"].dtype, frame["match"].dtype) == (np.float32, np.float32)
    batch = TASK.sample(N, DATA_SEED)
    logits = run(half.model, batch, positions="read").logits
    assert logits.dtype == torch.bfloat16
    assert torch.equal(values(frame, "clean", "loss", model="half"), METRICS["loss"](logits.float(), batch))


# Missing examples (M8, M10, R7)

HOLE = cut(Edges(layer=1, dest="last", source="hole"))
STEP = cut(Edges(layer=0, source="step"))
AHEAD = cut(Edges(layer=0, source="ahead"))
AHEAD_ROW = Edges(layer=0, dest="answer", source="ahead")

MISSING = [
    ({"hole": (HOLE,)}, {i for i in range(N) if i % 3 == 0}, "role 'hole' is empty"),
    ({"step": (STEP,)}, {i for i in range(N) if i % 5 == 0}, "relation 'step' is empty"),
    ({"ahead": (AHEAD,)}, {i for i in range(N) if i % 7 == 0}, "the mask already hides every edge asked for"),
    ({"z": (zero(Heads(layer=0, pos="hole", part="z")),)}, {i for i in range(N) if i % 3 == 0}, "role 'hole' is empty"),
]


@pytest.mark.parametrize(("asked", "gone", "why"), MISSING)
def test_skip_drops_an_example_from_every_condition_and_says_why(asked, gone, why):
    frame, _ = measured(HOLED, conditions={"clean": (), **asked}, on_missing="skip")
    check(frame)
    for condition in ("clean", *asked):
        for seed in (0, 3):
            rows = cell(frame, condition, seed)
            assert set(rows.loc[rows["skipped"].notna(), "example"]) == gone
            assert rows["accuracy"].isna().tolist() == rows["skipped"].notna().tolist()
    (edit,) = next(iter(asked.values()))
    assert frame["skipped"].dropna().unique().tolist() == [f"{edit}: {why}"]


def test_the_examples_left_are_what_run_gives_without_the_others():
    frame, _ = measured(HOLED, conditions={"clean": (), "hole": (HOLE,)}, on_missing="skip", metrics=("loss",))
    batch = HOLED.sample(N, DATA_SEED)
    for condition, edits in {"clean": (), "hole": (HOLE,)}.items():
        for example in (1, 2, 4, 28):
            alone = batch.select(torch.tensor([example]))
            loss = METRICS["loss"](run(MODELS["two"][0].model, alone, edits).logits, alone)
            assert float(values(frame, condition, "loss")[example]) == pytest.approx(float(loss), abs=1e-5)


def test_several_reasons_are_all_counted_and_the_first_is_given():
    frame, _ = measured(HOLED, conditions={"clean": (), "hole": (HOLE,), "step": (STEP,)}, on_missing="skip")
    gone = {i for i in range(N) if i % 3 == 0 or i % 5 == 0}
    skipped = cell(frame, "step").set_index("example")["skipped"].dropna()
    assert set(skipped.index) == gone
    assert {i for i, why in skipped.items() if "'step'" in why} == {5, 10, 20, 25}


def test_counts_of_planned_run_and_skipped_reach_the_tables():
    frame, _ = measured(HOLED, conditions={"clean": (), "hole": (HOLE,)}, on_missing="skip")
    for row in [*summary(frame).to_dict("records"), *contrast(frame, "clean", "hole").to_dict("records")]:
        assert (row["planned"], row["run"], row["skipped"]) == (2 * N, 2 * 20, 2 * 10)
        assert row["n_examples"] == 20


def test_an_example_without_the_edges_of_a_weight_is_skipped_too():
    frame, _ = measured(HOLED, weights={"w": AHEAD_ROW, "step": Edges(layer=1, source="step")}, on_missing="skip")
    skipped = cell(frame, "cut").set_index("example")["skipped"].dropna()
    assert {i for i, why in skipped.items() if why == "weight 'step': no visible edge L1 every←step"} >= {5, 10, 20}
    assert set(skipped.index) == {i for i in range(N) if i % 5 == 0 or i % 7 == 0}
    assert cell(frame, "clean")["w"].notna().sum() == N - len(skipped)


def test_an_example_whose_control_finds_nothing_is_skipped():
    """The row of the first digit sees one letter only, and the top source of `answer` may be it."""
    derived = {"control": control_of("own", seed=0)}

    class Own(Holed):
        def sample(self, n, seed):
            batch = super().sample(n, seed)
            return batch.with_relations(own=batch.relations["previous"] & batch.roles["answer"][:, :, None])

    edit = cut(Edges(layer=0, source="control"))
    frame, _ = measured(Own(), conditions={"clean": (), "control": (edit,)}, derived=derived, on_missing="skip")
    first = Own().sample(N, DATA_SEED).roles["answer"][:, 1]
    assert 0 < int(first.sum()) < N
    assert cell(frame, "clean")["skipped"].notna().tolist() == first.tolist()
    with pytest.raises(MissingExamples, match=r"derived relations of task 'lookup': 'control': no other visible"):
        measured(Own(), conditions={"control": (edit,)}, derived=derived)


@pytest.mark.parametrize(("asked", "gone", "why"), MISSING)
def test_by_default_a_missing_example_raises_with_condition_task_and_reason(asked, gone, why):
    (name,) = asked
    pattern = rf"condition '{name}' of task 'lookup': .*{why} in example 0 \({len(gone)} of {N} .*on_missing='skip'"
    with pytest.raises(MissingExamples, match=pattern):
        measured(HOLED, conditions={"clean": (), **asked})


def test_a_missing_edge_of_a_weight_raises_with_its_name():
    with pytest.raises(MissingExamples, match=r"weight 'w' of task 'lookup': .*no visible edge L0 answer←ahead"):
        measured(HOLED, weights={"w": AHEAD_ROW})


def test_a_study_that_leaves_no_example_raises():
    with pytest.raises(MissingExamples, match=r"task 'lookup': no example is left; first: .*'hole' is empty"):
        measured(HOLED, conditions={"hole": (HOLE,)}, n=1, on_missing="skip")


# Donors


@pytest.fixture(scope="module")
def batch():
    return TASK.sample(N, DATA_SEED)


Z = Heads(layer=0, pos="answer", part="z")
DONORS = {"corrupt": Donor(corrupt_seed=1), "fresh": Donor(data_seed=9), "both": Donor(data_seed=9, corrupt_seed=2)}
DONATED = {
    "patch-corrupt": (patch(Z, donor="corrupt", align="role"),),
    "patch-position": (patch(Stream(layer=0, pos="last", part="resid_post"), donor="corrupt", align="position"),),
    "resample-fresh": (resample(Z, donor="fresh", seed=4),),
    "mean-both": (mean(Z, donor="both"),),
    "add-fresh": (add(Z, donor="fresh", align="role"),),
    "weights": (patch(Edges(layer=1, dest="last"), donor="corrupt", align="position"),),
}


@pytest.mark.parametrize("condition", DONATED)
def test_a_declared_donor_is_the_batch_that_one_would_hand_to_run(condition, batch):
    frame, _ = measured(conditions={"clean": (), **DONATED}, donors=DONORS, metrics=("loss",))
    by_hand = {
        "corrupt": TASK.corrupt(batch, 1),
        "fresh": TASK.sample(N, 9),
        "both": TASK.corrupt(TASK.sample(N, 9), 2),
    }
    model = MODELS["two"][1].model
    donors = {name: one for name, one in by_hand.items() if f"'{name}'" in repr(DONATED[condition])}
    logits = run(model, batch, DONATED[condition], donors=named(donors, DONATED[condition]), positions="read").logits
    assert torch.allclose(values(frame, condition, "loss", seed=3), METRICS["loss"](logits, batch), rtol=1e-5)
    assert not torch.equal(values(frame, condition, "loss", seed=3), values(frame, "clean", "loss", seed=3))


def test_a_donor_without_seeds_is_the_studys_own_examples():
    own = (patch(Z, donor="own", align="role"),)
    frame, notes = measured(conditions={"clean": (), "own": own}, donors={"own": Donor()}, metrics=("loss",))
    assert torch.equal(values(frame, "own", "loss"), values(frame, "clean", "loss"))
    assert set(notes["condition"]) == {"own"}


def test_donors_lose_the_examples_that_are_skipped():
    conditions = {"hole": (HOLE,), "patch": (patch(Z, donor="corrupt", align="role"),)}
    frame, _ = measured(HOLED, conditions=conditions, donors={"corrupt": Donor(corrupt_seed=1)}, on_missing="skip",
                        metrics=("loss",))  # fmt: skip
    batch, kept = HOLED.sample(N, DATA_SEED), torch.tensor([i for i in range(N) if i % 3])
    own, donor = batch.select(kept), HOLED.corrupt(batch, 1).select(kept)
    logits = run(MODELS["two"][0].model, own, conditions["patch"], donors={"corrupt": donor}, positions="read").logits
    assert torch.allclose(values(frame, "patch", "loss")[kept], METRICS["loss"](logits, own), rtol=1e-5)


def test_a_donor_that_is_not_declared_is_refused():
    with pytest.raises(KeyError, match=r"condition 'patch' of task 'lookup': no donor 'corrput' is declared.*corrupt"):
        edit = patch(Z, donor="corrput", align="role")
        measured(conditions={"patch": (edit,)}, donors={"corrupt": Donor(corrupt_seed=1)})


def test_a_donor_has_no_unknown_keys():
    with pytest.raises(TypeError, match="no field 'seed'"):
        Donor(seed=1)


# Notes


def test_what_run_says_of_an_edit_is_kept_with_model_seed_and_condition():
    idle = (freeze(Heads(layer=1, part="z")),)
    unread = (uniform(Edges(layer=1, dest="letters")),)
    _, notes = measured(conditions={"clean": (), "cut": (cut(ANSWER),), "idle": idle, "unread": unread})
    places = notes[["model", "model_seed", "condition"]].drop_duplicates()
    assert list(map(tuple, places.to_numpy())) == [
        ("two", seed, condition) for seed in (0, 3) for condition in ("idle", "unread")
    ]
    said = notes.groupby("condition")["note"].agg(" ".join)
    assert "landed and changed nothing" in said["idle"]
    assert "cannot reach what is read" in said["unread"]
    assert "cannot reach" not in said["idle"]


# How it fails


def test_an_unknown_role_names_condition_task_and_the_roles_there_are():
    with pytest.raises(KeyError, match=r"condition 'cut' of task 'lookup': .*'anwser'.*answer"):
        measured(conditions={"clean": (), "cut": (cut(Edges(layer=1, dest="last", source="anwser")),)})


def test_an_unknown_role_of_a_weight_names_the_weight_and_the_task():
    with pytest.raises(KeyError, match=r"weight 'w' of task 'lookup': .*'anwser'.*answer"):
        measured(weights={"w": Edges(layer=1, dest="last", source="anwser")})


def test_a_layer_that_one_of_the_models_lacks_names_the_condition():
    with pytest.raises(KeyError, match=r"condition 'cut' of task 'lookup'.*layer"):
        run_study(study(), TASK, MODELS, progress=False)


def test_an_error_while_running_names_condition_and_task():
    everything = (cut(Edges(layer=0, dest="last")),)
    with pytest.raises(EmptyRow, match=r"condition 'all' of task 'lookup': .*no visible source is left"):
        measured(conditions={"clean": (), "all": everything})


def test_an_unknown_metric_is_refused_before_anything_runs():
    with pytest.raises(KeyError, match=r"no metric 'acuracy'.*accuracy"):
        run_study(study(metrics=("acuracy",)), TASK, {}, progress=False)


def test_the_same_model_seed_twice_is_refused():
    with pytest.raises(ValueError, match="same model seed"):
        measured(models={"two": [MODELS["two"][0]] * 2})


def test_a_study_without_models_is_refused():
    with pytest.raises(ValueError, match="no trained models"):
        run_study(study(), TASK, {"two": []}, progress=False)


# Studies as values


def test_a_study_survives_json():
    derived = {"largest": top_source(0, dest="last"), "beside": control_of("largest", seed=1)}
    made = study(
        conditions={**CONDITIONS, **DONATED}, donors=DONORS, derived=derived, weights=WEIGHTS, on_missing="skip"
    )
    again = Study.model_validate_json(made.model_dump_json())
    assert again == made
    assert list(again.conditions) == list(made.conditions)
    assert again.model_dump_json() == made.model_dump_json()


def test_a_study_read_from_json_gives_the_same_frame():
    made = study(conditions={"clean": (), **DONATED}, donors=DONORS, metrics=("loss",))
    again = Study.model_validate_json(made.model_dump_json())
    frames = [run_study(one, TASK, MODELS | {"one": []}, progress=False)[0] for one in (made, again)]
    pd.testing.assert_frame_equal(*frames, check_exact=True)


def test_a_study_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        study().n = 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(conditions={"mine": (custom(("z", 0), lambda z: z),)}), "'mine' holds a custom function"),
        (dict(conditions={"cut": (cut(ANSWER),)}, weights=WEIGHTS), "without interventions"),
        (dict(conditions={}), "conditions"),
        (dict(weights={"accuracy": ANSWER}), "'accuracy'.* name a weight and a metric"),
        (dict(n=0), "n"),
        (dict(on_missing="drop"), "on_missing"),
        (dict(metric=("loss",)), "metric"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(changes, why):
    with pytest.raises(ValidationError if "metric" not in changes else TypeError, match=why):
        study(**changes)


# Frames together


def test_joined_frames_keep_their_categories_in_the_order_of_first_appearance():
    first, _ = measured(HOLED, conditions={"clean": (), "hole": (HOLE,)}, on_missing="skip")
    second, _ = measured(models={"one": MODELS["one"]}, conditions={"uncut": (), "clean": ()}, weights={})
    both = joined([first, second])
    check(both)
    assert len(both) == len(first) + len(second)
    assert list(both["model"].cat.categories) == ["two", "one"]
    assert list(both["condition"].cat.categories) == ["clean", "hole", "uncut"]
    assert list(both["skipped"].cat.categories) == list(first["skipped"].cat.categories)
    pd.testing.assert_frame_equal(both.iloc[: len(first)].astype(first.dtypes.to_dict()), first)


def test_joining_frames_with_other_metrics_leaves_the_rest_unmeasured():
    first, _ = measured(conditions={"clean": ()}, weights=WEIGHTS)
    second, _ = measured(models={"one": MODELS["one"]}, conditions={"clean": ()})
    both = joined([first, second])
    check(both)
    assert both.loc[both["model"] == "one", "match"].isna().all()
    assert both.loc[both["model"] == "two", "match"].notna().all()
    assert both["model_seed"].dtype == first["model_seed"].dtype


def test_joining_one_frame_changes_nothing():
    frame, _ = measured()
    pd.testing.assert_frame_equal(joined([frame]), frame)


@pytest.mark.parametrize("task", [TASK, HOLED], ids=["none skipped", "some skipped"])
def test_a_results_frame_is_one_again_after_parquet(task, tmp_path):
    """A column that skips nothing is a category still."""
    edit = ANSWER if task is TASK else HOLE.where
    frame, _ = measured(task, conditions={"clean": (), "cut": (cut(edit),)}, on_missing="skip")
    for name, one in {"alone": frame, "joined": joined([frame])}.items():
        one.to_parquet(tmp_path / f"{name}.parquet", index=False)
        again = pd.read_parquet(tmp_path / f"{name}.parquet")
        check(again)
        pd.testing.assert_frame_equal(summary(again), summary(frame))
        assert again["skipped"].isna().equals(frame["skipped"].isna())


@pytest.mark.parametrize(("where", "gpus"), [("cpu", 0), ("cuda:1", 1)])
def test_a_block_asks_for_a_gpu_where_its_model_lies_on_one(where, gpus):
    from types import SimpleNamespace

    from workbench.executors import resources

    model = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device(where))]))
    assert resources(model) == {"num_cpus": 1, "num_gpus": gpus}


# Before models are trained


def test_what_no_example_could_be_measured_in_is_told_of_an_untrained_model():
    common = shared(study(conditions={"clean": (), "far": (cut(Edges(layer=7, dest="last", source="answer")),)}), TASK)
    with pytest.raises(KeyError, match=r"condition 'far'.*layer 7"):
        rehearse(common, MODELS["two"][0].model)


def test_what_a_few_examples_lack_is_no_fault_but_what_stands_beside_it_is():
    lacking = (cut(Edges(layer=1, dest="last", source="hole")),)
    rehearse(shared(study(conditions={"hole": lacking}), HOLED), MODELS["two"][0].model)
    beside = shared(study(conditions={"hole": lacking, "far": (zero(Stream(layer=9, part="mlp_out")),)}), HOLED)
    with pytest.raises(KeyError, match="layer 9"):
        rehearse(beside, MODELS["two"][0].model)
