#!/usr/bin/env python3
"""Makes the tiny checkpoints of tests/data/golden and what Hugging Face transformers computes with them.

    python scripts/make_golden.py [--output tests/data/golden] [--only NAME ...]
    python scripts/make_golden.py --demo models/demo --text FILE [--output tests/data/golden]

Needs torch, transformers and safetensors; for --demo also tokenizers. The first form writes one folder per checkpoint
(config.json, weights, expected.json); the second demo.json for 20 prompts out of FILE. An expected file holds:

    prompts[].prompt_ids
    prompts[].greedy_ids     64 tokens, the largest logit each time; an end-of-text token ends nothing
    prompts[].logprobs       of these tokens
    prompts[].relative_gap   at each of the 64 steps: (largest logit - second) / largest |logit|
    prompts[].logits[]       after prompt_ids and the first `generated` of greedy_ids: `largest` |logit|, and `values` of
                             the token ids in `ids`, or of all in order where there is no `ids`

All in fp32 on the CPU, without a cache, on the stored weights upcast to fp32.
"""

import argparse
import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

GREEDY_TOKENS = 64
PROMPT_LENGTHS = [1, 2, 3, 7, 16, 23, 40]
LOGITS_AFTER = [0, 1, 63]
SEEDS_TRIED = 8
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

