#!/usr/bin/env python3
"""What plans predict for an H100 if named parts get faster: the table "Projected" of docs/gpu.md. Nothing here is
measured; configs/machines/h100.json is, and the first column of figures is its prediction, with blocks fixed and as if
every sweep unpacked quantised weights, as when it was measured.

  scripts/bench/projection.py [--weft PROGRAM] [--machine FILE]      (in a package: --weft bin/weft)

Each factor changes rates of the machine file, and nothing else; FACTORS says which and why. The columns add one factor
after the other. Blocks stay what the plan with the measured file takes, so that a column shows its factor."""

import argparse
import copy
import json
import pathlib
import sys
import tempfile

from weft_plan import plan

ROOT = pathlib.Path(__file__).resolve().parents[2]


def scaled(points, factor, most_rows=None):
    for point in points:
        rate = "flop_per_second" if "flop_per_second" in point else "bytes_per_second"
        if most_rows is None or point["rows"] <= most_rows:
            point[rate] *= factor


def link(machine):
    """The link carries 0.95 of its rate beside everything else, and the device works as it does alone, for the threads
    that feed both wait for no core."""
    together = machine["together"]
    together["host_to_device"] = {lane: max(share, 0.95) for lane, share in together["host_to_device"].items()}
    together["device_compute"] = {lane: 1.0 for lane in together["device_compute"]}


def host_does_not_wait(machine):
    """An op of attention on the host begins at once. In the runs with fp16 KV it took 1.98 ms for 174 MB and 0.94 ms for
    66 MB, which is 0.30 ms and 104 GB/s; without the former the host keeps 0.48 of the rate that it has alone."""
    machine["together"]["host_compute"]["host_to_device"] = 0.48


def host_levels(machine):
    """The host attends to int8 slots 1.7 times and int4 slots 2.2 times as fast as to fp16's, of 1.09 and 1.03 today."""
    scaled(machine["host"]["decode_attention_int8"], 1.7 / 1.09)
    scaled(machine["host"]["decode_attention_int4"], 2.2 / 1.03)


def prompts(machine):
    """Ops on rows move half the bytes, for products write what the next op reads. Products as the lanes measured them,
    up to 512 rows, lose the launches of rounding and bias, but are no faster than the memory reads weights, 2.58 TB/s.
    Attention of prompts reaches 250 TFLOP/s at 512 tokens and 350 at 1024, column sums as much more."""
    machine["device"]["pointwise_bytes_per_second"] *= 2
    for point in machine["device"]["linear"]["float16"]:
        if point["rows"] > 512 or (point["rows"] == 256 and point["width"] == 7168):
            continue  # from the ceilings, without bias
        flop, weights = 2 * point["rows"] * point["width"]**2, 2 * point["width"]**2
        seconds = flop / point["flop_per_second"] - 2 * machine["device"]["launch_seconds"]
        point["flop_per_second"] = flop / max(seconds, weights / 2.58e12, machine["device"]["launch_seconds"])
    for table in ("prefill_attention", "column_sums"):
        scaled(machine["device"][table], 350 / 149)


def levels_on_device(machine):
    """Decode attention reads levels at twice the rate. Products of up to 64 rows read int8 and int4 weights as they
    are, at 0.75 of the bytes a second at which they read fp16's; with more rows they are fp16's."""
    scaled(machine["device"]["decode_attention_int8"], 2)
    scaled(machine["device"]["decode_attention_int4"], 2)
    machine["unpacks_weights"] = False
    for dtype, bits in (("int8", 8.5), ("int4", 4.5)):
        table = machine["device"]["linear"][dtype] = copy.deepcopy(machine["device"]["linear"]["float16"])
        scaled(table, 0.75 * 16 / bits, 64)


FACTORS = [link, host_does_not_wait, host_levels, prompts, levels_on_device]
IN_16_GIB = ["--model", "opt-30b", "--prompt-len", 512, "--gen-len", 512, "--retention", "h2o:0.1:0.1", "--device-memory",
             "16GiB", "--host-memory", "96GiB", "--attention", "host"]
RESIDENT = ["--model", "opt-6.7b", "--prompt-len", 512, "--percent", 100, 0, 100, 0, 100, 0, "--num-gpu-batches", 1]
H2O_64 = [*RESIDENT, "--gen-len", 512, "--retention", "h2o:0.1:0.1", "--gpu-batch-size", 64]


def in_16_gib(size, batches, *formats):
    return [*IN_16_GIB, "--gpu-batch-size", size, "--num-gpu-batches", batches, *formats]


ROWS = [("OPT-30B in 16 GiB, h2o at 20 %, fp16", in_16_gib(15, 12), "total"),
        ("the same, KV int8", in_16_gib(28, 12, "--kv-dtype", "int8"), "total"),
        ("the same, weights and KV int8", in_16_gib(32, 16, "--weight-dtype", "int8", "--kv-dtype", "int8"), "total"),
        ("the same, weights int4, KV int8", in_16_gib(46, 12, "--weight-dtype", "int4", "--kv-dtype", "int8"), "total"),
        ("OPT-6.7B resident, 128 sequences, prefill", [*RESIDENT, "--gen-len", 32, "--gpu-batch-size", 128], "prefill"),
        ("OPT-6.7B resident, h2o, 64 sequences, fp16, decode", H2O_64, "decode"),
        ("the same, weights int4", [*H2O_64, "--weight-dtype", "int4"], "decode")]


def predicted(weft, machine, flags, folder):
    file = folder / "machine.json"
    file.write_text(json.dumps(machine))
    flags = [ROOT / f"configs/models/{flag}.json" if str(flag).startswith("opt-") else flag for flag in flags]
    planned = plan(weft, "--machine", file, *flags)
    return planned["predicted"]["tokens_per_second"], planned["policy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", type=pathlib.Path, default=ROOT / "configs/machines/h100.json")
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build/release/weft")
    options = parser.parse_args()
    machines = [json.loads(options.machine.read_text())]
    machines[0]["packed_rows"] = 0  # the file was measured when every sweep unpacked quantised weights
    for factor in FACTORS:
        machines.append(copy.deepcopy(machines[-1]))
        factor(machines[-1])
    print("| | as measured | " + " | ".join(f"+ {factor.__name__.replace('_', ' ')}" for factor in FACTORS) + " | block |")
    print("|---|" + "---|" * (len(machines) + 1))
    with tempfile.TemporaryDirectory() as folder:
        for name, flags, phase in ROWS:
            speeds = [predicted(options.weft, machine, flags, pathlib.Path(folder)) for machine in machines]
            block = speeds[-1][1]
            print(f"| {name} | " + " | ".join(f"{speed[phase]:,.0f}" for speed, _ in speeds) +
                  f" | {block['gpu_batch_size']} x {block['num_gpu_batches']} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
