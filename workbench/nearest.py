"""A sentence for a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """What there is, and the nearest of it, case aside.

    >>> nearest("lokup", ["lookup", "copying"])
    'There are: lookup, copying. Did you mean lookup?'
    >>> nearest("anything", [])
    'There are: none.'
    """
    names = list(known)
    folded = {each.lower(): each for each in names}
    near = [folded[match] for match in difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.5)]
    return f"There are: {', '.join(names) or 'none'}." + (f" Did you mean {' or '.join(near)}?" if near else "")