# `type` is the model_type, "opt" where there is none; `keys` go to config.json; `style` is the transformers version whose config.json it imitates; "minimal" leaves out
# every key that has the config class's default. `names`: "model" as OPTForCausalLM saves, "base" as OPTModel does.
VARIANTS = {
    "prenorm-tied-f32": dict(dtype="float32", style=4, keys=dict(hidden_size=48, num_attention_heads=4)),
    "prenorm-tied-f16": dict(dtype="float16", style=5, keys=dict(hidden_size=64, num_attention_heads=4, num_hidden_layers=3)),
    "postnorm-projections-f16": dict(
        dtype="float16", style=4, stored_head=True,
        keys=dict(hidden_size=64, word_embed_proj_dim=32, num_attention_heads=4, do_layer_norm_before=False)),
    "postnorm-f32": dict(dtype="float32", style=5, keys=dict(hidden_size=48, num_attention_heads=2, do_layer_norm_before=False)),
    "projections-untied-f32": dict(
        dtype="float32", style=5,
        keys=dict(hidden_size=48, word_embed_proj_dim=72, num_attention_heads=4, tie_word_embeddings=False)),
    "untied-head64-bf16": dict(
        dtype="bfloat16", style=5, keys=dict(hidden_size=128, num_attention_heads=2, ffn_dim=96, tie_word_embeddings=False)),
    "galactica-f16": dict(
        dtype="float16", style=4,
        keys=dict(hidden_size=80, num_attention_heads=1, activation_function="gelu", enable_bias=False,
                  layer_norm_elementwise_affine=False)),
    "no-bias-head12-bf16": dict(
        dtype="bfloat16", style=4, keys=dict(hidden_size=48, num_attention_heads=4, activation_function="gelu", enable_bias=False)),
    "plain-norms-f32": dict(
        dtype="float32", style=4, keys=dict(hidden_size=60, num_attention_heads=5, layer_norm_elementwise_affine=False)),
    "no-final-norm-f32": dict(
        dtype="float32", style=5, keys=dict(hidden_size=48, num_attention_heads=1, _remove_final_layer_norm=True)),
    "head80-f16": dict(dtype="float16", style=5, keys=dict(hidden_size=160, num_attention_heads=2, ffn_dim=60)),
    "sharded-bf16": dict(
        dtype="bfloat16", style=5, shard="24KB", keys=dict(hidden_size=64, num_attention_heads=1, num_hidden_layers=3)),
    "absent-keys-f16": dict(dtype="float16", style="minimal", names="base", keys=dict(hidden_size=48, num_attention_heads=12)),
    "llama-f32": dict(type="llama", dtype="float32", style=5, keys=dict(hidden_size=48, num_attention_heads=4)),
    "llama-llama3-gqa-bf16": dict(
        type="llama", dtype="bfloat16", style=4,
        keys=dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
                  rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                       high_freq_factor=4.0, original_max_position_embeddings=32))),
    "llama-linear-biases-f16": dict(
        type="llama", dtype="float16", style=5,
        keys=dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=3, head_dim=16, attention_bias=True, mlp_bias=True,
                  rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0))),
    "llama-sharded-linear-f32": dict(
        type="llama", dtype="float32", style=4, shard="60KB",
        keys=dict(hidden_size=48, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=3,
                  rope_parameters=dict(rope_type="linear", rope_theta=100000.0, factor=2.0))),
    "llama-absent-keys-f16": dict(
        type="llama", dtype="float16", style="minimal", names="base", keys=dict(hidden_size=64, num_attention_heads=4, tie_word_embeddings=True)),
    "mistral-gqa-f16": dict(
        type="mistral", dtype="float16", style=4,
        keys=dict(hidden_size=64, num_attention_heads=8, num_key_value_heads=2, head_dim=16, sliding_window=None,
                  rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "mistral-window-mqa-bf16": dict(
        type="mistral", dtype="bfloat16", style=5,
        keys=dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=1, sliding_window=104)),
    "qwen2-tied-f16": dict(
        type="qwen2", dtype="float16", style=4,
        keys=dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, sliding_window=8,
                  rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen2-untied-f32": dict(
        type="qwen2", dtype="float32", style=5, keys=dict(hidden_size=60, num_attention_heads=5, num_key_value_heads=5)),
    "qwen3-tied-f16": dict(
        type="qwen3", dtype="float16", style=4,
        keys=dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=24, tie_word_embeddings=True,
                  rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3-biases-untied-bf16": dict(
        type="qwen3", dtype="bfloat16", style=5,
        keys=dict(hidden_size=48, num_attention_heads=2, num_key_value_heads=2, head_dim=32, attention_bias=True)),
    "qwen3-absent-keys-f16": dict(
        type="qwen3", dtype="float16", style="minimal", names="base",
        keys=dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)),
    "smollm2-gqa-tied-bf16": dict(
        type="llama", dtype="bfloat16", style=4,
        keys=dict(hidden_size=72, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
                  rope_parameters=dict(rope_type="default", rope_theta=100000.0))),
    "smollm3-listed-layers-f16": dict(
        type="smollm3", dtype="float16", style=5,
        keys=dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, pad_token_id=None, bos_token_id=None,
                  no_rope_layers=[1, 0, 1], tie_word_embeddings=True)),
    "smollm3-interval-bf16": dict(
        type="smollm3", dtype="bfloat16", style=4,
        keys=dict(hidden_size=48, num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=3, pad_token_id=None, bos_token_id=None,
                  no_rope_layer_interval=2, tie_word_embeddings=False,
                  rope_parameters=dict(rope_type="default", rope_theta=2000000.0))),
    "neox-parallel-f16": dict(type="gpt_neox", dtype="float16", style=4, keys=dict(hidden_size=64, num_attention_heads=2)),
    "neox-sequential-f32": dict(
        type="gpt_neox", dtype="float32", style=5,
        keys=dict(hidden_size=48, num_attention_heads=3, use_parallel_residual=False,
                  rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0))),
    "neox-no-bias-sharded-bf16": dict(
        type="gpt_neox", dtype="bfloat16", style=4, shard="30KB",
        keys=dict(hidden_size=64, num_attention_heads=4, attention_bias=False,
                  rope_parameters=dict(rope_type="default", rope_theta=20000.0, partial_rotary_factor=0.5))),
}


# -------------------------------------------------------------------------------------------------------- weights

def type_of(variant: dict) -> str:
    return variant.get("type", "opt")


def config_of(variant: dict) -> PreTrainedConfig:
    inner = "ffn_dim" if type_of(variant) == "opt" else "intermediate_size"
    keys = {"vocab_size": 131, "num_hidden_layers": 2, inner: 2 * variant["keys"]["hidden_size"], "eos_token_id": None}
    if variant["style"] == "minimal":
        del keys["eos_token_id"]  # so it is 2, which the seeds tried must not generate
    else:
        keys["max_position_embeddings"] = 128
    return AutoConfig.for_model(type_of(variant), **(keys | variant["keys"]))


