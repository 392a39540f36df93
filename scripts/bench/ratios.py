#!/usr/bin/env python3
"""Measures Weft against this machine's own ceilings in one run, and writes docs/benchmarks.md.

    scripts/bench/ratios.py [--output docs/benchmarks.md] [--disk-dir build/bench] [--only PART ...]

Parts: lanes (disk against fio, host attention and matrix products against memory and library), overlap (a decode sweep
that streams all weights from disk), block (the best block against block 1), h2o (a fifth of the cache against all of it
in one memory budget). Needs fio, 6 GB of disk and a machine that does nothing else; about 20 minutes.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WEFT = ROOT / "build/release/weft"
FROM_DISK = "--weights random:1 --percent 0 0 100 0 100 0 --skip-prefill"
H2O = "h2o:0.1:0.1"
FIO = "--rw=read --bs=1M --iodepth=16 --direct=1 --ioengine=io_uring"
BY_HAND = "<!-- From here on written by hand; scripts/bench/ratios.py keeps it. -->\n"


def bench(args, flags):
    command = [str(WEFT), "bench", *flags.split(), "--disk-dir", args.disk_dir]
    print("$ weft", *command[1:], flush=True)
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def bench_from_disk(args, flags):
    """The OPT-1.3B shape with all its weights on disk, decode only."""
    return bench(args, f"--model {ROOT / 'configs/models/opt-1.3b.json'} {FROM_DISK} {flags}")


def write_file(path, size):
    """A file of random bytes that lies on the disk before anyone reads it."""
    with open(path, "wb") as out:
        piece = os.urandom(16 << 20)
        for _ in range(size // len(piece)):
            out.write(piece)
        os.fsync(out.fileno())


def fio(path):
    """Bytes per second of one read of the whole file, as fio sees it."""
    command = ["fio", "--name=read", f"--filename={path}", "--readonly", "--output-format=json", *FIO.split()]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return result["jobs"][0]["read"]["bw_bytes"]


def part_lanes(args):
    path = pathlib.Path(args.disk_dir, "fio.bin")
    write_file(path, 1280 << 20)
    before = [fio(path) for _ in range(3)]
    lanes = bench(args, "--lanes")
    after = [fio(path) for _ in range(3)]
    path.unlink()
    ceiling = statistics.median(before + after)
    disk, dram = lanes["disk"], lanes["dram_read_bytes_per_second"]
    rows = [
        f"Machine: {lanes['machine']}; {disk['engine']}.",
        "",
        "| what | measured | ceiling | ratio | wanted |",
        "|---|---|---|---|---|",
        f"| disk read, O_DIRECT | {disk['read_bytes_per_second'] / 1e9:.2f} GB/s "
        f"({disk['read_min'] / 1e9:.2f}-{disk['read_max'] / 1e9:.2f}) "
        f"| fio 1 MiB x 16: {ceiling / 1e9:.2f} GB/s ({min(before + after) / 1e9:.2f}-{max(before + after) / 1e9:.2f}) "
        f"| {disk['read_bytes_per_second'] / ceiling:.2f} | 0.9 |",
    ]
    for shape, cell in lanes["host_attention"].items():
        if "times_float16" in cell:
            wanted = 2 if shape.endswith("int4") and shape.startswith("1024 ") else ""
            rows.append(
                f"| host decode attention, H2O, {shape} | {cell['bytes_per_second'] / 1e9:.1f} GB/s of KV, scores, positions "
                f"| tokens/s against fp16 slots | {cell['times_float16']:.2f} | {wanted} |"
            )
            continue
        rows.append(
            f"| host decode attention, H2O, {shape} | {cell['bytes_per_second'] / 1e9:.1f} GB/s of KV, scores, positions "
            f"| DRAM read {dram / 1e9:.1f} GB/s | {cell['of_dram_read']:.2f} | 0.8 |"
        )
    for m, cell in lanes["linear_f16_4096"].items():
        wanted_dram, wanted_library = ("0.7" if m == "8" else ""), ("0.95" if m == "256" else "")
        rows.append(
            f"| linear fp16 4096x4096, M = {m} | {cell['flop_per_second'] / 1e9:.0f} GFLOP/s | DRAM allows "
            f"{dram * int(m) / 1e9:.0f} | {cell['of_dram_bound']:.2f} | {wanted_dram} |"
        )
        rows.append(
            f"| the same | | oneDNN fp32, packed: {cell['library_flop_per_second'] / 1e9:.0f} GFLOP/s "
            f"| {cell['of_library']:.2f} | {wanted_library} |"
        )
    rows += quantised_rows(lanes, {("int4", "1"): ("0.7", ""), ("int4", "8"): ("", "1.5"), ("int4", "256"): ("", "1.8")})
    return "Ceilings and what is reached of them", f"weft bench --lanes; fio {FIO}", rows


def quantised_rows(lanes, wanted):
    """Products with int8 and int4 weights in integer arithmetic, and with pairs of bfloat16 numbers where the processor
    has them, beside fp16."""
    rows = []
    for name in ("int8", "int4", "bfloat16"):
        for m, cell in lanes.get(f"linear_{name}_4096", {}).items():
            dram, ratio = wanted.get((name, m), ("", ""))
            rows.append(
                f"| linear {name} 4096x4096, M = {m} | {cell['flop_per_second'] / 1e9:.0f} GFLOP/s | what DRAM allows "
                f"| {cell['of_dram_bound']:.2f} | {dram} |"
            )
            rows.append(f"| the same | | the fp16 kernel | {cell['of_f16']:.2f} | {ratio} |")
            rows.append(
                f"| the same, exact | {cell['exact_flop_per_second'] / 1e9:.0f} GFLOP/s | the fp16 kernel "
                f"| {cell['exact_of_f16']:.2f} | |"
            )
    return rows


def part_overlap(args):
    rows = [
        "| sequences | sweep | disk alone | compute alone | sweep / max of both | without overlap / sweep |",
        "|---|---|---|---|---|---|",
    ]
    for block in (64, 96, 128):
        flags = f"--prompt-len 128 --gen-len 9 --gpu-batch-size {block} --num-gpu-batches 1 --retention {H2O}"
        flags += " --device-memory 8GiB"
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
    rows.append("")
    rows.append("Wanted where disk and compute are within 2x: at most 1.15, and at least 1.25 without overlap.")
    return (
        "A decode sweep that streams all weights from disk (OPT-1.3B shape)",
        "weft bench --skip-prefill, with and without --no-overlap",
        rows,
    )


def part_block(args):
    rows = ["| sequences | decode tokens/s | against block 1 |", "|---|---|---|"]
    first = None
    for block in (1, 16, 64, 128, 192, 256):
        flags = f"--prompt-len 64 --gen-len 7 --gpu-batch-size {block} --num-gpu-batches 1 --device-memory 10GiB"
        rate = bench_from_disk(args, flags)["tokens_per_second"]["decode"]["median"]
        first = first or rate
        rows.append(f"| {block} | {rate:.2f} | {rate / first:.1f}x |")
    rows += ["", "Wanted of the best block: at least 40x."]
    return (
        "One pass over the weights serves a block (OPT-1.3B shape from disk, full KV)",
        "weft bench --skip-prefill --prompt-len 64 --gen-len 7",
        rows,
    )


def part_h2o(args):
    rows = [
        "| retention | block | decode tokens/s (projected) | at the beginning / middle / end |",
        "|---|---|---|---|",
    ]
    rates = []
    for retention in ("full", H2O):
        flags = f"--prompt-len 512 --gen-len 512 --project 3 --device-memory 1748MiB --retention {retention}"
        report = bench_from_disk(args, flags)
        points = " / ".join(f"{point['tokens_per_second']:.2f}" for point in report["projected_from"])
        rates.append(report["tokens_per_second"]["decode"]["median"])
        rows.append(f"| {retention} | {report['workload']['requests']} | {rates[-1]:.2f} | {points} |")
    rows += [
        "",
        f"h2o at 20 % against full, each at the largest block that fits: {rates[1] / rates[0]:.2f}x; wanted: at least 3x. "
        "The budget of 1748 MiB and the 300 MiB that the process may take in addition make 2 GiB in all.",
    ]
    return (
        "A fifth of the KV cache in one memory budget: 2 GiB in all, OPT-1.3B shape, 512 + 512",
        "weft bench --project 3",
        rows,
    )


PARTS = {"lanes": part_lanes, "overlap": part_overlap, "block": part_block, "h2o": part_h2o}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=str(ROOT / "docs/benchmarks.md"))
    parser.add_argument("--disk-dir", default=str(ROOT / "build/bench"))
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    pathlib.Path(args.disk_dir).mkdir(parents=True, exist_ok=True)
    output = pathlib.Path(args.output)
    _, marker, by_hand = output.read_text().partition(BY_HAND) if output.exists() else ("", "", "")
    text = [f"""# Benchmarks

Measured on {datetime.date.today()}, Linux {platform.release()}, by `scripts/bench/ratios.py`: everything in one run on
one machine that it shares with others, so read the ratios and not the absolute figures. "Projected" is said where not
every sweep was run. Not measured on a GPU.
"""]
    for name in args.only:
        title, command, rows = PARTS[name](args)
        text.append(f"## {title}\n\nCommand: `{command}`.\n\n" + "\n".join(rows) + "\n")
        print("\n".join(rows), flush=True)
        output.write_text("\n".join([*text, (marker or BY_HAND) + by_hand]))
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
