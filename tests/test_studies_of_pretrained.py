"""Grids over models that others trained: wrapped in Python, and as folders that a study's file declares."""

import re
import shutil
import sys

import pandas as pd
import pytest
import torch
from foreign import batch_for, made, shared
from test_study_command import call

from workbench import (
    Edges,
    Examples,
    Heads,
    Store,
    Study,
    cut,
    grid,
    load_pretrained,
    read_study,
    run,
    run_declared,
    run_study,
    zero,
)
from workbench.declared import models_of
from workbench.metrics import loss
from workbench.planning import plan

N = 6
POINTS = "[workbench.tasks]\nsingles = planted_tasks:singles\npairs = planted_tasks:pairs\n"
TASKS = f"""
from foreign import batch_for
from workbench.examples import Examples

def singles():
    return Examples("singles", batch_for("gpt2", n={N}, padding="right"))

def pairs():
    return Examples("pairs", batch_for("t5", n={N}, padding="right"))
"""
FILE = """
format = 1
n = 6
data_seed = 0
metrics = ["loss"]
task = {{ name = "{task}" }}

[models."{label}"]
kind = "pretrained"
folders = {folders}

[conditions]
clean = []
"""
SELF = """
[grids.cuts]
where = { type = "edges", layer = [0, 1], head = [0, 1], dest = "last", source = ["first", "some"] }
what = { op = "cut" }

[grids.heads]
where = { type = "heads", layer = [0, 1], head = [0, 1], pos = "some", part = ["z", "v"] }
what = { op = "zero" }
"""
CROSS = """
[grids.cross]
where = { type = "edges", layer = [0, 1], head = [0, 1], kind = "cross", dest = "last", source = "inner" }
what = { op = "cut" }

[grids.encoder]
where = { type = "heads", layer = [0, 1], head = [0, 1], stack = "encoder", pos = "inner", part = "z" }
what = { op = ["zero"] }

[grids.scaled]
where = { type = "edges", layer = 1, kind = "cross", dest = "last", source = "opening" }
what = { op = "scale", by = [0.5, 2.0] }
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Saved models: two of GPT-2, one of T5, one of Bart."""
    place = tmp_path_factory.mktemp("saved")
    for name, family, seed in (("one", "gpt2", 0), ("two", "gpt2", 1), ("t5", "t5", 0), ("bart", "bart", 0)):
        made(family, seed=seed).save_pretrained(place / name)
    return place


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder on the path with a distribution that names the tasks."""
    info = tmp_path / "planted_tasks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "planted_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("planted_tasks", None)


def written(place, task, label, folders, grids):
    """A study's file, on these folders."""
    listed = [folder.as_posix() for folder in folders]
    (place / "s.toml").write_text(FILE.format(task=task, label=label, folders=listed) + grids)
    return place / "s.toml"


def values(frame, condition, seed=0):
    rows = frame[(frame.condition == condition) & (frame.model_seed == seed)]
    return torch.tensor(rows.loss.to_numpy())


def by_hand(model, batch, edits):
    out = run(model, batch, edits, positions="read")
    return loss(out.logits, out.batch).float()


# Wrapped models of two sequences


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_grid_over_every_part_of_two_sequences_has_the_values_of_run(family):
    model, batch = shared(family), batch_for(family, n=N, padding="right")
    sides = {"encoder": ("closing", "opening"), "decoder": ("last", "first")}
    conditions = {"clean": []}
    for stack, (dest, source) in sides.items():
        conditions |= grid(cut, Edges, layer=range(2), head=[0, 1], stack=stack, dest=dest, source=source)
    conditions |= grid(cut, Edges, layer=range(2), head=[0, 1], kind="cross", dest="last", source=["opening", "inner"])
    conditions |= grid(zero, Heads, layer=range(2), head=[0, 1], stack="encoder", pos="inner", part=["q", "z"])
    assert len(conditions) == 1 + 4 + 4 + 8 + 8
    study = Study(conditions=conditions, n=N, data_seed=0, metrics=("loss",))
    frame, _ = run_study(study, Examples("pairs", batch), {family: [model]}, progress=False)
    for condition, edits in conditions.items():
        assert torch.equal(values(frame, condition), by_hand(model, batch, edits)), condition
    changed = [name for name in conditions if not torch.equal(values(frame, name), values(frame, "clean"))]
    assert {name for name in conditions if ".q " not in name} - {"clean"} <= set(changed)


def test_a_grid_over_parts_is_a_condition_of_each():
    found = grid(zero, Heads, layer=[0, 1], stack=["encoder", "decoder"], part="z")
    assert list(found) == [f"zero {part}.L{layer}.z every" for layer in (0, 1) for part in ("encoder", "decoder")]


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ({"layer": [0, 5], "kind": "cross", "dest": "last"}, r"'cut cross.L5 last←every'.*layers 0 to 1 in its cross"),
        ({"layer": 0, "head": [0, 2], "stack": "encoder"}, r"no head 2; this model has heads 0 to 1 in its encoder"),
        ({"layer": [0, 1], "dest": "last"}, r"say which part of this model: stack='encoder', .*kind='cross'"),
        ({"layer": 0, "stack": "encoder", "dest": ["closing", "last"]}, r"no role 'last'. There are: close, closing"),
    ],
    ids=["layer", "head", "part", "role"],
)  # fmt: skip
def test_a_grid_that_leaves_the_model_is_refused(axes, why):
    study = Study(conditions={"clean": [], **grid(cut, Edges, **axes)}, n=N, data_seed=0)
    with pytest.raises(KeyError, match=why):
        run_study(study, Examples("pairs", batch_for("t5", n=N)), {"t5": [shared("t5")]}, progress=False)


