# Two commands matter: `make demo` and `make test`. Each does all of its own set-up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MODEL := .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
# The repository root must never be on sys.path: its folders' bare names (kernels, proto, engine) belong to others too.
export PYTHONSAFEPATH := 1

.DEFAULT_GOAL := help

help:            ## list the commands
	@grep -hE '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+): .*## /  make \1\t/' | expand -t 18

$(BIN)/pip: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -U -c constraints.txt pip
	@touch $@

$(VENV)/.engine: $(BIN)/pip pyproject.toml constraints.txt
	@echo "Installing kvterrace and its pinned dependencies into $(VENV) ..."
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[engine,dashboard]'
	@touch $@

$(VENV)/.dev: $(VENV)/.engine
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[engine,dashboard,gpu,charts,load,otel,text,dev]'
	@touch $@

$(MODEL): deploy/fetch_model.py | $(VENV)/.engine
	$(BIN)/python deploy/fetch_model.py $@

setup: $(VENV)/.engine $(MODEL)       ## install into .venv and fetch the demo model

DEMO := $(BIN)/kvterrace demo $(MODEL) --document README.md --document docs/decisions.md $(ARGS)
ifdef CLUSTER
demo: $(VENV)/.dev $(MODEL)
	$(BIN)/python deploy/with_valkey.py $(DEMO) --cluster {valkey}
else
demo: setup      ## one sidecar, two engine replicas, one prefix prefilled once (ARGS=--keep leaves them running; CLUSTER=1: two hosts)
	$(DEMO)
endif

cluster: $(VENV)/.dev                 ## Valkey and three nodes on loopback, until Ctrl-C
	$(BIN)/python deploy/with_valkey.py $(BIN)/python deploy/local_cluster.py {valkey}

# One file stays in one process, since what is slow to make is made once a file; folders with slow tests come first.
test: $(VENV)/.dev $(MODEL)           ## every test, in WORKERS processes (ARGS='-m unit' for the quick ones)
	$(BIN)/pytest -n $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder $(ARGS)

fuzz: $(VENV)/.dev                    ## the fuzz targets, SECONDS each (default 300)
	KVTERRACE_FUZZ_S=$(or $(SECONDS),300) $(BIN)/pytest --timeout 0 tests/fuzz $(ARGS)

sim-cluster: $(VENV)/.dev             ## simulate a cluster with faults for SEEDS seeds; failing ones are printed (FIRST; SEED=N replays one)
	$(BIN)/python tests/cluster_sim/run.py $(if $(SEED),--seed $(SEED) -v,--seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0)) $(ARGS)

torture: $(VENV)/.dev               ## kill -9 a writer of the NVMe tier ROUNDS times and count (SEED, ARGS='--dir /mnt/nvme')
	$(BIN)/python tests/torture/torture.py --rounds $(or $(ROUNDS),1000) --seed $(or $(SEED),0) $(ARGS)

bench: $(VENV)/.dev $(MODEL)          ## every benchmark into bench/results/ (ONLY=NAME for one)
	$(BIN)/python bench/__main__.py $(ONLY)

check: $(VENV)/.dev                   ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

screenshots: $(VENV)/.dev $(MODEL)    ## pictures of the dashboard on the demo's servers, into docs/images (needs chromium)
	$(BIN)/python deploy/screenshots.py $(MODEL)

metrics-doc: $(VENV)/.dev             ## docs/metrics.md, from the program
	$(BIN)/python deploy/metrics_doc.py

stubs: $(VENV)/.dev                   ## regenerate proto/kv_pb2*
	$(BIN)/python -m grpc_tools.protoc -I kvterrace/proto=proto --python_out=.typings --pyi_out=.typings \
		--grpc_python_out=.typings kvterrace/proto/kv.proto

clean:           ## remove the virtual environment and caches
	rm -rf $(VENV) .cache build dist *.egg-info

.PHONY: help setup demo cluster test fuzz sim-cluster torture bench check screenshots metrics-doc stubs clean
