#!/usr/bin/env python3
"""What is lost by converting: packs a model as each of some types and holds its predictions against the model itself.

    scripts/quality.py MODEL TYPE... [--imatrix F] [--mix] [--threads N]

A TYPE is one of `twinband pack --type`; all matrices get it whose rows are whole blocks of it (`--pure`), or with --mix what the
mixture of this name gives them. Prints the rows of the tables in docs/BENCHMARKS.md, best first.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TWINBAND = ROOT / "target/release/twinband"
TEXT = ROOT / "tests/data/text/english.txt"


def run(*args):
    done = subprocess.run([TWINBAND, *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"twinband {' '.join(map(str, args))}: {done.stderr.strip()}")
    return done.stdout


def elements(tensor):
    n = 1
    for dim in tensor["dims"]:
        n *= dim
    return n


def row(args, ty, out):
    how = ([] if args.mix else ["--pure"]) + (["--imatrix", args.imatrix] if args.imatrix else [])
    run("pack", args.model, out, "--type", ty, "--force", "-q", *how)
    info = json.loads(run("info", out, "--json"))
    ppl = json.loads(
        run("ppl", out, "--against", args.model, "-f", TEXT, "--window", 256, "--stride", 128, "-t", args.threads, "--json")
    )
    of_type = [tensor for tensor in info["tensors"] if tensor["type"] == ty.upper()]
    n = sum(map(elements, of_type))
    own = f"{8 * sum(tensor['bytes'] for tensor in of_type) / n:.2f}" if n else ""
    share, whole, against = n / info["parameters"], info["bits_per_weight"], ppl["against"]
    cells = [ty, f"{100 * share:.0f} %", own, f"{whole:.2f}", f"{ppl['ppl']:.2f}", f"{against['kld_mean']:.4f}"]
    return against["kld_mean"], cells + [f"{against['kld_p99']:.3f}", f"{100 * against['same_top']:.1f} %"], against["ppl"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("types", metavar="TYPE", nargs="+")
    parser.add_argument("--imatrix", metavar="F")
    parser.add_argument("--mix", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = sorted(row(args, ty, Path(folder) / "out.g2bx") for ty in args.types)
    print("| type | of the weights | bits a weight of it | of all | ppl (parent %.2f) | mean KLD | 99 %% KLD | same token on top |" % rows[0][2])
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for _, cells, _ in rows:
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
