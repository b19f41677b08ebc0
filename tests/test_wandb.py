"""Logging to Weights & Biases: what is written offline is what was measured, and nothing is sent, kept on or lost."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small import ANSWER, TASK, small
from test_study_command import STUDY, call

from workbench import ModelConfig, Study, contrast, cut, read_study, run_study, study_text, summary, train
from workbench import logging_to_wandb as logging
from workbench.checkpoints import Trained
from workbench.logging_to_wandb import log_declared, log_study, log_training
from workbench.recipe import Recipe
from workbench.wandb_runs import NotLogged, check_mode

wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'attention-workbench[wandb]'")

ASKED = Study(
    conditions={"clean": [], "cut a.b/c ←": [cut(ANSWER)]},
    weights={"answer": ANSWER},
    metrics=("accuracy", "loss"),
    n=9,
    data_seed=0,
)
BLOCK, HEADER = 32768, 7
"""Of a .wandb file: LevelDB's log, in blocks of records with a checksum, a length and a kind."""


@pytest.fixture(scope="module")
def measured():
    one = Trained(small(), 3, Path(), [], {"weights_sha256": "0" * 64})
    frame, notes = run_study(ASKED, TASK, {"small": [one]}, progress=False)
    notes = pd.DataFrame([("small", 3, "clean", "a note")], columns=list(notes))
    return frame, notes


@pytest.fixture(autouse=True)
def nobody_logged_in(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)


def logged(measured, home, study=ASKED, **how):
    return log_study(*measured, study, **{"project": "tests", "folder": home, **how})


def records(folder):
    """The records of a run's .wandb file, read as LevelDB writes its log."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("run-*.wandb")
    raw, at, begun = file.read_bytes(), HEADER, b""
    assert raw.startswith(b":W&B")
    while at + HEADER <= len(raw):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        size, kind = struct.unpack("<HB", raw[at + 4 : at + HEADER])
        begun += raw[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):
            yield Record.FromString(begun)
            begun = b""


def history(folder):
    """What was logged, a dictionary a step."""
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


def config(folder):
    (run,) = [one.run for one in records(folder) if one.WhichOneof("record_type") == "run"]
    return run, {item.key: json.loads(item.value_json) for item in run.config.update}


def table(folder, name, values):
    said = json.loads((folder / "files" / values[f"{name}/path"]).read_text())
    return pd.DataFrame(said["data"], columns=said["columns"])


def services():
    """wandb's service processes that this process started."""
    out = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True)
    return [line for line in out.stdout.splitlines() if "wandb" in line]


# What is written


def test_the_logged_numbers_are_those_of_the_frame(measured, tmp_path):
    frame = measured[0]
    (values,) = history(logged(measured, tmp_path / "home"))
    assert {name: values[name] for name in ("planned", "run", "skipped")} == {"planned": 18, "run": 18, "skipped": 0}
    means = {
        f"mean/{metric}/small/3/{condition}": float(rows[metric].to_numpy(dtype=float).mean())
        for condition, rows in frame.groupby("condition", observed=True)
        for metric in ("accuracy", "loss", "answer")
        if rows[metric].notna().all()
    }
    assert len(means) == 5
    assert {name: value for name, value in values.items() if name.startswith("mean/")} == means


def test_the_logged_tables_are_those_of_the_results(measured, tmp_path):
    frame, notes = measured
    folder = logged(measured, tmp_path)
    (values,) = history(folder)
    asked = {
        "summary": summary(frame),
        "contrasts": pd.concat([contrast(frame, "cut a.b/c ←", "clean", name) for name in ("accuracy", "loss")]),
        "notes": notes,
    }
    for name, wanted in asked.items():
        found = table(folder, name, values)
        assert list(found) == list(wanted)
        plain = wanted.astype(object)
        assert found.astype(object).to_numpy().tolist() == plain.where(plain.notna(), None).to_numpy().tolist()
    means = table(folder, "means", values).set_index(["condition", "metric"])["mean"]
    assert means.to_dict() == summary(frame).set_index(["condition", "metric"])["seed_low"].to_dict()


def test_the_configuration_is_the_study_its_examples_and_its_weights(measured, tmp_path):
    run, said = config(logged(measured, tmp_path, project="mine", name="s"))
    assert (run.project, run.display_name, run.job_type) == ("mine", "s", "study")
    assert said["study"] == json.loads(study_text(ASKED))
    digest = TASK.sample(ASKED.n, ASKED.data_seed).digest()
    assert said["examples"] == digest
    assert said["measured"] == {"small": {"3": {"examples": digest, "weights": "0" * 64}}}
    assert said["dtypes"] == {"small": ["float64"]}


