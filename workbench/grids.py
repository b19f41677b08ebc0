"""Grids: a condition for each combination of layers, heads, roles and amounts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

from pydantic import TypeAdapter

from workbench.interventions import Intervention
from workbench.operations import Operation


def grid(
    operation: Callable[..., Intervention], location: Callable[..., Any], **axes: Any
) -> dict[str, list[Intervention]]:
    """Conditions by label: the operation at every combination of the location's fields that are lists or ranges.

    What is no field of the location goes to the operation, and may be a list too. Labels are those of interventions;
    raises ValueError where two would have the same.

    >>> from workbench import Edges, cut
    >>> list(grid(cut, Edges, layer=range(2), head=[0, 1], dest="last"))
    ['cut L0H0 last←every', 'cut L0H1 last←every', 'cut L1H0 last←every', 'cut L1H1 last←every']
    """
    fields = set(location.model_fields) if hasattr(location, "model_fields") else set()
    out: dict[str, list[Intervention]] = {}
    for chosen in combinations(axes):
        where = location(**{name: value for name, value in chosen.items() if name in fields})
        one = operation(where, **{name: value for name, value in chosen.items() if name not in fields})
        if str(one) in out:
            raise ValueError(f"a grid names {str(one)!r} twice; its lists hold something twice")
        out[str(one)] = [one]
    return out


def combinations(axes: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Every choice of one value from each list or range; anything else is the same in all."""
    several = {name: value for name, value in axes.items() if isinstance(value, list | range | tuple)}
    if empty := [name for name, value in several.items() if not len(value)]:
        raise ValueError(f"the grid's {empty[0]!r} is empty; a list names one value or more")
    for chosen in product(*several.values()):
        yield {**axes, **dict(zip(several, chosen, strict=True))}


def _operation(said: Mapping[str, Any]) -> Any:
    """An operation by its name; a fault is then told of this one and not of every kind that there is."""
    return TypeAdapter(Operation).validate_python(dict(said))


def declared(where: Mapping[str, Any], what: Mapping[str, Any]) -> dict[str, list[Intervention]]:
    """As `grid`, from what a file says of place and operation: any value may be a list."""
    for name, said in {"where": where, "what": what}.items():
        if not isinstance(said, Mapping):
            raise ValueError(f"a grid's {name!r} is a table of keys, any of them a list; there is {said!r}")
    out: dict[str, list[Intervention]] = {}
    for place in combinations(where):
        for operation in combinations(what):
            one = Intervention.model_validate({"where": place, "what": _operation(operation)})
            if str(one) in out:
                raise ValueError(f"a grid names {str(one)!r} twice; its lists hold something twice")
            out[str(one)] = [one]
    return out
