#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formatting, include layers, and clang-tidy over the files that build/compile_commands.json knows.
# Exit status 1 if anything is found.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
jobs=${JOBS:-$(nproc)}
failed=0
step() {
  echo "lint: $1"
  shift
  "$@" || failed=1
}

sources() { git ls-files '*.h' '*.hpp' '*.c' '*.cc' '*.inc' '*.cu' '*.cuh'; }
check_format() {
  local files
  files=$(sources | xargs clang-format --dry-run --Werror 2>&1 | sed -n 's/:[0-9]*:[0-9]*: error:.*//p' | sort -u)
  [ -z "$files" ] || { echo "$files" && echo "not formatted: make format" && return 1; }
}
check_tidy() {
  # The per-instruction-set files say the same thing once per set: one of them is enough.
  git ls-files 'src/api/*.cc' 'src/base/*.cc' 'src/cpu/*.cc' 'src/cuda/*.cc' 'src/conformance/*.cc' 'cli/*.cc' |
    grep -v '/isa_[^l]' | grep -Ff - <(sed -n 's/^ *"file": "\(.*\)".*/\1/p' build/compile_commands.json) |
    xargs -P "$jobs" -n 1 clang-tidy -p build --quiet 2>/dev/null
}

step "formatting" check_format
step "include layers" python3 tools/check/check_layers.py
step "clang-tidy" check_tidy
exit "$failed"
