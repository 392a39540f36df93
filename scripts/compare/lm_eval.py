#!/usr/bin/env python3
"""The same lm-evaluation-harness task by Hugging Face transformers and by weft, full and with H2O at 20 %.

    python3 scripts/compare/lm_eval.py [--model models/demo] [--items 200] [--weft build/release/weft]

Needs lm-eval, torch and transformers from PyPI. The task is made here: of four continuations of a passage of
tests/data/text one is the true one, the others are from elsewhere. Both compute in float32. Prints each one's accuracy and
the largest difference of a log-likelihood; ends with 1 if one of full attention differs by more than 1e-3 or the scores do.
"""

import argparse
import json
import lzma
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WEFT = ROOT / "bin" / "weft"  # of a package
if not WEFT.exists():
    WEFT = ROOT / "build" / "release" / "weft"
TASK = """task: true_continuation
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{passage}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: " "
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def make_task(folder, items, seed):
    words = lzma.open(ROOT / "tests" / "data" / "text" / "books-valid.txt.xz", "rt").read().split()
    pick = random.Random(seed)

    def some(count):
        first = pick.randrange(len(words) - count)
        return words[first:first + count]

    docs = []
    for _ in range(items):
        length, passage = pick.randint(3, 8), some(pick.randint(30, 200))
        passage, true = passage[:-length], passage[-length:]
        choices = [" ".join(some(length)) for _ in range(3)]
        label = pick.randrange(4)
        choices.insert(label, " ".join(true))
        docs.append({"passage": " ".join(passage), "choices": choices, "label": label})
    data = folder / "true_continuation.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    (folder / "true_continuation.yaml").write_text(TASK.format(data=data))


def evaluate(folder, name, model, model_args):
    """Accuracy, and the log-likelihood of every choice of every item."""
    out = folder / name
    harness = [ROOT / "scripts" / "evaluate" / "lm_eval_weft.py"] if model == "weft" else ["-m", "lm_eval"]
    subprocess.run([sys.executable, *harness, "run", "--model", model, "--model_args", model_args, "--device", "cpu",
                    "--batch_size", "8", "--tasks", "true_continuation", "--include_path", folder, "--log_samples",
                    "--output_path", out], check=True, stdout=subprocess.DEVNULL)
    newest = max(out.rglob("samples_true_continuation_*.jsonl"), key=lambda path: path.stat().st_mtime)
    samples = sorted(map(json.loads, newest.open()), key=lambda sample: sample["doc_id"])
    accuracy = sum(sample["acc"] for sample in samples) / len(samples)
    return accuracy, [[float(choice[0][0]) for choice in sample["resps"]] for sample in samples]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "demo")
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--weft", type=Path, default=WEFT)
    arguments = parser.parse_args()
    folder = ROOT / "build" / "lm_eval"
    folder.mkdir(parents=True, exist_ok=True)
    make_task(folder, arguments.items, arguments.seed)

    weft = f"model={arguments.model},weft={arguments.weft},dtype=float32"
    reference, expected = evaluate(folder, "hf", "hf", f"pretrained={arguments.model},dtype=float32")
    print(f"{arguments.items} items, {sum(map(len, expected))} log-likelihoods\n"
          f"{'':22}accuracy  largest difference of a log-likelihood\n{'transformers':22}{reference:8.3f}")
    full = None
    for name, flags in (("weft", ""), ("weft, h2o at 20 %", ",retention=h2o:0.1:0.1")):
        accuracy, got = evaluate(folder, name.split(",")[-1].strip().split()[0], "weft", weft + flags)
        largest = max(abs(a - b) for ours, theirs in zip(got, expected) for a, b in zip(ours, theirs))
        print(f"{name:22}{accuracy:8.3f}  {largest:.2e}", flush=True)
        full = full or (accuracy, largest)
    return 0 if full[0] == reference and full[1] < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
