"""Plants faults one by one in a copy of the source, runs the tests that must find each, and takes it out again.

`python -m tests.mutants` prints a table, a fault a line, and exits with 1 where a fault is not found. The working tree
is never touched: the copy lies in a temporary folder.
"""

# ruff: noqa: E501  -- texts to be replaced stand as they do in their files

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("workbench", "tasks", "analyses", "tests", "pyproject.toml", "README.md")


@dataclass(frozen=True)
class Fault:
    """A fault: in which file what text becomes what, and the tests of which one must fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


FAULTS = (
    Fault("a cut that does nothing", "workbench/rows.py",
          "    return torch.where(selected, HIDDEN, scores)\n", "    return scores.clone()\n",
          ("tests/test_handmade.py", "tests/test_masks.py")),
    Fault("a cut on the wrong head", "workbench/edits.py",
          "one = slice(self.head, self.head + 1)", "one = slice(0, 1)",
          ("tests/test_oracle.py",)),
    Fault("a mean over positions instead of roles", "workbench/preparation.py",
          "average = value[mask].double().mean(0).to(value.dtype)",
          "average = value[:, mask.any(0)].double().mean((0, 1)).to(value.dtype)",
          ("tests/test_oracle.py",)),
    Fault("a leaked hook", "workbench/hooks.py",
          "        for handle in handles:\n            handle.remove()\n", "        for handle in handles[1:]:\n            handle.remove()\n",
          ("tests/test_hooks.py",)),
    Fault("a missing renormalisation", "workbench/rows.py",
          "        weights = torch.softmax(scores, -1)\n",
          "        weights = torch.softmax(torch.nan_to_num(scores, neginf=0.0), -1).masked_fill(scores == HIDDEN, 0.0)\n",
          ("tests/test_masks.py",)),
    Fault("an off-by-one layer", "workbench/resolution.py",
          "        return in_part(where.in_model, bare), where.layer\n",
          "        return in_part(where.in_model, bare), max(where.layer - 1, 0)\n",
          ("tests/test_handmade.py",)),
    Fault("a future leak", "workbench/models/masks.py",
          "return seen & (source <= dest) if mask.causal", "return seen & (source <= dest + 1) if mask.causal",
          ("tests/test_model.py", "tests/test_masks.py")),
    Fault("train mode left on", "workbench/hooks.py",
          "    model.eval()\n", "    model.train(model.training)\n",
          ("tests/test_proof.py",)),
    Fault("a shared donor", "workbench/donors.py",
          "        order = torch.randperm(n, generator=generator)\n        if not (order == torch.arange(n)).any():\n            return order\n",
          "        order = torch.randperm(n, generator=generator)\n        return order.roll(1)[:1].expand(n).clone()\n",
          ("tests/test_donors.py",)),
    Fault("a swapped dest and source", "workbench/batch.py",
          "        return rows & sources.role(source)[:, None, :]\n",
          "        return sources.role(source)[:, :, None] & readers.role(dest)[:, None, :]\n",
          ("tests/test_batch.py", "tests/test_handmade.py")),
    Fault("a wrapped model: a shared module taken for one layer", "workbench/models/passing.py",
          "        call = self.calls[id(module)]\n", "        call = 0\n",
          ("tests/test_bridge.py", "tests/test_bridge_oracle.py")),
    Fault("a wrapped model: the mask forgotten", "workbench/models/passing.py",
          "raw.masked_fill(hidden, rows.HIDDEN)", "raw.clone()",
          ("tests/test_bridge.py", "tests/test_bridge_oracle.py")),
    Fault("a wrapped model: an edit of the stream dropped", "workbench/models/passing.py",
          "        return x + (out - middle) if torch.equal(out, middle) else out - before\n", "        return x\n",
          ("tests/test_bridge.py", "tests/test_bridge_oracle.py")),
    Fault("a wrapped model: attention left switched", "workbench/models/interface.py",
          "        for module, config in held:\n            module.config = config\n", "",
          ("tests/test_bridge.py",)),
    Fault("a site called live that is not", "workbench/liveness.py",
          "            if moved > factor:\n                break\n    said", "            moved = 1e9\n    said",
          ("tests/test_liveness.py", "tests/test_battery.py")),
)  # fmt: skip


def copied(folder: Path) -> Path:
    """The source and its tests in a folder of their own."""
    for name in COPIED:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", "mutants.py")
        shutil.copytree(source, folder / name, ignore=ignored) if source.is_dir() else shutil.copy(
            source, folder / name
        )
    return folder


def tested(folder: Path, tests: tuple[str, ...]) -> tuple[bool, str]:
    """Whether the tests pass in the copy, and the first that fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--benchmark-disable",
               "-m", "not slow", *tests]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"the tests could not run: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    failed = [
        line.removeprefix("FAILED ").split(" - ")[0] for line in ran.stdout.splitlines() if line.startswith("FAILED")
    ]
    return ran.returncode == 0, failed[0] if failed else ""


def found(folder: Path, fault: Fault) -> str:
    """The test that finds a fault, "" where none does; the copy is as it was afterwards."""
    path = folder / fault.file
    before = path.read_text(encoding="utf-8")
    if before.count(fault.right) != 1:
        raise RuntimeError(f"{fault.name}: {fault.file} holds its text {before.count(fault.right)} times, not once")
    path.write_text(before.replace(fault.right, fault.wrong), encoding="utf-8")
    try:
        return tested(folder, fault.tests)[1]
    finally:
        path.write_text(before, encoding="utf-8")


def main(names: list[str]) -> int:
    """Plants the faults of these names, or all; 1 where one is not found."""
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    survived = []
    with tempfile.TemporaryDirectory() as place:
        folder = copied(Path(place))
        every = tuple(sorted({test for fault in chosen for test in fault.tests}))
        passes, first = tested(folder, every)
        if not passes:
            print(f"without any fault {first} fails already")
            return 1
        for fault in chosen:
            start = time.perf_counter()
            by = found(folder, fault)
            survived += [] if by else [fault.name]
            print(
                f"{fault.name:<58} {'found by ' + by if by else 'NOT FOUND':<100} {time.perf_counter() - start:5.1f} s",
                flush=True,
            )
    print(f"{len(chosen) - len(survived)} of {len(chosen)} faults found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
