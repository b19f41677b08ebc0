"""Generation: token after token, with interventions in force at every step, by the largest logit, by drawing, or by
the best of several beams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from workbench.batch import UNREAD, Batch
from workbench.interventions import Intervention, donor_names, roles_named
from workbench.nearest import nearest
from workbench.operations import Mean
from workbench.preparation import check_places
from workbench.rows import exact
from workbench.running import run

How = Literal["greedy", "sample", "beam"]
HOWS: tuple[How, ...] = ("greedy", "sample", "beam")
DRAWN = ("resample", "shuffle")
CURRENT, GENERATED = "current", "generated"


@dataclass(frozen=True, eq=False, repr=False)
class Generated:
    """What was generated.

    batch: prompts with what was generated after them, and the roles `current` (the last position that was read) and
    `generated`; new [batch new]: the generated tokens, −100 after an example ended; log_prob [batch]: the sum of the
    tokens' log-probabilities under the model with its interventions, in nats; ended [batch]: whether `end` was said;
    notes: what a reader must know of edits that could not matter.
    """

    batch: Batch
    new: Tensor
    log_prob: Tensor
    ended: Tensor
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Generated({list(self.new.shape)} tokens, {int(self.ended.sum())} of {len(self.ended)} ended)"

    def words(self, example: int) -> list[str]:
        """An example's generated tokens as text."""
        return [self.batch.word(int(token)) for token in self.new[example] if token != UNREAD]


@dataclass(frozen=True)
class _Choice:
    """How the next token is chosen."""

    how: How
    temperature: float
    top_k: int | None
    beams: int
    length_penalty: float


def generate(
    model: Any,
    prompts: Batch,
    n_new: int,
    *,
    interventions: Sequence[Intervention] = (),
    donors: Mapping[str, Batch] | None = None,
    how: How = "greedy",
    temperature: float = 1.0,
    top_k: int | None = None,
    beams: int = 4,
    length_penalty: float = 0.0,
    seed: int | None = None,
    end: int | None = None,
    chunk_size: int = 4096,
) -> Generated:
    """Up to `n_new` tokens after each prompt, each from a whole forward pass with all the interventions in force.

    The role `current` is the last position, from whose row the next token is read: `Edges(layer=1, dest="current",
    source="answer")` is cut anew at every step. `generated` are the positions after the prompt, none at the first
    token. Roles of the prompt and of the context keep their meaning; a relation or an alignment names no new position.

    how: "greedy" takes the largest logit (the lowest token of equal ones). "sample" draws from softmax(logits /
        temperature), with `top_k` among the k largest only (Fan et al. 2018); needs a `seed`, and what an example draws
        does not depend on which others have ended. "beam" keeps the `beams` best continuations by log-probability,
        divided by length to the power `length_penalty` where they end (Wu et al. 2016, section 7, without its
        constants).
    end: the token at which an example ends; none never ends. donors: as `run` takes them, for the prompts.

    Raises ValueError for what does not fit together, and what `run` raises.

    >>> from workbench import ModelConfig, Transformer
    >>> model = Transformer(ModelConfig(d_vocab=8, n_ctx=6, d_model=8, n_layers=1, n_heads=1), seed=0)
    >>> prompts = Batch(torch.tensor([[4, 7]]), torch.tensor([[-100, -100]]))
    >>> generate(model, prompts, 3).new.shape
    torch.Size([1, 3])
    """
    check_places(model, interventions)
    if n_new == 1 and (late := [one for one in interventions if GENERATED in roles_named(one)]):
        raise ValueError(f"{late[0]}: nothing is generated before the first token, and n_new is 1; ask for more tokens")
    choice = _Choice(how, temperature, top_k, beams, length_penalty)
    _check(model, prompts, n_new, choice, seed, end)
    steps = _Steps(model, interventions, dict(donors or {}), chunk_size)
    with torch.no_grad():
        if how == "beam":
            return _by_beams(steps, prompts, n_new, choice, end)
        return _one_by_one(steps, prompts, n_new, choice, seed, end)


