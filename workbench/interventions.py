"""Interventions: where × what, as frozen values. Equal, hashable, an exact JSON round trip; `str()` is the table label.

The functions at the end are the only way to build one: `cut(Edges(layer=1, dest="last", source="answer"))`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import model_validator

from workbench.locations import Edges, Heads, Location, Stream, Value
from workbench.operations import (
    Add,
    Align,
    Custom,
    Cut,
    Empty,
    Freeze,
    KeepOnly,
    Mean,
    Operation,
    Patch,
    Path,
    Resample,
    Scale,
    Shuffle,
    Uniform,
    Zero,
)

_ALLOWED = {
    "edges": ("cut", "keep_only", "uniform", "shuffle", "scale", "zero", "freeze", "patch"),
    "heads": ("zero", "mean", "resample", "patch", "add", "scale", "freeze", "path"),
    "stream": ("zero", "mean", "resample", "patch", "add", "scale", "freeze"),
}


class Intervention(Value):
    """One change of a running model: `where` it acts and `what` it does there.

    >>> one = cut(Edges(layer=1, head=0, dest="last", source="answer"))
    >>> str(one)
    'cut L1H0 last←answer'
    >>> Intervention.model_validate_json(one.model_dump_json()) == one
    True
    """

    where: Location | None
    what: Operation | Custom

    @model_validator(mode="after")
    def _possible(self) -> Intervention:
        if self.where is None:
            if not isinstance(self.what, Custom):
                raise ValueError(f"{self.what.op!r} needs a location: Edges, Heads or Stream")
            return self
        allowed = _ALLOWED[self.where.type]
        if self.what.op not in allowed:
            raise ValueError(
                f"{self.what.op!r} does not act on {type(self.where).__name__} ({self.where}); "
                f"there are: {', '.join(allowed)}"
            )
        if self.where.type == "edges" and isinstance(self.what, Scale) and self.what.by <= 0:
            raise ValueError(f"an attention weight is scaled by a number above 0, not {self.what.by}; use cut or zero")
        if self.where.type == "edges" and isinstance(self.what, KeepOnly | Scale) and self.where.source is None:
            raise ValueError(f"{self.what.op!r} of every source changes nothing; name a source")
        if isinstance(self.what, Shuffle) and isinstance(self.where, Edges) and self.where.source is not None:
            raise ValueError(f"shuffle moves all weights of a row; {self.where} names a source; leave `source` out")
        if isinstance(self.what, Path):
            self._path_possible(self.what)
        return self

    def _path_possible(self, path: Path) -> None:
        assert self.where is not None
        if path.receiver.part not in ("q", "k", "v"):
            raise ValueError(f"a path ends in a head's q, k or v, not in {path.receiver.part!r}")
        if path.receiver.in_model == self.where.in_model and path.receiver.layer <= self.where.layer:
            raise ValueError(
                f"a path runs to a later layer: the sender is in layer {self.where.layer}, "
                f"the receiver in layer {path.receiver.layer}"
            )

    def __str__(self) -> str:
        what = self.what
        if isinstance(what, Custom):
            name = getattr(what.fn, "__name__", "function")
            return f"custom {name} at {what.site}" + ("" if what.layer is None else f" L{what.layer}")
        if isinstance(what, Path):
            return f"path {_say(what.change, str(self.where))} → {what.receiver}"
        return _say(what, str(self.where))


def donor_names(interventions: Iterable[Intervention]) -> set[str]:
    """The donors that a list of interventions names."""
    found = [getattr(one.what, "change", one.what) for one in interventions]
    return {what.donor for what in found if hasattr(what, "donor")}


def roles_named(one: Intervention) -> set[str]:
    """The roles and relations that an intervention names."""
    places = [one.where, getattr(one.what, "receiver", None)]
    return {
        getattr(place, name) for place in places for name in ("dest", "source", "pos") if getattr(place, name, None)
    }


def _say(what: Any, where: str) -> str:
    after = {
        "scale": lambda: f"by {repr(what.by).removesuffix('.0')}",
        "shuffle": lambda: f"seed {what.seed}",
        "mean": lambda: f"over {what.donor}",
        "resample": lambda: f"from {what.donor} seed {what.seed}",
        "patch": lambda: f"from {what.donor} by {what.align}",
        "add": lambda: f"from {what.donor} by {what.align}",
    }
    name = {"keep_only": "keep only"}.get(what.op, what.op)
    if what.op == "zero" and "←" in where:
        name = "zero after softmax"
    words = [name, where, after[what.op]() if what.op in after else ""]
    if getattr(what, "empty", "raise") != "raise":
        words.append(f"(empty rows: {what.empty})")
    return " ".join(word for word in words if word)


def cut(where: Edges, *, empty: Empty = "raise") -> Intervention:
    """The score is set to −∞ before the softmax; the rest of the row renormalises: w'ₖ = wₖ / (1 − w_cut).

    empty: what becomes of a row left with no visible source. "raise" an error; "no-update": the head's z is 0 there
    (the output bias goes too where every head is empty); "self": the row attends to itself.
    """
    return Intervention(where=where, what=Cut(empty=empty))


def keep_only(where: Edges, *, empty: Empty = "raise") -> Intervention:
    """In the rows of `dest`, every source but `source` is cut."""
    return Intervention(where=where, what=KeepOnly(empty=empty))


def uniform(where: Edges, *, empty: Empty = "raise") -> Intervention:
    """The row becomes uniform over its visible sources; where `source` is named, over those, and 0 elsewhere."""
    return Intervention(where=where, what=Uniform(empty=empty))


def shuffle(where: Edges, *, seed: int) -> Intervention:
    """The row's visible weights change places, by a seed. `source` must not be named."""
    return Intervention(where=where, what=Shuffle(seed=seed))


