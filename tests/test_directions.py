"""The directions between the packages, read from the imports in the source; nothing is imported to check them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("workbench", "tasks", "analyses")
OPEN_TO_TASKS = ("workbench.batch", "workbench.task", "workbench.roles")
DRAWING = ("seaborn", "matplotlib")
WRITERS = (
    "workbench/report.py", "workbench/checkpoints.py", "workbench/show.py", "workbench/cli.py", "workbench/blocks.py",
    "workbench/models/weights.py",
)  # fmt: skip
FIGURES = "workbench/figures"
LENSES = ("analyses/tools/native_bridge.py", "analyses/tools/gpt2_bridge.py")
"""What the battery compares the workbench with: TransformerLens' own ways, used as they are documented."""
PUBLIC_ONLY = "analyses use public names of the workbench"
WRITING = ("write_text", "write_bytes", "savefig")


def imported(tree: ast.Module, path: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported, wherever in the file; `from a import b` gives a.b."""
    package = path.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*above, *filter(None, [node.module])])
            yield from ((node.lineno, f"{home}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            yield from ((node.lineno, a.value) for a in node.args[:1] if isinstance(a, ast.Constant))


def called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def within(name: str, *homes: str) -> bool:
    return any(name == home or name.startswith(f"{home}.") for home in homes)


def draws(path: str) -> bool:
    return path == f"{FIGURES}.py" or path.startswith(f"{FIGURES}/")


def why_not(path: str, name: str) -> str | None:
    """Why this file may not import this name; None where it may."""
    package = path.split("/")[0]
    if package == "tasks" and within(name, "workbench") and not within(name, *OPEN_TO_TASKS):
        return f"of the workbench, tasks import only {', '.join(OPEN_TO_TASKS)}"
    if package == "tasks" and within(name, "analyses"):
        return "tasks know no analysis"
    if package == "workbench" and within(name, "tasks", "analyses"):
        return "the workbench knows no task and no analysis"
    if within(name, "transformer_lens") and not path.startswith("workbench/models/") and path not in LENSES:
        return "only workbench/models/ imports transformer_lens"
    if within(name, *DRAWING) and not draws(path):
        return f"only {FIGURES} imports {' and '.join(DRAWING)}"
    if package == "analyses" and within(name, "workbench") and private(name):
        return PUBLIC_ONLY
    return None


def private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def private_reads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Private attributes read from anything that was imported from the workbench, as `running._hooks`."""
    bound = {
        (alias.asname or alias.name.split(".")[0])
        for node in ast.walk(tree)
        for alias in getattr(node, "names", [])
        if isinstance(node, ast.Import | ast.ImportFrom)
        and within(getattr(node, "module", None) or alias.name, "workbench")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in bound:
                yield node.lineno, node.attr


def writes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Calls that write a file: open for writing, write_text, write_bytes, savefig."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if called(node) in WRITING:
            yield node.lineno, called(node)
        elif called(node) == "open":
            after_file = 1 if isinstance(node.func, ast.Name) else 0
            given = [*node.args[after_file:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
            modes = [a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes):
                yield node.lineno, "open"


def violations(root: Path) -> list[str]:
    """Every forbidden import and write under root, as `file:line: what: why`."""
    found = []
    for file in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        path = file.relative_to(root).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"), path)
        said = [(line, name, why_not(path, name)) for line, name in imported(tree, path)]
        if path.startswith("analyses/"):
            said += [(line, name, PUBLIC_ONLY) for line, name in private_reads(tree)]
        if path not in WRITERS:
            said += [
                (line, name, f"only {', '.join(WRITERS)} write files")
                for line, name in writes(tree)
                if not (name == "savefig" and draws(path))
            ]
        found += [f"{path}:{line}: {name}: {why}" for line, name, why in said if why]
    return found


def test_packages_keep_their_directions():
    assert violations(ROOT) == []


def test_there_is_source_to_check():
    assert all(list((ROOT / package).rglob("*.py")) for package in PACKAGES)


PLANTED = [
    ("tasks/a.py", "from workbench.running import run", "tasks import only"),
    ("tasks/a.py", "import workbench", "tasks import only"),
    ("tasks/a.py", "def f():\n    from workbench import study", "tasks import only"),
    ("tasks/a.py", "import analyses.lecture", "tasks know no analysis"),
    ("tasks/a.py", "import transformer_lens", "only workbench/models/"),
    ("tasks/a.py", "import seaborn as sns", "imports seaborn"),
    ("workbench/a.py", "from tasks.lookup import Lookup", "knows no task"),
    ("workbench/models/a.py", "from tasks import lookup", "knows no task"),
    ("workbench/a.py", "import importlib\nimportlib.import_module('analyses.lecture')", "knows no task"),
    ("workbench/models/a.py", "from ...analyses import lecture", "knows no task"),
    ("workbench/a.py", "from transformer_lens import patching", "only workbench/models/"),
    ("workbench/tables.py", "import matplotlib.pyplot as plt", "imports seaborn"),
    ("analyses/a.py", "from matplotlib import pyplot", "imports seaborn"),
    ("analyses/a.py", "from workbench.running import _hooks", "public names"),
    ("analyses/a.py", "from workbench import running\nrunning._hooks()", "public names"),
    ("analyses/a.py", "import workbench._private", "public names"),
    ("analyses/a.py", "open('x', 'w')", "write files"),
    ("analyses/a.py", "from pathlib import Path\nPath('x').open(mode='ab')", "write files"),
    ("analyses/a.py", "from pathlib import Path\nPath('x').write_text('')", "write files"),
    ("workbench/results.py", "from pathlib import Path\nPath('x').write_bytes(b'')", "write files"),
    ("workbench/tables.py", "figure.savefig('x')", "write files"),
    ("workbench/figures/a.py", "open('x', 'w')", "write files"),
    ("workbench/figures_of_speech.py", "import seaborn", "imports seaborn"),
]


def plant(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("path", "text", "why"), PLANTED)
def test_planted_violation_is_found_at_its_line(tmp_path, path, text, why):
    plant(tmp_path, path, text)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{path}:{len(text.splitlines())}: ")
    assert why in found


ALLOWED = [
    ("tasks/a.py", "import torch\nfrom workbench.batch import Batch\nfrom workbench import roles\nfrom . import b"),
    ("workbench/a.py", "from workbench import models\nfrom .models import attention\nimport tasksets"),
    ("workbench/models/a.py", "from transformer_lens import ActivationCache"),
    ("workbench/figures/a.py", "import seaborn\nfrom matplotlib import pyplot\nfigure.savefig(buffer)"),
    ("workbench/report.py", "open('x', 'w')"),
    ("analyses/a.py", "import workbench\nfrom workbench import run, __version__\nfrom tasks.lookup import Lookup"),
    ("analyses/b.py", "class A:\n    def f(self):\n        return self._x, open('w'), open('x', 'rb')"),
]


@pytest.mark.parametrize(("path", "text"), ALLOWED)
def test_what_is_allowed_is_not_reported(tmp_path, path, text):
    plant(tmp_path, path, text)
    assert violations(tmp_path) == []
