# `make run` and `make test` need Python 3.11 or later, pip and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests at a time: one more than there are cores, since those of real processes wait a lot.
JOBS ?= $(shell expr $$($(PYTHON) -c 'import os; print(os.cpu_count())') + 1)
# Modules are compiled when they are first imported: most of what is installed never is, and compiling all takes minutes.
unexport PYTHONDONTWRITEBYTECODE # or every process would compile them anew
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
RESULTS ?= results
QUICKSTART := runs/quickstart

.DEFAULT_GOAL := help
.PHONY: help run compare test test-all test-quick browser check format site diagrams package environments pages newcomer bench bench-learning bench-precision bench-flower bench-chain bench-live bench-explorer bench-scale scale-figures screenshots campaign faults live-faults hostile soak two-sites fuzz poisoning figures stall convergence reproduce table4 leaderboard clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.installed-learn ## quick start: eight clients learn handwritten digits
	rm -rf $(QUICKSTART)
	$(BIN)/bdfl run quickstart --out $(QUICKSTART)

compare: $(VENV)/.installed ## compare the schedulers on the paper's CIFAR-10 scenario
	$(BIN)/bdfl compare paper-cifar10

test: $(VENV)/.installed-dev browser ## run the tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not campaign" # what the tests of a file share is made once

test-all: $(VENV)/.installed-dev browser ## the same with the long trials of campaigns (twice as long)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-quick: $(VENV)/.installed-dev ## only what needs no network, no browser and no long computation (a minute or two)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not (campaign or network or browser or slow)"

browser: $(VENV)/.installed-dev ## install chromium, Node.js and Spin for the tests that need them, where there are none and it may be done
	@$(BIN)/python -m tests.browser.chromium
	@$(BIN)/python -m tests.verifiers.nodejs
	@$(BIN)/python -m tests.campaigns.spin_checker

check: $(VENV)/.installed-dev ## lint, formatting, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

site: $(VENV)/.installed-dev ## build the documentation site into build/site, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html"

diagrams: $(VENV)/.installed-dev ## draw the diagrams of docs/architecture.md again
	$(BIN)/python -m docs.figures.make_diagrams

package: $(VENV)/.installed-dev ## build the wheel and the source archive into dist
	rm -rf dist
	$(BIN)/python -m build --quiet

