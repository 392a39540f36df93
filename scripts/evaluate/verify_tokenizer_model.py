#!/usr/bin/env python3
"""Compares weft's ids with those of transformers and sentencepiece for tokenizer.model files that are trained on the spot.

    python3 -m venv build/venv-pieces && build/venv-pieces/bin/pip install sentencepiece protobuf transformers tokenizers
    build/venv-pieces/bin/python scripts/evaluate/verify_tokenizer_model.py [--texts 10000] [--size 2000] [--seed 1]
        [--weft build/release/weft]

Trains a model for each setting of scripts/fixtures/make_sentencepiece_fixtures.py, and for nmt_nfkc and nfkc too, whose
rules are too large for fixtures. Random texts of words, code, emoji, spaces and tokens go through `weft tokenize` and
AutoTokenizer. Prints the counts; the exit code is 1 if weft differs from transformers. How many texts sentencepiece itself
cuts in another way is only a hint: transformers' classes do not follow it everywhere.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/fixtures"))
from make_sentencepiece_fixtures import LLAMA, SETTINGS, USER, make_folder, text_of  # noqa: E402

LARGE = {
    "nmt-nfkc": (dict(model_type="unigram", normalization_rule_name="nmt_nfkc"), {"model_type": "llama"}, None, {}),
    "nmt-nfkc-cf-bytes": (dict(model_type="unigram", normalization_rule_name="nmt_nfkc_cf", byte_fallback=True), {"model_type": "mistral"}, LLAMA, {}),
    "nfkc": (dict(model_type="bpe", normalization_rule_name="nfkc", byte_fallback=True, user_defined_symbols=USER), {"model_type": "mistral"}, LLAMA, {}),
}


def weft_ids(options, folder, texts):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    out = subprocess.run([options.weft, "tokenize", "--model", folder, "--input", "-", "--output", "-"], input=lines, stdout=subprocess.PIPE, text=True,
                         check=True).stdout
    return [json.loads(line)["ids"] for line in out.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=10000)
    parser.add_argument("--size", type=int, default=2000, help="pieces of a model, or as many as the texts give")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--weft", default=str(ROOT / "build/release/weft"))
    options = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import sentencepiece

    settings = {**SETTINGS, **LARGE}
    differ = count = 0
    for name in options.only or settings:
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place) / name
            tokenizer = make_folder(folder, options.seed, options.size, settings[name])
            rng = random.Random(f"{options.seed}/{name}/texts")
            texts = [text_of(rng) for _ in range(options.texts)]
            found = weft_ids(options, folder, texts)
            own = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
            wrong = others = 0
            for text, ids in zip(texts, found, strict=True):
                wanted = tokenizer(text).input_ids
                if ids != wanted:
                    wrong += 1
                    if wrong <= 3:
                        print(json.dumps({"setting": name, "text": text, "found": ids, "wanted": wanted}))
                others += own.encode(text) != ids[len(ids) - len(tokenizer(text, add_special_tokens=False).input_ids):]
            print(f"{name}: {own.get_piece_size()} pieces, {len(texts)} texts, {wrong} differ; sentencepiece's own differ in {others}", flush=True)
            differ, count = differ + wrong, count + len(texts)
    print(f"{count} texts, {differ} differ")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
