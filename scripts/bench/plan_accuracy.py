#!/usr/bin/env python3
"""Compares what the planner predicts with what is measured, on this machine and the CPU backend.

Runs of OPT-125m and OPT-1.3B shapes in every kind of placement, in rounds; before every round the machine is measured
(weft bench --lanes --save), for a shared machine is not equally fast all the time. A Markdown table of the medians comes
out. With --jobs the planner's own picks for request files are timed instead: ragged lengths, a number of requests just
above a power of two, equal prompts, prompts that several requests share, and n choices; with --prefixes, those for long
prompts and for prompts that begin alike; each such run measures the machine briefly, as weft generate does. With
--experts the placements of a small model with experts are timed, with --coarse h2o over int8 and cold tokens at a quarter of
the bytes or less, with OPT-1.3B's weights of 4 bits. With --pick the planner's policy for a model that does not fit is timed
against twenty others, also in rounds: ten of them one step away from it, ten drawn at random from those that fit. Nothing
else should run on the machine.

  scripts/bench/plan_accuracy.py [--jobs | --prefixes | --experts | --coarse | --pick] [--only WORD] [--rounds N] [--report FILE]
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = ROOT / "build/release/weft"
FULL, H2O = "full", "h2o:0.1:0.1"
ALL, NOTHING = {"device": 1.0}, {"disk": 1.0}
HALF = {"device": 0.5, "disk": 0.5}


def model_file(model, folder):
    """The config of a model; "experts" is one with experts that takes 0.4 GB."""
    if model != "experts":
        return ROOT / f"configs/models/{model}.json"
    config = json.loads((ROOT / "configs/models/olmoe-1b-7b.json").read_text())
    config.update(hidden_size=768, intermediate_size=384, num_hidden_layers=8, num_attention_heads=12,
                  num_key_value_heads=12, num_experts=32, num_experts_per_tok=4, vocab_size=16384, eos_token_id=3,
                  torch_dtype="float16")
    path = pathlib.Path(folder) / "config.json"
    path.write_text(json.dumps(config))
    return path


def bench(machine, model, prompt, generation, policy, *flags, requests=0):
    """The report of one run after a warm-up, or None where the policy does not fit."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        path = pathlib.Path(folder) / "policy.json"
        path.write_text(json.dumps({"version": 1, **policy}))
        done = subprocess.run(
            [WEFT, "bench", "--backend", "cpu", "--model", model_file(model, folder), "--weights", "random:1", "--prompt-len", str(prompt), "--gen-len", str(generation), "--requests", str(requests),
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


def measured_machine():
    machine = ROOT / "build/machine.json"
    subprocess.run([WEFT, "bench", "--lanes", "--backend", "cpu", "--save", machine], check=True, stdout=subprocess.DEVNULL)
    return machine


def speeds(reports, phase):
    """Median measured and median predicted tokens/s."""
    return (statistics.median(report["tokens_per_second"][phase]["median"] for report in reports),
            statistics.median(report["predicted"]["tokens_per_second"][phase] for report in reports))


def row(name, reports):
    cells = [f"{value:.1f}" for phase in ("prefill", "decode") for value in speeds(reports, phase)]
    ratios = sorted(report["predicted"]["tokens_per_second"]["total"] / report["tokens_per_second"]["total"]["median"]
                    for report in reports)
    total = speeds(reports, "total")
    print(f"| {name} | {' | '.join(cells)} | {total[0]:.2f} | {total[1]:.2f} | {statistics.median(ratios):.2f} "
          f"({ratios[0]:.2f}-{ratios[-1]:.2f}) |", flush=True)
    return statistics.median(ratios)


def dense():
    return [(model, prompt, generation, name, policy) for model, prompt, generation, largest in
            (("opt-125m", 128, 32, 64), ("opt-1.3b", 32, 16, 32)) for name, policy in runs(largest)]


def experts():
    return [("experts", 64, 32, name, policy) for name, policy in
            [*runs(64), ("all resident, block 32 x 2", policy_of(32, 2, ALL, ALL, FULL)),
             ("weights on disk, block 256", policy_of(128, 2, NOTHING, ALL, FULL))]]


def coarse():
    """h2o over rows of int8 at a quarter of the bytes, and cold tokens at a quarter and at a fifth."""
    weights = {"device": 1.0, "dtype": "int4"}

    def policy(words, retention, kv):
        return "opt-1.3b", 512, 512, words, {**policy_of(20, 1, weights, {"device": 1.0, **kv}, FULL), "retention": retention}

    def cold(share, keys, values):
        return policy(f"h2o:{share}:{share}:cold=1.0@int8:{keys}:{values}", {"rule": "h2o", "heavy": share, "recent": share,
                      "of": "prompt+generation", "cold": 1.0}, {"dtype": "int8", "coarse": {"keys": keys, "values": values}})

    return [policy("h2o:0.236:0.236@int8", {"rule": "h2o", "heavy": 0.236, "recent": 0.236, "of": "prompt+generation"},
                   {"dtype": "int8"}), cold(0.05, 4, 2), cold(0.017, 3, 2)]


def accuracy(chosen, rounds, results, *flags):
    reports = [[] for _ in chosen]
    for number in range(rounds):
        machine = measured_machine()
        for (model, prompt, generation, name, policy), of_run in zip(chosen, reports):
            of_run.append(bench(machine, model, prompt, generation, policy, *flags))
            results.append({"round": number, "model": model, "name": name, "report": of_run[-1]})
    print("| run | prefill | predicted | decode | predicted | total | predicted | predicted / measured (min-max) |")
    print("|---|---|---|---|---|---|---|---|")
    ratios = [row(f"{model} {prompt}+{generation}: {name}", of_run)
              for (model, prompt, generation, name, _), of_run in zip(chosen, reports)]
    good = sum(1 / 1.15 <= ratio <= 1.15 for ratio in ratios)
    print(f"\n{good} of {len(ratios)} predictions of the total are within 15 %: medians of {rounds} rounds")


def requests_of(kind):
    """The lines of a job."""
    generator = random.Random(7)

    def line(number, tokens, answer, **more):
        prompt = [generator.randrange(5, 8000) for _ in range(tokens)] if isinstance(tokens, int) else tokens
        return {"id": str(number), "prompt_ids": prompt, "max_tokens": answer, "ignore_eos": True, **more}

    if kind == "ragged":
        return [line(i, generator.randrange(20, 60), generator.choice([8, 16, 32])) for i in range(120)] + \
               [line(1000 + i, 800, 100) for i in range(3)]
    if kind == "17 of one length":
        return [line(i, 20, 16) for i in range(17)]
    if kind == "64 equal prompts":
        return [line(i, [7] * 200, 16) for i in range(64)]
    if kind == "shared prompts":
        shared = [[generator.randrange(5, 8000) for _ in range(150)] for _ in range(8)]
        return [line(i, shared[i % 8], generator.choice([12, 16])) for i in range(64)]
    return [line(i, 150, 16, n=16, temperature=1.0, seed=i) for i in range(4)]


JOBS = ("ragged", "17 of one length", "64 equal prompts", "shared prompts", "n = 16")


def prefix_lines(prefixes, shared, own, lines, answer, **more):
    """Prompts of `shared` tokens that several lines have and some `own` ones."""
    generator = random.Random(3)
    draw = lambda count: [generator.randrange(5, 8000) for _ in range(count)]  # noqa: E731
    beginnings = [draw(shared) for _ in range(prefixes)]
    return [{"id": str(i), "prompt_ids": beginnings[i % prefixes] + draw(generator.randrange(own // 2, own * 3 // 2)),
             "max_tokens": answer, "ignore_eos": True, **more} for i in range(lines)]


def prefix_jobs():
    """Name, lines, memory budget, flags."""
    few_shot, four, long = (prefix_lines(1, 900, 30, 96, 8), prefix_lines(4, 400, 30, 64, 24),
                            prefix_lines(24, 1700, 20, 24, 16))
    half = prefix_lines(1, 600, 30, 32, 16) + [{**line, "id": "o" + line["id"]} for line in
                                               prefix_lines(32, 600, 30, 32, 16)]
    choices = prefix_lines(2, 500, 30, 16, 16, n=4, temperature=1.0, seed=1)
    h2o = ("--retention", H2O)
    return [("900 shared tokens, 96 lines", few_shot, None, ()), ("4 x 400 shared tokens, 64 lines", four, None, ()),
            ("4 x 400 shared tokens, 64 lines, h2o 20 %", four, None, h2o), ("24 prompts of 1700 tokens", long, None, ()),
            ("24 prompts of 1700 tokens, h2o 20 %", long, None, h2o), ("half of 64 lines share 600 tokens", half, None, ()),
            ("2 x 500 shared tokens, 16 lines of n = 4", choices, None, ()),
            ("900 shared tokens, 96 lines, 256MiB", few_shot, "256MiB", ()),
            ("4 x 400 shared tokens, 64 lines, 192MiB", four, "192MiB", ()),
            ("24 prompts of 1700 tokens, 256MiB", long, "256MiB", ())]


def equal_jobs():
    return [(f"{kind}, {budget or 'all memory'}", requests_of(kind), budget, ())
            for kind in JOBS for budget in (None, "192MiB", "96MiB")]


def generate(model, lines, budget, flags):
    """The report of a job that plans itself."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        folder = pathlib.Path(folder)
        (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = subprocess.run(
            [WEFT, "generate", "--backend", "cpu", "--model", ROOT / f"configs/models/{model}.json", "--weights", "random:1",
             "--input", folder / "in.jsonl", "--output", folder / "out.jsonl", "--report", folder / "report.json",
             "--checkpoint-every", "off", "--disk-dir", folder, "--quiet", *(["--device-memory", budget] if budget else []),
             *flags], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.loads((folder / "report.json").read_text())


def jobs(chosen, rounds, results, only):
    print("| job | classes, block | measured | predicted | predicted / measured (min-max) |")
    print("|---|---|---|---|---|")
    middle = []
    for name, lines, budget, flags in chosen:
        if only not in name:
            continue
        reports = [generate("opt-125m", lines, budget, flags) for _ in range(rounds)]
        results.append({"name": name, "reports": reports})
        rates = [(report["tokens_per_second"]["total"], report["predicted"]["tokens_per_second"]["total"])
                 for report in reports]
        ratios = sorted(predicted / measured for measured, predicted in rates)
        measured, predicted = (statistics.median(part) for part in zip(*rates))
        blocks = ", ".join(f"{part['policy']['gpu_batch_size']} x {part['policy']['num_gpu_batches']}"
                           for part in reports[-1].get("classes", [reports[-1]]))
        middle.append(statistics.median(ratios))
        print(f"| opt-125m, {name} | {blocks} | {measured:.1f} | {predicted:.1f} | {middle[-1]:.2f} "
              f"({ratios[0]:.2f}-{ratios[-1]:.2f}) |", flush=True)
    good = sum(1 / 1.15 <= ratio <= 1.15 for ratio in middle)
    print(f"\n{good} of {len(middle)} predictions of the total are within 15 %: medians of {rounds} rounds")


def neighbours(pick):
    """The policies one step away, nearest first: the block smaller, more batches, a unit or two more or less of the
    weights on disk, some layers of KV there; the first ten that fit are taken."""
    def changed(**changes):
        return {**pick, **changes}

    def moved(kind, step):
        disk = min(1.0, max(0.0, pick[kind]["disk"] + step))
        return changed(**{kind: {"device": 1 - disk, "host": 0, "disk": disk}})

    size, batches = pick["gpu_batch_size"], pick["num_gpu_batches"]
    step = max(1, size // 8)
    near = [changed(gpu_batch_size=size + step), changed(gpu_batch_size=size - step),
            changed(gpu_batch_size=(size + 1) // 2, num_gpu_batches=2 * batches), moved("weights", 0.04),
            moved("weights", -0.04), moved("weights", 0.08), moved("kv", 0.1), moved("kv", -0.1), moved("kv", 0.2),
            changed(num_gpu_batches=batches + 1), changed(gpu_batch_size=size - max(1, step // 2)),
            changed(gpu_batch_size=size - 2 * step), changed(gpu_batch_size=size - step, num_gpu_batches=batches + 1),
            changed(gpu_batch_size=(size + 3) // 4, num_gpu_batches=4 * batches), moved("kv", 0.3), moved("kv", 0.4),
            moved("weights", 0.12), moved("weights", 0.16)]
    return [other for other in near if other["gpu_batch_size"] > 0]


def drawn(generator):
    disk = generator.choice([0, 0.25, 0.5, 0.75, 1])
    kv = generator.choice([ALL, ALL, {"device": 0.75, "disk": 0.25}])
    return policy_of(generator.choice([4, 8, 12, 16, 24, 32, 48]), generator.choice([1, 1, 2, 4]),
                     {"device": 1 - disk, "disk": disk}, kv, FULL)


def pick(rounds, results):
    model, prompt, generation, requests, budget = "opt-125m", 64, 32, 64, "256MiB"
    flags = ("--device-memory", budget)
    first = bench(measured_machine(), model, prompt, generation, {}, *flags, requests=requests)
    kept = ("gpu_batch_size", "num_gpu_batches", "weights", "kv", "activations", "retention")
    policy = {key: first["policy"][key] for key in kept}
    chosen, generator, near = [("the pick", policy, [first])], random.Random(1), neighbours(policy)
    while len(chosen) < 21:
        kind, other = ("one step away", near.pop(0)) if near and len(chosen) <= 10 else ("drawn", drawn(generator))
        if any(other == seen for _, seen, _ in chosen):
            continue
        report = bench(ROOT / "build/machine.json", model, prompt, generation, other, *flags, requests=requests)
        if report is not None:  # it fits
            chosen.append((kind, other, [report]))
    for _ in range(rounds - 1):
        machine = measured_machine()
        for kind, other, reports in chosen:
            reports.append(bench(machine, model, prompt, generation, other, *flags, requests=requests))
    print(f"{requests} requests of {prompt}+{generation}, {model}, {budget} of memory; medians of {rounds} rounds\n")
    print("| policy | block | weights on disk | KV on disk | measured | predicted |")
    print("|---|---|---|---|---|---|")
    for kind, other, reports in chosen:
        measured, predicted = speeds(reports, "total")
        print(f"| {kind} | {other['gpu_batch_size']} x {other['num_gpu_batches']} | {100 * other['weights'].get('disk', 0):.0f} % | "
              f"{100 * other['kv'].get('disk', 0):.0f} % | {measured:.2f} | {predicted:.2f} |")
        results.append({"name": kind, "reports": reports})
    best = max(speeds(reports, "total")[0] for _, _, reports in chosen)
    share = speeds(chosen[0][2], "total")[0] / best
    print(f"\nthe pick reaches {100 * share:.0f} % of the best of {len(chosen)} measured")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--jobs", action="store_true", help="time the planner's picks for request files")
    what.add_argument("--prefixes", action="store_true", help="the same for long prompts and for those that begin alike")
    what.add_argument("--experts", action="store_true", help="time placements of a model with experts")
    what.add_argument("--coarse", action="store_true", help="time cold tokens and h2o over int8 at like bytes")
    what.add_argument("--pick", action="store_true", help="time the planner's pick against twenty others")
    parser.add_argument("--only", default="", help="with --jobs or --prefixes: those whose name has this")
    parser.add_argument("--report", help="write all reports to this file")
    options = parser.parse_args()
    if options.only and not (options.jobs or options.prefixes):
        parser.error("--only goes with --jobs or --prefixes")
    results = []
    if options.jobs or options.prefixes:
        jobs(equal_jobs() if options.jobs else prefix_jobs(), options.rounds, results, options.only)
    elif options.pick:
        pick(options.rounds, results)
    elif options.coarse:
        accuracy(coarse(), options.rounds, results, "--no-warm-up", "--project", "4", "--device-memory", "2560MiB")
    else:
        accuracy(experts() if options.experts else dense(), options.rounds, results)
    if options.report:
        pathlib.Path(options.report).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
