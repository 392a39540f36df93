#!/usr/bin/env python3
"""Runs both programs inside one memory cgroup and prints what each reached at its best; see accelerate.sh."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from generation_loop import rates

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WEFT = ROOT / "build/release/weft"
WORK = ROOT / "build/race"
SHAPE = ROOT / "configs/models/opt-1.3b.json"


class Limit:
    """A memory cgroup, version 1 or 2, that counts the page cache of what runs in it too."""

    def __init__(self, mib):
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        self.folder = (v1 if (v1 / "memory.limit_in_bytes").exists() else pathlib.Path("/sys/fs/cgroup")) / "weft-race"
        self.folder.mkdir(exist_ok=True)
        name = "memory.limit_in_bytes" if (self.folder / "memory.limit_in_bytes").exists() else "memory.max"
        (self.folder / name).write_text(str(mib << 20))
        swap = self.folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")

    def run(self, command):
        """The output of a program in the limit, or None if the kernel killed it for memory."""

        def enter():
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

        print("$", *command, file=sys.stderr, flush=True)
        with tempfile.TemporaryFile("w+") as errors:
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, preexec_fn=enter)
            if result.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
                return None
            if result.returncode != 0:
                errors.seek(0)
                sys.exit(f"{command[0]} failed with exit code {result.returncode}:\n{errors.read()[-2000:]}")
            return result.stdout


def make_checkpoint(folder):
    """The shape with random weights in fp16, written a piece at a time by transformers itself."""
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    if (folder / "config.json").exists():
        return
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float16)
    config = OPTConfig(
        **{k: v for k, v in json.loads(SHAPE.read_text()).items() if k not in ("architectures", "torch_dtype", "dtype")}
    )
    OPTForCausalLM(config).save_pretrained(folder)
    torch.set_default_dtype(torch.float32)


def race_accelerate(limit, args, checkpoint):
    best, rows = None, []
    for dtype in args.dtypes.split(","):
        for batch in map(int, args.batches.split(",")):
            steps = args.sweeps + 1 if args.sweeps else args.gen_len
            flags = f"--batch {batch} --prompt-len {args.prompt_len} --steps {steps} --dtype {dtype}"
            program = [sys.executable, str(ROOT / "scripts/compare/run_accelerate.py"), *flags.split()]
            out = limit.run([*program, "--checkpoint", str(checkpoint), "--offload", str(WORK / f"offload-{dtype}")])
            if out is None:
                rows.append(f"accelerate {dtype} batch {batch}: killed for memory")
                continue
            times = json.loads(out.splitlines()[-1])
            speed = rates(times, batch, args.gen_len)
            rows.append(
                f"accelerate {dtype} batch {batch}: decode {speed['decode']:.2f} tok/s, prefill {speed['prefill']:.0f} "
                f"tok/s, end to end {speed['total']:.2f} tok/s"
            )
            if best is None or speed["decode"] > best["decode"]:
                best = speed | {"batch": batch, "dtype": dtype}
    return best, rows


def race_weft(limit, args, checkpoint):
    flags = f"--prompt-len {args.prompt_len} --gen-len {args.gen_len} --percent 0 0 100 0 100 0 --retention h2o:0.1:0.1"
    flags += f" --device-memory {args.memory_mib - 250}MiB --no-warm-up"
    if args.sweeps:
        flags += f" --project {args.sweeps}"
    if args.decode_only:
        flags += " --skip-prefill"
    out = limit.run([str(WEFT), "bench", "--model", str(checkpoint), "--disk-dir", str(WORK), *flags.split()])
    if out is None:
        sys.exit("weft was killed for memory")
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--gen-len", type=int, default=128)
    parser.add_argument("--memory-mib", type=int, default=2048)
    parser.add_argument("--batches", default="4,8,16", help="batch sizes for Accelerate")
    parser.add_argument("--dtypes", default="float32,float16", help="types for Accelerate")
    parser.add_argument(
        "--sweeps", type=int, default=0, help="time this many decode sweeps and project the rest; 0 runs all"
    )
    parser.add_argument(
        "--decode-only", action="store_true", help="Weft fills its cache with random numbers in place of prefill"
    )
    args = parser.parse_args()
    if args.decode_only and not args.sweeps:
        parser.error("--decode-only needs --sweeps")
    WORK.mkdir(parents=True, exist_ok=True)
    checkpoint = WORK / "opt-1.3b"
    make_checkpoint(checkpoint)
    limit = Limit(args.memory_mib)
    weft = race_weft(limit, args, checkpoint)
    speed = {key: (value or {}).get("median") for key, value in weft["tokens_per_second"].items()}
    how = "projected from sweeps at the beginning, middle and end" if args.sweeps else "measured to the end"
    print(f"OPT-1.3B shape, {args.prompt_len}+{args.gen_len}, both inside {args.memory_mib} MiB; {how}")
    print(f"weft fp16, h2o 20 %, block {weft['workload']['requests']}: decode {speed['decode']:.2f} tok/s")
    if not args.decode_only:
        bound = speed["prefill"] * args.gen_len / args.prompt_len
        print(
            f"weft: prefill {speed['prefill']:.0f} tok/s, end to end {speed['total']:.2f} tok/s, which prefill alone "
            f"bounds at {bound:.2f} tok/s",
            flush=True,
        )
    best, rows = race_accelerate(limit, args, checkpoint)
    print("\n".join(rows))
    if best:
        print(
            f"decode: weft {speed['decode'] / best['decode']:.1f}x accelerate's best (batch {best['batch']}, {best['dtype']})"
        )


if __name__ == "__main__":
    main()
