#!/usr/bin/env python3
"""Measures Weft against this machine's own ceilings in one run, and writes a page of docs/lab for each part.

    scripts/bench/ratios.py [--output docs/lab] [--disk-dir build/bench] [--only PART ...]

Parts: ceilings (host attention and matrix products against memory), two-threads (what a second thread gains each op),
overlap (a decode sweep that streams all weights from disk), block-size (the best block against block 1),
h2o-in-one-budget (a fifth of the cache against all of it in one memory budget). Needs 6 GB of disk and a machine that
does nothing else; about 20 minutes. The conclusion of a page is written by hand and stays: read it again after a run.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WEFT = ROOT / "build/release/weft"
FROM_DISK = "--weights random:1 --percent 0 0 100 0 100 0 --skip-prefill"
H2O = "h2o:0.1:0.1"
BY_HAND = "<!-- From here on written by hand; scripts/bench/ratios.py keeps it. -->\n"


def bench(args, flags):
    command = [str(WEFT), "bench", *flags.split(), "--disk-dir", args.disk_dir]
    print("$ weft", *command[1:], flush=True)
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def bench_from_disk(args, flags):
    """The OPT-1.3B shape with all its weights on disk, decode only."""
    return bench(args, f"--model {ROOT / 'configs/models/opt-1.3b.json'} {FROM_DISK} {flags}")


def as_typed(flags):
    """The command of bench_from_disk(), for a page."""
    return f"weft bench --model configs/models/opt-1.3b.json {FROM_DISK} \\\n  {flags}"


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def part_ceilings(args):
    lanes = bench(args, "--lanes")
    disk, fp16 = lanes["disk"], lanes["linear_f16_4096"]
    rows = [
        f"The disk is read at {disk['read_bytes_per_second'] / 1e9:.2f} GB/s ({disk['read_min'] / 1e9:.2f}-"
        f"{disk['read_max'] / 1e9:.2f}), memory at {lanes['dram_read_bytes_per_second'] / 1e9:.1f} GB/s.",
        "",
        "Products of 4096 x 4096, GFLOP/s, and in brackets times the fp16 kernel. \"Pairs\" is `--weight-dtype bfloat16",
        "--weight-arithmetic bfloat16`; int8 and int4 are in their default arithmetic.",
        "",
        "| rows | fp16 | of what DRAM allows | pairs of bfloat16 | int8 | int4 | int4, of what DRAM allows |",
        "|---|---|---|---|---|---|---|",
    ]
    for m, cell in fp16.items():
        others = [product(lanes.get(f"linear_{name}_4096", {}).get(m)) for name in ("bfloat16", "int8", "int4")]
        rows.append(f"| {m} | {cell['flop_per_second'] / 1e9:.0f} | {of_dram(m, cell)} | {' | '.join(others)} "
                    f"| {of_dram(m, lanes['linear_int4_4096'][m])} |")
    exact = [cell["exact_of_f16"] for name in ("int8", "int4") for cell in lanes[f"linear_{name}_4096"].values()]
    rows += ["", f"In the exact arithmetic int8 and int4 do {min(exact):.2f} to {max(exact):.2f} times what fp16 does. Host decode",
             "attention of the same run, H2O:", "", "| slots | fp16, of DRAM | int8, times fp16 | int4 (keys too), times fp16 |",
             "|---|---|---|---|"]
    attention = lanes["host_attention"]
    for shape in attention:
        if "," not in shape:
            levels = [f"{attention[f'{shape}, {name}']['times_float16']:.2f}" for name in ("int8", "int4")]
            rows.append(f"| {shape.replace(' slots', '')} | {attention[shape]['of_dram_read']:.2f} | {' | '.join(levels)} |")
    return "How near are products and attention on a CPU to what its memory allows?", "weft bench --lanes", rows


def product(cell):
    return f"{cell['flop_per_second'] / 1e9:.0f} ({cell['of_f16']:.2f})" if cell else ""


def of_dram(rows, cell):
    """Beyond 32 rows memory bounds no product."""
    return f"{cell['of_dram_bound']:.2f}" if int(rows) <= 32 else ""


LEAST_GAIN = 1.85  # of a second thread, unless memory bounds the op
MEMORY_BOUND = 0.6  # of what two threads read of memory


def part_two_threads(args):
    ops = bench(args, "--lanes")["two_threads"]
    rows = ["| op | one thread, us | two threads, us | times as fast | of what two threads read of memory |",
            "|---|---|---|---|---|"]
    for name, cell in ops.items():
        rows.append(f"| {name} | {cell['one_thread_seconds'] * 1e6:.1f} | {cell['two_threads_seconds'] * 1e6:.1f} "
                    f"| {cell['times']:.2f} | {cell['of_memory_read']:.2f} |")
    slow = slow_to_scale(ops)
    rows += ["", f"A second thread gains less than {LEAST_GAIN} times, and memory does not bound the op: "
             + (", ".join(f"{name} ({times:.2f})" for name, times in slow) or "none") + "."]
    return "What does a second thread gain each op of the host?", "weft bench --lanes", rows


def slow_to_scale(ops):
    """The ops that gain too little, with what they gain."""
    return [(name, cell["times"]) for name, cell in ops.items()
            if cell["times"] < LEAST_GAIN and cell["of_memory_read"] < MEMORY_BOUND]


def part_overlap(args):
    rows = [
        "| sequences | sweep | disk alone | compute alone | sweep / max of both | without overlap / sweep |",
        "|---|---|---|---|---|---|",
    ]
    flags_of_block = f"--prompt-len 128 --gen-len 9 --gpu-batch-size N --num-gpu-batches 1 --retention {H2O} "
    flags_of_block += "--device-memory 8GiB"
    for block in (64, 96, 128):
        flags = flags_of_block.replace("N", str(block))
        serial, plain = bench_from_disk(args, flags + " --no-overlap"), bench_from_disk(args, flags)
        sweeps = 9  # the synthetic prefill streams the weights too
        seconds = [report["seconds"]["prefill"] + report["seconds"]["decode"] for report in (serial, plain)]
        disk = serial["lanes"]["disk_read"]["busy_seconds"] / sweeps
        compute = serial["lanes"]["device_compute"]["busy_seconds"] / sweeps
        sweep = seconds[1] / sweeps
        rows.append(
            f"| {block} | {sweep:.2f} s | {disk:.2f} s | {compute:.2f} s "
            f"| {sweep / max(disk, compute):.2f} | {seconds[0] / seconds[1]:.2f} |"
        )
    return "Does computing hide behind reading the weights from the disk?", as_typed(flags_of_block + " [--no-overlap]"), rows


def part_block(args):
    rows = ["| sequences | decode tokens/s | against block 1 |", "|---|---|---|"]
    first = None
    flags_of_block = "--prompt-len 64 --gen-len 7 --gpu-batch-size N --num-gpu-batches 1 --device-memory 10GiB"
    for block in (1, 16, 64, 128, 192, 256):
        rate = bench_from_disk(args, flags_of_block.replace("N", str(block)))["tokens_per_second"]["decode"]["median"]
        first = first or rate
        rows.append(f"| {block} | {rate:.2f} | {rate / first:.1f}x |")
    return "What does a larger block gain where the weights are on the disk?", as_typed(flags_of_block), rows


def part_h2o(args):
    rows = [
        "| retention | block | decode tokens/s (projected) | at the beginning / middle / end |",
        "|---|---|---|---|",
    ]
    rates = []
    flags = "--prompt-len 512 --gen-len 512 --project 3 --device-memory 1748MiB --retention "
    for retention in ("full", H2O):
        report = bench_from_disk(args, flags + retention)
        points = " / ".join(f"{point['tokens_per_second']:.2f}" for point in report["projected_from"])
        rates.append(report["tokens_per_second"]["decode"]["median"])
        rows.append(f"| {retention} | {report['workload']['requests']} | {rates[-1]:.2f} | {points} |")
    rows += ["", f"h2o at 20 % against full, each at the largest block that fits: {rates[1] / rates[0]:.2f}x."]
    return "What does a fifth of the KV cache gain in one memory budget?", as_typed(flags + "RETENTION"), rows


PARTS = {"ceilings": part_ceilings, "two-threads": part_two_threads, "overlap": part_overlap, "block-size": part_block,
         "h2o-in-one-budget": part_h2o}


def write_page(path, part, question, command, rows):
    """All of the page but what is written by hand below BY_HAND."""
    by_hand = path.read_text().partition(BY_HAND)[2] if path.exists() else ""
    path.write_text(f"""# {question}

Measured on {datetime.date.today()} on {processor()}, {len(os.sched_getaffinity(0))} threads, Linux {platform.release()},
by `scripts/bench/ratios.py --only {part}`.

```
{command}
```

""" + "\n".join(rows) + "\n\n" + BY_HAND + by_hand)
    print(f"wrote {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/lab", help="the folder of the pages")
    parser.add_argument("--disk-dir", default=str(ROOT / "build/bench"))
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    pathlib.Path(args.disk_dir).mkdir(parents=True, exist_ok=True)
    args.output.mkdir(parents=True, exist_ok=True)
    for part in args.only:
        question, command, rows = PARTS[part](args)
        print("\n".join(rows), flush=True)
        write_page(args.output / f"{part}.md", part, question, command, rows)


if __name__ == "__main__":
    main()
