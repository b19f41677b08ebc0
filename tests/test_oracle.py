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
from workbench.models.built import Model, build
from workbench.models.config import EncoderDecoderConfig, Mask, ModelConfig
from workbench.running import EmptyRow, record, run

D_VOCAB = 7
ON_EDGES = ("cut", "keep_only", "uniform", "shuffle", "scale", "zero", "freeze", "patch")
ON_VECTORS = ("zero", "mean", "resample", "patch", "add", "scale", "freeze")
PARTS = ("encoder", "decoder", "cross")
POSITIONS = ("learned", "sinusoidal", "relative", "rotary", "none")
seeds = st.integers(0, 10**6)


def some_mask(rng: random.Random, causal: bool) -> Mask:
    """Every kind of mask, a plain one in half of the draws."""
    window, block = rng.choice((None, 1, 2, 3)), rng.choice((None, 2, 3))
    if rng.random() < 0.5 or (window, block) == (None, None):
        return Mask(causal=causal)
    dilation = rng.choice((1, 2)) if window else 1
    return Mask(causal=causal, window=window, dilation=dilation, block=block, n_global=rng.choice((0, 1, 2)))


def some_config(rng: random.Random, causal: bool | None = None, **fixed) -> ModelConfig:
    """One stack. causal: whether its masks are; None draws it."""
    heads, layers = rng.randint(1, 4), fixed.get("n_layers", rng.randint(1, 3))
    causal = rng.random() < 0.6 if causal is None else causal
    choices = {
        "n_layers": layers,
        "n_heads": heads,
        "n_kv_heads": rng.choice([n for n in (1, 2, 3, 4) if heads % n == 0]),
        "d_model": rng.choice((5, 8, 12)),
        "d_head": rng.choice((2, 4)),
        "d_mlp": rng.choice((3, 9)),
        "norm": rng.choice(("post", "pre", "none")),
        "act_fn": rng.choice(("relu", "gelu", "silu", "tanh")),
        "positions": rng.choice(POSITIONS),
        "masks": [some_mask(rng, causal) for _ in range(rng.choice((1, layers)))],
        "attn_only": rng.random() < 0.3,
        "d_patch": rng.choice((0, 0, 0, 3)),
    }
    return ModelConfig(**{"d_vocab": D_VOCAB, "n_ctx": 8, **choices, **fixed})


def some_pair(rng: random.Random) -> EncoderDecoderConfig:
    both = {"d_model": rng.choice((5, 8)), "norm": rng.choice(("post", "pre", "none")), "d_patch": 0}
    encoder = some_config(rng, False, n_layers=rng.randint(1, 2), d_vocab=D_VOCAB + 2, **both)
    return EncoderDecoderConfig(encoder=encoder, decoder=some_config(rng, True, n_layers=rng.randint(1, 2), **both))


