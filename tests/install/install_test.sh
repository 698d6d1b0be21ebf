#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty prefix, then uses it as strangers do: find_package, pkg-config, the command; also after the
# whole tree has moved. Usage: install_test.sh <build folder> <folder of consumer/>
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { echo "+ $*" && "$@"; }

run cmake --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
library=$(dirname "$(find "$work/first" -name libmica.so)")
library=${library#"$work/first/"}
for file in include/mica/mica.h include/mica/mica.hpp include/mica/enums.h bin/mica "$library/pkgconfig/mica.pc" \
  "$library/cmake/mica/mica-config.cmake"; do
  [ -e "$work/first/$file" ] || { echo "not installed: $file"; exit 1; }
done
if grep -rIl "$build" "$work/first"; then echo "the files above name the build folder" && exit 1; fi

use() {
  local prefix=$1 name=$2
  run cmake -S "$source/consumer" -B "$work/$name" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 &&
    run cmake --build "$work/$name" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  run "$work/$name/consumer_c"
  run "$work/$name/consumer_cpp"

  export PKG_CONFIG_PATH=$prefix/$library/pkgconfig
  read -ra flags <<<"$(pkg-config --cflags --libs mica)"
  run cc -std=c99 -Wall -Wextra -pedantic -Werror "$source/consumer/consumer.c" "${flags[@]}" -o "$work/$name/by_pc_c"
  run c++ -std=c++20 -Wall -Wextra -Werror "$source/consumer/consumer.cc" "${flags[@]}" -o "$work/$name/by_pc_cpp"
  if c++ -std=c++17 -fsyntax-only "$source/consumer/consumer.cc" "${flags[@]}" 2>"$work/old"; then
    echo "mica.hpp was compiled as C++17" && exit 1
  fi
  [ "$(grep -c error: "$work/old")" = 1 ] && grep -q "wants C++20" "$work/old" || { cat "$work/old"; exit 1; }
  run env LD_LIBRARY_PATH="$prefix/$library" "$work/$name/by_pc_c"
  run env LD_LIBRARY_PATH="$prefix/$library" "$work/$name/by_pc_cpp"
  run "$prefix/bin/mica" info >"$work/info" || { cat "$work/info"; exit 1; }
}
use "$work/first" consumer
mv "$work/first" "$work/moved"
use "$work/moved" consumer_of_moved
echo "installed, used by find_package and pkg-config, moved, used again"
