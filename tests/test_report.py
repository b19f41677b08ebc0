"""Writing reports."""

import os

import pandas as pd
import pytest

from workbench.report import write_report, write_tables


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_are_written_under_a_folder_that_is_made(tmp_path):
    folder = write_report(tmp_path / "reports" / "demo", {"README.md": "# Title\n", "figures/a.svg": b"<svg/>"})
    assert folder == tmp_path / "reports" / "demo"
    assert tree(folder) == {"README.md": b"# Title\n", "figures/a.svg": b"<svg/>"}


def test_text_is_utf8_with_line_feeds_and_ends_in_one(tmp_path):
    folder = write_report(tmp_path, {"a.md": "last←answer\r\nend", "empty.md": ""})
    assert tree(folder) == {"a.md": "last←answer\nend\n".encode(), "empty.md": b"\n"}


def test_bytes_are_written_as_they_are(tmp_path):
    assert tree(write_report(tmp_path, {"a.png": b"\r\n\x00"})) == {"a.png": b"\r\n\x00"}


def test_a_file_is_replaced_and_others_are_left_alone(tmp_path):
    write_report(tmp_path, {"a.md": "old", "b.md": "kept"})
    write_report(tmp_path, {"a.md": "new"})
    assert tree(tmp_path) == {"a.md": b"new\n", "b.md": b"kept\n"}


def test_a_written_file_is_as_readable_as_any(tmp_path):
    (tmp_path / "plain").write_text("")
    write_report(tmp_path, {"a.md": "text"})
    assert (tmp_path / "a.md").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    "name", ["../out.md", "a/../../out.md", "a/../b.md", "/tmp/out.md", "./a.md", "a//b.md", "", ".", "..", "a\\b.md"]
)
def test_a_name_that_leaves_the_folder_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(ValueError, match="no plain name inside"):
        write_report(tmp_path / "demo", {"good.md": "text", name: "text"})
    assert tree(tmp_path) == {}


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="no plain name inside"):
        write_report(tmp_path / "demo", {"figures/a.svg": "text"})
    assert tree(tmp_path / "elsewhere") == {}


def test_a_linked_file_is_replaced_not_followed(tmp_path):
    (tmp_path / "outside.md").write_text("outside")
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "a.md").symlink_to(tmp_path / "outside.md")
    write_report(tmp_path / "demo", {"a.md": "inside"})
    assert (tmp_path / "outside.md").read_text() == "outside"
    assert (tmp_path / "demo" / "a.md").read_text() == "inside\n"


def test_a_folder_in_a_files_place_is_refused(tmp_path):
    (tmp_path / "figures").mkdir()
    with pytest.raises(ValueError, match="'figures' is a folder"):
        write_report(tmp_path, {"figures": "text"})


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "demo").write_text("a file")
    with pytest.raises(ValueError, match="which is a file"):
        write_report(tmp_path / "demo", {"a.md": "text"})


def test_a_write_that_fails_leaves_the_old_file_and_no_remains(tmp_path, monkeypatch):
    write_report(tmp_path, {"a.md": "old"})

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_report(tmp_path, {"a.md": "new"})
    assert tree(tmp_path) == {"a.md": b"old\n"}


def test_tables_are_written_in_four_formats(tmp_path):
    frame = pd.DataFrame({"condition": ["cut"], "accuracy": [0.125]})
    written = tree(write_tables(tmp_path / "tables", {"means": frame, "tests": frame}))
    assert set(written) == {f"{name}.{kind}" for name in ("means", "tests") for kind in ("csv", "md", "tex", "html")}
    assert written["means.csv"] == b"condition,accuracy\ncut,0.125\n"
    assert b"\\toprule" in written["means.tex"] and b"<caption>means</caption>" in written["means.html"]


def test_a_table_whose_name_leaves_the_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no plain name inside"):
        write_tables(tmp_path / "tables", {"../means": pd.DataFrame({"x": [1]})})
    assert tree(tmp_path) == {}
