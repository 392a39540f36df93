#!/usr/bin/env python3
"""Compares weft with Hugging Face transformers on a checkpoint folder or a GGUF file, through the binary.

    python3 scripts/evaluate/verify_against_hf.py CHECKPOINT [--prompts 8] [--prompt-len 64] [--max-tokens 64]
        [--dtype auto|float16|bfloat16|float32] [--weft build/release/weft] [--device cpu] [-- FLAGS OF WEFT ...]

The reference is transformers in fp32 on the stored weights. Ragged prompts are made (out of the checkpoint's tokenizer
where it has one, of random ids otherwise). weft generates from them; its tokens must be those of the reference until the
reference's own two largest logits come closer than the tolerance. weft scores the reference's tokens; their
log-probabilities must agree within it. It is 1e-4, 5e-3 or 3e-2 (float32, float16, bfloat16) of the reference's largest
logit. With quantised weights give "-- --weight-arithmetic exact", because weft rounds activations to 8 bits otherwise. Exits
with 0 if all is so, with 1 if not, with 2 if weft itself fails.

What it needs from PyPI (torch for the CPU, transformers, safetensors; gguf and accelerate for GGUF) goes into
build/verify-venv if it is missing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WEFT = ROOT / "bin" / "weft"  # of a package
if not WEFT.exists():
    WEFT = ROOT / "build" / "release" / "weft"
TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
PACKAGE = "transformers>=4.56"  # which knows dtype= and writes config.json as it is now
TORCH = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}
STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
TEXT = ("It was a bright cold day in April, and the clocks were striking. A newcomer asked how far the river runs, and "
        "whether 17 boats could pass the bridge before night: \"Surely not!\" said the ferryman; he had seen it tried in "
        "1843, when naïve merchants lost half of their grain. ")


def ensure_packages() -> None:
    """Runs this script again inside a virtual environment that has what it imports."""
    if has_packages(sys.executable):
        return
    venv = ROOT / "build" / "verify-venv"
    python = venv / "bin" / "python"
    if os.environ.get("WEFT_VERIFY_VENV"):
        sys.exit(f"{venv} lacks a package of this script; remove it and try again")
    if not has_packages(python):
        print(f"installing torch, transformers and what they need into {venv}", flush=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            if not runs([python, "-m", "pip", "--version"]):  # missing, or left by an attempt without ensurepip
                subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
            # The smaller build without CUDA; PyPI's own where that index cannot be reached.
            if subprocess.run([*pip, "torch", "--retries", "0", "--timeout", "10", "--index-url",
                               "https://download.pytorch.org/whl/cpu"]).returncode:
                subprocess.run([*pip, "torch"], check=True)
            subprocess.run([*pip, PACKAGE, "safetensors", "numpy", "gguf", "accelerate"], check=True)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{' '.join(map(str, error.cmd))} failed; it needs python3-venv (scripts/setup.sh installs it) and PyPI")
    os.environ["WEFT_VERIFY_VENV"] = "1"
    os.execv(python, [str(python), *sys.argv])


def runs(command: list) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def has_packages(python: str | Path) -> bool:
    of_gguf = "accelerate, gguf, " if any(argument.endswith(".gguf") for argument in sys.argv) else ""
    return runs([python, "-c", f"import {of_gguf}safetensors, torch, transformers; transformers.AutoConfig; "
                               "assert tuple(map(int, transformers.__version__.split('.')[:2])) >= (4, 56)"])


def is_gguf(checkpoint: Path) -> bool:
    return checkpoint.suffix == ".gguf" and checkpoint.is_file()


def in_transformers(checkpoint: Path) -> dict:
    """The arguments by which transformers' from_pretrained() finds the checkpoint."""
    if is_gguf(checkpoint):
        return {"pretrained_model_name_or_path": checkpoint.parent, "gguf_file": checkpoint.name}
    return {"pretrained_model_name_or_path": checkpoint}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-len", type=int, default=64, help="of the longest prompt; the others are shorter")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", choices=["auto", *TOLERANCE], default="auto", help="that weft computes in")
    parser.add_argument("--weft", type=Path, default=WEFT)
    parser.add_argument("--device", default="cpu", help="that the reference computes on, such as cuda")
    parser.add_argument("--seed", type=int, default=1)
    own, flags = sys.argv[1:], []
    if "--" in own:
        own, flags = own[:own.index("--")], own[own.index("--") + 1:]
    args = parser.parse_args(own)
    args.flags = flags
    if args.prompts < 1 or args.prompt_len < 1 or args.max_tokens < 1:
        parser.error("--prompts, --prompt-len and --max-tokens must be at least 1")
    if not is_gguf(args.checkpoint) and not (args.checkpoint / "config.json").is_file():
        parser.error(f"{args.checkpoint} holds no config.json and is no GGUF file")
    args.weft = args.weft.resolve()
    if not os.access(args.weft, os.X_OK):
        parser.error(f"{args.weft} is not there; build it, or name it with --weft")
    return args


