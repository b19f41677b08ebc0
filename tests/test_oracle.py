"""`run` against the slow reference of oracle.py: every operation, on random models, batches, roles and relations."""

import random

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import named

from workbench.batch import UNREAD, Batch
from workbench.interventions import (
    Edges,
    Heads,
    Intervention,
    Stream,
    add,
    cut,
    freeze,
    keep_only,
    mean,
    patch,
    path,
    resample,
    scale,
    shuffle,
    uniform,
    zero,
)
from workbench.models.config import ModelConfig
from workbench.models.transformer import Transformer
from workbench.running import EmptyRow, record, run

D_VOCAB = 7
ON_EDGES = ("cut", "keep_only", "uniform", "shuffle", "scale", "zero", "freeze", "patch")
ON_VECTORS = ("zero", "mean", "resample", "patch", "add", "scale", "freeze")
seeds = st.integers(0, 10**6)


def some_model(rng: random.Random, dtype: torch.dtype = torch.float64, **fixed) -> Transformer:
    heads = rng.randint(1, 3)
    choices = {
        "n_layers": rng.randint(1, 3),
        "n_heads": heads,
        "d_model": rng.choice((5, 8, 12)),
        "d_head": rng.choice((2, 3, 4)),
        "d_mlp": rng.choice((3, 9)),
        "norm": rng.choice(("post", "pre", "none")),
        "act_fn": rng.choice(("relu", "gelu", "silu", "tanh")),
        "positions": rng.choice(("learned", "learned", "none")),
        "attn_only": rng.random() < 0.3,
    }
    model = Transformer(ModelConfig(**{"d_vocab": D_VOCAB, "n_ctx": 8, **choices, **fixed}), seed=rng.randrange(10**6))
    generator = torch.Generator().manual_seed(rng.randrange(10**6))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rsplit(".", 1)[-1] in ("w", "b"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.to(dtype)


def some_batch(rng: random.Random, valid: torch.Tensor | None = None) -> Batch:
    """2 or 3 examples of lengths 3-8, padded left or right; roles of one, two, several positions; a random relation."""
    if valid is None:
        lengths, left = [rng.randint(3, 8) for _ in range(rng.randint(2, 3))], rng.random() < 0.5
        width = max(lengths)
        valid = torch.tensor([[p >= width - n if left else p < n for p in range(width)] for n in lengths])
    n, width = valid.shape
    generator = torch.Generator().manual_seed(rng.randrange(10**6))
    roles = {name: torch.zeros_like(valid) for name in ("one", "two", "several", "perhaps")}
    for i in range(n):
        real = valid[i].nonzero().flatten().tolist()
        sizes = {"one": 1, "two": 2, "several": rng.randint(1, len(real)), "perhaps": rng.randint(0, 2)}
        for name, size in sizes.items():
            roles[name][i, rng.sample(real, size)] = True
    edges = valid[:, :, None] & valid[:, None, :] & (torch.rand(n, width, width, generator=generator) < 0.3)
    tokens = torch.randint(D_VOCAB, (n, width), generator=generator)
    labels = torch.where(roles["several"], tokens, torch.full_like(tokens, UNREAD))
    return Batch(tokens, labels, valid, roles, {"related": edges})


def some_edges(rng: random.Random, op: str, model: Transformer) -> Intervention:
    head = rng.choice((None, rng.randrange(model.config.n_heads)))
    source = rng.choice(("one", "two", "several", "perhaps", "related", None))
    where = {"layer": rng.randrange(model.config.n_layers), "head": head, "dest": rng.choice(("one", "several", None))}
    empty = rng.choice(("raise", "no-update", "self"))
    if op in ("keep_only", "scale"):
        source = source or "several"
    if op == "shuffle":
        return shuffle(Edges(**where), seed=rng.randrange(100))
    if op == "scale":
        return scale(Edges(**where, source=source), by=rng.choice((0.01, 0.5, 3.0)))
    if op == "patch":
        if rng.random() < 0.5:
            where |= {"dest": "two", "source": rng.choice(("one", "two"))}
            return patch(Edges(**where), donor="donor", align="role")
        return patch(Edges(**where, source=source), donor="donor", align="position")
    if op in ("zero", "freeze"):
        return {"zero": zero, "freeze": freeze}[op](Edges(**where, source=source))
    return {"cut": cut, "keep_only": keep_only, "uniform": uniform}[op](Edges(**where, source=source), empty=empty)


def some_vectors(rng: random.Random, op: str, model: Transformer, heads_only: bool = False) -> dict:
    """The location, and the keywords of the operation."""
    c = model.config
    pos = rng.choice(("one", "two") if op == "resample" else ("one", "two", "several", None))
    where: Heads | Stream = Heads(
        layer=rng.randrange(c.n_layers),
        head=rng.choice((None, rng.randrange(c.n_heads))),
        pos=pos,
        part=rng.choice(("q", "k", "v", "z", "result")),
    )
    parts = ["resid_pre", "attn_out", "resid_mid", "resid_post"] + ([] if c.attn_only else ["mlp_out"])
    if not heads_only and rng.random() < 0.5:
        where = Stream(layer=where.layer, pos=pos, part=rng.choice(parts))
    align = rng.choice(("role", "position") if pos in ("one", "two") else ("position",))
    return {"where": where} | {
        "mean": {"donor": "donor"},
        "resample": {"donor": "donor", "seed": rng.randrange(100)},
        "patch": {"donor": "donor", "align": align},
        "add": {"donor": "donor", "align": align},
        "scale": {"by": rng.choice((-1.0, 0.5, 2.0))},
    }.get(op, {})


VERBS = {"zero": zero, "mean": mean, "resample": resample, "patch": patch, "add": add, "scale": scale, "freeze": freeze}


def some_path(rng: random.Random, model: Transformer) -> Intervention:
    op = rng.choice(ON_VECTORS[:-1])
    made = some_vectors(rng, op, model, heads_only=True)
    sender = made.pop("where")
    sender = sender.model_copy(update={"layer": rng.randrange(model.config.n_layers - 1)})
    receiver = Heads(layer=rng.randint(sender.layer + 1, model.config.n_layers - 1), part=rng.choice("qkv"),
                     head=rng.choice((None, 0)), pos=rng.choice(("one", "several", None)))  # fmt: skip
    return path(VERBS[op], sender, receiver, **made)


def anything(rng: random.Random, model: Transformer) -> Intervention:
    kind = rng.choice(("edges", "edges", "vectors", "path" if model.config.n_layers > 1 else "vectors"))
    if kind == "edges":
        return some_edges(rng, rng.choice(ON_EDGES), model)
    if kind == "path":
        return some_path(rng, model)
    op = rng.choice(ON_VECTORS)
    return VERBS[op](**some_vectors(rng, op, model))


def agrees(model: Transformer, batch: Batch, interventions: list, donors: dict) -> None:
    """`run` equals the oracle: which examples are left out, whether a row is emptied, the logits at real positions."""
    left_out = {i for i in range(len(batch)) for one in interventions
                if one.where.type == "edges" and oracle.nothing_to_do(one, batch, i)}  # fmt: skip
    if len(left_out) == len(batch):
        return
    kept = torch.tensor([i for i in range(len(batch)) if i not in left_out])
    batch_kept, donors_kept = batch.select(kept), {name: donor.select(kept) for name, donor in donors.items()}
    try:
        want = oracle.logits(model, batch_kept, interventions, donors_kept, donors)
    except (oracle.Emptied, oracle.Unseen) as refused:
        with pytest.raises(EmptyRow if isinstance(refused, oracle.Emptied) else ValueError):
            run(model, batch, interventions, donors=named(donors, interventions), on_missing="skip")
        return
    got = run(model, batch, interventions, donors=named(donors, interventions), on_missing="skip")
    assert set(got.skipped) == left_out
    off = np.abs(got.logits.double().numpy() - want)[batch_kept.valid.numpy()].max()
    tolerance = 1e-10 if got.logits.dtype == torch.float64 else 5e-6 * np.abs(want).max()
    assert off <= tolerance, [str(one) for one in interventions]
    handed = named(donors, interventions)
    read = run(model, batch, interventions, donors=handed, on_missing="skip", positions="read").logits
    index = batch_kept.read_positions()[..., None].expand(-1, -1, D_VOCAB)
    assert torch.allclose(read, got.logits.gather(1, index), rtol=0, atol=2 * tolerance)


def drawn(seed: int, dtype: torch.dtype = torch.float64, **fixed):
    rng = random.Random(seed)
    model, batch = some_model(rng, dtype, **fixed), some_batch(rng)
    return rng, model, batch, {"donor": some_batch(rng, batch.valid)}


@given(seeds)
@settings(derandomize=True, max_examples=20, deadline=None)
def test_clean_logits_equal_the_oracle(seed: int):
    _, model, batch, donors = drawn(seed)
    agrees(model, batch, [], donors)


@pytest.mark.parametrize("op", ON_EDGES)
@given(seeds)
@settings(derandomize=True, max_examples=15, deadline=None)
def test_operations_on_edges_equal_the_oracle(op: str, seed: int):
    rng, model, batch, donors = drawn(seed)
    agrees(model, batch, [some_edges(rng, op, model)], donors)


@pytest.mark.parametrize("op", ON_VECTORS)
@given(seeds)
@settings(derandomize=True, max_examples=12, deadline=None)
def test_operations_on_vectors_equal_the_oracle(op: str, seed: int):
    rng, model, batch, donors = drawn(seed)
    agrees(model, batch, [VERBS[op](**some_vectors(rng, op, model))], donors)


@given(seeds)
@settings(derandomize=True, max_examples=20, deadline=None)
def test_paths_equal_the_oracle(seed: int):
    rng, model, batch, donors = drawn(seed, n_layers=3)
    agrees(model, batch, [some_path(rng, model)], donors)


@given(seeds)
@settings(derandomize=True, max_examples=25, deadline=None)
def test_lists_of_two_equal_the_oracle_where_they_are_not_refused(seed: int):
    rng, model, batch, donors = drawn(seed)
    both = [anything(rng, model), anything(rng, model)]
    try:
        run(model, batch, both, donors=named(donors, both), on_missing="skip")
    except EmptyRow:
        pass
    except ValueError:  # MissingExamples, or a list that contradicts itself
        return
    agrees(model, batch, both, donors)


@given(seeds)
@settings(derandomize=True, max_examples=25, deadline=None)
def test_one_operation_equals_the_oracle_in_float32(seed: int):
    rng, model, batch, donors = drawn(seed, torch.float32)
    agrees(model, batch, [anything(rng, model)], donors)


@given(seeds)
@settings(derandomize=True, max_examples=15, deadline=None)
def test_shuffle_permutes_the_visible_weights_of_each_row(seed: int):
    _, model, batch, _ = drawn(seed, n_layers=1)
    clean = record(model, batch, ["pattern"])["pattern", 0]
    moved = [record(model, batch, ["pattern"], [shuffle(Edges(layer=0), seed=s)])["pattern", 0] for s in (1, 2)]
    hidden = ~model.visible(batch.tokens, batch.valid)[:, None].expand_as(clean)
    for one in moved:
        assert torch.allclose(one.sort(-1).values, clean.sort(-1).values, rtol=0, atol=1e-12)
        assert not one[hidden].any()
    assert not torch.equal(*moved)
