"""Small models and batches that several test files use: two layers, width 8, every norm, one head or two."""

import pytest
import torch

from tasks.lookup import Lookup
from workbench.batch import Batch
from workbench.interventions import Edges, donor_names
from workbench.models.config import ModelConfig
from workbench.models.transformer import Transformer
from workbench.sites import SITES

TASK = Lookup()
BATCH = TASK.sample(12, seed=0)
CORRUPT = TASK.corrupt(BATCH, seed=1)

ANSWER = Edges(layer=1, dest="last", source="answer")
OTHER = Edges(layer=1, dest="last", source="other")
ROW = Edges(layer=1, dest="last")

EVERY_MODEL = pytest.mark.parametrize(
    ("norm", "heads"), [(norm, heads) for norm in ("post", "pre", "none") for heads in (1, 2)]
)
KEYS = [(name, 1) if row.layered else (name, None) for name, row in SITES.items()]
"""Every site of the table, those of the layers in layer 1."""

EVERY_SITE = pytest.mark.parametrize("key", KEYS, ids=lambda key: key[0])


def small(norm: str = "post", heads: int = 2, dtype: torch.dtype = torch.float64, **fixed) -> Transformer:
    config = {"d_vocab": 16, "n_ctx": 9, "d_model": 8, "n_layers": 2, "n_heads": heads, "norm": norm, **fixed}
    return Transformer(ModelConfig(**config), seed=0).to(dtype)


def spelt(key: tuple[str, int | None]):
    """A key as `custom` and `record` take it."""
    return key[0] if key[1] is None else key


def hook_of(model: Transformer, key: tuple[str, int | None]):
    return model.hook_dict[SITES[key[0]].hook_name(key[1])]


def all_hooks(model: Transformer) -> dict[str, list]:
    """Every hook on every module, forward and backward, by the module's name: empty lists left out."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    found = {name: [hook for kind in kinds for hook in getattr(module, kind)] for name, module in model.named_modules()}
    return {name: hooks for name, hooks in found.items() if hooks}


def with_role(batch: Batch, name: str, examples: list[int]) -> Batch:
    """The batch with a role that is `answer` in these examples and empty in the others."""
    mask = torch.zeros_like(batch.valid)
    mask[examples] = batch.roles["answer"][examples]
    return batch.with_roles(**{name: mask})


def named(donors, interventions):
    """Of these donors, those that the interventions name: `run` refuses one that has no effect."""
    return {name: donor for name, donor in donors.items() if name in donor_names(interventions)}