def stored_dtype(folder: Path) -> str:
    """Of the tensor with the most elements, as the file itself says."""
    if is_gguf(folder):
        return "GGUF"
    import math

    from safetensors import safe_open
    best = (0, "F32")
    if not list(folder.glob("model*.safetensors")):
        import torch
        for file in sorted(folder.glob("pytorch_model*.bin")):
            for tensor in torch.load(file, map_location="cpu", weights_only=True).values():
                best = max(best, (tensor.numel(), TORCH.get(str(tensor.dtype), "F32")))
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():
                part = tensors.get_slice(name)
                best = max(best, (math.prod(part.get_shape()), part.get_dtype()))
    return STORED.get(best[1], "float32")


def computed_dtype(args: argparse.Namespace, config) -> str:
    """What weft computes in; --dtype auto is what config.json says, and float16 for float32."""
    if args.dtype != "auto":
        return args.dtype
    named = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return "float16" if named == "float32" else named


def end_tokens(model) -> set[int]:
    """generation_config.json beats config.json, as in transformers' generate()."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = model.config.eos_token_id
    return set() if ends is None else set(ends) if isinstance(ends, list) else {ends}


def make_prompts(args: argparse.Namespace, config) -> list[list[int]]:
    import random
    rng = random.Random(args.seed)
    longest = min(args.prompt_len, config.max_position_embeddings - args.max_tokens)
    if longest < 1:
        sys.exit(f"--max-tokens {args.max_tokens} leaves no room for a prompt in {config.max_position_embeddings} positions")
    lengths = [longest, 1, *(rng.randint(1, longest) for _ in range(args.prompts))][:args.prompts]
    if not is_gguf(args.checkpoint) and not any((args.checkpoint / name).exists()
                                                for name in ("tokenizer.json", "vocab.json")):
        return [[rng.randrange(config.vocab_size) for _ in range(length)] for length in lengths]
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(**in_transformers(args.checkpoint))
    first = [] if config.bos_token_id is None else [config.bos_token_id]
    words = TEXT.split(" ")
    prompts = []
    for length in lengths:
        ids = []
        while len(ids) < length:
            start = rng.randrange(len(words))
            ids += tokenizer(" ".join(words[start:]) + " ", add_special_tokens=False)["input_ids"]
        prompts.append([*first, *ids][:length])
    return prompts


def reference(model, prompt: list[int], max_tokens: int, ends: set[int]) -> dict:
    """Greedy tokens up to an end, with the log-probability, the two largest logits' gap and |largest| of each step."""
    import torch
    ids, logprobs, gaps, largest, cache = [], [], [], [], None
    step = torch.tensor([prompt], device=model.device)
    with torch.no_grad():
        while len(ids) < max_tokens and not (ids and ids[-1] in ends):
            out = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            logits = out.logits[0, -1]
            top = torch.topk(logits, 2)
            token = top.indices[0].item()
            largest.append(logits.abs().max().item())
            gaps.append((top.values[0] - top.values[1]).item())
            logprobs.append(torch.log_softmax(logits.double(), -1)[token].item())
            ids.append(token)
            step = torch.tensor([[token]], device=model.device)
    return {"ids": ids, "logprobs": logprobs, "gaps": gaps, "largest": largest}


def run_weft(args: argparse.Namespace, command: str, requests: list[dict], folder: Path) -> dict:
    requests_file, answers_file = folder / f"{command}.in.jsonl", folder / f"{command}.out.jsonl"
    requests_file.write_text("".join(json.dumps(request) + "\n" for request in requests))
    line = [args.weft, command, "--model", args.checkpoint, "--input", requests_file, "--output", answers_file,
            "--dtype", args.dtype, *args.flags]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(f"weft {command} ended with {done.returncode}:\n{done.stdout}", file=sys.stderr)
        sys.exit(2)
    answers = [json.loads(text) for text in answers_file.read_text().splitlines()]
    answers = {answer["id"]: answer for answer in answers}
    lost = [request["id"] for request in requests if request["id"] not in answers]
    wrong = [key for key, answer in answers.items() if "error" in answer]
    if lost or wrong:
        print(f"weft {command} left requests {lost} without an answer and {wrong} with an error", file=sys.stderr)
        sys.exit(2)
    return answers


