"""Runs Twinband and builds of llama-bench in turn and reports medians and ratios.

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
import time

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
REPS = 3  # of each program in each round; the median of them counts, so that a cold first one does not
CONTEXTS = (128, 1024, 4096)
CONTEXT_DECODE = 16  # tokens decoded at each of them
PROMPT = "A short prompt to begin with"


class Failed(Exception):
    """A program ended with an error."""


def run(command):
    """Output of a command, the most memory it held in MB (mapped file pages included), and its seconds."""
    with tempfile.TemporaryFile() as out:
        start = time.monotonic()
        child = subprocess.Popen([str(part) for part in command], stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))}: exit code {child.returncode}")
        out.seek(0)
        return out.read().decode(), usage.ru_maxrss * 1024 / 1e6, seconds


class Twinband:
    name = "Twinband"

    def __init__(self, program):
        self.program = program
        self.version = run([program, "--version"])[0].strip()

    def bench(self, model, threads, prefill, decode, reps):
        out, rss, _ = run([self.program, "bench", model, "--prefill", prefill, "--decode", decode, "--reps", reps,
                           "--threads", threads, "--json"])
        result = json.loads(out)
        return {**result, "prefill": result["prefill_tps"], "decode": result["decode_tps"], "rss_mb": rss}

    def speed(self, model, options):
        return self.bench(model, options.threads, options.prefill, options.decode, REPS)

    def prefill(self, model, threads, tokens):
        return self.bench(model, threads, tokens, 0, REPS)["prefill"]

    def decode(self, model, threads, at, tokens):
        return self.bench(model, threads, at, tokens, 1)["decode"]

    def prompt_tokens(self, model):
        return len(run([self.program, "tokenize", model, PROMPT, "--ids"])[0].split())

    def first_token(self, model, threads, _tokens):
        return run([self.program, "run", model, PROMPT, "-n", 1, "--ignore-eos", "--threads", threads, "-q"])[2]


class Packed(Twinband):
    """Twinband on G2BX files made of the models, whose matrices are interleaved."""

    name = "packed"

    def __init__(self, program, folder):
        super().__init__(program)
        self.folder = pathlib.Path(folder)

    def speed(self, model, options):
        packed = self.folder / f"{pathlib.Path(model).stem}.g2bx"
        if not packed.exists():
            run([self.program, "pack", model, packed, "-q"])
        return super().speed(packed, options)


class Peer:
    """A build of llama-bench, of llama.cpp or of its fork. Where settings differ in what they are good for, all are run
    and the fastest counts."""

    def __init__(self, name, program):
        self.name, self.program = name, program
        usage = run_help(program)
        self.is_fork = "--run-time-repack" in usage
        self.version = ""
        if self.is_fork:
            # Without mmap, weights are in huge pages and repacked for the fork's own kernels.
            self.settings = [["-fa", 1, "-rtr", 0], ["-fa", 1, "-rtr", 1]]
            self.load_settings = [["-fa", 1, "-rtr", 0, "-w", 0]]
        else:
            self.settings = [["-fa", "auto", "--repack", 1]]
            self.load_settings = [["-fa", "auto", "--no-warmup", "--repack", repack] for repack in (0, 1)]

    def bench(self, model, threads, reps, test, settings):
        """Median tok/s of one test, and the process's memory in MB and seconds."""
        out, rss, seconds = run([self.program, "-m", model, "-t", threads, "-r", reps, "-o", "json", *test, *settings])
        result = json.loads(out[out.index("["):])[0]
        self.version = f"{'ik_llama.cpp' if self.is_fork else 'llama.cpp'} {result['build_commit']}"
        return statistics.median(result["samples_ts"]), rss, seconds

    def best(self, model, threads, reps, test):
        """The fastest setting's tok/s, and its memory."""
        return max(self.bench(model, threads, reps, test, settings)[:2] for settings in self.settings)

    def decode_test(self, at, tokens):
        return ["-p", 0, "-n", 0, "-gp", f"{at},{tokens}"] if self.is_fork else ["-p", 0, "-n", tokens, "-d", at]

    def speed(self, model, options):
        """Prefill from an empty context, and decode from where the prompt ended: the positions Twinband measures."""
        prefill, rss = self.best(model, options.threads, REPS, ["-p", options.prefill, "-n", 0])
        decode, rss2 = self.best(model, options.threads, REPS, self.decode_test(options.prefill, options.decode))
        return {"prefill": prefill, "decode": decode, "rss_mb": max(rss, rss2)}

    def prefill(self, model, threads, tokens):
        return self.best(model, threads, REPS, ["-p", tokens, "-n", 0])[0]

    def decode(self, model, threads, at, tokens):
        return self.best(model, threads, 1, self.decode_test(at, tokens))[0]

    def first_token(self, model, threads, tokens):
        """Seconds of a process that evaluates the prompt and ends; it encodes no text and samples nothing."""
        test = ["-p", tokens, "-n", 0]
        return min(self.bench(model, threads, 1, test, settings)[2] for settings in self.load_settings)


def run_help(program):
    result = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    return result.stdout + result.stderr


