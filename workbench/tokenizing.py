"""Texts to tokens and the characters that each stands for, by any tokenizer that tells; it is left as it was."""

from __future__ import annotations

import json
from itertools import compress
from typing import Any

from workbench.spans import Line, short, whole

_SPACES = "▁Ġ "
"""How tokenizers write a space inside a token."""


def lines_of(tokenizer: Any, texts: list[str], special: bool, vocabulary: tuple[str, ...]) -> list[Line]:
    lines, unknown = [], unknown_ids(tokenizer)
    # Where a tokenizer has no limit, this is 10³⁰.
    limit = getattr(tokenizer, "model_max_length", None)
    for index, (text, (ids, spans)) in enumerate(zip(texts, encode(tokenizer, texts, special), strict=True)):
        tokens = [vocabulary[token] if token < len(vocabulary) else "" for token in ids]
        cores = [_core(text, token, *span) for token, span in zip(tokens, spans, strict=True)]
        for token, known, span in zip(ids, tokens, cores, strict=True):
            _check_offsets(index, text, known, span, token in unknown)
        lines.append(Line(index, text, ids, spans, cores))
        if not ids:
            raise ValueError(f"{lines[-1]} has no tokens; leave it out")
        if limit and len(ids) > limit:
            raise ValueError(
                f"{lines[-1]} has {len(ids)} tokens; the tokenizer's model_max_length is {limit}. "
                "Shorten it: nothing is truncated here"
            )
    return lines


def encode(
    tokenizer: Any, texts: list[str], special: bool, name: str = "text"
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """For each text its token ids and, for each token, the characters it stands for."""
    if callable(tokenizer):
        out = _called(tokenizer, texts, special)
        return list(zip(map(list, out["input_ids"]), map(list, out["offset_mapping"]), strict=True))
    if not hasattr(tokenizer, "encode_batch"):
        raise TypeError(_no_offsets(tokenizer))
    encoded = []
    for index, encoding in enumerate(tokenizer.encode_batch(texts, add_special_tokens=special)):
        if encoding.overflowing:
            raise ValueError(
                f"{name} {index} {short(texts[index])} is cut short by the tokenizer's truncation, to "
                f"{tokenizer.truncation['max_length']} tokens. "
                "Shorten it, or call tokenizer.no_truncation()"
            )
        # Where the tokenizer pads, its padding is dropped again: the batch has its own.
        kept = encoding.attention_mask
        encoded.append((list(compress(encoding.ids, kept)), list(compress(encoding.offsets, kept))))
    return encoded


def _called(tokenizer: Any, texts: list[str], special: bool) -> Any:
    if getattr(tokenizer, "is_fast", True) is False:
        raise TypeError(_no_offsets(tokenizer))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    kept = backend and (backend.padding, backend.truncation, backend.encode_special_tokens)
    options = {"add_special_tokens": special, "padding": False, "truncation": False}
    try:
        out = tokenizer(texts, return_offsets_mapping=True, **options)
    except (NotImplementedError, TypeError, ValueError) as error:
        if "offset" not in str(error):
            raise
        raise TypeError(_no_offsets(tokenizer)) from error
    finally:
        # A call with padding=False switches the backend's own padding and truncation off for good.
        if backend and kept:
            if kept[0]:
                backend.enable_padding(**kept[0])
            if kept[1]:
                backend.enable_truncation(**kept[1])
            backend.encode_special_tokens = kept[2]
    if "offset_mapping" not in out:
        raise TypeError(_no_offsets(tokenizer))
    return out


def _no_offsets(tokenizer: Any) -> str:
    return (
        "roles are found by the characters of each token (return_offsets_mapping=True), and "
        f"{type(tokenizer).__name__} does not give them. Use a fast tokenizer (AutoTokenizer.from_pretrained(..., "
        "use_fast=True)) or a tokenizers.Tokenizer"
    )


def _check_offsets(index: int, text: str, token: str, span: tuple[int, int], unknown: bool) -> None:
    """Raises ValueError where a plain token stands, by the tokenizer's word, for other plain letters: some tokenizers
    count wrongly behind characters that they drop."""
    said, there = token.strip(_SPACES).removeprefix("##"), text[slice(*span)].strip()
    plain = all(part.isascii() and part.isalnum() for part in (said, there))
    if plain and not unknown and said.casefold() != there.casefold():
        raise ValueError(
            f"text {index} {short(text)}: the tokenizer says that its token {token!r} stands for {there!r}, which it "
            "does not: it counts characters wrongly there, and roles would land on other tokens. Leave out the "
            "characters that it does not know"
        )


def _core(text: str, token: str, start: int, end: int) -> tuple[int, int]:
    inner = text[start:end]
    if not inner.strip():
        return start, end
    # A space that the tokenizer puts before a text is said to stand for the first letter; it does not.
    if token and not token.strip(_SPACES) and inner.strip(_SPACES):
        return start, start
    return start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())


def vocabulary_of(tokenizer: Any) -> tuple[str, ...]:
    ids = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    words = list(map(str, range(max(ids.values(), default=-1) + 1)))
    for word, token in ids.items():
        words[token] = word
    return tuple(words)


def pad_id(tokenizer: Any) -> int:
    """Any token will do, since padding is never valid; a model must only be able to embed it."""
    for name in ("pad_token_id", "eos_token_id"):
        if whole(getattr(tokenizer, name, None)):
            return int(getattr(tokenizer, name))
    return (getattr(tokenizer, "padding", None) or {"pad_id": 0})["pad_id"]


def unknown_ids(tokenizer: Any) -> set[int]:
    """The ids by which the tokenizer says that it does not know a word, where it tells: its own, and its model's."""
    found: set[int | None] = {getattr(tokenizer, "unk_token_id", None)}
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str") and hasattr(backend, "token_to_id"):
        model = json.loads(backend.to_str())["model"]
        found |= {model.get("unk_id")}
        found |= {backend.token_to_id(model["unk_token"])} if isinstance(model.get("unk_token"), str) else set()
    return {token for token in found if token is not None}
