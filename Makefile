# Everything a newcomer needs: `make demo`, `make test`, `make bench`. Nothing is expected to be installed but Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A third of the time a test waits for a disk, a process or a browser.
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) \* 3 / 2)
# The tests start hundreds of processes. Where the environment forbids Python to keep what it compiled, each compiles all.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-postgres lint ruff lint-imports pyright mypy bench mutants torture clean

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) 2>/dev/null \
	  || (rm -rf $(VENV) && apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV))
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --editable ".[all]" --group dev
	@touch $(STAMP)

demo: $(STAMP)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m ondol.cli.tour

lint: $(STAMP)
	@$(MAKE) --no-print-directory --jobs=2 ruff lint-imports pyright mypy

ruff:
	$(BIN)/ruff check .

lint-imports pyright mypy:
	$(BIN)/$@

# The console is tested in a real browser, the unit for systemd by systemd. Where there is none and apt has none, the tests say so at their end.
test: lint
	@command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) >/dev/null 2>&1 || true
	@command -v systemd-analyze >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd) >/dev/null 2>&1 || true
	$(BIN)/pytest --numprocesses=$(WORKERS) --dist=worksteal

# Everything that has a store, on PostgreSQL: longer than `make test`, which runs a part of it there.
test-postgres: $(STAMP)
	$(BIN)/pytest --store=postgresql tests/promise tests/cases tests/stores --numprocesses=$(WORKERS) --dist=worksteal

bench: $(STAMP)
	$(BIN)/python benchmarks/bench.py

mutants: $(STAMP)
	$(BIN)/python tests/mutants.py

# FAMILY=power (without: all), STORE=postgresql (without: each that the family has), MINUTES=5 (without: until all cases have passed), SEED=17 (that case), GO_ON=1 (after a failure)
torture: $(STAMP)
	@cd tests && ../$(BIN)/python -m torture $(if $(FAMILY),--family $(FAMILY)) $(if $(STORE),--store $(STORE)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(GO_ON),--go-on)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