@dataclass
class _Steps:
    """Forward passes over what has been said so far."""

    model: Any
    interventions: Sequence[Intervention]
    donors: dict[str, Batch]
    chunk_size: int
    notes: dict[str, None] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """A mean is over the whole of its donor; every other donor stands in example by example."""
        changes = [getattr(one.what, "change", one.what) for one in self.interventions]
        if drawn := [str(one) for one, what in zip(self.interventions, changes, strict=True) if what.op in DRAWN]:
            raise ValueError(
                f"{drawn[0]}: what it draws depends on which examples run together, and fewer do as they end; generate "
                "without it, or put what it draws into a donor batch"
            )
        self.whole = {what.donor for what in changes if isinstance(what, Mean)}
        if both := self.whole & {
            what.donor for what in changes if not isinstance(what, Mean) and hasattr(what, "donor")
        }:
            raise ValueError(f"{sorted(both)} are donors of a mean and of another edit; give each a name of its own")

    def log_probs(self, said: Batch, of: Tensor) -> Tensor:
        """Log-probabilities of the next token [batch d_vocab]; of [batch]: which prompt each row continues."""
        donors = {name: donor if name in self.whole else donor.select(of) for name, donor in self.donors.items()}
        acting = list(self.interventions)
        if not said.roles[GENERATED].any():
            waiting = [one for one in acting if GENERATED in roles_named(one)]
            acting = [one for one in acting if one not in waiting]
            self.notes |= {
                f"{one}: acts from the second token on; before, nothing is generated": None for one in waiting
            }
            donors = {name: donor for name, donor in donors.items() if name in donor_names(acting)}
        done = run(self.model, _asking(said), acting, donors=donors, positions="read", chunk_size=self.chunk_size)
        self.notes |= dict.fromkeys(done.notes)
        return torch.log_softmax(exact(done.logits[:, 0]), -1)


def _asking(said: Batch) -> Batch:
    """The batch, read at its last valid positions alone."""
    at = _last(said.valid)
    current = F.one_hot(at, said.tokens.shape[1]).bool()
    labels = torch.full_like(said.tokens, UNREAD).masked_fill(current, 0)
    return replace(said, labels=labels, roles={**said.roles, CURRENT: current})


def _last(valid: Tensor) -> Tensor:
    """The last valid position of each row [batch]."""
    places = torch.arange(valid.shape[1], device=valid.device)
    return places.where(valid, -1).amax(1)


def _one_by_one(
    steps: _Steps, prompts: Batch, n_new: int, choice: _Choice, seed: int | None, end: int | None
) -> Generated:
    said = _begun(prompts)
    new = torch.full((len(prompts), n_new), UNREAD, device=prompts.device)
    log_prob = torch.zeros(len(prompts), dtype=torch.float64, device=prompts.device)
    going = torch.arange(len(prompts), device=prompts.device)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    for step in range(n_new):
        known = steps.log_probs(said.select(going), going)
        luck = None if generator is None else torch.rand(len(prompts), generator=generator).to(known)[going]
        token = known.argmax(-1) if choice.how == "greedy" else _drawn(known, choice, luck)
        new[going, step] = token
        log_prob[going] += known.gather(-1, token[:, None])[:, 0].double()
        said = _said(said, going, token)
        going = going if end is None else going[token != end]
        if not len(going):
            break
    ended = torch.zeros(len(prompts), dtype=torch.bool) if end is None else (new == end).any(1).cpu()
    return Generated(_marked(said), new, log_prob, ended.to(prompts.device), tuple(steps.notes))


def _drawn(log_probs: Tensor, choice: _Choice, luck: Tensor | None) -> Tensor:
    """The token at which the cumulated probability passes each example's number in [0, 1)."""
    assert luck is not None
    level = log_probs / choice.temperature
    if choice.top_k is not None:
        least = level.topk(min(choice.top_k, level.shape[-1]), -1).values[:, -1:]
        level = level.masked_fill(level < least, -torch.inf)
    share = torch.softmax(level.double(), -1).cumsum(-1)
    token = (share <= luck.double()[:, None] * share[:, -1:]).sum(-1)
    return token.clamp_max(level.shape[-1] - 1)


