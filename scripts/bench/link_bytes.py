#!/usr/bin/env python3
"""What crosses the link for a token of decode, with the KV cache on the host and attention on the device: the full
cache, H2O at 20 %, and H2O at 20 % with its cache resident, all with the same block.

  scripts/bench/link_bytes.py [--plan] [--models opt-30b,opt-6.7b] [--machine FILE] [--device-memory 16GiB]
      [--host-memory 96GiB] [--prompt-len 512] [--gen-len 512] [--block 9x4] [--backend cuda] [--sweeps 4]
      [--output FILE.json] [--weft PROGRAM]      (in a package: --weft bin/weft)

With --plan nothing runs: bytes are those of the schedule, tokens/s are predicted. Without it each layout also runs, with
random weights, and 3 x SWEEPS sweeps are timed. Bytes are then counted by the run; what its prefills move, as the
schedule has it, is taken off. Prints a table in markdown. Bytes are per generated token."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from weft_plan import plan

ROOT = pathlib.Path(__file__).resolve().parents[2]
LANES = ["host_to_device", "device_to_host"]
LAYOUTS = [("full, KV on the host", "full", {"host": 1.0}), ("h2o at 20 %, KV on the host", "h2o:0.1:0.1", {"host": 1.0}),
           ("h2o at 20 %, KV resident", "h2o:0.1:0.1", {"device": 1.0})]


def config_of(model):
    """A name of configs/models, or a config.json."""
    return model if model.endswith(".json") else ROOT / f"configs/models/{model}.json"


def planned(options, model, retention, policy, machine):
    return plan(options.weft, "--model", config_of(model), "--machine", machine, "--policy", policy, "--retention", retention,
                "--prompt-len", options.prompt_len, "--gen-len", options.gen_len, "--device-memory", options.device_memory,
                "--host-memory", options.host_memory, "--disk-memory", 0)


def bytes_of_schedule(options, model, retention, policy, folder):
    """Bytes by phase and lane: of prefill, and of a decode sweep. A lane's seconds by itself times its rate."""
    machine = json.loads(options.machine.read_text())
    machine["together"] = {}
    alone = folder / "alone.json"
    alone.write_text(json.dumps(machine))
    predicted = planned(options, model, retention, policy, alone)["predicted"]
    sweeps = {"prefill": 1, "decode": options.gen_len - 1}
    return {phase: {lane: predicted["utilisation"][lane][phase] * predicted["seconds"][phase] * machine["lanes"][lane] / count
                    for lane in LANES} for phase, count in sweeps.items()}


def measured(options, model, policy, prefill, folder):
    """Bytes of a decode sweep by lane, and tokens/s of decode."""
    report = folder / "run.json"
    command = [options.weft, "bench", "--model", config_of(model), "--weights", "random:1", "--backend", options.backend,
               "--policy", policy, "--prompt-len", options.prompt_len, "--gen-len", options.gen_len, "--project",
               options.sweeps, "--no-warm-up", "--report", report]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    run = json.loads(report.read_text())
    prefills = 1 + len(run["projected_from"])  # each part of the projection begins with one whose KV is made up
    sweeps = run["tokens"]["generated"] / run["workload"]["requests"] - prefills
    # A run may leave out storing KV whose sequences have ended with their first token.
    moved = {lane: max(0, run["lanes"][lane]["bytes"] - prefills * prefill[lane]) / sweeps for lane in LANES}
    return moved, run["tokens_per_second"]["decode"]["median"]


def rows_of(options, model, folder):
    size, count = map(int, options.block.split("x"))
    rows = []
    for name, retention, kv in LAYOUTS:
        policy = folder / "policy.json"
        policy.write_text(json.dumps({"version": 1, "gpu_batch_size": size, "num_gpu_batches": count, "kv": kv,
                                      "activations": {"device": 1.0}, "attention": "device", "schedule": "static"}))
        chosen = planned(options, model, retention, policy, options.machine)
        policy.write_text(json.dumps(chosen["policy"]))  # with the weights where the plan has put them
        of_schedule = bytes_of_schedule(options, model, retention, policy, folder)
        row = {"model": model, "layout": name, "block": options.block, "weights": chosen["policy"]["weights"],
               "bytes_per_token": {lane: moved / (size * count) for lane, moved in of_schedule["decode"].items()},
               "predicted": chosen["predicted"]["tokens_per_second"]["decode"]}
        if not options.plan:
            moved, row["measured"] = measured(options, model, policy, of_schedule["prefill"], folder)
            row["measured_bytes_per_token"] = {lane: its / (size * count) for lane, its in moved.items()}
        rows.append(row)
    return rows


def megabytes(row, key, lane):
    return f"{row[key][lane] / 1e6:,.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--models", default="opt-30b,opt-6.7b")
    parser.add_argument("--machine", type=pathlib.Path, default=ROOT / "configs/machines/h100.json")
    parser.add_argument("--device-memory", default="16GiB")
    parser.add_argument("--host-memory", default="96GiB")
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--gen-len", type=int, default=512)
    parser.add_argument("--block", default="9x4")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--sweeps", type=int, default=4)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build/release/weft")
    options = parser.parse_args()
    columns = ["model", "layout", "block", "weights on the device", "MB a token to the device", "MB a token to the host",
               "decode, predicted"]
    if not options.plan:
        columns += ["MB to the device, measured", "MB to the host, measured", "decode, measured"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    rows = []
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            for row in rows_of(options, model, pathlib.Path(folder)):
                rows.append(row)
                there, back = (megabytes(row, "bytes_per_token", lane) for lane in LANES)
                cells = [model, row["layout"], row["block"], f"{100 * row['weights']['device']:.0f} %", there, back,
                         f"{row['predicted']:.1f}"]
                if not options.plan:
                    cells += [megabytes(row, "measured_bytes_per_token", lane) for lane in LANES]
                    cells.append(f"{row['measured']:.1f}")
                print(f"| {' | '.join(cells)} |", flush=True)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