def some_model(rng: random.Random, config: ModelConfig | EncoderDecoderConfig, dtype: torch.dtype) -> Model:
    model = build(config, seed=rng.randrange(10**6))
    generator = torch.Generator().manual_seed(rng.randrange(10**6))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rsplit(".", 1)[-1] in ("w", "b", "W_rel"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.to(dtype)


def some_valid(rng: random.Random, n: int, low: int, high: int, left: bool) -> torch.Tensor:
    lengths = [rng.randint(low, high) for _ in range(n)]
    width = max(lengths)
    return torch.tensor([[p >= width - n if left else p < n for p in range(width)] for n in lengths])


def some_words(rng: random.Random, valid: torch.Tensor, d_vocab: int = D_VOCAB) -> Batch:
    """Random tokens; roles of one, two, several positions and perhaps none; a random relation."""
    n, width = valid.shape
    generator = torch.Generator().manual_seed(rng.randrange(10**6))
    roles = {name: torch.zeros_like(valid) for name in ("one", "two", "several", "perhaps")}
    for i in range(n):
        real = valid[i].nonzero().flatten().tolist()
        sizes = {"one": 1, "two": 2, "several": rng.randint(1, len(real)), "perhaps": rng.randint(0, 2)}
        for name, size in sizes.items():
            roles[name][i, rng.sample(real, size)] = True
    edges = valid[:, :, None] & valid[:, None, :] & (torch.rand(n, width, width, generator=generator) < 0.3)
    tokens = torch.randint(d_vocab, (n, width), generator=generator)
    labels = torch.where(roles["several"], tokens % D_VOCAB, torch.full_like(tokens, UNREAD))
    return Batch(tokens, labels, valid, roles, {"related": edges})


def some_batch(rng: random.Random, config: ModelConfig | EncoderDecoderConfig, like: Batch | None = None) -> Batch:
    """2 or 3 examples of lengths 3-8 (of a pair 2-5 after 2-6), padded left or right, or like another batch."""
    pair, n = isinstance(config, EncoderDecoderConfig), rng.randint(2, 3)
    patched = not pair and bool(config.d_patch)
    valid = some_valid(rng, n, *((2, 5) if pair else (3, 8)), rng.random() < 0.5 and not patched)
    batch = some_words(rng, valid if like is None else like.valid)
    generator = torch.Generator().manual_seed(rng.randrange(10**6))
    if patched:
        shape = (len(batch), batch.tokens.shape[1] - 1, config.d_patch)
        return batch.with_inputs(patches=torch.randn(shape, generator=generator))
    if not pair:
        return batch
    there = some_valid(rng, n, 2, 6, rng.random() < 0.5) if like is None else like.context.valid
    context = some_words(rng, there, D_VOCAB + 2)
    edges = batch.valid[:, :, None] & there[:, None, :]
    return batch.with_context(context, crossed=edges & (torch.rand(edges.shape, generator=generator) < 0.4))


def some_place(rng: random.Random, model: Model) -> tuple[dict, str]:
    """A layer of a part: what a location says of it, and the part."""
    part = rng.choice(list(model.parts))
    side = {"": {}, "cross": {"kind": "cross"}}.get(part, {"stack": part})
    return {"layer": rng.randrange(model.parts[part].n_layers), **side}, part


def some_edges(rng: random.Random, op: str, model: Model) -> Intervention:
    where, part = some_place(rng, model)
    related = "crossed" if part == "cross" else "related"
    source = rng.choice(("one", "two", "several", "perhaps", related, None))
    where |= {"head": rng.choice((None, rng.randrange(model.parts[part].n_heads)))}
    where |= {"dest": rng.choice(("one", "several", None))}
    empty = rng.choice(("raise", "no-update") if part == "cross" else ("raise", "no-update", "self"))
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


def some_vectors(rng: random.Random, op: str, model: Model, heads_only: bool = False) -> dict:
    """The location, and the keywords of the operation."""
    place, part = some_place(rng, model)
    pos = rng.choice(("one", "two") if op == "resample" else ("one", "two", "several", None))
    vector = rng.choice(("q", "k", "v", "z", "result"))
    head = rng.choice((None, rng.randrange(model.parts[part].heads_at(vector))))
    where: Heads | Stream = Heads(**place, head=head, pos=pos, part=vector)
    parts = ["attn_out", "resid_mid"]
    if part != "cross":
        parts += ["resid_pre", "resid_post"] + ["mlp_out"] * (model.stack(part).blocks[0].mlp is not None)
    if not heads_only and rng.random() < 0.5:
        where = Stream(**place, pos=pos, part=rng.choice(parts))
    align = rng.choice(("role", "position") if pos in ("one", "two") else ("position",))
    return {"where": where} | {
        "mean": {"donor": "donor"},
        "resample": {"donor": "donor", "seed": rng.randrange(100)},
        "patch": {"donor": "donor", "align": align},
        "add": {"donor": "donor", "align": align},
        "scale": {"by": rng.choice((-1.0, 0.5, 2.0))},
    }.get(op, {})


VERBS = {"zero": zero, "mean": mean, "resample": resample, "patch": patch, "add": add, "scale": scale, "freeze": freeze}


def some_path(rng: random.Random, model: Model) -> Intervention:
    op = rng.choice(ON_VECTORS[:-1])
    made = some_vectors(rng, op, model, heads_only=True)
    sender = made.pop("where")
    sender = sender.model_copy(update={"layer": rng.randrange(model.config.n_layers - 1)})
    receiver = Heads(layer=rng.randint(sender.layer + 1, model.config.n_layers - 1), part=rng.choice("qkv"),
                     head=rng.choice((None, 0)), pos=rng.choice(("one", "several", None)))  # fmt: skip
    return path(VERBS[op], sender, receiver, **made)


def anything(rng: random.Random, model: Model) -> Intervention:
    paths = len(model.parts) == 1 and model.config.n_layers > 1
    kind = rng.choice(("edges", "edges", "vectors", "path" if paths else "vectors"))
    if kind == "edges":
        return some_edges(rng, rng.choice(ON_EDGES), model)
    if kind == "path":
        return some_path(rng, model)
    op = rng.choice(ON_VECTORS)
    return VERBS[op](**some_vectors(rng, op, model))


def agrees(model: Model, batch: Batch, interventions: list, donors: dict) -> None:
    """`run` equals the oracle: which examples are left out, whether a row is emptied, the logits at real positions."""
    left_out = {i for i in range(len(batch)) for one in interventions
                if one.where.type == "edges" and oracle.nothing_to_do(model, one, batch, i)}  # fmt: skip
    if len(left_out) == len(batch):
        return
    kept = torch.tensor([i for i in range(len(batch)) if i not in left_out])
    batch_kept, donors_kept = batch.select(kept), {name: donor.select(kept) for name, donor in donors.items()}
    resampled = any(getattr(one.what, "change", one.what).op == "resample" for one in interventions)
    if resampled and len(kept) < 2:
        return
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


def drawn(seed: int, dtype: torch.dtype = torch.float64, pair: bool = False, **fixed):
    rng = random.Random(seed)
    config = some_pair(rng) if pair else some_config(rng, **fixed)
    model, batch = some_model(rng, config, dtype), some_batch(rng, config)
    return rng, model, batch, {"donor": some_batch(rng, config, batch)}


def agrees_unless_refused(rng: random.Random, model: Model, batch: Batch, donors: dict) -> None:
    both = [anything(rng, model), anything(rng, model)]
    try:
        run(model, batch, both, donors=named(donors, both), on_missing="skip")
    except EmptyRow:
        pass
    except ValueError:  # MissingExamples, or a list that contradicts itself
        return
    agrees(model, batch, both, donors)


@given(seeds)
@settings(derandomize=True, max_examples=12, deadline=None)
@pytest.mark.parametrize("positions", POSITIONS)
def test_clean_logits_equal_the_oracle(positions: str, seed: int):
    _, model, batch, donors = drawn(seed, positions=positions)
    agrees(model, batch, [], donors)


@given(seeds)
@settings(derandomize=True, max_examples=15, deadline=None)
def test_clean_logits_of_pairs_equal_the_oracle(seed: int):
    _, model, batch, donors = drawn(seed, pair=True)
    agrees(model, batch, [], donors)


@pytest.mark.parametrize("pair", [False, True], ids=["one stack", "pair"])
@pytest.mark.parametrize("op", ON_EDGES)
@given(seeds)
@settings(derandomize=True, max_examples=10, deadline=None)
def test_operations_on_edges_equal_the_oracle(op: str, pair: bool, seed: int):
    rng, model, batch, donors = drawn(seed, pair=pair)
    agrees(model, batch, [some_edges(rng, op, model)], donors)


@pytest.mark.parametrize("pair", [False, True], ids=["one stack", "pair"])
@pytest.mark.parametrize("op", ON_VECTORS)
@given(seeds)
@settings(derandomize=True, max_examples=9, deadline=None)
def test_operations_on_vectors_equal_the_oracle(op: str, pair: bool, seed: int):
    rng, model, batch, donors = drawn(seed, pair=pair)
    agrees(model, batch, [VERBS[op](**some_vectors(rng, op, model))], donors)


@given(seeds)
@settings(derandomize=True, max_examples=16, deadline=None)
def test_paths_equal_the_oracle(seed: int):
    rng, model, batch, donors = drawn(seed, n_layers=3)
    agrees(model, batch, [some_path(rng, model)], donors)


@pytest.mark.parametrize("pair", [False, True], ids=["one stack", "pair"])
@given(seeds)
@settings(derandomize=True, max_examples=14, deadline=None)
def test_lists_of_two_equal_the_oracle_where_they_are_not_refused(pair: bool, seed: int):
    agrees_unless_refused(*drawn(seed, pair=pair))


@pytest.mark.parametrize("pair", [False, True], ids=["one stack", "pair"])
@given(seeds)
@settings(derandomize=True, max_examples=15, deadline=None)
def test_one_operation_equals_the_oracle_in_float32(pair: bool, seed: int):
    rng, model, batch, donors = drawn(seed, torch.float32, pair)
    agrees(model, batch, [anything(rng, model)], donors)


@given(seeds)
@settings(derandomize=True, max_examples=15, deadline=None)
def test_shuffle_permutes_the_visible_weights_of_each_row(seed: int):
    _, model, batch, _ = drawn(seed, n_layers=1, masks=[Mask()])
    clean = record(model, batch, ["pattern"])["pattern", 0]
    moved = [record(model, batch, ["pattern"], [shuffle(Edges(layer=0), seed=s)])["pattern", 0] for s in (1, 2)]
    hidden = ~model.visible(0, batch.tokens, batch.valid)[:, None].expand_as(clean)
    for one in moved:
        assert torch.allclose(one.sort(-1).values, clean.sort(-1).values, rtol=0, atol=1e-12)
        assert not one[hidden].any()
    assert not torch.equal(*moved)


def test_the_draws_hold_every_kind():
    """Masks, positions, groups, patches, norms and parts: each is drawn often enough to matter."""
    ones = [some_config(random.Random(seed)) for seed in range(200)]
    masks = [mask for one in ones for mask in one.masks]
    for name, found in {
        "causal": [mask.causal for mask in masks],
        "both ways": [not mask.causal for mask in masks],
        "window": [mask.window is not None for mask in masks],
        "dilation": [mask.dilation > 1 for mask in masks],
        "block": [mask.block is not None for mask in masks],
        "global": [mask.n_global > 0 for mask in masks],
        "a mask a layer": [len(set(one.masks)) > 1 for one in ones],
        "groups": [one.n_kv_heads < one.n_heads for one in ones],
        "patches": [one.d_patch > 0 for one in ones],
        **{positions: [one.positions == positions for one in ones] for positions in POSITIONS},
    }.items():
        assert sum(found) > 0.05 * len(found), name
    placed = [some_place(random.Random(seed), build(some_pair(random.Random(0)), 0))[1] for seed in range(60)]
    assert all(placed.count(part) > 10 for part in PARTS)
