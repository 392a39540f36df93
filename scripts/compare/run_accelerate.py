#!/usr/bin/env python3
"""One generation by Hugging Face Accelerate; prints a line of JSON with its times.

With --offload all decoder layers are on disk, in a folder that --prepare writes, on a machine without a GPU: those of
--checkpoint, or random ones of the shape of --config. With --config alone the weights are random, and Accelerate itself
places them on the GPU and the host as its device_map "auto" does within --max-memory. --cap limits what torch allocates
on the GPU, weights, KV cache and work spaces together. It does not count the CUDA context and libraries, which Weft's
--device-memory does.
"""
import argparse
import json
import os
import pathlib
import re
import shutil

import torch
from accelerate import dispatch_model, infer_auto_device_map, init_empty_weights
from accelerate.utils import offload_weight, save_offload_index, set_module_tensor_to_device
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from generation_loop import generate, largest_that_fits


def empty_model(config, dtype):
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config).to(dtype)
    model.tie_weights()
    return model


def in_layers(name):
    return ".layers." in name


def random_like(weight, dtype):
    some = torch.randn(1 << 20, generator=torch.Generator().manual_seed(weight.numel())).mul_(0.02).to(dtype)
    return some.repeat(-(-weight.numel() // some.numel()))[:weight.numel()].view(weight.shape)


def tensors(args, config, dtype, wanted):
    """The tensors with the wanted names: the checkpoint's, or random ones."""
    if args.config:
        for name, weight in empty_model(config, dtype).named_parameters():
            if wanted(name):
                yield name, random_like(weight, dtype)
        return
    with safe_open(str(pathlib.Path(args.checkpoint) / "model.safetensors"), "pt") as file:
        for name in filter(wanted, file.keys()):
            yield name, file.get_tensor(name).to(dtype)


def prepare(args, config, dtype):
    """Writes the folder of the layers as Accelerate does, anew. Not in the measured run: with OPT-1.3B's layers in float16,
    a run that loaded and wrote them itself took up to 1.7 GiB besides the page cache, one from the folder 0.9 GiB. The
    index, written last, says that the folder is whole."""
    shutil.rmtree(args.offload, ignore_errors=True)
    pathlib.Path(args.offload).mkdir(parents=True)
    index = {}
    for name, value in tensors(args, config, dtype, in_layers):
        index = offload_weight(value, name, args.offload, index)
    save_offload_index(index, args.offload)


def from_disk(args, config, dtype):
    """All layers on disk, the embedding and the head in memory; of a checkpoint only the latter are read here."""
    model = empty_model(config, dtype)
    places = {"lm_head": "cpu"}
    for name, _ in model.named_parameters():
        layer = re.match(r".*\.layers\.\d+", name)
        places[layer[0] if layer else name.rpartition(".")[0]] = "disk" if layer else "cpu"
    for name, value in tensors(args, config, dtype, lambda name: not in_layers(name)):
        set_module_tensor_to_device(model, name, "cpu", value=value.clone())
    model.tie_weights()
    return dispatch_model(model, places, offload_dir=args.offload)


def random_within(args, config, dtype):
    """Random weights, each made where Accelerate wants it. On the host the layers share theirs, so that a model that fills
    the memory is there in seconds: every use still brings the whole layer over the link."""
    memory = dict(part.split("=") for part in args.max_memory.split(","))
    memory = {int(place) if place.isdigit() else place: size for place, size in memory.items()}
    model = empty_model(config, dtype)
    places = infer_auto_device_map(model, memory, no_split_module_classes=model._no_split_modules, dtype=dtype)
    if "disk" in places.values():
        raise SystemExit("the model does not fit --max-memory")
    shared = {}
    for name, weight in list(model.named_parameters()):
        owner = max((p for p in places if name == p or name.startswith(p + ".") or not p), key=len)
        in_layer = name.partition("layers.")[2].partition(".")[2] or name
        if in_layer not in shared:
            shared[in_layer] = random_like(weight, dtype)
        set_module_tensor_to_device(model, name, places[owner], value=shared[in_layer])
    model.tie_weights()
    return dispatch_model(model, places) if len(set(places.values())) > 1 else model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint")
    source.add_argument("--config", help="a config.json")
    parser.add_argument("--offload", help="the folder for the layers")
    parser.add_argument("--prepare", action="store_true", help="write that folder, and nothing else")
    parser.add_argument("--max-memory", default="cpu=8GiB", help="without --offload, such as 0=16GiB,cpu=96GiB")
    parser.add_argument("--cap", type=int, metavar="MIB", help="without --offload: of GPU memory, for torch")
    parser.add_argument("--batch", default="1", help="without --offload several, such as 64,32: the first that fits")
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=32, help="tokens to generate, the first by prefill")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    if (args.checkpoint or args.prepare) and not args.offload:
        parser.error("--checkpoint and --prepare go with --offload")
    config = AutoConfig.from_pretrained(args.checkpoint or args.config)
    dtype = getattr(torch, args.dtype)
    if args.prepare:
        prepare(args, config, dtype)
        return
    if args.offload:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        model = from_disk(args, config, dtype).eval()
        times = generate(model, config, int(args.batch), args.prompt_len, args.steps, "cpu")
    else:
        device = "cuda" if args.max_memory[0].isdigit() else "cpu"
        if args.cap and device == "cuda":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, args.cap * 2**20 / total), 0)
        model = random_within(args, config, dtype).eval()
        batches = [int(batch) for batch in args.batch.split(",")]
        times = largest_that_fits(model, config, batches, args.prompt_len, args.steps, device)
    print(json.dumps(times))


if __name__ == "__main__":
    main()
