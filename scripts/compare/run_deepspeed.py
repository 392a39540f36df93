#!/usr/bin/env python3
"""One generation by DeepSpeed ZeRO-Inference, all weights random, and brought to where it computes layer by layer; prints a
line of JSON with its times. With --config they are in pinned host memory and it computes on a GPU. With --checkpoint it
computes on the CPU and they are on the disk, by DeepSpeed's own module for that: it wants the package libaio-dev and a
compiler. Needs deepspeed and transformers from PyPI."""
import argparse
import json
import os
import pathlib

import deepspeed
import torch
import torch._dynamo  # noqa: F401  later it would meet zero.Init's own torch.Tensor, and fails
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig

from generation_loop import generate, largest_that_fits


def settings_of(config, dtype, place):
    layer = 2 * config.hidden_size * config.hidden_size
    return {
        "bf16" if dtype == torch.bfloat16 else "fp16": {"enabled": dtype != torch.float32},
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            "stage3_prefetch_bucket_size": layer,
            "stage3_param_persistence_threshold": config.hidden_size,
            "stage3_max_live_parameters": layer,
            "offload_param": place,
        },
    }


def on_disk(args, config):
    """Buffers of the largest weight, the embedding, and so few of them that they fit the memory limit."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible(verbose=True):
        raise SystemExit("DeepSpeed's async_io, by which ZeRO-Inference has weights on the disk, finds no libaio-dev")
    folder = pathlib.Path(args.offload)
    folder.mkdir(parents=True, exist_ok=True)
    largest = config.vocab_size * config.hidden_size
    return {"device": "nvme", "nvme_path": str(folder), "buffer_count": 4, "buffer_size": largest, "pin_memory": False}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", help="a config.json: on a GPU")
    source.add_argument("--checkpoint", help="a folder with a config.json: on the CPU")
    parser.add_argument("--offload", help="with --checkpoint: the folder for the weights")
    parser.add_argument("--batch", required=True, help="such as 64,32: the first that fits; one with --checkpoint")
    parser.add_argument("--prompt-len", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="tokens to generate, the first by prefill")
    parser.add_argument("--dtype", default="float16")
    args = parser.parse_args()
    config = AutoConfig.from_pretrained(args.config or args.checkpoint)
    dtype = getattr(torch, args.dtype)
    if args.config and not torch.cuda.is_available():
        raise SystemExit("ZeRO-Inference wants a GPU, and there is none")
    if args.checkpoint:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"),
                            ("MASTER_PORT", "29517")):
            os.environ.setdefault(name, value)
    place = on_disk(args, config) if args.checkpoint else {"device": "cpu", "pin_memory": True}
    settings = settings_of(config, dtype, place)
    deepspeed.init_distributed("gloo" if args.checkpoint else "nccl")
    partitions = HfDeepSpeedConfig(settings)  # as long as it lives, models are made in parts, where they belong
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    engine, *_ = deepspeed.initialize(model=model, config=partitions.config)
    if args.checkpoint:
        times = generate(engine.module.eval(), config, int(args.batch), args.prompt_len, args.steps, "cpu")
    else:
        batches = [int(batch) for batch in args.batch.split(",")]
        times = largest_that_fits(engine.module.eval(), config, batches, args.prompt_len, args.steps, "cuda")
    print(json.dumps(times))


if __name__ == "__main__":
    main()
