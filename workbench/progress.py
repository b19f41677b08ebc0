"""Progress on a terminal: a bar, and one below it while it is there. Elsewhere nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tqdm import tqdm

from workbench.workers import unbroken


@contextmanager
def bar(name: str, unit: str, total: int, progress: bool) -> Iterator[Any]:
    """A bar that stays when it is done, or, below another one, is gone then. Ctrl-C leaves none half drawn: it waits
    until the bar is one that will be closed."""
    with ExitStack() as closing:
        with unbroken():
            drawn = tqdm(total=total, desc=name, unit=unit, leave=None, disable=None if progress else True)
            closing.enter_context(drawn)
        yield drawn
