"""The coverage report."""

import csv

import pytest

from analyses.coverage import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return main(out=tmp_path_factory.mktemp("out"), quick=True, progress=False)


def table(folder):
    with (folder / "table.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_report_is_a_readme_and_a_table(folder):
    assert folder.name == "coverage"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "table.csv"]


def test_every_number_of_models_meets_every_level_of_accuracy(folder):
    settings = [(row["n_models"], row["accuracy"]) for row in table(folder)]
    levels, sizes = ("0.36", "0.9", "0.99"), ("3", "5", "10")
    assert settings == [(n, accuracy) for accuracy in levels for n in sizes for _ in range(2)]
    assert [row["shared"] for row in table(folder)] == ["0", "0.9"] * 9


def test_students_t_covers_and_the_bootstrap_of_three_models_does_not(folder):
    for row in table(folder):
        assert 0.93 <= float(row["student"]) <= 1.0
        if row["n_models"] == "3":
            assert float(row["bootstrap"]) < float(row["student"])


def test_the_readme_says_what_was_simulated(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "400\nsimulated studies" in text
    assert "then 1000 examples" in text
    assert "500 resamples" in text
    assert "| 3 | 36.0% | 4.0% |" in text


def test_the_same_bytes_each_time(folder, tmp_path):
    again = main(out=tmp_path, quick=True, progress=False)
    assert all((again / name).read_bytes() == (folder / name).read_bytes() for name in ("README.md", "table.csv"))


def test_seeds_sets_the_number_of_models_and_progress_goes_to_standard_error(tmp_path, capsys):
    folder = main(out=tmp_path, seeds=2, quick=True)
    assert {row["n_models"] for row in table(folder)} == {"2"}
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 3)


def test_an_interval_over_one_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 2"):
        main(out=tmp_path, seeds=1)
    assert list(tmp_path.iterdir()) == []
