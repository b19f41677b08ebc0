"""`two-relations` with roles for both facts together and for their controls."""

from __future__ import annotations

from typing import ClassVar

from tasks.two_relations import TwoRelations
from workbench.batch import Batch


class Facts(TwoRelations):
    """The same sequences, with the roles `facts` (the asked letter's two digits) and `others` (another letter's two).

    >>> batch = Facts().sample(2, seed=0)
    >>> batch.roles["facts"].sum(1).tolist(), batch.roles["others"].sum(1).tolist()
    ([2, 2], [2, 2])
    """

    name: ClassVar[str] = "two-relations, facts together"
    MEANING: ClassVar[int] = 1

    def sample(self, n: int, seed: int) -> Batch:
        """`n` examples, as `TwoRelations` draws them."""
        batch = super().sample(n, seed)
        roles = batch.roles
        facts, others = (roles[f"first_{name}"] | roles[f"second_{name}"] for name in ("fact", "other"))
        return batch.with_roles(facts=facts, others=others)
