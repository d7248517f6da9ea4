"""Runs Twinband and builds of llama.cpp's llama-bench in turn and reports medians and ratios.

Called by bench-peers.sh. Standard library only.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
TESTS = ("prefill", "decode")
REPS = 3  # of each program in each round; the median of them counts, so that a cold first one does not


def run(command):
    """Output of a command, and the most memory it held in MB (mapped file pages included)."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen([str(part) for part in command], stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}: exit code {child.returncode}")
        out.seek(0)
        return out.read().decode(), usage.ru_maxrss * 1024 / 1e6


def bench_twinband(program, model, options):
    out, rss = run([program, "bench", model, "--prefill", options.prefill, "--decode", options.decode,
                    "--reps", REPS, "--threads", options.threads, "--json"])
    result = json.loads(out)
    result.update(prefill=result["prefill_tps"], decode=result["decode_tps"], rss_mb=rss)
    return result


def bench_peer(program, model, options):
    """Prefill from an empty context, and decode from where the prompt ended: the positions Twinband measures."""
    common = [program, "-m", model, "-t", options.threads, "-r", REPS, "-o", "json"]
    first, rss = run(common + ["-p", options.prefill, "-n", 0])
    second, rss2 = run(common + ["-p", 0, "-n", options.decode, "-d", options.prefill])
    prefill, decode = json.loads(first)[0], json.loads(second)[0]
    return {"prefill": statistics.median(prefill["samples_ts"]), "decode": statistics.median(decode["samples_ts"]),
            "rss_mb": max(rss, rss2), "commit": prefill["build_commit"]}


def machine():
    info = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
    flags = set(info.get("flags", "").split())
    interesting = [name for name in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8") if name in flags]
    return f"{info.get('model name', 'unknown CPU')}, {os.cpu_count()} CPUs, {' '.join(interesting)}"


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def measure(options):
    """{model: {engine: [result, ..]}}, each round in the opposite order of the one before."""
    engines = [("twinband", options.twinband, bench_twinband)]
    engines += [(name, program, bench_peer) for name, program in options.peer]
    results = {}
    for model, path in options.model:
        rounds = results[model] = {name: [] for name, _, _ in engines}
        for pair in range(options.pairs):
            for name, program, bench in engines if pair % 2 == 0 else engines[::-1]:
                result = bench(program, path, options)
                rounds[name].append(result)
                print(f"{model} {pair + 1}/{options.pairs} {name}: prefill {result['prefill']:.1f} tok/s, "
                      f"decode {result['decode']:.1f} tok/s", file=sys.stderr)
    return results


def report(options, results, load):
    version, _ = run([options.twinband, "--version"])
    any_peer = next(iter(results.values()))[options.peer[0][0]][0]
    lines = [
        f"Measured on {datetime.date.today()}: {machine()}, {options.threads} threads; {version.strip()}; "
        f"llama.cpp {any_peer['commit']}. Load average of the machine before the run: {load:.2f}. "
        f"Medians of {options.pairs} rounds, prefill of {options.prefill} tokens, then {options.decode} decoded. "
        "Ratios are Twinband's speed divided by the peer's in the same round: median (least to most).",
        "",
        "| model | test | Twinband tok/s | " + " | ".join(f"llama.cpp {n} tok/s | ratio" for n, _ in options.peer) + " |",
        "|---|---|--:|" + "--:|--:|" * len(options.peer),
    ]
    for model, rounds in results.items():
        ours = rounds["twinband"]
        for test in TESTS:
            cells = [model, test, f"{statistics.median(r[test] for r in ours):.1f}"]
            for name, _ in options.peer:
                theirs = rounds[name]
                cells.append(f"{statistics.median(r[test] for r in theirs):.1f}")
                cells.append(spread([a[test] / b[test] for a, b in zip(ours, theirs)]))
            lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "| model | decode GB/s | read ceiling GB/s, same run | own memory MB | resident MB | "
        + " | ".join(f"llama.cpp {n} resident MB" for n, _ in options.peer) + " | digest |",
        "|---|--:|--:|--:|--:|" + "--:|" * len(options.peer) + "---|",
    ]
    for model, rounds in results.items():
        ours = rounds["twinband"]
        digests = {r["digest"] for r in ours}
        if len(digests) != 1:
            sys.exit(f"{model}: the rounds gave different digests: {sorted(digests)}")
        middle = lambda key, scale=1: statistics.median(r[key] for r in ours) / scale
        cells = [model, f"{middle('decode_gbps'):.1f}", f"{middle('read_ceiling_gbps'):.1f}",
                 f"{middle('rss_anon_peak_bytes', 1e6):.0f}", f"{middle('rss_peak_bytes', 1e6):.0f}"]
        cells += [f"{statistics.median(r['rss_mb'] for r in rounds[name]):.0f}" for name, _ in options.peer]
        lines.append("| " + " | ".join(cells + [f"`{digests.pop()}`"]) + " |")
    return "\n".join(lines)


def write(path, text):
    old = path.read_text()
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"{path}: the lines {BEGIN} and {END} are missing")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def named_path(text):
    name, separator, path = text.partition("=")
    if not separator or not pathlib.Path(path).exists():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=EXISTING-PATH")
    return name, path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twinband", type=pathlib.Path, required=True)
    parser.add_argument("--peer", type=named_path, action="append", required=True, metavar="NAME=LLAMA-BENCH")
    parser.add_argument("--model", type=named_path, action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--report", type=pathlib.Path, required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"bench-peers: the machine is busy (load average {load:.2f}); figures will be too low", file=sys.stderr)
    text = report(options, measure(options), load)
    write(options.report, text)
    print(text)


if __name__ == "__main__":
    main()