def scale(where: Edges | Heads | Stream, *, by: float) -> Intervention:
    """On Edges: weight × by, then the row renormalises. On Heads and Stream: the vector times a number."""
    return Intervention(where=where, what=Scale(by=by))


def zero(where: Edges | Heads | Stream) -> Intervention:
    """On Heads and Stream: the vector is removed. On Edges: the weight is set to 0 AFTER the softmax (the row no longer
    sums to 1; another question than `cut`)."""
    return Intervention(where=where, what=Zero())


def mean(where: Heads | Stream, *, donor: str) -> Intervention:
    """The mean over the donor batch at the same role: one vector per layer, head and role, all (example, position)
    pairs alike."""
    return Intervention(where=where, what=Mean(donor=donor))


def resample(where: Heads | Stream, *, donor: str, seed: int) -> Intervention:
    """Another example's value, by a seeded derangement of the donor batch; k-th position of the role to k-th."""
    return Intervention(where=where, what=Resample(donor=donor, seed=seed))


def patch(where: Edges | Heads | Stream, *, donor: str, align: Align) -> Intervention:
    """The value of the donor batch's example of the same index; align by "role" (k-th position to k-th) or
    "position"."""
    return Intervention(where=where, what=Patch(donor=donor, align=align))


def add(where: Heads | Stream, *, donor: str, align: Align) -> Intervention:
    """The donor's value is added to what is there."""
    return Intervention(where=where, what=Add(donor=donor, align=align))


def freeze(where: Edges | Heads | Stream) -> Intervention:
    """The clean run's value is kept while something upstream is changed."""
    return Intervention(where=where, what=Freeze())


def path(operation: Callable[..., Intervention], sender: Heads, receiver: Heads, **arguments: Any) -> Intervention:
    """The change of what one head writes, as one later head's q, k or v reads it, and nothing else.

    `operation` is one of the functions above, `arguments` its keywords: `path(zero, sender, receiver)`. Other heads'
    z and all MLP outputs in between are held at their clean values, norms are recomputed (path patching: Wang et al.
    2022, section 3.1; Goldowsky-Dill et al. 2023). In a model with a context, an encoder's head is read by later heads
    of the encoder and by the k and v of cross-attention, a decoder's or a cross-attention's by later heads of the
    decoder and by the q of cross-attention.
    """
    change = operation(sender, **arguments).what
    return Intervention(where=sender, what=Path(change=change, receiver=receiver))  # type: ignore[arg-type]


def custom(site: str | tuple[str, int], fn: Callable[[Any], Any]) -> Intervention:
    """A function of the whole tensor at a site, which must return one of the same shape and dtype. `run` only."""
    if not isinstance(site, str) and not (isinstance(site, tuple) and len(site) == 2):
        raise TypeError(f"custom acts at a site, 'embed' or ('mlp_out', 0), not at {site!r}")
    name, layer = (site, None) if isinstance(site, str) else site
    return Intervention(where=None, what=Custom(site=name, layer=layer, fn=fn))
