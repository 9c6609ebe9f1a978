# Every target does its own set-up; the second time there is nothing left to set up.

PYTHON ?= python3
TRACES ?= ../shared/traces
ARGS   ?=

PY  := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: chaos faults fuzz soak help demo test test-kube test-page screenshots test-chart test-old test-nfd kube image crds manifests lint format proto bench bench-placement lock clean

help: ## Show this list
	@awk -F ': ## ' '/^[a-z-]+: ## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Run the examples on a cluster with simulated GPUs
demo: .venv/.installed
	@.venv/bin/shoal demo $(ARGS)

# Three workers a core, since tests wait most of the time. Compiled code is kept, whatever the shell says: the tests start
# hundreds of processes that load the same modules.
test: ## Run the tests on every core (ARGS="-k ledger" picks some)
test: .venv/.installed
	@echo '#include <stdio.h>' | gcc -E - >/dev/null 2>/dev/null || [ "$$(id -u)" != 0 ] || { $(call debian-packages,gcc libc6-dev); }
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n $$(($$(nproc) * 3)) --dist worksteal -m "not kube and not page" $(ARGS)

test-kube: ## Run the suites that need a real Kubernetes, built first if need be (KUBE_VERSION=1.32.2 for another)
test-kube: kube
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n $$(($$(nproc) * 2)) --dist loadfile -m "kube and not page" $(ARGS)

test-page: ## Try the dashboard's page in Debian's Chromium, which is installed as root if need be
test-page: kube chromium
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 2 --dist loadfile -m page tests/dashboard/page $(ARGS)

screenshots: ## Take the pictures of docs/images anew, from the running dashboard
screenshots: .venv/.installed chromium
	@$(PY) -m tests.dashboard.page.screenshots docs/images

test-chart: ## Install the chart on a real node of the oldest Kubernetes it is for, 1.32.2 (KUBE_VERSION for another)
test-chart: export KUBE_VERSION := $(or $(KUBE_VERSION),1.32.2)
test-chart: kube
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -m kube tests/deploy/test_chart_kube.py $(ARGS)

test-old: ## Run the chart and claims of whole cards on the oldest Kubernetes, 1.32.2 (KUBE_VERSION for another)
test-old: export KUBE_VERSION := $(or $(KUBE_VERSION),1.32.2)
test-old: kube
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -m kube tests/agent/claims/test_slices_old_kube.py \
		tests/agent/real/test_claims_old_kube.py tests/deploy/test_chart_kube.py \
		tests/deploy/test_chart_render_kube.py::test_claims_on_a_server_that_has_them_only_if_switched_on $(ARGS)

test-nfd: ## Run discovery beside a real nfd-master, built first if need be (3 minutes with Go)
test-nfd: kube
	@$(PY) -m tests.testbed.nfd
	@SHOAL_NFD=1 $(PY) -m pytest tests/discovery/test_nfd_kube.py $(ARGS)

chaos: ## Run 2,000 pods on a real API server while schedulers are killed and connections break (5 minutes)
chaos: kube
	@SHOAL_CHAOS_PODS=$${SHOAL_CHAOS_PODS:-2000} $(PY) -m pytest -m kube tests/scheduler/test_chaos_kube.py $(ARGS)

fuzz: ## Try a million mutants on the scheduler's watch, endpoints and socket, and thousands of a tenant's lies (30 minutes)
fuzz: .venv/.installed
	@SHOAL_FUZZ=$${SHOAL_FUZZ:-1000000} $(PY) -m pytest -p no:logging tests/scheduler/test_fuzz.py tests/scheduler/extender/test_flood.py tests/attacks/test_fuzz.py $(ARGS)

faults: ## Live 10,000 random lives of pods in three clusters while everything goes wrong (10 minutes; ARGS for others)
faults: .venv/.installed
	@$(PY) -m tests.clusters.fault_run $(or $(ARGS),10000)

soak: ## Try for hours what a change has minutes for: chance 20 times as often, large clusters, fuzz, chaos and faults
soak: kube
	@SHOAL_SOAK=$${SHOAL_SOAK:-20} $(MAKE) test test-kube
	@$(MAKE) fuzz chaos faults

kube: ## Have the programs of a real Kubernetes in the cache (the first time: 15 minutes with Go)
kube: .venv/.installed
	@$(call debian-packages,runc containernetworking-plugins busybox-static iproute2 iptables openssl prometheus influxdb mmdebstrap)
	@$(PY) -m tests.testbed.binaries
	@$(PY) -m tests.testbed.nvidia

image: ## Build the OCI image of all services, build/image/*.oci.tar (ARGS="--arch arm64" for the other kind)
image: .venv/.installed
	@$(call debian-packages,mmdebstrap gcc libc6-dev)
	@$(PY) -m deploy.image.build $(ARGS)

