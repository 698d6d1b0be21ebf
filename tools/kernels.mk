# SPDX-License-Identifier: Apache-2.0
# GPU images. Included by the Makefile, which gives PYTHON (a Python that has NVRTC: the tree's .venv).
#   make kernels                       every row of src/cuda/kernels.def, every architecture
#   make kernels MATCH=forward.*d128   only kernels whose name matches
#   make kernels ARCH=86               only these architectures
PYTHON ?= .venv/bin/python
MATCH ?=
ARCH ?=

.PHONY: kernels
kernels:
	$(PYTHON) tools/build_kernels.py --match '$(MATCH)' --arch '$(ARCH)'
