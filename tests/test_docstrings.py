"""Every example in a docstring runs and gives what it says."""

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("workbench", "tasks", "analyses")
FLAGS = doctest.NORMALIZE_WHITESPACE


def modules():
    for package in PACKAGES:
        yield package
        found = importlib.import_module(package)
        yield from (module.name for module in pkgutil.walk_packages(found.__path__, prefix=f"{package}."))


@pytest.mark.parametrize("name", list(modules()))
def test_the_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0


def test_a_wrong_example_is_found():
    def broken():
        """
        >>> 1 + 1
        3
        """

    found = doctest.DocTestFinder().find(broken, "broken", globs={})
    runner = doctest.DocTestRunner(verbose=False)
    assert sum(runner.run(test, out=lambda _: None).failed for test in found) == 1


def test_the_public_names_with_an_example_are_many():
    examples = sum(
        bool(test.examples)
        for name in modules()
        for test in doctest.DocTestFinder().find(importlib.import_module(name))
    )
    assert examples >= 20
