#!/usr/bin/env python3
"""Writes the machine files of cards that were not measured, from their datasheets.

    scripts/compare/datasheet_machine.py [--output configs/machines] [--check]

--check compares with the files that are there and fails if one differs. The shares of peaks are those that
configs/machines/a100-80gb.json explains; docs/lab/h100.md has the measurements that they were corrected by.
"""

import argparse
import json
import pathlib
import sys

# name: title, GB of memory, GB/s of memory, TFLOP/s of 16-bit tensor cores with sums in fp32 and without sparsity (GeForce
# cards have half of their rate with sums in fp16), GB/s of the link: PCIe 5 on the RTX 5090, else PCIe 4.
CARDS = {
    "rtx-3060-12gb": ("NVIDIA GeForce RTX 3060, 12 GB", 12, 360, 25.6, 25),
    "rtx-3090": ("NVIDIA GeForce RTX 3090, 24 GB", 24, 936, 71, 25),
    "rtx-4090": ("NVIDIA GeForce RTX 4090, 24 GB", 24, 1008, 165.2, 25),
    "rtx-5090": ("NVIDIA GeForce RTX 5090, 32 GB", 32, 1792, 209.5, 50),
    "l4": ("NVIDIA L4, 24 GB", 24, 300, 121, 25),
    "a10g": ("NVIDIA A10G, 24 GB", 24, 600, 70, 25),
    "a5000": ("NVIDIA RTX A5000, 24 GB", 24, 768, 111.1, 25),
}
OVERHEAD = 927793152  # bytes: an H100's, measured
LAUNCH = 4e-6
WIDTH = 4096


def rounded(number: float, digits: int = 4) -> int:
    return int(float(f"{number:.{digits}g}"))


def machine(title: str, memory_gb: float, memory_rate: float, peak: float, link: float) -> dict:
    arithmetic, memory = 0.695 * peak * 1e12, 0.82 * memory_rate * 1e9
    elements = WIDTH * WIDTH
    read = 2 * elements / memory + 2 * LAUNCH
    crossing = round(arithmetic / 1.14 / memory, 2)  # rows from which arithmetic takes longer than reading the weights

    def rate(rows: float, seconds: float) -> dict:
        return {"rows": rows, "width": WIDTH, "flop_per_second": rounded(2 * rows * elements / seconds)}

    def large(rows: int) -> dict:
        return rate(rows, max(read, 2 * rows * elements / arithmetic + 2 * LAUNCH))

    return {
        "name": title,
        "source": f"Datasheet, not measured: {memory_rate:g} GB/s of memory and {peak:g} TFLOP/s of 16-bit products with sums in fp32, "
                  "as NVIDIA specifies them. Shares of these peaks as in a100-80gb.json: seven tenths of the arithmetic, 0.82 of the memory, 0.74 of "
                  f"it in attention, 0.17 and 0.13 of the arithmetic in attention of prompts and column sums; link {link:g} GB/s each way; 95 % of the "
                  "card's memory and 60 GB of the host's, whose attention reads 40 GB/s. Nothing is taken off where lanes are busy together. "
                  "Assumptions: disk, rows from disk, host memory, launches and all shares. Written by scripts/compare/datasheet_machine.py.",
        "measured": False,
        "device_is_host_memory": False,
        "memory": {"device": int(memory_gb * 0.95e9), "host": 60000000000, "disk": "1TiB", "device_overhead": OVERHEAD},
        "rows_that_fill": 2048,
        "lanes": {"disk_read": 1500000000, "disk_write": 1000000000, "host_to_device": int(link * 1e9), "device_to_host": int(link * 1e9)},
        "disk_rows_per_second": 100000,
        "together": {},
        "device": {
            "linear": {"float16": [rate(1, read), rate(crossing, read), large(512), large(4096)]},
            "prefill_attention": [{"prompt": 512, "head_dim": 128, "flop_per_second": rounded(0.166 * peak * 1e12, 2)}],
            "column_sums": [{"prompt": 512, "head_dim": 128, "flop_per_second": rounded(0.131 * peak * 1e12, 2)}],
            "decode_attention": [{"slots": 512, "head_dim": 128, "bytes_per_second": rounded(0.74 * memory_rate * 1e9, 3)}],
            "pointwise_bytes_per_second": rounded(0.73 * memory, 3),
            "launch_seconds": LAUNCH,
        },
        "host": {
            "decode_attention": [{"slots": 512, "head_dim": 128, "bytes_per_second": 40000000000}],
            "launch_seconds": 2e-06,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "configs/machines")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for name, card in CARDS.items():
        file, text = args.output / f"{name}.json", json.dumps(machine(*card), indent=2) + "\n"
        if args.check and file.read_text() != text:
            sys.exit(f"{file} is not what datasheet_machine.py writes; run it")
        if not args.check:
            file.write_text(text)


if __name__ == "__main__":
    main()
