"""Which sites of a model are live: measured by noise, one site at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.modules import module as module_hooks

from workbench.batch import UNREAD, Batch
from workbench.edits import Edit, InertIntervention
from workbench.hooks import Key, evaluating, hook_point, installed, without_hooks
from workbench.rows import HIDDEN
from workbench.sites import CROSS, SITES, in_part, split

FACTORS = {torch.float64: 100, torch.float32: 100, torch.float16: 4, torch.bfloat16: 1}
"""By more than so many roundings of the largest logit must logits move. A hundred roundings of a bfloat16 are four
fifths of the logit itself; there any logits that differ do so for a reason, since a repeated pass differs in none."""

SIZES = (1.0, 30.0, 1000.0)
"""Noise of growing size is tried, in units of 1 + the values' spread: small weights hide a small one."""


@dataclass(frozen=True)
class Liveness:
    """What was measured of one site: "live" (an edit moves the logits), "read-only" (it fires and an edit changes
    nothing), or "absent"; the reason; and by how many roundings noise there moved the logits."""

    site: str
    layer: int | None
    status: Literal["live", "read-only", "absent"]
    reason: str
    moved: float = 0.0


_known: WeakKeyDictionary[Any, dict[tuple, Liveness]] = WeakKeyDictionary()


def probe(model: Any) -> list[Liveness]:
    """Every site of a model in every layer, measured on its example batch: noise there, and the identity.

    model: an own one, one made by `wrap`, or what `wrap` takes.

    >>> from workbench import ModelConfig, Transformer
    >>> found = probe(Transformer(ModelConfig(d_vocab=5, n_ctx=4, d_model=8, n_layers=1, n_heads=2), seed=0))
    >>> {one.status for one in found}
    {'live'}
    """
    if not hasattr(model, "sees"):
        from workbench.models.bridge import wrap

        model = wrap(model)
    return [measured(model, key) for key in _keys(model)]


def _keys(model: Any) -> Iterator[Key]:
    single = "" in model.parts
    for site in SITES.values():
        if not site.layered and single:
            yield site.name, None
    for part, shape in model.parts.items():
        for layer in range(shape.n_layers):
            for site in SITES.values():
                if site.layered and (part != "cross" or site.name in CROSS):
                    yield in_part(part, site.name), layer


def measured(model: Any, key: Key) -> Liveness:
    """The liveness of one site; measured once, and again when hooks that are not ours come or go."""
    known = _known.setdefault(model, {})
    state = (key, _hooks_of_others(model), next(model.parameters()).dtype)
    if state not in known:
        known[state] = _measure(model, key)
    return known[state]


def _hooks_of_others(model: Any) -> tuple[Any, ...]:
    """By the numbers that PyTorch gives hooks, which never come again, and the forwards that were put in place of a
    module's own."""
    modules = list(model.modules())
    hooks = [(n, number) for n, m in enumerate(modules) for kind in _kinds_of_hooks(m) for number in kind]
    everywhere = [*module_hooks._global_forward_hooks, *module_hooks._global_forward_pre_hooks]
    return (*hooks, *everywhere, *(m.__dict__["forward"] for m in modules if "forward" in m.__dict__))


def _kinds_of_hooks(module: Any) -> tuple[Any, Any]:
    return module._forward_hooks, module._forward_pre_hooks


def _measure(model: Any, key: Key) -> Liveness:
    try:
        hook_point(model, *key)
    except KeyError as error:
        return Liveness(*key, "absent", str(error.args[0]))
    example = example_of(model)
    fired = 0

    def same(tensor: Tensor) -> Tensor:
        nonlocal fired
        fired += 1
        return tensor.clone()

    with evaluating(model), torch.no_grad():
        clean = model.logits(example, None)
        with installed(model, {}, {key: same}):
            repeated = model.logits(example, None)
        if fired != 1:
            return Liveness(*key, "absent", f"it fired {fired} times in a pass, not once")
        if not torch.equal(repeated, clean):
            return Liveness(*key, "read-only", "handing back the same values changed the logits: it is not the tensor")
        rounding = torch.finfo(clean.dtype).eps * max(float(clean.abs().max()), torch.finfo(clean.dtype).tiny)
        moved, factor = 0.0, FACTORS[clean.dtype]
        for size in SIZES:
            with installed(model, {}, {key: partial(_noisy, bare=split(key[0])[1], size=size)}):
                noisy = model.logits(example, None)
            moved = max(moved, float((noisy - clean).abs().nan_to_num(torch.inf).max()) / rounding)
            if moved > factor:
                break
    said = f"noise {size:g} times as large as the values moved the logits by {moved:.3g} roundings"
    if moved > factor:
        return Liveness(*key, "live", said, moved)
    return Liveness(*key, "read-only", f"{said} at most; {factor} tell an effect from rounding", moved)