# Folders that a file declares


def test_a_file_with_grids_on_two_folders_has_the_values_of_run(place, folders):
    study = read_study(written(place, "singles", "gpt2", [folders / "one", folders / "two"], SELF))
    assert len(study.conditions) == 1 + 8 + 8
    frame, _ = run_declared(study, home=place / "runs", progress=False)
    batch = batch_for("gpt2", n=N, padding="right")
    for seed, name in enumerate(("one", "two")):
        model = load_pretrained(folders / name)
        for condition, edits in study.conditions.items():
            assert torch.equal(values(frame, condition, seed), by_hand(model, batch, edits)), condition
    assert not torch.equal(values(frame, "clean", 0), values(frame, "clean", 1))


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_file_with_grids_over_two_sequences_has_the_values_of_run(place, folders, family):
    study = read_study(written(place, "pairs", family, [folders / family], CROSS))
    assert [name for name in study.conditions if "cross.L1" in name] == [
        "cut cross.L1H0 last←inner", "cut cross.L1H1 last←inner", "scale cross.L1 last←opening by 0.5",
        "scale cross.L1 last←opening by 2",
    ]  # fmt: skip
    frame, _ = run_declared(study, home=place / "runs", progress=False)
    model, batch = load_pretrained(folders / family), batch_for("t5", n=N, padding="right")
    for condition, edits in study.conditions.items():
        assert torch.equal(values(frame, condition), by_hand(model, batch, edits)), condition
    assert not torch.equal(values(frame, "cut cross.L1H0 last←inner"), values(frame, "clean"))


def test_what_was_measured_in_a_folder_is_not_measured_again(place, folders):
    file, home = written(place, "singles", "gpt2", [folders / "one"], SELF), place / "runs"
    study = read_study(file)
    fewer = study.model_copy(update={"conditions": dict(list(study.conditions.items())[:5])})
    run_declared(fewer, home=home, progress=False)
    assert [(one.models, one.trained, one.cells, one.measured) for one in plan(study, home=home)] == [(1, 1, 17, 5)]
    frame, _ = run_declared(study, home=home, progress=False)
    blocks = set((home / "cells" / "blocks").iterdir())
    assert len(Store(home / "cells").cells()) == 17
    moved = place / "elsewhere"
    shutil.copytree(folders / "one", moved)
    again, _ = run_declared(read_study(written(place, "singles", "gpt2", [moved], SELF)), home=home, progress=False)
    pd.testing.assert_frame_equal(again, frame, check_exact=True)
    assert set((home / "cells" / "blocks").iterdir()) == blocks


def test_the_command_line_runs_a_file_of_folders(place, folders):
    file, how = written(place, "pairs", "t5", [folders / "t5"], CROSS), ("--home", place / "runs")
    assert "t5: 1 models (1 there), 11 conditions, 11 cells (0 there)" in call("study", "plan", file, *how)
    call("study", "run", file, "--executor", "local", *how)
    assert "11 cells (11 there)" in call("study", "plan", file, *how)
    table = pd.read_csv(place / "runs" / "studies" / "s" / "summary.csv")
    assert set(table["condition"]) == set(read_study(file).conditions)
    assert (table["run"] == N).all()


def test_conditions_for_one_label_of_folders_are_run_on_that(place, folders):
    file = written(place, "singles", "one", [folders / "one"], SELF)
    other = f'[models.two]\nkind = "pretrained"\nfolders = ["{(folders / "two").as_posix()}"]\n'
    file.write_text(file.read_text() + f'\n[only]\none = ["cut L0H0 last←first"]\n{other}')
    frame, _ = run_declared(read_study(file), home=place / "runs", progress=False)
    counts = frame.groupby("model", observed=True)["condition"].nunique().to_dict()
    assert counts == {"one": 17, "two": 16}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("head = [0, 1], dest", "head = [0, 7], dest"), "cut L0H7 last←first.*no head 7; this model has heads 0"),
        (("layer = [0, 1], head = [0, 1], pos", "layer = [2], head = [0, 1], pos"), "no layer 2; this model has"),
        (('"first", "some"', '"first", "sume"'), "no role or relation 'sume'"),
        (('type = "edges"', 'type = "edges", kind = "cross"'), "cross"),
        (("/one'", "/none'"), "none"),
        (('what = { op = "cut" }', "what = 3"), "a grid's 'what' is a table of keys.*there is 3"),
        (('what = { op = "cut" }', 'what = { op = ["cut", "cat"] }'), "'cat'"),
    ],
    ids=["head", "layer", "role", "part", "folder", "operation", "name"],
)  # fmt: skip
def test_a_file_that_does_not_fit_the_folder_is_refused_in_one_paragraph(place, folders, change, why):
    file = written(place, "singles", "gpt2", [folders / "one"], SELF)
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change))
    said = call("study", "run", file, "--home", place / "runs", "--executor", "local", code=2)
    assert said.startswith("workbench: ")
    assert len(said.strip().splitlines()) == 1
    assert re.search(why, said), said


def test_a_folder_that_is_named_twice_is_not_two_models(place, folders):
    study = read_study(written(place, "singles", "gpt2", [folders / "one", folders / "one"], SELF))
    with pytest.raises(ValueError, match="two models under 'gpt2' have the same weights"):
        run_declared(study, home=place / "runs", progress=False)


def test_folders_are_loaded_in_their_order(place, folders):
    study = read_study(written(place, "singles", "gpt2", [folders / "two", folders / "one"], SELF))
    found = models_of(study.models, study.task.made(), home=place / "runs")["gpt2"]
    wanted = [load_pretrained(folders / name) for name in ("two", "one")]
    for one, other in zip(found, wanted, strict=True):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
