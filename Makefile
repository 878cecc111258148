# What a person types. `make help` lists it; CI calls the same targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
READY := .venv/.ready
RUN := .venv/bin/

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

setup: $(READY) ## Make .venv from requirements.lock (every other target does this by itself)

$(READY): requirements.lock pyproject.toml deploy/bootstrap.sh
	@bash deploy/bootstrap.sh

demo: $(READY) ## Run the whole path on real flights, then stay for a look (ARGS=--once ends after the reads)
	@$(RUN)lakeshare demo $(ARGS)

demo-clean: $(READY) ## Stop and remove everything the demo made
	@$(RUN)lakeshare demo --clean

# Three at a time: much of the time is waiting for processes and disks. Bytecode is kept: three workers and some hundred
# processes would compile the packages anew where Python is told not to (common in containers).
test: $(READY) ## Run every test, nothing skipped (ARGS=tests/unit runs a part)
	env -u PYTHONDONTWRITEBYTECODE $(RUN)pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

campaign: $(READY) ## Run the randomised tests at their full counts, for hours (ARGS=tests/unit runs a part)
	LAKESHARE_TEST_CAMPAIGN=1 $(RUN)pytest -n 2 --dist loadfile --timeout 0 -m campaign $(ARGS)

check: $(READY) ## Lint, format, types, import law, dependencies, spelling
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)mypy
	$(RUN)lint-imports
	$(RUN)deptry .
	$(RUN)codespell
	$(RUN)python .ci/ratchet.py

check-deploy: $(READY) ## Build and check images and chart, as root (ARGS=--without-images: without root)
	@bash deploy/check.sh $(ARGS)

# Bytecode is kept: each environment starts a dozen commands.
check-install: $(READY) ## Install wheel and sdist into empty environments of each Python, publish and serve in them
	@env -u PYTHONDONTWRITEBYTECODE $(RUN)python -m deploy.check_install $(ARGS)

prepare-release: $(READY) ## Make what CHANGELOG.md has as unreleased a version (VERSION=1.2.3)
	@$(RUN)python -m deploy.release --prepare "$(VERSION)"

release: $(READY) ## Build a release into dist/: wheel, sdist, constraints, SBOM, licences, notes, checksums
	@$(RUN)python -m deploy.release $(ARGS)

bench: $(READY) ## Measure, as ratios of two things in one run (see bench/)
	@for one in bench/*.py; do case $$one in */__init__.py | */naive_server.py) ;; *) $(RUN)python -m bench.$$(basename $$one .py) ;; esac; done

bench-server: $(READY) ## Measure the server beside the limit and a naive one, a quarter of an hour (ARGS=--quick: five minutes)
	@$(RUN)python -m bench.server --docs docs $(ARGS)

docs: $(READY) ## Build the documentation site into site/, broken links are errors (ARGS=serve shows it while pages are edited)
	@NO_MKDOCS_2_WARNING=1 $(RUN)python -m mkdocs $(or $(ARGS),build)

docs-reference: $(READY) ## Write the generated pages of docs/reference/ again
	@$(RUN)python -m tests.builders.reference_pages

serve: $(READY) ## Start the sharing server
	@$(RUN)lakeshare serve

dagster: $(READY) ## Start Dagster's webserver and daemon on workspace.yaml
	@export DAGSTER_HOME="$${DAGSTER_HOME:-$$PWD/dagster_home}"; $(RUN)dagster instance migrate >/dev/null && $(RUN)dagster dev -w workspace.yaml

fix: $(READY) ## Apply the formatter and the safe lint fixes
	$(RUN)ruff check --fix .
	$(RUN)ruff format .

lock: $(READY) ## Compile requirements.lock again from pyproject.toml
	$$(cat .venv/.uv) pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -o requirements.lock

.PHONY: help setup demo demo-clean test campaign check check-install check-deploy prepare-release release bench bench-server docs docs-reference serve dagster fix lock
