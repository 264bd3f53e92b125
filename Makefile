# make demo       sets up .venv and trains a small language model on real text, on the CPU
# make test       sets up .venv and passes the tests
# make test-long  runs the campaigns: kill rounds, long fuzzing
# make check      formatting, lint and types only
# make bench-peers  makes .venv-peers with torch and JAX, which bench/compare.py measures paren against

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := outputs/gpt-smoke

.PHONY: demo test test-long check docs bench-peers clean

# torch is named on its own, so that pip takes the version of constraints.txt and not a build for CUDA.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("paren needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $(READY)

demo: $(READY)
	$(BIN)/paren run examples/gpt.paren --variant smoke --resume auto
	$(BIN)/python -m scripts.bigram examples/gpt.paren --variant smoke --run $(DEMO)
	$(BIN)/paren sample $(DEMO) --prompt "def " --length 120 --temperature 0.7
	@echo
	@echo "settings, metrics and checkpoints: $(DEMO) (docs/run-directory.md says what is what)"
	@echo "the model in Python:               paren.restore(\"$(DEMO)\")"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -n 2 -m "not long"

test-long: check
	$(BIN)/python -m pytest -n 2 --hypothesis-profile="drawn anew"

docs: $(READY)
	$(BIN)/python scripts/generate_docs.py

bench-peers: $(READY)
	$(BIN)/python -m bench.peers install

clean:
	rm -rf $(VENV) .venv-peers outputs build dist *.egg-info