def compare(index: int, expected: dict, generated: list[int], scored: list[float], tolerance: float) -> dict:
    """One line about one prompt. A token is compared while the reference's gap leaves no doubt which it is."""
    ids, gaps, largest = expected["ids"], expected["gaps"], expected["largest"]
    if len(scored) != len(ids):
        print(f"prompt {index:3}: {len(scored)} log-probabilities for {len(ids)} tokens; BAD", flush=True)
        return {"good": False, "deviation": float("inf"), "certain": 0, "tokens": len(ids), "differs": 0}
    deviations = [abs(mine - theirs) / scale for mine, theirs, scale in zip(scored, expected["logprobs"], largest)]
    worst = max(range(len(ids)), key=lambda i: deviations[i])
    certain = next((i for i, gap in enumerate(gaps) if gap < tolerance * largest[i]), len(ids))
    differs = next((i for i in range(max(len(ids), len(generated))) if generated[i:i + 1] != ids[i:i + 1]), None)
    if differs is None:
        tokens = f"all {len(ids)} tokens equal"
    else:
        mine = generated[differs] if differs < len(generated) else "none"
        theirs = ids[differs] if differs < len(ids) else "none"
        gap = f"{gaps[differs] / largest[differs]:.1e} of the largest logit" if differs < len(ids) else "none, it had ended"
        tokens = f"token {differs} of {len(ids)} differs: weft {mine}, reference {theirs}, its top-two gap {gap}"
    good = (differs is None or differs >= certain) and deviations[worst] <= tolerance
    print(f"prompt {index:3}: largest deviation of a log-probability {abs(scored[worst] - expected['logprobs'][worst]):.2e} "
          f"({deviations[worst]:.1e} of the largest logit) at token {worst}; {tokens}; {'good' if good else 'BAD'}", flush=True)
    return {"good": good, "deviation": deviations[worst], "certain": certain, "tokens": len(ids), "differs": differs}


def main() -> int:
    ensure_packages()
    args = parse_arguments()
    import torch
    import transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(**in_transformers(args.checkpoint))
    stored = stored_dtype(args.checkpoint)
    computed = computed_dtype(args, config)
    tolerance = TOLERANCE[computed]
    model = transformers.AutoModelForCausalLM.from_pretrained(**in_transformers(args.checkpoint),
                                                              dtype=torch.float32).to(args.device).eval()
    ends = end_tokens(model)
    prompts = make_prompts(args, config)
    print(f"{args.checkpoint}: stored as {stored}, weft computes in {computed}, tolerance {tolerance:g}; reference: transformers "
          f"{transformers.__version__}, torch {torch.__version__}, fp32 on {args.device}", flush=True)
    expected = [reference(model, prompt, args.max_tokens, ends) for prompt in prompts]

    with tempfile.TemporaryDirectory(prefix="weft-verify-") as folder:
        generated = run_weft(args, "generate", [{"id": i, "prompt_ids": prompt, "max_tokens": args.max_tokens, "temperature": 0}
                                                for i, prompt in enumerate(prompts)], Path(folder))
        scored = run_weft(args, "score", [{"id": i, "prompt_ids": prompt, "continuation_ids": expected[i]["ids"]}
                                          for i, prompt in enumerate(prompts)], Path(folder))
    results = [compare(i, expected[i], generated[i]["token_ids"], scored[i]["logprobs"], tolerance) for i in range(len(prompts))]

    good = all(result["good"] for result in results)
    first = min((r["differs"] for r in results if r["differs"] is not None), default=None)
    print(f"{'PASS' if good else 'FAIL'}: {sum(r['good'] for r in results)} of {len(results)} prompts good; largest deviation "
          f"{max(r['deviation'] for r in results):.1e} of the largest logit (tolerance {tolerance:g}); "
          f"{sum(r['certain'] for r in results)} of {sum(r['tokens'] for r in results)} greedy tokens beyond doubt; "
          + ("no token differs" if first is None else f"the first token that differs is number {first}"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
