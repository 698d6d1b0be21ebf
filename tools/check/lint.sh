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

step "formatting" tools/check/format.sh
step "include layers" python3 tools/check/check_layers.py
step "ruff" .venv/bin/python tools/check/python_checks.py ruff
step "types" .venv/bin/python tools/check/python_checks.py types
step "clang-tidy" python3 tools/check/tidy.py --jobs "$jobs"
exit "$failed"
