"""Reactions as a Batch for the rxnmapper model, and copies of it with product atoms masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from analyses.rxnmapper_tokens import SPECIAL, arrow, check_vocabulary, element, words
from workbench.batch import UNREAD, Batch

__all__ = ["COPIES", "MAX_TOKENS", "Masked", "batch_of", "masked"]

MAX_TOKENS = 512
"""The model's positions, [CLS] and [SEP] counted."""

COPIES = 3
"""Copies per reaction. Measured on the 130 reactions: with 1 the mean loss is 0.60 nats, as a product hidden whole
says nothing of itself; with 3 it is 0.126, with 7 0.120, with a copy per atom 0.118. The seed moves it by
0.001 with 3."""


def batch_of(reactions: Sequence[str], vocabulary: Sequence[str]) -> Batch:
    """Reaction SMILES → a Batch: [CLS], tokens, [SEP], padding on the right; nothing is read.

    Roles: `product`, the product's atoms; `hetero`, those of them that are no carbon; `reactant`, the atoms of
    reactants and reagents. `classes` are atomic numbers, 0 where no atom is.

    Raises ValueError naming the reaction: no or two `>>`, a token that is not in the vocabulary, more than 512 tokens;
    and where there is no reaction.

    >>> known = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ">>", "C", "O", "Br", ".", "[OH-]")
    >>> print(batch_of(["CBr.[OH-]>>CO"], known).show(0))
    position      0  1   2  3      4   5  6  7      8
    token     [CLS]  C  Br  .  [OH-]  >>  C  O  [SEP]
    label         .  .   .  .      .   .  .  .      .
    product       .  .   .  .      .   .  *  *      .
    hetero        .  .   .  .      .   .  .  *      .
    reactant      .  *   *  .      *   .  .  .      .
    """
    check_vocabulary(vocabulary)
    if isinstance(reactions, str) or not reactions:
        raise ValueError(f"reactions come as a list of reaction SMILES with one or more in it; got {reactions!r}")
    ids = {word: number for number, word in enumerate(vocabulary)}
    cut = [_framed(reaction, ids) for reaction in reactions]
    length = max(map(len, cut))
    padded = [row + [SPECIAL["pad_token"]] * (length - len(row)) for row in cut]
    tokens = torch.tensor([[ids[word] for word in row] for row in padded])
    classes = torch.tensor([[element(word) for word in row] for row in padded])
    after = torch.arange(length) > torch.tensor([[arrow(row)] for row in cut])
    product = (classes > 0) & after
    roles = {"product": product, "hetero": product & (classes != 6), "reactant": (classes > 0) & ~after}
    return Batch(
        tokens,
        torch.full_like(tokens, UNREAD),
        valid=torch.arange(length) < torch.tensor([[len(row)] for row in cut]),
        roles=roles,
        classes=classes,
        vocabulary=tuple(vocabulary),
    )


def _framed(reaction: str, ids: dict[str, int]) -> list[str]:
    tokens = words(reaction)
    arrow(tokens)
    if unknown := sorted({token for token in tokens if token not in ids or token in SPECIAL.values()}):
        raise ValueError(f"{reaction!r} holds {', '.join(unknown)}, which the vocabulary has not as a token of SMILES")
    if len(tokens) + 2 > MAX_TOKENS:
        raise ValueError(
            f"{reaction!r} has {len(tokens)} tokens; the model takes {MAX_TOKENS - 2}, and [CLS] and [SEP]"
        )
    return [SPECIAL["cls_token"], *tokens, SPECIAL["sep_token"]]


@dataclass(frozen=True)
class Masked:
    """Masked copies, and of which reaction each is one: reaction [batch], an index into the batch that was masked."""

    batch: Batch
    reaction: Tensor

    def per_reaction(self, values: Tensor) -> Tensor:
        """values [batch], each a mean over the copy's masked atoms → [reaction], the mean over the reaction's product
        atoms, each of which is masked once. Float64.

        Raises ValueError for values of another batch.
        """
        if values.shape != self.reaction.shape:
            raise ValueError(f"values {list(values.shape)} are of another batch: here are {len(self.reaction)} copies")
        counts = self.batch.role("masked").sum(1).double()
        n_reactions = int(self.reaction.max()) + 1
        total = torch.zeros(n_reactions, dtype=torch.double).index_add(0, self.reaction, values.double() * counts)
        return total / torch.zeros(n_reactions, dtype=torch.double).index_add(0, self.reaction, counts)


def masked(batch: Batch, *, copies: int, seed: int) -> Masked:
    """Copies of each reaction with disjoint sets of product atoms masked, each product atom in exactly one of them.

    The product atoms are shuffled by the seed and dealt out in turn, so that a reaction's copies mask as many, or one
    more or less. Hence no draw of atoms adds noise to the loss; the seed only says which are hidden together. A
    reaction with fewer product atoms than `copies` gives one copy an atom. Copies of a reaction follow each other.

    Each copy has the labels of what is masked, UNREAD elsewhere, and a role `masked`; the other roles, and `classes`
    (the elements, also of what is masked), are the reaction's.

    Raises ValueError for fewer than one copy, and KeyError for a batch without a role `product`.
    """
    if copies < 1:
        raise ValueError(f"copies={copies}: each reaction needs at least one, which masks all its product atoms")
    product = batch.role("product")
    mask_id = batch.vocabulary.index(SPECIAL["mask_token"])
    turn = torch.stack([_turns(row, copies, seed, example) for example, row in enumerate(product.cpu())])
    hidden = [
        (example, turn[example] == k) for example in range(len(batch)) for k in range(int(turn[example].max()) + 1)
    ]
    reaction = torch.tensor([example for example, _ in hidden])
    where = torch.stack([mask for _, mask in hidden]).to(batch.device)
    copied = batch.select(reaction.to(batch.device))
    return Masked(
        Batch(
            copied.tokens.masked_fill(where, mask_id),
            torch.where(where, copied.tokens, UNREAD),
            copied.valid,
            {**copied.roles, "masked": where},
            copied.relations,
            copied.classes,
            copied.vocabulary,
        ),
        reaction,
    )


def _turns(product: Tensor, copies: int, seed: int, example: int) -> Tensor:
    """Which copy masks a position, [pos]; −1 where none does."""
    at = product.nonzero().flatten()
    # A stream of its own per reaction, so that adding one leaves the others as they were.
    generator = torch.Generator().manual_seed(seed * 1_000_003 + example)
    turn = torch.full(product.shape, -1)
    turn[at[torch.randperm(len(at), generator=generator)]] = torch.arange(len(at)) % copies
    return turn
