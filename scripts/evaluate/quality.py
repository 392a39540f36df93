#!/usr/bin/env python3
"""Measures what each retention rule costs in perplexity, and writes docs/lab/demo-model.md. With --kv, what keys and values
of 8 and 4 bits cost, with --rules, what the rules named there cost, each in the words of weft's --retention, and how they
compare with the first of them: these print a table.

    scripts/evaluate/quality.py [--model models/demo] [--text tests/data/text/books-valid.txt.xz] [--windows 64]
                       [--prompt 512] [--scored 256] [--kv | --rules RULE ... | --output docs/lab/demo-model.md]
                       [--budgets 0.5 0.2 0.1 0.05] [--picture FILE.svg] [--losses FILE.json] [-- FLAGS OF WEFT ...]

A RULE may end with @ and a --kv-dtype: h2o:0.05:0.05:cold=1.0@int8:3:2. A RULE with factors in braces, such as
h2o:{0.5}:{0.5}, is measured at each of --budgets and compared with the first rule at the same budget. --picture draws
the rules over the budgets, --losses keeps what was measured for later calls.

Every window is so many tokens of prompt and so many that follow; `weft score` prefills the prompt and feeds the rest
token by token through the decode path, so that retention acts as it does in generation. The budget is a share of the
whole window. Differences to the full cache are paired: the same windows, so that most of the noise cancels.
Needs only Python's standard library and build/release/weft.
"""

import argparse
import datetime
import json
import lzma
import math
import pathlib
import subprocess
import sys
import tempfile

import curves

ROOT = pathlib.Path(__file__).resolve().parents[2]
SINKS = 4
SPLITS = [0.25, 0.75, 0.1]  # of 20 %, the heavy hitters' part, in addition to the even split of the rules
BY_HAND = "<!-- From here on written by hand; scripts/evaluate/quality.py keeps it. -->\n"


def rules(budget, length):
    """(name, retention as the policy file has it) at one budget."""
    tokens = math.floor(budget * length)
    return [
        ("h2o", {"rule": "h2o", "heavy": budget / 2, "recent": budget / 2}),
        ("recent + 4 sinks", {"rule": "recent", "recent": tokens - SINKS, "sinks": SINKS}),
        ("heavy", {"rule": "heavy", "heavy": budget}),
        ("random", {"rule": "random", "heavy": budget, "seed": 1}),
    ]


def weft(args, *command):
    subprocess.run([args.weft, *command], check=True)


def make_windows(args, folder):
    path = pathlib.Path(args.text)
    text = lzma.open(path, "rt").read() if path.suffix == ".xz" else path.read_text()
    (folder / "text.jsonl").write_text(json.dumps({"id": 0, "text": text}) + "\n")
    weft(args, "tokenize", "--model", args.model, "--input", str(folder / "text.jsonl"), "--output", str(folder / "ids.jsonl"))
    ids = json.loads((folder / "ids.jsonl").read_text())["ids"]
    first, ids = ids[0], ids[1:]
    length = args.prompt + args.scored
    stride = (len(ids) - length) // args.windows
    if stride < length - 1:
        sys.exit(f"the text has {len(ids)} tokens: too few for {args.windows} windows that do not overlap")
    with open(folder / "windows.jsonl", "w") as out:
        for window in range(args.windows):
            piece = ids[window * stride:]
            out.write(json.dumps({"id": window, "prompt_ids": [first] + piece[:args.prompt - 1],
                                  "continuation_ids": piece[args.prompt - 1:length - 1]}) + "\n")
    return folder / "windows.jsonl"


def score(args, folder, windows, retention, kv=None):
    """Mean negative log-likelihood of each window, in order."""
    policy, output = folder / "policy.json", folder / "scores.jsonl"
    named = curves.flags_of(retention) if isinstance(retention, str) else []
    policy.write_text(json.dumps(({} if named else {"retention": retention}) | ({"kv": kv} if kv else {})))
    output.unlink(missing_ok=True)
    weft(args, "score", "--model", args.model, "--input", str(windows), "--output", str(output), "--policy", str(policy),
         "--quiet", *named, *args.flags)
    lines = {r["id"]: -r["logprob"] / len(r["logprobs"]) for r in map(json.loads, open(output))}
    return [lines[window] for window in range(args.windows)]


FORMATS = [(dtype, group, arithmetic) for dtype in ("int8", "int4") for group in (64, 32, 128)
           for arithmetic in ("exact", "int8") if group == 64 or (dtype, arithmetic) == ("int4", "exact")]


