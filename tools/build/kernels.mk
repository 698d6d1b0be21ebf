# SPDX-License-Identifier: Apache-2.0
# GPU images and GPU tests. Included by the Makefile.
#   make kernels                       every row of src/cuda/kernels.def, every architecture
#   make kernels MATCH=forward.*d128   only kernels whose name matches
#   make kernels ARCH=86               only these architectures
MATCH ?=
ARCH ?=

.PHONY: kernels gpu-test gpu-bundle
kernels: ## compile the GPU kernels (MATCH=regex, ARCH=86,90)
	@tools/build/bootstrap.sh build
	.venv/bin/python tools/build/build_kernels.py --match '$(MATCH)' --arch '$(ARCH)'

gpu-test: build ## every conformance case on this machine's GPU; the same bits, graphs, streams, threads, large tensors
	MICA_TEST_BACKEND=cuda build/bin/conformance_test --gtest_brief=1
	build/bin/cuda_gpu_test --gtest_brief=1

gpu-bundle: cross-x86_64 ## out/gpu-bundle: what to copy to an x86_64 machine with a GPU that can install nothing
	tools/build/gpu_bundle.sh build-x86_64 out/gpu-bundle