def fill(model: PreTrainedModel, seed: int) -> None:
    """Random weights under which logits are neither flat nor those of the last token alone."""
    generator = torch.Generator().manual_seed(seed)
    tied = model.config.tie_word_embeddings
    normal = lambda shape: torch.randn(shape, generator=generator)  # noqa: E731
    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            if name.endswith("bias"):
                tensor.copy_(0.1 * normal(tensor.shape))
            elif "norm" in name:
                tensor.copy_(1 + 0.2 * normal(tensor.shape))
            elif any(part in name for part in ("embed_tokens", "lm_head", "embed_in", "embed_out")):
                # Rows of unequal length keep the two largest logits apart; but where rows are read as they are written,
                # a long one would answer itself for ever.
                spread = 0.15 if tied else 0.4
                tensor.copy_(0.3 * torch.exp(spread * normal((tensor.shape[0], 1))) * normal(tensor.shape))
            elif "embed_positions" in name:
                tensor.copy_(normal(tensor.shape))
            else:
                gain = 1.1 if "q_proj" in name or "k_proj" in name or "project" in name else 1.6
                tensor.copy_(gain * normal(tensor.shape) / tensor.shape[1] ** 0.5)


def rope_of_version_4(model_type: str, rope: dict) -> dict:
    theta, fraction = rope.pop("rope_theta"), rope.pop("partial_rotary_factor", 1.0)
    scaling = rope if rope["rope_type"] != "default" else None
    if scaling and scaling["rope_type"] == "linear":
        scaling["type"] = scaling.pop("rope_type")
    if model_type == "gpt_neox":
        return {"rotary_emb_base": theta, "rotary_pct": fraction}
    return {"rope_theta": theta, "rope_scaling": scaling}


