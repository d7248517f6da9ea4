#!/usr/bin/env bash
# Measures Twinband against llama.cpp on this machine and writes the table into docs/BENCHMARKS.md.
#
#   scripts/bench-peers.sh [--pairs N] [--threads N] [--prefill N] [--decode N] [--models "smollm2 gemma3"]
#
# llama.cpp is built from the sources inside the llama-cpp-python source package (about ten minutes on two cores, once;
# kept in the cache), twice: for this machine's CPU, and with nothing beyond AVX2. TWINBAND_PEERS="name=llama-bench ..."
# names builds of your own instead.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
cache=${TWINBAND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/twinband}
peer=$cache/llama.cpp-$version

say() { printf '%s\n' "$*" >&2; }

fetch_sources() {
  [ -d "$peer/source" ] && return
  say "bench-peers: fetching llama-cpp-python $version (77 MB) into $peer"
  "$root/scripts/setup.sh" build peer
  mkdir -p "$peer"
  python3 -m venv "$peer/venv"
  "$peer/venv/bin/pip" install --quiet --disable-pip-version-check cmake ninja scikit-build-core >&2
  "$peer/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
    --dest "$peer" "llama-cpp-python==$version" >&2
  local archive=$peer/llama_cpp_python-$version.tar.gz
  echo "$sha256  $archive" | sha256sum --check --quiet >&2
  mkdir -p "$peer/unpacked"
  tar -xzf "$archive" -C "$peer/unpacked"
  mv "$peer/unpacked/llama_cpp_python-$version/vendor/llama.cpp" "$peer/source"
  rm -rf "$peer/unpacked" "$archive"
}

# build NAME CMAKE-OPTIONS..: makes $peer/NAME/bin/llama-bench.
build() {
  local name=$1
  shift
  [ -x "$peer/$name/bin/llama-bench" ] && return
  fetch_sources
  say "bench-peers: building llama-bench ($name)"
  PATH=$peer/venv/bin:$PATH cmake -S "$peer/source" -B "$peer/$name" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF "$@" >"$peer/$name.log" 2>&1
  PATH=$peer/venv/bin:$PATH cmake --build "$peer/$name" --target llama-bench >>"$peer/$name.log" 2>&1 ||
    { say "bench-peers: the build failed, see $peer/$name.log"; exit 1; }
}

models="smollm2 gemma3"
pass=()
while [ $# -gt 0 ]; do
  case $1 in
    --models) models=${2:?} ;;
    --pairs | --threads | --prefill | --decode) pass+=("$1" "${2:?}") ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done

if [ -z "${TWINBAND_PEERS:-}" ]; then
  build native -DGGML_NATIVE=ON
  build avx2 -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON
  TWINBAND_PEERS="native=$peer/native/bin/llama-bench avx2=$peer/avx2/bin/llama-bench"
fi
cargo build --release --locked --quiet --manifest-path "$root/Cargo.toml"

for model in $models; do
  pass+=(--model "$model=$("$root/scripts/get-model.sh" "$model" | tail -n 1)")
done
for build in $TWINBAND_PEERS; do
  pass+=(--peer "$build")
done
exec python3 "$root/scripts/bench_peers.py" --twinband "${CARGO_TARGET_DIR:-$root/target}/release/twinband" \
  --report "$root/docs/BENCHMARKS.md" "${pass[@]}"
