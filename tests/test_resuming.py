"""Studies that are killed, run twice at once, stopped or changed: the same tables, and nothing measured twice."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from multiprocessing import forkserver, resource_sharer
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from small import TASK, small

from tasks.lookup import Lookup
from workbench import (
    Edges,
    Heads,
    Study,
    Transformer,
    control_of,
    cut,
    freeze,
    patch,
    run_study,
    top_source,
    uniform,
    zero,
)
from workbench import cells as cells_of
from workbench.blocks import read_whole
from workbench.checkpoints import Trained, key
from workbench.claims import Claims
from workbench.executors import RETRIES
from workbench.genuine import digest_of
from workbench.measuring import shared
from workbench.outcome import write_outcome
from workbench.store import Store
from workbench.studies import as_trained
from workbench.study import Donor
from workbench.workers import context

LAST = Edges(layer=1, dest="last")
ANSWER = Edges(layer=1, dest="last", source="answer")
CONDITIONS = {
    "clean": (),
    "cut": (cut(ANSWER),),
    "uniform": (uniform(LAST),),
    "patch": (patch(Heads(layer=0, pos="answer", part="z"), donor="other", align="role"),),
    "zero": (zero(Heads(layer=1, head=0, part="z")),),
    "largest": (cut(Edges(layer=0, dest="last", source="largest")),),
}
GIVEN = {
    "conditions": CONDITIONS,
    "weights": {"match": ANSWER, "prev": Edges(layer=0, source="previous")},
    "derived": {"largest": top_source(0, head=0, dest="last"), "beside": control_of("largest", seed=1)},
    "donors": {"other": Donor(corrupt_seed=1)},
    "metrics": ("accuracy", "loss"),
    "n": 40,
    "data_seed": 5,
}


def study(**changes):
    return Study(**{**GIVEN, **changes})


def model(seed, **config):
    made = small(dtype=torch.float32, **config)
    return Transformer(made.config, seed=seed).eval()


def models(number=3, **config):
    return {"first": [model(seed, **config) for seed in range(number)]}


def ran(store=None, made=None, given=None, task=TASK, **how):
    return run_study(made or study(), task, given or models(), store=store, progress=False, **how)


def files(folder, made, frame, notes):
    """What a study leaves behind, name → bytes, but for what says when and where it ran."""
    write_outcome(made, frame, notes, folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "provenance.json"}


def equal(one, other):
    for a, b in zip(one, other, strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)
        assert a.attrs == b.attrs


@pytest.fixture
def measured(monkeypatch):
    """The cells that are measured in this process, as (first weight of the model, condition), in order."""
    from workbench import executors

    out, measure = [], executors.measure

    def counting(common, model, conditions):
        out.extend((model.embed.W_E[0, 0].item(), condition) for condition in conditions)
        return measure(common, model, conditions)

    monkeypatch.setattr(executors, "measure", counting)
    return out


# Going on


def test_a_study_that_is_complete_is_not_measured_again(tmp_path, measured):
    fresh = ran()
    assert len(measured) == 18
    equal(ran(tmp_path), fresh)
    assert len(measured) == 36
    equal(ran(tmp_path), fresh)
    assert len(measured) == 36


@pytest.mark.parametrize("how", [{"executor": "pool", "processes": 2}, {"executor": "pool", "processes": 1}, {}])
def test_every_executor_leaves_the_same_bytes_fresh_and_resumed(tmp_path, how):
    fresh = files(tmp_path / "plain", study(), *ran())
    assert files(tmp_path / "fresh", study(), *ran(tmp_path / "store", **how)) == fresh
    assert files(tmp_path / "resumed", study(), *ran(tmp_path / "store", **how)) == fresh
    assert {"results.parquet", "summary.csv", "notes.csv"} < set(fresh)


def test_more_processes_than_orders_measure_the_same():
    equal(ran(given=models(1), executor="pool", processes=4), ran(given=models(1)))


def test_a_study_is_gone_on_with_in_any_order(tmp_path, measured):
    """Conditions and models in another order, some of them there: the frame is the one of the order asked for."""
    some = {name: CONDITIONS[name] for name in ("zero", "clean")}
    ran(tmp_path, study(conditions=some), {"x": models()["first"][::2]})
    measured.clear()
    backwards = study(conditions=dict(reversed(CONDITIONS.items())))
    frame, _ = ran(tmp_path, backwards)
    assert len(measured) == 18 - 4
    pd.testing.assert_frame_equal(frame, ran(None, backwards)[0], check_exact=True)


def test_weights_in_another_order_are_columns_in_that_order(tmp_path, measured):
    ran(tmp_path)
    measured.clear()
    other = study(weights=dict(reversed(GIVEN["weights"].items())))
    frame, _ = ran(tmp_path, other)
    assert measured == []
    assert list(frame.columns)[-2:] == ["prev", "match"]
    pd.testing.assert_frame_equal(frame, ran(None, other)[0], check_exact=True)


def test_a_damaged_block_is_measured_again_and_no_other(tmp_path, measured):
    fresh = ran(tmp_path)
    measured.clear()
    path = sorted((tmp_path / "blocks").glob("*.parquet"))[1]
    path.write_bytes(path.read_bytes()[:-1])
    equal(ran(tmp_path), fresh)
    assert len(measured) == 6
    assert len({weight for weight, _ in measured}) == 1
    equal(ran(tmp_path), fresh)
    assert len(measured) == 6


def test_a_study_that_is_complete_reads_each_block_once_and_starts_no_workers(tmp_path, monkeypatch):
    from workbench import executors, store

    fresh, read = ran(tmp_path), []
    monkeypatch.setattr(store, "read_whole", lambda folder, name: read.append(name) or read_whole(folder, name))
    monkeypatch.setattr(executors, "context", pytest.fail)
    equal(ran(tmp_path, executor="pool"), fresh)
    assert sorted(read) == sorted(path.stem for path in (tmp_path / "blocks").glob("*.json"))


def test_nothing_is_read_before_what_is_missing_is_measured(tmp_path, monkeypatch):
    from workbench import store

    ran(tmp_path, study(conditions={"clean": (), "cut": CONDITIONS["cut"]}))
    order, add = [], Store.add
    monkeypatch.setattr(store, "read_whole", lambda folder, name: order.append("read") or read_whole(folder, name))
    monkeypatch.setattr(Store, "add", lambda self, *cells: order.append("measured") or add(self, *cells))
    ran(tmp_path)
    assert order == ["measured"] * 3 + ["read"] * 6


def test_a_block_that_is_damaged_while_the_study_runs_is_measured_again(tmp_path, measured, monkeypatch):
    """Each write is damaged: what is measured a second time is kept in memory, so that this ends."""
    fresh, add = ran(), Store.add
    measured.clear()

    def damaging(self, *cells):
        name = add(self, *cells)
        path = self.blocks / f"{name}.parquet"
        path.write_bytes(path.read_bytes()[:-1])
        return name

    monkeypatch.setattr(Store, "add", damaging)
    equal(ran(tmp_path), fresh)
    assert len(measured) == 36


def test_two_models_of_one_definition_and_other_weights_in_one_study_are_two(tmp_path, measured):
    """As trained on two kinds of machine; the store keeps the first one's cells."""
    definition = {"task": {}, "config": {}, "recipe": {}, "seed": 0}
    about = [{"definition": definition, "weights_sha256": digest_of(model(seed))} for seed in (0, 1)]
    both = {name: [Trained(model(seed), 0, Path(), [], about[seed])] for seed, name in enumerate("ab")}
    fresh = ran(None, None, both)
    measured.clear()
    equal(ran(tmp_path, None, both), fresh)
    equal(ran(tmp_path, None, both), fresh)
    assert len(measured) == 12 + 6


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("how", [{}, {"executor": "pool", "processes": 1}])
def test_conditions_that_are_the_same_are_measured_once_and_both_told(tmp_path, measured, stored, how):
    twice = {**CONDITIONS, "again": CONDITIONS["cut"], "base": ()}
    frame, _ = ran(tmp_path if stored else None, study(conditions=twice), **how)
    assert len(measured) == (0 if how else 18)
    for one, other in (("cut", "again"), ("clean", "base")):
        rows = [frame[frame["condition"] == name].drop(columns="condition") for name in (one, other)]
        pd.testing.assert_frame_equal(*(each.reset_index(drop=True) for each in rows), check_exact=True)
    assert frame.loc[frame["condition"] == "base", "match"].notna().all()
    alone, _ = ran()
    some = frame[frame["condition"].isin(CONDITIONS)].reset_index(drop=True)
    assert some["loss"].equals(alone["loss"])


