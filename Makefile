# Two commands set up everything they need on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 3 # one more than CI has processors: tests also wait for what they start
PYTHONS := benchmarks examples src tests # and nothing that somebody keeps beside them

.PHONY: demo test check lint format types lock clean

demo: $(VENV)/.ready ## play the example tasks with three agents and print the tables
	@sh examples/demo.sh $(CURDIR)/$(BIN)/forkyard

test: check ## everything CI runs: style, types, and the whole suite
	$(BIN)/pytest -n $(JOBS) --dist worksteal -q

check: lint types

lint: $(VENV)/.ready-dev
	$(BIN)/ruff format --check $(PYTHONS)
	$(BIN)/ruff check $(PYTHONS)

types: $(VENV)/.ready-dev
	$(BIN)/mypy

format: $(VENV)/.ready-dev
	$(BIN)/ruff format $(PYTHONS)
	$(BIN)/ruff check --fix $(PYTHONS)

lock: $(VENV)/.ready-dev ## resolve the dependencies again
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -o requirements.lock
	$(BIN)/uv pip compile -q pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -o requirements-dev.lock

# Debian keeps `venv` in a package of its own; it is the only system package ever needed, and only there.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Forkyard needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		echo "Installing python3-venv: this Python comes without ensurepip, which virtual environments need."; \
		if [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq python3-venv; \
		else echo "Run as root: apt-get install python3-venv" >&2; exit 1; fi; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: requirements.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/.ready-dev: requirements-dev.lock $(VENV)/.ready
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .pytest_cache .ruff_cache
