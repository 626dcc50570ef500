# Tallyring: everything runs from one virtual environment, .venv, made on first use.
# Needs python3 (3.11 or newer, with venv), make, and a package index.
#
#   make demo [ARGS="--all --keep"]   three regions count together, lose a link, heal, and are checked
#   make test                         lint and types, then the whole test suite
#   make soak [MINUTES=10 ARGS="--seed 1000"]   the simulator, seed after seed, until time is up
#   make bench [ARGS=...]             ratios beside Valkey or Redis on this machine
#   make lint                         ruff and mypy only
#   make clean                        remove caches and build products (distclean: .venv too)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
MINUTES ?= 10

# Tests share nothing but the processor (own folders, own ports), so they run in two processes.
# PYTEST_WORKERS=0 runs them in this one, for a debugger; PYTEST_ARGS selects tests.
PYTEST_WORKERS ?= 2
PYTEST_ARGS ?=

SOURCES = $(wildcard agent cluster bench tests)

# Older releases of pip ignore this; newer ones pin the build back end with it.
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test bench soak lint format clean distclean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(STAMP)
	$(BIN)/tallyring demo $(ARGS)

test: lint
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) $(PYTEST_ARGS)

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

soak: $(STAMP)
	$(BIN)/tallyring simulate --soak $(MINUTES) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy $(SOURCES)

format: $(STAMP)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# An environment that works is kept, whoever made it; pip then only adds what is missing.
# The stamp is written last, so an installation that was interrupted is done again.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python && $(BIN)/python -c '' || { \
	  command -v $(PYTHON) >/dev/null || { \
	    echo "error: $(PYTHON) is not on the PATH; install Python 3.11 or newer, or: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: Tallyring needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }; \
	  $(PYTHON) -m venv $(VENV) || { \
	    echo "error: $(PYTHON) can't make a virtual environment. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(VENV) has $$($(BIN)/python --version 2>&1), Tallyring needs 3.11 or newer: make distclean, then make PYTHON=python3.12" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	@touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find agent cluster bench tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV)
