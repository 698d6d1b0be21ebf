#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the tests, step by step, and ends with a summary of all steps.
# Usage: tools/check/test.sh fast|all       fast: under 20 minutes on two cores from nothing. all: every test and sanitizer.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
level=${1:-fast}
jobs=${JOBS:-$(nproc)}
results=$PWD/out/test-results
rm -rf "$results" && mkdir -p "$results"
failed=0

say() { printf '\n=== %s  [%d s]\n' "$*" "$SECONDS"; }

# build <preset> <target> [cmake options]: a failure to build is a failed step of its own.
build() {
  local preset=$1 target=$2
  shift 2
  say "build: $preset"
  cmake --preset "$preset" --log-level=WARNING -DMICA_BUILD_TESTS=ON -DMICA_UNITY=$unity "$@" >/dev/null &&
    cmake --build --preset "$preset" --parallel "$jobs" --target "$target" && return 0
  echo "build of preset $preset failed" >"$results/$preset.failed"
  failed=1
  return 1
}

# run <step> <folder> [ctest options]
run() {
  local step=$1 folder=$2
  shift 2
  say "test: $step"
  ctest --test-dir "$folder" --parallel "$jobs" --output-on-failure --no-tests=error --progress \
    --test-output-size-passed 1000000 --output-junit "$results/$step.xml" "$@" || failed=1
}

# The Python tests, on the wheel that this build makes, installed into a folder of its own. They use one core.
python_tests() {
  local python=.venv/bin/python site=$PWD/out/test-site project
  say "build: wheel"
  rm -rf out/test-wheels "$site"
  "$python" tools/wheel/wheel.py --build build --tag "linux_$(uname -m)" --out out/test-wheels || return 1
  for project in python/*/pyproject.toml; do
    [ ! -f "$project" ] || "$python" tools/wheel/wheel.py --pure "${project%/*}" --out out/test-wheels || return 1
  done
  "$python" -m pip install --disable-pip-version-check -q --no-index --no-deps --target "$site" \
    out/test-wheels/*.whl || return 1
  say "test: python"
  MICA_TEST_ALL=${level#fast} MICA_TEST_INSTALLED=$site PYTHONPATH=$site "$python" -m pytest tests/python -q \
    -p no:cacheprovider --junitxml "$results/python.xml"
}

skip() { echo "$2" >"$results/$1.skipped" && say "skipped: $1: $2"; }

labels=(-L fast)
sanitized=OFF  # the builder and the command, too
unity=ON
sanitized_isas=least  # one takes minutes to compile with sanitizers; the others' turn is a full run
# Without a GPU here, the architecture with the least shared memory is made and checked; a full run makes them all.
read -ra kernels <<<"$(tools/build/cuda_archs.sh 86)"
if [ "$level" = all ]; then
  labels=()
  kernels=(-DMICA_CUDA=AUTO -DMICA_CUDA_ARCHS= -DMICA_CUDA_MATCH= -DMICA_EMULATED_KERNELS=.)
  sanitized=ON
  unity=OFF
  sanitized_isas=all
fi

# PyTorch is large: it comes while the library is compiled.
tools/build/bootstrap.sh python &
packages=$!
python_job=

if build release all "${kernels[@]}"; then
  run release build "${labels[@]}" -LE torch
  wait $packages
  run builder build "${labels[@]}" -L torch
  if ! .venv/bin/python -c 'import pytest, scikit_build_core' 2>/dev/null; then
    skip python "pytest or scikit-build-core is not in .venv (pip could not be reached)"
  else
    say "test: python, beside what follows"
    python_tests >"$results/python.log" 2>&1 &
    python_job=$!
  fi
fi

if command -v clang++ >/dev/null; then
  build asan all "${kernels[@]}" -DMICA_SANITIZE_ALL=$sanitized -DMICA_BUILD_CLI=$sanitized \
    -DMICA_CPU_ISAS=$sanitized_isas &&
    run address+undefined build-asan "${labels[@]}"
  if [ "$level" = all ]; then
    build tsan threads_tests -DMICA_CUDA=OFF && run thread build-tsan -L threads
  fi
else
  skip sanitizers "clang is not to be had here"
fi

# The other architecture: a defect that only one of the two shows is found on either. The library and a few tests of it
# always, everything that runs in the emulator in a full run.
other=$([ "$(uname -m)" = x86_64 ] && echo aarch64 || echo x86_64)
cross_target=cross_tests
cross_label=cross
if [ "$level" = all ]; then
  cross_target=all
  cross_label='cross|emulated'
fi
if ! .venv/bin/python -c 'import ziglang' 2>/dev/null; then
  skip "cross-$other" "ziglang is not in .venv (pip could not be reached)"
elif [ -z "$(command -v "qemu-$other-static" || command -v "qemu-$other")" ]; then
  skip "cross-$other" "qemu-$other is not to be had here"
else
  build "cross-$other" "$cross_target" -DMICA_CUDA=OFF && run "cross-$other" "build-$other" -L "$cross_label"
fi

if [ -n "$python_job" ]; then
  say "waiting for the Python tests"
  if ! wait $python_job; then
    failed=1
    [ -e "$results/python.xml" ] || echo "no wheel of this build could be made and installed" >"$results/python.failed"
  fi
  cat "$results/python.log"
fi
wait
python3 tools/check/summary.py "$results" --level "$level" --seconds "$SECONDS" || failed=1
exit "$failed"