def rounds(engines, options, label, measure):
    """{engine: [value, ..]}, each round in the opposite order of the one before."""
    values = {engine.name: [] for engine in engines}
    for pair in range(options.pairs):
        for engine in engines if pair % 2 == 0 else engines[::-1]:
            value = measure(engine)
            values[engine.name].append(value)
            keys = ("prefill", "decode") if isinstance(value, dict) and "prefill" in value else None
            shown = {key: value[key] for key in keys} if keys else value
            print(f"{label} {pair + 1}/{options.pairs} {engine.name}: {brief(shown)}", file=sys.stderr, flush=True)
    return values


def brief(value):
    if isinstance(value, dict):
        return ", ".join(f"{key} {brief(part)}" for key, part in value.items())
    return f"{value:.3g}"


def table(head, rows):
    """A Markdown table; columns from the second on are numbers unless they hold text."""
    def is_number(column):
        return all(row[column][:1].isdigit() for row in rows)
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|---|" + "".join("--:|" if is_number(i) else "---|" for i in range(1, len(head))))
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def median(values):
    return statistics.median(values)


def spread(ratios):
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def ratios(ours, theirs):
    return [a / b for a, b in zip(ours, theirs)]


def against_peers(head, rows_of, peers, digits):
    """Our median, and for each peer its median and our ratio to it; `rows_of` yields cells, values by engine, and how
    two engines' values make ratios."""
    rows = []
    for cells, values, ratio in rows_of:
        row = [*cells, f"{median(values[Twinband.name]):.{digits}f}"]
        for peer in peers:
            row += [f"{median(values[peer.name]):.{digits}f}", spread(ratio(values[Twinband.name], values[peer.name]))]
        rows.append(row)
    names = [part for peer in peers for part in (f"{peer.name}", "ratio")]
    return table([*head, Twinband.name, *names], rows)


def speed(engines, options):
    measured = {
        model: rounds(engines, options, model, lambda engine, path=path: engine.speed(path, options))
        for model, path in options.model
    }
    peers = engines[1:]
    def rows():
        for model, values in measured.items():
            for test in ("prefill", "decode"):
                yield [model, test], {name: [r[test] for r in rs] for name, rs in values.items()}, ratios
    lines = ["Prefill and decode, tok/s:", "", *against_peers(["model", "test"], rows(), peers, 1)]
    head = ["model", "MB a token", "K/V MB", "ceiling GB/s", "Twinband GB/s", "of ceiling"]
    head += [part for peer in peers for part in (f"{peer.name} GB/s", "of ceiling")]
    paths = dict(options.model)
    memory_head = ["model", "Twinband own MB", "Twinband resident MB"]
    memory_head += [f"{peer.name} resident MB" for peer in peers] + ["digest"]
    bandwidth, memory = [], []
    for model, values in measured.items():
        ours = values[Twinband.name]
        digests = {r["digest"] for r in ours}
        if len(digests) != 1:
            sys.exit(f"{model}: the rounds gave different digests: {sorted(digests)}")
        ceilings = [r["read_ceiling_gbps"] for r in ours]
        weights = median([r["decode_gbps"] / r["decode"] for r in ours])
        # At the middle of the positions that are decoded.
        kv = kv_gb(describe(engines[0], paths[model]), options.prefill + options.decode / 2)
        per_token = weights + kv
        row = [model, f"{weights * 1e3:.0f}", f"{kv * 1e3:.0f}", f"{median(ceilings):.1f}"]
        for engine in engines:
            rates = [per_token * r["decode"] for r in values[engine.name]]
            row += [f"{median(rates):.1f}", f"{100 * median(ratios(rates, ceilings)):.0f} %"]
        bandwidth.append(row)
        row = [model, f"{median([r['rss_anon_peak_bytes'] for r in ours]) / 1e6:.0f}"]
        row += [f"{median([r['rss_mb'] for r in values[engine.name]]):.0f}" for engine in engines]
        memory.append([*row, f"`{digests.pop()}`"])
    lines += ["", "Weights, keys and values read while decoding, against a plain read of the weights in the same rounds:", ""]
    lines += table(head, bandwidth)
    return lines + ["", "Memory:", "", *table(memory_head, memory)]


def describe(ours, path):
    return json.loads(run([ours.program, "info", path, "--json"])[0])


def kv_gb(info, positions):
    """What keys and values of so many positions take, all layers counted as reading all of them."""
    return info["kv_bytes_per_1k_tokens"] * positions / 1024 / 1e9


def packed(engines, options):
    with tempfile.TemporaryDirectory() as folder:
        engines = [Packed(engines[0].program, folder), *engines]
        rows = []
        for model, path in options.model:
            values = rounds(engines, options, f"{model} packed", lambda engine: engine.speed(path, options))
            for test in ("prefill", "decode"):
                rates = {name: [r[test] for r in rs] for name, rs in values.items()}
                ours = rates[Packed.name]
                row = [model, test, f"{median(ours):.1f}"]
                for engine in engines[1:]:
                    row += [f"{median(rates[engine.name]):.1f}", spread(ratios(ours, rates[engine.name]))]
                rows.append(row)
    head = ["model", "test", "G2BX"]
    head += [part for engine in engines[1:] for part in ("GGUF" if engine.name == Twinband.name else engine.name, "ratio")]
    return ["From packed files, whose matrices are interleaved; ratios are the packed file's speed divided by the other's:",
            "", *table(head, rows)]


