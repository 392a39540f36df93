#!/usr/bin/env python3
"""How long a decode step takes by each retention rule, against h2o's of as many slots. Prints a table.

    scripts/bench/rules.py [--model configs/models/opt-125m.json] [--slots 1024] [--batch 8] [--tokens 65] [--rounds 5]
                           [--rules RULE ...] [-- FLAGS OF WEFT ...]

Blocks begin with random keys and values in all slots, and nothing but decode steps is timed. The rules take turns, round
after round, and of each the median of its ratios to h2o in the same round is printed with their range. In a RULE, HALF stands
for half of the slots and ALL for all of them.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
H2O = "h2o:HALF:HALF"
RULES = [H2O, "h2o:HALF:HALF:sinks=4", "h2o:HALF:HALF:rest=true", "recent:ALL", "tova:ALL", "defensive:HALF:HALF",
         "keydiff:HALF:HALF", "random:HALF:HALF"]


def decode_speed(arguments, rule):
    rule = rule.replace("HALF", str(arguments.slots // 2)).replace("ALL", str(arguments.slots))
    said = subprocess.run([arguments.weft, "bench", "--model", arguments.model, "--retention", rule, "--skip-prefill",
                           "--prompt-len", str(arguments.slots), "--gen-len", str(arguments.tokens), "--gpu-batch-size",
                           str(arguments.batch), "--num-gpu-batches", "1", "--percent", *"100 0 100 0 100 0".split(),
                           *(["--weights", "random:1"] if arguments.model.is_file() else []), *arguments.flags],
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said)["tokens_per_second"]["decode"]["median"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "configs/models/opt-125m.json",
                        help="a folder, or a config.json, whose weights are then random")
    parser.add_argument("--slots", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=65)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--weft", type=Path, default=ROOT / "build/release/weft")
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    rules = [H2O, *(rule for rule in arguments.rules if rule != H2O)]
    speeds = [{rule: decode_speed(arguments, rule) for rule in rules} for _ in range(arguments.rounds)]
    print("| rule | decode tokens/s | time of a step, times h2o's | range |\n|---|---|---|---|")
    for rule in rules:
        ratios = [round_[H2O] / round_[rule] for round_ in speeds]
        print(f"| {rule} | {statistics.median(round_[rule] for round_ in speeds):.1f} | {statistics.median(ratios):.2f} "
              f"| {min(ratios):.2f}-{max(ratios):.2f} |")


if __name__ == "__main__":
    main()
