# `make` alone prints this help. Every target does its own set-up in .venv/.
SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.PHONY: help run test test-all lint bench site lock wheel deb clean writable

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: writable $(VENV)/.run  ## database, smtpd, queued and a development sink; Ctrl-C stops all
	@exec $(BIN)/queuectl up $(ARGS)

# Tests start hundreds of daemons, and pytest rewrites 600 modules in each of its processes: bytecode
# is kept also where Python was told not to write any.
test test-all: export PYTHONDONTWRITEBYTECODE =

# at most 5 minutes, without packages of Debian and without root
test: writable $(VENV)/.dev  ## most tests, on the embedded PostgreSQL, or on URI=postgresql://…
	@PGMTA_TEST_URI="$(URI)" $(BIN)/python -m pytest -m "not slow and not needs" $(ARGS)

test-all: writable $(VENV)/.dev  ## all tests, with longer runs of the fuzzers and of random faults
	@PGMTA_TEST_URI="$(URI)" $(BIN)/python -m pytest --hypothesis-profile thorough --fuzz-seconds 20 --faults-seconds 25 \
		--submission-rounds 6 --bounce-kills 8 --bounce-messages 400 --burst-suppressions 100000 --api-seconds 150 $(ARGS)

lint: writable $(VENV)/.dev  ## ruff, codespell, mypy --strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/codespell *.md docs etc examples packaging bench pgmta pgmta_features queued smtpd sql scripts
	@$(BIN)/mypy
	@$(BIN)/mypy --scripts-are-modules scripts/reference scripts/site scripts/test-packages packaging/shared_files.py
	@$(BIN)/lint-imports --no-cache

bench: writable $(VENV)/.dev  ## pgmta and Postfix in turn, 3 minutes: rates, CPU per message, ratios
	@bench/peers $(ARGS)

site: writable $(VENV)/.dev  ## site of docs in build/site, with a search
	@$(BIN)/python scripts/site

lock:  ## resolve the dependencies again (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv, which is not installed" >&2; exit 1; }
	@uv pip compile -q --universal --generate-hashes --python-version 3.12 --extra build pyproject.toml -o requirements.lock
	@uv pip compile -q --universal --generate-hashes --python-version 3.12 --extra build --extra dev --extra site \
		-c requirements.lock pyproject.toml -o requirements-dev.lock
	@awk 'NR == FNR { known[$$0]; next } FNR == 1 { print "-r requirements.lock" } /^[^ #]/ { keep = !($$0 in known) } FNR < 3 || keep' \
		requirements.lock requirements-dev.lock > requirements-dev.new
	@mv requirements-dev.new requirements-dev.lock
	@for name in packaging/cluster/patroni tests/support/kubernetes tests/support/schemathesis tests/support/svix; do \
		uv pip compile -q --universal --generate-hashes --python-version 3.11 $$name.in -o $$name.lock; done

wheel: writable $(VENV)/.run  ## dist/pgmta-VERSION-py3-none-any.whl, for pipx and for the environments of applications
	@$(PIP) wheel --no-deps --no-build-isolation -w dist .
	@ls dist/pgmta-*.whl

deb: writable $(VENV)/.run  ## Debian 13 package in dist/, with its Python libraries
	@scripts/deb

clean:  ## remove the virtual environment and caches (never var/)
	@rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache

writable:
	@[ -w . ] || { echo "$$(id -un 2>/dev/null || id -u) can't write to $$PWD: run make as the owner, or in a copy of your own" >&2; exit 1; }

$(BIN)/python:
	@python=$$(scripts/find-python) && echo "setting up $(VENV) with $$python" && "$$python" -m venv $(VENV)

$(VENV)/.run: requirements.lock pyproject.toml | $(BIN)/python
	@echo "installing the libraries of pgmta into $(VENV), once: half a minute"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements.lock requirements-dev.lock pyproject.toml | $(BIN)/python
	@echo "installing the libraries of pgmta and its tests into $(VENV), once: a minute"
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.run
