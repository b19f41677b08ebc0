"""What holds in every test: one thread, no network, no screen, and the same examples again wherever CI is set."""

import os
import sys

import pytest
from hypothesis import settings
from jaxtyping import config, install_import_hook

# Set before torch, tokenizers or matplotlib are imported by anyone, so that no test has to import them for it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

settings.register_profile("workbench", deadline=None)
settings.register_profile("workbench-ci", deadline=None, derandomize=True)
settings.load_profile("workbench-ci" if os.environ.get("CI") else "workbench")


# Shapes written in these modules are checked at every call, in tests only, and there in those of what they compute: the
# others call the same functions hundreds of thousands of times, and see the errors that a user sees. Installed before
# any test imports them.
MODELS = ["attention", "masks", "positions", "layers", "stack", "transformer", "encoder_decoder"]
SHAPED = ["rows", "metrics", "roles", *(f"models.{name}" for name in MODELS)]
CHECKED = ["shapes", "model", "kinds", "kinds_in_training", "rows", "metrics", "more_metrics", "roles", "masks"]
CHECKED += ["oracle", "handmade", "interventions", "hooks", "running", "engine", "identities", "floor"]
install_import_hook([f"workbench.{name}" for name in SHAPED], "beartype.beartype")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    config.update("jaxtyping_disable", item.path.stem.removeprefix("test_") not in CHECKED)


@pytest.fixture(autouse=True)
def one_thread():
    """Torch on one thread, where it has been imported at all: tests share the cores, and sums keep their order."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
