#!/usr/bin/env python3
"""What H2O's budget could reach if the choice knew the future: perplexity with attention restricted to chosen tokens, through
transformers, on the windows of quality.py.

    build/venv-kvpress/bin/python scripts/compare/oracle.py --model models/smollm2 [--windows 4] [--prompt 2048] [--scored 256]
        [--budgets 0.2 0.1]

Needs torch and transformers from PyPI. The prompt is computed with all its attention. Of the rows that follow, each KV head
of each layer sees

  h2o      what H2O keeps, half of it recent, half by the sums so far: what Weft does, for comparison
  future   the same slots, and whoever gives up its place is the one that the rows still to come attend to least; they do so
           here with the full cache's attention. Nothing that evicts can know this
  row      of all tokens as many, those that this row attends to most, chosen anew: nothing is evicted

`future` and `row` are no strict bounds: they choose by the full cache's attention, and one token at a time.
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


class Choice:
    """Attention of rows from `prompt` on to a share of the tokens."""

    def __init__(self, prompt):
        self.prompt, self.mode, self.kept = prompt, "full", 0

    def __call__(self, module, query, key, value, mask, scaling, **_):
        heads, groups = query.shape[1], query.shape[1] // key.shape[1]
        query, key, value = query[0].float(), key[0].float(), value[0].float()
        kv, rows = key.shape[0], key.shape[1]
        logits = (query.view(kv, groups, rows, -1) @ key[:, None].transpose(-1, -2)).mul_(scaling)
        logits.masked_fill_(torch.ones(rows, rows, dtype=torch.bool).triu(1), -math.inf)
        weights = logits.softmax(-1)  # [kv, groups, rows, rows]
        out = weights @ value[:, None]
        if self.mode != "full":
            self.restrict(out, logits, weights, value)
        return out.view(heads, rows, -1).transpose(0, 1)[None], None

    def restrict(self, out, logits, weights, value):
        chosen = self.rows_best if self.mode == "row" else self.slots
        chosen(out, logits[:, :, self.prompt:], weights, value)

    def rows_best(self, out, logits, weights, value):
        of_head = weights[:, :, self.prompt:].sum(1)  # [kv, scored, rows]
        allowed = torch.zeros_like(of_head, dtype=torch.bool).scatter_(-1, of_head.topk(self.kept, -1).indices, True)
        out[:, :, self.prompt:] = logits.masked_fill(~allowed[:, None], -math.inf).softmax(-1) @ value[:, None]

    def slots(self, out, logits, weights, value):
        kv, rows = value.shape[0], value.shape[1]
        recent = self.kept // 2
        to_come = weights[:, :, self.prompt:].sum(1).flip(1).cumsum(1).flip(1)  # of row i: what rows i.. give
        sums = weights[:, :, :self.prompt].sum((1, 2))  # [kv, rows]
        best = lambda i: to_come[:, i] if self.mode == "future" else sums  # noqa: E731
        kept = torch.zeros(kv, rows, dtype=torch.bool)
        older = self.prompt - recent
        kept[:, older:self.prompt] = True
        kept.scatter_(1, best(0)[:, :older].topk(self.kept - recent, -1).indices, True)
        for i in range(rows - self.prompt):
            row = self.prompt + i
            kept[:, row] = True
            given = logits[:, :, i].masked_fill(~kept[:, None], -math.inf).softmax(-1)  # [kv, groups, rows]
            out[:, :, row] = (given[:, :, None] @ value[:, None])[:, :, 0]
            sums += given.sum(1)
            if i + 1 == rows - self.prompt:
                break
            old = best(i + 1).masked_fill(~kept, math.inf)
            old[:, row + 1 - recent:] = math.inf
            kept.scatter_(1, old.argmin(-1, keepdim=True), False)


@torch.no_grad()
def loss(model, prompt, following):
    ids = torch.tensor([prompt + following])
    logits = model(ids, use_cache=False, logits_to_keep=len(following) + 1).logits[0, :-1].float()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(following)).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", default=str(ROOT / "tests/data/text/books-valid.txt.xz"))
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--scored", type=int, default=256)
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.2, 0.1])
    parser.add_argument("--weft", default=str(ROOT / "build/release/weft"))
    args = parser.parse_args()
    choice = Choice(args.prompt)
    transformers.AttentionInterface.register("choice", choice)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="choice")
    with tempfile.TemporaryDirectory() as name:
        windows = [json.loads(line) for line in open(quality.make_windows(args, pathlib.Path(name)))]
    nats = {}
    for i, window in enumerate(windows):
        for budget in [1, *args.budgets]:
            choice.kept = math.floor(budget * (args.prompt + args.scored))
            for choice.mode in ["full"] if budget == 1 else ["h2o", "future", "row"]:
                nats.setdefault((choice.mode, budget), []).append(loss(model, window["prompt_ids"], window["continuation_ids"]))
        print(i, {f"{mode} {budget}": round(each[-1], 4) for (mode, budget), each in nats.items()}, file=sys.stderr, flush=True)
    full = nats.pop(("full", 1))
    print(f"full cache: perplexity {math.exp(quality.mean_and_error(full)[0]):.2f}\n\n"
          "| budget | choice | change | standard error |\n|---|---|---|---|")
    for (mode, budget), each in nats.items():
        change, error = quality.mean_and_error([a - b for a, b in zip(each, full)])
        print(f"| {budget:.0%} | {mode} | {math.expm1(change):+.2%} | {math.exp(change) * error:.2%} |")


if __name__ == "__main__":
    main()
