# Everything needs only Python 3.10 or newer, make and git. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo test lint generate bench proof wheel clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1 @\2/p' Makefile | awk -F@ '{ printf "%-16s %s\n", $$1, $$2 }'

setup: .venv/.ready ## make .venv with recall and the tools of its developers

# compileall: as an installation does, or an environment that forbids writing bytecode compiles at every start.
# editable_mode=compat: a plain path entry; the default's import hook costs every command 20 ms.
.venv/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("recall needs Python 3.10 or newer: make PYTHON=python3.12 setup" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat --editable '.[dev]'
	$(BIN)/python -m compileall -q store recall_cli
	touch $@

demo: setup ## an agent is killed while it sends an email, and one email is sent
	$(BIN)/recall demo

test: setup ## run the tests; TESTS=tests/cli narrows them
	$(BIN)/python -m pytest -n auto $(TESTS)

lint: setup ## check what git tracks, formatting, style, types and generated files
	$(BIN)/python tools/tracked.py
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tools.generate --check

generate: setup ## write completions/, docs/commands.md, docs/python.md and docs/mcp.md anew
	$(BIN)/python -m tools.generate

bench: setup ## measure
	for name in turn resume startup run shipping mcp; do echo "== bench.$$name"; $(BIN)/python -m bench.$$name || exit 1; done

proof: setup ## measure all that docs/proof.md tells, anew; takes hours
	for name in kills files latency contention soak; do echo "== bench.$$name"; $(BIN)/python -m bench.$$name --save || exit 1; done
	$(BIN)/python -m tools.generate

# A checkout hides packaging faults; this installs what users would get and runs it from elsewhere.
wheel: setup ## build what users install, and try it elsewhere
	bash tools/smoke_wheel.sh $(BIN)/python

clean: ## remove what the other targets made
	rm -rf .venv .interop build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
