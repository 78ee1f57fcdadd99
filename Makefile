# From a fresh clone: `make run` talks, `make test` proves it. A second run installs nothing and needs no network.
# Variables: PYTHON=python3.12   TORCH_INDEX=URL (index of CPU builds of torch)   VIVAVOCE_STORE=DIR   ARGS="..."   TESTS="..."

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
TORCH_VERSION := 2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# What the program needs from the system, and what the tests need on top of it.
RUN_PACKAGES := libportaudio2 libasound2-plugins python3-venv
# What Qt loads: for the window on X11 or Wayland, and without a screen in the tests.
QT_PACKAGES := libgl1 libegl1 libxkbcommon0 libdbus-1-3 libfontconfig1 fonts-dejavu-core
WINDOW_PACKAGES := $(QT_PACKAGES) libxkbcommon-x11-0 libxcb-cursor0 libxcb-icccm4 libxcb-image0 libxcb-keysyms1 \
	libxcb-render-util0 libxcb-shape0
TEST_TOOLS := pulseaudio-utils alsa-utils flite espeak-ng sox $(QT_PACKAGES)
TEST_SERVERS := pulseaudio pipewire pipewire-bin pipewire-pulse wireplumber libspa-0.2-modules

# Several engines with several threads each on few cores are slower than one thread each.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.PHONY: help run window test lint samples kernels clean setup setup-dev system system-test models check-bench

help: ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: setup models ## install what is missing, then talk
	@echo "Starting the conversation. Ctrl-C ends it."
	@$(BIN)/vivavoce --no-ui $(ARGS)

window: setup models $(STAMPS)/ui ## install what is missing for the window too, then talk with it
	@bash packaging/system_packages.sh "$(RUN_PACKAGES) $(WINDOW_PACKAGES)"
	@$(BIN)/vivavoce $(ARGS)

test: setup-dev models ## install what is missing, then run every test that needs no GPU
	@echo "Running the tests."
	@$(BIN)/python -c "import PySide6.QtWidgets" 2>/dev/null || echo "The window's tests are skipped: Qt finds no libGL here."
	@$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -m "not gpu" \
		$$($(BIN)/python -c "import PySide6.QtWidgets" 2>/dev/null || echo "-p no:pytest-qt") $(TESTS)

lint: setup-dev ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-bench: setup ## recompute every metric of the committed benchmark documents
	$(BIN)/vivavoce bench check

samples: setup-dev ## make the sample questions again (assets/samples)
	@$(BIN)/python tools/make_samples.py

kernels: setup ## compile the CUDA kernels for every GPU that we know (needs nvcc, no GPU)
	@$(BIN)/python packaging/build_kernels.py $(ARGS)

clean: ## delete the virtual environment and everything that was built; models stay
	@echo "Deleting $(VENV), build folders and caches. The models stay; delete them with: vivavoce models remove NAME"
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis gpu/cuda/prebuilt
	@find app audio gpu tests tools -name __pycache__ -prune -exec rm -rf {} +

setup: system $(STAMPS)/app
setup-dev: system-test $(STAMPS)/app $(STAMPS)/dev

system:
	@bash packaging/system_packages.sh "$(RUN_PACKAGES)"

system-test:
	@bash packaging/system_packages.sh "$(RUN_PACKAGES)" "$(TEST_TOOLS)" "$(TEST_SERVERS)"

models: $(STAMPS)/app
	@$(BIN)/vivavoce models fetch

$(STAMPS)/venv: | system-order
	@bash packaging/make_venv.sh $(VENV) $(PYTHON)
	@mkdir -p $(STAMPS) && touch $@

# The system packages hold python3-venv, so they come first; order only, or every run would be a new install.
.PHONY: system-order
system-order: system

$(STAMPS)/runtime: requirements/runtime.txt $(STAMPS)/venv
	@echo "Installing the libraries pinned in requirements/runtime.txt (about 0.5 GB on disk)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/runtime.txt
	@touch $@

$(STAMPS)/torch: packaging/install_torch.sh $(STAMPS)/runtime
	@bash packaging/install_torch.sh $(BIN)/python $(TORCH_VERSION) $(TORCH_INDEX)
	@touch $@

$(STAMPS)/ui: requirements/ui.txt $(STAMPS)/torch
	@echo "Installing the window's toolkit pinned in requirements/ui.txt (about 0.25 GB on disk)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/ui.txt
	@touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/torch
	@echo "Installing the test tools pinned in requirements/dev.txt."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@touch $@

$(STAMPS)/app: pyproject.toml setup.py app/version.py $(STAMPS)/torch
	@echo "Installing vivavoce itself into $(VENV), as a link to this folder."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
