"""Whether a trained model is still what its record says: its weights, its modules, and nothing hung on it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from safetensors.torch import save as write_tensors
from torch.nn.modules import module as everywhere

from workbench.batch import Batch
from workbench.checkpoints import Trained


def check_genuine(label: str, trained: Trained) -> None:
    """Raises ValueError where the weights of a model that was trained or loaded are no longer those that its record
    names: its results would be kept, and found again, under another model's name. One in another dtype is compared with
    its checkpoint in that dtype."""
    if "definition" not in trained.about or "weights_sha256" not in trained.about:
        return
    if digest_of(trained.model) == trained.about["weights_sha256"]:
        return
    if not _cast(trained):
        raise ValueError(
            f"{label!r}, model seed {trained.seed}: its weights are no longer those of its checkpoint ({trained.folder}"
            "); to study it as it is now, hand over the bare model (trained.model), which is known by its weights"
        )


def check_words(label: str, trained: Trained, batch: Batch) -> None:
    """Raises ValueError where a model was trained on tokens that are other words than the batch's: it would read each
    as another, and its numbers would look like any others."""
    from workbench.catalogue import load

    known = trained.about.get("definition", {}).get("task") or {}
    if not batch.vocabulary or "name" not in known:
        return
    try:
        words = tuple(load("task", known["name"])(**known.get("arguments", {})).vocabulary)
    except (LookupError, TypeError, ValueError):
        return  # a task that is not installed here
    if words != tuple(batch.vocabulary):
        at = next((i for i, pair in enumerate(zip(words, batch.vocabulary, strict=False)) if len({*pair}) > 1), None)
        first = (
            f"it has {len(words)} and these examples {len(batch.vocabulary)}" if at is None
            else f"token {at} was {words[at]!r} and is {batch.vocabulary[at]!r} here"
        )  # fmt: skip
        raise ValueError(
            f"{label!r}, model seed {trained.seed}, was trained on task {known['name']!r} with {known.get('arguments')}"
            f", whose tokens are other words than these examples': {first}. Draw the examples from that task, or hand "
            "over the bare model (trained.model)"
        )


def digest_of(model: Any) -> str:
    """SHA-256 of a model's weights as `checkpoints.save` writes them."""
    return hashlib.sha256(write_tensors(_state(model))).hexdigest()


def _state(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}


def _cast(trained: Trained) -> bool:
    """Whether these are the checkpoint's weights in another dtype."""
    from workbench.checkpoints import load

    if not (trained.folder / "model.json").is_file():
        return False
    known, state = load(trained.folder).model.state_dict(), _state(trained.model)
    return known.keys() == state.keys() and all(
        torch.equal(known[name].to(state[name].dtype), state[name]) for name in known
    )


def has_hooks(model: Any) -> bool:
    """Whether a hook stands anywhere in a model, or on every module there is. Ours stand only while a model runs."""
    if not hasattr(model, "modules"):
        return False
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    return any(getattr(module, kind) for module in model.modules() for kind in kinds)


HOOKED = "hooks that are not ours stand in this model: it was measured with them, and its cells are not kept"


def departure(model: Any) -> str | None:
    """What must be said of a model that computes something else than its weights and configuration say: it carries
    hooks, or, if it is an own one, modules, functions or numbers other than its configuration builds. None where no
    such thing is seen."""
    if has_hooks(model):
        return HOOKED
    if not hasattr(model, "row_by_row"):
        return None
    from workbench.models.pristine import other_than_built

    what = model.row_by_row() or other_than_built(model)
    return f"{what}: the model was measured as it stands, and its cells are not kept" if what else None
