"""Locations: where an intervention acts, as frozen values. They are resolved against a batch when it runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Discriminator, Field, model_validator

from workbench.fields import Named


class Value(Named):
    """A frozen value that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class _Location(Value):
    layer: int = Field(ge=0)
    stack: Literal["encoder", "decoder"] | None = None
    kind: Literal["self", "cross"] | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> _Location:
        if self.kind == "cross" and self.stack == "encoder":
            raise ValueError("an encoder has no cross-attention; it stands in the decoder")
        return self

    @property
    def in_model(self) -> str:
        """The part of a two-sequence model: "encoder", "decoder", "cross"; "" where none is named."""
        return "cross" if self.kind == "cross" else self.stack or ""

    def _place(self) -> str:
        head = getattr(self, "head", None)
        stack = f"{self.in_model}." if self.in_model else ""
        return f"{stack}L{self.layer}" + ("" if head is None else f"H{head}")


class Edges(_Location):
    """Attention edges of one layer.

    stack, kind: where a model has several ("encoder", "decoder"; "self", "cross"). In cross-attention dest is a role of
    the batch, source a role of its context or an alignment.
    head: one head, or None for every head. dest: a role, or None for every position. source: a role (then the edges
    are dest × source), a relation (its edges, restricted to dest where given), or None for every visible source.
    """

    type: Literal["edges"] = "edges"
    head: int | None = Field(None, ge=0)
    dest: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        return f"{self._place()} {self.dest or 'every'}←{self.source or 'every'}"


class Heads(_Location):
    """A head's vectors at the positions of a role (None: every position).

    part: q and z count destinations, k and v sources (in cross-attention: the context's); their `head` counts key–value
    heads. result is what the head writes into the residual stream. stack, kind: as for `Edges`.
    """

    type: Literal["heads"] = "heads"
    head: int | None = Field(None, ge=0)
    pos: str | None = None
    part: Literal["q", "k", "v", "z", "result"]

    def __str__(self) -> str:
        return f"{self._place()}.{self.part} {self.pos or 'every'}"


class Stream(_Location):
    """Vectors of the residual stream's width, at the positions of a role (None: every position).

    kind="cross": attn_out is what cross-attention writes, resid_mid the stream after it.
    """

    type: Literal["stream"] = "stream"
    pos: str | None = None
    part: Literal["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"]

    def __str__(self) -> str:
        return f"{self._place()}.{self.part} {self.pos or 'every'}"


Location = Annotated[Edges | Heads | Stream, Discriminator("type")]
