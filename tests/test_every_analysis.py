"""`reproduce all`: every analysis, one page of verdicts, and a failure that loses no other."""

import pandas as pd
import pytest

from analyses import every
from workbench.catalogue import entries


def verdict(id, outcome):
    return {"id": id, "statement": f"{id} holds", "verdict": outcome}


def written(name, rows):
    """A stand-in for an analysis that writes its verdicts."""

    def main(*, out, seeds=None, quick=False, progress=True):
        (out / name).mkdir(parents=True)
        pd.DataFrame(rows).to_csv(out / name / "verdicts.csv", index=False)
        return out / name

    return main


def failing(**_):
    raise ValueError("no room")


@pytest.fixture
def stand_ins(monkeypatch):
    known = {name: written(name, [verdict(f"{name}-1", "supported")]) for name in every.NAMES}
    known["sparse"] = written("sparse", [verdict("a", "not supported"), verdict("b", "undecided")])
    monkeypatch.setattr("workbench.catalogue.load", lambda kind, name: known[name])
    return known


def test_every_name_is_an_installed_analysis():
    there = {one.name for one in entries("analysis")}
    assert set(every.NAMES) <= there and "all" in there


def test_all_verdicts_are_on_one_page(stand_ins, tmp_path):
    assert every.main(out=tmp_path, progress=False) == tmp_path
    page, table = (tmp_path / "README.md").read_text(), pd.read_csv(tmp_path / "verdicts.csv")
    n = len(every.NAMES)
    assert f"{n + 1} claims: {n - 1} supported, 1 not supported, 1 undecided." in page
    assert len(table) == n + 1 and "| a holds | not supported |" in page
    assert "quick run" not in page


def test_one_that_fails_loses_no_other_and_is_told(stand_ins, tmp_path):
    stand_ins["order"] = failing
    with pytest.raises(RuntimeError, match=f"1 of {len(every.NAMES)} analyses failed, first 'order': no room"):
        every.main(out=tmp_path, progress=False)
    page = (tmp_path / "README.md").read_text()
    assert "**order failed and has no verdicts here.**" in page and "sparse/README.md" in page


def test_the_committed_page_is_that_of_the_committed_verdicts():
    from pathlib import Path

    reports = Path(__file__).parent.parent / "reports"
    tables = [every._verdicts(reports / name).assign(analysis=name) for name in every.NAMES]
    table = pd.concat(tables, ignore_index=True)[["analysis", "id", "statement", "verdict"]]
    assert (reports / "README.md").read_text() == every.page(table, [], quick=False).rstrip("\n") + "\n"
