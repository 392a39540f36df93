#!/usr/bin/env python3
"""Asks the tasks of scripts/evaluate/tasks.py of NVIDIA's kvpress, through transformers, and of Weft, at equal numbers of kept slots.

    python3 -m venv build/venv-kvpress && build/venv-kvpress/bin/pip install kvpress
    build/venv-kvpress/bin/python scripts/compare/run_kvpress.py --model models/smollm2 [--items 15] [--tokens 1000]
        [--budgets 0.2 0.1] [--presses NAME ...] [--rules RULE ...] [--output FILE.md] [-- FLAGS OF WEFT ...]

A press compresses the whole prompt, question and all, to the budget's share of its tokens, and keeps what is generated; the
answer is greedy. A BUDGET in a rule of Weft stands for the budget, HALF for half of it. Both compute in float32.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import kvpress
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/evaluate"))
import tasks  # noqa: E402
from generation_loop import answer  # noqa: E402


def snapkv_of_ours(compression_ratio):
    """With the window and the pool of the rule that keeps these tasks best."""
    return kvpress.SnapKVPress(compression_ratio, window_size=4, kernel_size=31)


PRESSES = {
    "SnapKV": kvpress.SnapKVPress,
    "KeyDiff": kvpress.KeyDiffPress,
    "TOVA": kvpress.TOVAPress,
    "ExpectedAttention": kvpress.ExpectedAttentionPress,
    "ObservedAttention": kvpress.ObservedAttentionPress,
    "AdaKV(SnapKV)": lambda compression_ratio: kvpress.AdaKVPress(kvpress.SnapKVPress(compression_ratio)),
    "SnapKV(4,31)": snapkv_of_ours,
    "AdaKV(SnapKV(4,31))": lambda compression_ratio: kvpress.AdaKVPress(snapkv_of_ours(compression_ratio)),
}
RULES = ["h2o:HALF:HALF", "snapkv:BUDGET:0", "snapkv:BUDGET:0:window=4:pool=31", "h2o:HALF:HALF:window=4:pool=31",
         "keydiff:HALF:HALF", "tova:BUDGET"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.2, 0.1])
    parser.add_argument("--presses", nargs="*", choices=PRESSES, default=list(PRESSES))
    parser.add_argument("--rules", nargs="*", default=RULES)
    tasks.add_items(parser, ["needle", "needles", "copying"], 15, 1000)
    parser.add_argument("--output")
    parser.add_argument("flags", nargs="*", help="of weft generate, after --")
    args = parser.parse_args()
    args.flags = ["--dtype", "float32", *args.flags]

    rules = [rule.replace("BUDGET", str(budget)).replace("HALF", str(budget / 2))  # 1.0 is all, and 1 one token
             for budget in args.budgets for rule in args.rules]
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        wanted, text = tasks.make_items(args)
        (folder / "items.jsonl").write_text(text)
        lines = [json.loads(line) for line in text.splitlines()]
        scores = {}

        def table():
            return tasks.table(args, wanted, scores, dict.fromkeys(scores, "full"))
        for rule in ["full", *rules]:
            scores[rule] = tasks.scored(wanted, tasks.answer(args, folder, rule))
            print(table(), flush=True)
        for budget in args.budgets:
            for press in args.presses:
                row = f"kvpress {press} {budget:g}"
                # Only eager attention returns its weights, and AdaKV takes every other.
                model.set_attn_implementation("eager" if press == "ObservedAttention" else "sdpa")
                of_press = PRESSES[press](compression_ratio=1 - budget)
                answers = {line["id"]: answer(model, tokenizer, transformers.DynamicCache(), line, of_press(model)) for line in lines}
                scores[row] = tasks.scored(wanted, answers)
                print(table(), flush=True)
        if args.output:
            pathlib.Path(args.output).write_text(table())


if __name__ == "__main__":
    main()
