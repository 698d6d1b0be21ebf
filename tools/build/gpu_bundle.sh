#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gathers what a machine with a GPU needs to test and time Mica, and nothing that must be installed there: one folder to
# copy. Usage: tools/build/gpu_bundle.sh BUILD_FOLDER BUNDLE_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1 bundle=$2
rm -rf "$bundle"
mkdir -p "$bundle/lib" "$bundle/bin" "$bundle/include/mica"
# Copies, not links: not every way of copying a folder keeps links.
library=$(find "$build" -name 'libmica.so.*.*' -type f | head -n 1)
for name in libmica.so libmica.so.0; do cp "$library" "$bundle/lib/$name"; done
cp "$build/bin/mica" "$build/bin/conformance_test" "$build/bin/cuda_gpu_test" "$bundle/bin/"
for test in "$build"/bin/api_*_test; do if [ -x "$test" ]; then cp "$test" "$bundle/bin/"; fi; done
cp include/mica/*.h include/mica/*.hpp "$bundle/include/mica/"
if [ -d bench ]; then cp -r bench "$bundle/bench"; fi
# The Python package finds ../lib/libmica.so; its tests run where PyTorch and pytest are.
cp -rL python "$bundle/python" && mkdir -p "$bundle/tests" && cp -r tests/python "$bundle/tests/python"
# tools/truth/run_upstream_tests.py --tree tests the drop-in of the bundle with flash-attention's own tests.
mkdir -p "$bundle/tools/truth" && cp tools/truth/run_upstream_tests.py "$bundle/tools/truth/"
cp tools/check/gpu_sanitizers.py "$bundle/"
find "$bundle" -name __pycache__ -prune -exec rm -rf {} +
find "$build" -name resources.json -path '*images*' -exec cp {} "$bundle/" \;
git log -1 --format=%H >"$bundle/COMMIT" 2>/dev/null || true

cat >"$bundle/gpu-test" <<'SCRIPT'
#!/bin/sh
# Every conformance case on GPU 0, compared with a double-precision reference, and what no case can see: the same bits
# from run to run, graphs, streams, threads, large tensors. Options go to `mica check`.
here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
"$here/bin/mica" info
"$here/bin/cuda_gpu_test" --gtest_brief=1 || failed=1
"$here/bin/mica" check --backend cuda "$@" || failed=1
exit "${failed:-0}"
SCRIPT
printf 'gpu-test:\n\t./gpu-test\n' >"$bundle/Makefile"
chmod +x "$bundle/gpu-test"

bytes=$(du -sb "$bundle" | cut -f1)
echo "$bundle: $((bytes / 1000000)) MB"
[ "$bytes" -lt 60000000 ] || { echo "the bundle has $bytes bytes, want less than 60 MB"; exit 1; }
