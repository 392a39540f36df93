#!/usr/bin/env python3
"""How much of a model's attention the best tokens take: the upper bound of what any choice of tokens could keep.

    scripts/attention_mass.py [--model models/demo] [--text tests/data/text/books-valid.txt.xz] [--windows 16]

For every query of the last 256 positions of windows of 768 tokens: the share of its attention that goes to the best
50, 20, 10 and 5 % of the tokens it sees (chosen anew for each query), averaged over heads and layers; and the share of
weights below 1 % of the row's largest, which is how H2O (arXiv 2306.14048) measures sparsity. Needs torch and
transformers.
"""

import argparse
import lzma
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTH, QUERIES = 768, 256
SHARES = [0.5, 0.2, 0.1, 0.05]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models/demo"))
    parser.add_argument("--text", default=str(ROOT / "tests/data/text/books-valid.txt.xz"))
    parser.add_argument("--windows", type=int, default=16)
    args = parser.parse_args()
    path = pathlib.Path(args.text)
    text = lzma.open(path, "rt").read() if path.suffix == ".xz" else path.read_text()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    stride = (len(ids) - LENGTH) // args.windows
    mass = torch.zeros(model.config.num_hidden_layers, len(SHARES))
    small = torch.zeros(model.config.num_hidden_layers)
    for window in range(args.windows):
        piece = torch.cat([ids[:1], ids[1 + window * stride:window * stride + LENGTH]])[None]
        with torch.inference_mode():
            attentions = model(piece, output_attentions=True).attentions
        for layer, weights in enumerate(attentions):
            rows = weights[0, :, -QUERIES:]  # [heads, queries, keys]
            best = rows.sort(dim=-1, descending=True).values.cumsum(-1)
            for i, share in enumerate(SHARES):
                mass[layer, i] += best[..., int(share * LENGTH) - 1].mean() / args.windows
            seen = torch.arange(LENGTH) <= torch.arange(LENGTH - QUERIES, LENGTH)[:, None]
            below = (rows < 0.01 * rows.amax(-1, keepdim=True)) & seen
            small[layer] += (below.sum(-1) / seen.sum(-1)).mean() / args.windows
    print("layer  " + "  ".join(f"best {share:>4.0%}" for share in SHARES) + "   weights below 1 % of the largest")
    for layer in range(len(mass)):
        print(f"{layer:5d}  " + "  ".join(f"{value:9.1%}" for value in mass[layer]) + f"   {small[layer]:.1%}")
    print("  all  " + "  ".join(f"{value:9.1%}" for value in mass.mean(0)) + f"   {small.mean():.1%}")


if __name__ == "__main__":
    main()
