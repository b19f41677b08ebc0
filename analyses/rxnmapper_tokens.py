"""Reaction SMILES as the rxnmapper model's tokens: one regular expression over a vocabulary, and what is an atom."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["ARROW", "PATTERN", "SPECIAL", "arrow", "element", "read_vocabulary", "tokenizer", "words"]

PATTERN = r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
"""The published expression, as in `smiles_utils.py` of the wheel."""

ARROW = ">>"
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}

_SYMBOLS = """
    H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr
    Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir
    Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh
    Fl Mc Lv Ts Og
"""
_NUMBERS = {symbol: number for number, symbol in enumerate(_SYMBOLS.split(), start=1)}
_BARE = {"B", "C", "N", "O", "P", "S", "F", "Cl", "Br", "I", "b", "c", "n", "o", "p", "s"}
_BRACKET = re.compile(r"\[\d*(?P<symbol>[A-Z][a-z]?|se|as|te|si|[bcnops])@{0,2}(?:H\d*)?(?:[+-]\d*)?\]")


def words(text: str) -> list[str]:
    """A reaction SMILES cut into tokens, without [CLS] and [SEP].

    Raises ValueError naming what no token covers. (The published tokenizer leaves such characters out in silence.)

    >>> words("CCBr.[OH-]>>CCO")
    ['C', 'C', 'Br', '.', '[OH-]', '>>', 'C', 'C', 'O']
    """
    found = re.findall(PATTERN, text)
    if "".join(found) != text:
        left = re.sub(PATTERN, " ", text).split()
        raise ValueError(f"{text!r} holds {left}, which is no SMILES token; write it without blanks and comments")
    return found


def element(token: str) -> int:
    """The atomic number of the atom that a token is; 0 for bonds, brackets, digits, the wildcard and special tokens.

    >>> [element(token) for token in ("C", "c", "Cl", "[nH]", "[Na+]", "[C@@H]", "=", ">>", "[MASK]")]
    [6, 6, 17, 7, 11, 6, 0, 0, 0]
    """
    if token in _BARE:
        return _NUMBERS[token.capitalize()]
    found = _BRACKET.fullmatch(token)
    return _NUMBERS.get(found["symbol"].capitalize(), 0) if found else 0


def arrow(tokens: Sequence[str]) -> int:
    """The position of the one `>>`: reactants and reagents stand before it, products after.

    Raises ValueError where there is none or more than one, or nothing on one side of it.

    >>> arrow(words("CCBr.[OH-]>>CCO"))
    5
    """
    found = [pos for pos, token in enumerate(tokens) if token == ARROW]
    if len(found) != 1:
        raise ValueError(f"{''.join(tokens)!r} has {len(found)} {ARROW!r}; a reaction has one, reactants>>products")
    at = found[0]
    if not any(map(element, tokens[:at])) or not any(map(element, tokens[at + 1 :])):
        raise ValueError(f"{''.join(tokens)!r} has no atom on one side of {ARROW!r}")
    return at


def read_vocabulary(path: Path | str) -> tuple[str, ...]:
    """The word of each token id, from a file with one a line.

    Raises ValueError where a special token or `>>` is missing, or a word stands there twice.
    """
    vocabulary = tuple(Path(path).read_text(encoding="utf-8").splitlines())
    check_vocabulary(vocabulary, str(path))
    return vocabulary


def check_vocabulary(vocabulary: Sequence[str], where: str = "the vocabulary") -> None:
    """Raises ValueError where a special token or `>>` is missing, or a word stands there twice."""
    if missing := sorted({*SPECIAL.values(), ARROW} - set(vocabulary)):
        raise ValueError(f"{where} has no {', '.join(missing)}; the rxnmapper model's has them all")
    if len(set(vocabulary)) != len(vocabulary):
        twice = sorted({word for word in vocabulary if vocabulary.count(word) > 1})
        raise ValueError(f"{where} has {', '.join(twice)} more than once; a word has one id")


def tokenizer(vocabulary: Sequence[str]) -> Any:
    """A `transformers.PreTrainedTokenizerFast` of these words: [CLS] tokens [SEP], padded on the right, with offsets.

    What the expression does not match becomes [UNK]; the published tokenizer leaves it out in silence.

    Raises ValueError where a special token or `>>` is missing, or a word stands there twice.

    >>> cut = tokenizer(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ">>", "C", "O", "="))
    >>> cut("CO>>C=O").tokens()
    ['[CLS]', 'C', 'O', '>>', 'C', '=', 'O', '[SEP]']
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    check_vocabulary(vocabulary)
    ids = {word: number for number, word in enumerate(vocabulary)}
    cls, sep = SPECIAL["cls_token"], SPECIAL["sep_token"]
    fast = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL["unk_token"]))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    fast.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, ids[cls]), (sep, ids[sep])],
    )
    return PreTrainedTokenizerFast(tokenizer_object=fast, padding_side="right", **SPECIAL)
