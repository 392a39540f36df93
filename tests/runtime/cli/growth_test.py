#!/usr/bin/env python3
"""Time grows with the size of a file and not with its square: twice the entries take about twice the processor time.

Usage: growth_test.py WEFT_BINARY [NAME...]

Each case is a file whose number of entries is chosen by the test: it is doubled until the program works long enough to be
measured, or until the program refuses the file, which ends the case too. Of several runs the fastest counts. A quadratic part
of a second would show as a ratio near 4.
"""

import collections
import io
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import types
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import TINY, Weft, write_lines, write_tiny_model  # noqa: E402

ENOUGH, RATIO, RUNS = 0.25, 3.0, 3  # seconds of processor time; of 2n to n; of each
LIMIT = 120


def cpu_seconds(command, folder):
    """Processor time and exit code of one run."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read().decode(errors="replace")
    process.stderr.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 2, 3), f"exit code {process.returncode}: {said[-300:]}"
    return usage.ru_utime + usage.ru_stime, process.returncode, said


def add_to_header(folder, entries):
    """Empty tensors with these names, in front of those of the model."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length]) | {name: {"dtype": "F16", "shape": [0], "data_offsets": [0, 0]} for name in entries}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])


def safetensors(folder, n):
    write_tiny_model(folder / "m")
    add_to_header(folder / "m", (f"some.other.tensor.{i}" for i in range(n)))
    return ["inspect", "m"]


