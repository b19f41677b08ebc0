"""Random cases for the engine: a model, a batch, donors, and conditions of several interventions each.

A case is built from a few numbers, `Drawn`, which hypothesis draws and shrinks: a failure prints them, and
`case_of(Drawn(...))` is the case again.
"""

import random
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from small import all_hooks, named
from test_oracle import (
    D_VOCAB,
    VERBS,
    anything,
    some_config,
    some_edges,
    some_model,
    some_place,
    some_valid,
    some_vectors,
    some_words,
)

from workbench.batch import UNREAD, Batch
from workbench.interventions import Heads, Intervention, custom, freeze, path
from workbench.models.built import Model
from workbench.models.config import EncoderDecoderConfig
from workbench.paths import READS
from workbench.running import Run, absent, run
from workbench.sites import in_part

REFUSED = (ValueError, KeyError, TypeError, RuntimeError)
"""What `run` raises on purpose: EmptyRow and MissingExamples are ValueErrors, InertIntervention a RuntimeError."""

seeds = st.integers(0, 10**6)


@dataclass(frozen=True)
class Drawn:
    """The numbers of a case. lists: a condition each, a number each intervention."""

    seed: int = 0
    pair: bool = False
    layers: int = 1
    examples: int = 1
    lists: tuple[tuple[int, ...], ...] = ((),)
    read: bool = False
    on_missing: str = "skip"


def drawn(**fixed) -> st.SearchStrategy[Drawn]:
    """Cases of every kind; fixed: strategies in place of those here."""
    some = st.lists(seeds, min_size=1, max_size=4).map(tuple)
    several = st.lists(st.one_of(some, some, some, st.just(())), min_size=1, max_size=6).map(tuple)
    parts = {
        "seed": seeds,
        "pair": st.sampled_from((False, False, True)),
        "layers": st.integers(1, 4),
        "examples": st.integers(1, 6),
        "lists": several,
        "read": st.booleans(),
        "on_missing": st.sampled_from(("skip", "skip", "skip", "raise")),
    }
    return st.builds(Drawn, **{**parts, **fixed})


@dataclass(frozen=True)
class Case:
    """What `run_each` is handed: conditions label → interventions, and donors, of which `handed` gives those named."""

    model: Model
    batch: Batch
    conditions: dict[str, list[Intervention]]
    donors: dict[str, Batch]
    positions: str
    on_missing: str

    def handed(self, labels=None) -> dict:
        """The arguments of `run_each` but for model and batch, of all conditions or of these."""
        conditions = {label: self.conditions[label] for label in labels or self.conditions}
        every = [one for listed in conditions.values() for one in listed]
        more = {"positions": self.positions, "on_missing": self.on_missing, "donors": named(self.donors, every)}
        return {"conditions": conditions, **more}

    def said(self, label: str) -> str:
        listed = [str(one) for one in self.conditions[label]]
        return f"{label!r} {listed} on {self.model.config!r}, {self.batch!r}, positions={self.positions!r}"


def case_of(numbers: Drawn, dtype: torch.dtype = torch.float64) -> Case:
    rng = random.Random(numbers.seed)
    config = pair_of(rng, numbers.layers) if numbers.pair else some_config(rng, n_layers=numbers.layers)
    model = some_model(rng, config, dtype)
    batch = batch_of(rng, config, numbers.examples)
    donors = {
        "donor": batch_of(rng, config, numbers.examples, like=batch),
        "reference": batch_of(rng, config, rng.randint(1, 4)),
        "itself": batch,
    }
    conditions = {
        f"list {n}": [intervention(random.Random(seed), model) for seed in listed]
        for n, listed in enumerate(numbers.lists)
    }
    return Case(model, batch, conditions, donors, "read" if numbers.read else "all", numbers.on_missing)


def pair_of(rng: random.Random, layers: int) -> EncoderDecoderConfig:
    """An encoder of so many layers and a decoder of as many or other ones."""
    both = {"d_model": rng.choice((5, 8)), "norm": rng.choice(("post", "pre", "none")), "d_patch": 0}
    encoder = some_config(rng, False, n_layers=layers, d_vocab=D_VOCAB + 2, **both)
    return EncoderDecoderConfig(encoder=encoder, decoder=some_config(rng, True, n_layers=rng.randint(1, 3), **both))


