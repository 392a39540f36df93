#!/usr/bin/env python3
"""What the planner predicts beside what is measured, on this machine and the CPU backend.

First the machine is measured (weft bench --lanes --save), then runs of OPT-125m and OPT-1.3B shapes in every kind of
placement; a Markdown table comes out. With --pick the planner's policy for a model that does not fit is timed beside
twenty others: ten of them one step away from it, ten drawn at random from those that fit. Wants the machine to itself.

  scripts/bench/plan_accuracy.py [--pick] [--machine FILE] [--report FILE]
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = ROOT / "build/release/weft"
FULL, H2O = "full", "h2o:0.1:0.1"
ALL, NOTHING = {"device": 1.0}, {"disk": 1.0}
HALF = {"device": 0.5, "disk": 0.5}


def bench(machine, model, prompt, generation, policy, *flags, requests=0):
    """The report of one run, or None where the policy does not fit."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        path = pathlib.Path(folder) / "policy.json"
        path.write_text(json.dumps({"version": 1, **policy}))
        done = subprocess.run(
            [WEFT, "bench", "--backend", "cpu", "--model", ROOT / f"configs/models/{model}.json", "--weights", "random:1",
             "--prompt-len", str(prompt), "--gen-len", str(generation), "--requests", str(requests), "--repetitions", "3",
             "--policy", path, "--machine", machine, "--disk-dir", folder, *flags], capture_output=True, text=True)
    if done.returncode == 4:
        return None
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def policy_of(size, batches, weights, kv, retention):
    rule = {"rule": "full"} if retention == FULL else {"rule": "h2o", "heavy": 0.1, "recent": 0.1,
                                                       "of": "prompt+generation"}
    return {"gpu_batch_size": size, "num_gpu_batches": batches, "weights": weights, "kv": kv, "activations": ALL,
            "retention": rule}


