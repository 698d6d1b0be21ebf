#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks Debian's zlib1g-dev and libzstd-dev of another architecture into a folder, for a cross build. Needs apt, no root: lists and
# cache of its own. Usage: tools/build/fetch_zlib.sh x86_64|aarch64 FOLDER
set -euo pipefail
case $1 in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  *) echo "no Debian architecture for $1" && exit 2 ;;
esac
folder=$2
command -v apt-get >/dev/null || { echo "this system has no apt: set MICA_ZLIB_ROOT and MICA_ZSTD_ROOT to a zlib and a zstd for $1"; exit 1; }
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
touch "$state/status"
options=(-qq -o APT::Architecture=$architecture -o APT::Architectures=$architecture -o Dir::State="$state"
  -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o APT::Sandbox::User=root
  -o Acquire::Languages=none)
apt-get "${options[@]}" update
(cd "$state" && apt-get "${options[@]}" download zlib1g-dev libzstd-dev)
mkdir -p "$folder"
for package in "$state"/*.deb; do dpkg -x "$package" "$folder"; done
