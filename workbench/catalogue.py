"""What is installed to be used by name: tasks and analyses, found by their entry points."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from workbench.nearest import nearest

GROUPS = {"task": "workbench.tasks", "analysis": "workbench.analyses"}


@dataclass(frozen=True)
class Entry:
    """A task or an analysis by name: where it is, the line that describes it, and what is wrong with it if anything."""

    name: str
    target: str
    line: str = ""
    fault: str = ""


def entries(kind: str) -> list[Entry]:
    """Every installed "task" or "analysis" by name, described from its source; none of it is imported or run.

    One that cannot be read is listed with its fault.
    """
    return [_described(point.name, point.value) for point in _points(kind)]


def load(kind: str, name: str) -> Any:
    """The class of the task, or the function of the analysis, of that name.

    Raises LookupError where there is none (naming the nearest), where two distributions claim the name, and where it
    cannot be imported.
    """
    points = _points(kind)
    found = [point for point in points if point.name == name]
    if not found:
        raise LookupError(f"no {kind} is named {name!r}. {nearest(name, [point.name for point in points])}")
    if len(found) > 1:
        targets = " and ".join(point.value for point in found)
        raise LookupError(f"{len(found)} installed distributions name the {kind} {name!r}: {targets}; uninstall one")
    try:
        return found[0].load()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise LookupError(f"the {kind} {name!r} ({found[0].value}) cannot be imported. {said}") from error


def _points(kind: str) -> list[metadata.EntryPoint]:
    """In order of name; one that is found twice, as on a path with two entries for one folder, counts once."""
    return sorted({(point.name, point.value): point for point in metadata.entry_points(group=GROUPS[kind])}.values())


def _described(name: str, target: str) -> Entry:
    module, _, attribute = target.partition("[")[0].replace(" ", "").partition(":")
    try:
        line = _first_line(module, attribute)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        return Entry(name, target, fault=f"{type(error).__name__}: {error}")
    return Entry(name, target, line)


def _first_line(module: str, attribute: str) -> str:
    """Of the docstring of a class or function; of its module where the attribute is made in another way."""
    spec = _find(module)
    if spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    tree = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    if attribute and attribute.partition(".")[0] not in _bound(tree):
        raise ImportError(f"{module} defines no {attribute!r}")
    defined = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == attribute]
    text = ast.get_docstring(defined[-1] if defined else tree) or ""
    return text.partition("\n")[0].strip()


def _find(module: str) -> ModuleSpec:
    """As importlib finds it, but without importing the packages it lies in."""
    first, *rest = module.split(".")
    spec, name = importlib.util.find_spec(first) if first else None, first
    for part in rest:
        name = f"{name}.{part}"
        folders = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(name, folders) if folders else None
    if spec is None:
        raise ImportError(f"there is no module {module!r}")
    return spec


def _bound(tree: ast.Module) -> set[str]:
    """The names that running the module binds, as far as its text tells."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
    return names
