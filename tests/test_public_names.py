"""The package's public names: they are there, they are found late, and a wrong one is answered."""

import subprocess
import sys

import pytest

import workbench

HEAVY = ("torch", "pandas", "pydantic", "transformer_lens", "numpy", "scipy", "matplotlib")


@pytest.mark.parametrize("name", workbench.PUBLIC)
def test_public_name_resolves_to_what_its_module_defines(name):
    module = __import__(f"workbench.{workbench.PUBLIC[name]}", fromlist=[name])
    assert getattr(workbench, name) is getattr(module, name)


@pytest.mark.parametrize("name", workbench.PUBLIC)
def test_public_name_hides_no_module_of_the_package(name):
    homes = {home.partition(".")[0] for home in workbench.PUBLIC.values()}
    assert name not in homes


def test_listed_names_are_the_directory():
    assert set(workbench.__all__) == {*workbench.PUBLIC, "__version__"}
    assert set(workbench.__all__) <= set(dir(workbench))


def test_version_is_text():
    assert workbench.__version__[0].isdigit()


@pytest.mark.parametrize(("wrong", "meant"), [("kep_only", "keep_only"), ("edges", "Edges"), ("sumary", "summary")])
def test_unknown_name_is_answered_with_the_nearest(wrong, meant):
    with pytest.raises(AttributeError, match=rf"no public name '{wrong}'.*Did you mean .*\b{meant}\b"):
        getattr(workbench, wrong)


def test_unknown_name_cannot_be_imported():
    with pytest.raises(ImportError):
        exec("from workbench import nothing_like_it")


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, workbench; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_library_that_puts_a_method_on_every_object_hides_no_public_name():
    pytest.importorskip("nnsight", reason="nnsight, which puts `save` on every object, is not installed")
    code = "import nnsight, workbench; print('save' in dir(object), workbench.save.__module__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "workbench.checkpoints"]
