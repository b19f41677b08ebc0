"""What a task must offer to be trained on, studied and shown."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, Protocol, runtime_checkable

from workbench.batch import Batch


@runtime_checkable
class Task(Protocol):
    """Data and roles only. A task is a frozen pydantic model whose fields are its arguments.

    `workbench show` also wants `encode(text) -> Batch`, one example from its words, and `checkpoint`, the folder of a
    trained model, where the task ships one.

    `MEANING` is raised by hand whenever the same arguments come to mean other data: it is part of every key.
    """

    name: ClassVar[str]
    MEANING: ClassVar[int]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token id."""
        ...

    @property
    def length(self) -> int:
        """The number of positions of an example."""
        ...

    def sample(self, n: int, seed: int) -> Batch:
        """`n` examples drawn with this seed and nothing else."""
        ...

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """A matched counterfactual of each example, in the same order."""
        ...

    def guessing(self) -> dict[str, float]:
        """Exact accuracy of guessers that do not do the task, by name (fractions from 0 to 1)."""
        ...

    def model_dump(self) -> dict[str, Any]:
        """The arguments as plain values."""
        ...


def identity(task: Task) -> dict[str, Any]:
    """What defines a task in a key: its name, arguments, `MEANING`, and the digest of what it really draws."""
    drawn = task.sample(64, seed=0)
    if drawn.digest() == task.sample(64, seed=1).digest():
        raise ValueError(
            f"the task {task.name!r} draws the same examples with seed 0 and seed 1; `sample` must use its seed"
        )
    return {
        "name": task.name,
        "arguments": task.model_dump(),
        "meaning": task.MEANING,
        "digest": drawn.digest(),
    }


def derive_seed(*parts: object) -> int:
    """A seed of 63 bits from anything printable, so that no two uses share a random stream.

    >>> derive_seed("train", 0, 1) != derive_seed("train", 1, 0)
    True
    """
    text = json.dumps([str(part) for part in parts])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
