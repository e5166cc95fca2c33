# `make` lists what there is. Everything runs in $(VENV), which `make setup` fills.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

# What the installed package is made of: when one of these changes, it is installed anew.
SOURCES := $(shell find src csrc -type f \( -name '*.py' -o -name '*.cpp' -o -name '*.hpp' \
             -o -name '*.h' -o -name 'py.typed' -o -path '*/assets/*' \) 2>/dev/null) \
           pyproject.toml CMakeLists.txt README.md LICENSE
CXX_SOURCES := $(shell find csrc fuzz -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' \) \
                 2>/dev/null)

.PHONY: help setup demo test quick browser-test lint docs bench programs gpu-check exhaustive pool-check fuzz dev clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.encke-installed ## virtual environment with torch, the package and the test tools

demo: setup ## train a network in three ways; a table, and report.html
	$(BIN)/encke study run examples/demo.toml --out results/demo --jobs 2
	$(BIN)/encke study report results/demo -o report.html --force

test: setup ## every test, on the package as installed
	$(BIN)/python -m pytest -n 2 tests

quick: setup ## the tests that take seconds
	$(BIN)/python -m pytest -n 2 -m "not slow" tests

browser-test: setup ## the report of a study in a real browser, where chromium can be had
	@$(BIN)/python -c "import playwright" 2>/dev/null || $(PIP) 'playwright>=1.40' \
	  || echo "browser-test: playwright cannot be installed here"
	@command -v chromium >/dev/null || [ -n "$${ENCKE_CHROMIUM:-}" ] \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	            chromium fonts-dejavu-core >/dev/null; } \
	  || echo "browser-test: no chromium, and it cannot be installed here (needs root and apt-get)"
	$(BIN)/python -m pytest -rs tests/study/report/test_browser.py \
	  || [ $$? = 5 ] # 5: nothing to run, because what it needs is not there

lint: setup ## ruff, mypy, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(CXX_SOURCES),$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES))

docs: $(VENV)/.encke-docs-installed ## the documentation as pages in site/; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs site
	@echo "open site/index.html"

bench: $(VENV)/.encke-bench-installed ## measure the codecs; writes benchmarks/results/codecs.csv
	$(BIN)/python benchmarks/codecs.py

programs: $(VENV)/.encke-programs-installed ## training programs of many kinds, plainly and with `encke run`
	$(BIN)/python benchmarks/programs/run.py

gpu-check: setup ## compile the GPU kernels for real targets; writes benchmarks/results/gpu_kernels.csv
	$(BIN)/python benchmarks/gpu_kernels.py

exhaustive: setup ## every float32 pattern through `fixed`, five ways; takes some minutes
	@$(BIN)/python -c "import cmake, nanobind, ninja" 2>/dev/null || $(PIP) cmake nanobind ninja
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake -S . -B build/check -G Ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake --build build/check --target exhaustive
	$(BIN)/python benchmarks/exhaustive.py build/check/exhaustive

pool-check: $(BIN)/python ## the memory pool at random, under ASan and UBSan, then under TSan
	@$(BIN)/python -c "import cmake, nanobind, ninja" 2>/dev/null || $(PIP) cmake nanobind ninja
	for kind in address,undefined thread; do \
	  PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake -S . -B build/pool-$${kind%%,*} -G Ninja \
	    -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DENCKE_POOL_SANITIZERS=$$kind >/dev/null; \
	  PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake --build build/pool-$${kind%%,*} \
	    --target pool_stress; \
	  build/pool-$${kind%%,*}/pool_stress; \
	done

fuzz: setup ## hostile streams against the decoders, with sanitizers
	VENV=$(VENV) bash fuzz/run.sh

dev: $(BIN)/python ## build the native modules into src/, for work with PYTHONPATH=src
	@$(BIN)/python -c "import cmake, nanobind, ninja" 2>/dev/null || $(PIP) cmake nanobind ninja
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake -S . -B build/dev -G Ninja \
	  -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake --build build/dev
	cp build/dev/_native*.so src/encke/ops/native/
	[ ! -e build/dev/_pool*.so ] || cp build/dev/_pool*.so src/encke/memory/

clean: ## remove what was built; the virtual environment stays
	rm -rf build dist site _skbuild .mypy_cache .ruff_cache .pytest_cache .hypothesis results/demo
	rm -f src/encke/ops/native/_native*.so src/encke/memory/_pool*.so $(VENV)/.encke-installed $(VENV)/.encke-bench-installed $(VENV)/.encke-docs-installed $(VENV)/.encke-programs-installed
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch-installed: constraints.txt | $(BIN)/python
	$(PIP) torch==2.13.0
	@touch $@

$(VENV)/.encke-installed: $(VENV)/.torch-installed $(SOURCES)
	$(PIP) '.[dev]'
	@touch $@

$(VENV)/.encke-bench-installed: $(VENV)/.encke-installed
	$(PIP) '.[bench]'
	@touch $@

$(VENV)/.encke-docs-installed: $(VENV)/.encke-installed
	$(PIP) '.[docs]'
	@touch $@

$(VENV)/.encke-programs-installed: $(VENV)/.encke-installed
	$(PIP) '.[programs]'
	@touch $@
