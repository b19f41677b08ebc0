"""W&B runs opened and closed: quiet, beside any that are open, and nothing sent unless it is asked for."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.nearest import nearest

MODES = ("offline", "online", "disabled")

SERVICE = "WANDB_SERVICE"
"""Set by wandb while its service process runs."""


class NotLogged(RuntimeError):
    """Logging to W&B failed, or cannot work here. Results are not touched by it."""


def check_mode(mode: str) -> None:
    """Raises ValueError for a mode that there is not, `NotLogged` where it needs wandb and that is not installed.

    >>> check_mode("disabled")
    """
    if mode not in MODES:
        raise ValueError(f"no W&B mode {mode!r}. {nearest(mode, MODES)}")
    if mode != "disabled" and importlib.util.find_spec("wandb") is None:
        raise NotLogged("logging to Weights & Biases needs wandb: pip install 'attention-workbench[wandb]'")


@contextmanager
def session(home: Path) -> Iterator[Any]:
    """wandb, imported and quiet; its service process is ended where it was started for this.

    Its telemetry asks for a name server even offline, and it reads the environment for whether it may.
    """
    inside = home.resolve() / "wandb"
    inside.mkdir(parents=True, exist_ok=True)
    kept = dict(os.environ)
    said = {"WANDB_CACHE_DIR": str(inside / "cache"), "WANDB_DATA_DIR": str(inside / "data")}
    os.environ.update({**said, **kept, "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"})
    try:
        import wandb

        try:
            yield wandb
        except wandb.errors.Error as error:
            raise NotLogged(
                f"Weights & Biases did not take the run: {error}. Results are not touched; log them again"
            ) from error
        finally:
            if SERVICE not in kept:
                wandb.teardown()
    finally:
        for name in (*said, "WANDB_ERROR_REPORTING", "WANDB_SILENT"):
            os.environ.pop(name) if name not in kept else os.environ.update({name: kept[name]})


@contextmanager
def opened(wandb: Any, project: str, mode: str, home: Path, **about: Any) -> Iterator[Any]:
    """A W&B run beside any that are open, with nothing recorded of the console, the machine, the code or git."""
    settings = wandb.Settings(
        silent=True, console="off", host="", save_code=False, disable_code=True, disable_git=True,
        x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False,
    )  # fmt: skip
    where = str(home.resolve())
    run = wandb.init(project=project, mode=mode, dir=where, reinit="create_new", settings=settings, **about)
    try:
        yield run
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()
