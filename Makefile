# Each target is one command; the work is in scripts/ and behind the `frenzy` command.
SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN := .venv/bin
STAMP := .venv/.ready
SOURCES := plugins tools tests scripts dags
PYTEST ?= $(BIN)/python -m pytest
# For tests that share no Airflow: as many processes as there are cores, each of which takes 1 to 2 GB.
PARALLEL ?= -n logical --maxprocesses 4 --dist worksteal
# Parts of test-all that also wait: two at a time, the longest first; each tells all when it ends. End-to-end tests are
# one part, for two trainings of theirs at a time already fill two cores.
WAITING := test-e2e test-k8s test-apart
# Ahead of the tests, whose time is limited. Where it cannot be built they say why, and are skipped.
k8s-build = [ -n "$$KUBECONFIG" ] || $(BIN)/python -m tests.kubernetes.build $(1) >/dev/null || true

.PHONY: help env demo demo-elastic demo-swap test test-all $(WAITING) coverage test-k8s-full check lint types imports audit fmt accuracy bench bench-k8s bench-schedule bench-jct bench-mix docs docs-site docs-assets gpu-pack images up down status lock clean fuzz

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock pyproject.toml scripts/setup_env.sh scripts/torch_wheel.py
	@scripts/setup_env.sh
	@touch $@

env: $(STAMP) ## make the environment (.venv) from the lock

demo: $(STAMP) ## start Airflow, train the sample job to its end, show and judge it; KEEP=1 leaves Airflow up
	@$(BIN)/python -m tests.scenarios.demo $(if $(KEEP),--keep)

demo-elastic: $(STAMP) ## three jobs: a long one makes room for a short one and grows back
	@$(BIN)/python -m tests.scenarios.elastic

demo-swap: $(STAMP) ## two jobs: one exceeds its GPU's memory and gets a larger one from the other
	@$(BIN)/python -m tests.scenarios.swap

test: $(STAMP) ## proof that it works: unit, contract, several ranks, jobs through Airflow (ARGS: only these tests)
ifdef ARGS
	@$(PYTEST) $(ARGS)
else
	@$(PYTEST) $(PARALLEL) tests/unit tests/contract tests/trainer -m "not thorough"
	@$(PYTEST) tests/e2e -m "not thorough"
endif

# CHECKED=1: after `make check`, which has run the first three folders.
test-all: $(STAMP) ## every test but test-k8s-full: components killed, packaging, PostgreSQL, and Kubernetes (test-k8s)
ifdef ARGS
	@$(PYTEST) $(ARGS)
else
	@$(PYTEST) $(PARALLEL) $(if $(CHECKED),,tests/unit tests/tools tests/contract) tests/trainer
	@$(MAKE) --no-print-directory --jobs 2 --keep-going --output-sync=target $(WAITING)
endif

test-e2e: $(STAMP)
	@$(PYTEST) tests/e2e --durations 20

test-apart: $(STAMP)
	@$(PYTEST) -n 2 --dist loadfile tests/packaging tests/pages tests/processes

coverage: $(STAMP) ## lines and branches of the package that unit, tools, contract and trainer tests run
	@mkdir -p build/coverage
	@$(PYTEST) $(PARALLEL) -q tests/unit tests/tools tests/contract tests/trainer --cov --cov-report=term $(ARGS)

# Each process has a control plane of its own; on a cluster of yours the nodes' names would clash.
test-k8s: $(STAMP) ## tests on a real Kubernetes API server with fake nodes (or on that of KUBECONFIG)
	@$(call k8s-build,api)
	@$(PYTEST) $(if $(KUBECONFIG),,-n 2 --dist loadfile) tests/kubernetes -m "not kubelet" $(ARGS)

test-k8s-full: $(STAMP) ## tests with a real kubelet and containerd; needs root
	@$(call k8s-build,full)
	@$(PYTEST) tests/kubernetes -m kubelet $(ARGS)

check: lint types imports ## ruff, mypy --strict, import layers, unit, tools and contract tests
	@$(PYTEST) $(PARALLEL) tests/unit tests/tools tests/contract $(ARGS)

lint: $(STAMP) ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP) ## mypy --strict on the package and its tools
	@$(BIN)/mypy

imports: $(STAMP) ## the layers, kept by import-linter
	@$(BIN)/lint-imports

