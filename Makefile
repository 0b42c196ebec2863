# SPDX-License-Identifier: Apache-2.0
# A thin front for CMake; `cmake -B build && cmake --build build && ctest --test-dir build` works by itself.
#
# Variables, as in `make test WERROR=ON`:
#   build, test   WERROR=ON|OFF GEMM=onednn|cblas CUDA=AUTO|ON|OFF BUILD_TYPE=Release|Debug CMAKE_FLAGS=... (CMake keeps
#                 them in the build folder until changed), JOBS=N
#   test          TEST_JOBS=N at a time: two more than twice JOBS, for ranks wait for each other and drills for the moment
#   install       PREFIX=...
#   test-cluster  SCENARIOS="chain node ...": see tests/system/cluster/cluster_test.sh
#   fuzz          SECONDS=N for each parser, CLANGXX=clang++
#   finetune      RANKS=N
#   run           TEXT="FILE..." RUN_DIR=... RANKS=N CONFIG=... PROMPT=...: see scripts/run-example.sh

SHELL := bash
# Empty means CMake's own default; set here so that a variable of the environment does not slip in.
WERROR =
GEMM =
CUDA =
BUILD_TYPE =
CMAKE_FLAGS =
BUILD = build
PREFIX = /usr/local
JOBS := $(shell nproc 2>/dev/null || echo 2)
TEST_JOBS = $(shell echo $$((2 * $(JOBS) + 2)))
SECONDS = 60
SCENARIOS =
CLANGXX = clang++
CLANG_FORMAT := $(firstword $(shell command -v clang-format-14) clang-format)

configure_flags = $(if $(BUILD_TYPE),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE)) $(if $(WERROR),-DLLAMPI_WERROR=$(WERROR)) \
                  $(if $(GEMM),-DLLAMPI_GEMM=$(GEMM)) $(if $(CUDA),-DLLAMPI_CUDA=$(CUDA)) $(CMAKE_FLAGS)
sources = find $(wildcard include src tests emulator bench examples) -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'

# The make that CMake calls stands for itself: it does not take this one's variables and job slots.
cmake = env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS cmake

.PHONY: help setup configure program example-program build run finetune test test-cluster fuzz sanitize install bundle format format-check shellcheck tidy \
        docs manual options clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: ## install what the build needs and is missing, or say what to install
	@GEMM=$(GEMM) scripts/setup.sh $(if $(filter-out run finetune program example-program install test-cluster,$(MAKECMDGOALS)),--tests)
	@CUDA=$(CUDA) scripts/fetch-cudnn-frontend.sh $(BUILD)/cudnn-frontend

configure: setup
	@$(cmake) -S . -B $(BUILD) $(configure_flags)

build: configure ## build/llampi and the tests
	@$(cmake) --build $(BUILD) --parallel $(JOBS)

program: configure ## build the program alone, without the tests, which take longer
	@$(cmake) --build $(BUILD) --parallel $(JOBS) --target program

# What the examples start: without a GPU here, the GPU code, if it has not been built yet, is left for `make program` or `make build`.
example-program: configure
	@target=$(if $(wildcard /dev/nvidia[0-9]* /dev/dxg $(BUILD)/libllampi_cuda.so),program,llampi); \
	$(cmake) --build $(BUILD) --parallel $(JOBS) --target $$target && \
	if [ $$target = llampi ] && $(cmake) --build $(BUILD) --target help | grep llampi_cuda >/dev/null; then \
	  echo "built for CPUs; make program builds the GPU code, too"; \
	fi

run: example-program ## train a small Llama on 2 ranks and sample from it (TEXT="FILE..." for your own text)
	@LLAMPI=$(BUILD)/llampi scripts/run-example.sh

finetune: example-program ## fine-tune a small Llama on questions that come with it, printing each command
	@LLAMPI=$(BUILD)/llampi scripts/finetune-example.sh

test: build ## run the tests, all but the long ones
	@. scripts/mpi-env.sh && ctest --test-dir $(BUILD) --output-on-failure --output-junit tests.xml --parallel $(TEST_JOBS) -LE long

test-cluster: program ## the job scripts on a real Slurm, whose nodes are namespaces of this machine: needs root, about ten minutes
	@tests/system/cluster/cluster_test.sh . $(BUILD)/llampi $(SCENARIOS)

# A build of its own: faster code, which takes longer to compile than to run in `make test`.
fuzz: ## let the fuzzer look for inputs that break a parser, SECONDS=60 for each parser
	@$(cmake) -S tests/fuzz -B $(BUILD)/fuzz-long -DCMAKE_CXX_COMPILER=$(CLANGXX) -DCMAKE_CXX_FLAGS=-O1
	@$(cmake) --build $(BUILD)/fuzz-long --parallel $(JOBS)
	@for target in $$(find $(BUILD)/fuzz-long -maxdepth 1 -name 'fuzz_*' -executable); do \
	    tests/fuzz/run.sh $$target -max_total_time=$(SECONDS) || exit; done

sanitize: setup ## tests of threads and checkpoints under the thread, address and undefined-behaviour sanitizers: takes long
	@scripts/sanitize.sh $(BUILD) $(JOBS)

install: program ## install into PREFIX (/usr/local)
	@$(cmake) --install $(BUILD) --prefix "$(PREFIX)"

bundle: configure ## build/bundle/llampi-VERSION-x86_64.tar.gz: runs on other machines as it is; with the GPU tests
	@GEMM=$(GEMM) scripts/setup.sh --bundle
	@$(cmake) --build $(BUILD) --parallel $(JOBS) --target bundle_contents
	@scripts/make-bundle.sh $(BUILD)

format: ## format the C++ code
	@$(sources) | xargs -r $(CLANG_FORMAT) -i

format-check: ## fail where `make format` would change something
	@$(sources) | xargs -r $(CLANG_FORMAT) --dry-run --Werror

shellcheck: ## look for mistakes in shell scripts
	@scripts/setup.sh --shellcheck
	@grep -rlE '^#!.*\<(ba)?sh$$|^# shellcheck shell=' --exclude-dir=.git --exclude-dir=$(BUILD) --exclude-dir='build*' --exclude-dir=runs . | xargs shellcheck -x

tidy: program ## look for the mistakes that .clang-tidy lists: about two minutes on two cores
	@scripts/setup.sh --tidy
	@scripts/tidy.sh $(BUILD) $(JOBS)

docs: ## the library's reference as HTML in build/doxygen; fails where a comment is malformed
	@scripts/setup.sh --docs
	@mkdir -p build/doxygen && doxygen docs/Doxyfile

manual: ## the manual as a site in build/site; fails where a link leads nowhere
	@scripts/setup.sh --manual
	@mkdocs build --quiet --strict --site-dir $(BUILD)/site
	@tests/system/manual/links.py . $(BUILD)/site

options: program ## write docs/options.md again, from the options of the program
	@scripts/options-page.py $(BUILD)/llampi docs/options.md

clean: ## remove the build folder; runs/ stays
	rm -rf $(BUILD)
