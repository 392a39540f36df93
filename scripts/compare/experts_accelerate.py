#!/usr/bin/env python3
"""Weft and Hugging Face Accelerate with OLMoE's shape (6.9 billion random weights of bfloat16, 64 experts of which a token
takes 8), all layers on the disk, within one memory limit (a cgroup, which counts the page cache too): tokens/s of decode.

    scripts/compare/experts_accelerate.py --python PYTHON [--batches 16,64,256] [--tokens 3] [--limit 4]

PYTHON has torch, transformers and accelerate. Accelerate's layers are written once, in --work. Needs root for the cgroup and
30 GB of disk.
"""
import argparse
import json
import pathlib
import sys

from generation_loop import rates
from memory_limit import forget, run_within

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHAPE = ROOT / "configs/models/olmoe-1b-7b.json"


def run(command, mib, seconds):
    outcome = run_within([str(word) for word in command], mib, seconds)
    if outcome.reason:
        print(f"{command[0]}: {outcome.reason}", file=sys.stderr)
        return None, outcome.peak_mib
    return json.loads(outcome.said), outcome.peak_mib


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[16, 64, 256])
    parser.add_argument("--prompt-len", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=3, help="decode steps that are timed")
    parser.add_argument("--limit", type=int, default=4, metavar="GIB")
    parser.add_argument("--seconds", type=float, default=900, help="the most that a run may take")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/race", help="a folder on a disk")
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build/release/weft")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    offload = options.work / "olmoe-accelerate"
    accelerate = [options.python, HERE / "run_accelerate.py", "--config", SHAPE, "--offload", offload, "--dtype", "bfloat16"]
    if not (offload / "index.json").exists():
        run_within([str(word) for word in [*accelerate, "--prepare"]], None, 3600)
    print("| batch | Weft decode tok/s | peak, MiB | Accelerate decode tok/s | peak, MiB | ratio |\n|---|---|---|---|---|---|")
    for batch in options.batches:
        length = ["--prompt-len", options.prompt_len]
        forget(options.work)
        theirs, their_peak = run([*accelerate, "--batch", batch, *length, "--steps", options.tokens + 1], options.limit << 10,
                                 options.seconds)
        own, own_peak = run([options.weft, "bench", "--model", SHAPE, "--weights", "random:1", "--weight-dtype", "bfloat16",
                             "--percent", 0, 0, 100, 0, 100, 0, "--gpu-batch-size", batch, "--num-gpu-batches", 1, *length,
                             "--gen-len", options.tokens + 1, "--skip-prefill", "--no-warm-up", "--device-memory",
                             f"{options.limit - 1}GiB", "--disk-dir", options.work, "--backend", "cpu"],
                            options.limit << 10, options.seconds)
        own = own and own["tokens_per_second"]["decode"]["median"]
        theirs = theirs and rates(theirs, batch, options.tokens + 1)["decode"]
        cell = "{:.2f}".format
        print(f"| {batch} | {cell(own) if own else ''} | {own_peak} | {cell(theirs) if theirs else ''} | {their_peak} | "
              f"{cell(own / theirs) if own and theirs else ''} |", flush=True)


if __name__ == "__main__":
    main()
