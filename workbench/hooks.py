"""Where hooks stand, and how ours are put there and taken away; the user's own stay as they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from workbench.nearest import nearest
from workbench.sites import in_part, site, split

Key = tuple[str, int | None]
Hook = Callable[[Tensor], Tensor | None]


def hook_point(model: Any, name: str, layer: int | None) -> nn.Module:
    """The module at which a site's tensor passes. Raises KeyError naming near sites, or the layers there are."""
    row = site(name)
    if row.layered and layer is None:
        raise KeyError(f"site {name!r} stands in every layer: say ({name!r}, layer)")
    if not row.layered and layer is not None:
        raise KeyError(f"site {name!r} stands once in the model; it has no layer {layer}")
    part, _ = split(name)
    if row.layered and part not in model.parts:
        known = ", ".join(repr(in_part(one, split(name)[1])) for one in model.parts)
        raise KeyError(f"this model has no site {name!r}; its parts have: {known}")
    if layer is not None and not 0 <= layer < model.parts[part].n_layers:
        raise KeyError(
            f"no layer {layer} at site {name!r}: this model has layers 0 to {model.parts[part].n_layers - 1}"
        )
    hook_name = in_part(part, row.hook_name(layer))
    if hook_name not in model.hook_dict:
        why = getattr(model, "absent", {}).get(name)
        said = f"{why}." if why else nearest(hook_name, list(model.hook_dict))
        raise KeyError(f"this model has no site {name!r} ({hook_name}). {said}")
    return model.hook_dict[hook_name]


def has_other_hooks(model: Any, key: Key) -> bool:
    """Whether a hook stands at a site before ours are put there."""
    return bool(hook_point(model, *key)._forward_hooks)


@contextmanager
def installed(model: Any, first: Mapping[Key, Hook], last: Mapping[Key, Hook]) -> Iterator[None]:
    """Our hooks in force: `first` before every other hook at its site, `last` after. They go, whatever happens."""
    handles = []
    try:
        for hooks, prepend in ((first, True), (last, False)):
            for (name, layer), hook in hooks.items():
                point = hook_point(model, name, layer)
                handles.append(point.register_forward_hook(_plain(hook), prepend=prepend))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _plain(hook: Hook) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
    return lambda _module, _inputs, output: hook(output)


_locks: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
_making = threading.Lock()


@contextmanager
def alone(model: Any) -> Iterator[None]:
    """One thread at a time in a model: hooks and a switched attention belong to the model, not to a thread."""
    with _making:
        lock = _locks.setdefault(getattr(model, "inner", model), threading.RLock())
    with lock:
        yield


@contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """Every hook on every module of a model taken off, and put back as it was."""
    held = [(hooks, dict(hooks)) for m in model.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks)]
    try:
        for hooks, _ in held:
            hooks.clear()
        yield
    finally:
        for hooks, before in held:
            hooks.clear()
            hooks.update(before)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
