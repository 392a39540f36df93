#!/usr/bin/env python3
"""Measures what the quantised caches of transformers cost, KIVI's kind, beside rules of Weft: in perplexity over the windows of
scripts/evaluate/quality.py, or with --tasks in the tasks of scripts/evaluate/tasks.py.

    python3 -m venv build/venv-caches && build/venv-caches/bin/pip install torch setuptools wheel transformers optimum-quanto
    build/venv-caches/bin/pip install --no-build-isolation hqq
    build/venv-caches/bin/python scripts/compare/run_quantised_cache.py --model models/smollm2 --windows 12
        [--caches quanto:2 quanto:2:-1:0 hqq:2 ...] [--tasks NAME ... --items 10 --tokens 600] [--rules RULE ...] [-- FLAGS OF WEFT]

A CACHE is library:bits, or library:bits:keys' axis:values' axis as these libraries count them: quanto:2:-1:0 has keys by
channel and values by token, as KIVI has them; without axes both are by token. Groups have 64 numbers, and up to 128
newest tokens stay in 16 bits, as transformers has it by default. "Bytes" count a scale and a minimum of 16 bits a group and
64 newest tokens, their mean number, as a share of keys and values in 16 bits. transformers computes in float32.
"""
import argparse
import json
import math
import pathlib
import sys
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/evaluate"))
import quality  # noqa: E402
import tasks  # noqa: E402
from generation_loop import answer  # noqa: E402

GROUP, NEWEST = 64, 128
BY_TOKEN = {"quanto": 0, "hqq": 1}


def new_cache(name, model):
    if name == "full":
        return transformers.DynamicCache()
    library, bits, *axes = name.split(":")
    keys, values = map(int, axes) if axes else (BY_TOKEN[library], BY_TOKEN[library])
    return transformers.QuantizedCache(library, model.config, nbits=int(bits), axis_key=keys, axis_value=values,
                                       q_group_size=GROUP, residual_length=NEWEST)


def bytes_of(name, tokens):
    """As a share of keys and values in 16 bits."""
    newest = NEWEST / 2 / tokens
    return newest + (1 - newest) * (int(name.split(":")[1]) + 32 / GROUP) / 16


@torch.no_grad()
def loss(model, name, window):
    """Of the continuation, in nats a token: the prompt at once, the rest token by token, as generation does."""
    cache = new_cache(name, model)
    logits = model(torch.tensor([window["prompt_ids"]]), past_key_values=cache, logits_to_keep=1).logits
    total, wanted = 0.0, window["continuation_ids"]
    for i, token in enumerate(wanted):
        total -= torch.log_softmax(logits[0, -1].float(), -1)[token].item()
        if i + 1 < len(wanted):
            logits = model(torch.tensor([[token]]), past_key_values=cache).logits
    return total / len(wanted)


def perplexities(args, folder, model):
    windows = quality.make_windows(args, folder)
    lines = [json.loads(line) for line in windows.open()]
    print("| | bytes | perplexity | change | standard error |\n|---|---|---|---|---|", flush=True)
    tokens = args.prompt + args.scored
    for of, names, share, measure in (
            ("Weft", args.rules, lambda name: "", lambda name: quality.score(args, folder, windows, name)),
            ("transformers", args.caches, lambda name: f"{bytes_of(name, tokens):.2f}",
             lambda name: [loss(model, name, line) for line in lines])):
        full = measure("full")
        print(f"| {of}, full | | {math.exp(quality.mean_and_error(full)[0]):.2f} | | |", flush=True)
        for name in names:
            losses = measure(name)
            change, error = quality.relative_change(losses, full)
            print(f"| {name} | {share(name)} | {math.exp(quality.mean_and_error(losses)[0]):.2f} | {change:+.2%} | {error:.2%} |",
                  flush=True)


def scores_of_tasks(args, folder, model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    wanted, text = tasks.make_items(args)
    (folder / "items.jsonl").write_text(text)
    lines, scores = [json.loads(line) for line in text.splitlines()], {}
    for rule in ["full", *args.rules]:
        scores[rule] = tasks.scored(wanted, tasks.answer(args, folder, rule))
    for name in args.caches:
        row = f"{name} ({bytes_of(name, args.tokens):.2f} of the bytes)"
        scores[row] = tasks.scored(wanted, {line["id"]: answer(model, tokenizer, new_cache(name, model), line) for line in lines})
        print(tasks.table(args, wanted, scores, dict.fromkeys(scores, "full")), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--caches", nargs="*", default=["quanto:4", "quanto:2", "quanto:2:-1:0", "hqq:4", "hqq:2"])
    parser.add_argument("--rules", nargs="*", default=["h2o:0.05:0.05:cold=1.0@int8:4:2", "h2o:0.02:0.02:cold=0.7@int8:3:2"])
    tasks.add_items(parser, [], 10, 600)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--scored", type=int, default=256)
    parser.add_argument("flags", nargs="*", help="of weft, after --")
    args = parser.parse_args()
    args.flags = ["--dtype", "float32", *args.flags]
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as name:
        (scores_of_tasks if args.tasks else perplexities)(args, pathlib.Path(name), model)


if __name__ == "__main__":
    main()
