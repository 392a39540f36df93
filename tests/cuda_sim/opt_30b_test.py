#!/usr/bin/env python3
"""OPT-30B's shape, two layers of it, through every lane of a simulated GPU: its weights and KV on all three tiers, part of
attention on the host, host memory pinned in pieces that are smaller than what is copied. Answers are those of a run
with everything on the device: the first token's to the last bit, for placement changes none; the second's nearly, for
the host attends in another order.

Usage: opt_30b_test.py WEFT_SIM SOURCE_FOLDER [--tiny]   (--tiny: a small shape, in a second)
"""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

WANTED = 12 << 30  # of memory that can be had: the run takes 9 GB
LANES = ["disk_read", "disk_write", "host_to_device", "device_to_host", "device_compute", "host_compute"]
POLICY = {"version": 1, "gpu_batch_size": 1, "num_gpu_batches": 3, "overlap": True, "retention": {"rule": "full"}}
THREE_TIERS = POLICY | {"weights": {"device": 0.3, "host": 0.4, "disk": 0.3}, "attention": {"device": 0.5, "host": 0.5},
                        "kv": {"device": 0.34, "host": 0.66}, "activations": {"device": 0.34, "host": 0.33, "disk": 0.33}}
RESIDENT = POLICY | {"weights": {"device": 1.0}, "kv": {"device": 1.0}, "activations": {"device": 1.0},
                     "attention": "device"}

weft, source = sys.argv[1], pathlib.Path(sys.argv[2])
tiny = "--tiny" in sys.argv[3:]
available = int(re.search(r"MemAvailable: *(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)) << 10
if not tiny and available < WANTED:
    print(f"skipped: {available >> 20} MiB of memory can be had, {WANTED >> 20} MiB are wanted")
    sys.exit(77)

config = json.loads((source / "configs/models/opt-30b.json").read_text()) | {"num_hidden_layers": 2}
if tiny:
    config |= {"hidden_size": 512, "word_embed_proj_dim": 512, "num_attention_heads": 4, "ffn_dim": 2048,
               "vocab_size": 5000}
piece = 17 if tiny else 96  # MiB, of one registration; Weft takes none under 16

with tempfile.TemporaryDirectory(prefix="weft-opt-30b-") as name:
    folder = pathlib.Path(name)
    (folder / "model.json").write_text(json.dumps(config))
    requests = [{"id": str(i), "prompt_ids": [2, 100 + i], "max_tokens": 2, "logprobs": 1} for i in range(3)]
    (folder / "requests.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))

    def answers(kind, policy):
        (folder / "policy.json").write_text(json.dumps(policy))
        begin = time.monotonic()
        run = subprocess.run(
            [weft, "generate", "--model", folder / "model.json", "--weights", "random:1", "--backend", "cuda", "--input",
             folder / "requests.jsonl", "--output", folder / f"{kind}.jsonl", "--policy", folder / "policy.json",
             "--device-memory", "5500MiB", "--host-memory", "6GiB", "--disk-memory", "3GiB", "--disk-dir", folder,
             "--report", folder / "report.json", "--quiet"],
            capture_output=True, text=True, env=dict(os.environ, CUSIM_REGISTER_MIB=str(piece), CUSIM_DEVICE_MIB="6144"))
        if run.returncode != 0 or "cusim:" in run.stderr:
            sys.exit(f"{kind}: exit code {run.returncode}: {run.stderr}")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        print(f"{kind}: {time.monotonic() - begin:.0f} s, at most {peak} MiB so far")
        lines = map(json.loads, (folder / f"{kind}.jsonl").read_text().splitlines())
        return {line["id"]: line for line in lines}, json.loads((folder / "report.json").read_text())

    tiers, report = answers("three tiers", THREE_TIERS)
    for lane in LANES:
        seconds = report["lanes"][lane]["busy_seconds"]
        print(f"{lane}: {seconds:.3f} s, {report['lanes'][lane]['bytes']} bytes")
        if seconds <= 0:
            sys.exit(f"nothing went by the lane {lane}")
    if not tiny and report["placement"]["weights"]["host"]["bytes"] <= 4 * piece << 20:
        sys.exit("the host's weights do not lie in several pieces")
    resident, _ = answers("resident", RESIDENT)
    for identity in resident:
        print(json.dumps(tiers[identity]))
        mine, other = (lines[identity]["logprobs"] for lines in (tiers, resident))
        if mine[0] != other[0] or abs(mine[1]["logprob"] - other[1]["logprob"]) > 0.02:
            sys.exit(f"request {identity}: {mine} with three tiers, {other} resident")
