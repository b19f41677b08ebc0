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
    """The declared models by label: trained, all that are missing at once where recipes agree, or loaded."""
    out: dict[str, Any] = {}
    for recipe, together in _by_recipe(declared).items():
        from workbench.recipe import Recipe
        from workbench.training import train_each

        made = Recipe.model_validate(dict(recipe))
        for seeds, labels in together.items():
            configs = {label: config_of(declared[label], task) for label in labels}
            out |= train_each(task, configs, made, seeds, home=home, progress=progress)
    for label, models in declared.items():
        if isinstance(models, Checkpoints):
            from workbench.checkpoints import load

            out[label] = [load(folder) for folder in models.folders]
        elif isinstance(models, Pretrained):
            from workbench.models.pretrained import load_pretrained

            out[label] = [load_pretrained(folder, place=home) for folder in models.folders]
    return {label: out[label] for label in declared}


def _by_recipe(declared: Mapping[str, Models]) -> dict[tuple, dict[tuple[int, ...], list[str]]]:
    """Recipe → seeds → labels of the models that are to be trained so."""
    out: dict[tuple, dict[tuple[int, ...], list[str]]] = {}
    for label, models in declared.items():
        if isinstance(models, Training):
            out.setdefault(tuple(sorted(models.recipe.items())), {}).setdefault(models.seeds, []).append(label)
    return out


def config_of(models: Models, task: Task) -> Any:
    """The configuration of models to be trained; vocabulary and length are the task's where they are left out."""
    from workbench.models.config import ModelConfig

    assert isinstance(models, Training)
    return ModelConfig.model_validate({"d_vocab": len(task.vocabulary), "n_ctx": task.length, **models.config})


def definitions_of(models: Training, task: Task) -> list[dict[str, Any]]:
    """What defines each of these models, known before it is trained."""
    from workbench.devices import choose
    from workbench.recipe import Recipe
    from workbench.training import definition

    where = choose("auto").type
    trainer: Any = "single" if where == "cpu" else "ensemble"
    recipe, config = Recipe.model_validate(models.recipe), config_of(models, task)
    return [definition(task, config, recipe, seed, trainer, where) for seed in models.seeds]
