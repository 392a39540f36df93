#!/usr/bin/env python3
"""Writes what scripts/fuzz.sh begins with for files that weft itself writes: results with their checksums, records of runs,
snapshots of what is in flight, packed weights; policies that name the types of weights and KV; and matrices and
configs of checkpoints that others have quantised.

Usage: make_fuzz_seeds.py WEFT_BINARY FOLDER

FOLDER gets a folder for each target: results, run_record, snapshot, packed, policy, quantised, config. Any build of weft will do.
"""

import itertools
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "support"))
from weft_process import Weft, write_lines, write_tiny_model  # noqa: E402

REQUESTS = [{"id": 1, "prompt_ids": [3]}, {"id": "b", "prompt_ids": [4]}]  # those of results_fuzz.cc
LONG = [{"id": i, "prompt_ids": [3, i + 1], "max_tokens": 40, **({"logprobs": 2} if i % 2 else {"n": 2, "temperature": 1, "seed": i})}
        for i in range(4)]
MAGIC = b"weft in flight 1"


class Seeds:
    def __init__(self, weft, work, folder):
        self.weft, self.work, self.folder, self.number = weft, work, folder, itertools.count()
        self.model = write_tiny_model(work / "tiny")

    def put(self, target, data):
        place = self.folder / target
        place.mkdir(parents=True, exist_ok=True)
        (place / f"seed{next(self.number)}").write_bytes(data)

    def command(self, requests, *flags):
        write_lines(self.work / "in.jsonl", requests)
        for left in self.work.glob("out.jsonl*"):
            left.unlink()
        return self.weft.command("generate", "--model", self.model, "--input", self.work / "in.jsonl", "--output", self.work / "out.jsonl",
                                 "--backend", "cpu", "--quiet", "--gpu-batch-size", 4, "--num-gpu-batches", 1,
                                 "--percent", 100, 0, 100, 0, 100, 0, *flags)

    def job(self, requests, *flags):
        subprocess.run(self.command(requests, *flags), check=True)
        output = self.work / "out.jsonl"
        if requests is REQUESTS:
            self.put("results", output.read_bytes() + b"\0" + (self.work / "out.jsonl.sums").read_bytes())
        self.put("run_record", (self.work / "out.jsonl.run.json").read_bytes())

    def snapshot(self, *flags):
        """As it is; and as snapshot_fuzz.cc puts one together, without the beginning and the end."""
        process = subprocess.Popen(self.command(LONG, "--checkpoint-every", "0s", *flags))
        saved, data = self.work / "out.jsonl.inflight", None
        while process.poll() is None:
            try:
                data = saved.read_bytes()
            except FileNotFoundError:
                time.sleep(0.0005)
        assert process.returncode == 0 and data is not None, "no snapshot was seen"
        self.put("snapshot", data)
        index, = struct.unpack("<Q", data[-16:-8])
        length = len(data) - 16 - index
        assert data.startswith(MAGIC) and length < 1 << 16
        self.put("snapshot", struct.pack(">H", length) + data[len(MAGIC):-16])

    def packed(self, *flags):
        subprocess.run(self.weft.command("convert", "--model", self.model, "--output", self.work / "packed", *flags), check=True,
                       stderr=subprocess.DEVNULL)
        for path in (self.work / "packed").glob("*.safetensors"):
            self.put("packed", path.read_bytes())
        shutil.rmtree(self.work / "packed")

    def quantised(self):
        """As quantised_fuzz.cc reads it: two bytes that choose format and shape, then a sound matrix `m` of 8 rows and 64
        columns in groups of 32."""
        rows, cols, group = 8, 64, 32
        groups = cols // group
        words = lambda count: bytes(random.randrange(128) & 0x77 for _ in range(4 * count))  # noqa: E731  no zero point of 15
        scales = struct.pack(f"<{rows * groups}e", *(random.uniform(0.01, 0.1) for _ in range(rows * groups)))
        for number, name in enumerate(("compressed-tensors", "gptq", "gptq_v2", "awq")):  # in the order of Packing
            if number == 0:
                tensors = {"weight_packed": ("I32", [rows, cols // 8], words(rows * cols // 8)),
                           "weight_scale": ("F16", [rows, groups], scales),
                           "weight_shape": ("I64", [2], struct.pack("<2q", rows, cols)),
                           "weight_zero_point": ("I32", [rows // 8, groups], words(groups))}
            else:
                shape = [cols, rows // 8] if name == "awq" else [cols // 8, rows]
                tensors = {"qweight": ("I32", shape, words(rows * cols // 8)), "scales": ("F16", [groups, rows], scales),
                           "qzeros": ("I32", [groups, rows // 8], words(groups))}
                if name != "awq":
                    tensors["g_idx"] = ("I32", [cols], struct.pack(f"<{cols}i", *(i // group for i in range(cols))))
            header, data = {}, b""
            for part, (dtype, sizes, content) in tensors.items():
                header[f"m.{part}"] = {"dtype": dtype, "shape": sizes, "data_offsets": [len(data), len(data) + len(content)]}
                data += content
            text = json.dumps(header).encode()
            self.put("quantised", bytes([number, 12]) + struct.pack("<Q", len(text)) + text + data)
        for config in sorted((pathlib.Path(__file__).resolve().parents[1] / "tests/data/quantised").glob("*/config.json")):
            self.put("config", config.read_bytes())


def main():
    weft, folder = Weft(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="weft-seeds-") as name:
        seeds = Seeds(weft, pathlib.Path(name), folder)
        for flags in (), ("--kv-dtype", "int4"), ("--weight-dtype", "int8", "--retention", "recent:9"), ("--shard", "1/2", "--max-tokens", 3):
            seeds.job(REQUESTS, *flags)
        for flags in (), ("--kv-dtype", "int8"), ("--retention", "h2o:0.3:0.3"):
            seeds.snapshot(*flags)
        for flags in ("--weight-dtype", "int4"), ("--weight-dtype", "int8"):
            seeds.packed(*flags)
    seeds.quantised()
    for weights, kv in itertools.product(({"dtype": "int4", "group": 32, "arithmetic": "int8"}, {"dtype": "int8", "device": 0.5, "disk": 0.5}),
                                         ({"dtype": "int4", "rotate": False}, {"dtype": "int8", "host": 1})):
        seeds.put("policy", json.dumps({"weights": weights, "kv": kv}).encode())


if __name__ == "__main__":
    main()
