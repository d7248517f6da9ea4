#!/usr/bin/env bash
# Everything that must hold before a change lands: style, lints, documentation, and every test on both real models.
#
#   scripts/test.sh
#
# One profile for all tests: dev with opt-level 2 (see Cargo.toml), so that the arithmetic runs at speed while
# overflow checks and debug assertions stay on.
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
  printf '\n== %s\n' "$*"
  "$@"
}

step scripts/setup.sh build fetch gpu
for tool in fmt clippy; do
  cargo "$tool" --version >/dev/null 2>&1 ||
    { echo "cargo $tool is missing: run 'rustup component add rustfmt clippy'" >&2; exit 1; }
done

for script in scripts/*.sh .ci/run; do bash -n "$script"; done
if command -v shellcheck >/dev/null 2>&1; then
  step shellcheck scripts/*.sh .ci/run
fi
step cargo fmt --all --check
step cargo clippy --locked --workspace --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" step cargo doc --locked --workspace --no-deps
step scripts/check-kernels.sh

models=$(dirname "$(scripts/get-model.sh smollm2 | tail -n 1)")
scripts/get-model.sh gemma3 >/dev/null
export TWINBAND_MODELS=$models
# Without these drivers the tests that need them say that they were skipped.
if swiftshader=$(scripts/get-swiftshader.sh); then
  export TWINBAND_TEST_SWIFTSHADER=$swiftshader
fi
for lavapipe in /usr/share/vulkan/icd.d/lvp_icd*.json; do
  [ ! -e "$lavapipe" ] || export TWINBAND_TEST_LVP=${TWINBAND_TEST_LVP:-$lavapipe}
done
step cargo test --locked --workspace --no-fail-fast 2>&1 | awk '
  { print; fflush() }
  /^test result:/ { passed += $4; failed += $6 }
  END { printf "\nTotal: %d passed, %d failed\n", passed, failed }'
