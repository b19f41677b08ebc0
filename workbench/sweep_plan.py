"""What a sweep is asked for: an operation, over what, narrowed to what; and why there can be no such sweep."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from torch.nn import Module

from workbench import interventions
from workbench.batch import Batch
from workbench.interventions import Intervention, donor_names
from workbench.locations import Edges, Heads, Stream
from workbench.metrics import AGAINST_CLEAN, METRICS
from workbench.nearest import nearest
from workbench.sites import SITES

Over = Literal["edges", "roles", "heads", "stream"]
COORDINATES = {
    "edges": ("layer", "head", "dest", "source"),
    "roles": ("layer", "head", "dest", "source"),
    "heads": ("layer", "head", "part", "pos"),
    "stream": ("layer", "part", "pos"),
}
KINDS = {"edges": Edges, "roles": Edges, "heads": Heads, "stream": Stream}
NAMES = ("cut", "keep_only", "uniform", "shuffle", "scale", "zero", "mean", "resample", "patch", "add", "freeze")
OPERATIONS: dict[str, Callable[..., Intervention]] = {name: getattr(interventions, name) for name in NAMES}
EXAMPLES = {"by": 2.0, "donor": "other", "seed": 0, "align": "role"}
SITES_OF = {over: [row.name for row in SITES.values() if row.location == over] for over in ("heads", "stream")}


@dataclass(frozen=True)
class Plan:
    """What a sweep was asked for: what is done, over which cells, narrowed to what, in which part of a model."""

    operation: Callable[..., Intervention]
    arguments: Mapping[str, Any]
    over: str
    narrowed: Mapping[str, Any]
    stack: Any
    kind: Any

    @property
    def name(self) -> str:
        return self.operation.__name__

    @property
    def part(self) -> str:
        return "cross" if self.kind == "cross" else self.stack or ""

    @property
    def narrows(self) -> tuple[str, ...]:
        """The arguments that say which positions or roles are swept."""
        return ("dest", "source") if "dest" in COORDINATES[self.over] else ("pos",)

    @property
    def by_row(self) -> bool:
        """Whether a cell is a whole row: `shuffle` names no source."""
        return self.name == "shuffle"

    @property
    def by_position(self) -> bool:
        """Whether positions need roles of their own."""
        return self.over == "edges" or any(not isinstance(one, str | None) for one in listed(self.narrowed["pos"]))

    @property
    def may_empty(self) -> bool:
        """Whether an edit may leave a row without a source, and nobody said what becomes of it."""
        takes = inspect.signature(self.operation).parameters
        return "empty" in takes and self.arguments.get("empty", "raise") == "raise"

    def at(self, **where: Any) -> Intervention:
        """The operation at one place."""
        return self.operation(KINDS[self.over](**where, stack=self.stack, kind=self.kind), **self.arguments)

    def check(self) -> None:
        """Raises ValueError and TypeError, in the caller's words, where there can be no such sweep."""
        if not isinstance(self.over, str):
            raise TypeError(f"over={self.over!r}; a sweep is over one of: {', '.join(map(repr, COORDINATES))}")
        if self.over not in COORDINATES:
            raise ValueError(f"no sweep over={self.over!r}. {nearest(str(self.over), COORDINATES)}")
        if self.operation not in OPERATIONS.values():
            raise TypeError(f"no sweep of {self.operation!r}; hand over a function, of {', '.join(OPERATIONS)}")
        if self.over not in (able := acted_on(self.operation)):
            there = [name for name, function in OPERATIONS.items() if self.over in acted_on(function)]
            raise ValueError(
                f"{self.name} does not act on {self.over}, but over={' or over='.join(map(repr, able))}; "
                f"what acts on {self.over}: {', '.join(there)}"
            )
        narrows = [{"layer": "layers", "head": "heads"}.get(name, name) for name in COORDINATES[self.over]]
        if idle := [name for name, value in self.narrowed.items() if value is not None and name not in narrows]:
            raise TypeError(f"{idle[0]}= narrows no sweep over {self.over}; what does: {', '.join(narrows)}")
        if self.by_row and self.narrowed["source"] is not None:
            raise TypeError("shuffle moves all weights of a row, so that its cells have no source; leave source= out")
        self._check_arguments(narrows)

    def _check_arguments(self, narrows: list[str]) -> None:
        asked = {k: v for k, v in inspect.signature(self.operation).parameters.items() if k != "where"}
        if unknown := [name for name in self.arguments if name not in asked]:
            near = nearest(unknown[0], [*asked, *narrows])
            raise TypeError(f"neither a sweep over {self.over} nor {self.name} takes {unknown[0]}=. {near}")
        needed = [name for name, one in asked.items() if one.default is inspect.Parameter.empty]
        if lacking := [name for name in needed if name not in self.arguments]:
            given = {name: repr(self.arguments.get(name, EXAMPLES[name])) for name in needed}
            given |= {"donors": f"{{{given['donor']}: batch}}"} if "donor" in given else {}
            call = ", ".join([repr(self.over), *(f"{name}={value}" for name, value in given.items())])
            wanted = " and ".join(f"{name}=" for name in lacking)
            raise TypeError(f"{self.name} needs {wanted}, as sweep(models, batch, {self.name}, {call})")
        place: dict[str, Any] = {"dest": "dest", "source": None if self.by_row else "source"}
        if self.over in SITES_OF:
            place = {"part": SITES_OF[self.over][0]}
        try:
            self.at(layer=0, **place)
        except ValidationError as error:
            first = error.errors()[0]
            said = ".".join(map(str, first["loc"])) + " " + first["msg"].removeprefix("Value error, ")
            raise ValueError(f"a sweep of {self.name} over {self.over}: {said.strip()}") from error