def test_skipped_examples_are_counted_and_in_no_mean(measured, tmp_path):
    frame = measured[0].copy()
    out = frame["example"] < 2
    frame["skipped"] = pd.Series(np.where(out, "lacks a role", None), index=frame.index).astype("category")
    frame.loc[out, ["accuracy", "loss", "answer"]] = np.nan
    (values,) = history(logged((frame, measured[1]), tmp_path))
    assert (values["planned"], values["run"], values["skipped"]) == (18, 14, 4)
    kept = frame[(frame.condition == "clean") & ~out]
    assert values["mean/loss/small/3/clean"] == kept.loss.to_numpy(dtype=float).mean()


def test_without_a_condition_to_compare_with_there_are_no_contrasts(measured, tmp_path):
    edited = ASKED.model_copy(update={"conditions": {name: (cut(ANSWER),) for name in ASKED.conditions}})
    (values,) = history(logged(measured, tmp_path, edited))
    assert "contrasts/path" not in values
    assert "summary/path" in values


def test_rows_beyond_what_a_table_holds_go_to_the_next(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(logging, "MOST", 2)
    folder = logged(measured, tmp_path)
    (values,) = history(folder)
    parts = [table(folder, name, values) for name in ("summary", "summary 2", "summary 3")]
    assert [len(one) for one in parts] == [2, 2, 1]
    assert pd.concat(parts)["estimate"].tolist() == summary(measured[0])["estimate"].tolist()


def test_a_training_curve_is_logged_at_its_steps(tmp_path):
    shape = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=1, n_heads=1)
    model = train(TASK, shape, Recipe(steps=3, warmup=1, batch_size=8), seed=1, home=tmp_path, progress=False)
    (folder,) = log_training({"one": [model]}, project="tests", folder=tmp_path)
    found = list(history(folder))
    assert [{name: one[name] for name in ("step", "loss", "accuracy")} for one in found] == model.curve
    assert [one["_step"] for one in found] == [point["step"] for point in model.curve]
    run, said = config(folder)
    assert (run.run_group, run.display_name) == ("one", "one, seed 1")
    assert said["weights_sha256"] == model.about["weights_sha256"]
    assert (said["seed"], said["recipe"]) == (1, model.about["definition"]["recipe"])


def test_models_without_a_curve_are_refused():
    with pytest.raises(ValueError, match=r"none of the models under \['small'\] has a training curve"):
        log_training({"small": [Trained(small(), 0, Path(), [], {})]}, project="tests")


# Where it is written, and what is left


def test_what_is_logged_lies_under_the_folder_of_runs_alone(measured, tmp_path):
    usual = [Path.home() / ".cache" / "wandb" / "logs", Path.home() / ".local" / "share" / "wandb"]
    before = [sorted(one.rglob("*")) for one in usual]
    folder = logged(measured, tmp_path / "home")
    assert folder.parent == tmp_path / "home" / "wandb"
    assert [one.name for one in tmp_path.iterdir()] == ["home"]
    assert [sorted(one.rglob("*")) for one in usual] == before


def test_the_folder_is_that_of_runs_unless_said(measured, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "runs"))
    assert logged(measured, None).parent == tmp_path / "runs" / "wandb"


def test_no_process_and_no_change_of_the_environment_is_left(measured, tmp_path):
    before = dict(os.environ)
    logged(measured, tmp_path)
    assert dict(os.environ) == before
    assert services() == []
    assert wandb.run is None


def test_a_run_that_is_open_stays_open(measured, tmp_path, monkeypatch):
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
    mine = wandb.init(project="mine", mode="offline", dir=tmp_path, settings=settings)
    try:
        logged(measured, tmp_path)
        assert wandb.run is mine
        assert len(services()) == 1
        mine.log({"after": 1.0})
        place = Path(mine.dir).parent
    finally:
        mine.finish()
        wandb.teardown()
    assert [one["after"] for one in history(place)] == [1.0]


