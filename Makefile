# SPDX-License-Identifier: Apache-2.0
# The front door. Each target installs what it needs (tools/build/bootstrap.sh), configures by a CMake preset and runs.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
BOOTSTRAP := tools/build/bootstrap.sh
# GPU architectures to make kernels for, as in 80,90a; empty: all.
CUDA_ARCHS ?=
ALL_KERNELS = -DMICA_CUDA=AUTO -DMICA_CUDA_ARCHS=$(CUDA_ARCHS) -DMICA_CUDA_MATCH=
# What runs here needs only the kernels of the GPU that is here; without one, none.
LOCAL_KERNELS = $(if $(CUDA_ARCHS),$(ALL_KERNELS),$$(tools/build/cuda_archs.sh none))
# CPU architectures to make wheels for.
ARCHS ?= x86_64 aarch64
SECONDS_EACH ?= 60
PARSERS := cache elf fatbin log system target text wheel
# $(call build,preset,options): configures (quick where nothing changed) and builds; ninja shows the progress.
build = cmake --preset $(1) --log-level=WARNING $(2) >/dev/null && cmake --build --preset $(1) --parallel $(JOBS)

.DEFAULT_GOAL := build
.PHONY: build demo test test-all fuzz bench builder-truth doctor-truth transformers-truth format lint cross-x86_64 cross-aarch64 wheel wheel-test install clean help

build: ## build the library with all GPU kernels and the command into build/; the tests are targets there
	@$(BOOTSTRAP) build test
	@$(call build,release,-DMICA_BUILD_TESTS=ON $(ALL_KERNELS)) --target mica mica_command mica_launcher

demo: ## the textbook against tiles: time, memory, error; writes out/demo.svg
	@$(BOOTSTRAP) demo
	@$(call build,demo)
	@mkdir -p out
	build-demo/bin/mica_demo out/demo.svg

test: ## the tests, in a few minutes
	@$(BOOTSTRAP) build test wheel
	@JOBS=$(JOBS) tools/check/test.sh fast

test-all: ## also the long ones, every kernel and all sanitizers; writes docs/evidence/test-all.md
	@$(BOOTSTRAP) build test wheel slurm
	@JOBS=$(JOBS) tools/check/test.sh all

fuzz: ## libFuzzer over every parser of the doctor, SECONDS_EACH (60) each; what it finds new stays in out/fuzz
	@$(BOOTSTRAP) build test
	@cmake --preset asan --log-level=WARNING -DMICA_BUILD_TESTS=ON -DMICA_SANITIZED_OPTIMIZATION=-O1 >/dev/null
	@cmake --build --preset asan --parallel $(JOBS) --target $(addsuffix _fuzz,$(PARSERS))
	@for parser in $(PARSERS); do \
	  mkdir -p out/fuzz/$$parser && echo "fuzz: $$parser" && \
	  build-asan/bin/$${parser}_fuzz -max_total_time=$(SECONDS_EACH) -max_len=20000 -timeout=10 -rss_limit_mb=2048 \
	    -print_final_stats=1 -artifact_prefix=out/fuzz/$$parser- out/fuzz/$$parser tests/fuzz/corpus/$$parser \
	    >out/fuzz/$$parser.log 2>&1 || { tail -40 out/fuzz/$$parser.log; exit 1; }; \
	  grep -E "^stat::number_of_executed_units|DONE" out/fuzz/$$parser.log; \
	done

doctor-truth: ## the doctor against real packages in throw-away Pythons (downloads 10 GB; TRUTH="--wheels FOLDER --jobs 2"); writes docs/evidence/doctor-truth-ARCH.md
	@$(BOOTSTRAP) build
	@$(call build,release,-DMICA_BUILD_TESTS=OFF $(LOCAL_KERNELS))
	python3 tools/truth/doctor_truth.py build/bin/mica --output docs/evidence/doctor-truth-$$(uname -m).md $(TRUTH)

bench: ## time the default suite, then beside PyTorch (from pip); writes out/bench.json and out/compare-cpu.json
	@$(BOOTSTRAP) build bench
	@$(call build,release,-DMICA_BUILD_TESTS=OFF $(LOCAL_KERNELS))
	@mkdir -p out
	build/bin/mica bench --output out/bench.json
	@if .venv/bin/python -c 'import torch' 2>/dev/null; then \
	  .venv/bin/python bench/compare.py --device cpu --json out/compare-cpu.json; \
	else echo 'bench: no PyTorch here, so there is nothing to compare with'; fi

builder-truth: ## mica build against real projects (CASES="abi causal-conv1d flash-attn"); writes docs/evidence/builder-truth.json
	@$(BOOTSTRAP) build
	@$(call build,release,-DMICA_BUILD_TESTS=OFF $(LOCAL_KERNELS))
	.venv/bin/python tools/truth/builder_truth.py build/bin/mica $(CASES) $(TRUTH_OPTIONS)

transformers-truth: ## every model of the installed Transformers against eager; resumable; writes docs/evidence/transformers-truth.md
	@$(BOOTSTRAP) build python
	@$(call build,release,-DMICA_BUILD_TESTS=OFF $(LOCAL_KERNELS)) --target mica
	.venv/bin/python tools/truth/transformers_truth.py --table docs/evidence/transformers-truth.md $(MODELS)

format: ## format every source file
	@$(BOOTSTRAP) lint
	tools/check/format.sh --write

lint: ## formatting, include layers, ruff, mypy, clang-tidy over all of src and cli
	@$(BOOTSTRAP) build test lint
	@$(call build,release,-DMICA_BUILD_TESTS=ON $(LOCAL_KERNELS))
	@JOBS=$(JOBS) tools/check/lint.sh

cross-x86_64 cross-aarch64: cross-%: ## the same for another architecture, with zig, into build-<architecture>/
	@$(BOOTSTRAP) build test
	@$(call build,cross-$*,$(ALL_KERNELS))

wheel: ## the wheels of both architectures (ARCHS=...), with all GPU kernels, and of flash-attn, into out/wheels/
	@$(BOOTSTRAP) build test wheel
	@for arch in $(ARCHS); do \
	  $(call build,cross-$$arch,-DMICA_PINNED=REQUIRE $(ALL_KERNELS)) --target mica mica_command mica_launcher && \
	  .venv/bin/python tools/wheel/wheel.py --build build-$$arch --tag manylinux2014_$$arch || exit 1; done
	@for project in $(dir $(wildcard python/*/pyproject.toml)); do \
	  .venv/bin/python tools/wheel/wheel.py --pure $$project || exit 1; done

wheel-test: ## the wheels in out/wheels/ in fresh environments of many Pythons and PyTorches; writes docs/evidence/wheel-matrix.md
	@$(BOOTSTRAP) test wheel
	.venv/bin/python tools/wheel/wheel_matrix.py --report docs/evidence/wheel-matrix.md \
	  out/wheels/mica_attention-*.whl out/wheels/flash_attn-*.whl

install: build ## install into PREFIX (default /usr/local)
	cmake --install build $(if $(PREFIX),--prefix $(PREFIX))

clean: ## remove what was built; .venv and .cache stay
	rm -rf build build-* out

help: ## this list
	@grep -hE '^[a-z][a-z0-9_ -]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 28

# kernels, gpu-test, gpu-bundle
include tools/build/kernels.mk
