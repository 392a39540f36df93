#!/usr/bin/env python3
"""Runs weft over the corpus of bad inputs (tests/support/bad_inputs.py and the broken files of tests/data), and over sound
tokenizers and checkpoints, under Valgrind's memcheck, which sees uses of memory that was never written and accesses out of
bounds in parsers and on error paths.

Usage: valgrind.py WEFT_BINARY [--jobs N] [--every N] [--reports FOLDER]

Takes about 3 s of processor time for each of some 800 runs; --every N takes each N-th. Wants a build without sanitizers and
Valgrind (apt-get install valgrind). Exits with 0 if there is no finding; the reports of findings lie in FOLDER.
"""

import argparse
import collections
import itertools
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import same_outputs
from same_outputs import CONFIGS, DATA, DEMO
from weft_process import write_tiny_model

FOUND = 99  # Valgrind's exit code
TEXT = '{"text":"Hello, e\\u0301\\u00e9 world <|endoftext|> <unk>[START_REF] 1234  \\ud83d\\ude00"}'


def sound_files():
    """What each kind of reader accepts."""
    for folder in sorted(path for path in (DATA / "tokenizer").iterdir() if path.is_dir()):
        yield f"tokenize, {folder.name}", ("tokenize", "--model", folder, "--input", "in.jsonl"), {"in.jsonl": same_outputs.lines(TEXT)}
    for path in [*sorted(DATA.glob("golden/*/config.json")), *sorted(DATA.glob("torch_bin/w*/*/config.json"))]:
        yield f"inspect {path.parent.name}", ("inspect", path.parent), {}
    for path in sorted((CONFIGS / "policies").glob("*.json")):
        yield f"inspect {path.name}", ("inspect", path), {}


def cases(folder):
    """All of them; `folder` is this caller's own."""
    tiny, families = write_tiny_model(folder / "tiny"), same_outputs.FAMILIES.values()
    return itertools.chain(sound_files(), same_outputs.bad_calls(tiny), same_outputs.bad_requests(tiny),
                           same_outputs.bad_checkpoints(tiny, folder / "model", families))


class Campaign:
    def __init__(self, options):
        self.options, self.lock = options, threading.Lock()
        self.codes, self.findings = collections.Counter(), 0

    def run(self, worker):
        with tempfile.TemporaryDirectory(prefix="weft-valgrind-") as name:
            folder = pathlib.Path(name)
            for number, (what, arguments, inputs) in enumerate(cases(folder)):
                if number % self.options.every == 0 and number // self.options.every % self.options.jobs == worker:
                    self.one(number, what, arguments, inputs, folder / "run")

    def one(self, number, what, arguments, inputs, folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, data in inputs.items():
            (folder / name).write_bytes(data)
        report = self.options.reports / f"{number}.txt"
        if arguments and arguments[0] in ("generate", "score", "bench") and "--disk-engine" not in arguments:
            arguments = (*arguments, "--disk-engine", "threads")  # Valgrind does not see what io_uring writes to memory
        if arguments and arguments[0] == "generate" and "--max-tokens" not in arguments:
            arguments = (*arguments, "--max-tokens", 4)  # requests that are sound would run for minutes
        command = ["valgrind", "-q", f"--error-exitcode={FOUND}", f"--log-file={report}", self.options.weft, *map(str, arguments)]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=600)
            code, said = done.returncode, done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired:
            code, said = "none within 600 s", ""
        with self.lock:
            self.codes[code] += 1
            if code in (0, 1, 2, 3, 4, 6) and not report.read_text():
                report.unlink()
                return
            self.findings += 1
            print(f"{what}: exit code {code}: {said.strip()[-200:]}; see {report}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weft", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--reports", type=lambda text: pathlib.Path(text).resolve(), default=pathlib.Path("build/valgrind").resolve())
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not there; install it (apt-get install valgrind)")
    options.reports.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(options)
    workers = [threading.Thread(target=campaign.run, args=(worker,)) for worker in range(options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"{campaign.codes.total()} runs, exit codes {dict(sorted(campaign.codes.items(), key=str))}, {campaign.findings} with findings")
    sys.exit(1 if campaign.findings or not campaign.codes else 0)


if __name__ == "__main__":
    main()
