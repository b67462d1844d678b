# Everything runs in .venv, which these targets make by themselves. Needs Python 3.11, gcc, make.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# Test files that run side by side; tests start up to four processes of one thread each.
WORKERS ?= 2
# They measure times, which hold where nothing else of ours runs.
TIMED := tests/runtime/test_watchdog.py tests/benchmarks/test_emulated.py
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

demo: .venv/demo-installed  ## train a small video model on real clips, in minutes
	$(BIN)/arachne demo

check: lint types imports test  ## everything that must pass before a change lands

test: .venv/dev-installed  ## the tests, on CPU
	$(BIN)/python -m pytest -q -m "not slow and not gpu" -n $(WORKERS) --dist loadfile \
		$(addprefix --ignore=,$(TIMED))
	$(BIN)/python -m pytest -q -m "not slow and not gpu" $(TIMED)

test-slow: .venv/dev-installed  ## tests that take minutes each
	$(BIN)/python -m pytest -q -m "slow and not gpu"

lint: .venv/dev-installed  ## format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/dev-installed  ## static types
	$(BIN)/pyright

imports: .venv/dev-installed  ## rooms import downwards only
	$(BIN)/lint-imports

fix: .venv/dev-installed  ## format, and apply the safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: .venv/dev-installed  ## rewrite the golden plans after an intended change
	ARACHNE_WRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/planner -k golden

clean:  ## remove the environment and what tools cache
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch first, by its exact version: pip then takes a CPU build where one is offered.
.venv/torch-installed: constraints.txt | .venv/bin/python
	$(INSTALL) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	@touch $@

.venv/demo-installed: pyproject.toml .venv/torch-installed
	$(INSTALL) --editable '.[demo]'
	@touch $@

.venv/dev-installed: pyproject.toml .venv/torch-installed
	$(INSTALL) --editable '.[dev]'
	@touch $@ .venv/demo-installed

.PHONY: help demo check test test-slow lint types imports fix golden clean
