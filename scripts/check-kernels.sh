#!/usr/bin/env bash
# Whether kernels are made of instructions: builds the release program and looks for vector intrinsics that became functions.
#
#   scripts/check-kernels.sh
#
# An intrinsic can be inlined only into a function that has its CPU feature. A closure has none; if what calls it (`map` of an
# array, `fold`, `for_each`) is not inlined in turn, each of its instructions becomes a call. Results are right then, and
# several times slower. A loop in place of the closure is always inlined.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --locked --bin twinband
program=${CARGO_TARGET_DIR:-target}/release/twinband
symbols=$(nm --demangle "$program")
grep -q ' main$' <<<"$symbols" || { echo "$program has no symbols to look at" >&2; exit 1; }
# What asks which features there are is a function on purpose.
if found=$(grep ' core::core_arch::' <<<"$symbols" | grep -v '::_xgetbv$'); then
  printf 'intrinsics that are called in place of inlined:\n%s\n' "$found" >&2
  exit 1
fi
echo "kernels: every intrinsic is inlined"
