"""Studies in files: the same study back, and the file and the fault of everything that is none."""

import csv
import io
import json
import re

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from workbench import Edges, Heads, Study, custom, cut, patch, read_study, study_text, uniform
from workbench.declared import config_of
from workbench.report import write_report
from workbench.study import Donor
from workbench.study_file import FORMAT
from workbench.tables import to_csv, to_latex, to_markdown

ANSWER = Edges(layer=1, dest="last", source="answer")
STUDY = Study(
    conditions={
        "clean": [],
        "cut": [cut(ANSWER)],
        "a|b\n<script>": [uniform(ANSWER), patch(Heads(layer=0, pos="answer", part="z"), donor="d", align="role")],
    },
    weights={"answer": ANSWER},
    donors={"d": Donor(data_seed=3, corrupt_seed=4)},
    n=10,
    data_seed=-1,
    on_missing="skip",
)
PLAIN = {"format": FORMAT, "conditions": {"clean": []}, "n": 10, "data_seed": 0}
TOML = """\
format = 1
n = 10
data_seed = 0
metrics = ["accuracy", "loss"]

[conditions]
clean = []

[[conditions.cut]]
where = {type = "edges", layer = 1, dest = "last", source = "answer"}
what = {op = "cut"}
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.json"


def refused(path, kind=ValueError):
    """The message of the error with which the file is refused."""
    with pytest.raises(kind) as caught:
        read_study(path)
    assert caught.type is kind
    return str(caught.value)


def wrong(path, **changes):
    """The message for a study with these keys; `...` leaves one out."""
    path.write_text(json.dumps({key: value for key, value in (PLAIN | changes).items() if value is not ...}))
    return refused(path)


# Round trip


def test_a_study_comes_back_from_json(path):
    path.write_text(study_text(STUDY), encoding="utf-8")
    assert read_study(path) == STUDY == read_study(str(path))


def test_the_text_is_the_same_each_time_and_ends_in_a_line_feed():
    assert study_text(STUDY) == study_text(STUDY.model_copy()) and study_text(STUDY).endswith("}\n")
    assert json.loads(study_text(STUDY))["format"] == FORMAT


def test_a_study_is_read_from_toml(tmp_path):
    (tmp_path / "study.toml").write_text(TOML)
    asked = {"clean": [], "cut": [cut(ANSWER)]}
    assert read_study(tmp_path / "study.toml") == Study(
        conditions=asked, metrics=("accuracy", "loss"), n=10, data_seed=0
    )


def test_toml_and_json_say_the_same(tmp_path, path):
    (tmp_path / "study.toml").write_text(TOML)
    path.write_text(study_text(read_study(tmp_path / "study.toml")))
    assert read_study(path) == read_study(tmp_path / "study.toml")


def test_a_custom_function_is_not_written_and_not_read(path):
    with pytest.raises(ValueError, match="'c' holds a custom function, which a study cannot declare"):
        Study(conditions={"c": [custom(("pattern", 0), abs)]}, n=1, data_seed=0)
    one = {"where": None, "what": {"op": "custom", "site": "pattern", "layer": 0, "fn": "builtins.print"}}
    assert wrong(path, conditions={"c": [one]}).startswith(f"{path}: conditions.c.0.what")


# Files


@pytest.mark.parametrize("name", ["none.json", "none.toml"])
def test_a_missing_file_is_named(tmp_path, name):
    assert refused(tmp_path / name, FileNotFoundError) == f"{tmp_path / name}: no such file"


def test_a_folder_is_no_study(tmp_path):
    (tmp_path / "study.json").mkdir()
    assert refused(tmp_path / "study.json", FileNotFoundError) == (
        f"{tmp_path / 'study.json'}: a folder; a study is a file"
    )


@pytest.mark.parametrize("suffix", [".yaml", ".JSON", "", ".pkl"])
def test_another_suffix_is_refused(tmp_path, suffix):
    (tmp_path / f"study{suffix}").write_text(study_text(STUDY))
    said = refused(tmp_path / f"study{suffix}")
    assert said.endswith(f"a study is read from .json or .toml; the suffix is {suffix!r}")


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff", b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"n": ' + b"1" * 5000 + b"}", b"no"],
    ids=["empty", "truncated", "latin-1", "byte order mark", "deep", "huge", "words"],
)
def test_what_is_no_json_is_refused(path, raw):
    path.write_bytes(raw)
    assert refused(path).startswith(f"{path}: no valid JSON (")


@pytest.mark.parametrize(
    "raw",
    [b"format =", b"\xff", b"format = 1\nformat = 1", b"a = " + b"[" * 5000],
    ids=["cut", "latin-1", "twice", "deep"],
)
def test_what_is_no_toml_is_refused(tmp_path, raw):
    (tmp_path / "study.toml").write_bytes(raw)
    assert refused(tmp_path / "study.toml").startswith(f"{tmp_path / 'study.toml'}: no valid TOML (")


def test_a_key_that_is_there_twice_is_refused(path):
    """JSON's own reading would keep the last of two conditions and say nothing."""
    path.write_text('{"format": 1, "n": 1, "data_seed": 0, "conditions": {"clean": [], "cut": [], "cut": []}}')
    assert refused(path) == f"{path}: no valid JSON ('cut' is there twice)"


