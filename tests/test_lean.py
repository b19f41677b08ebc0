"""What the fast path takes through weights once instead of for every row: one head's values through W_O, and a query
through W_K. Found the same as without, in every kind of layer, and left alone where somebody acts in between."""

import pytest
import torch

from workbench import Edges, Heads, ModelConfig, Stream, Transformer, add, cut, freeze, scale, zero
from workbench.batch import UNREAD, Batch
from workbench.engine import run_each
from workbench.models import columns
from workbench.models.lean import Onward

LENGTH, LAYERS = 5, 3
KINDS = {
    "post-norm": {"norm": "post"},
    "pre-norm": {"norm": "pre"},
    "no norm": {"norm": "none"},
    "attention alone": {"norm": "pre", "attn_only": True},
    "relative positions": {"norm": "post", "positions": "relative"},
    "rotary positions": {"norm": "post", "positions": "rotary"},
    "a narrower head": {"norm": "post", "d_head": 14},
    "a much narrower head": {"norm": "post", "d_head": 4},
    "two heads": {"norm": "post", "n_heads": 2},
    "four heads of two keys": {"norm": "pre", "n_heads": 4, "n_kv_heads": 2},
}
WRITTEN = [kind for kind in KINDS if kind not in ("a much narrower head", "two heads", "four heads of two keys")]
ASKED = [kind for kind in KINDS if kind != "rotary positions"]


