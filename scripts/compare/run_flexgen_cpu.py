#!/usr/bin/env python3
"""One generation by FlexGen with a CPU in the place of its GPU, all layers on disk; prints a line of JSON with its times.

FlexGen wants a GPU. Here its code runs as it was fetched, and what it asks of CUDA is answered by the CPU: its device is
host memory, streams are none, and memory is not pinned. Its threads that read the disk are its own, and so is overlap.
run_flexgen.py says where it comes from, and what stands in for the tokenizer.
"""
import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import os
import pathlib
import shutil
import sys

import numpy as np
import torch

from run_flexgen import StandIn, times_of


class NoStream:
    def wait_stream(self, _):
        pass

    def synchronize(self):
        pass


def without_cuda():
    nothing = lambda *_, **__: None  # noqa: E731
    torch.cuda.set_device = torch.cuda.synchronize = nothing
    torch.cuda.Stream, torch.cuda.stream = NoStream, lambda _: contextlib.nullcontext()
    torch.cuda.current_stream = lambda *_: NoStream()
    torch.Tensor.cuda = torch.Tensor.pin_memory = lambda self, *_, **__: self
    empty = torch.empty
    torch.empty = lambda *size, pin_memory=None, **more: empty(*size, **more)


def in_float32(flex_opt):
    """All of it in 4 bytes a number in place of 2, which it knows no flag for: processors without products of float16
    compute that many times as slowly."""
    torch.Tensor.half = lambda self: self
    shape_of = flex_opt.get_opt_config
    flex_opt.get_opt_config = lambda name: dataclasses.replace(shape_of(name), dtype=np.float32)
    allocate = flex_opt.TorchDevice.allocate
    flex_opt.TorchDevice.allocate = lambda self, shape, dtype, *more, **named: allocate(
        self, shape, np.float32 if dtype == np.float16 else dtype, *more, **named)


def find_module(folder):
    """FlexGen's package, by its older or its newer name."""
    for name in ("flexgen", "flexllmgen"):
        if (folder / name / "flex_opt.py").exists():
            sys.path.insert(0, str(folder))
            return importlib.import_module(f"{name}.flex_opt")
    raise SystemExit(f"{folder} has no flexgen/flex_opt.py; run_flexgen.py says where it comes from")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flexgen", type=pathlib.Path, required=True, help="the folder of its repository")
    parser.add_argument("--model", required=True, help="such as facebook/opt-1.3b, of which only the shape is used")
    parser.add_argument("--offload", type=pathlib.Path, required=True, help="the folder for the layers")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--prompt-len", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="tokens to generate, the first by prefill")
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16", help="float16 is its own")
    args = parser.parse_args()
    import transformers

    transformers.AutoTokenizer = StandIn
    without_cuda()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    flex_opt = find_module(args.flexgen)
    if args.dtype == "float32":
        in_float32(flex_opt)
    device = flex_opt.TorchDevice
    flex_opt.TorchDevice = lambda name, *more: device("cpu" if name.startswith("cuda") else name, *more)
    shutil.rmtree(args.offload, ignore_errors=True)
    own = argparse.ArgumentParser()
    flex_opt.add_parser_arguments(own)
    flags = ["--model", args.model, "--path", "_DUMMY_", "--offload-dir", str(args.offload), "--prompt-len",
             str(args.prompt_len), "--gen-len", str(args.steps), "--gpu-batch-size", str(args.batch), "--num-gpu-batches",
             "1", "--percent", "0", "0", "100", "0", "100", "0", "--log-file", os.devnull]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        flex_opt.run_flexgen(own.parse_args(flags))
    times = times_of(said.getvalue())
    print(json.dumps({key: times[key] for key in ("prefill_seconds", "decode_seconds")} | {
        "decode_tokens": args.batch * (args.steps - 1), "prompt_tokens": args.batch * args.prompt_len}))


if __name__ == "__main__":
    main()
