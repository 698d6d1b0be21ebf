#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CMake options for the GPU kernels that this machine needs: all of them take minutes to compile.
# Usage: tools/build/cuda_archs.sh <what to build where there is no NVIDIA GPU: an architecture such as 80, or none>
set -euo pipefail
archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d ' .' | sort -u) || archs=
if [ -n "$archs" ]; then
  # The architecture itself and its architecture-specific variants.
  list=$(for arch in $archs; do echo "$arch,${arch}a,${arch}f"; done | paste -sd,)
  echo "-DMICA_CUDA=AUTO -DMICA_CUDA_ARCHS=$list -DMICA_CUDA_MATCH="
elif [ "${1:-none}" = none ]; then
  echo "-DMICA_CUDA=OFF"
else
  # Without fp16's kernels, whose source is bf16's: they take as long to compile again.
  echo "-DMICA_CUDA=AUTO -DMICA_CUDA_ARCHS=$1 -DMICA_CUDA_MATCH=^(?!.*fp16)"
fi
