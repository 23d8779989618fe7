# Every target makes its own virtual environment in .venv on a machine that has only Python and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

OLDEST ?= $(PYTHON)
NEWEST ?= $(PYTHON)

.PHONY: help demo test slow flower processes federation lint docs bench build clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 8

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/ready ## FedMM beside its baselines on embedded digits: table, figure, TensorBoard; one to two minutes
	$(BIN)/fedlightning compare --config configs/demo.yaml

test: $(VENV)/ready ## the test suite but for slow tests, on all cores; under ten minutes on two
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore=tests/website -m 'not slow'

slow: $(VENV)/ready ## tests that train long or start programs: pages, experiments, several processes; six minutes on two
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore=tests/website -m 'slow and not flower'

.venv-flower/ready: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt \
		-e '.[all,flower]' pytest pytest-xdist scipy
	touch $@

flower: .venv-flower/ready ## tests of federations over Flower, in an environment of its own (Python 3.11 or newer)
	.venv-flower/bin/python -m pytest -n auto -m 'flower and not slow' tests/flower tests/cli tests/core/test_errors.py

processes: .venv-flower/ready ## tests of links, nodes and servers as processes over TLS, killed and resumed; minutes
	.venv-flower/bin/python -m pytest -m 'flower and slow' tests/flower tests/cli

federation: .venv-flower/ready ## three nodes over TLS; node, server and link are killed; ends where its simulation does
	.venv-flower/bin/python benchmarks/federation/demo.py

lint: $(VENV)/ready ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/docs-ready: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/docs-ready ## the documentation site and its tests, in build/site, without a warning
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python -m website.links build/site
	$(BIN)/python -m pytest -q tests/website

bench: $(VENV)/ready ## speed and memory beside a plain PyTorch loop: the standard job, eleven networks, one process or two, short rounds
	$(BIN)/python benchmarks/standard_job.py
	$(BIN)/python benchmarks/networks.py
	$(BIN)/python benchmarks/networks.py --unequal
	$(BIN)/python benchmarks/networks.py --clients 100 --rounds 3
	$(BIN)/python benchmarks/networks.py --accelerator gpu --clients 10 100
	$(BIN)/python benchmarks/all_cores.py
	$(BIN)/python benchmarks/all_cores.py --beside
	$(BIN)/python benchmarks/overhead.py

build: $(VENV)/ready ## wheel and sdist in dist/, tried with the oldest (OLDEST=python3.10) and newest dependencies
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(OLDEST) .ci/try_wheel.py dist/*.whl oldest build/oldest
	$(NEWEST) .ci/try_wheel.py dist/*.whl newest build/newest

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-flower build dist .pytest_cache .mypy_cache .ruff_cache