def _by_beams(steps: _Steps, prompts: Batch, n_new: int, choice: _Choice, end: int | None) -> Generated:
    """Every prompt's beams run together; a beam that ended is kept as it is, and competes by its score."""
    n, width = len(prompts), choice.beams
    of = torch.arange(n, device=prompts.device).repeat_interleave(width)
    said = _begun(prompts).select(of)
    new = torch.full((n * width, n_new), UNREAD, device=prompts.device)
    log_prob = torch.full((n, width), -torch.inf, dtype=torch.float64, device=prompts.device)
    log_prob[:, 0] = 0.0
    ended = torch.zeros(n * width, dtype=torch.bool, device=prompts.device)
    for step in range(n_new):
        going = (~ended & log_prob.flatten().isfinite()).nonzero().flatten()
        if not len(going):
            break
        known = steps.log_probs(said.select(going), of[going]).double()
        n_words = known.shape[-1]
        grown = torch.full((n * width, n_words), -torch.inf, dtype=torch.float64, device=known.device)
        grown[going] = log_prob.flatten()[going, None] + known
        stay = ended.nonzero().flatten()
        grown[stay, 0] = log_prob.flatten()[stay]  # one continuation: none
        lengths = torch.where(ended, (new != UNREAD).sum(1), step + 1).double()
        scores = grown / (lengths**choice.length_penalty)[:, None]
        best = scores.reshape(n, width * n_words).topk(width, -1).indices
        parent = (best // n_words + torch.arange(n, device=best.device)[:, None] * width).flatten()
        token = (best % n_words).flatten()
        log_prob = grown[parent, token].reshape(n, width)
        said, new, ended = said.select(parent), new[parent], ended[parent]
        moving = (~ended & log_prob.flatten().isfinite()).nonzero().flatten()
        new[moving, step] = token[moving]
        said = _said(said, moving, token[moving])
        if end is not None:
            ended[moving] = token[moving] == end
    lengths = (new != UNREAD).sum(1).reshape(n, width).double()
    top = (log_prob / lengths.clamp_min(1) ** choice.length_penalty).argmax(1)
    chosen = top + torch.arange(n, device=top.device) * width
    return Generated(
        _marked(said.select(chosen)), new[chosen], log_prob.flatten()[chosen], ended[chosen], tuple(steps.notes)
    )


def _begun(prompts: Batch) -> Batch:
    """The prompts, with a role for what is to be generated."""
    return replace(prompts, roles={**prompts.roles, GENERATED: torch.zeros_like(prompts.valid)})


def _said(said: Batch, rows: Tensor, token: Tensor) -> Batch:
    """The batch with a token more in these rows, behind their last valid position; other rows are padded."""
    at = _last(said.valid)[rows] + 1
    if int(at.max()) >= said.tokens.shape[1]:
        said = _wider(said)
    tokens, valid, generated = said.tokens.clone(), said.valid.clone(), said.roles[GENERATED].clone()
    tokens[rows, at], valid[rows, at], generated[rows, at] = token, True, True
    return replace(said, tokens=tokens, valid=valid, roles={**said.roles, GENERATED: generated})


def _wider(said: Batch) -> Batch:
    """One position more, padding in every row."""

    def more(value: Tensor, fill: Any, axis: int) -> Tensor:
        shape = [*value.shape]
        shape[axis] = 1
        return torch.cat([value, torch.full(shape, fill, dtype=value.dtype, device=value.device)], axis)

    return replace(
        said,
        tokens=more(said.tokens, int(said.tokens[0, 0]), 1),
        labels=more(said.labels, UNREAD, 1),
        valid=more(said.valid, False, 1),
        roles={name: more(mask, False, 1) for name, mask in said.roles.items()},
        relations={name: more(more(mask, False, 1), False, 2) for name, mask in said.relations.items()},
        alignments={name: more(mask, False, 1) for name, mask in said.alignments.items()},
        classes=None if said.classes is None else more(said.classes, -1, 1),
    )


def _marked(said: Batch) -> Batch:
    """The batch as it ended, with the role `current`; nothing is read in it."""
    current = _asking(said).roles[CURRENT]
    return replace(said, labels=torch.full_like(said.tokens, UNREAD), roles={**said.roles, CURRENT: current})


def _check(model: Any, prompts: Batch, n_new: int, choice: _Choice, seed: int | None, end: int | None) -> None:
    if choice.how not in HOWS:
        raise ValueError(f"how={choice.how!r}. {nearest(str(choice.how), list(HOWS))}")
    part = "decoder" if "decoder" in model.parts else ""
    if any(model.sees(prompts, part, layer).triu(1).any() for layer in range(model.parts[part].n_layers)):
        raise ValueError(
            "this model's positions read what comes after them, so that it cannot go on from a prompt; generate with "
            "causal masks"
        )
    if not isinstance(n_new, int) or n_new < 1:
        raise ValueError(f"n_new is {n_new!r}; ask for 1 token or more")
    if end is not None and not isinstance(end, int):
        raise TypeError(f"end={end!r} is no token's number")
    if not prompts.valid.any(1).all():
        raise ValueError(f"examples {(~prompts.valid.any(1)).nonzero().flatten().tolist()[:8]} have no prompt at all")
    if taken := {CURRENT, GENERATED} & {*prompts.roles, *prompts.relations, *prompts.alignments}:
        raise ValueError(f"{sorted(taken)} are roles that generation sets; rename them in the prompts")
    if (choice.how == "sample") != (seed is not None):
        raise ValueError(
            "how='sample' draws, and needs seed="
            if choice.how == "sample"
            else f"seed={seed} has no effect with how={choice.how!r}; leave it out"
        )
    if choice.how != "sample" and (choice.top_k is not None or choice.temperature != 1.0):
        raise ValueError(f"temperature and top_k have no effect with how={choice.how!r}; leave them out")
    if not choice.temperature > 0 or (choice.top_k is not None and choice.top_k < 1) or choice.beams < 1:
        raise ValueError(
            f"temperature={choice.temperature}, top_k={choice.top_k}, beams={choice.beams}; all must be above 0"
        )
    if end is not None and not 0 <= end < model.n_out:
        raise ValueError(f"end={end} is no token of this model, which says 0 to {model.n_out - 1}")
