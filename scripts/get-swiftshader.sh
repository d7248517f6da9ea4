#!/usr/bin/env bash
# Fetches the software Vulkan driver SwiftShader, for tests, and prints the path of its manifest; everything else goes
# to stderr. Ends with status 1 and a line that says why if it cannot be had.
#
#   scripts/get-swiftshader.sh
#
# Debian ships it in the package chromium-common (about 30 MB to download). The package is not installed: the driver's
# two files are taken out of it and kept in ${TWINBAND_CACHE:-${XDG_CACHE_HOME:-~/.cache}/twinband}/swiftshader.
set -euo pipefail

say() { printf '%s\n' "get-swiftshader: $*" >&2; }
skip() { say "$*: tests on SwiftShader are skipped."; exit 1; }

cache=${TWINBAND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/twinband}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
dir=$cache/swiftshader
manifest=$dir/vk_swiftshader_icd.json

# The manifest comes last, so one that is there stands for both files.
if [ -n "${TWINBAND_TEST_SWIFTSHADER:-}" ] && [ -e "$TWINBAND_TEST_SWIFTSHADER" ]; then
  manifest=$TWINBAND_TEST_SWIFTSHADER
elif [ ! -e "$manifest" ]; then
  for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null 2>&1 || skip "this system has no $tool"
  done
  work=$(mktemp -d "$cache/.swiftshader.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # apt's own user downloads, if it may write there.
  chmod 755 "$work"
  say "fetching Debian's chromium-common (about 30 MB) for the driver in it, into $dir"
  fetch() { (cd "$work" && timeout 300 apt-get download -qq chromium-common >&2); }
  # Lists of packages that are missing or old are the usual reason for a failure; only root may renew them.
  fetch || { [ "$(id -u)" = 0 ] && apt-get update -qq >&2 && fetch; } || skip "chromium-common cannot be downloaded"
  dpkg -x "$work"/chromium-common_*.deb "$work/files" || skip "chromium-common cannot be unpacked"
  found=$work/files/usr/lib/chromium
  { [ -e "$found/libvk_swiftshader.so" ] && [ -e "$found/vk_swiftshader_icd.json" ]; } ||
    skip "this version of chromium-common has no SwiftShader"
  mkdir -p "$dir"
  mv "$found/libvk_swiftshader.so" "$dir/"
  mv "$found/vk_swiftshader_icd.json" "$dir/"
fi
printf '%s\n' "$manifest"
