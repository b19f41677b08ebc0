"""Which layers of a Hugging Face model need not be computed again, and why none may be left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules import module as everywhere

from workbench.hooks import Key
from workbench.sites import SITES, in_part, split

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, eq=False)
class Block:
    """A layer of a model: its part and number there, its module; ends: how many layers are computed when the last of
    its stack is; opens: whether it is the first of its stack; points: the hook points of its sites."""

    part: str
    layer: int
    module: nn.Module
    ends: int
    opens: bool
    points: tuple[nn.Module, ...]


def blocks_of(model: Any) -> list[Block]:
    """The layers of all stacks in the order in which they are computed, an encoder's first; none of a model that is not
    a wrapped Hugging Face model."""
    out: list[Block] = []
    for part, stack, modules in getattr(model, "stacks", ()):
        ends = len(out) + len(modules)
        parts = (part, "cross") if stack.cross is not None else (part,)
        for layer, module in enumerate(modules):
            names = [in_part(one, site.hook_name(layer)) for one in parts for site in SITES.values() if site.layered]
            points = tuple(model.hook_dict[name] for name in names if name in model.hook_dict)
            out.append(Block(part, layer, module, ends, not layer, points))
    return out


def reusable_from(model: Any, keys: Collection[Key]) -> int | None:
    """The first layer that has to be computed where nothing but these sites is edited, kept or watched: layers before
    it give what they gave without edits. None where all have to be.

    Layers are counted over all stacks in the order in which they are computed: an encoder's first, then the decoder's,
    whose cross-attention belongs to its layers. No keys: the number of layers, since none has to be computed.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from workbench import wrap
    >>> config = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0)
    >>> model = wrap(GPT2LMHeadModel(config))
    >>> reusable_from(model, [("scores", 2), ("resid_pre", 1)]), reusable_from(model, [("z", 0)])
    (1, None)
    """
    starts, total = dict[str, int](), 0
    for part, _, modules in getattr(model, "stacks", ()):
        starts[part] = total
        total += len(modules)
    first = total
    for name, layer in keys:
        part, _ = split(name)
        if layer is None or not starts:
            return None
        first = min(first, starts["decoder" if part == "cross" else part] + layer)
    return first or None


def refusal(model: Any) -> str:
    """Why no layer of a model may be left out of a pass; empty where layers may be.

    Asked in eval mode, before hooks of ours are installed: those of others may do more than their layer's output shows.

    >>> from workbench import ModelConfig, Transformer
    >>> refusal(Transformer(ModelConfig(d_vocab=5, n_ctx=4, d_model=8, n_layers=1, n_heads=2), seed=0))
    'Transformer is run whole: layers are left out of wrapped Hugging Face models only'
    """
    modules = [module for _, _, stack in getattr(model, "stacks", ()) for module in stack]
    if not modules:
        return f"{type(model).__name__} is run whole: layers are left out of wrapped Hugging Face models only"
    if len(set(map(id, modules))) < len(modules):
        return (
            f"{model.kind} is run whole: one module stands for several of its layers, which are told apart by counting "
            "its calls, and a layer left out is not counted"
        )
    return next(_in_the_way(model), "")


def _in_the_way(model: Any) -> Iterator[str]:
    whole = "the model is run whole"
    if any((everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks)):
        yield f"a hook on every module (torch's register_module_forward_hook) may not miss a layer; {whole}"
    # What a module has is read from its dictionary: this is asked once a pass, and passes may be short.
    for module in model.inner.modules():
        has = vars(module)
        if _hooked(has):
            yield f"a hook that is not ours, on {_name(model, module)}, may not miss a layer; {whole}"
        if "forward" in has or has.get("_compiled_call_impl") is not None:
            yield f"the forward of {_name(model, module)} was replaced or compiled; {whole}"
        if has["training"]:
            yield f"{_name(model, module)} is in training mode, in which passes may differ; {whole}"
    for name, point in model.hook_dict.items():
        if _hooked(vars(point)):
            yield f"a hook that is not ours, at {name}, may not miss a layer; {whole}"


def _hooked(has: dict[str, Any]) -> bool:
    """Whether others' hooks are among what a module has. transformers puts hooks of its own where it is asked for
    hidden states; they only collect, and nothing of ours reads what they do."""
    if not (has["_forward_hooks"] or has["_forward_pre_hooks"] or has["_backward_hooks"] or has["_backward_pre_hooks"]):
        return False
    hooks = [hook for kind in _HOOKS for hook in has[kind].values()]
    return any(getattr(hook, "__module__", "") != "transformers.utils.output_capturing" for hook in hooks)


def _name(model: Any, module: nn.Module) -> str:
    return next(name for name, one in model.inner.named_modules() if one is module) or "the model"