audit: ## known vulnerabilities of the locked packages, asked of PyPI (needs the network)
	@python3 -m venv build/audit && build/audit/bin/pip --disable-pip-version-check install --quiet pip-audit
	@build/audit/bin/pip-audit --requirement requirements.lock --no-deps --disable-pip --strict

fmt: $(STAMP) ## repair what ruff can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

fuzz: $(STAMP) ## 10,000 bodies, 10,000 specifications, 5,000 files of each kind: nothing may fail
	@PYTHONPATH=plugins $(BIN)/python -m tests.fuzz $(ARGS)

bench: $(STAMP) ## measure (ARGS=marp: one subject); figures also in build/bench/*.json
	@PYTHONPATH=plugins $(BIN)/python -m tests.bench $(ARGS)

accuracy: $(STAMP) ## hold the memory and time models to published runs (ARGS=--docs: write docs/accuracy.md)
	@PYTHONPATH=plugins $(BIN)/python -m tools.accuracy $(ARGS)

bench-schedule: $(STAMP) ## cost of scheduling decisions, beside sia-ilp (build/bench/schedule.json)
	@PYTHONPATH=plugins $(BIN)/python -m tests.bench schedule

bench-mix: $(STAMP) ## thirteen real trainings under three policies beside the simulation, under 30 min
	@PYTHONPATH=plugins $(BIN)/python -m tests.bench.bench_mix $(ARGS)

bench-jct: $(STAMP) ## completion times of has and every rival, some 7 min (ARGS=--quick: one seed)
	@PYTHONPATH=plugins $(BIN)/python -m tests.bench.bench_jct $(ARGS)

bench-k8s: $(STAMP) ## 200 jobs on 1,000 fake nodes of a real API server: time and API calls
	@PYTHONPATH=plugins $(BIN)/python -m tests.bench k8s

docs: $(STAMP) ## write the reference pages in docs/ from the code
	@PYTHONPATH=plugins $(BIN)/python -m tools.docs

docs-site: ## the documentation as a site with search, in build/docs-site; a link that leads nowhere fails
	@python3 -m venv build/mkdocs
	@build/mkdocs/bin/pip --disable-pip-version-check --quiet install --no-deps --requirement tools/docs_site/requirements.lock
	@NO_MKDOCS_2_WARNING=1 build/mkdocs/bin/mkdocs --quiet build --config-file tools/docs_site/mkdocs.yml
	@echo "build/docs-site/index.html"

gpu-pack: $(STAMP) ## wheels for scripts/gpu_proof.py on a GPU machine without a network, in build/gpu-pack
	@PYTHONPATH=plugins $(BIN)/python -m tools.gpu_proof.wheel_pack $(if $(PRESENT),--present $(PRESENT))

images: ## build the images without a registry and try each; as root, with buildah and mmdebstrap (ARGS=trainer)
	@scripts/build_images.sh $(ARGS)

docs-assets: $(STAMP) ## run the demo and take the pictures in docs/images (needs Chromium)
	@$(BIN)/python -m tests.pages.pictures
	@$(BIN)/python -m tests.e2e.docs_assets $(ARGS)

up: $(STAMP) ## start Airflow here and print address and logins
	@$(BIN)/frenzy up

down: ## stop Airflow
	@if [ -x $(BIN)/frenzy ]; then $(BIN)/frenzy down; fi

status: $(STAMP) ## what runs
	@$(BIN)/frenzy up --status

lock: ## resolve pyproject.toml anew into requirements.lock
	@scripts/lock.sh

clean: ## stop Airflow, also that of a demo, and remove all that was made here, .venv too; a FRENZY_HOME elsewhere stays
	@for home in "$$FRENZY_HOME" "$$FRENZY_HOME/demo" "$(CURDIR)/.frenzy" "$(CURDIR)/.frenzy/demo"; do \
	  if [ -x $(BIN)/frenzy ] && [ -e "$$home/stack.json" ]; then \
	    echo "stopping Airflow in $$home"; FRENZY_HOME="$$home" $(BIN)/frenzy down >/dev/null || exit 1; fi; done
	rm -rf .venv .frenzy build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf plugins/*.egg-info
	@if [ -e "$$FRENZY_HOME" ]; then echo "$$FRENZY_HOME stays: remove it by hand"; fi