def test_a_model_runs_once_without_interventions_in_each_block(monkeypatch):
    from workbench import block

    runs, execute = [], block.execute

    def counted(model, batch, edits=(), **kwargs):
        runs.append(len(edits))
        return execute(model, batch, edits, **kwargs)

    monkeypatch.setattr(block, "execute", counted)
    ran(given=models(1))
    assert runs.count(0) == 1


def test_studies_that_overlap_share_cells(tmp_path, measured):
    ran(tmp_path, study(conditions={name: CONDITIONS[name] for name in ("clean", "cut")}))
    ran(tmp_path, study(conditions={name: CONDITIONS[name] for name in ("clean", "zero")}))
    assert Counter(condition for _, condition in measured) == {"clean": 3, "cut": 3, "zero": 3}


def test_notes_are_those_of_the_cell_whatever_was_measured_with_it_and_under_whatever_label(tmp_path):
    idle = (freeze(Heads(layer=1, part="z")),)
    both = study(conditions={"clean": (), "idle": idle})
    ran(tmp_path, study(conditions={"clean": ()}))
    _, notes = ran(tmp_path, both)
    pd.testing.assert_frame_equal(notes, ran(None, both)[1])
    assert set(notes["condition"]) == {"idle"}
    relabelled = study(conditions={"base": (), "idle": idle})
    pd.testing.assert_frame_equal(ran(tmp_path, relabelled)[1], ran(None, relabelled)[1])


