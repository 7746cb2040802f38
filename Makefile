# Every target is for a person to type; .ci/run types `make ci`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON_VENV := .venv/bin/python
PYTEST := $(PYTHON_VENV) -u -m pytest
CODE := $(wildcard policies egress ingress lab demo bench fuzz soak tests)
# How the tests run, see CONTRIBUTING.md. With a daemon or an environment of their own, each with a target of its own:
IMAGE := $(wildcard tests/blackbox/test_image*.py) tests/blackbox/test_docker_provider.py
ELSEWHERE := $(IMAGE) tests/docker tests/e2e tests/browser tests/runtimes tests/sdk \
	tests/blackbox/test_kubernetes_api.py tests/blackbox/test_kubernetes_pods.py
# With the machine to themselves: what counts what a busy machine loses, then what keeps the machine busy on purpose.
ALONE := tests/real/ingress/handover tests/real/ingress/workers tests/blackbox/test_revocation.py \
	tests/blackbox/test_floods.py tests/blackbox/test_faults_kills.py tests/real/bench
# All others side by side, one process more than there are processors: they mostly wait. A file's tests stay together,
# and what takes long goes first.
BESIDE = -n $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder
# How many times the ordinary number of examples `make fuzz` tries, and how many executions of its targets all together.
FUZZ ?= 50
RUNS ?= 1000000
# How long `make soak` lives with the sidecar, and the seed of its chances; 0 for any.
MINUTES ?= 5
SEED ?= 0
# How often `make kills` kills.
N ?= 500

.PHONY: help setup demo test ci side-by-side alone lint pure real blackbox image test-docker test-browser test-agent-sdk test-e2e test-kubernetes test-runtimes fuzz soak bench-dns bench-load bench-sni bench-http bench-e2e bench-docker kills threats format lock clean

help:
	@echo "Sallyport: the guarded door of a sandbox."
	@echo
	@echo "  make demo        watch it work: a sandbox, a tiny internet and the real sidecar, offline, eight seconds"
	@echo "  make test        lint, types and every test this machine can run (as root: all of them)"
	@echo
	@echo "  make setup       .venv with the locked packages, and Debian's packages where root; the others call it"
	@echo "  make lint        ruff and mypy"
	@echo "  make side-by-side  most of the tests, a process more than there are processors"
	@echo "  make alone       the few that need the machine to themselves"
	@echo "  make pure        the tests that need nothing but Python; seconds"
	@echo "  make real        the tests with namespaces, nftables and sockets; root"
	@echo "  make blackbox    the programs as a container runs them; root"
	@echo "  make image       build the image and run it, with a Docker daemon of its own; root"
	@echo "  make test-docker  egress attach, egress docker and the Compose example, with a Docker daemon of their own; root, a minute"
	@echo "  make test-agent-sdk  the gateway with the SDK of Kubernetes agent-sandbox, which it installs (half a minute)"
	@echo "  make test-e2e    OpenSandbox's own server and SDK with our images, on a Docker daemon of the test's own; root, minutes"
	@echo "  make test-kubernetes  providers, webhook and manifests against real Kubernetes API servers, built by Go once"
	@echo "  make test-runtimes  the sandbox under runc, crun and gVisor beside the sidecar; Go builds gVisor once; root"
	@echo "  make test-browser  the gateway in Chromium, with Vite, JupyterLab and noVNC, which it installs (a minute)"
	@echo "  make fuzz        the parsers under coverage-guided fuzzing, RUNS=$(RUNS) executions (TARGETS=\"dns_query\" for some),"
	@echo "                   and the property tests, FUZZ=$(FUZZ) times as many examples"
	@echo "  make soak        live with the sidecar at random for MINUTES=$(MINUTES) and hold it against a plain reading; root"
	@echo "  make kills       kill the sidecar N=$(N) times, at random moments; root, minutes"
	@echo "  make threats     every threat with the tests that try it and what came of them; root, minutes"
	@echo "  make bench-dns   measure against dnsmasq and unbound; root, minutes; writes into docs/"
	@echo "  make bench-load  measure it under floods, a revocation and its lock-down; root, ten minutes; writes into docs/"
	@echo "  make bench-sni   what the name guard costs a TLS connection; root, minutes; writes into docs/"
	@echo "  make bench-http  measure the gateway against nginx, haproxy, Go, Node and Python proxies; minutes; writes into docs/"
	@echo "  make bench-e2e   what a policy costs a sandbox's creation under OpenSandbox's server; root, minutes; writes into docs/"
	@echo "  make bench-docker  how soon docker watch guards a container, and what each takes; root, a minute"
	@echo "  make format      let ruff set the code"
	@echo "  make lock        resolve requirements/*.lock anew (make lock UPGRADE=--upgrade for the newest)"
	@echo "  make clean       remove .venv and every cache"
	@echo
	@echo "One test: .venv/bin/python -m pytest tests/pure/policies -k wildcard"

