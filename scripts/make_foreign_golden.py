#!/usr/bin/env python3
"""Makes the tiny checkpoints of tests/data/quantised, as others write them in 4 bits, and what Hugging Face transformers
computes with the numbers that they mean.

    scripts/make_foreign_golden.py [NAME...]       # needs torch, transformers, safetensors, numpy; all without names
    scripts/make_foreign_golden.py --check [NAME...]     # also compressed-tensors: unpacks its files with that

A folder holds config.json, model.safetensors and expected.json (as scripts/make_golden.py writes it). Weights are rounded
to the nearest level of their group. The expected logits are those of fp32 on what `dequantised()` reads out of the file
that was written; it shares no code with the writer.
"""
import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
import make_golden  # noqa: E402
from make_golden import AutoModelForCausalLM  # noqa: E402

OUTPUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "quantised"
LENGTHS = (1, 5, 23, 40)
SEEDS_TRIED = 2
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that each half byte of a word holds, from the lowest on

# `how`: format of the tensors; `group`: -1 for whole rows; `plain`: modules that stay as they are; `head`: quantised too.
SMALL = dict(hidden_size=64, num_attention_heads=4)
VARIANTS = {
    "llama-ct-bf16": dict(type="llama", dtype="bfloat16", how="ct", group=32, keys=SMALL | dict(num_key_value_heads=2)),
    "llama-ct-asym-f16": dict(type="llama", dtype="float16", how="ct", group=64, asym=True, plain=["layers.1.mlp.down_proj"],
                              keys=SMALL | dict(tie_word_embeddings=True)),
    "qwen2-ct-asym-bytes-bf16": dict(type="qwen2", dtype="bfloat16", how="ct", group=128, asym=True, zero_bytes=True,
                                     keys=dict(hidden_size=128, num_attention_heads=4, num_key_value_heads=2, intermediate_size=256,
                                               num_hidden_layers=1)),
    "opt-ct-rows-f16": dict(dtype="float16", how="ct", group=-1, asym=True, keys=SMALL),
    "llama-gptq-f16": dict(type="llama", dtype="float16", how="gptq", group=32, keys=SMALL | dict(num_key_value_heads=2)),
    "opt-gptq-asym-f16": dict(dtype="float16", how="gptq", group=64, asym=True, keys=SMALL),
    "qwen2-gptq-v2-f16": dict(type="qwen2", dtype="float16", how="gptq_v2", group=64, asym=True, zero_at_0=True, head=True,
                              keys=SMALL | dict(num_key_value_heads=2, vocab_size=136)),
    "llama-gptqmodel-f16": dict(type="llama", dtype="float16", how="gptq", group=32, asym=True, zero_at_0=True, whole_words=True,
                                keys=SMALL | dict(tie_word_embeddings=True)),
    "neox-gptq-v2-rows-bf16": dict(type="gpt_neox", dtype="bfloat16", how="gptq_v2", group=-1, asym=True,
                                   keys=dict(hidden_size=64, num_attention_heads=2)),
    "llama-awq-f16": dict(type="llama", dtype="float16", how="awq", group=128, asym=True, plain=["layers.0"],
                          keys=dict(hidden_size=128, num_attention_heads=4, intermediate_size=256)),
    "qwen2-awq-f16": dict(type="qwen2", dtype="float16", how="awq", group=32, asym=True,
                          keys=SMALL | dict(num_key_value_heads=2, tie_word_embeddings=True)),
}


# ------------------------------------------------------------------------------------------------------- the writer