# Keys


def keys(made=None, one=None, task=TASK):
    trained = as_trained({"one": [one if one is not None else model(0)]})["one"][0]
    return cells_of.keys(shared(made or study(), task), trained)


class OtherData(Lookup):
    def sample(self, n, seed):
        batch = super().sample(n, seed)
        return batch.with_roles(answer=batch.roles["other"])


def derived(seed):
    return {"largest": top_source(0, head=0, dest="last"), "beside": control_of("largest", seed=seed)}


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": ("accuracy",)}, {"n": 41}, {"data_seed": 6}, {"on_missing": "skip"}, {"derived": derived(2)},
    ],
    ids=str,
)  # fmt: skip
def test_what_matters_to_every_cell_changes_every_key(change):
    before, after = keys(), keys(study(**change))
    assert not set(before.values()) & set(after.values())


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"weights": {"match": ANSWER}}, {"clean"}),
        ({"weights": {"match": ANSWER, "prev": Edges(layer=1, source="previous")}}, {"clean"}),
        ({"donors": {"other": Donor(corrupt_seed=2)}}, {"patch"}),
        ({"donors": {"other": Donor(data_seed=2)}}, {"patch"}),
        ({"conditions": {**CONDITIONS, "cut": (cut(ANSWER, empty="no-update"),)}}, {"cut"}),
        ({"conditions": {**CONDITIONS, "zero": (zero(Heads(layer=1, head=1, part="z")),)}}, {"zero"}),
    ],
)
def test_what_matters_to_some_cells_changes_their_keys(change, changed):
    before, after = keys(), keys(study(**change))
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize("on_missing", ["raise", "skip"])
def test_a_key_is_the_hash_of_the_definition_as_json(on_missing):
    """However much of it is written only once."""
    odd = {**CONDITIONS, 'a "label" – ü': (cut(Edges(layer=1, dest="last", source="größte")),)}
    naming = cells_of.Naming(shared(study(conditions=odd, on_missing=on_missing), TASK))
    defined = naming.definitions({"definition": {"seed": 0, "name": "ü"}}, "float32", "cpu")
    keyed = naming.keys_in({"definition": {"seed": 0, "name": "ü"}}, "float32", "cpu")
    assert keyed == {condition: key(one) for condition, one in defined.items()}
    assert len(set(keyed.values())) == len(odd)


