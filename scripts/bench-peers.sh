#!/usr/bin/env bash
# Measures Twinband against llama.cpp and its fork ik_llama.cpp on this machine and writes docs/BENCHMARKS.md's tables.
#
#   scripts/bench-peers.sh [--only "PATTERN .."] [--peers "native avx2 ik"] [--suites "speed first scaling context"]
#                          [--pairs N] [--threads N] [--prefill N] [--decode N] [--report FILE]
#
# Models are smollm2, gemma3, and {qwen3-0.6b,llama-3.2-1b,qwen2.5-3b}-{Q4_0,Q8_0,Q4_K}, whose weights are random and
# which are made by `twinband synth` (11 GB in all, kept in the cache). --only takes those that match a pattern of the
# shell: --only "smollm2 qwen3*". The peers are built from the sources inside Python packages, once each: native and
# avx2 are llama.cpp for this machine's CPU and with nothing beyond AVX2, ik is the fork for this machine's CPU; about
# ten minutes on two cores, for ik longer. TWINBAND_PEERS="name=llama-bench .." names builds of your own instead.
set -euo pipefail
shopt -s inherit_errexit
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${TWINBAND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/twinband}

say() { printf '%s\n' "$*" >&2; }
usage() { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }

# What the peers are built with.
tools() {
  [ ! -x "$cache/peer-tools/bin/cmake" ] || return 0
  "$root/scripts/setup.sh" build peer >&2
  python3 -m venv "$cache/peer-tools"
  "$cache/peer-tools/bin/pip" install --quiet --disable-pip-version-check cmake ninja scikit-build-core >&2
}

# fetch PACKAGE VERSION SHA256 FOLDER: unpacks vendor/FOLDER of the package's archive into $cache/FOLDER-VERSION.
fetch() {
  local package=$1 version=$2 sha256=$3 folder=$4 home=$cache/$4-$2
  [ ! -d "$home/source" ] || return 0
  say "bench-peers: fetching $package $version into $home"
  mkdir -p "$home"
  # Asked for the package's metadata, its build system needs these tools to be found.
  PATH=$cache/peer-tools/bin:$PATH "$cache/peer-tools/bin/pip" download --quiet --disable-pip-version-check --no-deps \
    --no-binary :all: --no-build-isolation --dest "$home" "$package==$version" >&2
  local name=${package//-/_}-$version
  echo "$sha256  $home/$name.tar.gz" | sha256sum --check --quiet >&2
  rm -rf "$home/unpacked"
  mkdir -p "$home/unpacked"
  tar -xzf "$home/$name.tar.gz" -C "$home/unpacked" "$name/vendor/$folder"
  mv "$home/unpacked/$name/vendor/$folder" "$home/source"
  rm -rf "$home/unpacked" "$home/$name.tar.gz"
}

# build HOME NAME CMAKE-OPTIONS..: makes HOME/NAME/bin/llama-bench.
build() {
  local home=$1 name=$2
  shift 2
  [ ! -x "$home/$name/bin/llama-bench" ] || return 0
  say "bench-peers: building $home/$name/bin/llama-bench"
  if ! {
    PATH=$cache/peer-tools/bin:$PATH cmake -S "$home/source" -B "$home/$name" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF "$@" &&
      PATH=$cache/peer-tools/bin:$PATH cmake --build "$home/$name" --target llama-bench
  } >"$home/$name.log" 2>&1; then
    say "bench-peers: the build failed, see $home/$name.log"
    exit 1
  fi
}

# peer NAME: builds it, and prints NAME=PROGRAM.
peer() {
  local version home
  tools
  case $1 in
    native | avx2)
      version=0.3.36
      home=$cache/llama.cpp-$version
      fetch llama-cpp-python $version 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e llama.cpp
      # GCC 12 takes the instruction that loads the tiles' configuration to read its first bytes only, and drops stores to the others:
      # on a CPU with AMX the program would die of it.
      local tiles=$home/source/ggml/src/ggml-cpu/amx/mmq.cpp
      grep -q 'asm volatile.*(tc)' "$tiles" || sed -i 's/_tile_loadconfig(&tc)/asm volatile("" : : "m"(tc)); &/' "$tiles"
      local cpu=(-DGGML_NATIVE=ON)
      [ "$1" = native ] || cpu=(-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON)
      build "$home" "$1" -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF "${cpu[@]}"
      printf '%s\n' "$1=$home/$1/bin/llama-bench"
      ;;
    ik)
      version=0.1.5
      home=$cache/ik_llama.cpp-$version
      fetch ik-llama-cpp-python $version 33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad ik_llama.cpp
      # The archive lacks the script that notes which commit is built.
      local notes=$home/source/common/cmake/build-info-gen-cpp.cmake
      mkdir -p "${notes%/*}"
      echo "set(BUILD_COMMIT $version)" >"$notes"
      cat >>"$notes" <<'END'