environments: package ## every command in new environments: the core, each extra alone, all of them (an hour); ONLY="core live" for some
	$(BIN)/python -m campaigns.installation.environments dist/*.whl $(ONLY)

pages: package ## the tutorial and every how-to, typed in environments installed as each says (half an hour); ONLY="tutorial" for some
	$(BIN)/python -m campaigns.installation.pages dist/*.whl $(ONLY)

newcomer: $(VENV)/.installed-dev ## from a clone to a report in two commands, everything installed anew, timed (minutes)
	$(BIN)/python -m campaigns.installation.newcomer

format: $(VENV)/.installed-dev ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench ## measure the schedulers' speed, and a general solver's beside it (5 minutes)
	$(BIN)/python -m benchmarks --quick

.PHONY: hops
hops: $(VENV)/.installed-learn ## count the modules that `bdfl run quickstart` executes, and the hops down to a local training
	$(BIN)/python -m benchmarks.hops

bench-learning: $(VENV)/.installed-learn .venv-flower/.installed .venv-pfl/.installed ## rounds of learning beside plain PyTorch, Flower and pfl-research (quarter of an hour)
	$(BIN)/python -m benchmarks --only learning

bench-precision: $(VENV)/.installed-learn ## the paper's network in float32 and bfloat16, beside plain PyTorch (quarter of an hour)
	$(BIN)/python -m benchmarks --only loop

bench-flower: $(VENV)/.installed-dev .venv-flower/.installed ## the same client code in bdfl and in Flower's own simulation (ten minutes)
	$(BIN)/python -m benchmarks --only flower

bench-chain: $(VENV)/.installed-learn ## mining, storing, verifying and what the protocol adds to a round (minutes)
	$(BIN)/python -m benchmarks --only ledger
	$(BIN)/python -m benchmarks --only verify
	$(BIN)/python -m benchmarks --only chain

bench-live: $(VENV)/.installed-dev .venv-p2pfl/.installed ## rounds of real processes, beside p2pfl's (ten minutes)
	$(BIN)/python -m benchmarks --only live

.PHONY: bench-idle
bench-idle: $(VENV)/.installed-dev ## what finished nodes and nodes without a quorum write and compute, MINUTES=10 each
	$(BIN)/python -m benchmarks --only idle --minutes $(or $(MINUTES),10)

.PHONY: bench-sweep
bench-sweep: $(VENV)/.installed-dev ## where the time of a sweep of 1,000 points goes, by both engines (minutes)
	$(BIN)/python -m benchmarks --only sweep

bench-explorer: $(VENV)/.installed-dev browser ## the explorer in a browser: first paint, stalls, memory, 50 viewers (minutes)
	$(BIN)/python -m benchmarks --only explorer

bench-scale: $(VENV)/.installed-learn ## rounds of a million clients and of a thousand signing nodes: time and memory (ten minutes)
	$(BIN)/python -m benchmarks --only scale

scale-figures: $(VENV)/.installed ## the figures of docs/scale.md: committees and aggregation trees
	$(BIN)/python -m docs.figures.make_scale

screenshots: $(VENV)/.installed-dev browser ## pictures of every page of the explorer into docs/images/explorer (minutes)
	$(BIN)/python -m docs.images.make_screenshots

faults: $(VENV)/.installed ## 10,000 networks in trouble, and the mutants that must be caught (an hour)
	$(BIN)/python -m campaigns faults --seeds 10000
	$(BIN)/python -m campaigns faults mutants --out $(RESULTS)/faults

.PHONY: mutation
mutation: $(VENV)/.installed-dev ## 300 mutants of protocol, ledger and stores: does a test notice? SEED=1 for others (an hour)
	$(BIN)/python -m campaigns mutation --sample 300 --seed $(or $(SEED),0) --out $(RESULTS)/mutation

.PHONY: selfish
selfish: $(VENV)/.installed-dev ## 1,000 networks with a withholding member, all attacks and schedulers, and live (an hour)
	$(BIN)/python -m campaigns selfish --networks 1000 --grid 1 --out $(RESULTS)/selfish
	$(BIN)/python -m campaigns selfish live --out $(RESULTS)/selfish

live-faults: $(VENV)/.installed-dev ## real processes killed, stopped and starved, 200 kills (two to three hours)
	$(BIN)/python -m campaigns live_faults --kills 200 --out $(RESULTS)/live-faults

hostile: $(VENV)/.installed-dev ## 100,000 hostile messages of each kind to real nodes (an hour)
	$(BIN)/python -m campaigns hostile --count 100000 --out $(RESULTS)/hostile

.PHONY: hostile-folders
hostile-folders: $(VENV)/.installed-dev ## 10,000 corrupted stores and 200 hostile folders of 35 kinds (an hour)
	$(BIN)/python -m campaigns hostile_folders --corruptions 10000 --folders 200 --out $(RESULTS)/hostile-folders

soak: $(VENV)/.installed-dev ## 500 rounds of real processes: memory, open files, threads (minutes)
	$(BIN)/python -m campaigns soak --nodes 4 --aps 1 --rounds 500 --out $(RESULTS)/soak

two-sites: $(VENV)/.installed-dev ## blocks between two network namespaces with loss and 200 ms (needs root and tc netem)
	$(BIN)/python examples/two_sites/run.py

.PHONY: verifiers
verifiers: $(VENV)/.installed-dev browser ## three verifiers on 20 chains and 1,000 bit flips of each: never a different verdict (half an hour)
	$(BIN)/python -m campaigns verifiers --out $(RESULTS)/verifiers

.PHONY: model
model: $(VENV)/.installed-dev browser ## every state of the formal model of agreement, wrong models, 100 recorded networks (ten minutes)
	$(BIN)/python -m campaigns model check
	$(BIN)/python -m campaigns model mutants
	$(BIN)/python -m campaigns model traces --seeds 100

fuzz: $(VENV)/.installed-dev ## a million mutated encodings of every record (half an hour)
	$(BIN)/python -m campaigns fuzz --count 1000000

poisoning: $(VENV)/.installed-learn ## aggregation rules against poisoning members (minutes)
	$(BIN)/bdfl poison --out $(RESULTS)/poisoning

leaderboard: $(VENV)/.installed-learn ## all schedulers on the same rounds, ranked, with accuracies on digits (minutes)
	$(BIN)/bdfl leaderboard --learn --seeds 8 --out $(RESULTS)/leaderboard

campaign: $(VENV)/.installed ## every scheduler on 10,000 random rounds, judged by the checker (an hour or two)
	for name in all channel-best drc random round-robin fastest-k energy-greedy age-of-update power-of-choice oort exact exact-power; do \
		echo "$$name"; $(BIN)/bdfl schedulers check $$name --rounds 10000 || exit 1; done

figures: $(VENV)/.installed ## the paper's figures 2 to 4 as SVG, PNG and CSV
	$(BIN)/bdfl reproduce fig2 --out $(RESULTS)
	$(BIN)/bdfl reproduce fig3 --out $(RESULTS)
	$(BIN)/bdfl reproduce fig4 --out $(RESULTS)

stall: $(VENV)/.installed ## the figure of docs/corrections.md
	$(BIN)/python -m docs.figures.make_stall

convergence: $(VENV)/.installed-learn ## the figure of docs/theory.md: the lemmas beside a run on digits
	$(BIN)/python -m docs.figures.make_convergence

reproduce: $(VENV)/.installed ## every figure and table of the paper, beside the paper's numbers
	$(BIN)/bdfl reproduce all --out $(RESULTS)

table4: $(VENV)/.installed-learn ## Table IV with accuracies, make table4 DATA=folder TABLE4="--rounds 20" (hours)
	$(BIN)/bdfl reproduce table4 --data $(DATA) --out $(RESULTS) $(TABLE4)

clean: ## remove the environment, caches, results and all runs with their chains and keys
	rm -rf $(VENV) .venv-flower .venv-pfl .venv-p2pfl build dist runs results .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per set of extras; installing again only when a file that decides the versions changed.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "bdfl needs Python 3.11 or later, '$(PYTHON)' is not: try make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[figures]'
	@touch $@

$(VENV)/.installed-learn: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[learn,live,explore]' # what docs/tutorial.md uses
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-learn

$(VENV)/.installed-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[bench]'
	@touch $@ $(VENV)/.installed

# Other frameworks, for comparison only: their versions would not go together with ours.
.venv-%/.installed: benchmarks/requirements-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@
