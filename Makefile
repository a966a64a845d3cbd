# Everything needs only Python 3.10 or newer, make and git. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint generate bench wheel clean

setup: .venv/.ready

# compileall: as an installation does, or an environment that forbids writing bytecode compiles at every start.
# editable_mode=compat: a plain path entry; the default's import hook costs every command 20 ms.
.venv/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("recall needs Python 3.10 or newer: make PYTHON=python3.12 setup" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat --editable '.[dev]'
	$(BIN)/python -m compileall -q store recall_cli
	touch $@

demo: setup
	$(BIN)/recall demo

# TESTS narrows it: make test TESTS=tests/cli
test: setup
	$(BIN)/python -m pytest -n auto $(TESTS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/generate.py --check

generate: setup
	$(BIN)/python tools/generate.py

bench: setup
	for script in turn resume startup run contention; do echo "== bench/$$script.py"; $(BIN)/python -m bench.$$script || exit 1; done

# A checkout hides packaging faults; this installs what users would get and runs it from elsewhere.
wheel: setup
	bash tools/smoke_wheel.sh $(BIN)/python

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
