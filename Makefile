# `make setup` needs Python 3.11 or newer and nothing else; another interpreter: `make setup PYTHON=python3.12`.
PYTHON ?= python3
PROCESSES ?= 2

BIN := .venv/bin
STAMP := .venv/.complete
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --benchmark-disable
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup test test-slow reproduce reproduce-all conformance rxnmapper mutants lint clean
.DELETE_ON_ERROR:

help:
	@echo "make setup      a virtual environment in .venv, every version as in .ci/constraints.txt"
	@echo "make test       the tests, without those marked slow"
	@echo "make test-slow  the tests marked slow"
	@echo "make reproduce  trains, intervenes, measures; writes the lecture's report to runs/reports"
	@echo "make reproduce-all  every analysis, 3 models of each kind, to runs/reports"
	@echo "make conformance  the battery of behaviours over this workbench and four other tools, to reports/conformance"
	@echo "make rxnmapper  fetches a published model, and cuts its heads, to reports/rxnmapper"
	@echo "make mutants    plants ten faults one by one in a copy of the source; a test must find each"
	@echo "make lint       ruff and mypy"
	@echo "make clean      removes .venv, caches and runs"

setup: $(STAMP)

# Torch first and by its exact version: a range would take whatever build is newest.
$(STAMP): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make setup PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt "$$(grep '^torch==' .ci/constraints.txt)"
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt -e '.[dev]'
	@touch $@

test: setup
	$(PYTEST) -m "not slow"

# Pytest says 5 where no test is marked slow.
test-slow: setup
	$(PYTEST) -m slow || [ $$? -eq 5 ]

reproduce: setup
	$(BIN)/workbench reproduce lecture --out runs/reports

reproduce-all: setup
	$(BIN)/workbench reproduce all --out runs/reports

conformance: setup
	$(BIN)/workbench reproduce conformance

rxnmapper: setup
	$(BIN)/python -m analyses.rxnmapper_model
	$(BIN)/workbench reproduce rxnmapper

mutants: setup
	$(BIN)/python -m tests.mutants

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks build dist runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
