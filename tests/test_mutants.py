"""The script that plants faults: it finds them, tells one that no test finds, and leaves its copy as it was."""

import pytest

from tests.mutants import FAULTS, Fault, copied, found, main

QUICK = ("a cut that does nothing", "an off-by-one layer", "a swapped dest and source")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault):
    from tests.mutants import ROOT

    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.right) == 1
    assert fault.wrong != fault.right
    assert all((ROOT / test).is_file() for test in fault.tests)


@pytest.mark.slow
def test_planted_faults_are_found_by_a_test(capsys):
    assert main(list(QUICK)) == 0
    assert f"{len(QUICK)} of {len(QUICK)} faults found" in capsys.readouterr().out


@pytest.mark.slow
def test_a_fault_that_no_test_finds_is_told_and_taken_out_again(tmp_path):
    harmless = Fault("a harmless one", "workbench/rows.py", "HIDDEN = -math.inf\n", "HIDDEN = -math.inf  # as before\n",
                     ("tests/test_rows.py",))  # fmt: skip
    folder = copied(tmp_path)
    before = (folder / harmless.file).read_text(encoding="utf-8")
    assert found(folder, harmless) == ""
    assert (folder / harmless.file).read_text(encoding="utf-8") == before
