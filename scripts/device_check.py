"""The work of device-check.sh: device_check.py full|small BIN OUT MEMORY_GBPS. Python's standard library only."""

import json
import os
import random
import struct
import subprocess
import sys
import time

# Memory bandwidths in GB/s, from the vendor's sheets: part of the device's name, bandwidth.
KNOWN = [("H200", 4800), ("H100 80GB HBM3", 3350), ("RTX 4090", 1008), ("RTX 3090", 936)]
Q4_0, Q8_0, F32 = 2, 8, 0
BLOCK = {Q4_0: 18, Q8_0: 34}
SHARES = ["0.25", "0.5", "0.9", "1"]


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


class Gguf:
    """Writes a GGUF file of version 3: metadata first, tensors one after the other."""

    def __init__(self):
        self.meta, self.tensors = [], []

    def u32(self, key, value):
        self.meta.append(string(key) + struct.pack("<II", 4, value))

    def f32(self, key, value):
        self.meta.append(string(key) + struct.pack("<If", 6, value))

    def str(self, key, value):
        self.meta.append(string(key) + struct.pack("<I", 8) + string(value))

    def strings(self, key, values):
        self.meta.append(string(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(string, values)))

    def i32s(self, key, values):
        data = struct.pack(f"<{len(values)}i", *values)
        self.meta.append(string(key) + struct.pack("<IIQ", 9, 5, len(values)) + data)

    def matrix(self, name, kind, cols, rows, scale):
        # Random codes under equal scales; 256 different rows are as good as thousands, and made in no time.
        rng = random.Random(name)
        head = struct.pack("<e", scale)
        blocks = cols // 32
        some = [b"".join(head + rng.randbytes(BLOCK[kind] - 2) for _ in range(blocks)) for _ in range(min(rows, 256))]
        order = [rng.randrange(len(some)) for _ in range(rows)]
        self.tensors.append((name, [cols, rows], kind, (some[i] for i in order), rows * len(some[0])))

    def ones(self, name, n):
        self.tensors.append((name, [n], F32, [struct.pack("<f", 1.0) * n], 4 * n))

    def write(self, path):
        with open(path, "wb") as file:
            file.write(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.meta)) + b"".join(self.meta))
            offset = 0
            for name, dims, kind, _, size in self.tensors:
                file.write(string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
                file.write(struct.pack("<IQ", kind, offset))
                offset += -(-size // 32) * 32
            for _, _, _, parts, size in self.tensors:
                file.write(b"\0" * (-file.tell() % 32))
                for part in parts:
                    file.write(part)


def byte_char(byte):
    """The character that stands for a byte in a byte-level vocabulary."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    return chr(byte) if byte in plain else chr(256 + [b for b in range(256) if b not in plain].index(byte))


def model(path, kind, vocab, dim):
    """Two layers of llama's architecture and a large head, tied; the tokens are bytes and made-up words."""
    hidden, heads, kv_heads = 2 * dim, dim // 64, max(1, dim // 256)
    g = Gguf()
    g.str("general.architecture", "llama")
    for key, value in [("block_count", 2), ("context_length", 1024), ("embedding_length", dim),
                       ("feed_forward_length", hidden), ("attention.head_count", heads),
                       ("attention.head_count_kv", kv_heads), ("rope.dimension_count", 64), ("vocab_size", vocab)]:
        g.u32(f"llama.{key}", value)
    g.f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    g.f32("llama.rope.freq_base", 10000.0)
    g.str("tokenizer.ggml.model", "gpt2")
    g.str("tokenizer.ggml.pre", "gpt-2")
    tokens = [byte_char(b) for b in range(256)] + [f"w{i}" for i in range(vocab - 257)] + ["<|end|>"]
    g.strings("tokenizer.ggml.tokens", tokens)
    g.i32s("tokenizer.ggml.token_type", [1] * (vocab - 1) + [3])
    g.strings("tokenizer.ggml.merges", [])
    g.u32("tokenizer.ggml.eos_token_id", vocab - 1)
    weight = 0.25 / dim**0.5 if kind == Q4_0 else 0.0156 / dim**0.5
    g.matrix("token_embd.weight", kind, dim, vocab, weight)
    for layer in range(2):
        for name, cols, rows in [("attn_q", dim, heads * 64), ("attn_k", dim, kv_heads * 64),
                                 ("attn_v", dim, kv_heads * 64), ("attn_output", heads * 64, dim),
                                 ("ffn_gate", dim, hidden), ("ffn_up", dim, hidden), ("ffn_down", hidden, dim)]:
            g.matrix(f"blk.{layer}.{name}.weight", kind, cols, rows, weight)
        g.ones(f"blk.{layer}.attn_norm.weight", dim)
        g.ones(f"blk.{layer}.ffn_norm.weight", dim)
    g.ones("output_norm.weight", dim)
    g.write(path)


class Check:
    def __init__(self, size, folder, out, memory):
        self.small, self.folder, self.out = size == "small", folder, out
        self.memory = float(memory) if memory else None
        self.bad = []

    def twinband(self, *args):
        """The JSON that a command prints, or None; what it says on standard error."""
        try:
            done = subprocess.run([os.path.join(self.folder, "twinband"), *args], capture_output=True, text=True,
                                  timeout=120, stdin=subprocess.DEVNULL, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, str(error)
        if done.returncode != 0:
            return None, done.stderr.strip()
        return json.loads(done.stdout), done.stderr.strip()

    def keep(self, name, report):
        with open(os.path.join(self.out, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)

    def vkinfo(self):
        report, said = self.twinband("vkinfo", "--json")
        if report is None:
            sys.exit(f"twinband vkinfo failed: {said}")
        self.keep("vkinfo", report)
        print(f"loader  {report['loader']['state']}: {report['loader']['text']}")
        for manifest in report["manifests"]:
            print(f"driver  {manifest['path']}  {manifest['state']}: {manifest['text']}")
        for device in report["devices"]:
            print(f"device  {device['number']}: {device['name']}, {device['kind']}, {device['driver']}, "
                  f"{device['memory'] / 1e9:.1f} GB")
        for advice in report["advice"]:
            print(f"advice  {advice}")
        rows = []
        for device in report["devices"]:
            memory = self.memory or next((gbps for part, gbps in KNOWN if part in device["name"]), None)
            for test in device["self_test"]:
                if not test["bits_equal"]:
                    self.bad.append(f"self-test of {device['name']}, {test['format']}: {test}")
                gbps = test["gbps"]
                rows.append([device["number"], test["format"], f"{test['rows']} x {test['cols']}",
                             {True: "yes", False: "NO", None: "?"}[test["bits_equal"]], number(gbps, 1),
                             f"{100 * gbps / memory:.0f} %" if gbps and memory else "?", number(test["device_us"]),
                             number(test["job_us"]), number(test["empty_us"], 1), test["trouble"] or ""])
        table("Head product on the device (times in microseconds, medians)",
              ["device", "format", "rows x cols", "bits equal", "GB/s", "of memory", "device", "job", "empty", "trouble"],
              rows)
        return bool(report["devices"])

    def head(self, name, kind, vocab, dim):
        path = os.path.join(self.out, name + ".gguf")
        started = time.monotonic()
        model(path, kind, vocab, dim)
        print(f"\nmodel   {name}: vocabulary {vocab}, dim {dim}, {os.path.getsize(path) / 1e6:.0f} MB, "
              f"made in {time.monotonic() - started:.1f} s")
        decode = 96 if self.small else 160
        runs = [("off", ["--gpu", "off"])]
        runs += [(share, ["--gpu", "on", "--gpu-share", share]) for share in SHARES]
        runs += [("full", ["--gpu", "on", "--gpu-share", "0.5", "--verify", "full"]),
                 ("measured", ["--gpu", "on"]), ("again", ["--gpu", "on"])]
        rows, want = [], None
        for label, args in runs:
            report, said = self.twinband("bench", path, "-v", "--json", "--prefill", "4", "--decode", str(decode),
                                         "--reps", "1", *args)
            if report is None:
                self.bad.append(f"{name}, {label}: {said}")
                rows.append([label, "FAILED"] + [""] * 10)
                continue
            self.keep(f"{name}-{label}", report)
            want = want or report["digest"]
            gpu, equal = report["gpu"], report["digest"] == want
            if not equal or gpu["mismatches"]:
                self.bad.append(f"{name}, {label}: digest {report['digest']} is not {want}, {gpu}")
            if label in SHARES and gpu["jobs"] == 0:
                self.bad.append(f"{name}, {label}: the device took no part: {gpu['last_fault']}")
            split = next((line for line in said.splitlines() if "dual band" in line), "")
            split = split.replace("[gpu] dual band: ", "")
            rows.append([label, "yes" if equal else "NO", number(report["decode_tps"], 1), f"{gpu['share']:.3f}",
                         gpu["jobs"], gpu["late"], gpu["mismatches"], *times(gpu["times"]), gpu["state"], split])
        table(f"Dual band, {name} (bench, {decode} tokens; times in microseconds, medians; waiting as a part of the time)",
              ["share", "bits equal", "tok/s", "got", "jobs", "late", "wrong", "job", "empty", "waiting", "state", "split"],
              rows)
        text = ["run", path, "w1 w2", "--json", "-n", "16", "--temp", "0.8", "--seed", "7", "--ignore-eos"]
        cpu, said = self.twinband(*text)
        both, more = self.twinband(*text, "--gpu", "on", "--gpu-share", "0.5")
        same = cpu is not None and both is not None and cpu["digest"] == both["digest"] and cpu["text"] == both["text"]
        print(f"sampled text and digest with half of the head on the device: {'equal' if same else 'DIFFERENT'}")
        if not same:
            self.bad.append(f"{name}, run: {said} {more}")
        os.remove(path)


def number(value, digits=0):
    return "?" if value is None else f"{value:.{digits}f}"


def times(jobs):
    """A real job, an empty one, and the share of the decoding that was spent waiting."""
    if jobs is None:
        return ["", "", ""]
    empty = jobs["empty_us"]
    return [number(jobs["job_us"]["p50"]), number(empty and empty["p50"], 1), f"{100 * jobs['wait_share']:.0f} %"]


def table(title, head, rows):
    rows = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    print(f"\n{title}")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def main():
    check = Check(*sys.argv[1:5])
    if not check.vkinfo():
        sys.exit("\nthere is no device to check")
    vocab, dim = (8192, 512) if check.small else (128256, 2048)
    check.head("q4_0", Q4_0, vocab, dim)
    check.head("q8_0", Q8_0, vocab // 2 + 3, dim)
    for bad in check.bad:
        print(f"\nBAD: {bad}")
    sys.exit(f"\n{len(check.bad)} bad" if check.bad else 0)


main()