def test_what_does_not_matter_changes_no_key():
    before = keys()
    again = study(
        conditions=dict(reversed(CONDITIONS.items())),
        weights=dict(reversed(GIVEN["weights"].items())),
        derived=dict(reversed(GIVEN["derived"].items())),
        donors={"unused": Donor(data_seed=3), **GIVEN["donors"]},
    )
    assert keys(again) == before
    relabelled = study(conditions={f"the {name}": edits for name, edits in CONDITIONS.items()})
    assert list(keys(relabelled).values()) == list(before.values())


def test_a_condition_more_changes_the_keys_only_where_its_examples_would_be_skipped():
    fewer = {name: edits for name, edits in CONDITIONS.items() if name != "zero"}
    assert keys(study(conditions=fewer)).items() < keys().items()
    skipping = {"on_missing": "skip"}
    assert not set(keys(study(conditions=fewer, **skipping)).values()) & set(keys(study(**skipping)).values())


def test_the_model_is_in_the_key():
    one = model(0)
    keyed = [keys(one=each) for each in (one, model(1), model(0).double(), model(0, heads=1), model(0, norm="pre"))]
    keyed.append(keys(task=OtherData()))
    assert len({each["cut"] for each in keyed}) == len(keyed)
    assert keys(one=model(0)) == keys(one=one)


def hugging_face(**changes):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    fixed = {"vocab_size": 16, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0,
             "eos_token_id": 0}  # fmt: skip
    return GPT2LMHeadModel(GPT2Config(**{**fixed, **changes})).eval()


def test_the_configuration_of_a_wrapped_model_is_in_its_key_and_its_place_is_not():
    from workbench import wrap

    torch.manual_seed(0)
    two, four, moved = hugging_face(), hugging_face(n_head=4), hugging_face()
    four.load_state_dict(two.state_dict())
    moved.load_state_dict(two.state_dict())
    moved.config._name_or_path = moved.name_or_path = "/somewhere/else"
    keyed = [keys(one=wrap(each)) for each in (two, four, moved)]
    assert keyed[0]["clean"] != keyed[1]["clean"]
    assert keyed[0] == keyed[2]
    moved.transformer.h[0].mlp.act = torch.nn.Tanh()
    assert keys(one=wrap(moved))["clean"] != keyed[0]["clean"]


def test_a_model_that_does_not_say_what_it_is_is_refused(tmp_path):
    nameless = Trained(model(0), 0, Path(), [], {"definition": {"seed": 0}})
    with pytest.raises(ValueError, match="neither how it was trained nor the SHA-256"):
        ran(tmp_path, given={"nameless": [nameless]})


def test_a_checkpoint_trained_again_to_other_weights_is_measured_again(tmp_path, measured):
    """The same definition, other weights, as another machine may train them: never the other's cells."""
    definition = {"task": {}, "config": {}, "recipe": {}, "seed": 0}
    one, other = (
        Trained(model(seed), 0, Path(), [], {"definition": definition, "weights_sha256": digest_of(model(seed))})
        for seed in (0, 1)
    )
    first = ran(tmp_path, given={"one": [one]})
    second = ran(tmp_path, given={"one": [other]})
    assert len(measured) == 12
    assert not first[0]["loss"].equals(second[0]["loss"])
    equal(second, ran(given={"one": [other]}))
    equal(ran(tmp_path, given={"one": [one]}), first)


def test_the_model_that_is_handed_over_is_measured_not_the_one_on_disk(tmp_path):
    """A loaded checkpoint made double is measured in double in a pool, too."""
    from dataclasses import replace

    from workbench.checkpoints import load, save

    loaded = load(save(tmp_path / "model", model(0), {"seed": 0}, []))
    doubled = replace(loaded, model=loaded.model.double())
    equal(ran(given={"one": [doubled]}, executor="pool", processes=1), ran(given={"one": [doubled]}))


# How it fails


