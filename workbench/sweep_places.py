"""Where a sweep goes in one model: an intervention a cell, and where each cell lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from workbench.anatomy import Sight, layers_of
from workbench.batch import Batch
from workbench.interventions import Intervention
from workbench.nearest import nearest
from workbench.resolution import missing
from workbench.sites import CROSS, SITES, in_part
from workbench.sweep_plan import SITES_OF, Plan, listed

EVERY = "every"
ONLY = "it leaves a row of some example without a source, and empty='raise'"

End = tuple[Any, str | None]
"""What one end of an edge is called in tables, and its role."""


@dataclass(frozen=True)
class Cells:
    """The cells of one model: label → intervention, and where each lies.

    left_out: places whose edit would leave a row without a source. hidden: pairs of roles between which no example sees
    an edge.
    """

    conditions: dict[str, Intervention] = field(default_factory=dict)
    places: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    def put(self, one: Intervention, where: Mapping[str, Any]) -> None:
        """One more cell."""
        self.conditions[str(one)] = one
        self.places.append(_place(one, where))

    def leave_out(self, one: Intervention, where: Mapping[str, Any]) -> None:
        """A place that is no cell, as its edit would leave a row without a source."""
        self.left_out.append({**_place(one, where), "why": ONLY})


def _place(one: Intervention, where: Mapping[str, Any]) -> dict[str, Any]:
    return {"condition": str(one), **{name: EVERY if at is None else at for name, at in where.items()}}


def cells_of(model: Any, batch: Batch, plan: Plan, names: list[str], chunk_size: int) -> Cells:
    """The cells of one model. names: the role of each position, which `batch` has where the plan asks for it.

    Raises KeyError for a layer, head, position, role or part that is not there, ValueError where no cell is left.
    """
    cells = Cells()
    for layer in chosen("layer", plan.narrowed["layers"], layers_of(model, plan.part)):
        if plan.over in SITES_OF:
            _vectors(cells, model, batch, plan, layer, names)
        else:
            _edges(cells, model, batch, plan, layer, names, chunk_size)
    if not cells.conditions:
        why = f"{len(cells.left_out)} edits were left out: {ONLY}" if cells.left_out else "no example sees such an edge"
        raise ValueError(f"a sweep of {plan.name} over {plan.over} has no cell here; {why}")
    return cells


def excluding(cells: Cells, model: Any, batch: Batch) -> str:
    """Which cells no example can have together, in words; "" where some example has what all of them act on."""
    sight, n = Sight(model, batch), len(batch)
    alike = {tuple(at for name, at in one.items() if name not in ("condition", "head")): one for one in cells.places}
    labels = [place["condition"] for place in alike.values()]
    found = {label: set(missing([cells.conditions[label]], batch, sight)) for label in labels}
    if len(set().union(*found.values())) < n:
        return ""
    for one, other in combinations([label for label in labels if len(found[label]) < n], 2):
        if len(found[one] | found[other]) == n:
            counts = [f"{label!r} has nothing to act on in {len(found[label])}" for label in (one, other)]
            return f"these cells exclude each other: of {n} examples {counts[0]}, {counts[1]}"
    most = sorted(labels, key=lambda label: -len(found[label]))[:3]
    counts = [f"{label!r} has nothing to act on in {len(found[label])}" for label in most]
    return f"no example has what all cells act on: of {n} examples {', '.join(counts)}"


def _edges(cells: Cells, model: Any, batch: Batch, plan: Plan, layer: int, names: list[str], chunk_size: int) -> None:
    heads = _heads(plan, model.parts[plan.part].n_heads)
    readers, sources = batch.sides(plan.part)
    ends = [(EVERY, None)] if plan.by_row else _ends(plan, "source", sources, names)
    pairs = list(product(_ends(plan, "dest", readers, names), ends))
    seen = dict(zip(pairs, _seen(model, batch, plan, layer, pairs, chunk_size), strict=True))
    cells.hidden.extend(f"L{layer} {dest[0]}←{source[0]}" for (dest, source), (some, _) in seen.items() if not some)
    for head, ((dest, source), (some, empties)) in product(heads, seen.items()):
        if some:
            one = plan.at(layer=layer, head=head, dest=dest[1], source=source[1])
            put = cells.leave_out if empties and plan.may_empty else cells.put
            put(one, {"layer": layer, "head": head, "dest": dest[0], "source": source[0]})


def _seen(
    model: Any, batch: Batch, plan: Plan, layer: int, pairs: list[tuple[End, End]], chunk_size: int
) -> list[list[bool]]:
    """Of each pair: whether some example sees an edge of it, and whether the edit would leave a row of one without a
    source. No more than a chunk's [batch dest source] is held."""
    found = torch.zeros(2, len(pairs), dtype=torch.bool)
    for start in range(0, len(batch), chunk_size):
        chunk = batch.select(slice(start, start + chunk_size))
        visible = model.sees(chunk, plan.part, layer) & chunk.edges(None, None, plan.part)
        if plan.over == "edges" and not plan.by_row:
            found |= _seen_by_position(plan, visible, pairs).cpu()
        else:
            found |= _seen_by_role(plan, chunk, visible, pairs).cpu()
    return found.T.tolist()


