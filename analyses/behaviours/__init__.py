"""Behaviours that tools of this kind get wrong: one executable check each."""

from analyses.behaviours.cases import Behaviour
from analyses.behaviours.hooks import HOOKS
from analyses.behaviours.masks import MASKS
from analyses.behaviours.numbers import NUMBERS
from analyses.behaviours.pictures import PICTURES
from analyses.behaviours.studies import STUDIES
from analyses.behaviours.visibility import VISIBILITY
from analyses.behaviours.wrong_tensors import WRONG_TENSORS

__all__ = ["BEHAVIOURS", "Behaviour"]

BEHAVIOURS: tuple[Behaviour, ...] = (
    *HOOKS, *MASKS, *VISIBILITY, *WRONG_TENSORS, *NUMBERS, *STUDIES, *PICTURES,
)  # fmt: skip
