#!/usr/bin/env python3
"""Measures what texts cost far past a model's context, by retentions whose positions are rolled: nats per token, by how
far into the text they are. Flat columns mean that a sequence can go on without end. Prints a table.

    scripts/evaluate/streaming.py --model models/smollm2 [--context 1024] [--text tests/data/text/books-valid.txt.xz] [--parts 8]
                         [--tokens 6000] [--prompt 512] [--stretch 1000] [--retention RULE ...] [--fresh TOKENS]
                         [-- FLAGS OF WEFT ...]

The text is cut into parts that do not overlap, which `weft score` takes at once, token by token through the decode path.
With --context the model's config says that number in place of its own max_position_embeddings, in a copy of the folder,
so that less text goes past more contexts. A RULE whose positions are not rolled is scored with the model's own context.
Texts are harder in one place than in another: --fresh adds a column of what the same places cost after so many tokens
that are all kept, and nothing before them, in some windows of each stretch.
Needs only Python's standard library and build/release/weft.
"""

import argparse
import json
import lzma
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINDOWS, SCORED = 4, 256  # of --fresh, in each stretch and part


def weft(args, *command):
    subprocess.run([args.weft, *map(str, command)], check=True)


def make_parts(args, folder):
    path = pathlib.Path(args.text)
    text = lzma.open(path, "rt").read() if path.suffix == ".xz" else path.read_text()
    (folder / "text.jsonl").write_text(json.dumps({"id": 0, "text": text}) + "\n")
    weft(args, "tokenize", "--model", args.model, "--input", folder / "text.jsonl", "--output", folder / "ids.jsonl")
    ids = json.loads((folder / "ids.jsonl").read_text())["ids"]
    if len(ids) < args.parts * args.tokens:
        sys.exit(f"streaming: the text has {len(ids)} tokens, wanted {args.parts} parts of {args.tokens}; ask for less")
    stride = len(ids) // args.parts
    pieces = [ids[part * stride:part * stride + args.tokens] for part in range(args.parts)]
    with open(folder / "parts.jsonl", "w") as out:
        for part, piece in enumerate(pieces):
            out.write(json.dumps({"id": part, "prompt_ids": piece[:args.prompt],
                                  "continuation_ids": piece[args.prompt:]}) + "\n")
    return folder / "parts.jsonl", pieces


def with_context(model, context, folder):
    """A folder with the model's files, in which the context is another."""
    for file in pathlib.Path(model).resolve().iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = context
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def score(args, folder, model, parts, retention):
    """Nats of each token of each part."""
    output = folder / "scores.jsonl"
    output.unlink(missing_ok=True)
    weft(args, "score", "--model", model, "--input", parts, "--output", output, "--retention", retention, "--quiet",
         "--gpu-batch-size", args.parts, "--num-gpu-batches", 1, *args.flags)
    return [[-logprob for logprob in json.loads(line)["logprobs"]] for line in open(output)]


def stretches(args):
    return [(first, min(first + args.stretch, args.tokens)) for first in range(args.prompt, args.tokens, args.stretch)]


def score_afresh(args, folder, pieces):
    """[stretches][parts] Nats per token of some windows that begin anew."""
    lines, places = [], []
    for s, (first, last) in enumerate(stretches(args)):
        for part, piece in enumerate(pieces):
            for w in range(WINDOWS):
                at = max(first + w * (last - first) // WINDOWS, args.fresh)
                if at + SCORED <= last:
                    places.append((s, part))
                    lines.append({"id": len(lines), "prompt_ids": piece[at - args.fresh:at],
                                  "continuation_ids": piece[at:at + SCORED]})
    (folder / "fresh.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    weft(args, "score", "--model", args.model, "--input", folder / "fresh.jsonl", "--output", folder / "afresh.jsonl",
         "--quiet", *args.flags)
    nats = [[[] for _ in pieces] for _ in stretches(args)]
    for line in map(json.loads, open(folder / "afresh.jsonl")):
        s, part = places[line["id"]]
        nats[s][part].append(-line["logprob"] / len(line["logprobs"]))
    return [[sum(of_part) / len(of_part) for of_part in of_stretch if of_part] for of_stretch in nats]


def mean_and_error(values):
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1) / len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", type=int)
    parser.add_argument("--text", default=str(ROOT / "tests/data/text/books-valid.txt.xz"))
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--stretch", type=int, default=1000)
    parser.add_argument("--retention", nargs="+", default=["recent:508:sinks=4:positions=rolled",
                                                           "h2o:256:256:sinks=4:positions=rolled"])
    parser.add_argument("--fresh", type=int, metavar="TOKENS")
    parser.add_argument("--weft", default=str(ROOT / "build/release/weft"))
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        parts, pieces = make_parts(args, folder)
        model = args.model
        if args.context:
            (folder / "model").mkdir()
            model = with_context(args.model, args.context, folder / "model")
        columns = []
        for retention in args.retention:
            rolled = "positions=rolled" in retention
            columns.append(score(args, folder, model if rolled else args.model, parts, retention))
            print(f"{retention}: {mean_and_error([sum(n) / len(n) for n in columns[-1]])[0]:.3f} nats per token",
                  file=sys.stderr, flush=True)
        afresh = score_afresh(args, folder, pieces) if args.fresh else []
    titles = args.retention + ([f"after {args.fresh} tokens alone"] if args.fresh else [])
    print("| tokens | " + " | ".join(titles) + " |\n" + "|---" * (1 + len(titles)) + "|")
    for s, (first, last) in enumerate(stretches(args)):
        cells = []
        for nats in columns:
            each = [sum(n[first - args.prompt:last - args.prompt]) / (last - first) for n in nats]
            cells.append("{:.3f} ({:.3f})".format(*mean_and_error(each)))
        if args.fresh:
            cells.append("{:.3f} ({:.3f})".format(*mean_and_error(afresh[s])) if afresh[s] else "")
        print(f"| {first} to {last} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
