#!/usr/bin/env python3
"""Compares the texts of weft's answers with what PyPI's tokenizers makes of the answers' tokens.

    python3 -m venv build/venv-texts && build/venv-texts/bin/pip install tokenizers
    build/venv-texts/bin/python scripts/evaluate/verify_texts.py [--tokenizers 200] [--prompts 100] [--seed 1]
        [--weft build/release/weft]

Random tokenizers, one half byte-level and the other like SentencePiece's with a fallback to bytes, each learn from random
text of several scripts. A tiny model with random weights answers random prompts, with stop strings, echo and several
choices. An answer's text must be that of its tokens where they follow another text (a first space stays), up to the stop
string. Prints every difference and the counts; the exit code is 1 if there is a difference.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
LETTERS = ["abcdefghijklmnopqrstuvwxyz", "ABC DEF", "áéíóúñçß", "абвгдежз", "日本語文字", "😀🌍👍", "  \n\t", ".,!?'\"-()",
           "0123456789", "\u2028é️\u200d"]
CONFIG = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
          "intermediate_size": 32, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 0, "torch_dtype": "float32"}


def words(pick, count):
    return ["".join(pick.choice(pick.choice(LETTERS)) for _ in range(pick.randint(1, 7))) for _ in range(count)]


def text(pick):
    return pick.choice([" ", "", "\n"]).join(words(pick, pick.randint(1, 8)))


def byte_level(pick, size):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([text(pick) for _ in range(300)],
                             trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                 special_tokens=["<|end|>"], show_progress=False))
    return made


def sentencepiece_like(pick, size):
    """The bytes and few characters, so that many fall back to bytes."""
    known = [c for letters in LETTERS for c in letters if c not in " \n\t" and pick.random() < 0.6]
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁"])}
    for character in known:
        vocab.setdefault(character, len(vocab))
    merges, pieces = [], ["▁", *known]
    while len(vocab) < size and len(merges) < 400:
        a, b = pick.choice(pieces), pick.choice(pieces)
        if len(a + b) > 5 or a + b in vocab or "▁" in b:
            if pick.random() < 0.01:
                break
            continue
        vocab[a + b] = len(vocab)
        merges.append((a, b))
        pieces.append(a + b)
    made = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return made


def in_context(tokenizer, first, ids):
    """The text of tokens after that of a token which is the letter a."""
    decoded = tokenizer.decode([first, *ids], skip_special_tokens=True)
    assert decoded[0] == "a", decoded
    return decoded[1:]


def expected(tokenizer, first, ids, request, finish, ends):
    """The text of an answer, or nothing if it should have ended elsewhere."""
    if finish == "stop" and ids[-1] in ends:
        ids = ids[:-1]
        finish = "length"
    whole = in_context(tokenizer, first, ids)
    places = [whole.find(stop) for stop in request.get("stop", [])]
    places = [place for place in places if place >= 0]
    if (finish == "stop") != bool(places):
        return None
    return whole[:min(places)] if places else whole


def requests_of(pick, count, stops):
    for i in range(count):
        request = {"id": i, "prompt": text(pick), "max_tokens": pick.randint(1, 12), "temperature": 1.5, "seed": i}
        if pick.random() < 0.4 and stops:
            request["stop"] = pick.sample(stops, min(len(stops), pick.randint(1, 3)))
        if pick.random() < 0.3:
            request["echo"] = True
        if pick.random() < 0.3:
            request["n"] = pick.randint(2, 4)
        yield request


def check(options, pick, folder, number):
    """The number of texts, and the differences."""
    tokenizer = (byte_level if number % 2 else sentencepiece_like)(pick, pick.choice([300, 400, 600]))
    tokenizer.save(str(folder / "tokenizer.json"))
    end = 0 if number % 2 else 2
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": tokenizer.get_vocab_size(), "eos_token_id": end}))
    first = tokenizer.token_to_id("a")
    if first is None:
        return 0, []
    stops = sorted({stop for stop in words(pick, 30) + list("aeio .é😀日") if stop.strip() and "\u2028" not in stop})
    requests = list(requests_of(pick, options.prompts, stops))
    (folder / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    (folder / "out.jsonl").unlink(missing_ok=True)
    for rest in folder.glob("out.jsonl.*"):
        rest.unlink()
    subprocess.run([options.weft, "generate", "--model", folder, "--weights", f"random:{number}", "--dtype", "float32", "--input",
                    folder / "in.jsonl", "--output", folder / "out.jsonl", "--backend", "cpu", "--gpu-batch-size", "100",
                    "--num-gpu-batches", "1", "--percent", *"100 0 100 0 100 0".split(), "--threads", "1", "--quiet"], check=True)
    count, wrong = 0, []
    for line in map(json.loads, (folder / "out.jsonl").open()):
        request = requests[line["id"]]
        for choice in line.get("choices", [line]):
            count += 1
            wanted = expected(tokenizer, first, choice["token_ids"], request, choice["finish_reason"], [end])
            found = choice["text"]
            if request.get("echo"):
                if not found.startswith(request["prompt"]):
                    wanted = None
                found = found[len(request["prompt"]):]
            if wanted != found:
                wrong.append({"tokenizer": number, "request": request, "ids": choice["token_ids"], "finish": choice["finish_reason"],
                              "found": found, "wanted": wanted})
    return count, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizers", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--weft", default=str(ROOT / "build/release/weft"))
    options = parser.parse_args()
    texts = differences = 0
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.tokenizers):
            count, wrong = check(options, random.Random(f"{options.seed}/{number}"), pathlib.Path(name), number)
            texts += count
            differences += len(wrong)
            for row in wrong[:3]:
                print(json.dumps(row, ensure_ascii=True))
    print(f"{options.tokenizers} tokenizers, {options.tokenizers * options.prompts} prompts, {texts} answers, {differences} differ")
    sys.exit(differences > 0)


if __name__ == "__main__":
    main()
