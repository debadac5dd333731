# `make demo` and `make test` set up everything they need by themselves, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Not compiled ahead, which takes longer than all else: most of it is never imported. What is gets
# compiled then, once, if Python may write it down.
INSTALL := install --quiet --disable-pip-version-check --no-compile -c constraints.txt
PIP := $(BIN)/python -m pip $(INSTALL)
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint docs gallery dist fuzz bench robustness echarts browser clean

demo: $(VENV)/.base
	$(BIN)/consilience demo

# Three workers: federations of processes mostly wait. Lint and docs run meanwhile, and tell at the end. In a fresh
# checkout what the tests import is compiled once, and not by three workers at the same time.
test: $(VENV)/.dev browser
	@mkdir -p build
	@$(MAKE) --no-print-directory lint docs > build/lint-docs.log 2>&1 & beside=$$!; \
	  test -e tests/__pycache__ || $(BIN)/python -m pytest --collect-only -qq > /dev/null; \
	  $(BIN)/python -m pytest -n 3 --dist worksteal; tests=$$?; \
	  wait $$beside; beside=$$?; cat build/lint-docs.log; \
	  test $$tests = 0 && test $$beside = 0

# The daily loop: all that starts no other process and is quick (tests/slow.txt).
check: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not integration and not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/docs. A broken link or a public name that the reference lacks is an error.
docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W --keep-going -q -E docs build/docs

# The pictures of docs/gallery.md, on real MNIST: half a minute.
gallery: $(VENV)/.base
	$(BIN)/python docs/gallery

# Sdist, a wheel with the compiled loops and a pure one; each is installed afresh and tried.
dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python tools/dist.py dist

# Made-up input of every kind, some of it hostile: make fuzz SECONDS=600 SEED=3, CASES=100000.
SECONDS := 60
SEED := 0
fuzz: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m fuzz --seed $(SEED) --seconds $(if $(CASES),1e9 --cases $(CASES),$(SECONDS))

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.speed

# The claim in minutes: four methods under six attacks, data alike and one class per party. All of it takes
# hours: choose with consilience bench robustness --help.
robustness: $(VENV)/.dev
	$(BIN)/consilience bench robustness --methods mean,coordinate-median,multi-krum,pairwise --momentum 0.9 \
	  --attacks none,gaussian,label-flip,sign-flip,ipm-10,alie-1.5,mimic --heterogeneity iid,one-class --workers 2

# What the report's page needs of Apache ECharts, in one file. Needs npm; the lock file has the hashes.
ECHARTS := Apache ECharts 6.1.0, Apache-2.0; with zrender, (c) Baidu Inc., BSD-3-Clause; tslib, (c) Microsoft, 0BSD
VENDOR := src/consilience/report/vendor
echarts:
	cd tools/echarts && npm ci --ignore-scripts
	cd tools/echarts && npx --no-install esbuild entry.js --bundle --minify --target=es2020 --format=iife \
	  --global-name=echarts --legal-comments=none --banner:js="/* $(ECHARTS) */" \
	  --outfile=../../$(VENDOR)/echarts.js
	cat tools/echarts/node_modules/echarts/NOTICE tools/echarts/node_modules/echarts/LICENSE \
	  tools/echarts/node_modules/zrender/LICENSE tools/echarts/node_modules/tslib/LICENSE.txt > $(VENDOR)/LICENSE
	sha256sum --check tools/echarts/echarts.sha256

# The pip that Python brings along would be old, and compiled ahead. It serves where there is no other.
$(VENV)/bin/python:
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $@ $(INSTALL) pip 'setuptools>=77' 2> /dev/null \
	  || { $@ -m ensurepip > /dev/null && $(PIP) 'setuptools>=77'; } || { rm -rf $(VENV); exit 1; }

# What an editable installation is made from; all else it reads where it lies.
BUILT := pyproject.toml setup.py constraints.txt $(wildcard src/consilience/passes/*.[ch])

# As pip install -e '.[figures]' would, but the loops are compiled while the rest is fetched.
NEEDS := import tomllib; of = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  print("\n".join(of["dependencies"] + of["optional-dependencies"]["figures"]))
$(VENV)/.base: $(VENV)/bin/python $(BUILT)
	$(BIN)/python -c '$(NEEDS)' > $(VENV)/needs.txt
	$(PIP) --no-deps --no-build-isolation -e . & own=$$!; \
	  $(PIP) -r $(VENV)/needs.txt; rest=$$?; wait $$own && exit $$rest
	touch $@

# A browser for the tests of the page. Where it cannot be had they are skipped, and say so.
browser:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
	  && { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; }; } \
	  || echo "no chromium: the tests of the page will be skipped"

# torch first and pinned: resolved together with the rest, another build may be picked. A browser comes meanwhile.
$(VENV)/.dev: $(VENV)/bin/python $(BUILT)
	$(MAKE) --no-print-directory browser & browser=$$!; \
	  $(PIP) torch uv && $(BIN)/python tools/install.py -c constraints.txt -e '.[dev]'; rest=$$?; \
	  wait $$browser; exit $$rest
	touch $@ $(VENV)/.base

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build src/*.egg-info src/consilience/passes/*.so