def batch_of(rng: random.Random, config, n: int, like: Batch | None = None) -> Batch:
    """n examples of 2–8 positions, padded left or right, or most often padded like another batch of that shape; read at
    a role, at the last position, everywhere, or, in one example, nowhere."""
    pair = isinstance(config, EncoderDecoderConfig)
    patched = not pair and bool(config.d_patch)
    valid = _valid(rng, n, like, left=rng.random() < 0.5 and not patched)
    batch = some_words(rng, valid)
    # Empty in a third of the examples, "perhaps" would leave none to a case of many conditions.
    filled = ~batch.roles["perhaps"].any(1, keepdim=True) & (torch.rand(n, 1, generator=_generator(rng)) < 0.7)
    batch = batch.with_roles(perhaps=batch.roles["perhaps"] | (filled & batch.roles["one"]))
    batch = replace(batch, labels=_labels(rng, batch))
    if rng.random() < 0.3:
        batch = alike(batch)
    if patched:
        shape = (n, batch.tokens.shape[1] - 1, config.d_patch)
        return batch.with_inputs(patches=torch.randn(shape, generator=_generator(rng)))
    if not pair:
        return batch
    there = _valid(rng, n, like and like.context, left=rng.random() < 0.5)
    edges = batch.valid[:, :, None] & there[:, None, :]
    crossed = edges & (torch.rand(edges.shape, generator=_generator(rng)) < 0.4)
    context = some_words(rng, there, D_VOCAB + 2)
    return batch.with_context(alike(context) if rng.random() < 0.3 else context, crossed=crossed)


def alike(batch: Batch) -> Batch:
    """The same tokens, read and named at the same positions in every example, those of the first, where none is
    padded otherwise."""
    if not (batch.valid == batch.valid[:1]).all():
        return batch

    def first(mask: torch.Tensor) -> torch.Tensor:
        return mask[:1].expand_as(mask).clone()

    labels = torch.where(first(batch.labels != UNREAD), batch.tokens % D_VOCAB, torch.full_like(batch.tokens, UNREAD))
    roles = {name: first(mask) for name, mask in batch.roles.items()}
    relations = {name: first(mask) for name, mask in batch.relations.items()}
    return replace(batch, labels=labels, roles=roles, relations=relations)


def _generator(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.randrange(10**6))


def _valid(rng: random.Random, n: int, like: Batch | None, left: bool) -> torch.Tensor:
    if like is None:
        length = rng.randint(2, 8)
        return some_valid(rng, n, *((length, length) if rng.random() < 0.4 else (2, 8)), left)
    if rng.random() < 0.8:
        return like.valid
    width = like.tokens.shape[1]
    lengths = [rng.randint(2, width) for _ in range(n)]
    return torch.tensor([[p >= width - k if left else p < k for p in range(width)] for k in lengths])


def _labels(rng: random.Random, batch: Batch) -> torch.Tensor:
    places = torch.arange(batch.tokens.shape[1]).masked_fill(~batch.valid, -1)
    read = {
        "several": batch.roles["several"],
        "one": batch.roles["one"],
        "last": places == places.amax(1, keepdim=True),
        "every": batch.valid,
    }[rng.choice(("several", "several", "one", "last", "last", "every"))].clone()
    if len(batch) > 1 and rng.random() < 0.1:
        read[rng.randrange(len(batch))] = False
    return torch.where(read, batch.tokens % D_VOCAB, torch.full_like(batch.tokens, UNREAD))


# Interventions -------------------------------------------------------------------------------------------------------


