#!/usr/bin/env python3
"""The planner's policies for large OPT models on the machines of configs/machines, as the Markdown table of
docs/planning.md. Predicted, not measured.

  scripts/compare/plan_table.py [--prompt-len N] [--gen-len N] [--weft PROGRAM]
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS, MACHINES = ["opt-6.7b", "opt-30b", "opt-66b", "opt-175b"], ["t4", "a100-80gb", "h200-16gib"]
RETENTIONS = ["full", "h2o:0.1:0.1"]


def planned(model, machine, retention, options):
    with tempfile.NamedTemporaryFile() as report:
        subprocess.run(
            [options.weft, "plan", "--model", ROOT / f"configs/models/{model}.json", "--machine",
             ROOT / f"configs/machines/{machine}.json", "--retention", retention, "--prompt-len", str(options.prompt_len),
             "--gen-len", str(options.gen_len), "--report", report.name], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(report.name))


def percent(shares):
    return "/".join(f"{100 * share:.0f}" for share in shares.values())


def attention(policy):
    side = policy["attention"]
    return side if isinstance(side, str) else f"{100 * side['host']:.0f} % host"


def row(model, machine, retention, options):
    plan = planned(model, machine, retention, options)
    policy, predicted = plan["policy"], plan["predicted"]
    lane = predicted["bottleneck"]
    phase = "prefill" if predicted["seconds"]["prefill"] > predicted["seconds"]["decode"] else "decode"
    gains = ", ".join(f"{gain['what'].replace(' (not in this version)', '')} {gain['factor']:.1f}x"
                      for gain in plan["gains"][:2])
    print(f"| {model} | {machine} | {retention.split(':')[0]} | {policy['gpu_batch_size']} x {policy['num_gpu_batches']} | "
          f"{percent(policy['weights'])} | {percent(policy['kv'])} | {attention(policy)} | "
          f"{predicted['tokens_per_second']['total']:.1f} | {lane} {100 * predicted['utilisation'][lane][phase]:.0f} % in "
          f"{phase} | {gains} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--gen-len", type=int, default=512)
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build/release/weft")
    options = parser.parse_args()
    print("| model | machine | KV | block | weights | KV | attention | tokens/s | bottleneck | what would help most |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in MODELS:
        for machine in MACHINES:
            for retention in RETENTIONS:
                row(model, machine, retention, options)


if __name__ == "__main__":
    main()
