#!/usr/bin/env python3
"""Measures what --checkpoint-every costs: the same job with and without it, by turns, and the median of the ratios.

    scripts/bench/checkpoints.py [--model configs/models/opt-1.3b.json] [--every 30s] [--pairs 3] [--disk-dir build/bench]

Weights are random and, by default, all on the disk, so a sweep takes as long as reading them. Jobs are shorter than the
default interval of ten minutes; so a shorter one is measured, and from the time of one save follows the share of ten
minutes. Wants a machine that does nothing else: the spread is printed.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEFAULT_INTERVAL = 600  # seconds


def write_requests(path, options):
    """All of one length, so that every sweep is like every other."""
    with open(path, "w") as out:
        for i in range(options.requests):
            ids = [4 + (7 * i + j) % 1000 for j in range(options.prompt_len)]
            out.write(json.dumps({"id": i, "prompt_ids": ids, "max_tokens": options.gen_len, "ignore_eos": True}) + "\n")


def run(options, folder, number, every):
    """Seconds of the run, without loading, and what its report says of checkpoints."""
    output, report = folder / f"out{number}.jsonl", folder / f"report{number}.json"
    subprocess.run([options.weft, "generate", "--model", options.model, "--weights", "random:1", "--input", folder / "in.jsonl",
                    "--output", output, "--report", report, "--quiet", "--backend", "cpu", "--disk-dir", folder,
                    "--gpu-batch-size", str(options.gpu_batch_size), "--num-gpu-batches", str(options.num_gpu_batches),
                    "--percent", *options.percent, "--checkpoint-every", every], check=True)
    answers = sorted(output.read_bytes().splitlines())
    measured = json.loads(report.read_text())
    return measured["tokens_per_second"]["total"], measured["checkpoints"], answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build/release/weft")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "configs/models/opt-1.3b.json")
    parser.add_argument("--every", default="30s")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--gen-len", type=int, default=64)
    parser.add_argument("--gpu-batch-size", type=int, default=32)
    parser.add_argument("--num-gpu-batches", type=int, default=2)
    parser.add_argument("--percent", nargs=6, default=["0", "0", "100", "0", "100", "0"])
    parser.add_argument("--disk-dir", type=pathlib.Path, default=ROOT / "build/bench")
    options = parser.parse_args()
    options.disk_dir.mkdir(parents=True, exist_ok=True)
    ratios, saves, seconds, largest, first = [], 0, 0.0, 0, None
    with tempfile.TemporaryDirectory(prefix="weft-checkpoints-", dir=options.disk_dir) as name:
        folder = pathlib.Path(name)
        write_requests(folder / "in.jsonl", options)
        for pair in range(options.pairs):
            turns = ["off", options.every] if pair % 2 == 0 else [options.every, "off"]
            rates = {}
            for every in turns:
                rates[every], done, answers = run(options, folder, f"{pair}-{every}", every)
                first = first or answers
                assert answers == first, "the answers differ"
                if every != "off":
                    saves, seconds, largest = saves + done["count"], seconds + done["seconds"], max(largest, done["bytes"])
            ratios.append(rates["off"] / rates[options.every])
            print(f"pair {pair + 1}: {rates['off']:.1f} tokens/s without, {rates[options.every]:.1f} with --checkpoint-every {options.every}",
                  flush=True)
    assert saves > 0, "nothing was saved: ask for a shorter --every or longer answers"
    each = seconds / saves
    print(f"{options.model.stem}, {options.requests} requests of {options.prompt_len}+{options.gen_len}, blocks of "
          f"{options.num_gpu_batches}x{options.gpu_batch_size}: time with / without: median {statistics.median(ratios):.3f} "
          f"[{min(ratios):.3f}..{max(ratios):.3f}] of {len(ratios)} pairs")
    print(f"{saves} saves of up to {largest / 2**20:.1f} MiB, {each:.3f} s each: {each / DEFAULT_INTERVAL:.3%} of the default interval of "
          f"ten minutes, which grows where that would be more than 3 %")


if __name__ == "__main__":
    main()
