"""What the hooks of a foreign model carry, held against each other: a hook's name is no promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from workbench.models import carried
from workbench.models.carried import Layer
from workbench.proof import agree
from workbench.sites import SITES


@dataclass(frozen=True)
class Identity:
    """An identity in words, the sites that it needs, the last computed from the others, and whether it holds.

    given: what must hold besides, for it to be evidence of its terms; loose: the last site may be at fault for reasons
    of its own.
    """

    words: str
    needed: tuple[str, ...]
    holds: Callable[[Layer], bool]
    given: tuple[Identity, ...] = ()
    loose: bool = False

    def reads(self, site: str) -> bool:
        """Whether an edit of a site must show in what the identity computes."""
        return site in self.needed[:-1]


_PROJECTED = Identity("attn_out = z·W_O + b_O", ("z", "attn_out"), carried.projected)
_SUMMED = Identity("attn_out = the results of all heads + b_O", ("result", "attn_out"), carried.summed)

PARALLEL = "attention and MLP read the same stream here (parallel), so that there is none between them"


def faults(layer: Layer) -> dict[str, str]:
    """The sites of a layer whose hook does not carry what its name says → the reason.

    A site that can be held against nothing is at fault too: what it carries is not known.
    """
    out = dict(_misshapen(layer))
    if layer.parallel and "resid_mid" in layer.carried:
        out["resid_mid"] = PARALLEL
    for sites, identities in _identities(layer):
        there = [site for site in sites if site in layer.carried and site not in out]
        if there and (why := _why_not(layer, identities, out)):
            out |= dict.fromkeys(there, why)
    return out


def astray(clean: Layer, edited: Layer, site: str) -> str | None:
    """Why an edit of a site did not go where its name says: an identity that it enters held without it, and does not
    hold with it. None where all hold, "" where there is none to tell."""
    told = [one for _, several in _identities(clean) for one in several]
    if carried.weights_of(clean.attention, "W_O", 3) is not None:
        told += [_PROJECTED, _SUMMED]
    there = [one for one in told if one.reads(site) and set(one.needed) <= set(clean.carried) and one.holds(clean)]
    for one in there:
        if not one.holds(edited):
            return f"an edit of it does not go where its name says: {one.words} does not hold then"
    return None if there else ""


def _why_not(layer: Layer, identities: Sequence[Identity], out: Mapping[str, str]) -> str:
    """Why none of these identities holds; "" where one does."""
    broken, lacking = "", ""
    for one in identities:
        trusted = one.needed[:-1] if one.loose else one.needed
        needed = dict.fromkeys([*one.needed, *(name for each in one.given for name in each.needed)])
        lacks = [name for name in needed if name not in layer.carried or (name in out and name in (*trusted, "z"))]
        if lacks:
            lacking = lacking or f"nothing to hold its hook against: {one.words} needs {', '.join(lacks)}"
        elif one.holds(layer) and all(each.holds(layer) for each in one.given):
            return ""
        else:
            words = ", or ".join([one.words, *(each.words for each in one.given)])
            broken = broken or f"its hook carries something else: {words} does not hold"
    return broken or lacking or "nothing to hold its hook against: the model does not show the weights behind it"


def _misshapen(layer: Layer) -> Iterator[tuple[str, str]]:
    batch, dest, source = layer.seen.shape
    for name, value in layer.carried.items():
        axes = SITES[name].axes.split()
        known = {"batch": batch, "pos": dest, "dest": dest, "source": source, "head": layer.part.heads_at(name)}
        fits = value.ndim == len(axes) and all(
            known.get(axis, size) == size for axis, size in zip(axes, value.shape, strict=True)
        )
        if not fits:
            want = ", ".join(f"{known[axis]} {axis}" if axis in known else axis for axis in axes)
            yield name, f"its hook carries {list(value.shape)}, and the site is [{want}]"


def _identities(layer: Layer) -> Iterator[tuple[tuple[str, ...], list[Identity]]]:
    """(sites, the identities of which one must hold), in the order of trust."""
    out, written = carried.weights_of(layer.attention, "W_O", 3), carried.weights_of(layer.mlp, "W_out", 2)
    result = Identity("result = z·W_O", ("z", "result"), carried.by_head)
    output = Identity("mlp_out = mlp_post·W_out + b_out", ("mlp_post", "mlp_out"), carried.written, loose=True)
    activated = Identity("mlp_post = activation(mlp_pre)", ("mlp_pre", "mlp_post"), carried.activated)
    enters = Identity("resid_pre = what enters the layer", ("resid_pre",), carried.entered)
    rows_sum = Identity("every row of weights sums to 1 over what it sees", ("pattern",), carried.distribution)
    yield ("pattern",), [rows_sum]
    if "scores" not in layer.carried:
        yield ("pattern",), [Identity("some head weighs every source said to be read", ("pattern",), carried.used)]
    by_vectors = Identity("pattern = softmax(q·k)", ("q", "k", "pattern"), carried.scored)
    by_values = Identity("z = pattern·v", ("v", "pattern", "z"), carried.mixed)
    yield ("pattern",), [by_values, by_vectors]
    yield ("scores",), [Identity("pattern = softmax(scores)", ("scores", "pattern"), carried.weighed)]
    yield ("scores",), [Identity("scores are −∞ at every source that rows do not read", ("scores",), carried.hides)]
    yield ("q", "k"), [by_vectors]
    yield ("v", "z"), [by_values]
    yield ("result",), [] if out is None else [result]
    yield ("resid_pre",), [enters] if layer.enters else []
    yield from _stream(layer, out is not None)
    # What the MLP writes may be normed before it is added: its last map is no evidence of mlp_out, only of mlp_post.
    yield ("mlp_post",), [] if written is None else [output]
    yield ("mlp_pre",), [activated]


def _stream(layer: Layer, shows_output: bool) -> Iterator[tuple[tuple[str, ...], list[Identity]]]:
    """The sums of the residual stream. The sum over a whole layer holds for two terms that were swapped as well, so
    that the attention's output map is asked too."""
    terms = ("resid_pre", "attn_out") if layer.attn_only else ("resid_pre", "attn_out", "mlp_out")
    after = ("resid_mid",) if layer.attn_only else ("resid_mid", "mlp_out")
    middle = _sum("resid_pre", "attn_out", total="resid_mid")
    whole = replace(_sum(*terms, total="resid_post"), given=() if layer.attn_only else (_PROJECTED,))
    wholes = [whole] if layer.attn_only or shows_output else []
    yield ("attn_out",), wholes if layer.parallel else [middle, *wholes]
    yield ("resid_mid",), [middle]
    yield (
        ("mlp_out", "resid_post"),
        wholes if layer.parallel else [_sum(*after, total="resid_post"), *wholes],
    )


def _sum(*terms: str, total: str) -> Identity:
    def holds(layer: Layer) -> bool:
        parts = torch.stack([layer[term] for term in terms])
        return agree(layer[total], parts.sum(0), parts.abs().sum(0))

    return Identity(f"{total} = {' + '.join(terms)}", (*terms, total), holds)
