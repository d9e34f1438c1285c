# Two commands on a fresh machine: `make demo` and `make test`. Both create .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Two processes with one thread each are faster than one with two. A whole file goes to one process, which then
# makes once what its tests share. The tests start many processes: bytecode is kept even where the environment says not to.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# What `make quick` runs, e.g. TESTS=tests/posthoc. These import frameworks that take long to load:
TESTS ?= tests
LATER := tests/integrations tests/bench tests/streams/test_ray.py tests/test_benchmarks.py tests/test_examples.py

.PHONY: demo test quick lint bench clean

demo: $(VENV)/.installed
	$(BIN)/calibrant demo

test: lint
	$(PYTEST) --cov=src/calibrant

quick: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(PYTEST) -m "not slow" $(TESTS) $(LATER:%=--ignore=%)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/measures.py

clean:
	rm -rf $(VENV) build dist calibrant-demo .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks .coverage

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Calibrant needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing Calibrant into $(VENV) (PyTorch takes a while the first time) ..."
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing Calibrant and its checks into $(VENV) ..."
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed
