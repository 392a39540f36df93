#!/usr/bin/env python3
"""Requests of many lengths through blocks that are refilled and through static blocks of the same slots.

    python3 scripts/bench/continuous.py [--model models/demo] [--requests 2000] [--block 8x4] [-- FLAGS OF WEFT ...]

Prompts of 16 to 256 tokens and outputs of 1 to 256, both log-uniform. Without a tokenizer, as of a bare config.json, prompts
are random ids. Prints tokens/s and how full the blocks were; ends with 1 if an answer differs or the gain is below 1.5.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_requests(path, count, vocab, seed):
    pick = random.Random(seed)

    def log_uniform(low, high):
        return min(high, int(math.exp(pick.uniform(math.log(low), math.log(high + 1)))))

    with path.open("w") as file:
        for i in range(count):
            prompt = [pick.randrange(4, vocab) for _ in range(log_uniform(16, 256))]
            file.write(json.dumps({"id": i, "prompt_ids": prompt, "max_tokens": log_uniform(1, 256), "ignore_eos": True}) + "\n")


def run(arguments, folder, schedule):
    output, report = folder / f"{schedule}.jsonl", folder / f"{schedule}.json"
    size, batches = arguments.block.split("x")
    subprocess.run([arguments.weft, "generate", "--model", arguments.model, "--input", folder / "requests.jsonl", "--output",
                    output, "--report", report, "--schedule", schedule, "--gpu-batch-size", size, "--num-gpu-batches", batches,
                    "--quiet", *arguments.flags], check=True)
    return {answer["id"]: answer["token_ids"] for answer in map(json.loads, output.open())}, json.loads(report.read_text())


def main():
    own, flags = sys.argv[1:], []
    if "--" in own:
        own, flags = own[:own.index("--")], own[own.index("--") + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "demo")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--block", default="8x4", help="gpu batch size x number of gpu batches")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--weft", type=Path, default=ROOT / "build" / "release" / "weft")
    arguments = parser.parse_args(own)
    arguments.flags = flags
    config = arguments.model / "config.json" if arguments.model.is_dir() else arguments.model
    with tempfile.TemporaryDirectory(prefix="weft-continuous-") as name:
        folder = Path(name)
        make_requests(folder / "requests.jsonl", arguments.requests, json.loads(config.read_text())["vocab_size"], arguments.seed)
        speed, answers = {}, {}
        print(f"{'schedule':12}{'tokens/s':>10}{'prefill s':>11}{'decode s':>10}{'places full':>13}")
        for schedule in ("static", "continuous"):
            answers[schedule], report = run(arguments, folder, schedule)
            speed[schedule] = report["tokens_per_second"]["total"]
            print(f"{schedule:12}{speed[schedule]:10.1f}{report['seconds']['prefill']:11.1f}{report['seconds']['decode']:10.1f}"
                  f"{report['occupancy']:13.1%}", flush=True)
    same = answers["static"] == answers["continuous"]
    gain = speed["continuous"] / speed["static"]
    print(f"{gain:.2f}x; {len(answers['static'])} answers, {'all the same' if same else 'NOT THE SAME'}")
    return 0 if same and gain >= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
