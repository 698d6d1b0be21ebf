#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that every source file is formatted, or formats them all. Usage: tools/check/format.sh [--write]
# Exit status 77: there is no clang-format 14 here; another version breaks lines elsewhere.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
tool=$(command -v clang-format-14 || command -v clang-format) || { echo "skipped: no clang-format"; exit 77; }
"$tool" --version | grep -q ' 14\.' || { echo "skipped: $("$tool" --version), want 14"; exit 77; }
git rev-parse --git-dir >/dev/null 2>&1 || { echo "skipped: no git checkout, so no list of source files"; exit 77; }
# Fragments (.inc) are tables that a program writes, or lines whose order matters.
sources() { git ls-files '*.h' '*.hpp' '*.c' '*.cc' '*.cu' '*.cuh'; }
if [ "${1:-}" = --write ]; then
  sources | xargs "$tool" -i
else
  files=$(sources | xargs "$tool" --dry-run --Werror 2>&1 | sed -n 's/:[0-9]*:[0-9]*: error:.*//p' | sort -u)
  [ -z "$files" ] || { echo "$files" && echo "not formatted: make format" && exit 1; }
fi
