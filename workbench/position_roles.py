"""Positions as roles, so that an intervention can name one; and what a figure calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch

from workbench.batch import Batch


def position_names(batches: Iterable[Batch]) -> list[str]:
    """A name for each position that no batch of these, or its context, uses yet: "3", or "position 3" where roles have
    numbers for names."""
    every = [side for batch in batches for side in (batch, batch.context) if side is not None]
    taken = {name for one in every for name in (*one.roles, *one.relations, *one.alignments)}
    length = max(one.tokens.shape[1] for one in every)
    for scheme in ("{}", "position {}"):
        names = [scheme.format(at) for at in range(length)]
        if not taken & set(names):
            return names
    raise ValueError(f"roles are named {sorted(taken & set(names))} as a sweep names positions; rename them")


def with_positions(batch: Batch, names: list[str]) -> Batch:
    """The batch with a role for each position, and its context too.

    Without padding a role is one row [pos] shown to every example (stride 0), which says that it is the same in all.
    """
    own = torch.eye(batch.tokens.shape[1], dtype=torch.bool, device=batch.device)
    masks = [row.expand(len(batch), -1) for row in own]
    if not bool(batch.valid.all()):
        masks = [mask & batch.valid for mask in masks]
    out = batch.with_roles(**dict(zip(names, masks, strict=False)))
    return out if batch.context is None else out.with_context(with_positions(batch.context, names))


def as_positions(text: str, names: Sequence[str]) -> str:
    """What is said of roles, said of the positions that they are.

    >>> as_positions("cut L0H0 3←0: role '3' is empty", ["0", "1", "2", "3"])
    'cut L0H0 3←0: position 3 is padding'
    """

    def said(found: re.Match[str]) -> str:
        return f"position {names.index(found[1])} is padding" if found[1] in names else found[0]

    return re.sub("role '([^']+)' is empty", said, text)


def never_padded(*batches: Batch) -> list[int]:
    """The positions that are no padding in any example of batches of one length."""
    return torch.stack([batch.valid.all(0) for batch in batches]).all(0).nonzero().flatten().tolist()


def of_one_size(*batches: Batch) -> list[str]:
    """The roles that have one number of positions, and at least one, in every example of all batches."""
    known = [name for name in batches[0].roles if all(name in batch.roles for batch in batches)]
    sizes = {name: {size for batch in batches for size in batch.roles[name].sum(1).tolist()} for name in known}
    return [name for name in known if len(sizes[name]) == 1 and 0 not in sizes[name]]


def described(batch: Batch) -> dict[int, str]:
    """Position → its number, with the token that stands there in every example, in quotes, or else the smallest role
    that does."""
    roles = sorted(batch.roles, key=lambda name: int(batch.roles[name].sum()))
    out = {}
    for at in range(batch.tokens.shape[1]):
        tokens, known = batch.tokens[:, at], [name for name in roles if bool(batch.roles[name][:, at].all())]
        same = bool((tokens == tokens[0]).all() & batch.valid[:, at].all())
        token = [f"“{batch.word(int(tokens[0]))}”"] if same else []
        out[at] = " ".join([str(at), *(token or known[:1])])
    return out
