"""Checkpoints that others have quantised (tests/data/quantised), for the tests that start weft with them."""

import json
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

from weft_process import Weft, read_lines, write_lines

USAGE, DATA = 2, 3
REQUESTS = [{"id": i, "prompt_ids": [3, i + 1, 5], "max_tokens": 6} for i in range(5)]
OPT_Q = "model.decoder.layers.0.self_attn.q_proj"
LLAMA_Q = "model.layers.0.self_attn.q_proj"
WIDTHS = {"F16": 2, "BF16": 2, "I32": 4, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "F32": 4}


class File:
    """A safetensors file in memory."""

    def __init__(self, path):
        self.path, data = path, path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        begin = 8 + length
        self.tensors = {name: [info["dtype"], info["shape"], bytearray(data[begin + info["data_offsets"][0]:
                                                                            begin + info["data_offsets"][1]])]
                        for name, info in header.items()}

    def write(self):
        header, data = {}, bytearray()
        for name, (dtype, shape, content) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        text = json.dumps(header).encode()
        self.path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-foreign-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "disk").mkdir()
        write_lines(self.folder / "in.jsonl", REQUESTS)
        self.count = 0

    def copy(self, name):
        self.count += 1
        to = self.folder / f"{name}-{self.count}"
        shutil.copytree(self.golden / name, to)
        return to

    def generate(self, model, *flags):
        self.count += 1
        output = self.folder / f"out{self.count}.jsonl"
        done = self.weft.run("generate", "--model", model, "--input", self.folder / "in.jsonl", "--output", output, "--backend", "cpu",
                             "--disk-dir", self.folder / "disk", "--gpu-batch-size", 3, "--num-gpu-batches", 2, "--quiet", *flags)
        return done, output

    def answers(self, model, *flags):
        """In memory, unless the flags place it: without a placement each run would measure the machine first."""
        done, output = self.generate(model, *(flags if "--percent" in flags else ("--percent", 100, 0, 100, 0, 100, 0, *flags)))
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted((line["id"], line["token_ids"]) for line in read_lines(output))

    def refused(self, code, model, words, *flags):
        done, _ = self.generate(model, "--percent", 100, 0, 100, 0, 100, 0, *flags)
        said = done.stderr.decode()
        self.assertEqual((done.returncode, said.count("\n")), (code, 1), said)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, said)

    def bad(self, name, change, words):
        model = self.copy(name)
        file = File(model / "model.safetensors")
        change(file.tensors)
        file.write()
        with self.subTest(words=words):
            self.refused(DATA, model, words)


def without(tensor):
    return lambda tensors: tensors.pop(tensor)


def cut(tensor, axis):
    def change(tensors):
        dtype, shape, content = tensors[tensor]
        shape[axis] -= 1
        size = WIDTHS[dtype]
        for n in shape:
            size *= n
        del content[size:]
    return change


def typed(tensor, dtype):
    def change(tensors):
        tensors[tensor][0] = dtype
    return change


def put(tensor, at, content):
    def change(tensors):
        tensors[tensor][2][at:at + len(content)] = content
    return change


def main():
    """Runs the tests of a script: WEFT_BINARY SOURCE_FOLDER [unittest arguments]."""
    Case.weft = Weft(sys.argv.pop(1))
    Case.golden = pathlib.Path(sys.argv.pop(1)).resolve() / "tests" / "data" / "quantised"
    unittest.main("__main__")
