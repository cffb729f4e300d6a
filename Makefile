# Two commands for a fresh Linux machine with Python 3.11+ and g++:
#   make demo   creates .venv, installs gyrator and runs the demo
#   make test   installs what the tests need and runs all that this machine can run

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
JOBS   ?= 2

PY     := $(VENV)/bin/python
STAMPS := $(VENV)/.gyrator

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint format docs bench report clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(PY):
	@$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] < (3, 14), \
	  "Python 3.11 to 3.13 is needed, and this is " + sys.version.split()[0] + "; try make PYTHON=python3.12"'
	$(PYTHON) -m venv $(VENV)

# An installed torch is kept; otherwise the version that the project is tested with is installed.
$(STAMPS)-base: pyproject.toml | $(PY)
	@$(PY) -c 'import torch' 2>/dev/null || $(PY) -m pip install --quiet '$(TORCH)'
	$(PY) -m pip install --quiet --editable .
	@touch $@

$(STAMPS)-test: pyproject.toml | $(STAMPS)-base
	$(PY) -m pip install --quiet --editable '.[test]'
	@touch $@

$(STAMPS)-dev: pyproject.toml | $(STAMPS)-test
	$(PY) -m pip install --quiet --editable '.[dev]'
	@touch $@

install: $(STAMPS)-base  ## create .venv and install gyrator into it

demo: $(STAMPS)-base  ## a transformer in eager and gyrator: times, memory, errors
	$(PY) -m gyrator demo $(ARGS)

test: $(STAMPS)-test  ## all tests that this machine can run
	$(PY) -m pytest -n $(JOBS) --dist loadfile $(ARGS)

lint: $(STAMPS)-dev  ## style and types
	$(PY) -m ruff format --check src tests benchmarks tools
	$(PY) -m ruff check src tests benchmarks tools
	$(PY) -m mypy

format: $(STAMPS)-dev  ## rewrite to the project's style
	$(PY) -m ruff format src tests benchmarks tools
	$(PY) -m ruff check --fix src tests benchmarks tools

docs: $(STAMPS)-base  ## regenerate docs/config.md, docs/measured.md and the README's table
	$(PY) -m tests.config_page > docs/config.md
	$(PY) -m benchmarks.readme_table

bench: $(STAMPS)-base  ## benchmarks with peers side by side
	$(PY) -m pip install --quiet --editable '.[bench]'
	$(PY) -m gyrator bench $(ARGS)

report: $(STAMPS)-base  ## sizes and import order
	$(PY) -m tests.structure

clean:  ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