def _seen_by_position(plan: Plan, visible: Tensor, pairs: list[tuple[End, End]]) -> Tensor:
    dest, source = torch.tensor([[dest[0], source[0]] for dest, source in pairs], device=visible.device).T
    alone = visible & (visible.sum(-1, keepdim=True) == 1) & (plan.name == "cut")
    return torch.stack([each.any(0)[dest, source] for each in (visible, alone)])


def _seen_by_role(plan: Plan, chunk: Batch, visible: Tensor, pairs: list[tuple[End, End]]) -> Tensor:
    out = []
    for (_, dest), (_, source) in pairs:
        asked = chunk.edges(dest, source, plan.part)
        selected = asked & visible
        left = visible & ~selected if plan.name == "cut" else selected
        emptied = asked.any(-1) & visible.any(-1) & ~left.any(-1)
        out.append(torch.stack([selected.any(), emptied.any()]))
    return torch.stack(out, 1)


def _ends(plan: Plan, side: str, batch: Batch, names: list[str]) -> list[End]:
    asked = plan.narrowed[side]
    own = list(batch.roles) if asked is None else listed(asked)
    if plan.over == "roles":
        if odd := [one for one in own if not isinstance(one, str)]:
            raise TypeError(f"a sweep over roles names {side} by role, not {odd[0]!r}; over='edges' takes positions")
        if not own:
            raise ValueError(f"a sweep over roles needs a role for {side}; the batch has {sorted(batch.roles)}")
        return [(name, name) for name in own]
    if asked is not None and (words := [one for one in own if isinstance(one, str)]):
        at = batch.roles[words[0]].any(0).nonzero().flatten().tolist() if words[0] in batch.roles else []
        there = f"; it stands at {side}={at}" if at else ""
        raise TypeError(f"{side}={words[0]!r}: over='edges' takes positions by number, over='roles' roles{there}")
    return [(at, names[at]) for at in chosen("position", asked, range(batch.tokens.shape[1]))]


def _heads(plan: Plan, n_heads: int) -> list[int | None]:
    asked = plan.narrowed["heads"]
    if isinstance(asked, str) and asked == "together":
        return [None]
    if isinstance(asked, str):
        there = f"there are: 0 to {n_heads - 1}"
        raise KeyError(f"no head {asked!r}; {there}; leave heads= out for each, 'together' for all at once")
    return list(chosen("head", asked, range(n_heads)))


def _vectors(cells: Cells, model: Any, batch: Batch, plan: Plan, layer: int, names: list[str]) -> None:
    readers, sources = batch.sides(plan.part)
    for site in _sites(plan, model):
        places: list[dict[str, Any]] = [{"layer": layer, "part": site}]
        if plan.over == "heads":
            heads = _heads(plan, model.parts[plan.part].heads_at(in_part(plan.part, site)))
            places = [{"layer": layer, "head": head, "part": site} for head in heads]
        counted = sources if SITES[site].positions == "source" else readers
        for place, pos in product(places, listed(plan.narrowed["pos"])):
            role = pos
            if not isinstance(pos, str | None):
                role = names[chosen("position", pos, range(counted.tokens.shape[1]))[0]]
            cells.put(plan.at(**place, pos=role), {**place, "pos": pos})


def _sites(plan: Plan, model: Any) -> list[str]:
    """The sites asked for; without being asked z of the heads, and of the stream all that the model has."""
    known = [site for site in SITES_OF[plan.over] if plan.part != "cross" or site in CROSS]
    if plan.narrowed["part"] is not None:
        return chosen("part", plan.narrowed["part"], known)
    hooks = {site: in_part(plan.part, SITES[site].hook_name(0)) for site in known}
    return ["z"] if plan.over == "heads" else [site for site in known if hooks[site] in model.hook_dict]


def chosen(what: str, asked: Any, there: Iterable[Any]) -> list[Any]:
    """What was asked for, of what there is; all of it where nothing was."""
    known = list(there)
    wanted = known if asked is None else listed(asked)
    named = bool(known) and isinstance(known[0], str)
    said = ", ".join(known) if named else f"0 to {len(known) - 1}"
    if odd := [one for one in wanted if one not in known or isinstance(one, bool)]:
        there = nearest(str(odd[0]), known).removeprefix("There are: ").removesuffix(".") if named else said
        raise KeyError(f"no {what} {odd[0]!r}; there are: {there}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise ValueError(f"the {what}s asked for are {wanted}; name at least one, each once, of {said}")
    return [known[known.index(one)] for one in wanted]
