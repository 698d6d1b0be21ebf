#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what a task needs, and says so: Debian packages by apt (sudo when not root), Python packages into .venv.
# Usage: tools/build/bootstrap.sh [demo] [build] [test] [lint] [bench] [wheel] [python] [slurm]     Where everything is there already, it does nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

# "a|b": the first that the distribution has. A trailing "?": what needs it is skipped where it cannot be had. What a
# distribution does not know at all is asked for once (remove this file to ask again).
absent=.cache/absent-packages
apt_demo="cmake ninja-build g++ make libhwy-dev libzstd-dev ccache?"
apt_build="$apt_demo libcli11-dev nlohmann-json3-dev zlib1g-dev libtomlplusplus-dev? python3 python3-venv"
apt_test="libgtest-dev binutils pkg-config|pkgconf clang? libclang-rt-dev|libclang-rt-14-dev? libomp-dev? clang-tidy? qemu-user-static|qemu-user?"
# The other architecture's C library, for qemu.
case $(uname -m) in
  x86_64) apt_test="$apt_test libc6-arm64-cross?" ;;
  aarch64) apt_test="$apt_test libc6-amd64-cross?" ;;
esac
apt_lint="clang-format clang-tidy"
apt_bench=""
apt_wheel=""
apt_slurm="slurm-wlm? munge?"
apt_python=""

say() { printf 'bootstrap: %s\n' "$*"; }
installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
any_installed() {
  local name
  for name in ${1//|/ }; do if installed "$name"; then return 0; fi; done
  return 1
}
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
apt_install() {
  DEBIAN_FRONTEND=noninteractive as_root apt-get install -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@" </dev/null
}
first_known() {
  local name
  for name in ${1//|/ }; do
    if apt-cache show "$name" >/dev/null 2>&1; then echo "$name" && return; fi
  done
}

install_debian() {
  local entry name required=() optional=()
  for entry in "$@"; do
    any_installed "${entry%\?}" && continue
    [ -f "$absent" ] && grep -qxF "$entry" "$absent" && continue
    case $entry in *\?) optional+=("${entry%\?}") ;; *) required+=("$entry") ;; esac
  done
  [ $((${#required[@]} + ${#optional[@]})) = 0 ] && return
  if ! command -v apt-get >/dev/null; then
    say "this system has no apt; please install: ${required[*]} (and, if you can: ${optional[*]})"
    return
  fi
  say "apt-get update (for: ${required[*]} ${optional[*]})"
  local is_fresh=yes
  if ! as_root apt-get update -qq </dev/null; then
    is_fresh=
    say "apt-get update failed; trying with the lists that are there"
  fi
  local names=()
  for entry in "${required[@]}"; do
    name=$(first_known "$entry")
    names+=("${name:-${entry%%|*}}")
  done
  if [ ${#names[@]} -gt 0 ]; then
    say "apt-get install ${names[*]}"
    apt_install "${names[@]}" || { say "could not install ${names[*]}"; exit 1; }
  fi
  for entry in "${optional[@]}"; do
    name=$(first_known "$entry")
    say "apt-get install ${name:-$entry}"
    if [ -n "$name" ] && apt_install "$name"; then continue; fi
    say "$entry cannot be had here: what needs it will be skipped"
    if [ -z "$name" ] && [ -n "$is_fresh" ]; then mkdir -p "${absent%/*}" && echo "$entry?" >>"$absent"; fi
  done
}

# One requirements file into .venv; a version that is there already costs no network.
install_python() {
  local file=tools/build/requirements/$1.txt
  [ -f "$file" ] || return 0
  if [ ! -x .venv/bin/python ]; then
    say "python3 -m venv .venv"
    python3 -m venv .venv || { say "no virtual environment: what needs Python packages will be skipped"; return 0; }
  fi
  .venv/bin/python - "$file" <<'PYTHON' && return 0
import importlib.metadata, sys
for line in open(sys.argv[1]):
    if line.startswith("# What these need"): break  # of which another version may be there, as another package asks for
    line = line.split("#")[0].rstrip(" \\\n")
    if not line or line.startswith(" "): continue  # a hash
    name, _, version = line.partition("==")
    try:
        if importlib.metadata.version(name) != version and version: sys.exit(1)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(1)
PYTHON
  local options=() plan
  if grep -q '^torch' "$file"; then read -ra options <<<"$(.venv/bin/python tools/build/torch_index.py)"; fi
  plan=$(.venv/bin/python tools/build/pip_plan.py -r "$file" "${options[@]}" </dev/null) || true
  say "pip install -r $file ${options[*]} into .venv: $plan"
  .venv/bin/python -m pip install --disable-pip-version-check --no-input -q -r "$file" "${options[@]}" </dev/null ||
    say "pip could not install $file: what needs it will be skipped"
}

for task in "$@"; do
  packages=apt_$task
  if [ -z "${!packages+set}" ]; then say "no such task: $task"; exit 2; fi
  read -ra wanted <<<"${!packages}"
  install_debian "${wanted[@]}"
  install_python "$task"
done