def intervention(rng: random.Random, model: Model) -> Intervention:
    """One of every kind: those of the oracle's tests, with policies for empty rows, other donors and roles that some
    examples lack; now and then a path between two parts, or a custom function."""
    kind = rng.random()
    if kind < 0.03:
        return some_custom(rng, model)
    if kind < 0.08:
        made = some_path_in_a_pair(rng, model) if len(model.parts) > 1 else None
        return made or freeze(some_vectors(rng, "freeze", model)["where"])
    # Edges are what most sweeps are made of, `uniform` and `shuffle` among them are seldom drawn otherwise.
    one = some_edges(rng, rng.choice(("uniform", "shuffle", "cut")), model) if kind < 0.2 else anything(rng, model)
    where, what = one.where, one.what
    if getattr(what, "empty", None) == "raise" and rng.random() < 0.75:
        what = what.model_copy(update={"empty": "no-update"})
    if what.op == "mean" and rng.random() < 0.5:
        what = what.model_copy(update={"donor": "reference"})
    if hasattr(what, "donor") and rng.random() < 0.15:
        what = what.model_copy(update={"donor": "itself"})
    role = "dest" if where.type == "edges" else "pos"
    if rng.random() < 0.08 and getattr(what, "align", None) != "role":
        where = where.model_copy(update={role: "perhaps"})
    return one.model_copy(update={"where": where, "what": what})


def halved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 0.5


def some_custom(rng: random.Random, model: Model) -> Intervention:
    place, part = some_place(rng, model)
    site = rng.choice(("scores", "pattern", "z", "attn_out", "resid_mid"))
    return custom((in_part(part, site), place["layer"]), halved)


def some_path_in_a_pair(rng: random.Random, model: Model) -> Intervention | None:
    """A path from a head of one part to a head that may read it, None where there is no later layer."""
    parts, reads = rng.choice([item for item in READS.items() if item[0] != ("", "")])
    kinds = {"cross": {"kind": "cross"}, "encoder": {"stack": "encoder"}, "decoder": {"stack": "decoder"}}
    layers = [rng.randrange(model.parts[part].n_layers) for part in parts]
    if parts[0] == parts[1] and layers[0] >= layers[1]:
        return None
    verb = rng.choice(("zero", "scale", "freeze", "mean"))
    more = {"scale": {"by": 2.0}, "mean": {"donor": "donor"}}.get(verb, {})
    sender = Heads(**kinds[parts[0]], layer=layers[0], head=rng.choice((None, 0)), pos="several", part="z")
    receiver = Heads(**kinds[parts[1]], layer=layers[1], head=0, pos=rng.choice(("one", None)), part=rng.choice(reads))
    return path(VERBS[verb], sender, receiver, **more)


# What must come out --------------------------------------------------------------------------------------------------


def alone(case: Case, chunk_size: int = 4096) -> tuple[dict[str, Run], dict[str, Exception]]:
    """What `run` gives for each condition on the examples that all conditions can use; and the conditions that it
    refuses, which are left out before the others are asked again."""
    refused: dict[str, Exception] = {}
    while True:
        labels = [label for label in case.conditions if label not in refused]
        found, more = _once(case, labels, chunk_size)
        refused |= more
        if not more:
            return found, refused


def _once(case: Case, labels: list[str], chunk_size: int) -> tuple[dict[str, Run], dict[str, Exception]]:
    skip, lost = case.on_missing == "skip", {}
    for label in labels if skip else ():
        lost = absent(case.model, case.batch, case.conditions[label]) | lost
    found, refused = {}, {}
    for label in labels:
        listed = case.conditions[label]
        more = {"donors": named(case.donors, listed), "positions": case.positions, "chunk_size": chunk_size}
        try:
            found[label] = run(case.model, case.batch, listed, left_out=lost, on_missing=case.on_missing, **more)
        except REFUSED as error:
            refused[label] = error
    return found, refused


def state_of(model) -> tuple:
    """Whatever a call must leave as it was: hooks, modes, gradients, the weights' bits, and the random state."""
    parameters = list(model.named_parameters())
    return (
        all_hooks(model),
        [module.training for module in model.modules()],
        [(name, value.requires_grad, value.grad is None) for name, value in parameters],
        [value.detach().sum().item() for _, value in parameters],
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
    )