def save(model: PreTrainedModel, variant: dict, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder, max_shard_size=variant.get("shard", "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    weights = folder / "model.safetensors"
    if variant.get("stored_head"):  # a tied head that is in the file all the same, as in those of facebook/opt-*
        tensors = load_file(weights)
        tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
        save_file(tensors, weights, metadata={"format": "pt"})
    if variant.get("names") == "base":
        tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(weights).items()}
        save_file(tensors, weights, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    if variant["style"] == 4:
        config["torch_dtype"] = config.pop("dtype")
        config["transformers_version"] = "4.21.0.dev0"
        if "rope_parameters" in config:
            config |= rope_of_version_4(type_of(variant), config.pop("rope_parameters"))
        else:
            config["prefix"] = "</s>"
    elif variant["style"] == "minimal":
        default = AutoConfig.for_model(type_of(variant)).to_dict()
        config = {key: value for key, value in config.items()
                  if key in ("architectures", "model_type") or default.get(key, value) != value}
        config.pop("word_embed_proj_dim", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


# ------------------------------------------------------------------------------------------------------- expected

def short(values, digits: int = 8) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


@torch.no_grad()
def expect(model: PreTrainedModel, prompt: list[int], ids_of=lambda logits: None, after=LOGITS_AFTER) -> dict:
    ids, gaps, logprobs, rows = list(prompt), [], [], []
    for generated in range(GREEDY_TOKENS):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        top = torch.topk(logits, 2)
        largest = logits.abs().max().item()
        gaps.append((top.values[0] - top.values[1]).item() / largest)
        logprobs.append(torch.log_softmax(logits.double(), -1)[top.indices[0]].item())
        if generated in after:
            row = {"generated": generated, "largest": short([largest])[0]}
            chosen = ids_of(logits)
            if chosen is not None:
                row["ids"] = chosen
                logits = logits[chosen]
            rows.append(row | {"values": short(logits.tolist())})
        ids.append(top.indices[0].item())
    return {"prompt_ids": prompt, "greedy_ids": ids[len(prompt):], "relative_gap": short(gaps, 4),
            "logprobs": short(logprobs, 7), "logits": rows}


def comparable(prompts: list[dict], tolerance: float) -> float:
    """The share of greedy tokens before the first gap below the tolerance."""
    counts = [next((i for i, gap in enumerate(p["relative_gap"]) if gap < tolerance), GREEDY_TOKENS) for p in prompts]
    return sum(counts) / (GREEDY_TOKENS * len(prompts))


def load_upcast(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def write_json(path: Path, value: dict) -> None:
    """One line per prompt: small, and a change is visible."""
    head = {key: item for key, item in value.items() if key != "prompts"}
    lines = ",\n".join(json.dumps(prompt, separators=(",", ":")) for prompt in value["prompts"])
    path.write_text(json.dumps(head)[:-1] + ', "prompts": [\n' + lines + "\n]}\n")


def made_by(seed: int | None = None) -> dict:
    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    return versions if seed is None else versions | {"seed": seed}


def make_variant(name: str, output: Path) -> None:
    variant = VARIANTS[name]
    config = config_of(variant)
    folder = output / name
    best = None
    for seed in range(SEEDS_TRIED):
        model = AutoModelForCausalLM.from_config(config)
        fill(model, seed)
        save(model.to(DTYPES[variant["dtype"]]), variant, folder)
        upcast = load_upcast(folder)
        rng = np.random.default_rng(seed)
        prompts = [expect(upcast, rng.integers(0, config.vocab_size, length).tolist()) for length in PROMPT_LENGTHS]
        if any(config.eos_token_id in prompt["greedy_ids"] for prompt in prompts):
            continue
        # Long comparable stretches, and many different tokens.
        score = comparable(prompts, 5e-3) + 1.5 * min(1, np.mean([len(set(p["greedy_ids"])) for p in prompts]) / 16)
        if best is None or score > best[0]:
            best = (score, seed, prompts)
    score, seed, prompts = best
    model = AutoModelForCausalLM.from_config(config)
    fill(model, seed)
    save(model.to(DTYPES[variant["dtype"]]), variant, folder)
    write_json(folder / "expected.json", {"stored": variant["dtype"], "made_by": made_by(seed), "prompts": prompts})
    size = sum(file.stat().st_size for file in folder.iterdir())
    different = np.mean([len(set(prompt["greedy_ids"])) for prompt in prompts])
    print(f"{name}: seed {seed}, {size:,} bytes, {different:.0f} different of {GREEDY_TOKENS} tokens, comparable at "
          + ", ".join(f"{t:g}: {100 * comparable(prompts, t):.0f} %" for t in (1e-4, 5e-3, 3e-2)), flush=True)


# ----------------------------------------------------------------------------------------------------------- demo

def make_demo(folder: Path, text: Path, output: Path) -> None:
    lengths = [1, 2, 4, 7, 12, 20, 33, 47, 64, 81, 101, 127, 160, 200, 255, 256, 301, 384, 449, 512]
    content = (lzma.open(text) if text.suffix == ".xz" else open(text, "rb")).read().decode("utf-8", "replace")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = load_upcast(folder)
    rng = np.random.default_rng(1)

    def some_ids(logits):  # the largest, and a fixed sample of the rest
        return sorted(set(torch.topk(logits, 32).indices.tolist()) | set(range(0, len(logits), 16)))

    prompts = []
    for length in lengths:
        start = content.index("\n", int(rng.integers(0, len(content) - 20000))) + 1
        words = tokenizer(content[start:start + 16 * length + 100], add_special_tokens=False)["input_ids"]
        ids = [model.config.bos_token_id, *words][:length]
        prompts.append(expect(model, ids, some_ids, after=[0, 1, 63]))
        print(f"demo: prompt of {len(ids)} tokens", flush=True)
    stored = transformers.AutoConfig.from_pretrained(folder).dtype
    write_json(output / "demo.json", {"stored": str(stored).removeprefix("torch."), "made_by": made_by(), "prompts": prompts})
    print("demo: comparable at " + ", ".join(f"{t:g}: {100 * comparable(prompts, t):.0f} %" for t in (1e-4, 5e-3, 3e-2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent / "tests/data/golden")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="NAME")
    parser.add_argument("--demo", type=Path, metavar="DIR")
    parser.add_argument("--text", type=Path, metavar="FILE", help="where the demo model's prompts come from; .xz is unpacked")
    args = parser.parse_args()
    if (args.demo is None) != (args.text is None):
        parser.error("--demo and --text go together")
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    args.output.mkdir(parents=True, exist_ok=True)
    if args.demo:
        make_demo(args.demo, args.text, args.output)
        return
    for name in args.only or VARIANTS:
        make_variant(name, args.output)


if __name__ == "__main__":
    main()
