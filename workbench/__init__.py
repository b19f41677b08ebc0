"""An instrument for one habit: say what a weight is evidence of, then test the rest.

The public names are listed here and loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

PUBLIC = {
    "Batch": "batch",
    "Edges": "locations",
    "Heads": "locations",
    "Stream": "locations",
    "Intervention": "interventions",
    "cut": "interventions",
    "keep_only": "interventions",
    "uniform": "interventions",
    "shuffle": "interventions",
    "scale": "interventions",
    "zero": "interventions",
    "mean": "interventions",
    "resample": "interventions",
    "patch": "interventions",
    "add": "interventions",
    "freeze": "interventions",
    "path": "interventions",
    "custom": "interventions",
    "top_source": "roles",
    "control_of": "roles",
    "direct": "conditions",
    "corrupted": "conditions",
    "run": "running",
    "run_each": "engine",
    "measure_each": "engine",
    "explain": "explaining",
    "record": "running",
    "generate": "generation",
    "derive": "patterns",
    "pattern_table": "patterns",
    "EmptyRow": "running",
    "InertIntervention": "running",
    "MissingExamples": "running",
    "edge_weights": "patterns",
    "Mask": "models.config",
    "ModelConfig": "models.config",
    "EncoderDecoderConfig": "models.config",
    "Transformer": "models.transformer",
    "EncoderDecoder": "models.encoder_decoder",
    "Span": "spans",
    "Tokens": "spans",
    "Nth": "spans",
    "Every": "spans",
    "Same": "spans",
    "load_pretrained": "models.pretrained",
    "wrap": "models.bridge",
    "Unsupported": "models.bridge",
    "probe": "liveness",
    "Recipe": "recipe",
    "train": "training",
    "train_many": "training",
    "train_each": "training",
    "load": "checkpoints",
    "save": "checkpoints",
    "normalised": "effects",
    "normalised_examples": "effects",
    "direct_against_total": "effects",
    "KEYS": "results",
    "summary": "results",
    "contrast": "results",
    "paired_tests": "results",
    "contrast_table": "page_contrasts",
    "Claim": "study",
    "judge": "study",
    "together": "study",
    "Study": "study",
    "Donor": "study",
    "Examples": "examples",
    "read_study": "study_file",
    "study_text": "study_file",
    "joined": "studies",
    "run_study": "studies",
    "run_declared": "studies",
    "grid": "grids",
    "sweep": "sweeping",
    "Store": "store",
    "log_study": "logging_to_wandb",
    "log_training": "logging_to_wandb",
}
"""Each public name and the module of this package that defines it. Metrics stay in `workbench.metrics`."""

__all__ = [*PUBLIC, "__version__"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in PUBLIC:
        from workbench.nearest import nearest

        raise AttributeError(f"workbench has no public name {name!r}. {nearest(name, PUBLIC)}")
    value = getattr(importlib.import_module(f"workbench.{PUBLIC[name]}"), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """The package, whose public names come before what other libraries put on every object (nnsight puts a `save`
    there, which would answer for ours)."""

    def __getattribute__(self, name: str) -> Any:
        known = super().__getattribute__("__dict__")
        if name in PUBLIC and name not in known:
            return __getattr__(name)
        return super().__getattribute__(name)


sys.modules[__name__].__class__ = _Package


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("attention-workbench")
    except metadata.PackageNotFoundError:
        return "0+unknown"
