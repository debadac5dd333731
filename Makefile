# `make demo` and `make test` set up everything they need by themselves, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench robustness clean

demo: $(VENV)/.base
	$(BIN)/consilience demo

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.speed

# All of it takes hours: choose with consilience bench robustness --help.
robustness: $(VENV)/.dev
	$(BIN)/consilience bench robustness --quick

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[figures]'
	touch $@

# torch first and pinned: resolved together with the rest, pip may pick another build.
$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.base

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
