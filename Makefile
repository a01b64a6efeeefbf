.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
# the oldest releases of the ecosystem, which come before those of .venv
OLDEST := $(VENV)/oldest
BIN := $(CURDIR)/$(VENV)/bin
# what `make run` adds to its settings, for example RUN_ARGS="--num_train_epochs 1"
RUN_ARGS ?=
# what `make test` runs, for example TESTS=tests/test_contract.py; all tests by default
TESTS ?=
# pip settings of one's own (an index, certificates) are taken as they are; the Hub is never asked
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup run models demo test oldest check hooks smoke bench notebooks docs package

help:  ## list what can be done
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

setup: $(READY)  ## make .venv with the pinned versions, if it is missing or out of date

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: setup  ## train plain, simple N-gram and word difference models on two CPU cores, offline, in minutes
	$(BIN)/accelerate launch --quiet --config_file recipes/accelerate/cpu.yaml --num_cpu_threads_per_process 2 \
		recipes/tables/finetune_gptneo_wdr.py \
		recipes/settings/tables/finetune_gptneo_wdr/smoke.yaml --overwrite true $(RUN_ARGS)

models: setup  ## fetch a trained language model and a sentence encoder into models/: 182 MB, two minutes
	$(BIN)/python recipes/fetch_models.py recipes/settings/fetch_models/registry.yaml

demo: models  ## let that model answer questions about Python's documentation in three ways, and write a page
	$(BIN)/python recipes/answer_questions.py recipes/settings/answer_questions/cpu.yaml

test: setup  ## run the tests, offline; slow ones take TESTS="-m 'compiled or sharded or ray' tests"
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not compiled and not sharded and not ray" $(TESTS)

$(OLDEST)/.ready: .ci/oldest.txt | $(READY)
	rm -rf $(OLDEST)
	timeout 90 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(OLDEST) -r $<
	@touch $@

oldest: $(OLDEST)/.ready  ## run `make test` with the oldest releases that pyproject.toml allows
	PYTHONPATH=$(CURDIR)/$(OLDEST) $(MAKE) test

check: setup  ## format, lint and types, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

hooks: setup  ## format and lint before each commit, and check types before each push
	$(BIN)/pre-commit install --config .ci/pre-commit.yaml

smoke: setup  ## run every recipe at its smallest settings
	$(BIN)/python -m pytest -n 2 --dist worksteal -q tests/recipes

bench: setup  ## run recipes/benchmarks: needs HF_TARGETS_DATA, models of train_dynamic_vocab and train_translation
	test -f runs/tables/finetune_gptneo_wdr/wdr-seed0/config.json || $(MAKE) run
	ls -d runs/tables/train_draft_heads/documentation/*-seed* > /dev/null 2>&1 || $(BIN)/python recipes/tables/train_draft_heads.py \
		recipes/settings/tables/train_draft_heads/documentation.yaml
	for file in recipes/benchmarks/*.py; do \
		$(BIN)/python $$file recipes/settings/benchmarks/$$(basename $$file .py)/measured.yaml || exit 1; done

notebooks: setup  ## execute the notebooks, offline, and compare what they say with the outputs that they keep
	$(BIN)/python .ci/notebooks.py

docs: setup  ## make the site build/docs/index.html; a broken link or a public name without a page fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file .ci/docs/mkdocs.yml
	@echo "open build/docs/index.html"

package: setup  ## build sdist and wheel into build/dist, and use the wheel in a clean environment
	.ci/package
