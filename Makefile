# Two commands matter: `make serve` and `make test`. Each sets up all it needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-test
MODEL ?= smollm2-135m
PORT ?= 8000
NATIVE_SOURCES := $(shell find src/duologue/kernels/csrc -type f) CMakeLists.txt pyproject.toml

.PHONY: help serve test test-all check bench install clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-10s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# An editable install: Python changes take effect at once, changed C++ is rebuilt by the next make.
$(STAMP): $(BIN)/python $(NATIVE_SOURCES)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "scikit-build-core>=0.10" "nanobind>=2.2" ninja "cmake>=3.18"
	@echo "Building duologue (one to three minutes)"
	$(BIN)/python -m pip install --quiet --no-build-isolation -e .
	@touch $@

# Serving needs none of what the tests need. The build folder is kept, so this compiles nothing again.
$(TEST_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-build-isolation -e ".[test]"
	@touch $@

install: $(TEST_STAMP) ## Create the virtual environment and build duologue into it

serve: $(STAMP) ## Serve the default model on http://127.0.0.1:8000
	$(BIN)/duologue serve $(MODEL) --port $(PORT)

test: $(TEST_STAMP) ## Run the tests that need no torch, browser or other system (under 5 minutes)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not peers and not torch and not browser and not clients"

test-all: test ## Run every test: sets up torch, transformers, llama.cpp and a browser first
	scripts/test_all.sh

check: $(TEST_STAMP) ## Format check, lint and types
	$(BIN)/ruff check src tests scripts
	$(BIN)/ruff format --check src tests scripts
	$(BIN)/mypy

bench: $(STAMP) ## Measure the kernels and the engine on this machine
	$(BIN)/duologue bench kernels
	$(BIN)/duologue bench engine $(MODEL)

clean: ## Remove what make made (downloaded models stay in the cache folder)
	rm -rf $(VENV) build .venv-torch .venv-clients .venv-emulated .venv-sanitize
