#!/usr/bin/env bash
# Checks that this machine has what the project needs and installs what is missing.
#
#   scripts/setup.sh [build] [fetch] [peer] [gpu]     (build and fetch when none is named)
#
# build: a Rust toolchain and a C linker.   fetch: python3 with pip, to download models.
# peer: a C++ compiler and python3 with venv, to build the peer of the benchmarks.
# gpu: the software Vulkan driver lavapipe, the Vulkan loader and strace, for tests. They only widen what is tested, so
# a machine where they cannot be installed is told so and goes on.
# Missing Debian packages are installed through apt, after saying so. A Rust toolchain is not: Debian's is older
# than the one this project needs.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

missing=()

need_build() {
  if ! has cargo || ! has rustc; then
    die "no Rust toolchain found. Install one with rustup (https://rustup.rs), then run this again."
  fi
  local want have
  want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  have=$(rustc --version | cut -d' ' -f2)
  [ "$(printf '%s\n' "$want" "$have" | sort -V | head -n 1)" = "$want" ] ||
    die "rustc $have is too old: this project needs $want or newer. Run 'rustup update stable'."
  has cc || missing+=(gcc libc6-dev)
}

need_fetch() {
  has python3 || missing+=(python3)
  python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
}

need_peer() {
  need_fetch
  has c++ || missing+=(g++)
  python3 -c 'import ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
}

# Tries at once, because nothing depends on it.
need_gpu() {
  local wanted=("${missing[@]}")
  missing=()
  has strace || missing+=(strace)
  compgen -G '/usr/share/vulkan/icd.d/lvp_icd*.json' >/dev/null || missing+=(mesa-vulkan-drivers)
  compgen -G '/usr/lib/*/libvulkan.so.1' >/dev/null || missing+=(libvulkan1)
  (install_missing) || say "setup: without ${missing[*]} the tests on Vulkan drivers that need them are skipped."
  missing=("${wanted[@]}")
}

install_missing() {
  [ ${#missing[@]} -gt 0 ] || return 0
  has apt-get || die "please install: ${missing[*]} (names of Debian packages), then run this again."
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    has sudo || die "please install as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "setup: installing through apt: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

[ $# -gt 0 ] || set -- build fetch
for part in "$@"; do
  case $part in
    build) need_build ;;
    fetch) need_fetch ;;
    peer) need_peer ;;
    gpu) need_gpu ;;
    *) die "unknown part '$part' (build, fetch, peer, gpu)" ;;
  esac
done
install_missing
