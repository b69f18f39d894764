# `make ask` and `make test` do all set-up on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUESTION ?= What is the capital of France?

# These decide who reads and writes whose memory: every branch of them is tested.
FULLY_COVERED := block_directories block_files block_manager block_pool block_room block_tiers block_traffic detokenizer disk_tier disk_writer engine_tiers \
	file_access limits output_processor reasoning_splitter repetition prefix_chains retained_prefixes sample_rows scheduler step_plan stop_texts tier_policy
# What the native library is compiled from.
NATIVE := setup.py $(wildcard chatpaged/engine/model_executor/native/src/*)

.PHONY: ask test check format lint types docs clean

ask: $(VENV)/installed
	$(BIN)/chatpaged ask --temperature 0 --max-tokens 200 --stats "$(QUESTION)"

test: $(VENV)/installed-dev
	$(BIN)/pytest

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@# Each of the two needs one core.
	$(BIN)/mypy >$(VENV)/types.txt & \
	$(BIN)/pytest tests/engine --quiet --cov-branch $(addprefix --cov=chatpaged.engine.,$(FULLY_COVERED)) --cov-fail-under=100; \
	status=$$?; wait $$! || status=1; cat $(VENV)/types.txt; exit $$status
	$(BIN)/pytest --ignore=tests/engine

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/installed-dev
	$(BIN)/python -m tests.write_cli_docs
	$(BIN)/python -m tests.write_app_docs

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/installed
