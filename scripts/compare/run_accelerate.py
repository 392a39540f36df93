#!/usr/bin/env python3
"""One generation by Hugging Face Accelerate with all decoder layers on disk; prints a line of JSON with its times."""

import argparse
import json
import time

import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from transformers import OPTConfig, OPTForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--offload", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--prompt-len", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="tokens to generate, the first by prefill")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    torch.set_num_threads(2)
    config = OPTConfig.from_pretrained(args.checkpoint)
    dtype = getattr(torch, args.dtype)
    with init_empty_weights():
        model = OPTForCausalLM(config).to(dtype)
    model.tie_weights()
    places = {"model.decoder.embed_tokens": "cpu", "model.decoder.embed_positions": "cpu", "model.decoder.final_layer_norm": "cpu", "lm_head": "cpu"}
    places |= {f"model.decoder.layers.{layer}": "disk" for layer in range(config.num_hidden_layers)}
    model = load_checkpoint_and_dispatch(model, args.checkpoint, device_map=places, offload_folder=args.offload, dtype=dtype,
                                         no_split_module_classes=["OPTDecoderLayer"])
    model.eval()
    ids = torch.randint(4, config.vocab_size, (args.batch, args.prompt_len), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        begin = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        first = time.perf_counter()
        token, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        del out
        for _ in range(args.steps - 1):
            out = model(token, past_key_values=cache, use_cache=True)
            token, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        end = time.perf_counter()
    print(json.dumps({"prefill_seconds": first - begin, "decode_seconds": end - first, "decode_tokens": args.batch * (args.steps - 1),
                      "prompt_tokens": args.batch * args.prompt_len}))


if __name__ == "__main__":
    main()
