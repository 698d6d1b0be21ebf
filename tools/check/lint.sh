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

check_tidy() {
  # The per-instruction-set files say the same thing once per set: one of them is enough.
  git ls-files 'src/*.cc' 'cli/*.cc' |
    grep -v '/isa_[^l]' | grep -Ff - <(sed -n 's/^ *"file": "\(.*\)".*/\1/p' build/compile_commands.json) |
    xargs -P "$jobs" -n 1 clang-tidy -p build --quiet 2>/dev/null
}

step "formatting" tools/check/format.sh
step "include layers" python3 tools/check/check_layers.py
step "ruff" .venv/bin/python tools/check/python_checks.py ruff
step "types" .venv/bin/python tools/check/python_checks.py types
step "clang-tidy" check_tidy
exit "$failed"
