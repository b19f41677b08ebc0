"""Attention on one example for the page: the recorded weights of each kind of model whose checkpoint is at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.anatomy import Sight
from workbench.checkpoints import key, load
from workbench.declared import Checkpoints, Models, Training, definitions_of
from workbench.holdings import place
from workbench.running import record
from workbench.sites import in_part
from workbench.study import Study

LEVELS = 20
"""Shades of a cell, from a weight of 0 to 1."""

MOST_CELLS = 8_000
"""Cells on a page: more make it slow on a phone. Heads that do not fit are counted, and named as left out."""

WRITTEN = 16
"""Most tokens with the weight written in every cell."""

RAMPS = {"light": ((255, 255, 255), (8, 48, 107)), "dark": ((29, 33, 40), (255, 214, 110))}
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Cell:
    """One edge: its weight as text, in hundredths, and its shade; all empty where the mask hides the source."""

    weight: str
    hundredths: str
    level: int | None


@dataclass(frozen=True)
class Grid:
    """One head: cells [source dest], and the words of both sides."""

    name: str
    sources: tuple[str, ...]
    dests: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def dense(self) -> bool:
        """Whether there are too many cells to write in."""
        return max(len(self.sources), len(self.dests)) > WRITTEN


@dataclass(frozen=True)
class Kind:
    """A kind of model: its label, which trained model is drawn, its grids, heads left out, or why there is none."""

    label: str
    about: str
    grids: tuple[Grid, ...]
    left_out: int
    why_not: str


@dataclass(frozen=True)
class Grids:
    """The grids by kind of model, on the study's first example; or why there are none."""

    kinds: tuple[Kind, ...]
    why_not: str


def grids(study: Study, task: Any | None, why: str, home: Path | str | None = None) -> Grids:
    """One example through one trained model of each kind. Nothing is trained: what is missing is said.

    task: the study's, or None, and `why` says why it is not there.
    """
    if task is None:
        return Grids((), why)
    if not study.models:
        return Grids((), "the study declares no models: they were handed to `run_study` from Python")
    batch = task.sample(study.n, study.data_seed).select(slice(0, 1))
    left, kinds = MOST_CELLS, []
    for label, models in study.models.items():
        kind, used = _kind(label, models, task, batch, home, left)
        kinds.append(kind)
        left -= used
    return Grids(tuple(kinds), "")


def _kind(label: str, models: Models, task: Any, batch: Any, home: Path | str | None, left: int) -> tuple[Kind, int]:
    try:
        model, about = _found(models, task, home)
        drawn = list(_heads(model, batch))
    except (OSError, ValueError, LookupError) as error:
        return Kind(label, "", (), 0, _why_not(error)), 0
    kept, used = [], 0
    for name, pattern, visible, sources, dests in drawn:
        if used + len(sources) * len(dests) > left:
            break
        used += len(sources) * len(dests)
        kept.append(Grid(name, sources, dests, _cells(pattern.tolist(), visible.tolist())))
    return Kind(label, about, tuple(kept), len(drawn) - len(kept), ""), used


class NotAtHand(LookupError):
    """No trained model of a kind is where it is looked for."""


def _why_not(error: Exception) -> str:
    """Why a model is not drawn. Other errors name folders of this machine, which are no part of a report."""
    if isinstance(error, NotAtHand):
        return str(error)
    return f"its model could not be read, or not on this task's examples ({type(error).__name__})"


def _found(models: Models, task: Any, home: Path | str | None) -> tuple[Any, str]:
    """The first trained model that is there, and what says which it is."""
    if isinstance(models, Training):
        folder = place(home) / "checkpoints"
        for seed, definition in zip(models.seeds, definitions_of(models, task, home=home), strict=True):
            if (folder / key(definition)).is_dir():
                return _loaded(folder / key(definition), f"model seed {seed}")
        raise NotAtHand("none of its checkpoints was in the folder of runs where this page was written")
    for number, name in enumerate(models.folders):
        if Path(name).is_dir():
            if isinstance(models, Checkpoints):
                return _loaded(Path(name), f"model {number}")
            from workbench.models.pretrained import load_pretrained

            return load_pretrained(name, place=home), f"model {number}"
    raise NotAtHand("none of the folders that the study names was there where this page was written")


def _loaded(folder: Path, name: str) -> tuple[Any, str]:
    trained = load(folder)
    return trained.model, f"{name}, weights {trained.about['weights_sha256'][:12]}"


def _heads(model: Any, batch: Any) -> Iterator[tuple[str, Any, Any, tuple[str, ...], tuple[str, ...]]]:
    """(name, pattern [source dest], visible [source dest], sources, dests) of every head."""
    batch = batch.to(next(model.parameters()).device)
    recording, sight = record(model, batch, ["pattern"]), Sight(model, batch)
    for part, shape in model.parts.items():
        readers, sources = batch.sides(part)
        for layer in range(shape.n_layers):
            visible = sight(part, layer)[0].cpu().T
            for head, pattern in enumerate(recording[in_part(part, "pattern"), layer][0].float().cpu()):
                yield in_part(part, f"L{layer}H{head}"), pattern.T, visible, _words(sources), _words(readers)


def _words(batch: Any) -> tuple[str, ...]:
    return tuple(batch.words(0))


def _cells(pattern: Sequence[Sequence[float]], visible: Sequence[Sequence[bool]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        tuple(_cell(weight) if seen else Cell("", "", None) for weight, seen in zip(*row, strict=True))
        for row in zip(pattern, visible, strict=True)
    )


def _cell(weight: float) -> Cell:
    return Cell(f"{weight:.4f}", f"{100 * weight:.0f}", round(LEVELS * min(max(weight, 0.0), 1.0)))


def shades() -> str:
    """The style rules of the cells' shades, in light and dark: on each, black or white text, whichever is clearer."""
    light, dark = ("\n".join(_rule(level, *RAMPS[name]) for level in range(LEVELS + 1)) for name in RAMPS)
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _rule(level: int, empty: Colour, full: Colour) -> str:
    ground = tuple(round(a + (b - a) * level / LEVELS) for a, b in zip(empty, full, strict=True))
    ink = "#000" if _luminance(ground) > 0.179 else "#fff"  # where both have a contrast of 4.58
    return f".w{level} {{ background: rgb{ground}; color: {ink}; }}"


def _luminance(colour: Sequence[int]) -> float:
    """Relative luminance (WCAG 2.2)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