def safetensors_alike(folder, n):
    """Names that begin alike for long."""
    write_tiny_model(folder / "m")
    add_to_header(folder / "m", ("x" * 400 + str(i) for i in range(n // 8)))
    return ["inspect", "m"]


def wide_config(folder, n):
    write_tiny_model(folder / "m")
    (folder / "m" / "config.json").write_text(json.dumps({**TINY, **{f"key_{i}": [i] for i in range(n)}}))
    return ["inspect", "m"]


def deep_config(folder, n):
    write_tiny_model(folder / "m")
    (folder / "m" / "config.json").write_text(json.dumps(TINY)[:-1] + ', "deep": ' + "[" * n + "]" * n + "}")
    return ["inspect", "m"]


class Pickler(pickle.Pickler):
    """Writes what torch.save() writes, without torch."""

    def persistent_id(self, value):
        return ("storage", Storage, "0", "cpu", 64) if isinstance(value, Storage) else None

    def reducer_override(self, value):
        if isinstance(value, Tensor):
            return rebuild, (Storage(), 0, (4,), (1,), False, collections.OrderedDict())
        return NotImplemented


class Storage:
    pass


class Tensor:
    pass


def rebuild(*arguments):
    return arguments


def as_torch():
    """The classes by the names that a checkpoint has for them."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.FloatStorage, utils._rebuild_tensor_v2 = Storage, rebuild
    Storage.__module__, Storage.__qualname__, Storage.__name__ = "torch", "FloatStorage", "FloatStorage"
    rebuild.__module__, rebuild.__qualname__, rebuild.__name__ = "torch._utils", "_rebuild_tensor_v2", "_rebuild_tensor_v2"
    sys.modules["torch"], sys.modules["torch._utils"] = torch, utils


def torch_bin(folder, n):
    write_tiny_model(folder / "m")
    (folder / "m" / "model.safetensors").unlink()
    as_torch()
    text = io.BytesIO()
    Pickler(text, 2).dump({f"some.tensor.{i}": Tensor() for i in range(n)})
    with zipfile.ZipFile(folder / "m" / "pytorch_model.bin", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", text.getvalue())
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", bytes(256))
        archive.writestr("archive/version", "3\n")
    return ["inspect", "m"]


def zip_records(folder, n):
    """A PyTorch file of very many records."""
    write_tiny_model(folder / "m")
    (folder / "m" / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "m" / "pytorch_model.bin", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/version", "3\n")
        for i in range(n):
            archive.writestr(f"archive/data/{i}", b"")
    return ["inspect", "m"]


def byte_level(folder, vocab, merges, added=()):
    """A model with a tokenizer.json of GPT-2's kind, and one short text."""
    write_tiny_model(folder / "m", vocab_size=len(vocab) + len(added))
    (folder / "m" / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": len(vocab) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, text in enumerate(added)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges}}))
    return folder / "m"


def all_bytes():
    """GPT-2's 256 letters, one for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [c for c in range(256) if c not in plain]
    return {letter: i for i, letter in enumerate([chr(c) for c in plain] + [chr(256 + i) for i in range(len(others))])}


def tokenized(folder, text):
    write_lines(folder / "in.jsonl", [{"text": text}])
    return ["tokenize", "--model", "m", "--input", "in.jsonl", "--output", "-"]


def merges(folder, n):
    """Words of a few letters that are merged out of shorter ones."""
    vocab, rules, words = all_bytes(), [], list("abcdefghijklmnopqrstuvwxyz")
    for word in words:
        if len(rules) >= n:
            break
        for letter in "abcdefghijklmnopqrstuvwxyz"[:n - len(rules)]:
            vocab[word + letter] = len(vocab)
            rules.append(f"{word} {letter}")
            words.append(word + letter)
    byte_level(folder, vocab, rules)
    return tokenized(folder, "the cat sat on the mat")


def long_word(folder, n):
    """One word of n letters, of which pairs, pairs of pairs and so on are merged."""
    vocab, rules, word = all_bytes(), [], "a"
    for _ in range(10):
        vocab[word + word] = len(vocab)
        rules.append(f"{word} {word}")
        word += word
    byte_level(folder, vocab, rules)
    return tokenized(folder, "a" * n)


def added_tokens(folder, n):
    byte_level(folder, all_bytes(), [], [f"<|{i}|>" for i in range(n)])
    return tokenized(folder, "text <|1|> and <|2|> more " * 1000)


def added_prefixes(folder, n):
    """Added tokens that begin alike, and a text that begins like all of them, again and again."""
    byte_level(folder, all_bytes(), [], ["<" + "a" * 20 + str(i) for i in range(n)])
    return tokenized(folder, ("<" + "a" * 20) * (n // 4))


CASES = [safetensors, safetensors_alike, wide_config, deep_config, torch_bin, zip_records, merges, long_word, added_tokens, added_prefixes]


def check(weft, case):
    """One line, and whether it is well."""
    before, n, code, said = None, 2000, 0, ""
    while True:
        with tempfile.TemporaryDirectory(prefix="weft-growth-") as name:
            folder = pathlib.Path(name)
            command = weft.command(*case(folder, n))
            runs = [cpu_seconds(command, folder)]
            if before is not None or runs[0][0] >= ENOUGH:
                runs += [cpu_seconds(command, folder) for _ in range(RUNS - 1)]
        seconds, code, said = min(runs)
        if before is not None:
            ratio = seconds / before
            print(f"{case.__name__}: {n // 2}: {before:.2f} s, {n}: {seconds:.2f} s, ratio {ratio:.2f}, exit code {code}")
            return ratio <= RATIO
        if seconds > LIMIT:
            print(f"{case.__name__}: {n}: {seconds:.1f} s")
            return False
        if code != 0 and seconds < ENOUGH and n >= 1 << 18:
            print(f"{case.__name__}: {n}: refused after {seconds:.2f} s: {said.strip()[-160:]}")
            return True
        if seconds >= ENOUGH:
            before = seconds
        elif n >= 1 << 20:
            print(f"{case.__name__}: {n}: only {seconds:.2f} s")
            return True
        n *= 4 if before is None and seconds < ENOUGH / 8 and n < 1 << 18 else 2


def main():
    weft = Weft(pathlib.Path(sys.argv[1]).resolve())
    chosen = [case for case in CASES if not sys.argv[2:] or case.__name__ in sys.argv[2:]]
    failed = [case.__name__ for case in chosen if not check(weft, case)]
    print("; ".join(f"{name}: grows too fast" for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
