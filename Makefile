SHELL := /bin/sh
.SHELLFLAGS := -euc
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules
# Each of some thousand processes of the tests would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
.DELETE_ON_ERROR:

PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
KITS := inventory lb consumer_lists ops reports bench spark clients/conform
# Of the figures, those that take a minute each when they are measured once.
SHORT := client.publish client.consume client.batch client.threads client.mesh

.PHONY: image deb demo test test-all check up down lint format types unit contract integration fault hosts spark mutants bench bench-all soak trial once docs dist vendor lock help

demo: needs-python-spark-brokers ## the whole way on real parts: publish, add, remove and kill brokers, audit, report
	@$(PYTHON) -m bench demo

test: needs-python-spark-brokers ## what a change can break: units, contract, each promise, one of each real part; 12 minutes
	@ops/local/install.sh redis-server postgresql mariadb-server chromium
	@$(PYTHON) -m tests.run

test-all: needs-python-spark-brokers ## the same, then everything that CI runs: releases, hosts, Java, languages; 40 minutes; EVERY=1: without turns
	@ops/local/install.sh maven || echo "without maven Kafka, Artemis and PerfTest are not tested"
	@ops/local/install.sh redis-server redis-sentinel postgresql mariadb-server || \
		echo "without these servers the tests of stores and databases fail"
	@ops/local/install.sh mmdebstrap || echo "without mmdebstrap other versions of brokers are not tested"
	@ops/local/install.sh buildah crun || echo "without buildah the image and the package are not tested"
	@ops/local/install.sh chromium || echo "without chromium the monitor's pages are not tested"
	@{ command -v go && command -v npm; } >/dev/null || ops/local/install.sh golang nodejs npm || \
		echo "without these the clients of other languages are not tested"
	@$(PYTHON) -m tests.run --all $(if $(EVERY),--every)

check: lint types ## before each commit: style, types, units of the heart and of what changed, the contract in memory
	@$(PYTEST) -q -n 4 --dist loadfile --part=unit $$($(PYTHON) -m tests.tiers) tests/contract

up: needs-ops-brokers ## start a local cluster, or what is missing of it
	@$(PYTHON) -m ops local up

down: needs-ops ## stop the local cluster; its data stay
	@$(PYTHON) -m ops local down

lint: needs-python ## style and import rules
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@.venv/bin/lint-imports --config setup.cfg

format: needs-python ## put the code into the one style
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

types: needs-python ## strict types, tests too
	@$(PYTHON) -m mypy messagebus $(KITS) tests

unit: needs-python-spark ## no sockets, no sleeps
	@$(PYTEST) tests/unit

contract: needs-python-brokers ## the same cases on the in-memory bus and on RabbitMQ
	@$(PYTEST) tests/contract

integration: needs-python-spark-brokers ## on a real local cluster
	@$(PYTEST) tests/integration

fault: needs-python-brokers ## kill, freeze, cut, lie
	@$(PYTEST) tests/fault

hosts: needs-python ## on virtual hosts with mirrored disks: provision, power-offs, fencing, split brain
	@TESTS_POWER_OFFS=3 $(PYTEST) tests/hosts

spark: needs-python-spark-brokers ## transforms on literal rows, and one whole job
	@$(PYTEST) tests/unit/spark $(wildcard tests/integration/test_spark*.py)

mutants: needs-python ## plant faults into messagebus/core, one at a time: the tests must notice each
	@$(PYTHON) tests/mutants/run.py

# A missed goal must not keep the other figures from being measured.
bench: needs-python-spark-brokers ## the figures of the README that fit into a quarter of an hour, each measured once
	@ops/local/install.sh maven || echo "without maven PerfTest is not measured"
	@status=0; \
	$(PYTHON) -m bench figures $(SHORT) --repeat 1 --keep || status=1; \
	$(PYTHON) -m bench overhead --keep || status=1; \
	$(PYTHON) -m bench run seed-s1 --part 10 --keep || status=1; \
	$(PYTHON) -m bench readme; \
	exit $$status

bench-all: needs-python-spark-brokers ## all published figures, one by one, with nothing beside: four hours
	@ops/local/install.sh maven || echo "without maven Kafka, Artemis and PerfTest are not measured"
	@rm -f out/hosts/failover-*.json
	@status=0; \
	TESTS_POWER_OFFS=3 $(PYTEST) tests/hosts/test_failover.py -k after_a_power_off || status=1; \
	$(PYTHON) -m bench figures --keep || status=1; \
	$(PYTHON) -m bench overhead --keep || status=1; \
	for workload in seed-s1 seed-s2; do \
		$(PYTHON) -m bench run $$workload --repeat 3 --part 4 --keep || status=1; \
	done; \
	for workload in peers latency-matrix fan-in capacity; do \
		$(PYTHON) -m bench run $$workload --keep || status=1; \
	done; \
	$(PYTHON) -m bench readme; \
	exit $$status

soak: needs-python-brokers ## 15 minutes of random faults under load: nothing may be lost
	@TESTS_MINUTES=15 $(PYTEST) -s --timeout=0 tests/fault/test_topics_reach_every_subscription.py -k random_faults

trial: needs-python-brokers ## a million messages through handlers that end in every way: none may be missing
	@TESTS_MESSAGES=1000000 $(PYTEST) -s --timeout=0 tests/fault/test_handlers.py -k whatever_handlers_do

once: needs-python-spark-brokers ## 30 minutes in which everything is killed: each of 100,000 orders is billed once
	@ops/local/install.sh redis-server redis-sentinel postgresql
	@TESTS_MINUTES=30 TESTS_ORDERS=100000 $(PYTEST) -s --timeout=0 tests/fault/test_once_trial.py

docs: needs-python ## the site of all documents, with the API and a search, into out/docs; marks outdated figures
	@$(PYTHON) -m bench readme
	@$(PYTHON) -m docs.site

dist: needs-build ## wheel, source archive and bill of materials, into dist/: the same bytes from the same commit
	@$(PYTHON) -m ops.dist

image: dist ## one image for every service, by podman, docker or buildah: messagebus
	@tool=$$(command -v podman || command -v docker || command -v buildah); \
	$$tool build --file deploy/Containerfile --tag messagebus .

deb: dist ## a Debian package of the services, into dist/
	@tool=$$(command -v podman || command -v buildah || command -v docker); \
	$$tool build --file deploy/Containerfile --target deb --output type=local,dest=dist .

vendor: needs-python ## the monitor's files of others, by version from the npm registry; compared by hash
	@$(PYTHON) -m ops.vendor

lock: ## write requirements.lock anew from requirements.in; needs uv
	@uv pip compile --quiet --no-header --generate-hashes --python-version 3.11 \
		--output-file requirements.lock requirements.in

needs-%: # parts of ops/local/install.sh, joined by dashes; a tenth of a second when nothing is missing
	@ops/local/install.sh $(subst -, ,$*)

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 20
