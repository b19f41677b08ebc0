"""Does a head's attention map each product atom to a reactant atom? Agreement in the element, and what guessing gives.

For each product atom, the reactant atom with the highest weight from it, in one head. The published mapper (in the
wheel, `core.py` and `attention.py`: `AttentionScorer`) starts from the same weights and adds what is left out here:

- it sums product→reactant and reactant→product weights; here only product→reactant counts;
- it sets weights between atoms of different elements to 0, so that its maps agree in the element by construction; here
  agreement is what is measured;
- it maps one atom at a time, the most confident first, multiplies the weights between the neighbours of what it just
  mapped by 90, and takes mapped atoms on both sides out; here every product atom chooses alone, and whether two choose
  the same reactant atom is reported (`used_once`);
- it puts molecules into RDKit's canonical form and sorts them first; here the text is taken as it stands.

Agreement is necessary for a right map, not sufficient: a carbon mapped to a wrong carbon agrees. Most product atoms are
carbons, so compare with `commonest_agreement`, and look at the role `hetero` (the product's atoms other than carbon).
`mapped` takes softmax weights [... batch head dest source]; the rest takes what it gives. The batch is that of
`rxnmapper_batch.batch_of`.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from einops import rearrange
from torch import Tensor

from workbench.batch import Batch

__all__ = [
    "UNMAPPED",
    "agreement",
    "baselines",
    "commonest_agreement",
    "mapped",
    "one_to_one_agreement",
    "random_agreement",
    "same_order_agreement",
    "table",
    "used_once",
]

UNMAPPED = -1
"""Where `mapped` says nothing: the position is no product atom."""


def mapped(pattern: Tensor, batch: Batch) -> Tensor:
    """The position of each product atom's reactant atom of the highest weight; ties go to the lowest position.

    pattern [... batch head dest source] → [... batch head dest], `UNMAPPED` where dest is no product atom.

    Raises ValueError for a pattern of another batch, or with NaN among the weights that are read.
    """
    _check(pattern, batch)
    product, reactant = batch.role("product"), batch.role("reactant")
    edges = rearrange(product, "b dest -> b 1 dest 1") & rearrange(reactant, "b source -> b 1 1 source")
    if pattern.isnan().logical_and(edges).any():
        raise ValueError("the pattern holds NaN from product to reactant atoms; nothing can be said about its largest")
    # A NaN elsewhere, as in rows of padding, is nobody's weight. `argmax` promises no order among ties; this does.
    weights = pattern.masked_fill(~edges, -torch.inf)
    largest = (weights == weights.amax(-1, keepdim=True)).to(torch.int8).argmax(-1)
    return largest.masked_fill(~rearrange(product, "b dest -> b 1 dest"), UNMAPPED)


def _check(pattern: Tensor, batch: Batch) -> None:
    n, length = batch.tokens.shape
    if pattern.ndim < 4 or pattern.shape[-4] != n or pattern.shape[-2:] != (length, length):
        raise ValueError(
            f"the pattern has shape {list(pattern.shape)}; this batch asks for [... batch={n} head dest={length} "
            f"source={length}]"
        )
    if batch.classes is None:
        raise ValueError("the batch has no classes; `rxnmapper_batch.batch_of` gives the atoms' elements as classes")
    if bad := (~batch.role("reactant").any(1)).nonzero().flatten().tolist():
        raise ValueError(f"examples {bad} have no reactant atom to map to")


def agreement(at: Tensor, batch: Batch, dest: str = "product") -> Tensor:
    """The share of product atoms mapped to a reactant atom of the same element.

    at [... batch head dest], from `mapped` → [... batch head], float64, fractions from 0 to 1; NaN where a reaction has
    no atom of the role `dest`, "product" or "hetero".

    >>> from analyses.rxnmapper_batch import batch_of
    >>> batch = batch_of(["CO>>OC"], ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ">>", "C", "O"))
    >>> pattern = torch.zeros(1, 1, 7, 7)      # [CLS] C O >> O C [SEP]
    >>> pattern[0, 0, 4, 2] = 1                # O maps to O,
    >>> pattern[0, 0, 5, 2] = 1                # and C maps to O as well
    >>> at = mapped(pattern, batch)
    >>> agreement(at, batch).item(), used_once(at, batch).item()
    (0.5, 0.0)
    """
    return _share(_same_element(at, batch), batch, dest)


def one_to_one_agreement(at: Tensor, batch: Batch, dest: str = "product") -> Tensor:
    """The share of product atoms mapped to an atom of the same element that no other product atom is mapped to.

    at [... batch head dest], from `mapped` → [... batch head], as `agreement`, never above it.
    """
    alone = _uses(at, batch).gather(-1, at.clamp(min=0)) == 1
    return _share(_same_element(at, batch) & alone, batch, dest)


def used_once(at: Tensor, batch: Batch) -> Tensor:
    """Of the reactant atoms to which some product atom is mapped, the share to which only one is: 1 where the map is
    one to one.

    at [... batch head dest], from `mapped` → [... batch head], float64, fractions from 0 to 1.
    """
    uses = _uses(at, batch)
    return (uses == 1).sum(-1).double() / (uses > 0).sum(-1).double()


def _uses(at: Tensor, batch: Batch) -> Tensor:
    """How many product atoms are mapped to each position: at [... dest] → [... source]."""
    uses = torch.zeros(*at.shape[:-1], batch.tokens.shape[1], dtype=torch.long, device=at.device)
    return uses.scatter_add(-1, at.clamp(min=0), (at != UNMAPPED).long())


def _same_element(at: Tensor, batch: Batch) -> Tensor:
    """Whether dest and its mapped atom are of one element: at [... batch head dest] → the same shape."""
    assert batch.classes is not None
    elements = rearrange(batch.classes, "b pos -> b 1 pos").expand(at.shape)
    return (elements.gather(-1, at.clamp(min=0)) == elements) & (at != UNMAPPED)


def _share(right: Tensor, batch: Batch, dest: str) -> Tensor:
    """right [... batch head dest], mean over the role → [... batch head]."""
    role = rearrange(batch.role(dest), "b dest -> b 1 dest")
    return (right & role).sum(-1).double() / role.sum(-1).double()


def random_agreement(batch: Batch, dest: str = "product") -> Tensor:
    """The exact expected agreement of a reactant atom drawn uniformly for each product atom → [batch], float64."""
    same = _pairs(batch).sum(-1).double() / batch.role("reactant").sum(1, keepdim=True).double()
    role = batch.role(dest)
    return (same * role).sum(1) / role.sum(1).double()


def same_order_agreement(batch: Batch, dest: str = "product") -> Tensor:
    """The agreement of mapping the k-th product atom to the k-th reactant atom, the last where there are fewer →
    [batch], float64."""
    product, reactant = batch.role("product"), batch.role("reactant")
    order = torch.argsort(~reactant, dim=1, stable=True)
    rank = (product.cumsum(1) - 1).clamp(min=0).minimum(reactant.sum(1, keepdim=True) - 1)
    at = order.gather(1, rank).masked_fill(~product, UNMAPPED)
    return _share(_same_element(at[:, None], batch), batch, dest)[:, 0]


def commonest_agreement(batch: Batch, dest: str = "product") -> Tensor:
    """The agreement of mapping every product atom to an atom of the reactants' commonest element, the lightest of
    equals → [batch], float64."""
    assert batch.classes is not None
    counts = torch.zeros(len(batch), int(batch.classes.max()) + 1, dtype=torch.long, device=batch.device)
    counts = counts.scatter_add(1, batch.classes, batch.role("reactant").long())
    commonest = (counts == counts.amax(1, keepdim=True)).to(torch.int8).argmax(1)
    role = batch.role(dest)
    return ((batch.classes == commonest[:, None]) & role).sum(1).double() / role.sum(1).double()


def _pairs(batch: Batch) -> Tensor:
    """[batch dest source]: a product atom and a reactant atom of the same element."""
    assert batch.classes is not None
    return (batch.classes[:, :, None] == batch.classes[:, None, :]) & batch.edges("product", "reactant")


def baselines(batch: Batch, dest: str = "product") -> dict[str, float]:
    """What three guessers that look at no attention agree in, the mean over reactions that have such an atom."""
    guessers = {"random": random_agreement, "same order": same_order_agreement, "commonest": commonest_agreement}
    return {name: float(guess(batch, dest).nanmean()) for name, guess in guessers.items()}


def table(at: Tensor, batch: Batch) -> pd.DataFrame:
    """Means over reactions, a row per layer and head, both counted from 0, in their order.

    at [layer batch head dest], from `mapped`. Columns: layer, head, agreement, hetero (agreement of the product's atoms
    other than carbon, over the reactions that have any), one_to_one (agreement with an atom nobody else maps to) and
    used_once.

    Raises ValueError for a map of fewer or more axes.
    """
    if at.ndim != 4:
        raise ValueError(f"the map has shape {list(at.shape)}; a table needs [layer batch head dest]")
    measures = {
        "agreement": agreement(at, batch),
        "hetero": agreement(at, batch, "hetero"),
        "one_to_one": one_to_one_agreement(at, batch),
        "used_once": used_once(at, batch),
    }
    n_layers, _, n_heads, _ = at.shape
    columns: dict[str, Any] = {
        "layer": torch.arange(n_layers).repeat_interleave(n_heads).numpy(),
        "head": torch.arange(n_heads).repeat(n_layers).numpy(),
    }
    for name, each in measures.items():
        columns[name] = rearrange(each.nanmean(1), "layer head -> (layer head)").cpu().numpy()
    return pd.DataFrame(columns)