@pytest.mark.parametrize(("text", "kind"), [("[]", "list"), ("3", "int"), ("null", "NoneType"), ('"x"', "str")])
def test_a_file_without_keys_is_no_study(path, text, kind):
    path.write_text(text)
    assert refused(path) == f"{path}: a study is a table of keys; there is a {kind}"


# Formats


@pytest.mark.parametrize("said", [2, 0, -1, "1", True, 1.0, [1], {}, False])
def test_another_format_is_refused(path, said):
    assert wrong(path, format=said) == f"{path} is of format {said!r}; this version of the workbench reads format 1"


@pytest.mark.parametrize("said", [..., None])
def test_no_format_is_refused(path, said):
    assert wrong(path, format=said) == f"{path} has no 'format'; this version of the workbench reads format 1"


def test_another_format_is_told_before_its_unknown_keys(path):
    assert "is of format 2" in wrong(path, format=2, unknown=3)


# Keys and values


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"unknown": 3}, "unknown: Extra inputs are not permitted"),
        ({"data_seed": ...}, "data_seed: Field required"),
        ({"n": 0}, "n: Input should be greater than or equal to 1"),
        ({"n": None}, "n: Input should be a valid integer"),
        ({"n": 1.5}, "n: Input should be a valid integer"),
        ({"n": float("nan")}, "n: Input should be a valid integer"),
        ({"conditions": {}}, "conditions: Dictionary should have at least 1 item"),
        ({"conditions": []}, "conditions: Input should be a valid dictionary"),
        ({"conditions": {"a": [3]}}, "conditions.a.0: Input should be a valid dictionary or instance of Intervention"),
        ({"conditions": {"a": [{"x": 1}]}}, "conditions.a.0.x: Extra inputs are not permitted"),
        ({"metrics": "accuracy"}, "metrics: Input should be a valid tuple"),
        ({"donors": {"d": {"y": 1}}}, "donors.d.y: Extra inputs are not permitted"),
        ({"weights": {"w": {"layer": 0, "y": 1}}}, "weights.w.y: Extra inputs are not permitted"),
        ({"on_missing": "drop"}, "on_missing: Input should be 'raise' or 'skip'"),
    ],
    ids=str,
)
def test_a_fault_is_told_with_its_path(path, change, fault):
    said = wrong(path, **change)
    assert said.startswith(f"{path}: ") and fault in said and "\n" not in said and "http" not in said


def test_every_fault_is_told_at_once(path):
    said = wrong(path, n=0, unknown=1)
    assert "n: Input" in said and "unknown: Extra" in said and said.count("; ") == 1


def test_what_an_intervention_lacks_is_told_with_its_place(path):
    bad = [{"where": {"type": "edges", "layer": 1, "sauce": "x"}, "what": {"op": "cut"}}]
    assert "conditions.cut.0.where.edges.sauce: Extra inputs" in wrong(path, conditions={"cut": bad})


