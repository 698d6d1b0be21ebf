#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks a CPython of Debian or Ubuntu, with the C library that it wants, into a folder: a Python and a glibc that this
# machine does not have, to test a wheel with. Needs apt, no root: lists and cache of its own.
# Free-threaded ones (3.14t) are in no distribution, and Ubuntu's for Arm have a mirror of their own that may be out of
# reach: these are compiled from the distribution's source, for this machine (five minutes on one core).
# Usage: tools/build/fetch_python.sh 3.9|3.10|...|3.14|3.14t|3.15 x86_64|aarch64 FOLDER
set -euo pipefail
version=${1%t} folder=$(realpath -m "$3") compile=
[ "$version" = "$1" ] || compile=--disable-gil
case $2 in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  *) echo "no Debian architecture for $2" && exit 2 ;;
esac
debian=http://deb.debian.org/debian
ubuntu=http://archive.ubuntu.com/ubuntu
ports=http://ports.ubuntu.com/ubuntu-ports
case $version in
  3.9) mirror=$debian suite=bullseye ;;
  3.10) mirror=$ubuntu suite=jammy ;;
  3.11) mirror=$debian suite=bookworm ;;
  3.12) mirror=$ubuntu suite=noble ;;
  3.13) mirror=$debian suite=trixie ;;
  3.14 | 3.15) mirror=$debian suite=forky ;;
  *) echo "no distribution is known to have Python $version" && exit 2 ;;
esac
# Debian's testing keeps no source longer than its package; a release of Ubuntu does.
[ "$1" != 3.14t ] || mirror=$ubuntu suite=resolute
command -v apt-get >/dev/null || { echo "this system has no apt"; exit 1; }
if [ -z "$compile" ] && [ "$mirror" = $ubuntu ] && [ $architecture != amd64 ]; then
  if curl -sfIo /dev/null --max-time 10 $ports/dists/$suite/Release; then mirror=$ports; else compile=--enable-shared=no; fi
fi
if [ -n "$compile" ] && [ "$2" != "$(uname -m)" ]; then
  echo "Python $1 would have to be compiled, which is done for $(uname -m) alone" && exit 1
fi

state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
touch "$state/status"
options=(-qq -o APT::Architecture=$architecture -o APT::Architectures=$architecture -o Dir::State="$state"
  -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist="$state/sources.list"
  -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=1
  -o Acquire::http::Timeout=15 -o Debug::NoLocking=1 -o APT::Update::Error-Mode=any)
source_list() { echo "$1 [$2] $mirror $suite main" >"$state/sources.list"; }

if [ "$mirror" = $debian ]; then
  key=/usr/share/keyrings/debian-archive-keyring.gpg
else
  key=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  if [ ! -e $key ]; then
    # Ubuntu's keyring from Ubuntu itself, believed only for the key with this fingerprint.
    fingerprint=F6ECB3762474EDA9D21B7022871920D1991BC93C
    source_list deb "allow-insecure=yes arch=$([ $mirror = $ports ] && echo arm64 || echo amd64)"
    apt-get "${options[@]}" update 2>/dev/null || { echo "$mirror cannot be reached"; exit 1; }
    (cd "$state" && apt-get "${options[@]}" download --allow-unauthenticated ubuntu-keyring 2>/dev/null)
    dpkg -x "$state"/ubuntu-keyring_*.deb "$state/keyring"
    gpg --homedir "$state" --quiet --no-default-keyring --keyring "$state/keyring$key" --export $fingerprint \
      >"$state/key.gpg"
    key=$state/key.gpg
    rm -rf "$state"/lists/*_* && mkdir -p "$state/lists/partial"
  fi
fi
source_list deb${compile:+-src} "signed-by=$key"
apt-get "${options[@]}" update || { echo "$mirror $suite cannot be reached"; exit 1; }
if [ -n "$compile" ]; then
  cd "$state"
  apt-get "${options[@]}" source --tar-only --download-only "python$version" >/dev/null
  mkdir source && tar -xf python*.orig.tar.* --strip-components=1 -C source && cd source
  # Optimised just enough to run in the time that would go into optimising it.
  { ./configure --quiet --prefix=/usr --without-ensurepip --disable-test-modules "$compile" CFLAGS="-O1 -g0 -w" &&
    make -j1 && make install DESTDIR="$folder"; } >"$folder.log" 2>&1 || { tail -n 5 "$folder.log"; exit 1; }
  rm "$folder.log"
  exit 0
fi
# PyTorch asks the system for libstdc++.
apt-get "${options[@]}" install -y --no-install-recommends --download-only "python$version" libstdc++6
mkdir -p "$folder"
for package in "$state"/cache/archives/*.deb; do dpkg -x "$package" "$folder"; done
# Where the distribution has these in /usr alone, the links to them are in no package.
for name in lib lib64; do
  if [ ! -e "$folder/$name" ] && [ -e "$folder/usr/$name" ]; then ln -s "usr/$name" "$folder/$name"; fi
done
# An absolute link would lead out of the folder: the loader is one in older releases.
find "$folder" -type l -lname '/*' | while read -r link; do
  ln -sfn "$(realpath -ms --relative-to="$(dirname "$link")" "$folder$(readlink "$link")")" "$link"
done
