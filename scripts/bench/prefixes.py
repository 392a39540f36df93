#!/usr/bin/env python3
"""Times a job whose prompts begin alike with and without shared prefixes, in turn, and compares the answers' bytes.

    scripts/bench/prefixes.py --model models/demo [--weft build/release/weft] [--lines 400] [--prefixes 20]
        [--prefix-tokens 1000] [--own-tokens 6] [--max-tokens 8] [--retention full ...] [--repeats 3]
        [-- FLAG ... of weft generate]

Prints a row of a table for each retention: tokens/s of answers with and without sharing (medians), their ratio with its
spread, and the prompt tokens computed. Token ids are drawn at random by a fixed seed."""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--weft", default=ROOT / "build/release/weft")
    parser.add_argument("--model", required=True)
    for name, default in (("lines", 400), ("prefixes", 20), ("prefix-tokens", 1000), ("own-tokens", 6), ("max-tokens", 8),
                          ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--retention", nargs="+", default=["full", "h2o:0.1:0.1", "snapkv:0.1:0.1:window=4"])
    own, _, flags = " ".join(sys.argv[1:]).partition(" -- ")
    args = parser.parse_args(own.split())
    args.flags = flags.split()
    config = pathlib.Path(args.model)
    vocabulary = json.loads((config / "config.json" if config.is_dir() else config).read_text())["vocab_size"]
    print("| retention | shared, tokens/s | alone, tokens/s | ratio (least to most) | prompt tokens computed | answers |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_requests(folder / "requests.jsonl", args, vocabulary)
        for retention in args.retention:
            shared, alone, same = [], [], True
            for _ in range(args.repeats):
                rate, tokens, answers = run(args, folder, retention, [])
                other, all_tokens, expected = run(args, folder, retention, ["--no-prefix-sharing"])
                shared.append(rate)
                alone.append(other)
                same &= answers == expected
            ratios = [a / b for a, b in zip(shared, alone)]
            computed = tokens["prompt"] - tokens["shared_prompt"]
            print(f"| {retention} | {statistics.median(shared):.1f} | {statistics.median(alone):.1f} | "
                  f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) | {computed} of "
                  f"{all_tokens['prompt']} | {'the same bytes' if same else 'DIFFER'} |", flush=True)


if __name__ == "__main__":
    main()
