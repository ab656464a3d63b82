# The same commands for people and for CI. `make demo` needs Python 3.11-3.13 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps

.PHONY: help demo test quick lint clean

help:
	@echo "make demo    install, and lip-sync a built-in clip to demo/out.mp4"
	@echo "make test    everything that CI checks: lint, types, import rules, tests"
	@echo "make quick   lint and the tests that take under a minute"
	@echo "make clean   remove what these targets made"

$(STAMPS)/run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@mkdir -p $(STAMPS) && touch $@

# torch is pinned in the `export` extra, which the tests need to make their bundles.
$(STAMPS)/dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[export,dev]"
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/run

demo: $(STAMPS)/run
	$(BIN)/latentsync-trt demo --out demo

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest

quick: lint
	$(BIN)/pytest -m "not slow"

clean:
	rm -rf $(VENV) demo build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
