#!/usr/bin/env bash
# Builds Twinband, fetches SmolLM2-135M-Instruct and has it answer a question.
#
#   scripts/demo.sh [PROMPT [OPTIONS OF twinband run]]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

"$root/scripts/setup.sh" build fetch
cargo build --release --locked --quiet --manifest-path "$root/Cargo.toml"
model=$("$root/scripts/get-model.sh" smollm2 | tail -n 1)

if [ $# -eq 0 ]; then
  set -- --chat "Explain in two sentences why the sky is blue." --gpu auto --stats
fi
echo "\$ twinband run $(basename "$model") $(printf '%q ' "$@")" >&2
exec "${CARGO_TARGET_DIR:-$root/target}/release/twinband" run "$model" "$@"
