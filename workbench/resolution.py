"""From values to tensors: interventions resolved against a batch and a model into edits of sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from workbench import rows
from workbench.anatomy import Sight, counted
from workbench.batch import UNREAD, Batch
from workbench.edits import Edit, EmptyRow, rows_of_each
from workbench.interventions import Intervention
from workbench.locations import Edges, Heads, Stream
from workbench.named_edges import edges_named
from workbench.operations import Custom, KeepOnly, Path, Scale, Uniform, Zero
from workbench.sites import SITES, in_part, split


def site_of(intervention: Intervention) -> tuple[str, int | None]:
    """The site and layer whose tensor an intervention edits."""
    where, what = intervention.where, intervention.what
    if isinstance(what, Custom):
        return what.site, what.layer
    if isinstance(what, Path):
        return in_part(what.receiver.in_model, what.receiver.part), what.receiver.layer
    assert where is not None
    if isinstance(where, Edges):
        bare = "pattern" if what.op in ("zero", "freeze", "patch") else "scores"
        return in_part(where.in_model, bare), where.layer
    return in_part(where.in_model, where.part), where.layer


def positions(where: Heads | Stream, batch: Batch) -> Tensor:
    """The positions [batch pos] that a location of vectors names."""
    return counted(batch, in_part(where.in_model, where.part)).role(where.pos)


def selection(intervention: Intervention, batch: Batch, sight: Sight) -> Tensor | None:
    """What an intervention asks for: edges [batch dest source] that are visible, or positions [batch pos]."""
    where = intervention.where
    if isinstance(intervention.what, Path):
        where = intervention.what.receiver
    if where is None:
        return None
    if not isinstance(where, Edges):
        return positions(where, batch)
    if len(batch) > 1:
        return batch.edges(where.dest, where.source, where.in_model) & sight(where.in_model, where.layer)
    return edges_named(where, batch, sight).seen


def is_empty(one: Intervention, selected: Tensor, batch: Batch, sight: Sight) -> bool:
    """Whether nothing is selected in any example."""
    if len(batch) == 1 and isinstance(one.where, Edges):
        return edges_named(one.where, batch, sight).n_seen == 0
    return not bool(selected.any())


def missing(interventions: Sequence[Intervention], batch: Batch, sight: Sight) -> dict[int, str]:
    """Examples in which some intervention has nothing to act on: example → the reason, with the label."""
    out: dict[int, str] = {}
    for one in interventions:
        places = [selection(one, batch, sight)]
        if isinstance(one.what, Path):
            places.append(positions(one.where, batch))  # type: ignore[arg-type]
        for selected in places:
            if selected is None or (len(batch) == 1 and not is_empty(one, selected, batch, sight)):
                continue
            for example in (~selected.flatten(1).any(1)).nonzero().flatten().tolist():
                out.setdefault(example, f"{one}: {_reason(one, batch, example)}")
    return out


def hidden_edges(interventions: Sequence[Intervention], batch: Batch, sight: Sight) -> list[tuple[int, int]]:
    """For each intervention how many of the edges that it asks for the mask hides anyway, and of how many."""
    found = []
    for one in interventions:
        n_seen = n_asked = 0
        if isinstance(one.where, Edges) and one.where.source is not None:
            if len(batch) == 1:
                named = edges_named(one.where, batch, sight)
                n_seen, n_asked = named.n_seen, named.n_asked
            else:
                asked = batch.edges(one.where.dest, one.where.source, one.where.in_model)
                n_seen, n_asked = int((asked & sight(one.where.in_model, one.where.layer)).sum()), int(asked.sum())
        found.append((n_asked - n_seen, n_asked))
    return found


def _reason(one: Intervention, batch: Batch, example: int) -> str:
    where = one.where
    if not isinstance(where, Edges):
        places = [where] + ([one.what.receiver] if isinstance(one.what, Path) else [])
        empty = [place.pos for place in places if place and not positions(place, batch)[example].any()]
        return f"role {empty[0]!r} is empty"
    readers, sources = batch.sides(where.in_model)
    related = batch.alignments if where.in_model == "cross" else readers.relations
    for name, side in ((where.dest or "", readers), (where.source or "", sources)):
        if name in side.roles and not side.roles[name][example].any():
            return f"role {name!r} is empty"
    if where.source is not None and where.source in related and not related[where.source][example].any():
        return f"relation {where.source!r} is empty"
    if not batch.edges(where.dest, where.source, where.in_model)[example].any():
        return f"{where.source!r} has no edge at {where.dest!r}"
    return "the mask already hides every edge asked for"


def reach(here: Tensor, sight: Sight, part: str, n_layers: int) -> list[Tensor]:
    """Per layer, the destinations [batch pos] whose vectors can still matter to the last layer's at `here`
    [batch pos]."""
    out = [here]
    for layer in range(n_layers - 1, 0, -1):
        here = here | (sight(part, layer) & here[:, :, None]).any(1)
        out.append(here)
    return out[::-1]


def unreached(edits: Sequence[Edit], batch: Batch, sight: Sight, model: Any) -> list[int]:
    """For each edit in how many examples nothing that it selects can reach what is read, by the masks alone."""
    together: dict[Any, list[int]] = {}
    for place, edit in enumerate(edits):
        # Of one example the edits of a site are looked at in one call; of more, one after the other.
        together.setdefault(edit.key if len(batch) == 1 and edit.selected is not None else place, []).append(place)
    out = [0] * len(edits)
    for places in together.values():
        several = [edits[place] for place in places]
        dest = _reaching(several[0], batch, sight, model)
        if dest is not None:
            lost = (~(rows_of_each(several, len(batch)) & dest).any(-1)).sum(1).tolist()
            for place, few in zip(places, lost, strict=True):
                out[place] = few
    return out


def _reaching(edit: Edit, batch: Batch, sight: Sight, model: Any) -> Tensor | None:
    """The positions of an edit's site from which something that is read can be reached [batch pos]; None where that is
    not told from masks."""
    part, bare = split(edit.site)
    if edit.selected is None or edit.layer is None or part == "encoder" or not model.by_position:
        return None
    reading = "decoder" if part == "cross" else part
    n_layers = model.parts[reading].n_layers
    dest: Tensor = sight.kept("reach", lambda: reach(batch.labels != UNREAD, sight, reading, n_layers))[edit.layer]
    if SITES[bare].positions == "source":
        read = (sight(part, edit.layer) & dest[:, :, None]).any(1)
        dest = read if part == "cross" else dest | read
    return dest


def edge_edit(one: Intervention, batch: Batch, sight: Sight, n_heads: int) -> Edit:
    """The edit of scores or weights that needs no donor."""
    where, what = one.where, one.what
    assert isinstance(where, Edges)
    readers, sources = batch.sides(where.in_model)
    selected, visible = selection(one, batch, sight), sight(where.in_model, where.layer)
    assert selected is not None
    name, layer = site_of(one)
    # Of a relation, the rows that have an edge of it, hidden or not; of roles, every row of `dest`.
    related = where.source in (batch.alignments if where.in_model == "cross" else readers.relations)
    rows = batch.edges(where.dest, where.source, where.in_model).any(-1) if related else readers.role(where.dest)
    tensors: dict[str, Tensor] = {}
    if what.op in ("keep_only", "uniform", "shuffle"):
        tensors["rows"] = rows
    if what.op == "shuffle":
        generator = torch.Generator().manual_seed(what.seed)  # type: ignore[union-attr]
        order = torch.rand(*selected.shape[:2], n_heads, selected.shape[2], generator=generator)
        tensors["by_head"] = order.to(batch.device)
    if getattr(what, "empty", None) == "self":
        if where.in_model == "cross":
            raise ValueError(f"{one}: a row of cross-attention has no source of its own; empty='no-update' may serve")
        tensors["own"] = torch.eye(selected.shape[1], dtype=torch.bool, device=batch.device).expand_as(selected)
    made, erases = selected, selected if what.op in ("cut", "zero") else None
    if what.op in ("keep_only", "uniform", "shuffle"):
        whole = (rows[:, :, None] & sources.valid[:, None, :]).expand_as(selected)
        made = whole & visible
        if what.op == "keep_only":
            made, erases = made & ~selected, whole & ~selected
        elif what.op == "uniform":
            erases = whole
    return Edit(
        label=str(one),
        site=name,
        layer=layer,
        head=where.head,
        selected=selected,
        change=_row_change(one),
        tensors=tensors,
        made=made,
        erases=erases,
        lasting=what.op in ("cut", "keep_only", "zero"),
        alike=what,
    )


def _row_change(one: Intervention) -> Callable[..., Tensor]:
    what: Any = one.what

    def change(target: Tensor, selected: Tensor, **tensors: Tensor) -> Tensor:
        chosen = selected[:, None].expand_as(target)
        acting = tensors.get("rows", selected.any(-1))[:, None].expand(target.shape[:-1])
        if isinstance(what, Zero):
            return rows.zero(target, chosen)
        if isinstance(what, Scale):
            return rows.scale(target, chosen, what.by)
        if what.op == "shuffle":
            order = rearrange(tensors["by_head"], "b dest head source -> b head dest source")
            return rows.shuffle(target, acting, order.to(target.dtype).expand_as(target))
        if isinstance(what, KeepOnly):
            out = rows.keep_only(target, chosen, acting)
        elif isinstance(what, Uniform):
            out = rows.uniform(target, chosen, acting)
        else:
            out = rows.cut(target, chosen)
        return _settle(one, target, out, tensors.get("own"))

    return change


def _settle(one: Intervention, before: Tensor, after: Tensor, own: Tensor | None) -> Tensor:
    """What becomes of rows that the edit left empty."""
    left = after.amax(-1) > rows.HIDDEN
    if bool(left.all()):
        return after
    emptied = rows.visible(before).any(-1) & ~left
    if not emptied.any():
        return after
    policy = one.what.empty  # type: ignore[union-attr]
    if policy == "raise":
        examples = emptied.flatten(1).any(1).nonzero().flatten().tolist()
        raise EmptyRow(
            f"{one}: no visible source is left in {int(emptied.sum())} rows of {len(examples)} examples (of those run "
            f"together: {', '.join(map(str, examples[:8]))}{', ...' if len(examples) > 8 else ''}); say what "
            "becomes of "
            "such a row: empty='no-update' (the head adds nothing there) or empty='self' (the row attends to itself)"
        )
    if policy == "self":
        assert own is not None
        return rows.attend_to_self(after, emptied, own[:, None].expand_as(after))
    return after