setup:
	@tools/setup

demo: setup
	@$(PYTHON_VENV) -m demo

# What is joined by + runs side by side: a Docker daemon mostly keeps others waiting.
test: setup
	@tools/parts 'side-by-side + lint image test-docker' alone

ci: setup
	@tools/parts 'side-by-side + lint image test-e2e test-docker' alone

side-by-side: setup
	@$(PYTHON_VENV) -m lab
	@$(PYTEST) $(BESIDE) tests $(patsubst %,--ignore=%,$(ELSEWHERE) $(ALONE))

alone: setup
	@$(PYTEST) $(ALONE)

lint: setup
	@$(PYTHON_VENV) -m ruff check $(CODE)
	@$(PYTHON_VENV) -m ruff format --check --quiet $(CODE) || { echo "not set as ruff sets it: make format"; exit 1; }
	@$(PYTHON_VENV) -m mypy $(CODE)

pure real blackbox: setup
	@$(PYTEST) tests/$@

image: setup
	@tools/test-image $(PYTEST) $(IMAGE)

test-docker: setup
	@tools/test-docker

test-browser: setup
	@tools/setup-browser
	@$(PYTEST) tests/browser

test-agent-sdk: setup
	@tools/setup-sdk agent-sandbox
	@$(PYTEST) tests/sdk

test-e2e: setup
	@tools/setup-sdk opensandbox
	@tools/test-image $(PYTEST) tests/e2e

test-kubernetes: setup
	@tools/test-kubernetes

test-runtimes: setup
	@tools/test-runtimes

fuzz: setup
	@$(PYTHON_VENV) -m fuzz --runs $(RUNS) $(TARGETS)
	@[ -n "$(TARGETS)" ] || SALLYPORT_FUZZ=$(FUZZ) $(PYTEST) tests/pure -m hypothesis --timeout=0

soak: setup
	@$(PYTHON_VENV) -m soak --minutes $(MINUTES) --seed $(SEED) --kind "$(KIND)"

kills: setup
	@SALLYPORT_KILLS=$(N) $(PYTEST) tests/blackbox/test_faults_kills.py

threats: setup
	@$(PYTHON_VENV) tools/threats $(ROWS)

bench-dns: setup
	@$(PYTHON_VENV) -m bench.dns

bench-load: setup
	@$(PYTHON_VENV) -m bench.pressure

bench-sni: setup
	@$(PYTHON_VENV) -m bench.sni --write

bench-http: setup
	@$(PYTHON_VENV) -m bench.http

bench-e2e: setup
	@tools/setup-sdk opensandbox
	@tools/test-image $(PYTHON_VENV) -m tests.e2e.bench --write

bench-docker: setup
	@$(PYTHON_VENV) -m bench.docker

format: setup
	@$(PYTHON_VENV) -m ruff check --fix --quiet $(CODE) || true
	@$(PYTHON_VENV) -m ruff format $(CODE)

lock:
	@tools/lock $(UPGRADE)

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "clean"
