# The same commands for people and for CI. `make demo` needs Python 3.11-3.13 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps

# Published sizes with random weights: compiled, not run.
FULL := build/check-full
# The first one is that of the plots.
CAPABILITIES := 8.9 7.5 8.0 8.6 12.0
CHECK = $(BIN)/python scripts/check_graphs.py
FULL_BUNDLES := fp16-512 fp16-256-512-dynamic int8-512 fp8-512
STEPS := denoise_step denoise_step_cached denoise_step_unguided denoise_step_unguided_cached
# Of bundles in eight bits the steps are what differs. FP8 is for two generations; the small one is tried on both.
CHECK_int8-512 := $(STEPS:%=--graph %)
CHECK_fp8-512 := $(STEPS:%=--graph %)
CAPABILITIES_fp8-512 := 12.0 8.9
CHECK_fp16-256-512-dynamic := --dynamic
CAPABILITIES_fp16-256-512-dynamic := 8.9 7.5 12.0
FULL_EXPORT = LATENTSYNC_TRT_CHECKPOINTS=$(FULL)/checkpoints $(BIN)/latentsync-trt export --precision fp16 --no-verify

# One process per core and one more, as some tests wait for children; a test file to each at a time: fixtures of a module
# are made once. In the order of their names: the exports come first, which take the longest.
PROCESSES := $(shell $(PYTHON) -c "import os; print(min(8, 1 + (os.cpu_count() or 1)))")
PYTEST := $(BIN)/pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
# Not part of `make quick`, as their imports alone take half a minute: PyTorch, diffusers, Gradio.
HEAVY := export test_comfyui.py test_setup_command.py test_syncnet.py test_train_demo.py test_ui.py test_ui_browser.py
# Nor are whole runs on real models, speech and files, which take as long as all other fast tests.
HEAVY += test_audio_segments.py test_face_detector.py test_live.py test_live_audio.py test_live_session.py test_media.py
HEAVY += test_live_serve.py test_parts.py test_previews.py test_soundtrack.py test_speaking.py test_usage.py

.PHONY: help demo quick test test-all lint docs lock dist check-full check-demo clean

help:
	@echo "make demo    install, and lip-sync a built-in clip to demo/out.mp4"
	@echo "make quick   lint, types, import rules and the fast tests"
	@echo "make test    what CI runs"
	@echo "make test-all     also what is slow and rarely breaks: compilers, full exports, training"
	@echo "make check-full   compile the published architecture with TensorRT-RTX: an hour, 10 GB memory, no GPU"
	@echo "make docs    build the documentation site: build/site; with SITE_URL=https://… for that address"
	@echo "make lock    choose the image's libraries anew: requirements.lock, requirements-cuda.lock"
	@echo "make dist    build wheel and sdist, check their files, run the demo from the wheel alone"
	@echo "make clean   remove what these targets made"

$(STAMPS)/run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@mkdir -p $(STAMPS) && touch $@

# What builds the site, without the gigabytes of the next one.
$(STAMPS)/docs: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/run

# torch is pinned in the `export` extra, which the tests need to make their bundles; the extra `check` compiles them.
$(STAMPS)/dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[calibrate,check,cluster,dev,docs,export,live,serve,ui]"
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/run $(STAMPS)/docs

demo: $(STAMPS)/run
	$(BIN)/latentsync-trt demo --output demo

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_text.py

quick: lint
	$(PYTEST) -m "not slow and not integration" $(HEAVY:%=--ignore tests/%)

test: lint
	$(PYTEST) -m "not slow"

test-all: lint
	$(PYTEST)

docs: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Debian 13's Python, on x86-64.
LOCK = $(BIN)/uv pip compile pyproject.toml --quiet --upgrade --generate-hashes --no-annotate --no-header \
	--python-version 3.13 --python-platform x86_64-manylinux_2_28 --extra cluster --extra live --extra serve
lock: $(STAMPS)/dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(LOCK) --output-file requirements.lock
	$(LOCK) --extra cuda --output-file requirements-cuda.lock

dist: $(STAMPS)/dev
	rm -rf dist build/dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python scripts/check_dist.py dist
	$(PYTHON) -m venv build/dist
	build/dist/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd build/dist && bin/latentsync-trt demo

check-full: check-demo $(FULL_BUNDLES:%=check-full-%)

check-full-%: $(FULL)/%/manifest.json
	$(CHECK) $(FULL)/$* $(CHECK_$*) $(foreach each,$(or $(CAPABILITIES_$*),$(CAPABILITIES)),--compute-capability $(each)) \
		> $(FULL)/$*.json || { cat $(FULL)/$*.json; exit 1; }
	cp $(FULL)/$*.json benchmarks/check-full-$*.json

check-demo: | $(STAMPS)/dev
	$(CHECK) demo $(CAPABILITIES:%=--compute-capability %) > benchmarks/check-demo.json

.PRECIOUS: $(FULL)/%/manifest.json $(FULL)/fp16-%/manifest.json
.PRECIOUS: $(FULL)/int8-%/manifest.json $(FULL)/fp8-%/manifest.json
$(FULL)/fp16-%/manifest.json: | $(FULL)/checkpoints/random_checkpoints.json
	$(FULL_EXPORT) --resolution $* --output $(FULL)/fp16-$*

$(FULL)/fp16-256-512-dynamic/manifest.json: | $(FULL)/checkpoints/random_checkpoints.json
	$(FULL_EXPORT) --resolution 512 --min-resolution 256 --dynamic --output $(@D)

$(FULL)/int8-%/manifest.json: $(FULL)/fp16-%/manifest.json
	$(BIN)/python scripts/quantize_without_clips.py --bundle $(FULL)/fp16-$* --precision int8 --out $(FULL)/int8-$*

$(FULL)/fp8-%/manifest.json: $(FULL)/fp16-%/manifest.json
	$(BIN)/python scripts/quantize_without_clips.py --bundle $(FULL)/fp16-$* --precision fp8 --out $(FULL)/fp8-$*

$(FULL)/checkpoints/random_checkpoints.json: | $(STAMPS)/dev
	$(BIN)/python scripts/make_random_checkpoints.py --out $(FULL)/checkpoints --precision fp16

clean:
	rm -rf $(VENV) demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