crds: ## Write the definition of the ClusterPolicy into the chart, from src/shoal/operator/policy.py
crds: .venv/.installed
	@$(PY) -m shoal.operator.crd charts/shoal/crds

manifests: ## Write deploy/ from the chart, with the helm of `make kube`
manifests: kube
	@$(PY) -m deploy.generate --helm "$$($(PY) -c 'from tests.testbed.binaries import find; print(find("helm"))')"

lint: ## Check style, types and the direction of imports
lint: .venv/.installed
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

format: ## Rewrite the code in the project's style
format: .venv/.installed
	.venv/bin/ruff check --fix-only
	.venv/bin/ruff format

proto: ## Generate the gRPC code of kubelet's and KETI's APIs from the .proto files of src/shoal
proto: .venv/.installed
	@$(PY) -m grpc_tools.protoc -I src --python_out=src --grpc_python_out=src --pyi_out=src src/shoal/*/api/*.proto

BENCHES := $(patsubst bench/bench_%.py,bench-%,$(wildcard bench/bench_*.py))
TRACES_FLAG := $(if $(wildcard $(TRACES)/.),--traces $(TRACES))

bench: ## Run every benchmark, one after another
bench: $(BENCHES)

bench-placement: ## Compare the placement policies (TRACES=folder of the openb traces)
$(sort $(BENCHES) bench-placement): bench-%: bench/bench_%.py .venv/.installed
	@echo "==> $<"
	@$(PY) -m bench.bench_$* $(if $(filter %placement.py %simulate.py %claims.py,$<),$(TRACES_FLAG)) $(ARGS)

bench-dashboard_page: chromium
.PHONY: chromium
chromium:
	@$(call debian-packages,chromium)

bench-agent bench-apiserver bench-claims bench-claims_agent bench-clusters bench-discovery bench-operator bench-scheduler bench-watch: kube

UV_VERSION := 0.13.7
COMPILE = build/uv/bin/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 \
	--fork-strategy fewest --generate-hashes --no-emit-index-url --no-annotate --no-header

lock: ## Take the newest versions the project allows into requirements*.lock
	@$(check-python)
	@echo "==> installing uv $(UV_VERSION) into build/uv"
	@$(PYTHON) -m venv --clear build/uv
	@build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(COMPILE) --output-file requirements.lock
	$(COMPILE) --constraint requirements.lock --extra embedded --extra plots --group dev --output-file requirements-dev.lock

clean: ## Remove all that make has made, .venv included
	rm -rf .venv build dist .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Set-up: the locked packages, anew whenever the lock changes; then this tree as an editable install.
.venv/.locked: requirements-dev.lock
	@$(check-python)
	@echo "==> creating .venv with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv --clear .venv
	@echo "==> installing the packages of $< (a minute or so, once)"
	@$(PIP) install --quiet --no-compile --require-hashes -r $<
	@PYTHONDONTWRITEBYTECODE= $(PY) -m compileall -q -j 0 .venv/lib >/dev/null || true
	@touch $@

.venv/.installed: .venv/.locked pyproject.toml
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@PYTHONDONTWRITEBYTECODE= $(PY) -m compileall -q -j 0 src >/dev/null || true
	@touch $@

# Installs what is missing of some Debian packages, and starts no service of theirs; on other systems they are the
# user's to bring.
define debian-packages
if command -v dpkg-query >/dev/null; then \
	missing=$$(for package in $(1); do \
		dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || echo $$package; \
	done); \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" != 0 ]; then echo "first: sudo apt-get install "$$missing >&2; exit 1; fi; \
		echo "==> installing "$$missing; \
		apt-get update -qq; \
		policy=/usr/sbin/policy-rc.d; \
		if [ ! -e $$policy ]; then \
			trap "rm -f $$policy" EXIT; \
			printf '\x23!/bin/sh\nexit 101\n' | install -m 755 /dev/stdin $$policy; \
		fi; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi; \
fi
endef

# Python 3.11 or newer that can make virtual environments; Debian packs that part separately.
define check-python
if ! command -v $(PYTHON) >/dev/null; then \
	echo "Shoal needs Python 3.11 or newer, and there is no '$(PYTHON)' here." >&2; exit 1; \
fi; \
if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	echo "Shoal needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another with PYTHON=..." >&2; exit 1; \
fi; \
if ! $(PYTHON) -c 'import ensurepip; ensurepip.version()' >/dev/null 2>/dev/null; then \
	package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "'$(PYTHON)' cannot make virtual environments; first: sudo apt-get install $$package" >&2; exit 1; \
	fi; \
	echo "==> installing $$package"; \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$package >/dev/null; \
fi
endef
