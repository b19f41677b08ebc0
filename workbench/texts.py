"""Batches from texts: which words of a text have which part in it, whatever tokens they fall into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch

from workbench.batch import UNREAD, Batch
from workbench.nearest import nearest
from workbench.spans import Every, Line, Nth, Same, Span, Tokens, one_for_each, positions, whole
from workbench.tokenizing import encode, lines_of, pad_id, unknown_ids, vocabulary_of

__all__ = ["Every", "Nth", "Same", "Span", "Tokens", "from_texts"]


def from_texts(
    tokenizer: Any,
    texts: Iterable[str],
    roles: Mapping[str, Any] | None = None,
    *,
    labels: Literal["next"] | Mapping[str, Any] | None = None,
    padding: Literal["left", "right"] = "right",
    add_special_tokens: bool = True,
) -> Batch:
    """The texts as a batch: tokens, labels and valid [batch pos], each role [batch pos], the tokenizer's vocabulary.

    tokenizer: a fast Hugging Face tokenizer, or a `tokenizers.Tokenizer`; it is left as it was.
    roles: name → where it is in each text, one for all texts or a list with one a text:
        "a substring" that occurs once · a compiled regular expression that matches once (its group, where it has
        exactly one) · `Span(start, end)` in characters · a token's index, or `Tokens(0, 2)` · `Nth("the", 1)` ·
        `Every("the")` · in a list also None, for a text in which the role is empty.
        Every token that shares a character with it is in the role. Whitespace at a token's edges does not count,
        unless only whitespace is asked for.
    labels: None, nothing is read · "next", the next token at every position but the last · role → answer, one for
        all texts or a list with one a text: a text of one token (" Mary" and "Mary" may be two different tokens) or
        a token id, read at the role's only position; `Same()`, the token itself at the role's positions (what was
        there before it was masked, in a batch whose tokens are masked afterwards); None, not read in that text.

    Raises ValueError, naming the text, where an occurrence is missing or ambiguous, a span or an index is out of
    range or covers no token, an answer is not one known token, or a text is longer than the tokenizer's limit;
    KeyError for an answer to a role that is not there; TypeError for what is no text, role, answer or tokenizer with
    offsets.

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> words = {word: k for k, word in enumerate("the dog saw a cat".split())}
    >>> tokenizer = Tokenizer(models.WordLevel(words))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> batch = from_texts(tokenizer, ["the dog saw the cat", "a cat saw"], {"subject": ["dog", "cat"], "last": -1},
    ...                    labels={"last": ["dog", "the"]})
    >>> print(batch.show(1))
    position  0    1    2    3    4
    token     a  cat  saw  the  the
    label     .    .  the    .    .
    padding   .    .    .    #    #
    subject   .    *    .    .    .
    last      .    .    *    .    .
    """
    texts = _checked(texts, roles, padding)
    vocabulary = vocabulary_of(tokenizer)
    lines = lines_of(tokenizer, texts, add_special_tokens, vocabulary)
    places = {}
    for name, given in (roles or {}).items():
        each = one_for_each(given, len(lines), f"role {name!r}", "Several tokens are Tokens(0, 2)")
        places[name] = [positions(line, f"role {name!r}", where) for line, where in zip(lines, each, strict=True)]
    masks = {
        name: [[pos in at for pos in range(len(line.ids))] for line, at in zip(lines, each, strict=True)]
        for name, each in places.items()
    }
    left = padding == "left"
    return Batch(
        tokens=_padded([line.ids for line in lines], pad_id(tokenizer), left),
        labels=_padded(answers(tokenizer, lines, places, labels, vocabulary), UNREAD, left),
        valid=_padded([[True] * len(line.ids) for line in lines], False, left),
        roles={name: _padded(rows, False, left) for name, rows in masks.items()},
        vocabulary=vocabulary,
    )


def _checked(texts: Iterable[str], roles: Mapping[str, Any] | None, padding: str) -> list[str]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise TypeError(f"texts is a list of strings; got {texts!r}. Say [text] for one text")
    listed = list(texts)
    if not listed:
        raise ValueError("texts is empty; a batch holds one text at least")
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise TypeError(f"text {index} is a {type(text).__name__}, {text!r}; texts is a list of strings")
    if roles is not None and not (isinstance(roles, Mapping) and all(isinstance(name, str) for name in roles)):
        raise TypeError(f'roles is a mapping of names; got {roles!r}. Say {{"subject": "the dog"}}')
    if padding not in ("left", "right"):
        raise ValueError(f"padding is 'left' or 'right'; got {padding!r}")
    return listed


def _padded(rows: list[list[Any]], fill: int | bool, left: bool) -> torch.Tensor:
    length = max(map(len, rows))
    gaps = [[fill] * (length - len(row)) for row in rows]
    return torch.tensor([gap + row if left else row + gap for row, gap in zip(rows, gaps, strict=True)])


def answers(
    tokenizer: Any, lines: list[Line], places: dict[str, list[list[int]]], labels: Any, vocabulary: tuple[str, ...]
) -> list[list[int]]:
    """What is read in each text, a label a token."""
    if isinstance(labels, str) and labels == "next":
        return [[*line.ids[1:], UNREAD] for line in lines]
    read = [[UNREAD] * len(line.ids) for line in lines]
    if labels is None:
        return read
    if not isinstance(labels, Mapping):
        raise ValueError(f"labels is None, 'next' or a mapping of roles to answers; got {labels!r}")
    for role, given in labels.items():
        if role not in places:
            raise KeyError(f"labels answers a role {role!r} that is not among the roles. {nearest(str(role), places)}")
        name = f"the answer at {role!r}"
        answers = one_for_each(given, len(lines), name, "One for all texts stands alone")
        known = _answer_ids(tokenizer, lines, name, answers, vocabulary)
        for line, at, answer, token in zip(lines, places[role], answers, known, strict=True):
            if answer is not None and not isinstance(answer, Same) and len(at) != 1:
                raise ValueError(
                    f"{name} is read at one position; the role has {len(at)} in {line}. Make it a role of one token, "
                    "such as -1, or list the answers with None for that text"
                )
            for pos in at if answer is not None else []:
                label = line.ids[pos] if token is None else token
                if read[line.index][pos] not in (UNREAD, label):
                    raise ValueError(
                        f"{name}: another role's answer is read at token {pos} of {line}; keep one of them"
                    )
                read[line.index][pos] = label
    return read


def _answer_ids(
    tokenizer: Any, lines: list[Line], name: str, answers: list[Any], vocabulary: tuple[str, ...]
) -> list[int | None]:
    """Each answer as a token id; None where it is none of its own."""
    texts = sorted({answer for answer in answers if isinstance(answer, str)})
    encoded = dict(zip(texts, encode(tokenizer, texts, False, "answer") if texts else [], strict=True))
    unknown = unknown_ids(tokenizer) if texts else set()
    found: list[int | None] = []
    for line, answer in zip(lines, answers, strict=True):
        if answer is None or isinstance(answer, Same):
            found.append(None)
        elif isinstance(answer, str):
            ids, spans = encoded[answer]
            start = len(answer) - len(answer.lstrip())
            whole_answer = not answer.strip() or any(
                first <= start and len(answer.rstrip()) <= end for first, end in spans
            )
            if len(ids) != 1 or ids[0] in unknown or not whole_answer:
                words = [vocabulary[token] if token < len(vocabulary) else str(token) for token in ids]
                raise ValueError(
                    f"{name}, {line}: {answer!r} is {words} to the tokenizer; an answer is one token it knows. "
                    "Mind the space before a word, or give a token id"
                )
            found.append(ids[0])
        elif whole(answer) and answer >= 0 and not 0 < len(vocabulary) <= answer:
            found.append(answer)
        else:
            raise ValueError(
                f"{name}, {line}: {answer!r} is no answer; an answer is a text of one token, a token id below "
                f"{len(vocabulary)}, Same(), or in a list None"
            )
    return found
