"""What the hooks of a foreign model carry, held against each other: a hook's name is no promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum, repeat
from torch import Tensor
from torch.nn import functional as F

from workbench import rows
from workbench.anatomy import Part
from workbench.proof import agree

Carried = Mapping[str, Tensor]
"""Site → what its hook carried in one layer, in the shapes of `sites.SITES`."""

Test = tuple[Sequence[str], str, Callable[["Layer"], bool]]
"""The sites that an identity needs, the identity in words, and whether it holds."""

ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, torch.tanh, lambda x: x * torch.sigmoid(1.702 * x)
)  # fmt: skip
PARALLEL = "attention and MLP read the same stream here (parallel), so that there is none between them"


@dataclass(frozen=True)
class Layer:
    """What one layer's hooks carried on a batch, and what they are held against.

    seen [batch dest source]: what rows may read; enters: tensors that `resid_pre` may equal, each by itself; attention,
    mlp: the layer's modules, for the W_O, b_O, W_out, b_out that they show.
    """

    carried: Carried
    seen: Tensor
    part: Part
    enters: Sequence[Tensor] = ()
    attention: Any = None
    mlp: Any = None
    parallel: bool = False
    attn_only: bool = False


def faults(layer: Layer) -> dict[str, str]:
    """The sites of a layer whose hook does not carry what its name says → the reason.

    A site that can be held against nothing is at fault too: what it carries is not known.
    """
    out: dict[str, str] = {}
    for name, said in _misshapen(layer):
        out[name] = said
    for sites, tests in _identities(layer):
        there = [site for site in sites if site in layer.carried and site not in out]
        if there and (why := _why_not(layer, tests, out)):
            out |= dict.fromkeys(there, why)
    return out


def _why_not(layer: Layer, tests: Sequence[Test], out: Mapping[str, str]) -> str:
    """Why none of these identities holds; "" where one does."""
    said = ""
    for needed, words, holds in tests:
        if lacking := [name for name in needed if name not in layer.carried or name in out]:
            said = said or f"nothing to hold its hook against: {words} needs {', '.join(lacking)}"
        elif holds(layer):
            return ""
        else:
            return_words = f"its hook carries something else: {words} does not hold"
            said = return_words if not said.startswith("its hook") else said
    return said or "nothing to hold its hook against: this model does not show the weights behind it"


def _misshapen(layer: Layer) -> Iterator[tuple[str, str]]:
    batch, dest, source = layer.seen.shape
    heads = layer.part
    wanted = {"scores": (batch, heads.n_heads, dest, source), "pattern": (batch, heads.n_heads, dest, source)}
    for name, value in layer.carried.items():
        want: tuple[int, ...] = wanted.get(name, (batch, dest))
        if name in ("q", "k", "v", "z", "result"):
            want = (batch, dest, heads.heads_at(name))
        rank = 4 if name in ("q", "k", "v", "z", "result", "scores", "pattern") else 3
        if value.ndim != rank or tuple(value.shape[: len(want)]) != want:
            yield name, f"its hook carries {list(value.shape)}; the site's shape begins with {list(want)}"


def _identities(layer: Layer) -> Iterator[tuple[tuple[str, ...], list[Test]]]:
    """(sites, the identities of which one must hold), in the order of trust."""
    yield ("pattern",), [(("pattern",), "every row of weights sums to 1 over what it sees", _distribution),
                         ]  # fmt: skip
    yield ("scores",), [(("scores", "pattern"), "pattern = softmax(scores)", _weighed)]
    yield ("q", "k"), [(("q", "k", "pattern"), "pattern = softmax(q·k)", _scored)]
    yield ("v", "z"), [(("v", "z", "pattern"), "z = pattern·v", _mixed)]
    projected: Test = (("z", "attn_out"), "attn_out = z·W_O + b_O", _projected)
    if _weight(layer.attention, "W_O", 3) is not None:
        yield ("result",), [(("z", "result"), "result = z·W_O", _results)]
    else:
        yield ("result",), []
    yield ("resid_pre",), [((), "resid_pre = what the layer below hands on", _entered)]
    yield from _stream(layer, projected)
    yield ("mlp_post",), [(("mlp_out",), "mlp_out = mlp_post·W_out + b_out", _written)] if "W_out" else []
    yield ("mlp_pre",), [(("mlp_post",), "mlp_post = activation(mlp_pre)", _activated)]


def _stream(layer: Layer, projected: Test) -> Iterator[tuple[tuple[str, ...], list[Test]]]:
    """The stream's sums. Where both terms of one could be swapped, the weights behind one of them are asked too."""
    added = ["resid_pre", "attn_out"] + ([] if layer.attn_only else ["mlp_out"])
    words = f"resid_post = {' + '.join(added)}"

    def whole(one: Layer) -> bool:
        known = _projected(one) or _written_by(one, "mlp_post")
        return _sum(one.carried, *added, "resid_post") and (layer.attn_only or known)

    middle: Test = (("resid_pre", "attn_out", "resid_mid"), "resid_mid = resid_pre + attn_out", _middle)
    all_of_it: Test = ((*added, "resid_post"), words, whole)
    yield ("attn_out",), [all_of_it] if layer.parallel else [middle, all_of_it]
    if layer.parallel:
        yield ("resid_mid",), [((), PARALLEL, lambda _: False)]
    else:
        yield ("resid_mid",), [middle]
    after = ["resid_mid"] + ([] if layer.attn_only else ["mlp_out"])
    last: Test = (
        (*after, "resid_post"),
        f"resid_post = {' + '.join(after)}",
        lambda one: _sum(one.carried, *after, "resid_post"),
    )
    yield ("mlp_out", "resid_post"), [all_of_it] if layer.parallel else [last, all_of_it]