set(BUILD_NUMBER 0)
set(BUILD_COMPILER unknown)
set(BUILD_TARGET unknown)
configure_file(${CMAKE_SOURCE_DIR}/common/build-info.cpp.in ${CMAKE_SOURCE_DIR}/common/build-info.cpp)
END
      build "$home" native -DLLAMA_BUILD_EXAMPLES=ON -DLLAMA_CURL=OFF -DGGML_NATIVE=ON
      printf '%s\n' "ik=$home/native/bin/llama-bench"
      ;;
    *) say "bench-peers: there is no peer '$1': native, avx2, ik"; exit 2 ;;
  esac
}

# model NAME: fetches or makes it, and prints NAME=FILE.
model() {
  case $1 in
    smollm2 | gemma3) printf '%s\n' "$1=$("$root/scripts/get-model.sh" "$1" | tail -n 1)" ;;
    *)
      local file=$synthetic/$1.gguf
      mkdir -p "$synthetic"
      [ -e "$file" ] || "$twinband" synth "${1%-*}" --type "${1##*-}" --output "$file"
      printf '%s\n' "$1=$file"
      ;;
  esac
}

only='*'
peers='native avx2 ik'
report=$root/docs/BENCHMARKS.md
pass=()
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
    --only) only=$2 ;;
    --peers) peers=$2 ;;
    --report) report=$2 ;;
    --suites | --pairs | --threads | --prefill | --decode) pass+=("$1" "$2") ;;
    *) usage ;;
  esac
  shift 2
done

cargo build --release --locked --quiet --manifest-path "$root/Cargo.toml"
twinband=${CARGO_TARGET_DIR:-$root/target}/release/twinband
# Files are made anew when what makes them has changed.
synthetic=$cache/synth-$(cat "$root"/src/synth/*.rs | sha256sum | cut -c 1-8)
for old in "$cache"/synth-*; do
  [ "$old" = "$synthetic" ] || rm -rf "$old"
done

all="smollm2 gemma3"
for shape in qwen3-0.6b llama-3.2-1b qwen2.5-3b; do
  for type in Q4_0 Q8_0 Q4_K; do
    all+=" $shape-$type"
  done
done
models=()
set -f # patterns are for names of models, not of files
for name in $all; do
  for pattern in $only; do
    # shellcheck disable=SC2053
    if [[ $name == $pattern ]]; then
      models+=("$name")
      break
    fi
  done
done
[ ${#models[@]} -gt 0 ] || { say "bench-peers: no model matches '$only'; there are $all"; exit 2; }
if [ -n "${TWINBAND_PEERS:-}" ]; then
  for entry in $TWINBAND_PEERS; do
    pass+=(--peer "$entry")
  done
else
  for name in $peers; do
    entry=$(peer "$name")
    pass+=(--peer "$entry")
  done
fi
for name in "${models[@]}"; do
  entry=$(model "$name")
  pass+=(--model "$entry")
done
exec python3 "$root/scripts/bench_peers.py" --twinband "$twinband" --report "$report" "${pass[@]}"