def runs(largest):
    """What the table holds: a name and a policy."""
    return [
        ("all resident, block 1", policy_of(1, 1, ALL, ALL, FULL)),
        ("all resident, block 8", policy_of(8, 1, ALL, ALL, FULL)),
        (f"all resident, block {largest}", policy_of(largest, 1, ALL, ALL, FULL)),
        ("all resident, block 8, h2o 20 %", policy_of(8, 1, ALL, ALL, H2O)),
        ("weights on disk, block 8", policy_of(8, 1, NOTHING, ALL, FULL)),
        (f"weights on disk, block {largest}, h2o 20 %", policy_of(largest, 1, NOTHING, ALL, H2O)),
        ("half the weights on disk, block 8", policy_of(8, 1, HALF, ALL, FULL)),
        ("KV on disk, block 8", policy_of(4, 2, ALL, NOTHING, FULL)),
        (f"KV on disk, block {largest}, h2o 20 %", policy_of(largest // 4, 4, ALL, NOTHING, H2O)),
    ]


def row(name, report):
    measured, predicted = report["tokens_per_second"], report["predicted"]["tokens_per_second"]
    ratio = predicted["total"] / measured["total"]["median"]
    print(f"| {name} | {measured['prefill']['median']:.1f} | {predicted['prefill']:.1f} | "
          f"{measured['decode']['median']:.2f} | {predicted['decode']:.2f} | {measured['total']['median']:.2f} "
          f"({measured['total']['min']:.2f}-{measured['total']['max']:.2f}) | {predicted['total']:.2f} | {ratio:.2f} |",
          flush=True)
    return ratio


def accuracy(machine, results):
    print("| run | prefill | predicted | decode | predicted | total (min-max) | predicted | predicted / measured |")
    print("|---|---|---|---|---|---|---|---|")
    ratios = []
    for model, prompt, generation, largest in (("opt-125m", 128, 32, 64), ("opt-1.3b", 32, 16, 32)):
        for name, policy in runs(largest):
            report = bench(machine, model, prompt, generation, policy)
            results.append({"model": model, "name": name, "report": report})
            ratios.append(row(f"{model} {prompt}+{generation}: {name}", report))
    good = sum(1 / 1.15 <= ratio <= 1.15 for ratio in ratios)
    print(f"\n{good} of {len(ratios)} predictions of the total are within 15 %")


def neighbours(pick):
    """The ten policies one step away: the block a little smaller or larger, more or fewer batches, a unit more or less
    of the weights on disk, a few layers of KV there."""
    def changed(**changes):
        return {**pick, **changes}

    def moved(kind, step):
        disk = min(1.0, max(0.0, pick[kind]["disk"] + step))
        return changed(**{kind: {"device": 1 - disk, "host": 0, "disk": disk}})

    size, batches = pick["gpu_batch_size"], pick["num_gpu_batches"]
    step = max(1, size // 8)
    return [changed(gpu_batch_size=size + step), changed(gpu_batch_size=size - step), changed(gpu_batch_size=size - 2 * step),
            changed(num_gpu_batches=batches + 1), changed(gpu_batch_size=(size + 1) // 2, num_gpu_batches=2 * batches),
            moved("weights", 0.04), moved("weights", -0.04), moved("weights", 0.08), moved("kv", 0.1),
            changed(gpu_batch_size=max(1, size - step), num_gpu_batches=batches + 1)]


def pick(machine, results):
    model, prompt, generation, requests, budget = "opt-125m", 64, 32, 64, "256MiB"
    flags = ("--device-memory", budget)
    picked = bench(machine, model, prompt, generation, {}, *flags, requests=requests)
    policy = {key: picked["policy"][key] for key in ("gpu_batch_size", "num_gpu_batches", "weights", "kv", "activations",
                                                     "retention")}
    print(f"\n{requests} requests of {prompt}+{generation}, {model}, {budget} of memory; the planner's pick:")
    print(json.dumps({key: policy[key] for key in list(policy)[:5]}))
    speed = picked["tokens_per_second"]["total"]["median"]
    print(f"measured {speed:.2f} tokens/s, predicted {picked['predicted']['tokens_per_second']['total']:.2f}\n")
    print("| policy | measured | predicted |")
    print("|---|---|---|")
    generator, best, found = random.Random(1), speed, 0
    candidates = [("one step away", near) for near in neighbours(policy)]

    def drawn():
        disk = generator.choice([0, 0.25, 0.5, 0.75, 1])
        weights = {"device": 1 - disk, "disk": disk}
        kv = generator.choice([ALL, ALL, {"device": 0.75, "disk": 0.25}])
        return policy_of(generator.choice([4, 8, 12, 16, 24, 32, 48]), generator.choice([1, 1, 2, 4]), weights, kv, FULL)

    while found < 20:
        kind, other = candidates.pop(0) if candidates else ("drawn", drawn())
        if other["gpu_batch_size"] < 1:
            continue
        report = bench(machine, model, prompt, generation, other, *flags, requests=requests)
        if report is None:
            continue
        found += 1
        measured = report["tokens_per_second"]["total"]["median"]
        best = max(best, measured)
        results.append({"model": model, "name": kind, "report": report})
        print(f"| {kind}: {other['gpu_batch_size']} x {other['num_gpu_batches']}, weights on disk "
              f"{100 * other['weights'].get('disk', 0):.0f} %, kv {100 * other['kv'].get('disk', 0):.0f} % | {measured:.2f} | "
              f"{report['predicted']['tokens_per_second']['total']:.2f} |", flush=True)
    print(f"\nthe pick reaches {100 * speed / best:.0f} % of the best of {found + 1} measured")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", help="machine file; measured first unless given")
    parser.add_argument("--pick", action="store_true", help="time the planner's pick beside twenty others")
    parser.add_argument("--report", help="write all reports to this file")
    options = parser.parse_args()
    machine = options.machine
    if machine is None:
        machine = ROOT / "build/machine.json"
        subprocess.run([WEFT, "bench", "--lanes", "--backend", "cpu", "--save", machine], check=True,
                       stdout=subprocess.DEVNULL)
    results = []
    (pick if options.pick else accuracy)(machine, results)
    if options.report:
        pathlib.Path(options.report).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