def test_an_error_in_a_worker_arrives_with_its_type_and_words_and_lets_go(tmp_path):
    wrong = study(conditions={"clean": (), "cut": (cut(Edges(layer=0, dest="last", source="anwser")),)})
    said = []
    for how in ({}, {"executor": "pool", "processes": 2}):
        with pytest.raises(KeyError) as caught:
            ran(tmp_path, wrong, **how)
        assert caught.type is KeyError
        said.append(caught.value.args)
        assert not list((tmp_path / "claims").glob("*.json"))
    assert said[0] == said[1]
    assert "condition 'cut' of task 'lookup'" in said[0][0]
    assert "answer" in said[0][0]


class Deadly(Lookup):
    """Its examples kill whoever measures them, as long as a file says so."""

    lives: str

    def __reduce__(self):
        return (deadly, (self.lives,))


def deadly(lives):
    """What a worker makes of the task: the first ones die of it."""
    path = Path(lives)
    if multiprocessing.parent_process() is not None:
        with open(f"{lives}.pids", "a") as file:
            file.write(f"{os.getpid()} ")
    if multiprocessing.parent_process() is not None and int(path.read_text()):
        path.write_text(str(int(path.read_text()) - 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return Deadly(lives=lives)


def test_a_killed_worker_is_begun_again(tmp_path):
    (tmp_path / "lives").write_text("2")
    task = Deadly(lives=str(tmp_path / "lives"))
    frame, _ = ran(tmp_path / "store", task=task, executor="pool", processes=1)
    assert (tmp_path / "lives").read_text() == "0"
    pd.testing.assert_frame_equal(frame, ran(task=task)[0], check_exact=True)


def test_a_worker_that_dies_each_time_is_told(tmp_path):
    (tmp_path / "lives").write_text("100")
    with pytest.raises(RuntimeError, match=f"the worker of 'first' died {RETRIES + 1} times"):
        ran(tmp_path / "store", task=Deadly(lives=str(tmp_path / "lives")), executor="pool", processes=1)
    assert not list((tmp_path / "store" / "claims").glob("*.json"))


def test_an_executor_that_is_not_there_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"no executor 'cloud'; there are: local, pool, ray"):
        ran(executor="cloud")


# Killed


SIZED = {"d_model": 64, "n_layers": 4}


class Noting(Lookup):
    """Where it comes to, in whatever process, it is noted when measuring begins and ends."""

    stages: str

    def __reduce__(self):
        return (noting, (self.stages,))


def noting(stages):
    """What a worker makes of the task."""
    from workbench import executors

    executors.measure = noted(executors.measure, stages, "measuring in a worker")
    return Noting(stages=stages)


def noted(function, stages, stage):
    def inner(*args, **kwargs):
        note(stages, stage)
        out = function(*args, **kwargs)
        note(stages, "between")
        return out

    return inner


def note(stages, stage):
    with open(stages, "a") as file:
        file.write(f"{os.getpid()} {stage}\n")


def child(folder, log, given, sized, number, how, before=None):
    """A process that runs a study into a store, and notes each cell that it measures, and what it is doing."""
    from workbench import executors
    from workbench.work import Work

    torch.set_num_threads(1)
    stages = f"{log}.stages"
    note(stages, "beginning")
    measure = executors.measure

    def logged(common, model, conditions):
        with open(log, "a") as file:
            file.write("".join(f"{model.embed.W_E[0, 0].item()} {condition}\n" for condition in conditions))
        return measure(common, model, conditions)

    executors.measure = noted(logged, stages, "measuring")
    Store.add = noted(Store.add, stages, "writing")
    Work.collect = noted(Work.collect, stages, "reading")
    if before is not None:
        before()
    if how:
        served_by_the_same_server()
    frame, notes = ran(folder / "store", Study(**given), models(number, **sized), Noting(stages=stages), **how)
    note(stages, "reporting")
    files(folder / "out", Study(**given), frame, notes)


def served_by_the_same_server():
    """Workers of this process come from the server that this one came from: to start another takes seconds."""
    from workbench import workers

    forkserver._forkserver.ensure_running = lambda: None
    workers._start_the_server = lambda: None


@pytest.fixture(autouse=True, scope="module")
def server():
    """Processes are forks of one that has loaded what they need, these tests too."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [before])])
    loaded = ["workbench.executors", "workbench.models.bridge", "workbench.outcome", "test_resuming"]
    multiprocessing.set_forkserver_preload(loaded)
    forkserver.ensure_running()
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def start(*args, **kwargs):
    one = context().Process(target=child, args=args, kwargs=kwargs)
    one.start()
    return one


def every_key(given, given_models, log):
    common = shared(Study(**given), Noting(stages=f"{log}.stages"))
    return [key for one in as_trained(given_models)["first"] for key in cells_of.keys(common, one).values()]


def nothing_is_held_or_half_written(folder, every):
    """Every block is whole and every cell can be taken in hand; gives how many cells are there."""
    store = Store(folder / "store")
    assert store.damaged() == []
    assert store.take(every)
    store.give(every)
    return len(every) - len(store.missing(every))


class Killed:
    """A study that is killed at random moments, begun again, and from nothing where it was complete."""

    def __init__(self, folder, given, sized, number):
        self.folder, self.args, self.rounds = folder, (given, sized, number), 0
        self.log, self.stages, self.hit = folder / "log", folder / "log.stages", Counter()
        given_models, self.there = models(number, **sized), 0
        self.every = every_key(given, given_models, self.log)
        began = time.monotonic()
        found = ran(None, Study(**given), given_models)
        self.alone = time.monotonic() - began
        self.plain = files(folder / "plain", Study(**given), *found)

    def place(self):
        path = self.folder / str(self.rounds)
        path.mkdir(exist_ok=True)
        return path

    def kill_after(self, seconds, how=None, once=None):
        """Whether it was killed before it was complete. `once`: seconds count from when it is at that stage."""
        self.stages.unlink(missing_ok=True)
        one = start(self.place(), self.log, *self.args, how or {})
        if once is not None:
            until(lambda: not one.is_alive() or once in self.stage_of_each().values(), 60)
        one.join(seconds)
        killed = one.is_alive()
        one.kill()
        one.join()
        there = nothing_is_held_or_half_written(self.place(), self.every)
        assert there >= self.there
        self.there = there
        if killed:
            self.hit[self.stage(one.pid)] += 1
        else:
            self.complete(one)
        return killed

    def stage_of_each(self):
        """Process → what it did last."""
        lines = self.stages.read_text().splitlines() if self.stages.is_file() else []
        return dict(line.split(" ", 1) for line in lines)

    def stage(self, pid):
        """What the study was doing when it was killed, its workers first."""
        last = self.stage_of_each()
        own = last.pop(str(pid), "starting")
        return own if own == "writing" or "measuring in a worker" not in last.values() else "measuring in a worker"

    def complete(self, one):
        assert one.exitcode == 0
        out = self.place() / "out"
        assert {p.name: p.read_bytes() for p in out.iterdir() if p.name != "provenance.json"} == self.plain
        self.rounds, self.there = self.rounds + 1, 0

    def finish(self, how=None):
        one = start(self.place(), self.log, *self.args, how or {})
        one.join(120)
        self.complete(one)


POOL = {"executor": "pool", "processes": 2}


def killed_in_a_long_study(folder, sized, number):
    """More than 10 s of measuring, on a machine of any speed."""
    began, n = time.monotonic(), 300
    ran(None, Study(**{**GIVEN, "n": n}), models(1, **sized))
    alone = number * (time.monotonic() - began)
    while True:
        n = int(n * 11.5 / alone) + 1
        one = Killed(folder, {**GIVEN, "n": n}, sized, number)
        if one.alone > 10:
            return one
        alone = one.alone


def test_a_study_killed_at_a_few_moments_ends_in_the_same_tables(tmp_path):
    one = Killed(tmp_path, {**GIVEN, "n": 400}, {"d_model": 32}, 4)
    for seconds in (0.1, 0.5, 1.0, 1.5):
        one.kill_after(seconds)
    one.finish()


@pytest.mark.slow
def test_a_long_study_killed_at_thirty_moments_ends_in_the_same_tables(tmp_path):
    """60 cells, more than 10 s. By turns in this process and in a pool of two, which go on with what the other left;
    every third kill is counted from when measuring has begun."""
    one = killed_in_a_long_study(tmp_path, SIZED, 10)
    assert (len(one.every), one.alone > 10) == (60, True)
    moments, kills = random.Random(0), 0
    while kills < 30:
        how, stage = (POOL, "measuring in a worker") if kills % 2 else ({}, "measuring")
        late = kills % 3 == 2
        kills += one.kill_after(moments.uniform(0.05, 0.4 if late else 1.4), how, stage if late else None)
    one.finish()
    print(f"alone {one.alone:.1f} s, kills that hit it {dict(one.hit)}")
    assert min(one.hit["measuring"], one.hit["measuring in a worker"]) >= 3


class AtWrite:
    """Kills its own process at the n-th step of writing: before or after a file is synced or renamed."""

    def __init__(self, nth):
        self.nth = nth

    def __call__(self):
        for name in ("fsync", "replace"):
            setattr(os, name, self.counting(getattr(os, name)))

    def counting(self, step):
        def counted(*args):
            self.nth -= 1
            if self.nth == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            out = step(*args)
            self.nth -= 1
            if self.nth == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return out

        return counted


def killed_at_writes(folder, moments):
    given, number = {**GIVEN, "n": 20}, 3
    every = every_key(given, models(number), folder / "log")
    plain = files(folder / "plain", Study(**given), *ran(None, Study(**given), models(number)))
    for nth in moments:
        (folder / str(nth)).mkdir()
        args = (folder / str(nth), folder / "log", given, {}, number, {})
        one = start(*args, before=AtWrite(nth))
        one.join(60)
        assert one.exitcode == -signal.SIGKILL
        nothing_is_held_or_half_written(folder / str(nth), every)
        again = start(*args)
        again.join(60)
        out = folder / str(nth) / "out"
        assert {p.name: p.read_bytes() for p in out.iterdir() if p.name != "provenance.json"} == plain
        store = Store(folder / str(nth) / "store")
        store.prune(None)
        assert {path.suffix for path in store.blocks.iterdir()} == {".parquet", ".json"}


def test_a_study_killed_while_it_writes_ends_in_the_same_tables(tmp_path):
    killed_at_writes(tmp_path, (4, 9))


@pytest.mark.slow
def test_a_study_killed_in_ten_writes_ends_in_the_same_tables(tmp_path):
    killed_at_writes(tmp_path, (1, 2, 3, 5, 6, 7, 8, 10, 12, 15))


def test_a_study_killed_while_its_workers_measure_leaves_no_workers_and_ends_in_the_same_tables(tmp_path):
    one = Killed(tmp_path, {**GIVEN, "n": 2000}, {"d_model": 32}, 4)
    for seconds in (0.0, 0.1, 0.3):
        assert one.kill_after(seconds, POOL, "measuring in a worker")
        until(lambda: not any(alive(int(pid)) for pid in one.stage_of_each()))
    assert one.hit["measuring in a worker"] >= 1
    one.finish(POOL)


# Two at once, and stopped


def test_two_processes_at_once_measure_each_cell_once(tmp_path):
    given, number = {**GIVEN, "n": 300}, 6
    log = tmp_path / "log"
    (tmp_path / "store").mkdir()
    both = []
    for name, how in (("a", {}), ("b", {"executor": "local"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "store").symlink_to(tmp_path / "store")
        both.append(start(tmp_path / name, log, given, {}, number, how))
    for one in both:
        one.join(120)
    assert [one.exitcode for one in both] == [0, 0]
    counted = Counter(log.read_text().splitlines())
    assert (len(counted), set(counted.values())) == (6 * number, {1})
    plain = files(tmp_path / "plain", Study(**given), *ran(None, Study(**given), models(number)))
    for name in "ab":
        out = tmp_path / name / "out"
        assert {p.name: p.read_bytes() for p in out.iterdir() if p.name != "provenance.json"} == plain


def test_two_studies_at_once_measure_what_they_share_once(tmp_path):
    log, both, conditions = tmp_path / "log", [], list(CONDITIONS)
    (tmp_path / "store").mkdir()
    for name, some in (("a", conditions[:4]), ("b", conditions[2:])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "store").symlink_to(tmp_path / "store")
        given = {**GIVEN, "n": 300, "conditions": {each: CONDITIONS[each] for each in some}, "weights": {}}
        both.append(start(tmp_path / name, log, given, {}, 5, {}))
    for one in both:
        one.join(120)
    assert [one.exitcode for one in both] == [0, 0]
    counted = Counter(log.read_text().splitlines())
    assert (len(counted), set(counted.values())) == (6 * 5, {1})
    assert Store(tmp_path / "store").cells()["cell"].is_unique


def pooled(lives, store):
    ran(store, task=Deadly(lives=lives), made=study(n=2000), executor="pool", processes=2)


def test_workers_whose_parent_is_killed_end(tmp_path):
    (tmp_path / "lives").write_text("0")
    one = context().Process(target=pooled, args=(str(tmp_path / "lives"), tmp_path / "store"))
    one.start()
    pids = tmp_path / "lives.pids"
    until(lambda: pids.is_file() and len(pids.read_text().split()) >= 2)
    one.kill()
    one.join()
    workers = set(map(int, pids.read_text().split())) - {one.pid}
    assert len(workers) == 2
    until(lambda: not any(map(alive, workers)))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_two_labels_of_one_model_are_measured_once_and_both_told(tmp_path):
    """In a pool, the second's cells are in our own hand when its turn comes."""
    given = {"one": [model(0)], "other": [model(0)]}
    frame, _ = ran(tmp_path, given=given, executor="pool", processes=2)
    halves = [frame.loc[frame["model"] == label, "loss"].to_numpy() for label in given]
    assert np.array_equal(*halves)
    assert len(Store(tmp_path).cells()) == 6


@pytest.mark.parametrize("method", ["take", "give"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_while_cells_change_hands_leaves_nothing_in_hand(tmp_path, monkeypatch, method, moment):
    """Pressed when the file is written and nothing yet notes whose it is, or the other way round."""
    done = getattr(Claims, method)

    def pressed(self, keys):
        out = done(self, keys) if moment == "after" else None
        if keys:
            os.kill(os.getpid(), signal.SIGINT)
        return done(self, keys) if moment == "before" else out

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Claims, method, pressed)
        ran(tmp_path)
    assert not list((tmp_path / "claims").glob("*.json"))
    equal(ran(tmp_path), ran())


def test_workers_are_deaf_to_ctrl_c_from_their_first_moment_on():
    """It reaches every process of a terminal, and one that only begins would end with a traceback of its own. In a
    process of its own, since the server that starts workers is begun once."""
    code = """
import signal
from concurrent.futures import ProcessPoolExecutor
from workbench.workers import context
with ProcessPoolExecutor(1, context()) as pool:
    print(signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result())
print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert out.stdout.split() == ["True", "False"]


def test_a_model_reaches_its_worker_whole(tmp_path, monkeypatch):
    """A tensor of which only a handle is sent is fetched later, from a thread that complains of an ended worker."""

    def refused(*_):
        raise AssertionError("a handle was sent")

    monkeypatch.setattr(resource_sharer, "DupFd", refused)
    equal(ran(tmp_path, executor="pool", processes=1), ran())


@pytest.mark.parametrize("how", [{}, {"executor": "pool", "processes": 2}])
def test_ctrl_c_keeps_what_is_measured_and_leaves_nothing_in_hand(tmp_path, monkeypatch, how):
    add, before = Store.add, set(multiprocessing.active_children())

    def stopped(self, *args):
        add(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Store, "add", stopped)
        ran(tmp_path, **how)
    assert len(Store(tmp_path).cells()) == 6
    assert not list((tmp_path / "claims").glob("*.json"))
    for process in set(multiprocessing.active_children()) - before:
        process.join(10)
        assert not process.is_alive()
    equal(ran(tmp_path), ran())
