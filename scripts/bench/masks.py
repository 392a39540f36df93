#!/usr/bin/env python3
"""What answers of a given form cost: decoded tokens/s of a batch with and without forms, in turns, everything in memory.

    scripts/bench/masks.py [--weft build/release/weft] [--model models/smollm2] [--batch 32] [--tokens 96] [--rounds 5]

The forms keep an answer open for all of its tokens, so that every step has as many rows.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = {"type": "object", "required": ["name", "tags"],
          "properties": {"name": {"type": "string", "minLength": 600, "maxLength": 900},
                         "tags": {"type": "array", "items": {"enum": ["alpha", "beta", "gamma"]}, "minItems": 20, "maxItems": 30}}}
FORMS = {
    "none": {},
    "JSON schema": {"guided_json": RECORD},
    "regex of words": {"guided_regex": "([a-z]{2,8} )+!"},
    "regex of names": {"guided_regex": "[A-Z][a-z]+( [A-Z][a-z]+)*"},
    "regex with spaces": {"guided_regex": r"(\w{2,8}\s)+!"},
    "arithmetic": {"guided_grammar": 'root ::= term (("+" | "-") term)*\nterm ::= factor (("*" | "/") factor)*\n'
                                     'factor ::= [0-9]+ ("." [0-9]+)? | "(" root ")"'},
    "grammar": {"guided_grammar": 'root ::= item (" " root)?\nitem ::= [a-z]{1,9} | "(" root ")"'},
}


def tokens_per_second(options, folder, form):
    requests, report = folder / "in.jsonl", folder / "report.json"
    request = {"prompt": "It was a dark", "max_tokens": options.tokens, "temperature": 1, "ignore_eos": True, **form}
    requests.write_text("".join(json.dumps({"id": i, "seed": i, **request}) + "\n" for i in range(options.batch)))
    subprocess.run([options.weft, "generate", "--model", options.model, "--input", requests, "--output", folder / "out.jsonl",
                    "--report", report, "--backend", "cpu", "--quiet", "--gpu-batch-size", str(options.batch),
                    "--num-gpu-batches", "1", "--percent", "100", "0", "100", "0", "100", "0", "--checkpoint-every", "off"],
                   check=True)
    (folder / "out.jsonl").unlink()
    measured = json.loads(report.read_text())
    assert measured["tokens"]["generated"] == options.batch * options.tokens, "an answer ended early"
    return measured["tokens_per_second"]["decode"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build" / "release" / "weft")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "smollm2")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    speeds = {name: [] for name in FORMS}
    with tempfile.TemporaryDirectory(prefix="weft-masks-") as folder:
        for _ in range(options.rounds):
            for name, form in FORMS.items():
                speeds[name].append(tokens_per_second(options, pathlib.Path(folder), form))
    plain = statistics.median(speeds["none"])
    print("| form | tokens/s | slower by |\n|---|---|---|")
    for name, all_of in speeds.items():
        median = statistics.median(all_of)
        print(f"| {name} | {median:.0f} ({min(all_of):.0f} to {max(all_of):.0f}) | {100 * (1 - median / plain):.1f} % |")


if __name__ == "__main__":
    main()
