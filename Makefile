# `make` lists the targets. Each does the set-up it needs first; repeating a set-up that is done costs nothing.
.DEFAULT_GOAL := help
.PHONY: help setup setup-run setup-python run run-batch dev check test sim lint types proto proto-check docs docs-site constraints bench bench-full clean
SHELL := /bin/sh
# Hundreds of processes import the same modules, and would compile them each time.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
IN_ENV := . .venv/env &&
PROTOS = $(sort $(wildcard protos/persist/v1/*.proto))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv and everything the other targets need (Python 3.11+, Java 17+)
	@deploy/setup.sh

setup-run:
	@deploy/setup.sh run

setup-python:
	@deploy/setup.sh python

run: setup-run ## the main job: a bank in PostgreSQL is ingested while it works, and its books balance at every time
	@$(IN_ENV) python -m examples.tpcb $(ARGS)

run-batch: setup-run ## the batch job: Spark writes a year of flights into shards, reads them back and checks every answer
	@$(IN_ENV) python -m examples.flights $(ARGS)

dev: setup-python ## all services in one process on SQLite and files under ./data
	@$(BIN)/persist dev --data data

check: setup-python ## what a change is tried with first: format, lint, contracts, types, unit tests (no Java, no servers)
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check -q .
	@$(BIN)/lint-imports >/dev/null || $(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/python deploy/blocking.py --check
	@$(BIN)/python -m pytest -q -n 2 -m unit tests/unit tests/test_tidy.py tests/test_words.py tests/test_citations.py $(ARGS)

test: setup ## run the tests, in five processes, as most of a test is waiting (ARGS="-k name" to choose, ARGS="-n 0" for one process)
	@$(IN_ENV) python -m pytest -n 5 $(ARGS)

SEEDS ?= 3000
FLEETS ?= 600
SIMULATIONS = tests/simulation
sim_worlds = $(SIMULATIONS)/test_world.py $(SIMULATIONS)/test_simulator.py
sim_fleets = $(SIMULATIONS)/fleet/test_fleet.py $(SIMULATIONS)/test_simulated_grpc.py
sim_search = $(SIMULATIONS)/search/test_search.py
sim_model = $(SIMULATIONS)/test_model.py $(SIMULATIONS)/test_crash_points.py $(SIMULATIONS)/test_hidden_attempts.py
sim_bugs = $(SIMULATIONS)/test_bugs.py
sim_soak = tests/soak tests/scenarios tests/machine/compaction/test_memory.py tests/machine/test_crowd.py \
	tests/conformance/test_contention.py
sim_places = tests/client tests/ingest/sources/postgres tests/ingest/pipeline/anew/test_postgres_pieces.py \
	tests/ingest/pipeline/anew/test_postgres_first.py tests/ingest/pipeline/anew/test_postgres_over.py \
	tests/ingest/pipeline/postgres/test_postgres_many.py tests/ingest/pipeline/upserts/test_postgres_keyed.py \
	tests/ingest/pipeline/brought/test_brought_times.py
sim_laws = tests/property tests/unit tests/ingest/decode/test_decode.py tests/ingest/sources/test_ranges.py \
	tests/spark/read/test_rows.py tests/spark/change/test_pairing.py
PART ?= $(if $(SEED),worlds,worlds fleets search model bugs soak places laws)
sim: setup-python ## simulate and soak at length (PART=worlds|fleets|search|model|bugs|soak|places|laws, SEEDS=3000, FLEETS=600, or PART and SEED=n for one)
	@PERSIST_SIM=full PERSIST_SIM_SEEDS=$(SEEDS) PERSIST_SIM_FLEETS=$(FLEETS) PERSIST_SIM_SEED=$(SEED) \
		$(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 $(foreach part,$(PART),$(sim_$(part))) \
		$(if $(SEED),-k keep_every_promise) $(ARGS)

lint: setup-python ## ruff, import contracts, generated code, house rules
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/python deploy/blocking.py --check
	@$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_words.py tests/test_citations.py

types: setup-python ## mypy: strict for packages, bodies of tests
	@$(BIN)/mypy

proto: setup-python ## generate clients/persist/v1 from protos/, and the blocking client from the asyncio one
	@deploy/stubs.sh clients
	@$(BIN)/python deploy/blocking.py

proto-check: setup-python ## buf lint, buf breaking, and what is generated and committed is up to date
	@deploy/proto-check.sh

docs: setup-python ## renew the tables in docs/ that repeat what the code knows
	@$(BIN)/python deploy/tables.py

docs-site: ## build the site for users from docs/ into build/site, without a network; a broken link or anchor fails
	@deploy/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -f deploy/site/mkdocs.yml

constraints: ## renew constraints.txt with the newest versions that resolve (needs uv)
	@deploy/constraints.sh

bench: ## measure against the goals, next to the floor and the peers (about half an hour)
	@deploy/setup.sh bench
	@$(IN_ENV) PYTHONPATH=tests python -m bench $(ARGS)

bench-full: ## the same with every size and every peer (some hours)
	@deploy/setup.sh bench
	@$(IN_ENV) PYTHONPATH=tests python -m bench --full $(ARGS)

clean: ## remove what the targets made, except .venv and .jdk
	@rm -rf build dist data out .persist spark-warehouse metastore_db derby.log
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find clients services spark tests -name __pycache__ -type d -prune -exec rm -rf {} +
