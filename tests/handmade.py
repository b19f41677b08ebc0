"""Models whose weights are set by hand, so that what every head does, and what every edit must do, is known beforehand.

In the spirit of Tracr (Lindner et al. 2023): the residual stream is a sum of named subspaces, each head reads some of
them and writes another. Scores are so far apart that a softmax is one-hot to the precision of a float.
"""

import math

import torch

from tasks.lookup import Lookup
from workbench.models.config import ModelConfig
from workbench.models.transformer import Transformer

GAP = 50.0
"""Between two scores that compete; e^-50 of a weight is below the precision of a float64."""


def blank(config: ModelConfig) -> Transformer:
    """The model with every weight 0."""
    model = Transformer(config, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model.double()


def subspaces(**widths: int) -> dict[str, slice]:
    """Name → the dimensions that are its own, one after the other."""
    out, start = {}, 0
    for name, width in widths.items():
        out[name] = slice(start, start + width)
        start += width
    return out


@torch.no_grad()
def attend_to_previous(attn, head: int, place: slice, n_ctx: int) -> None:
    """Each position attends to the one before it, the first to itself: score 2 × GAP there, 0 elsewhere."""
    place_of = torch.eye(n_ctx, dtype=torch.float64)
    queries = torch.cat([place_of[:1], place_of[:-1]])
    attn.W_Q[head, place, :n_ctx] = 2 * GAP * math.sqrt(attn.W_Q.shape[-1]) * queries
    attn.W_K[head, place, :n_ctx] = place_of


@torch.no_grad()
def lookup_by_hand(task: Lookup) -> Transformer:
    """Two layers of one head, without norms and MLPs, that solve `lookup` exactly.

    Layer 0: every position attends to the one before it and writes its letter (a digit writes nothing) into `before`.
    Layer 1: scores are MATCH where `before` is the letter at the query, plus GAP × the source's position at odd (digit)
    positions, and far below at even ones; the source's digit is written into `said`, which alone is read out. So the
    answer wins, and where nothing matches the latest digit that can be seen does. The logit of what is said is 1, all
    others are 0.
    """
    letters, digits, n = task.letters, task.digits, task.length
    at = subspaces(letter=letters, digit=digits, place=n, before=letters, said=digits)
    d_head, match = max(n, letters + 1, digits), GAP * (n + 1)
    model = blank(ModelConfig(d_vocab=letters + digits, n_ctx=n, d_model=at["said"].stop, n_layers=2, n_heads=1,
                              d_head=d_head, norm="none", attn_only=True))  # fmt: skip
    a_letter, a_digit = torch.eye(letters, dtype=torch.float64), torch.eye(digits, dtype=torch.float64)
    model.embed.W_E[:letters, at["letter"]] = a_letter
    model.embed.W_E[letters:, at["digit"]] = a_digit
    model.pos_embed.W_pos[:, at["place"]] = torch.eye(n, dtype=torch.float64)
    first, second = (block.attn for block in model.blocks)
    attend_to_previous(first, 0, at["place"], n)
    first.W_V[0, at["letter"], :letters] = a_letter
    first.W_O[0, :letters, at["before"]] = a_letter
    second.W_Q[0, at["letter"], :letters] = match * a_letter
    second.b_Q[0, letters] = 1.0
    second.W_K[0, at["before"], :letters] = math.sqrt(d_head) * a_letter
    place = torch.arange(n, dtype=torch.float64)
    second.W_K[0, at["place"], letters] = math.sqrt(d_head) * torch.where(place % 2 == 1, GAP * place, -3 * match)
    second.W_V[0, at["digit"], :digits] = a_digit
    second.W_O[0, :digits, at["said"]] = a_digit
    model.unembed.W_U[at["said"], letters:] = a_digit
    return model


@torch.no_grad()
def previous_token(d_vocab: int, n_ctx: int, n_heads: int = 1) -> Transformer:
    """One layer that says, at every position, the token before it (the first its own): the logit of that token is 1.

    Head 0 does all of it. Further heads attend uniformly, carry the tokens they see in z, and write nothing (W_O = 0).
    """
    at = subspaces(token=d_vocab, place=n_ctx, said=d_vocab)
    model = blank(ModelConfig(d_vocab=d_vocab, n_ctx=n_ctx, d_model=at["said"].stop, n_layers=1, n_heads=n_heads,
                              d_head=max(d_vocab, n_ctx), norm="none", attn_only=True))  # fmt: skip
    token = torch.eye(d_vocab, dtype=torch.float64)
    model.embed.W_E[:, at["token"]] = token
    model.pos_embed.W_pos[:, at["place"]] = torch.eye(n_ctx, dtype=torch.float64)
    attn = model.blocks[0].attn
    attend_to_previous(attn, 0, at["place"], n_ctx)
    attn.W_V[:, at["token"], :d_vocab] = token
    attn.W_O[0, :d_vocab, at["said"]] = token
    model.unembed.W_U[at["said"], :] = token
    return model
