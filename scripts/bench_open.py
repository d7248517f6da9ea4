#!/usr/bin/env python3
"""GGUF files against the same models packed: time to open and to the first token, prefill and decode.

    scripts/bench_open.py MODEL.gguf... [--program target/release/twinband] [--rounds 9] [--bench-rounds 5]

Packs each model into a temporary folder beside it, then measures GGUF and G2BX in turn. "Cold" is with the file's pages
dropped from the page cache just before (posix_fadvise, which needs no privileges; nobody else may have the file mapped),
"warm" with all of it read just before. "Opened" is the whole of `tokenize MODEL hi`: the program starts, checks the file's
header, builds the tokenizer, ends. "First token" is the whole of `run MODEL hi -n 1`. Medians, in milliseconds, and of
`bench` in tokens a second. Prints a table in Markdown. Leave the machine alone meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read(path):
    with open(path, "rb") as file:
        while file.read(1 << 22):
            pass


def milliseconds(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--program", default="target/release/twinband")
    parser.add_argument("--rounds", type=int, default=9, help="of opening")
    parser.add_argument("--bench-rounds", type=int, default=5, help="of prefill and decode; 0 leaves them out")
    args = parser.parse_args()
    opened, speeds = [], []
    for model in args.models:
        name = os.path.splitext(os.path.basename(model))[0]
        with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(model))) as folder:
            packed = os.path.join(folder, "model.g2bx")
            subprocess.run([args.program, "-q", "pack", model, packed], check=True)
            files = {"GGUF": model, "G2BX": packed}
            times = {kind: {} for kind in files}
            for _ in range(args.rounds):
                for state, prepare in ("cold", drop), ("warm", read):
                    for kind, file in files.items():
                        for what, tail in ("opened", ["hi"]), ("first token", ["hi", "-n", "1"]):
                            prepare(file)
                            command = [args.program, "tokenize" if what == "opened" else "run", file, *tail]
                            times[kind].setdefault((what, state), []).append(milliseconds(command))
            order = [(what, state) for what in ("opened", "first token") for state in ("cold", "warm")]
            for kind in files:
                cells = [f"{statistics.median(times[kind][column]):.0f}" for column in order]
                opened.append(f"| {name} | {kind} | " + " | ".join(cells) + " |")
            rates, digests = {kind: [] for kind in files}, set()
            for _ in range(args.bench_rounds):
                for kind, file in files.items():
                    command = [args.program, "bench", file, "--reps", "1", "--json"]
                    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                    rates[kind].append((report["prefill_tps"], report["decode_tps"]))
                    digests.add(report["digest"])
            if len(digests) > 1:
                sys.exit(f"{model}: the packed file gives other logits: {digests}")
            if args.bench_rounds:
                medians = {kind: [statistics.median(column) for column in zip(*rates[kind])] for kind in files}
                (p, d), (packed_p, packed_d) = medians["GGUF"], medians["G2BX"]
                speeds.append(
                    f"| {name} | {p:.0f} | {packed_p:.0f} | {packed_p / p:.2f} | {d:.1f} | {packed_d:.1f} | {packed_d / d:.2f} |"
                )
    print("| model | file | opened, cold | warm | first token, cold | warm |\n|---|---|--:|--:|--:|--:|")
    print("\n".join(opened))
    if speeds:
        print("\n| model | prefill GGUF | G2BX | ratio | decode GGUF | G2BX | ratio |\n|---|--:|--:|--:|--:|--:|--:|")
        print("\n".join(speeds))


if __name__ == "__main__":
    main()
