#!/usr/bin/env bash
# Puts the output head on this machine's GPU and prints a table: are the bits those of the CPU, how fast is the head
# against the memory of the device, what a round trip costs, and which split is chosen.
#
#   scripts/device-check.sh [--small] [--bin FOLDER] [--out FOLDER] [--memory-gbps N]
#
#   --bin FOLDER     has twinband and twinband-worker ready; without it they are built
#   --out FOLDER     where the model and the reports go (default: a temporary folder, removed in the end)
#   --memory-gbps N  the device's memory bandwidth, which a copy reads and writes at; a few devices are known
#   --small          a model of 8192 tokens instead of 128256: for drivers that compute on the CPU
#
# Needs bash and python3, no packages. Fails if a bit differs or a device that should take part does not.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

size=full bin='' out='' memory=''
while [ $# -gt 0 ]; do
  case $1 in
    --small) size=small; shift ;;
    --bin | --out | --memory-gbps)
      [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
      case $1 in
        --bin) bin=$2 ;;
        --out) out=$2 ;;
        --memory-gbps) memory=$2 ;;
      esac
      shift 2
      ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

if [ -z "$bin" ]; then
  cargo build --release --locked --workspace --manifest-path "$root/Cargo.toml"
  bin=${CARGO_TARGET_DIR:-$root/target}/release
fi
if [ -z "$out" ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out"
# Verdicts and measurements of this check alone.
export XDG_CACHE_HOME=$out/cache
python3 "$root/scripts/device_check.py" "$size" "$bin" "$out" "$memory"
