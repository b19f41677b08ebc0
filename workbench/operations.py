"""Operations: what an intervention does where it acts, as frozen values; `interventions` has the functions for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, model_serializer

from workbench.locations import Heads, Value

Empty = Literal["raise", "no-update", "self"]
Align = Literal["role", "position"]


class Cut(Value):
    op: Literal["cut"] = "cut"
    empty: Empty = "raise"


class KeepOnly(Value):
    op: Literal["keep_only"] = "keep_only"
    empty: Empty = "raise"


class Uniform(Value):
    op: Literal["uniform"] = "uniform"
    empty: Empty = "raise"


class Shuffle(Value):
    op: Literal["shuffle"] = "shuffle"
    seed: int


class Scale(Value):
    op: Literal["scale"] = "scale"
    by: float = Field(allow_inf_nan=False)


class Zero(Value):
    op: Literal["zero"] = "zero"


class Mean(Value):
    op: Literal["mean"] = "mean"
    donor: str


class Resample(Value):
    op: Literal["resample"] = "resample"
    donor: str
    seed: int


class Patch(Value):
    op: Literal["patch"] = "patch"
    donor: str
    align: Align


class Add(Value):
    op: Literal["add"] = "add"
    donor: str
    align: Align


class Freeze(Value):
    op: Literal["freeze"] = "freeze"


VectorOperation = Annotated[Zero | Mean | Resample | Patch | Add | Scale | Freeze, Discriminator("op")]


class Path(Value):
    """What `change` does to the sender, seen only by `receiver`; everything else it reaches is held at its clean
    value."""

    op: Literal["path"] = "path"
    change: VectorOperation
    receiver: Heads


class Custom(Value):
    """The escape hatch: a function of the whole tensor. It cannot be written to a file."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    op: Literal["custom"] = "custom"
    site: str
    layer: int | None
    fn: Callable[[Any], Any]

    @model_serializer
    def _unwritable(self) -> dict[str, Any]:
        raise ValueError(
            f"the custom function at {self.site!r} cannot be written to a file; use the operations by name"
        )


Operation = Annotated[
    Cut | KeepOnly | Uniform | Shuffle | Scale | Zero | Mean | Resample | Patch | Add | Freeze | Path,
    Discriminator("op"),
]
