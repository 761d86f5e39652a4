# Everything a contributor runs; `make` alone lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

$(VENV)/.stamp-venv:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "No $(PYTHON) found: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Lien needs Python 3.11 or newer, and $(PYTHON) is `$(PYTHON) -V 2>&1`." >&2; \
	  echo "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Enough to run Lien itself: no PostgreSQL driver, no development tools.
$(VENV)/.stamp-demo: pyproject.toml | $(VENV)/.stamp-venv
	@echo "Installing lien into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# Everything; pip is upgraded first because only a recent one knows --group.
$(VENV)/.stamp: pyproject.toml | $(VENV)/.stamp-venv
	@echo "Installing lien and its development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable '.[postgres]' --group dev
	@touch $(VENV)/.stamp-demo $@

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.stamp-demo ## see Lien keep its promises, on SQLite, in under a minute
	@$(BIN)/lien demo

.PHONY: test
test: $(VENV)/.stamp ## the tests to run before each commit
	@$(BIN)/pytest tests -m "not full" -n 2 --quiet

.PHONY: test-full
test-full: $(VENV)/.stamp ## the slow tests
	@$(BIN)/pytest tests -m full --quiet

.PHONY: lint
lint: $(VENV)/.stamp ## style, types, layers, SQL against the state machine
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "Run $(BIN)/ruff format . to lay these files out." >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary $(wildcard src tests/typing)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/check_sql.py
	@$(BIN)/python tools/draw_machine.py --check

.PHONY: bench
bench: $(VENV)/.stamp ## measure the common paths
	@$(BIN)/python -m bench

.PHONY: bench-full
bench-full: $(VENV)/.stamp ## measure with more runs and more jobs
	@$(BIN)/python -m bench --full

.PHONY: chaos
chaos: $(VENV)/.stamp ## kill workers and databases while jobs run, then check every job's history
	@$(BIN)/python -m chaos

.PHONY: chaos-full
chaos-full: $(VENV)/.stamp ## the same for longer: hundreds of kills, tens of thousands of jobs
	@$(BIN)/python -m chaos --full

.PHONY: docs
docs: $(VENV)/.stamp ## run every example of the documentation
	@$(BIN)/pytest docs README.md

.PHONY: clean
clean: ## remove the environment and every cache
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
