"""What a study declares to be run on: its task, and models to be trained, found on disk, or taken from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, field_validator

from workbench.locations import Value

if TYPE_CHECKING:
    from workbench.checkpoints import Trained
    from workbench.task import Task


class TaskOf(Value):
    """An installed task by name (`workbench tasks` lists them), with its arguments."""

    name: str
    arguments: Mapping[str, Any] = {}

    def made(self) -> Task:
        """The task. Raises LookupError for a name that is not installed, ValueError for wrong arguments."""
        from workbench.catalogue import load

        return load("task", self.name)(**self.arguments)


class Training(Value):
    """Models to be trained, one per seed: fields of `ModelConfig` (vocabulary and length are the task's where they are
    left out) and of `Recipe`."""

    kind: Literal["training"] = "training"
    config: Mapping[str, Any]
    recipe: Mapping[str, Any] = {}
    seeds: tuple[int, ...] = Field(min_length=1)

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> Any:
        """A whole number n means the seeds 0 to n − 1."""
        return tuple(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds


class Checkpoints(Value):
    """Models trained before: folders of checkpoints."""

    kind: Literal["checkpoints"] = "checkpoints"
    folders: tuple[str, ...] = Field(min_length=1)


class Pretrained(Value):
    """Models that others trained: folders with a Hugging Face model each."""

    kind: Literal["pretrained"] = "pretrained"
    folders: tuple[str, ...] = Field(min_length=1)


Models = Annotated[Training | Checkpoints | Pretrained, Discriminator("kind")]


def number_of(models: Models) -> int:
    """How many models are declared."""
    return len(models.seeds if isinstance(models, Training) else models.folders)


def models_of(
    declared: Mapping[str, Models], task: Task, *, home: Path | str | None = None, progress: bool = True
) -> dict[str, list[Trained]]:
    """The declared models by label: trained, all that are missing at once where recipes agree, or loaded.

    A model that is missing here, and there as another kind of machine trained it, is that one.
    """
    out: dict[str, Any] = {label: elsewhere(models, task, home) for label, models in declared.items()}
    for recipe, together in _by_recipe(declared, out).items():
        from workbench.recipe import Recipe
        from workbench.training import train_each

        made = Recipe.model_validate(dict(recipe))
        for seeds, labels in together.items():
            configs = {label: config_of(declared[label], task) for label in labels}
            for label, several in train_each(task, configs, made, seeds, home=home, progress=progress).items():
                found = {one.seed: one for one in [*out[label], *several]}
                out[label] = [found[seed] for seed in declared[label].seeds]  # type: ignore[union-attr]
    for label, models in declared.items():
        if isinstance(models, Checkpoints):
            from workbench.checkpoints import load

            out[label] = [load(folder) for folder in models.folders]
        elif isinstance(models, Pretrained):
            from workbench.models.pretrained import load_pretrained

            out[label] = [load_pretrained(folder, place=home) for folder in models.folders]
    return {label: out[label] for label in declared}


def _by_recipe(
    declared: Mapping[str, Models], there: Mapping[str, list[Trained]]
) -> dict[tuple, dict[tuple[int, ...], list[str]]]:
    """Recipe → seeds → labels of the models that are to be trained so, without those that are there."""
    out: dict[tuple, dict[tuple[int, ...], list[str]]] = {}
    for label, models in declared.items():
        if isinstance(models, Training):
            seeds = tuple(seed for seed in models.seeds if seed not in [one.seed for one in there[label]])
            if seeds:
                out.setdefault(tuple(sorted(models.recipe.items())), {}).setdefault(seeds, []).append(label)
    return out


def config_of(models: Models, task: Task) -> Any:
    """The configuration of models to be trained; vocabulary and length are the task's where they are left out."""
    from workbench.models.config import read_config

    assert isinstance(models, Training)
    told, words = models.config, len(task.vocabulary)
    if "encoder" in told and "decoder" in told:
        context = {"d_vocab": words, "n_ctx": getattr(task, "context_length", task.length)}
        decoder = {"d_vocab": words, "n_ctx": task.length, **told["decoder"]}
        return read_config({**told, "encoder": {**context, **told["encoder"]}, "decoder": decoder})
    patches = {"d_patch": task.d_patch} if hasattr(task, "d_patch") else {}
    return read_config({"d_vocab": words, "n_ctx": task.length, **patches, **told})


def definitions_of(models: Training, task: Task, *, home: Path | str | None = None) -> list[dict[str, Any]]:
    """What defines each of these models, known before it is trained: as this machine trains it, or, where only that is
    in `home`, as another kind of machine did."""
    from workbench import checkpoints, holdings

    place, out = holdings.place(home) / "checkpoints", []
    for seed in models.seeds:
        known = [_defined(models, task, seed, *kind) for kind in _kinds()]
        out.append(next((one for one in known if (place / checkpoints.key(one)).is_dir()), known[0]))
    return out


def trained_before(models: Training, task: Task, *, home: Path | str | None = None) -> int:
    """How many of these models are there already."""
    from workbench import checkpoints, holdings

    known = definitions_of(models, task, home=home)
    return sum((holdings.place(home) / "checkpoints" / checkpoints.key(one)).is_dir() for one in known)


def elsewhere(models: Models, task: Task, home: Path | str | None) -> list[Trained]:
    """Of these models, those that are in `home` only as another kind of machine trained them."""
    from workbench import checkpoints, holdings
    from workbench.training import found

    if not isinstance(models, Training):
        return []
    place, (trainer, device) = holdings.place(home) / "checkpoints", _kinds()[0]
    return [
        found(place / checkpoints.key(one), one)
        for one in definitions_of(models, task, home=home)
        if (one["trainer"], one["device"]) != (trainer, device)
    ]


KINDS = (("single", "cpu"), ("ensemble", "cuda"), ("ensemble", "mps"))
"""How models are trained, and on what: part of what a checkpoint is found by, since the weights differ in their last
bits."""


def _kinds() -> list[tuple[Any, str]]:
    """This machine's first."""
    from workbench.devices import choose

    where = choose("auto").type
    return sorted(KINDS, key=lambda kind: kind[1] != where)


def _defined(models: Training, task: Task, seed: int, trainer: Any, device: str) -> dict[str, Any]:
    from workbench.recipe import Recipe
    from workbench.training import definition

    return definition(task, config_of(models, task), Recipe.model_validate(models.recipe), seed, trainer, device)