def test_a_fault_of_the_whole_study_is_told_without_a_place(path):
    change = {"conditions": {"cut": [cut(ANSWER).model_dump()]}, "weights": {"answer": ANSWER.model_dump()}}
    said = "weights are recorded in a condition without interventions; add one, such as 'clean': ()"
    assert wrong(path, **change) == f"{path}: {said}"


# Labels from a file in a report

HOSTILE = (
    "<script>alert(1)</script>", "</svg><b>", "a|b", "[x](javascript:alert(1))", "![x](y)", "[x]", "*x*", "* x", "_x_",
    "`x`", "~~x~~", "$x$", "&lt;", "# x", "- x", "1. x", "\\", "\\|", "a\nb", "a\rb", "a\r\nb", "a\u2028b", 'a"b',
    "a,b", '=HYPERLINK("x")', "{{ 7 * 7 }}", "\\input{x}", "%x", "a & b", "a~b^c",
)  # fmt: skip
PLAIN_CELLS = {"text", "softbreak", "text_special"}


def labels(path):
    """A table of hostile labels, as a study's file gives them."""
    path.write_text(json.dumps(PLAIN | {"conditions": {label: [] for label in HOSTILE}}))
    conditions = read_study(path).conditions
    assert tuple(conditions) == HOSTILE
    return pd.DataFrame({"condition": list(conditions), "n": range(len(HOSTILE))})


def test_no_label_is_markup_in_markdown(path):
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(to_markdown(labels(path)))
    cells = [token.children for token in tokens if token.type == "inline"]
    assert len(cells) == 2 * (len(HOSTILE) + 1)
    shown = ["".join("\n" if one.content == "<br>" else one.content for one in cell) for cell in cells[2::2]]
    assert shown == [re.sub("\r\n|\r", "\n", label) for label in HOSTILE]
    kinds = {(one.type, one.content) for cell in cells for one in cell if one.type not in PLAIN_CELLS}
    assert kinds == {("html_inline", "<br>")}


def test_every_label_is_one_row_in_csv_as_it_is_written(path, tmp_path):
    frame = labels(path)
    assert [row[0] for row in csv.reader(io.StringIO(to_csv(frame), newline=""))][1:] == list(HOSTILE)
    written = write_report(tmp_path / "report", {"table.csv": to_csv(frame)}) / "table.csv"
    assert len(pd.read_csv(written)) == len(HOSTILE)
    assert pd.read_csv(written)["n"].tolist() == list(range(len(HOSTILE)))


def test_no_label_is_a_command_or_an_option_in_latex(path):
    rows = to_latex(labels(path)).split("\n")[4:-2]
    assert len(rows) == len(HOSTILE)
    for row in rows:
        cell = re.fullmatch(r"(.*) & \d+ \\\\", row)[1]
        # After the end of a row, an opening bracket is the option of the end and a star its form.
        assert not cell.startswith(("[", "*")) and not re.search(r"(?<!\\)[&%$#_^~]", cell)
        commands = set(re.findall(r"\\([a-z]+)", cell))
        assert commands <= {"textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar"}


def test_sizes_that_would_have_one_label_are_refused(tmp_path):
    path = tmp_path / "study.toml"
    head = "format = 1\nn = 5\ndata_seed = 0\n[conditions]\nclean = []\n"
    entry = '[models.m]\nkind = "training"\nseeds = 1\nconfig = {{ n_layers = {layers}, n_heads = 1, d_model = 8 }}\n'
    path.write_text(head + entry.format(layers="[1, 1]"), encoding="utf-8")
    with pytest.raises(ValueError, match="two models are labelled 'm n_layers=1'"):
        read_study(path)
    path.write_text(head + entry.format(layers="[1, 2]"), encoding="utf-8")
    assert list(read_study(path).models) == ["m n_layers=1", "m n_layers=2"]


# Masks are one value of a model, though a list

SIZE = {"d_model": 8, "n_layers": 2, "n_heads": 1}
BOTH_WAYS, WINDOW = [{"causal": False}], [{"window": 2}, {"causal": True}]