def check_others(model: Any, batch: Batch, edits: Sequence[Edit], chunk_size: int) -> None:
    """Raises InertIntervention where hooks that are not ours throw an edit away: noise where the edit acts moves the
    logits of some example without those hooks, and not with them."""
    if not any(hooks for module in model.inner.modules() for hooks in _kinds_of_hooks(module)):
        return
    for start in range(0, len(batch), chunk_size):
        examples = slice(start, min(start + chunk_size, len(batch)))
        part = batch.select(examples)
        for edit in edits:
            change = partial(_noisy_at, edit=edit, examples=examples)
            with evaluating(model), torch.no_grad():
                lost = ~_moved(model, part, edit.key, change)
                with without_hooks(model.inner):
                    lost &= _moved(model, part, edit.key, change)
            if bool(lost.any()):
                raise InertIntervention(
                    f"{edit.label}: a hook that is not ours throws the edit away, in {int(lost.sum())} examples: noise "
                    "there moves nothing with that hook, and the logits without it. Remove the hook, or the edit"
                )


def _moved(model: Any, batch: Batch, key: Key, change: Callable[[Tensor], Tensor]) -> Tensor:
    """In which examples [batch] a change of a site changes the logits."""
    clean = model.logits(batch, None)
    with installed(model, {}, {key: change}):
        return (model.logits(batch, None) != clean).flatten(1).any(1)


def _noisy_at(tensor: Tensor, edit: Edit, examples: slice) -> Tensor:
    """Noise where an edit acts, in the heads that it names."""
    noisy = _noisy(tensor, split(edit.site)[1], 1.0)
    if edit.selected is None:
        return noisy

    def change(target: Tensor, selected: Tensor, by_head: Tensor) -> Tensor:
        if selected.ndim == 3:
            return torch.where(selected[:, None], by_head.movedim(2, 1), target)
        return torch.where(selected.reshape(*selected.shape, *(1,) * (target.ndim - 2)), by_head, target)

    by_head = noisy.movedim(1, 2) if edit.selected.ndim == 3 else noisy
    selected = edit.selected[examples]
    return replace(edit, selected=selected, change=change, tensors={"by_head": by_head}).on(tensor, slice(None), None)


def _noisy(tensor: Tensor, bare: str, size: float) -> Tensor:
    """Noise that varies along features and along sources, so many times as large as the values; hidden sources stay
    hidden."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    if bare == "pattern":
        return tensor + torch.where(tensor > 0, size * noise.abs(), 0.0)
    seen = tensor > HIDDEN
    spread = 1 + tensor[seen].std() if seen.sum() > 1 else 1.0
    return torch.where(seen, tensor + noise * spread * size, tensor)


def example_of(model: Any) -> Batch:
    """The batch on which a model's sites are probed: its own, or random tokens."""
    device = next(model.parameters()).device
    example = getattr(model, "example", None)
    if example is None:
        length = min(6, model.config.n_ctx)
        tokens = torch.randint(model.d_vocab, (2, length), generator=torch.Generator().manual_seed(0))
        example = Batch(tokens, torch.full_like(tokens, UNREAD))
    return example.to(device)


def saved(folder: Path | str) -> list[Liveness]:
    """`probe` of a saved model: a checkpoint of this workbench, or a Hugging Face model's folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; a saved model is a folder with model.json or config.json")
    if (folder / "model.json").is_file():
        from workbench.checkpoints import load

        return probe(load(folder).model)
    from workbench.models.pretrained import load_pretrained

    return probe(load_pretrained(folder))


def told(found: Sequence[Liveness]) -> str:
    """A line a site: in which layers it is live, read-only or absent, and why where it is not live; then the weakest
    live site."""
    groups: dict[tuple[str, str, str], list[int | None]] = {}
    for one in found:
        why = "" if one.status == "live" else _without_layer(one)
        groups.setdefault((one.site, one.status, why), []).append(one.layer)
    width = max(len(site) for site, _, _ in groups)
    lines = []
    for (site, status, why), layers in groups.items():
        where = "" if layers == [None] else f"layers {_ranges([n for n in layers if n is not None])}"
        lines.append(f"{site:<{width}}  {status:<9}  {where:<12}  {why}".rstrip())
    live = [one for one in found if one.status == "live"]
    if live:
        weakest = min(live, key=lambda one: one.moved)
        layer = "" if weakest.layer is None else f" of layer {weakest.layer}"
        lines.append(f"\nthe weakest live site is {weakest.site}{layer}: {weakest.reason}")
    return "\n".join(lines)


def _without_layer(one: Liveness) -> str:
    return one.reason.replace(f"blocks.{one.layer}.", "blocks.N.")


def _ranges(layers: Sequence[int]) -> str:
    """0, 1, 2, 5 as 0–2, 5."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs)