def print_formats(args):
    """What quantised weights cost, with the full cache: a table for docs/lab/quantised-weights.md."""
    given = list(args.flags)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        windows = make_windows(args, folder)
        full = score(args, folder, windows, {"rule": "full"})
        print(f"| weights | arithmetic | perplexity | change | standard error |\n|---|---|---|---|---|\n"
              f"| as stored | | {math.exp(mean_and_error(full)[0]):.2f} | | |", flush=True)
        for dtype, group, arithmetic in FORMATS:
            if args.only not in f"{dtype}/{group}/{arithmetic}":
                continue
            args.flags = [*given, "--weight-dtype", dtype, "--weight-group", str(group), "--weight-arithmetic", arithmetic]
            losses = score(args, folder, windows, {"rule": "full"})
            change, error = mean_and_error([a - b for a, b in zip(losses, full)])
            print(f"| {dtype}, groups of {group} | {arithmetic} | {math.exp(mean_and_error(losses)[0]):.2f} "
                  f"| {math.expm1(change):+.2%} | {error:.2%} |", flush=True)


def mean_and_error(values):
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def print_kv(args, folder, windows):
    print("| retention | keys and values | perplexity | change | standard error |\n|---|---|---|---|---|", flush=True)
    for name, retention in (("full", {"rule": "full"}), ("h2o at 20 %", {"rule": "h2o", "heavy": 0.1, "recent": 0.1})):
        plain = score(args, folder, windows, retention)
        print(f"| {name} | as the model | {math.exp(mean_and_error(plain)[0]):.2f} | | |", flush=True)
        for words, kv in (("int8", {"dtype": "int8"}), ("int4", {"dtype": "int4", "keys": "int8"}),
                          ("int4, keys int4", {"dtype": "int4", "keys": "int4"})):
            for rotate in (False, True):
                losses = score(args, folder, windows, retention, {**kv, "rotate": rotate})
                change, error = mean_and_error([a - b for a, b in zip(losses, plain)])
                print(f"| {name} | {words}{', rotated' if rotate else ''} | {math.exp(mean_and_error(losses)[0]):.2f} "
                      f"| {math.expm1(change):+.2%} | {math.exp(change) * error:.2%} |", flush=True)


def print_rules(args, folder):
    runs = curves.runs(args)
    settings = {"model": str(pathlib.Path(args.model).resolve()), "text": str(pathlib.Path(args.text).resolve()),
                "prompt": args.prompt, "scored": args.scored, "windows": args.windows, "flags": args.flags}
    kept = curves.Kept(args.losses, settings, args.windows)

    def measure(rule):
        windows = folder / "windows.jsonl"
        return score(args, folder, windows if windows.exists() else make_windows(args, folder), rule)
    full = kept.of("full", measure)
    print(f"| retention | perplexity | change | standard error |\n|---|---|---|---|\n"
          f"| full | {math.exp(mean_and_error(full)[0]):.2f} | | |", flush=True)
    measured = []
    for run in runs:
        losses = kept.of(run.text, measure)
        change, error = relative_change(losses, full)
        measured.append((run, 100 * change, 100 * error))
        print(f"| {run.text} | {math.exp(mean_and_error(losses)[0]):.2f} | {change:+.2%} | {error:.2%} |", flush=True)
    for run in runs:
        if run.first and run.rule != args.rules[0]:
            change, error = relative_change(kept.of(run.text, measure), kept.of(run.first, measure))
            print(f"{run.text} against {run.first}: {change:+.2%} (standard error {error:.2%}, paired)")
    if args.picture:
        curves.draw(args.picture, f"{pathlib.Path(args.model).resolve().name}, {args.prompt}+{args.scored} tokens, "
                    f"{args.windows} windows", "Bars: standard error of the paired differences.",
                    "change of perplexity against the full cache, %", measured)


def relative_change(losses, of):
    """Of the perplexity, and its standard error."""
    change, error = mean_and_error([a - b for a, b in zip(losses, of)])
    return math.expm1(change), math.exp(change) * error


