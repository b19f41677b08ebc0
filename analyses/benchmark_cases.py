"""The sweeps that are timed: every single edge of the lookup model, and every head's edge of a large random one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from analyses.benchmark_plain import twin
from analyses.benchmark_sweeps import (
    Forward,
    Sweep,
    lens_bridge,
    lens_on_ours,
    looped,
    nnsight_trace,
    ours,
    torch_hooks,
)
from analyses.benchmark_timing import TOLERANCE, Contestant, on_threads
from tasks.lookup import Lookup
from workbench import Batch, Edges, ModelConfig, Transformer

if TYPE_CHECKING:
    from analyses.benchmarks import Scale

OURS, PLAIN_PATH = "this workbench", "this workbench, plain path"
BRIDGE, LENS, HOOKS, NNSIGHT = (
    "TransformerLens, native bridge", "TransformerLens on our model", "PyTorch hooks", "nnsight",
)  # fmt: skip
BRIDGE_WHOLE = f"{BRIDGE}, all sequences at once"
TWIN = "this workbench, the bridge's weights"
TWIN_PATH = f"{TWIN}, plain path"
SEED = 0


def lookup_sweep(n: int) -> Sweep:
    """Each edge of the two-layer lookup model cut alone, on n sequences; without 0←0, which would leave a row empty.

    The model is untrained: what it computes is not what is timed.
    """
    task = Lookup()
    length = task.length
    config = ModelConfig(d_vocab=len(task.vocabulary), n_ctx=length, d_model=32, n_layers=2, n_heads=1, norm="post")
    edges = [(dest, source) for dest in range(length) for source in range(dest + 1) if (dest, source) != (0, 0)]
    cells = tuple(Edges(layer=layer, dest=str(dest), source=str(source)) for layer in (0, 1) for dest, source in edges)
    return Sweep(Transformer(config, seed=SEED), with_places(task.sample(n, seed=SEED)), cells)


def twin_of(sweep: Sweep) -> Sweep:
    """The same sweep of a model of the same shape that the native bridge can be, too."""
    return Sweep(twin(sweep.model.config, SEED), sweep.batch, sweep.cells)


def with_places(batch: Batch) -> Batch:
    """The batch with a role for each of its positions, by number."""
    n, length = batch.tokens.shape
    at = torch.arange(length)
    return batch.with_roles(**{str(place): (at == place).expand(n, -1) for place in range(length)})


def large_sweep(
    n: int = 2, *, length: int = 64, layers: int = 12, heads: int = 12, width: int = 768, d_vocab: int = 1000
) -> Sweep:
    """Every head's edge from the last position to one other, drawn for each sequence; random weights and tokens, and
    what the native bridge can be, too (pre-norm, no output bias)."""
    config = ModelConfig(
        d_vocab=d_vocab, n_ctx=length, d_model=width, n_layers=layers, n_heads=heads, norm="pre", act_fn="gelu"
    )
    cells = tuple(
        Edges(layer=layer, head=head, dest="last", source="some") for layer in range(layers) for head in range(heads)
    )
    return Sweep(twin(config, SEED), random_batch(n, length, d_vocab), cells)


def random_batch(n: int, length: int, d_vocab: int) -> Batch:
    """Random tokens, read at the last position; roles `last` and `some`, one of the others drawn for each sequence."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(d_vocab, (n, length), generator=generator)
    some = torch.randint(length - 1, (n,), generator=generator)
    labels = torch.full_like(tokens, -100)
    labels[:, -1] = torch.randint(d_vocab, (n,), generator=generator)
    at = torch.arange(length)
    roles: dict[str, Tensor] = {"last": (at == length - 1).expand(n, -1), "some": at == some[:, None]}
    return Batch(tokens, labels, roles=roles)


