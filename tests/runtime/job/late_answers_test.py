#!/usr/bin/env python3
"""Kills a job whose first answer comes late, again and again: every run gets further, and little is computed twice.

Usage: late_answers_test.py WEFT_BINARY SOURCE_FOLDER [--kills N] [--every TIME] [--seed N] [--most-work N]

All answers of the job are equally long, so that without --checkpoint-every a kill would lose everything. A run is killed at
a moment of its life that is even over the time of an undisturbed run; its resume has another placement and block. When a job
is done the next begins, until there were N kills. How much a run has computed is known from what it has read: its weights
are on the disk, and each sweep reads them once, and as much of the KV cache as lies there, which grows.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, write_lines  # noqa: E402

SEQUENCES, TOKENS = 12, 150
PROMPT = "the sea and a dark night when old men looked"


def requests(tokens):
    sampled = [{}, {"temperature": 0.9, "logprobs": 1}]
    return [{"id": i, "prompt": f"{PROMPT} {i}", "max_tokens": tokens, "ignore_eos": True, "seed": i, **sampled[i % 2]}
            for i in range(SEQUENCES)]


class Job:
    def __init__(self, weft, model, folder, every):
        self.weft, self.folder, self.input, self.output = weft, folder, folder / "in.jsonl", folder / "out.jsonl"
        self.saved = folder / "out.jsonl.inflight"
        self.flags = ["generate", "--model", model, "--input", self.input, "--output", self.output, "--backend", "cpu", "--quiet",
                      "--disk-engine", "threads", "--checkpoint-every", every]

    def start(self, block, kv):
        return self.weft.start(*self.flags, "--gpu-batch-size", block[0], "--num-gpu-batches", block[1], "--percent", 0, 0, *kv,
                               100, 0, *(["--resume"] if self.output.exists() else []))

    def clear(self):
        for name in ("", ".inflight", ".sums", ".run.json"):
            pathlib.Path(f"{self.output}{name}").unlink(missing_ok=True)

    def answers(self):
        return sorted(self.output.read_bytes().splitlines())


def bytes_read(process):
    """Of a process that is stopped or has ended and is not yet reaped."""
    lines = pathlib.Path(f"/proc/{process.pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


def whole_run(job, block, kv):
    """Seconds, and bytes read."""
    begin = time.monotonic()
    process = job.start(block, kv)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    seconds, read = time.monotonic() - begin, bytes_read(process)
    said = process.communicate()[1].decode()
    assert process.returncode == 0, said
    return seconds, read


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weft")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", default="0.05s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-work", type=float, default=1.3, help="times the tokens of undisturbed runs")
    options = parser.parse_args()
    choice = random.Random(options.seed)
    resident, disk, host = (100, 0), (0, 0), (0, 100)
    # One block holds all sequences: then a sweep is a token of each.
    layouts = [((SEQUENCES, 1), resident), ((4, 3), disk), ((6, 2), host), ((5, 3), (34, 33))]
    with tempfile.TemporaryDirectory(prefix="weft-late-") as name:
        job = Job(Weft(pathlib.Path(options.weft).resolve()), options.source / "models" / "demo", pathlib.Path(name), options.every)
        job.flags[-1] = "off"
        read = {}
        for tokens in (1, TOKENS):
            write_lines(job.input, requests(tokens))
            for block, kv in layouts:
                read[block, tokens] = whole_run(job, block, kv)[1]
                job.clear()
        sweep = {block: (read[block, TOKENS] - read[block, 1]) / (TOKENS - 1) for block, _ in layouts}
        seconds, _ = whole_run(job, *layouts[0])
        undisturbed = job.answers()
        job.clear()
        job.flags[-1] = options.every
        kills = jobs = amid = runs = 0
        work = 0.0
        while kills < options.kills or job.output.exists():
            block, kv = choice.choice(layouts)
            saved = job.saved.stat().st_size if job.saved.exists() else 0
            process = job.start(block, kv)
            if kills < options.kills:
                time.sleep(choice.random() * seconds)
                os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            # All runs read the same before their first sweep, and what was saved once more.
            sweeps = max(0.0, (bytes_read(process) - saved - read[block, 1]) / sweep[block] + 1)
            runs += 1
            work += sweeps * SEQUENCES + (0 if saved or sweeps == 0 else SEQUENCES * len(PROMPT.split()))
            process.kill()
            said = process.communicate(timeout=HANGS)[1].decode()
            if process.returncode == -signal.SIGKILL:
                kills += 1
                amid += job.saved.exists()
                if not job.output.exists() or job.output.stat().st_size == 0:
                    continue
                assert set(job.output.read_bytes().splitlines(keepends=True)) <= {line + b"\n" for line in undisturbed}
                continue
            assert process.returncode == 0, said
            assert job.answers() == undisturbed, "answers are missing or differ"
            left = {path.name for path in job.folder.iterdir()}
            assert left == {"in.jsonl", "out.jsonl", "out.jsonl.sums", "out.jsonl.run.json"}, left
            job.clear()
            jobs += 1
    ratio = work / (jobs * SEQUENCES * (TOKENS + len(PROMPT.split())))
    print(f"{kills} kills in {runs} runs, {amid} with something saved; {jobs} jobs of {SEQUENCES} answers of {TOKENS} tokens "
          f"completed, undisturbed in {seconds:.2f} s: 0 answers different; {ratio:.2f} times the tokens of undisturbed runs "
          f"were computed (saved every {options.every}; seed {options.seed})")
    assert ratio <= options.most_work, f"wanted at most {options.most_work} times the work"


if __name__ == "__main__":
    sys.exit(main())
