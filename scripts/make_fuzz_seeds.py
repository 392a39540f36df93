#!/usr/bin/env python3
"""Writes what scripts/fuzz.sh begins with for files that weft itself writes: results with their checksums, records of runs,
snapshots of what is in flight, packed weights; and policies that name the types of weights and KV.

Usage: make_fuzz_seeds.py WEFT_BINARY FOLDER

FOLDER gets a folder for each target: results, run_record, snapshot, packed, policy. Any build of weft will do.
"""

import itertools
import json
import pathlib
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
    for weights, kv in itertools.product(({"dtype": "int4", "group": 32, "arithmetic": "int8"}, {"dtype": "int8", "device": 0.5, "disk": 0.5}),
                                         ({"dtype": "int4", "rotate": False}, {"dtype": "int8", "host": 1})):
        seeds.put("policy", json.dumps({"weights": weights, "kv": kv}).encode())


if __name__ == "__main__":
    main()
