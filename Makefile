# Two commands on a fresh machine: `make demo` and `make test`. Both create .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Only what is imported is compiled, and that by Python itself: compiling every package takes pip a minute or two.
PIP := -m pip install --quiet --disable-pip-version-check --prefer-binary --no-compile -c constraints.txt

# The versions that the checks ran with, if they ran with the Python of .venv.
LOCK = locks/python-$(shell $(BIN)/python -c 'import sys; print("{}.{}".format(*sys.version_info))').txt
INSTALL = @if [ -f $(LOCK) ]; then set -- -c $(LOCK); \
	else echo "There is no $(LOCK): all versions but that of PyTorch are the newest."; fi; \
	$(BIN)/python $(PIP) "$$@"

# Processes with one thread each are faster than one with several; one more than two cores, because some tests wait for a
# browser or for processes of their own. A whole file goes to one process, which then makes once what its tests share.
# The tests start many processes: bytecode is kept even where the environment says not to.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

# What `make quick` runs, in 45 seconds on two cores: the contracts, and the tests of what everything is made of.
# Or the fast tests of other places, e.g. TESTS=tests/posthoc.
TESTS ?= $(addprefix tests/test_,$(addsuffix .py,bins expressions files inputs mistakes outcomes outputs results signals \
	surrogates threads)) tests/data tests/losses tests/posthoc/test_contract.py tests/posthoc/test_temperature.py \
	$(addprefix tests/metrics/test_,$(addsuffix .py,core_measures binned_variants decomposition ranking scores selective)) \
	tests/evaluation/test_evaluate.py tests/decisions/test_costs.py tests/decisions/test_thresholds.py \
	tests/streams/test_accumulators.py tests/docs/test_project.py

# What `make lowest` and `make newest` run, each in its own environment below build/. Left out are tests that
# compare with other libraries or write files for which they need newer versions than the code does.
EDGE := tests/test_inputs.py tests/metrics/test_core_measures.py tests/posthoc/test_contract.py tests/data \
	tests/evaluation/test_evaluate.py tests/training/test_run.py tests/integrations/test_onnx.py
EDGE_NOT := netcal or those_of_scikit_learn or changed_numbers or another_program_changed or lists_of_any_kind
EDGE_RAY := tests/streams/test_ray.py -k "starts_one or told_or_left_out"

.PHONY: demo test tests test-long coverage quick lint style types bench fuzz docs docs-serve clean lock lowest newest matrix release-check

demo: $(VENV)/.installed
	$(BIN)/calibrant demo

# mypy needs one core for a minute or two, so it runs beside the tests.
test: style
	@$(MAKE) --no-print-directory -j 2 types tests

# The same without the checks of `make lint`.
tests: $(VENV)/.installed-dev
	$(PYTEST) -n 3

# Also the tests marked `long`: every grid in full, fuzzing at length, every page in the browser.
test-long: $(VENV)/.installed-dev
	$(PYTEST) -n 3 -m ""

# The tests of `make test`, traced: a third slower.
coverage: $(VENV)/.installed-dev
	$(PYTEST) -n 3 --cov=src/calibrant

quick: style
	$(PYTEST) -n 2 -m "not slow and not long" $(TESTS)

lint: style types

style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/measures.py

# Other cases each time, and CASES of each kind instead of the few of `make test`; a failure is made small.
CASES ?= 1000
fuzz: $(VENV)/.installed-dev
	CALIBRANT_FUZZ=$(CASES) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz --tb=short

# The site, strictly: a broken link, an undocumented public name or a page that nothing leads to is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m scripts.website

docs-serve: docs
	@echo "The site: http://localhost:8000 (Ctrl-C ends it)"
	$(BIN)/python -m http.server 8000 --bind localhost --directory build/site

# For maintainers: `make tests` with each supported Python that is there, each in its own environment below build/.
PYTHONS := 3.11 3.12 3.13 3.14
matrix:
	@for version in $(PYTHONS); do \
		if command -v python$$version > /dev/null; then \
			echo "Python $$version ..."; \
			$(MAKE) tests PYTHON=python$$version VENV=build/matrix/$$version || exit 1; \
		else echo "Python $$version: not on this machine, left out"; fi; \
	done

# For maintainers: build sdist and wheel and check them in a clean environment; nothing is published.
release-check:
	$(PYTHON) scripts/release.py check

# For maintainers: write down the versions of .venv after `make test` passed with them.
lock: $(VENV)/.installed-dev
	@mkdir -p locks
	$(BIN)/python scripts/versions.py lock > $(LOCK).new
	mv $(LOCK).new $(LOCK)

# For maintainers: do the lower bounds in pyproject.toml hold? Do the newest versions still work?
lowest newest:
	$(PYTHON) -m venv build/$@
	build/$@/bin/python $(PIP) packaging
	$(if $(filter lowest,$@),build/$@/bin/python scripts/versions.py lowest) > build/$@/pins.txt
	build/$@/bin/python $(PIP) --upgrade -c build/$@/pins.txt -e '.[all]' \
		hypothesis pandas polars psutil pytest pytest-cov
	build/$@/bin/calibrant demo
	OMP_NUM_THREADS=1 build/$@/bin/python -m pytest -q -W default -m "not slow and not long" $(EDGE) -k "not ($(EDGE_NOT))"
	OMP_NUM_THREADS=1 build/$@/bin/python -m pytest -q -W default $(EDGE_RAY)

clean:
	rm -rf $(VENV) build dist calibrant-demo .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks .coverage

$(VENV)/.created:
	@mkdir -p $(dir $(VENV))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Calibrant needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt $(wildcard locks/*.txt)
	@echo "Installing Calibrant into $(VENV) (PyTorch takes a while the first time) ..."
	$(INSTALL) -e '.[plots,report,tables]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt $(wildcard locks/*.txt)
	@echo "Installing Calibrant and its checks into $(VENV) ..."
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-docs

$(VENV)/.installed-docs: $(VENV)/.created pyproject.toml constraints.txt $(wildcard locks/*.txt)
	@echo "Installing Calibrant and what builds its site into $(VENV) ..."
	$(INSTALL) -e '.[docs]'
	@touch $@ $(VENV)/.installed