def write_page(args, mean, error, rows, against, splits):
    """All of the page but what is written by hand below BY_HAND. `mean` and `error` are the full cache's, in nats a token."""
    output, name = pathlib.Path(args.output), pathlib.Path(args.model).resolve().name
    by_hand = output.read_text().partition(BY_HAND)[2] if output.exists() else ""
    lines = [f"""# What does each rule cost the model {name}, by budget?

Measured on {datetime.date.today()} on the CPU backend.

```
scripts/evaluate/quality.py --windows {args.windows}
```

{args.windows} windows of the validation books (`tests/data/text`) that do not overlap, each {args.prompt} tokens of prompt and
{args.scored} scored. The budget is a share of the window's {args.prompt + args.scored} tokens, kept per layer and head. "Change" is that of
perplexity against the full cache; the last column is the standard error of the paired differences (per window).

Full cache: perplexity {math.exp(mean):.2f} ({mean:.4f} +- {error:.4f} nats per token).

| budget | rule | perplexity | change | standard error |
|---|---|---|---|---|"""]
    lines += [f"| {budget:.0%} | {rule} | {perplexity:.2f} | {math.expm1(change):+.2%} | {math.exp(change) * change_error:.2%} |"
              for budget, rule, perplexity, change, change_error in rows]
    h2o = next(row for row in rows if row[:2] == (0.2, "h2o"))
    lines += ["", f"At 20 % h2o is {math.expm1(h2o[3]):+.2%} against the full cache."]
    lines += [f"Against {other} at the same budget it is {'better' if change < 0 else 'worse'}: {math.expm1(change):+.2%} in "
              f"perplexity (standard error {math.exp(change) * change_error:.2%}, paired)."
              for other, (change, change_error) in against.items()]
    lines += ["", "| h2o at 20 %, heavy hitters' part | change | standard error |", "|---|---|---|"]
    lines += [f"| {part:.0%} | {math.expm1(change):+.2%} | {math.exp(change) * change_error:.2%} |"
              for part, change, change_error in splits]
    output.write_text("\n".join(lines) + """

`heavy` keeps what was attended to most and no window of recent tokens, `recent + 4 sinks` the first four tokens and the
newest, `random` a random set that changes only as tokens arrive. `h2o` splits its budget evenly between heavy hitters
and recent tokens.

""" + BY_HAND + by_hand)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models/demo"))
    parser.add_argument("--text", default=str(ROOT / "tests/data/text/books-valid.txt.xz"))
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--scored", type=int, default=256)
    parser.add_argument("--weft", default=str(ROOT / "build/release/weft"))
    parser.add_argument("--output", default=str(ROOT / "docs/lab/demo-model.md"))
    parser.add_argument("--formats", action="store_true", help="only what quantised weights cost, printed")
    parser.add_argument("--only", default="", help="of --formats those whose DTYPE/GROUP/ARITHMETIC contains this")
    parser.add_argument("--kv", action="store_true", help="formats of keys and values in place of retention rules")
    parser.add_argument("--rules", nargs="+", metavar="RULE", help="only these, as --retention of weft takes them")
    curves.add_options(parser, "--losses", "the losses")
    parser.add_argument("flags", nargs="*", help="of weft score, after --")
    args = parser.parse_args()
    if (args.budgets or args.picture or args.losses) and not args.rules:
        parser.error("--budgets, --picture and --losses go with --rules")
    if args.formats:
        print_formats(args)
        return

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if args.rules:
            return print_rules(args, folder)
        windows = make_windows(args, folder)
        if args.kv:
            return print_kv(args, folder, windows)
        full = score(args, folder, windows, {"rule": "full"})
        mean, error = mean_and_error(full)
        rows, scores = [], {}
        print(f"full: perplexity {math.exp(mean):.2f}", flush=True)
        for budget in curves.BUDGETS:
            for rule, retention in rules(budget, args.prompt + args.scored):
                losses = score(args, folder, windows, retention)
                scores[rule, budget] = losses
                change, change_error = mean_and_error([a - b for a, b in zip(losses, full)])
                rows.append((budget, rule, math.exp(mean_and_error(losses)[0]), change, change_error))
                print(f"{budget:.0%} {rule}: {math.exp(mean_and_error(losses)[0]):.2f} ({math.expm1(change):+.2%})", flush=True)

        splits = [(0.5, *[row[3:] for row in rows if row[:2] == (0.2, "h2o")][0])]
        for part in SPLITS:
            losses = score(args, folder, windows, {"rule": "h2o", "heavy": 0.2 * part, "recent": 0.2 * (1 - part)})
            splits.append((part, *mean_and_error([a - b for a, b in zip(losses, full)])))
            print(f"20% h2o, {part:.0%} of it heavy: {math.expm1(splits[-1][1]):+.2%}", flush=True)

    against = {}
    for other in ("recent + 4 sinks", "random"):
        against[other] = mean_and_error([a - b for a, b in zip(scores["h2o", 0.2], scores[other, 0.2])])
    write_page(args, mean, error, rows, against, sorted(splits))
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