def test_logging_that_is_interrupted_leaves_no_process(measured, tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(logging, "_as_tables", stop)
    with pytest.raises(KeyboardInterrupt):
        logged(measured, tmp_path)
    assert services() == []


def test_wandb_is_imported_by_nobody_who_does_not_ask():
    code = (
        "import sys, pandas as pd, workbench.cli, workbench.logging_to_wandb as one, workbench\n"
        "study = workbench.Study(conditions={'clean': []}, n=1, data_seed=0)\n"
        "one.log_study(pd.DataFrame(), pd.DataFrame(), study, project='p', mode='disabled')\n"
        "print('wandb' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"]


# What is sent


@contextmanager
def server(monkeypatch, *names):
    """An address under these names in the environment; the requests that came."""
    found, listening = [], socket.create_server(("127.0.0.1", 0))

    def answer():
        while True:
            try:
                caller, _ = listening.accept()
            except OSError:
                return
            found.append(caller.recv(100))
            caller.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            caller.close()

    thread = threading.Thread(target=answer)
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    for name in names:
        monkeypatch.setenv(name, address)
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    try:
        yield found
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


@pytest.mark.parametrize("wanted", [{}, {"WANDB_MODE": "online"}], ids=["offline", "another mode in the environment"])
def test_nothing_is_sent_offline(measured, tmp_path, monkeypatch, wanted):
    connect = socket.socket.connect

    def local(self, address):
        assert self.family == socket.AF_UNIX, f"a connection to {address}"
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    with server(monkeypatch, "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy") as calls:
        (values,) = history(logged(measured, tmp_path))
        assert values["planned"] == 18
        assert calls == []


def test_the_telemetry_of_the_service_is_off(measured, tmp_path):
    """It looks for a name server even offline, which no address in the environment shows."""
    logged(measured, tmp_path)
    (log,) = (tmp_path / "wandb" / "cache").rglob("core-debug-*.log")
    assert json.loads(log.read_text().splitlines()[0])["disable-analytics"] is True


def test_what_the_server_refuses_is_told_and_leaves_no_process(measured, tmp_path, monkeypatch):
    with server(monkeypatch, "WANDB_BASE_URL") as calls:
        with pytest.raises(NotLogged, match=r"did not take the run: .*Results are not touched"):
            logged(measured, tmp_path, mode="online")
        assert calls
    assert services() == []


def test_the_machine_the_code_and_the_console_are_not_recorded(measured, tmp_path, capfd):
    folder = logged(measured, tmp_path)
    kinds = {record.WhichOneof("record_type") for record in records(folder)}
    assert not kinds & {"output", "output_raw", "stats", "environment"}
    assert not list((folder / "files").glob("requirements.txt"))
    assert config(folder)[0].host == ""
    assert capfd.readouterr() == ("", "")


# What is refused


def test_another_mode_is_refused_with_the_nearest(measured):
    with pytest.raises(ValueError, match=r"no W&B mode 'ofline'.*offline"):
        logged(measured, None, mode="ofline")


def test_where_wandb_is_not_installed_the_extra_is_named(measured, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotLogged, match=r"pip install 'attention-workbench\[wandb\]'"):
        logged(measured, None)
    check_mode("disabled")


def test_what_is_no_results_frame_is_refused_before_anything_is_written(measured, tmp_path):
    with pytest.raises(ValueError, match="a results frame needs the columns"):
        logged((measured[0].drop(columns="example"), measured[1]), tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_a_project_that_cannot_be_is_refused(measured, tmp_path):
    with pytest.raises(NotLogged, match="project"):
        logged(measured, tmp_path, project="a/b?c")


# The command line


def ran(place, *words, code=0):
    (place / "mine.toml").write_text(STUDY.replace("seeds = 2", "seeds = 1"))
    home = ("--home", place / "runs", "--executor", "local")
    return call("study", "run", place / "mine.toml", *home, *words, code=code)


def test_a_study_is_logged_from_the_command_line_when_asked(tmp_path):
    assert "wandb" not in ran(tmp_path)
    assert ran(tmp_path, "--wandb", "mine", "--wandb-mode", "disabled").splitlines()[-1] == "wandb: disabled"
    assert not (tmp_path / "runs" / "wandb").exists()
    said = ran(tmp_path, "--wandb", "mine").splitlines()
    assert said[-2] == f"results: {tmp_path / 'runs' / 'studies' / 'mine'}"
    run, about = config(Path(said[-1].removeprefix("wandb: ")))
    assert (run.display_name, about["study"]) == ("mine", json.loads(study_text(read_study(tmp_path / "mine.toml"))))
    jobs = [config(one)[0].job_type for one in (tmp_path / "runs" / "wandb").glob("offline-run-*")]
    assert sorted(jobs) == ["study", "training"]


def test_a_mode_that_there_is_not_is_refused_before_the_study_runs(tmp_path):
    said = ran(tmp_path, "--wandb", "mine", "--wandb-mode", "ofline", code=2)
    assert said.startswith("workbench: no W&B mode 'ofline'")
    assert not (tmp_path / "runs").exists()


def test_results_are_written_though_logging_fails(tmp_path):
    said = ran(tmp_path, "--wandb", "a/b?c", code=2)
    assert "workbench: Weights & Biases did not take the run" in said
    assert (tmp_path / "runs" / "studies" / "mine" / "results.parquet").is_file()


def test_models_that_others_trained_have_no_curve_to_log(measured, tmp_path):
    study = ASKED.model_copy(update={"models": {}})
    log_declared(study, *measured, project="tests", home=tmp_path)
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1
