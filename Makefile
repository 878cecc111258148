# What a person types. `make help` lists it; CI calls the same targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
READY := .venv/.ready
RUN := .venv/bin/

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## Make .venv from requirements.lock (every other target does this by itself)

$(READY): requirements.lock pyproject.toml deploy/bootstrap.sh
	@bash deploy/bootstrap.sh

test: $(READY) ## Run every test, nothing skipped
	$(RUN)pytest $(ARGS)

check: $(READY) ## Lint, format, types, import law, dependencies, spelling
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)mypy
	$(RUN)codespell

fix: $(READY) ## Apply the formatter and the safe lint fixes
	$(RUN)ruff check --fix .
	$(RUN)ruff format .

lock: $(READY) ## Compile requirements.lock again from pyproject.toml
	$$(cat .venv/.uv) pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -o requirements.lock

.PHONY: help setup test check fix lock
