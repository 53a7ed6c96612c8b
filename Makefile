# `make run` and `make test` need Python 3.11 or later, pip and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= auto
RESULTS ?= results

.DEFAULT_GOAL := help
.PHONY: help run test check format bench campaign figures stall reproduce clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.installed ## compare the schedulers on the paper's CIFAR-10 scenario
	$(BIN)/bdfl compare scenarios/paper-cifar10.toml

test: $(VENV)/.installed-dev ## run all tests
	$(BIN)/python -m pytest -n $(JOBS)

check: $(VENV)/.installed-dev ## lint, formatting, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench ## measure the schedulers' speed, and a general solver's beside it (5 minutes)
	$(BIN)/python -m benchmarks --quick

campaign: $(VENV)/.installed ## every scheduler on 10,000 random rounds, judged by the checker (an hour or two)
	for name in all channel-best drc random round-robin exact exact-power; do \
		echo "$$name"; $(BIN)/bdfl schedulers check $$name --rounds 10000 || exit 1; done

figures: $(VENV)/.installed ## the paper's figures 2 to 4 as SVG, PNG and CSV
	$(BIN)/bdfl reproduce fig2 --out $(RESULTS)
	$(BIN)/bdfl reproduce fig3 --out $(RESULTS)
	$(BIN)/bdfl reproduce fig4 --out $(RESULTS)

stall: $(VENV)/.installed ## the figure of docs/corrections.md
	$(BIN)/python docs/figures/make_stall.py

reproduce: $(VENV)/.installed ## every figure and table of the paper, beside the paper's numbers
	$(BIN)/bdfl reproduce all --out $(RESULTS)

clean: ## remove the environment, caches and results
	rm -rf $(VENV) build dist runs results .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per set of extras; installing again only when a file that decides the versions changed.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "bdfl needs Python 3.11 or later, '$(PYTHON)' is not: try make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@ $(VENV)/.installed
