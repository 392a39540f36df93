#!/usr/bin/env python3
"""Compares what `weft analyze` reports with a direct computation from the attention matrices of Hugging Face transformers.

    scripts/evaluate/verify_analysis.py MODEL [--text FILE] [--window 256] [--windows 3] [--queries 32] [--weft build/release/weft]
                               [--write FILE]

Prints the largest difference of each figure over all layers and heads; exit code 1 if one exceeds 1e-3. --write keeps the
tokens and the direct computation's figures, for tests/runtime/analyze/analyze_test.py. Computes in fp32; needs torch and
transformers.
"""

import argparse
import json
import lzma
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = ROOT / "bin" / "weft"  # of a package
if not WEFT.exists():
    WEFT = ROOT / "build" / "release" / "weft"
SHARES = [0.5, 0.2, 0.1, 0.05]
MOST = 1e-3


def count(share, tokens):
    return max(1, int(share * tokens))


def exponent(scores):
    top = [(math.log(i + 1), math.log(s)) for i, s in enumerate(scores[:(len(scores) + 1) // 2]) if s > 0]
    n, x, y = len(top), sum(a for a, _ in top), sum(b for _, b in top)
    return -(n * sum(a * b for a, b in top) - x * y) / (n * sum(a * a for a, _ in top) - x * x)


def of_window(weights, kv_heads, queries, slides):
    """weights [heads, window, window] of one layer, whose tokens see so many, if it slides. Figures of each head and KV
    head."""
    heads, window, _ = weights.shape
    half = window // 2
    rows = [half + i * (window - half) // queries for i in range(queries)]
    result = {"heads": [], "kv_heads": []}
    for head in weights:
        sparsity, best = 0, [0] * len(SHARES)
        for row in rows:
            seen = head[row, max(0, row + 1 - slides) if slides else 0:row + 1].double()
            sparsity += (seen < 0.01 * seen.max()).double().mean().item() / queries
            ordered = seen.sort(descending=True).values
            best = [b + (ordered[:count(s, window)].sum() / seen.sum()).item() / queries for b, s in zip(best, SHARES)]
        result["heads"].append({"sparsity": sparsity, "best": best})
    group = heads // kv_heads
    for kv in range(kv_heads):
        part = weights[kv * group:(kv + 1) * group].double()
        end, middle = part.sum((0, 1)), part[:, :half, :half].sum((0, 1))
        ordered = end.sort(descending=True).values
        fifth = count(0.2, half)
        then = set(middle.argsort(descending=True)[:fifth].tolist())
        later = set(end[:half].argsort(descending=True)[:fifth].tolist())
        order = middle.argsort(descending=True)
        first = part[:, [row for row in rows if not slides or row + 1 - slides < half], :half]
        held = [(first[:, :, order[:count(s, half)]].sum(-1) / first.sum(-1)).mean().item() for s in SHARES]
        result["kv_heads"].append({
            "exponent": exponent(ordered.tolist()), "top_fifth": (ordered[:count(0.2, window)].sum() / end.sum()).item(),
            "overlap": len(then & later) / fifth, "held": held})
    return result


def average(results):
    """The mean of equal nests of lists, dictionaries and numbers."""
    first = results[0]
    if isinstance(first, dict):
        return {key: average([each[key] for each in results]) for key in first}
    if isinstance(first, list):
        return [average(list(each)) for each in zip(*results)]
    return sum(results) / len(results)


def direct(model_folder, windows, queries):
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="eager").eval()
    kv_heads = getattr(model.config, "num_key_value_heads", None) or model.config.num_attention_heads
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    slides = [kind == "sliding_attention" and getattr(config, "sliding_window", None) or 0 for kind in kinds]
    results = []
    for window in windows:
        with torch.inference_mode():
            attentions = model(torch.tensor([window]), output_attentions=True).attentions
        results.append([of_window(layer[0], kv_heads, queries, each) for layer, each in zip(attentions, slides)])
    return average(results)


def difference(weft, wanted, worst, name=""):
    if isinstance(wanted, dict):
        for key in wanted:
            difference(weft[key], wanted[key], worst, name if key in ("heads", "kv_heads") else key)
    elif isinstance(wanted, list):
        assert len(weft) == len(wanted), (name, len(weft), len(wanted))
        for one, other in zip(weft, wanted):
            difference(one, other, worst, name)
    else:
        worst[name] = max(worst.get(name, 0), abs(weft - wanted))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", default=str(ROOT / "tests/data/text/books-valid.txt.xz"))
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--weft", default=str(WEFT))
    parser.add_argument("--write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = pathlib.Path(args.text)
    text = lzma.open(path, "rt").read() if path.suffix == ".xz" else path.read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.jsonl").write_text(json.dumps({"text": text[:args.window * args.windows * 12]}) + "\n")
        has_tokenizer = any(pathlib.Path(args.model, file).exists() for file in ("tokenizer.json", "vocab.json"))
        if has_tokenizer:
            subprocess.run([args.weft, "tokenize", "--model", args.model, "--input", folder / "text.jsonl", "--output",
                            folder / "ids.jsonl", "--no-bos"], check=True)
            ids = json.loads((folder / "ids.jsonl").read_text())["ids"]
        else:  # any tokens will do
            vocab = json.loads(pathlib.Path(args.model, "config.json").read_text())["vocab_size"]
            ids = [(7 * i * i + 3 * i) % vocab for i in range(args.window * args.windows)]
        (folder / "input.jsonl").write_text(json.dumps({"ids": ids}) + "\n")
        subprocess.run([args.weft, "analyze", "--model", args.model, "--input", folder / "input.jsonl", "--dtype", "float32",
                        "--window", str(args.window), "--queries", str(args.queries), "--output", folder / "out.json",
                        "--max-tokens", str(args.window * args.windows)], check=True, stdout=subprocess.DEVNULL)
        report = json.loads((folder / "out.json").read_text())
        begin = []
        if has_tokenizer:
            (folder / "empty.jsonl").write_text('{"text": ""}\n')
            subprocess.run([args.weft, "tokenize", "--model", args.model, "--input", folder / "empty.jsonl", "--output",
                            folder / "begin.jsonl"], check=True)
            begin = json.loads((folder / "begin.jsonl").read_text())["ids"]
    step = args.window - len(begin)
    windows = [begin + ids[i * step:(i + 1) * step] for i in range(report["windows"])]
    wanted, worst = direct(args.model, windows, args.queries), {}
    difference(report["layers"], wanted, worst)
    for figure, most in worst.items():
        print(f"{figure}: largest difference {most:.2e}")
    if args.write:
        rounded = json.loads(json.dumps(wanted), parse_float=lambda number: round(float(number), 6))
        pathlib.Path(args.write).write_text(json.dumps(
            {"model": pathlib.Path(args.model).name, "window": args.window, "queries": args.queries,
             "ids": ids[:step * report["windows"]], "layers": rounded}, separators=(",", ":")) + "\n")
    sys.exit(0 if max(worst.values()) <= MOST else 1)


if __name__ == "__main__":
    main()
