"""The textbook reactions on which the rxnmapper model is measured, from `rxnmapper_reactions.txt` beside this file."""

from __future__ import annotations

from pathlib import Path

__all__ = ["parse", "reactions"]

SOURCE = Path(__file__).with_suffix(".txt")


def reactions() -> dict[str, str]:
    """Every reaction: name → reaction SMILES, reactants and reagents before `>>`, products after, in the file's order.

    >>> reactions()["Finkelstein reaction"]
    'CC(C)=O.O=C(CCCCl)c1ccccc1.[I-].[Na+]>>O=C(CCCI)c1ccccc1'
    """
    return parse(SOURCE.read_text(encoding="utf-8"), SOURCE.name)


def parse(text: str, where: str = "the text") -> dict[str, str]:
    """Lines of `name | reaction SMILES` → name → reaction SMILES; empty lines and lines that begin with # are left out.

    Raises ValueError, with the line, for one without a name or a bar, and for a name or reaction that stands there
    twice.

    >>> parse("# mine\\nhydrolysis of bromoethane | CCBr.[OH-]>>CCO")
    {'hydrolysis of bromoethane': 'CCBr.[OH-]>>CCO'}
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, bar, reaction = (part.strip() for part in line.partition("|"))
        if not (name and bar and reaction):
            raise ValueError(f"{where}, line {number}: {line!r} is not `name | reaction SMILES`")
        if name in found or reaction in found.values():
            raise ValueError(f"{where}, line {number}: {line!r} has a name or a reaction that stands above already")
        found[name] = reaction
    return found
