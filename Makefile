# The front door. Every target first installs what it needs (scripts/setup.sh, Debian packages;
# TOUCHSTONE_SKIP_SETUP=1 leaves that out), then works through the presets of CMakePresets.json.
#
#   make test CTEST_ARGS="-R layer_norm"     passes arguments to ctest
#   make build CMAKE_ARGS=-DTOUCHSTONE_CUDA=OFF   configures again with these arguments
#   make build JOBS=1                        builds with one process

JOBS ?= $(shell nproc)
CMAKE_ARGS ?=
CTEST_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0
PREFIX ?= /usr/local
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

PROGRAM := build/release/touchstone
# A terminal shows one moving line; a log gets only what goes wrong.
QUIET := $(shell test -t 2 || echo --quiet)

setup = @scripts/setup.sh $(1)
# $(1) preset, $(2) what to build
build = @cmake --build --preset $(1) --parallel $(JOBS) --target $(2) -- $(QUIET)
ctest = @ctest --preset $(1) --parallel $(JOBS) $(CTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help run selfcheck build check lint test test-asan test-tsan peers-test real-model fuzz bench gpu-test cuda \
  cuda-compile format format-check tidy odr install clean setup-build setup-cuda reconfigure

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup-build build/release/build.ninja ## Build, judge the bundled contenders, write touchstone-report.html
	$(call build,release,touchstone_cli touchstone_contenders)
	@$(PROGRAM) judge --html touchstone-report.html --json touchstone-report.json

selfcheck: setup-build build/release/build.ninja ## Show this machine, check the operators, a short benchmark
	$(call build,release,touchstone_cli)
	@$(PROGRAM) info
	@$(PROGRAM) selfcheck
	@$(PROGRAM) bench all --case smoke

build: setup-build build/release/build.ninja ## Build everything for release; the program is build/release/touchstone
	$(call build,release,all)

check: build ## Build for release and run the tests that take seconds (label fast)
	@ctest --preset release --parallel $(JOBS) -L fast $(CTEST_ARGS)

# Arguments for ctest choose among its tests, so the fuzzers run only without them. Their seed is fixed:
# a change is tested by the same inputs as the one before it.
test: build ## Build for release, run all tests, fuzz the file readers for half a minute
	$(call ctest,release)
	@test -n "$(CTEST_ARGS)" || $(MAKE) fuzz FUZZ_SECONDS=8 FUZZ_SEED=1

peers-test: setup-build build/release/build.ninja ## Compare with packages of PyPI, in a private environment under build/
	$(call build,release,touchstone_cli touchstone_shared)
	@scripts/peers_test.sh

test-asan: setup-build build/asan/build.ninja ## The tests under AddressSanitizer and UBSan
	$(call build,asan,all)
	$(call ctest,asan)

test-tsan: setup-build build/tsan/build.ninja ## The tests under ThreadSanitizer
	$(call build,tsan,all)
	$(call ctest,tsan)

real-model: ## Bring SmolLM2-135M-Instruct (98 MB) into the cache folder, check it, say where it is
	@scripts/real_model.sh

# New inputs go to build/fuzz/corpus, never into the repository.
fuzz: setup-build ## Fuzz the readers of model files, tokenizers and templates, FUZZ_SECONDS each (60)
	$(call setup,fuzz)
	@cmake --preset fuzz >/dev/null
	$(call build,fuzz,fuzz_tensor_file fuzz_config fuzz_tokenizer fuzz_chat_template)
	@FUZZ_SEED=$(FUZZ_SEED) scripts/fuzz.sh $(FUZZ_SECONDS)

bench: setup-build ## Measure every operator on its full list of shapes, peers beside it
	$(call setup,bench)
	@# Configured anew, so that a peer installed one line above is found.
	@cmake --preset release $(CMAKE_ARGS) >/dev/null
	$(call build,release,touchstone_cli)
	@$(PROGRAM) bench all --case full

cuda: setup-cuda build/cuda/build.ninja ## Build everything with CUDA; needs nvcc, no GPU
	$(call build,cuda,all)

cuda-compile: setup-cuda build/cuda/build.ninja ## Compile the CUDA sources only
	@ninja -C build/cuda -j $(JOBS) $(QUIET) $$(ninja -C build/cuda -t targets all | sed -n 's/\.cu\.o:.*/.cu.o/p')

gpu-test: cuda ## Build with CUDA and run the tests that need a GPU
	@test -e /dev/nvidia0 || nvidia-smi -L || { echo "make gpu-test: no GPU here; 'make cuda' compiles without one" >&2; exit 1; }
	@ctest --preset cuda -L gpu $(CTEST_ARGS)

format: ## Format every source file
	$(call setup,tools)
	@scripts/sources.sh | xargs -0 clang-format -i

format-check: ## Fail if a source file is not formatted
	$(call setup,tools)
	@scripts/sources.sh | xargs -0 clang-format --dry-run --Werror

lint: ## Fail on an include against the order of the components, on a type defined twice, on too long a file, too full a directory
	@scripts/check_layout.py
	@scripts/check_odr.py

tidy: setup-build ## clang-tidy over all C++ sources, shellcheck over the scripts
	$(call setup,tools)
	@shellcheck scripts/*.sh .ci/run
	@$(MAKE) build/tidy/build.ninja
	$(call build,tidy,all)

# The program holds all of the library, the judge and the benchmarks. Tests would be linked whole sixty
# times more; check_odr.py reads them, too.
odr: setup-build build/odr/build.ninja ## Find types that two files define differently, by a Debug link of the program with -flto -Wodr
	@scripts/check_odr.py
	$(call build,odr,touchstone_cli)

install: build ## Install library, headers and program under PREFIX (/usr/local)
	@cmake --install build/release --prefix $(PREFIX)

clean: ## Remove everything that was built
	@rm -rf build

setup-build:
	$(call setup,build test)

setup-cuda: setup-build
	$(call setup,cuda)

# Ninja notices changed CMake files by itself; only the presets and CMAKE_ARGS need a push from here.
build/%/build.ninja: CMakePresets.json $(if $(CMAKE_ARGS),reconfigure) | setup-build
	@cmake --preset $* $(CMAKE_ARGS) >/dev/null
	@touch $@

reconfigure:
