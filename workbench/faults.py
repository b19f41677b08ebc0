"""Errors as one readable paragraph: what was asked, what there is, how to mend it."""

from __future__ import annotations

from typing import Any

OURS = ("workbench", "tasks", "analyses")


def paragraph(error: Exception) -> str | None:
    """The error's own words in one paragraph, or None where it is a defect and its traceback is the better answer.

    Readable are the kinds that are raised on purpose: ValueError, LookupError with a sentence (a bare missing key or an
    index out of range is a defect), OSError, and every error class that the workbench, a task or an analysis defines.

    >>> paragraph(KeyError("no role 'anwser'. There are: answer, last."))
    "no role 'anwser'. There are: answer, last."
    >>> paragraph(KeyError("answer")) is None
    True
    """
    if _is_validation(error):
        return _validation(error)
    if not _is_readable(error):
        return None
    words = error.args[0] if isinstance(error, KeyError) else error
    return " ".join(str(words).split())


def _is_readable(error: Exception) -> bool:
    if type(error).__module__.partition(".")[0] in OURS:
        return bool(error.args)
    if isinstance(error, LookupError):
        return not isinstance(error, IndexError) and bool(error.args) and " " in str(error.args[0])
    return isinstance(error, ValueError | OSError)


def _is_validation(error: Any) -> bool:
    """Whether it is pydantic's, told without importing pydantic."""
    return type(error).__name__ == "ValidationError" and hasattr(error, "errors") and hasattr(error, "title")


def _validation(error: Any) -> str:
    faults = []
    for fault in error.errors(include_url=False):
        where = ".".join(str(part) for part in fault["loc"])
        said = fault["msg"].removeprefix("Value error, ")
        got = "" if not where or isinstance(fault["input"], dict) else f" (got {fault['input']!r})"
        faults.append(f"{where}: {said}{got}" if where else said)
    title = "" if error.title.startswith("tagged-union") else f"{error.title}: "
    return " ".join(f"{title}{'; '.join(faults)}".split())