def model_of(kind):
    """A model in which every number is random, biases too."""
    config = {"d_vocab": 9, "n_ctx": LENGTH, "d_model": 16, "n_layers": LAYERS, "n_heads": 1, **KINDS[kind]}
    model, generator = Transformer(ModelConfig(**config), seed=0).double(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model


def batch_of(n):
    generator = torch.Generator().manual_seed(n)
    labels = torch.full((n, LENGTH), UNREAD)
    labels[:, -1] = 1
    roles = {str(at): (torch.arange(LENGTH) == at).expand(n, -1) for at in range(LENGTH)}
    return Batch(torch.randint(9, (n, LENGTH), generator=generator), labels, roles=roles)


def edges(**more):
    """Each edge of each layer cut alone, but for those that would leave a row empty."""
    pairs = [(dest, source) for dest in range(1, LENGTH) for source in range(dest + 1)]
    return {
        f"{layer} {dest} {source}": [cut(Edges(layer=layer, dest=str(dest), source=str(source)), **more)]
        for layer in range(LAYERS)
        for dest, source in pairs
    }


@pytest.fixture
def taken(monkeypatch):
    """How often each shortcut was taken."""
    calls = {"written": 0, "writing": 0, "asked": 0}

    def counted(owner, name, key):
        real = getattr(owner, name)

        def call(*arguments):
            calls[key] += 1
            return real(*arguments)

        monkeypatch.setattr(owner, name, call)

    counted(Onward, "written", "written")
    counted(Onward, "writing", "writing")
    counted(columns, "products_of_vectors", "asked")
    return calls


def agree(model, batch, conditions):
    fast = run_each(model, batch, conditions, positions="read")
    plain = run_each(model, batch, conditions, positions="read", engine="hooks")
    assert "rows" in {one.engine for one in fast.values()}
    for label, one in plain.items():
        assert (fast[label].logits - one.logits).abs().max() <= 1e-10 * one.logits.abs().max(), label
        assert fast[label].notes == one.notes, label


@pytest.mark.parametrize("kind", KINDS)
def test_every_edge_cut_is_the_plain_path(kind, taken):
    agree(model_of(kind), batch_of(5), edges())
    assert bool(taken["written"]) == bool(taken["writing"]) == (kind in WRITTEN)
    assert bool(taken["asked"]) == (kind in ASKED)


@pytest.mark.parametrize("kind", ["post-norm", "attention alone"])
def test_rows_left_empty_lose_the_output_bias(kind, taken):
    emptied = {f"{label} {n}": [cut(Edges(layer=n, dest="0", source="0"), empty="no-update"), *edits]
               for label, edits in edges(empty="no-update").items() for n in range(LAYERS)
               if label.startswith("0")}  # fmt: skip
    agree(model_of(kind), batch_of(5), emptied)
    agree(model_of(kind), batch_of(5), {label: edits[:1] for label, edits in emptied.items()})


def beside(second, layer):
    """Cuts in a layer, and beside each another edit at each place of the next."""
    return {
        f"{dest} {pos}": [cut(Edges(layer=layer, dest=str(dest), source="0")), second(layer + 1, str(pos))]
        for dest in range(1, LENGTH)
        for pos in range(1, LENGTH)
    }


ACTING = {
    "values": lambda layer, pos: scale(Heads(layer=layer, part="v", pos=pos), by=2.0),
    "values held": lambda layer, pos: freeze(Heads(layer=layer, part="v", pos=pos)),
    "z": lambda layer, pos: scale(Heads(layer=layer, part="z", pos=pos), by=2.0),
    "what heads write": lambda layer, pos: scale(Heads(layer=layer, part="result", pos=pos), by=2.0),
    "the output": lambda layer, pos: scale(Stream(layer=layer, part="attn_out", pos=pos), by=2.0),
    "z held": lambda layer, pos: freeze(Heads(layer=layer, part="z", pos=pos)),
    "keys": lambda layer, pos: scale(Heads(layer=layer, part="k", pos=pos), by=2.0),
    "keys held": lambda layer, pos: freeze(Heads(layer=layer, part="k", pos=pos)),
    "queries": lambda layer, pos: scale(Heads(layer=layer, part="q", pos=pos), by=2.0),
    "scores": lambda layer, pos: scale(Edges(layer=layer, dest=pos, source="1"), by=2.0),
    "weights": lambda layer, pos: zero(Edges(layer=layer, dest=pos, source="1")),
    "the stream": lambda layer, pos: scale(Stream(layer=layer, part="resid_pre", pos=pos), by=2.0),
    "the stream behind": lambda layer, pos: scale(Stream(layer=layer, part="resid_mid", pos=pos), by=2.0),
}


@pytest.mark.parametrize("where", ACTING)
def test_edits_in_between_act(where):
    for layer in range(LAYERS - 1):
        agree(model_of("post-norm"), batch_of(2), beside(ACTING[where], layer))


def test_a_head_that_is_edited_where_it_is_mixed_is_not_written_beforehand(taken):
    model, batch = model_of("post-norm"), batch_of(4)
    for part in ("v", "z", "result"):
        one = {f"{pos}": [scale(Heads(layer=LAYERS - 1, part=part, pos=str(pos)), by=2.0)] for pos in range(LENGTH)}
        agree(model, batch, one)
    assert taken["written"] == taken["writing"] == 0


def test_keys_that_are_edited_are_made(taken):
    one = {f"{pos}": [scale(Heads(layer=LAYERS - 1, part="k", pos=str(pos)), by=2.0)] for pos in range(LENGTH)}
    agree(model_of("post-norm"), batch_of(4), one)
    assert taken["asked"] == 0


def test_a_donors_vectors_are_written_like_any(taken):
    model, batch, donor = model_of("pre-norm"), batch_of(4), {"other": batch_of(4)}
    lists = {
        f"{layer} {pos}": [add(Stream(layer=layer, part="resid_pre", pos=str(pos)), donor="other", align="position")]
        for layer in range(LAYERS)
        for pos in range(LENGTH)
    }
    fast = run_each(model, batch, lists, positions="read", donors=donor)
    plain = run_each(model, batch, lists, positions="read", donors=donor, engine="hooks")
    for label, one in plain.items():
        assert (fast[label].logits - one.logits).abs().max() <= 1e-10 * one.logits.abs().max(), label
    assert taken["written"]