def lookup_contestants(n: int) -> tuple[Sweep, list[Contestant]]:
    """Ours and loops with four tools on n sequences, the native bridge's in two ways. It is pre-norm, so that it is
    compared with ours on weights that it can have, a model of the same shape."""
    sweep = lookup_sweep(n)
    other = twin_of(sweep)
    sizes = chunks(n)
    return sweep, [
        Contestant(PLAIN_PATH, ours(sweep, "hooks"), note="the same call"),
        Contestant(OURS, ours(sweep, "auto"), PLAIN_PATH, note="one call of run_each"),
        _loop(HOOKS, sweep, torch_hooks, sizes, PLAIN_PATH),
        _loop(LENS, sweep, lens_on_ours, sizes, PLAIN_PATH),
        _loop(NNSIGHT, sweep, nnsight_trace, sizes, PLAIN_PATH),
        Contestant(TWIN_PATH, ours(other, "hooks"), rounds=0),
        Contestant(TWIN, ours(other, "auto"), TWIN_PATH, note="pre-norm, as the bridge"),
        _loop(BRIDGE, other, lens_bridge, sizes, TWIN_PATH, "pre-norm; cut at the pattern"),
        _loop(BRIDGE_WHOLE, other, lens_bridge, (n,), TWIN_PATH, "the same"),
    ]


def large_contestants(sweep: Sweep) -> list[Contestant]:
    """Ours and three loops, all on the same weights."""
    sizes = (len(sweep.batch),)
    return [
        Contestant(PLAIN_PATH, ours(sweep, "hooks"), note="the same call"),
        Contestant(OURS, ours(sweep, "auto"), PLAIN_PATH, note="one call of run_each"),
        _loop(HOOKS, sweep, torch_hooks, sizes, PLAIN_PATH),
        _loop(LENS, sweep, lens_on_ours, sizes, PLAIN_PATH),
        _loop(BRIDGE, sweep, lens_bridge, sizes, PLAIN_PATH, "cut at the pattern"),
    ]


@dataclass(frozen=True)
class Case:
    """Contestants that take turns for so many rounds; `base` is the one whose seconds others' are divided by, `flops`
    what the floor counts (0: no floor), `tolerance` what answers may differ, `threads` on how many torch computes."""

    contestants: Sequence[Contestant]
    rounds: int
    base: str
    flops: int = 0
    tolerance: float = TOLERANCE
    threads: int = 1


def cases(scale: Scale) -> tuple[dict[str, Sweep], dict[str, Case]]:
    """The two sweeps by name, and every benchmark but growth."""
    from analyses import benchmark_recording, benchmark_training

    threads = torch.get_num_threads()
    sweep, others = lookup_contestants(scale.sequences)
    with on_threads(1):  # loops try their chunks' sizes on it, too
        _, alone = lookup_contestants(scale.sequences)
    large = large_sweep(
        scale.large_sequences, length=scale.length, layers=scale.layers, heads=scale.heads, width=scale.width
    )
    recorders = benchmark_recording.contestants(sweep, twin_of(sweep), chunks(scale.sequences))
    trainers, tolerance = benchmark_training.contestants(scale.steps), benchmark_training.TOLERANCE
    return {"lookup": sweep, "large": large}, {
        "lookup": Case(others, scale.rounds, OURS, sweep.flops(), threads=threads),
        "one thread": Case(alone, scale.rounds, OURS, sweep.flops()),
        "large": Case(large_contestants(large), scale.large_rounds, OURS, large.flops(), threads=threads),
        "training": Case(trainers, scale.rounds, benchmark_training.FIT, tolerance=tolerance, threads=threads),
        "recording": Case(recorders, scale.rounds, OURS, threads=threads),
    }


def chunks(n: int) -> tuple[int, ...]:
    """Sizes of chunks that loops over n sequences try."""
    return (n, 2000, 1000, 500, 250)


def _loop(
    name: str, sweep: Sweep, tool: Callable[[Sweep], Forward], sizes: tuple[int, ...], against: str, note: str = ""
) -> Contestant:
    work, trials = looped(sweep, tool(sweep), sizes)
    return Contestant(name, work, against, note=f"{trials}; {note}" if note else str(trials))