def training(**config):
    return {"kind": "training", "config": config, "seeds": 1}


def modelled(**config):
    return Study(conditions={"clean": []}, n=4, data_seed=0, task={"name": "lookup"}, models={"m": training(**config)})


def models_of(path, **config):
    """Label → config of the models in a file whose one model has this config."""
    path.write_text(json.dumps(PLAIN | {"models": {"m": training(**config)}}))
    return {label: dict(one.config) for label, one in read_study(path).models.items()}


@pytest.mark.parametrize(
    "config",
    [
        SIZE | {"masks": BOTH_WAYS},
        SIZE | {"masks": WINDOW},
        SIZE | {"masks": [{}]},
        {"encoder": SIZE | {"masks": BOTH_WAYS}, "decoder": SIZE | {"masks": WINDOW}},
    ],
    ids=["one mask", "a mask a layer", "the default", "of two sides"],
)
def test_a_study_with_masks_comes_back_from_its_own_file(path, config):
    asked = modelled(**config)
    path.write_text(study_text(asked))
    found = read_study(path)
    assert found == asked and list(found.models) == ["m"] and study_text(found) == study_text(asked)
    task = found.task.made()
    assert config_of(found.models["m"], task) == config_of(asked.models["m"], task)


def test_masks_in_toml_are_one_value(tmp_path):
    (tmp_path / "study.toml").write_text(
        TOML + '[models.m]\nkind = "training"\nseeds = 1\nconfig = { d_model = 8, masks = [{ causal = false }] }\n'
    )
    found = read_study(tmp_path / "study.toml").models
    assert {label: one.config["masks"] for label, one in found.items()} == {"m": BOTH_WAYS}


def test_masks_beside_sizes_are_the_same_in_each(path):
    found = models_of(path, **(SIZE | {"n_heads": [1, 2], "masks": WINDOW}))
    assert {label: one["masks"] for label, one in found.items()} == {"m n_heads=1": WINDOW, "m n_heads=2": WINDOW}


def test_a_list_of_lists_of_masks_is_a_model_each(path):
    assert models_of(path, **SIZE, masks=[BOTH_WAYS, WINDOW]) == {
        'm masks=[{"causal": false}]': SIZE | {"masks": BOTH_WAYS},
        'm masks=[{"window": 2}, {"causal": true}]': SIZE | {"masks": WINDOW},
    }


def test_sizes_of_an_encoder_and_a_decoder_are_a_model_each(path):
    encoder = SIZE | {"masks": BOTH_WAYS}
    found = models_of(path, encoder=encoder | {"n_layers": [1, 2]}, decoder=SIZE | {"n_heads": [1, 2]})
    assert found == {
        f"m encoder.n_layers={layers} decoder.n_heads={heads}": {
            "encoder": encoder | {"n_layers": layers}, "decoder": SIZE | {"n_heads": heads}
        }
        for layers in (1, 2)
        for heads in (1, 2)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"masks": [{"causal": False}, [{"window": 2}]]}, "masks holds masks beside lists of masks"),
        ({"masks": [[[{}]]]}, "masks is a list within a list"),
        ({"n_layers": [[1], [2]]}, "n_layers is a list within a list"),
        ({"encoder": [{"n_layers": [1, 2]}], "decoder": {}}, "encoder.n_layers is a list within a list"),
        ({"decoder": {"n_layers": []}}, "the grid's 'decoder.n_layers' is empty"),
    ],
)
def test_lists_that_say_no_models_are_refused_with_their_place(path, config, fault):
    assert wrong(path, models={"m": training(**config)}).startswith(f"{path}: models.m: {fault}")


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (SIZE | {"n_layers": [1, 2]}, "n_layers"),
        ({"encoder": SIZE | {"n_heads": [1]}, "decoder": SIZE}, "encoder.n_heads"),
    ],
)
def test_a_study_that_would_come_back_as_another_is_not_written(config, place):
    with pytest.raises(ValueError, match=rf"models.m: {place} of its config holds a list.*one by one"):
        study_text(modelled(**config))