def first(engines, options):
    def rows():
        for model, path in options.model:
            tokens = engines[0].prompt_tokens(path)
            for engine in engines:
                engine.first_token(path, options.threads, tokens)  # the file's pages are in memory from here on
            values = rounds(engines, options, f"{model} first token",
                            lambda engine: engine.first_token(path, options.threads, tokens))
            yield [model, str(tokens)], values, lambda ours, theirs: ratios(theirs, ours)
    lines = ["From start to first token, the file warm in the page cache, seconds of the whole process (ratio: how",
             "many times faster Twinband is):", ""]
    return lines + against_peers(["model", "prompt tokens"], rows(), engines[1:], 3)


def scaling(engines, options):
    head, rows = ["model", "engine", "1 thread", f"{options.threads} threads", "gain"], []
    for model, path in options.model:
        values = rounds(engines, options, f"{model} threads", lambda engine: {
            n: engine.prefill(path, n, options.prefill) for n in (1, options.threads)})
        for engine in engines:
            one, all_ = ([r[n] for r in values[engine.name]] for n in (1, options.threads))
            rows.append([model, engine.name, f"{median(one):.1f}", f"{median(all_):.1f}", spread(ratios(all_, one))])
    return [f"Prefill of {options.prefill} tokens by threads, tok/s:", "", *table(head, rows)]


def context(engines, options):
    head = ["model", "engine", *(f"at {at}" for at in CONTEXTS), f"{CONTEXTS[-1]} over {CONTEXTS[0]}", "by K/V bytes"]
    rows = []
    for model, path in options.model:
        info = describe(engines[0], path)
        if info["dimensions"]["context"] < CONTEXTS[-1] + CONTEXT_DECODE:
            print(f"{model}: not made for contexts of {CONTEXTS[-1]}, left out", file=sys.stderr)
            continue
        values = rounds(engines, options, f"{model} context", lambda engine: {
            at: engine.decode(path, options.threads, at, CONTEXT_DECODE) for at in CONTEXTS})
        read = [info["bytes"] / 1e9 + kv_gb(info, at) for at in (CONTEXTS[0], CONTEXTS[-1])]
        for engine in engines:
            rates = [[r[at] for r in values[engine.name]] for at in CONTEXTS]
            rows.append([model, engine.name, *(f"{median(r):.1f}" for r in rates),
                         f"{median(ratios(rates[-1], rates[0])):.2f}", f"{read[0] / read[1]:.2f}"])
    if not rows:
        return []
    return [f"Decode speed by context ({CONTEXT_DECODE} tokens each), tok/s; the last column is what the bytes of K and V",
            "that are read beside the weights would leave of the speed:", "", *table(head, rows)]


SUITES = {"speed": speed, "packed": packed, "first": first, "scaling": scaling, "context": context}


def machine():
    info = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
    flags = set(info.get("flags", "").split())
    interesting = [name for name in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8") if name in flags]
    return f"{info.get('model name', 'unknown CPU')}, {os.cpu_count()} CPUs, {' '.join(interesting)}"


def report(engines, options, load):
    parts = [SUITES[name](engines, options) for name in options.suites]
    peers = "; ".join(f"{peer.name} is {peer.version}" for peer in engines[1:])
    intro = [
        f"Measured on {datetime.date.today()}: {machine()}, {options.threads} threads; {engines[0].version}; {peers}. "
        f"Load average of the machine before the run: {load:.2f}. Medians of {options.pairs} rounds, prefill of "
        f"{options.prefill} tokens, then {options.decode} decoded. Ratios are Twinband's speed divided by the peer's in "
        "the same round: median (least to most)."
    ]
    return "\n\n".join("\n".join(part) for part in [intro, *parts] if part)


def write(path, text):
    old = path.read_text() if path.exists() else f"{BEGIN}\n{END}\n"
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


def suites(text):
    names = text.split()
    unknown = [name for name in names if name not in SUITES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r}: the suites are {' '.join(SUITES)}")
    return names


def count(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twinband", type=pathlib.Path, required=True)
    parser.add_argument("--peer", type=named_path, action="append", required=True, metavar="NAME=LLAMA-BENCH")
    parser.add_argument("--model", type=named_path, action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--report", type=pathlib.Path, required=True)
    parser.add_argument("--suites", type=suites, default=list(SUITES), metavar="'NAME ..'")
    parser.add_argument("--pairs", type=count, default=5)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--prefill", type=count, default=512)
    parser.add_argument("--decode", type=count, default=64)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"bench-peers: the machine is busy (load average {load:.2f}); figures will be too low", file=sys.stderr)
    try:
        engines = [Twinband(options.twinband), *(Peer(name, program) for name, program in options.peer)]
        text = report(engines, options, load)
    except Failed as error:
        sys.exit(f"bench-peers: {error}")
    write(options.report, text)
    print(text)


if __name__ == "__main__":
    main()
