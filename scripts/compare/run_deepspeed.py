#!/usr/bin/env python3
"""One generation by DeepSpeed ZeRO-Inference, all weights random, in pinned host memory, and brought to the GPU layer by
layer; prints a line of JSON with its times. Needs a GPU, and deepspeed and transformers from PyPI."""
import argparse
import json

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from generation_loop import largest_that_fits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="a config.json")
    parser.add_argument("--batch", required=True, help="such as 64,32: the first that fits")
    parser.add_argument("--prompt-len", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="tokens to generate, the first by prefill")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("ZeRO-Inference wants a GPU, and there is none")
    config = AutoConfig.from_pretrained(args.config)
    layer = 2 * config.hidden_size * config.hidden_size
    settings = {
        "fp16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            "stage3_prefetch_bucket_size": layer,
            "stage3_param_persistence_threshold": config.hidden_size,
            "stage3_max_live_parameters": layer,
            "offload_param": {"device": "cpu", "pin_memory": True},
        },
    }
    deepspeed.init_distributed("nccl")
    with deepspeed.zero.Init(config_dict_or_path=settings, dtype=torch.float16):
        model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.float16)
    engine, *_ = deepspeed.initialize(model=model, config_params=settings)
    batches = [int(batch) for batch in args.batch.split(",")]
    times = largest_that_fits(engine.module.eval(), config, batches, args.prompt_len, args.steps, "cuda")
    print(json.dumps(times))


if __name__ == "__main__":
    main()