def acted_on(operation: Callable[..., Intervention]) -> list[str]:
    """What an operation can be swept over, by its own signature.

    >>> acted_on(interventions.cut), acted_on(interventions.mean)
    (['edges', 'roles'], ['heads', 'stream'])
    """
    able = inspect.signature(operation).parameters["where"].annotation.split(" | ")
    return [over for over, kind in KINDS.items() if kind.__name__ in able]


def listed(asked: Any) -> list[Any]:
    """One or several, as a list."""
    return [asked] if isinstance(asked, str) or not isinstance(asked, Iterable) else list(asked)


def asked_for(metrics: Any) -> tuple[str, ...]:
    """The names of metrics, one or several. Raises TypeError for anything else, KeyError for what is no metric."""
    known = [*METRICS, *AGAINST_CLEAN]
    names = tuple(listed(metrics))
    if odd := [one for one in names if not isinstance(one, str)]:
        raise TypeError(f"metrics: {odd[0]!r} is no name; name one or several, as strings, of: {', '.join(known)}")
    if not names:
        raise KeyError(f"name a metric or more, of: {', '.join(known)}")
    if unknown := [name for name in names if name not in known]:
        raise KeyError(f"no metric {unknown[0]!r}. {nearest(unknown[0], known)}")
    return names


def several(models: Any) -> Mapping[str, Any]:
    """Label → models, where one or several came without a label. Raises TypeError for paths, and for models that no
    sweep can read as they are."""
    known = models if isinstance(models, Mapping) else {"model": models if _is_list(models) else [models]}
    for label, some in known.items():
        for one in some if _is_list(some) else [some]:
            if isinstance(one, str | Path):
                raise TypeError(f"{label!r} holds a {type(one).__name__}; read the checkpoint: load({str(one)!r})")
            if isinstance(one, Module) and not hasattr(one, "parts"):
                kind = type(one).__name__
                raise TypeError(f"{label!r} holds a {kind}, of which no sites are known; hand over wrap(model)")
    return known


def _is_list(models: Any) -> bool:
    return isinstance(models, Sequence) and not isinstance(models, str)


def check_given(plan: Plan, batch: Any, donors: Any, beside: Any, on_missing: str, chunk_size: int) -> None:
    """Raises TypeError, KeyError and ValueError for what no model could be swept with, before any is."""
    if not isinstance(batch, Batch):
        raise TypeError(f"the batch is a {type(batch).__name__}; make it a Batch, as task.sample(n, seed) gives one")
    if donors is not None and not isinstance(donors, Mapping):
        raise TypeError("donors come by name, as donors={'other': batch}, also when there is one")
    if isinstance(beside, Intervention):
        raise TypeError("beside is a list of interventions: [cut(...)], also when there is one")
    needed = donor_names(beside) | ({plan.arguments["donor"]} if "donor" in plan.arguments else set())
    if undeclared := sorted(needed - set(donors or {})):
        name, there = undeclared[0], nearest(undeclared[0], sorted(donors or {}))
        raise KeyError(f"no donor {name!r} was given; say donors={{{name!r}: batch}}. {there}")
    if unused := sorted(set(donors or {}) - needed):
        raise TypeError(f"donors: nothing in this sweep names {unused[0]!r}; leave it out, or say donor=")
    if on_missing not in ("raise", "skip"):
        raise ValueError(f"on_missing={on_missing!r}; there are: 'raise', 'skip'")
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size}; a chunk has 1 example or more")
