"""Examples that are there already, as a task that a study can draw from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from workbench.batch import Batch


@dataclass(frozen=True, eq=False)
class Examples:
    """A batch as a task: a study of texts, pictures or recorded data, where nothing can be drawn anew.

    name: the task's name in tables. batch: all examples. counterfactual: example i's matched counterfactual, where
    there is one; a study that uses it takes all examples.

    >>> tokens = torch.tensor([[1, 2], [2, 1], [1, 1]])
    >>> Examples("pairs", Batch(tokens, tokens)).sample(2, seed=0).tokens.shape
    torch.Size([2, 2])
    """

    name: str
    batch: Batch
    counterfactual: Batch | None = None
    MEANING: ClassVar[int] = 1

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id."""
        return self.batch.vocabulary

    @property
    def length(self) -> int:
        """The number of positions of an example."""
        return self.batch.tokens.shape[1]

    def sample(self, n: int, seed: int) -> Batch:
        """All examples in their order where n is their number, else a seeded draw without replacement.

        Raises ValueError for more examples than there are.
        """
        if n > len(self.batch):
            raise ValueError(f"{n} examples asked for; {self.name!r} has {len(self.batch)}")
        if n == len(self.batch):
            return self.batch
        return self.batch.select(torch.randperm(len(self.batch), generator=torch.Generator().manual_seed(seed))[:n])

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """The matched counterfactuals. Raises ValueError where there are none, or only some examples were drawn."""
        if self.counterfactual is None:
            raise ValueError(f"{self.name!r} has no counterfactuals: Examples(name, batch, counterfactual=...)")
        if batch.digest() != self.batch.digest():
            raise ValueError(
                f"counterfactuals of {self.name!r} go with all {len(self.batch)} examples: n={len(self.batch)}"
            )
        return self.counterfactual

    def guessing(self) -> dict[str, float]:
        """None is known."""
        return {}

    def model_dump(self) -> dict[str, Any]:
        """What tells these examples from others."""
        return {"examples": self.batch.digest()}