def quantised(weight: np.ndarray, variant: dict, dtype: torch.dtype):
    """Levels [rows, cols] from 0 to 15, scales [rows, groups] and zero points [rows, groups] from 0 to 15."""
    rows, cols = weight.shape
    group = cols if variant["group"] == -1 else variant["group"]
    parts = weight.reshape(rows, cols // group, group) if cols % group == 0 else None
    assert parts is not None, (cols, group)
    if variant.get("asym"):
        # As GPTQ and AWQ have it: the range holds 0, so the zero point is a level. zero_at_0 keeps some rows above 0.
        least, most = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
        scales = torch.from_numpy((most - least) / 15).to(dtype).float().numpy()
        zeros = np.clip(np.rint(-least / scales), 0, 15)
        if variant["how"] == "gptq" and not variant.get("whole_words"):
            zeros = np.maximum(zeros, 1)  # 0 cannot be told from 16 in that format
    else:
        scales = torch.from_numpy(np.abs(parts).max(2) / 7.5).to(dtype).float().numpy()
        zeros = np.full(scales.shape, 8.0)
    levels = np.clip(np.rint(parts / scales[..., None]) + zeros[..., None], 0, 15)
    return levels.reshape(rows, cols).astype(np.uint32), scales, zeros.astype(np.uint32)


def packed(levels: np.ndarray, axis: int, order=tuple(range(8))) -> np.ndarray:
    """Eight neighbours along the axis in a word, the one of order[i] in half byte i."""
    levels = np.moveaxis(levels, axis, 0)
    levels = np.concatenate([levels, np.zeros((-len(levels) % 8, *levels.shape[1:]), np.uint32)])
    words = np.zeros((len(levels) // 8, *levels.shape[1:]), np.uint32)
    for half, place in enumerate(order):
        words |= levels[place::8] << np.uint32(4 * half)
    return np.ascontiguousarray(np.moveaxis(words, 0, axis))


def words(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).view(np.int32))


def tensors_of(stem: str, weight: np.ndarray, variant: dict, dtype: torch.dtype) -> dict:
    levels, scales, zeros = quantised(weight, variant, dtype)
    rows, cols = weight.shape
    group = cols if variant["group"] == -1 else variant["group"]
    stored = torch.from_numpy(scales).to(dtype)
    if variant["how"] == "ct":
        found = {"weight_packed": words(packed(levels, 1)), "weight_scale": stored, "weight_shape": torch.tensor([rows, cols])}
        if variant.get("zero_bytes"):
            found["weight_zero_point"] = torch.from_numpy(zeros.astype(np.int32) - 8).to(torch.int8)
        elif variant.get("asym"):
            found["weight_zero_point"] = words(packed(zeros, 0))
    elif variant["how"] == "awq":
        found = {"qweight": words(packed(levels.T, 1, AWQ_ORDER)), "qzeros": words(packed(zeros.T, 1, AWQ_ORDER)),
                 "scales": stored.T.contiguous()}
    else:
        if variant["how"] == "gptq_v2":
            stored_zeros = packed(zeros.T, 1)
        elif variant.get("whole_words"):
            stored_zeros = packed(zeros.T, 1) - np.uint32(0x11111111)
        else:
            stored_zeros = packed(zeros.T - 1, 1)
        found = {"qweight": words(packed(levels.T, 0)), "qzeros": words(stored_zeros), "scales": stored.T.contiguous(),
                 "g_idx": torch.arange(cols, dtype=torch.int32) // group}
    return {f"{stem}.{name}": tensor for name, tensor in found.items()}


def config_of(variant: dict) -> dict:
    group, asym = variant["group"], variant.get("asym", False)
    if variant["how"] == "ct":
        weights = dict(actorder=None, block_structure=None, dynamic=False, group_size=None if group == -1 else group, num_bits=4,
                       observer="minmax", observer_kwargs={}, strategy="channel" if group == -1 else "group", symmetric=not asym,
                       type="int")
        scheme = dict(input_activations=None, output_activations=None, targets=["Linear"], weights=weights)
        return dict(config_groups=dict(group_0=scheme), format="pack-quantized", global_compression_ratio=None,
                    ignore=["lm_head", *variant.get("plain", [])], kv_cache_scheme=None, quant_method="compressed-tensors",
                    quantization_status="compressed")
    if variant["how"] == "awq":
        return dict(quant_method="awq", bits=4, group_size=group, zero_point=True, version="gemm",
                    modules_to_not_convert=variant.get("plain"))
    config = dict(quant_method="gptq", bits=4, group_size=group, desc_act=False, sym=not asym, lm_head=variant.get("head", False),
                  damp_percent=0.01, true_sequential=True, static_groups=False)
    if variant["how"] == "gptq_v2":
        config["checkpoint_format"] = "gptq_v2"
    if variant.get("whole_words"):
        config |= dict(checkpoint_format="gptq", pack_dtype="int32", meta=dict(quantizer=["gptqmodel:2.2.0"]))
    return config


def is_quantised(name: str, module: torch.nn.Module, variant: dict) -> bool:
    if not isinstance(module, torch.nn.Linear) or any(part in f"{name}." for part in (f"{p}." for p in variant.get("plain", []))):
        return False
    return ".layers." in f".{name}" or (variant.get("head", False) and name == "lm_head")


def write(folder: Path, variant: dict, seed: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    dtype = make_golden.DTYPES[variant["dtype"]]
    model = AutoModelForCausalLM.from_config(make_golden.config_of(variant | {"style": 5}))
    make_golden.fill(model, seed)
    modules = {name: module for name, module in model.named_modules() if is_quantised(name, module, variant)}
    assert len(modules) >= 4, modules.keys()
    tied = model.config.tie_word_embeddings
    stored = {}
    for name, tensor in model.state_dict().items():
        stem, _, last = name.rpartition(".")
        if tied and stem in ("lm_head", "embed_out"):
            continue
        if stem in modules and last == "weight":
            weight = tensor.numpy().copy()
            if variant.get("zero_at_0"):
                weight[::11] = np.abs(weight[::11]) * np.where(np.arange(weight.shape[1]) % 2, 1, 0.5)  # a zero point of 0
            stored |= tensors_of(stem, weight, variant, dtype)
        else:
            stored[name] = tensor.to(dtype).clone()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"dtype": variant["dtype"], "quantization_config": config_of(variant)}
    config = {key: value for key, value in config.items() if key != "transformers_version"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


# ------------------------------------------------------------------------------------------------- the dequantiser

def level_at(word: int, half: int) -> int:
    return (word & 0xFFFFFFFF) >> (4 * half) & 15


def dequantised(tensors: dict, stem: str, config: dict) -> np.ndarray:
    """[rows, cols] fp32, number by number, from the tensors of a file and its quantization_config."""
    get = lambda name: tensors[f"{stem}.{name}"]  # noqa: E731
    method = config["quant_method"]
    if method == "compressed-tensors":
        rows, cols = (int(n) for n in get("weight_shape"))
        scales = get("weight_scale").float().numpy()
        packed_levels, zeros = get("weight_packed").numpy(), tensors.get(f"{stem}.weight_zero_point")
        level = lambda r, c: level_at(int(packed_levels[r, c // 8]), c % 8) - 8  # noqa: E731
        if zeros is None:
            zero = lambda r, g: 0  # noqa: E731
        elif zeros.dtype == torch.int8:
            zero = lambda r, g: int(zeros[r, g])  # noqa: E731
        else:
            zero = lambda r, g: level_at(int(zeros[r // 8, g]), r % 8) - 8  # noqa: E731
    else:
        scales = get("scales").float().numpy().T
        packed_levels, zeros = get("qweight").numpy(), get("qzeros").numpy()
        rows = packed_levels.shape[1] * (8 if method == "awq" else 1)
        cols = packed_levels.shape[0] * (1 if method == "awq" else 8)
        if method == "awq":
            place = [AWQ_ORDER.index(i) for i in range(8)]
            level = lambda r, c: level_at(int(packed_levels[c, r // 8]), place[r % 8])  # noqa: E731
            zero = lambda r, g: level_at(int(zeros[g, r // 8]), place[r % 8])  # noqa: E731
        else:
            more = 0 if config.get("checkpoint_format") == "gptq_v2" else 0x11111111
            level = lambda r, c: level_at(int(packed_levels[c // 8, r]), c % 8)  # noqa: E731
            zero = lambda r, g: level_at((int(zeros[g, r // 8]) & 0xFFFFFFFF) + more, r % 8)  # noqa: E731
    group = cols // scales.shape[1]
    meant = np.empty((rows, cols), np.float32)
    for r in range(rows):
        for g in range(scales.shape[1]):
            z = zero(r, g)
            for c in range(g * group, (g + 1) * group):
                meant[r, c] = np.float32(level(r, c) - z) * scales[r, g]
    return meant


def load(folder: Path):
    """The model in fp32 with the numbers that the file means."""
    config = json.loads((folder / "config.json").read_text())
    how = config.pop("quantization_config")
    tensors = load_file(folder / "model.safetensors")
    model = AutoModelForCausalLM.from_config(make_golden.AutoConfig.for_model(**config), attn_implementation="eager").float().eval()
    state = {}
    for name in model.state_dict():
        stem = name.removesuffix(".weight")
        if name in tensors:
            state[name] = tensors[name].float()
        elif f"{stem}.qweight" in tensors or f"{stem}.weight_packed" in tensors:
            state[name] = torch.from_numpy(dequantised(tensors, stem, how))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("lm_head" in name or "embed_out" in name for name in missing), (missing, unexpected)
    assert not missing or config["tie_word_embeddings"], missing
    model.tie_weights()
    return model


def make(name: str) -> None:
    variant, folder = VARIANTS[name], OUTPUT / name
    make_golden.GREEDY_TOKENS = 24
    best = None
    for seed in range(SEEDS_TRIED):
        write(folder, variant, seed)
        model, rng = load(folder), np.random.default_rng(seed)
        prompts = [make_golden.expect(model, rng.integers(3, model.config.vocab_size, length).tolist(), after=[0, 9, 23])
                   for length in LENGTHS]
        score = make_golden.comparable(prompts, 3e-2 if variant["dtype"] == "bfloat16" else 5e-3)
        if best is None or score > best[0]:
            best = (score, seed, prompts)
    score, seed, prompts = best
    write(folder, variant, seed)
    make_golden.write_json(folder / "expected.json",
                           {"stored": variant["dtype"], "made_by": make_golden.made_by(seed), "prompts": prompts})
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: seed {seed}, {size:,} bytes, {100 * score:.0f} % of the tokens comparable", flush=True)


def check(name: str) -> None:
    """compressed-tensors unpacks the same numbers."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    folder = OUTPUT / name
    how = json.loads((folder / "config.json").read_text())["quantization_config"]
    tensors = load_file(folder / "model.safetensors")
    for packed_name in [n for n in tensors if n.endswith(".weight_packed")]:
        stem = packed_name.removesuffix(".weight_packed")
        shape = torch.Size(tensors[f"{stem}.weight_shape"].tolist())
        scale = tensors[f"{stem}.weight_scale"].float()
        levels = unpack_from_int32(tensors[packed_name], 4, shape).float().reshape(shape[0], scale.shape[1], -1)
        zeros = tensors.get(f"{stem}.weight_zero_point", torch.zeros(scale.shape, dtype=torch.int8))
        if zeros.dtype == torch.int32:
            zeros = unpack_from_int32(zeros, 4, scale.shape, packed_dim=0)
        theirs = ((levels - zeros.float()[..., None]) * scale[..., None]).reshape(shape).numpy()
        assert np.array_equal(theirs, dequantised(tensors, stem, how)), stem
    print(f"{name}: as compressed-tensors unpacks it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what compressed-tensors unpacks, and write nothing")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    torch.set_num_threads(1)
    make_golden.transformers.utils.logging.set_verbosity_error()
    for name in args.names or VARIANTS:
        if not args.check:
            make(name)
        elif VARIANTS[name]["how"] == "ct":
            check(name)


if __name__ == "__main__":
    main()
