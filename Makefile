# Every target bootstraps .venv by itself: `make run` on a bare machine is enough. Nothing is fetched once installed.
#   make run · test · test-long · model · lint · schemas · bench · peers
# PYTHON=/path/to/python3.12 chooses an interpreter; else the first python3 that really runs and is >= 3.11 (pyenv leaves
# shims of versions that are not installed, so a name on PATH proves nothing).

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= $(shell for p in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)

PY := .venv/bin/python
STAMP_IN := pyproject.toml constraints.txt
PIP := $(PY) -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
export PYTHONUNBUFFERED := 1
export PYTHONDONTWRITEBYTECODE := # else every process of a suite of hundreds compiles all of it anew
ARGS ?=
JOBS ?= 4

.PHONY: help run test test-long model lint schemas bench peers clean

help:
	@echo "make run        five servers, Locust, 20 s of load, one verdict"
	@echo "make test       the whole suite (12 to 15 minutes)"
	@echo "make test-long  what takes hours"
	@echo "make model      Redlock in TLA+: what holds, and what breaks it (ten minutes; needs Java)"
	@echo "make lint       ruff, mypy --strict, import contracts"
	@echo "make schemas    the JSON Schemas of results, from their types"
	@echo "make bench      how close lockcore comes to the ceiling"
	@echo "make peers      other libraries' locks beside lockcore (25 minutes; at first installs them below .peers/)"
	@echo "ARGS='…' is passed on, e.g. make test ARGS='-k scenario'"

# A virtual environment knows its own path, so one that was moved or copied is built anew.
# setuptools stays inside: the editable install then needs no isolated build environment, hence no network.
.venv/.base: $(STAMP_IN)
	@if [ -z "$(PYTHON)" ]; then echo "lockbench needs Python >= 3.11 with venv and pip (Debian: apt install python3-venv); none was found on PATH. Say make PYTHON=/path/to/python3." >&2; exit 3; fi
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "PYTHON=$(PYTHON) does not run or is older than 3.11. Say make PYTHON=/path/to/python3.11 or newer." >&2; exit 3; fi
	@if [ ! -x $(PY) ] || [ "$$(cat .venv/.home 2>/dev/null)" != "$$(pwd -P)" ]; then echo "building .venv with $(PYTHON)" && rm -rf .venv && "$(PYTHON)" -m venv .venv && pwd -P > .venv/.home; fi
	@$(PIP) setuptools
	@touch $@

.venv/.run: .venv/.base
	@echo "installing lockbench with its embedded server"
	@$(PIP) --no-build-isolation --editable '.[run]'
	@touch $@

.venv/.dev: .venv/.run
	@echo "installing the test tools"
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

# The stamps lie when the folder was moved: then they go.
ifneq "$(shell cat .venv/.home 2>/dev/null)" "$(shell pwd -P)"
.venv/.base: moved
.PHONY: moved
moved: ;
endif

# lockcore as a wheel has it, in machine code (lockcore/compiled.py), for whoever looks there first: $(CORE). Where nothing
# can be compiled it is the source.
.venv/compiled: .venv/.dev $(shell find lockcore -name '*.py' -o -name '*.lua') bench/measure/recorder.py bench/workloads/operation.py bench/workloads/alarm.py
	@echo "compiling lockcore"
	@rm -rf $@ build
	@$(PY) -W ignore -c 'from setuptools import setup; setup()' --quiet build --build-lib $@ 2>&1 | grep pure || true
	@rm -rf $@/dashboards build
	@touch $@

CORE := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/.venv/compiled

run: .venv/.run
	@$(PY) -m bench run $(if $(filter %.toml $(basename $(notdir $(wildcard bench/scenarios/*.toml))),$(ARGS)),,everyday) $(ARGS)

# Most tests wait for servers, so four at a time fit on two cores. What measures time comes after them, alone.
# In the order that tests/conftest.py gives the files: what waits beside what computes, the longest first.
# Exit code 5 of pytest: ARGS left nothing to run in that pass.
test: .venv/.dev $(if $(ARGS),,.venv/compiled)
	@failed=0; \
	$(PY) -m pytest -m "not slow and not alone" -n $(JOBS) --dist loadfile --no-loadscope-reorder --benchmark-disable $(ARGS) || failed=$$?; \
	$(PY) -m pytest -m "alone and not slow" $(ARGS) || [ $$? -eq 5 ] || failed=1; \
	$(if $(ARGS),,$(CORE) $(PY) -m pytest -o pythonpath=".venv/compiled ." -m "not slow and not alone" -n $(JOBS) tests/lockcore $(addprefix tests/integration/lockcore/test_,arguments.py otel.py) || failed=1;) \
	[ $$failed -eq 0 ] || [ $$failed -eq 5 ]

# Redlock in TLA+: what holds, and what breaks it without each of eight assumptions (tests/model).
model: .venv/.dev
	@PYTHONPATH=. $(PY) -m tests.model.checker

test-long: .venv/.dev
	$(PY) -m pytest -m slow $(ARGS)

lint: .venv/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --diff .
	$(PY) -m mypy
	$(PY) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

# RESULT.schema.json beside RESULT.py of each type of result; a test compares them.
schemas: .venv/.dev
	$(PY) -m bench.generated

# `bench` and `lockcore` compiled, and these tests beside them.
CONTEST := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/.venv/compiled:$(CURDIR) $(PY) -m tests.contest.command

bench: .venv/compiled
	@cp -ru bench $</
	$(CONTEST) bench $(ARGS)

# Fetches other people's libraries, each into an environment of its own; what cannot be had is said.
peers: .venv/compiled
	@cp -ru bench $</
	$(CONTEST) peers $(ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info
