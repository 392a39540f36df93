#!/usr/bin/env python3
"""Every allocation, every mapping and every creation of a thread fails once (and, in other runs, all from then on): exit code
4 and one line, or no harm at all; never a crash, a hang or a wrong answer, and then a --resume that ends with the answers of
an undisturbed run.

Usage: scarcity_test.py WEFT_BINARY FAIL_LIBRARY SOURCE_FOLDER [--points N] [--ways NAME,...] [--kinds KIND,...] [--lengths once,on]
       [--jobs N] [--every-call]

FAIL_LIBRARY is made of tests/support/fail_nth.cc. The first call of a kind from each place in the program is a point; of
more than N points N are taken, spread evenly; 0 takes all. With --every-call every call is a point.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, write_lines, write_tiny_model  # noqa: E402

OUT_OF_MEMORY, IO = 4, 6
FOREVER = 1 << 60
REQUESTS = [{"id": f"request {i}" if i % 2 else i, "prompt_ids": [3, i + 1], "max_tokens": 2 + i % 4, "n": 1 + i % 2, "temperature": i % 2, "seed": i,
             **({"logprobs": 2} if i % 3 == 0 else {})} for i in range(10)]
SCORED = [{"id": i, "prompt_ids": [3, i + 1], "continuation_ids": [5, i + 2, 9]} for i in range(6)]
PLAIN = [{"id": i, "text": f"Once upon a time {i}"} for i in range(4)]
TEXTS = [{"id": i, "prompt": f"Once upon a time {i}", "max_tokens": 3, "stop": ["zz"]} for i in range(4)]
POLICY = ["--gpu-batch-size", 3, "--num-gpu-batches", 1]
ON_DISK = [*POLICY, "--percent", 0, 0, 0, 0, 0, 0]


class Way:
    """A command that is run with scarce memory or threads. `answers` of an earlier run and `then` are in its output."""

    def __init__(self, command, flags, requests=(), model="tiny", answers=0, then=b""):
        self.command, self.flags, self.requests, self.model = command, flags, requests, model
        self.answers, self.then = answers, then


def ways(source):
    machine = source / "configs" / "machines" / "cpu.json"
    return {
        "disk": Way("generate", ["--disk-engine", "threads", *ON_DISK], REQUESTS),
        "uring": Way("generate", ["--durability", "power", "--ordered", "--report", "report.json", "--trace", "trace.json", *ON_DISK], REQUESTS),
        "resume": Way("generate", ["--disk-engine", "threads", "--durability", "power", *POLICY, "--percent", 0, 100, 0, 100, 0, 100],
                      REQUESTS, answers=5, then=b'{"id":'),
        "planned": Way("generate", ["--machine", machine], REQUESTS),
        "score": Way("score", [*POLICY, "--percent", 100, 0, 100, 0, 100, 0], SCORED),
        "text": Way("generate", [*POLICY, "--percent", 100, 0, 100, 0, 100, 0], TEXTS, model="demo"),
        "plan": Way("plan", ["--machine", machine, "--prompt-len", 8, "--gen-len", 4, "--requests", 100]),
        "inspect": Way("inspect", []),
        "tokenize": Way("tokenize", [], PLAIN, model="demo"),
        "convert": Way("convert", ["--output", "packed"]),
    }


class Job:
    """A folder of its own for each run; the models are shared."""

    def __init__(self, weft, models, folder, way, undisturbed=None):
        self.folder, self.way, self.output = folder, way, folder / "out.jsonl"
        folder.mkdir()
        if way.requests:
            write_lines(folder / "in.jsonl", way.requests)
        model = models[way.model]
        self.answers = way.command in ("generate", "score")
        flags = {"inspect": [model], "plan": ["--model", model]}.get(way.command, ["--model", model])
        if self.answers:
            flags = [*flags, "--input", "in.jsonl", "--output", "out.jsonl", "--backend", "cpu", "--quiet", "--threads", 2]
        if way.command == "tokenize":
            flags = [*flags, "--input", "in.jsonl", "--output", "ids.jsonl"]
        self.command = weft.command(way.command, *flags, *way.flags)
        self.first = []
        if undisturbed and way.answers:
            self.output.write_bytes(b"".join(undisturbed.lines()[:way.answers]) + way.then)
            for end in (".run.json", ".sums"):
                shutil.copy(f"{undisturbed.output}{end}", f"{self.output}{end}")
            self.first = ["--resume"]

    def run(self, *more, kind=None, at=0, length=0, count=None, places=None, library=None):
        environment = dict(os.environ)
        if kind:
            environment |= {"LD_PRELOAD": str(library), "FAIL_KIND": kind, "FAIL_AT": str(at), "FAIL_MORE": str(length),
                            "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}
        if count:
            environment |= {"FAIL_COUNT": str(count), "FAIL_PLACES": str(places)}
        return subprocess.run([*self.command, *(more or self.first)], cwd=self.folder, env=environment, capture_output=True,
                              timeout=HANGS)

    def lines(self):
        """The whole answers."""
        data = self.output.read_bytes() if self.output.exists() else b""
        return data[:data.rfind(b"\n") + 1].splitlines(keepends=True)

    def files(self):
        """All that it wrote, for a command without answers."""
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file()}


def check(done, job, undisturbed):
    said = done.stderr.decode(errors="replace")
    lines = job.lines()
    assert len(set(lines)) == len(lines) and set(lines) <= set(undisturbed.lines()), "an answer is repeated or differs"
    if done.returncode == 0:
        assert len(lines) == len(undisturbed.lines()), "says that all is well, and answers are missing"
        if not job.answers:
            assert done.stdout == undisturbed.said and job.files() == undisturbed.files(), "says that all is well, and is not"
        return "did no harm"
    errors = [line for line in said.splitlines() if line.startswith("weft: error: ")]
    assert len(errors) == 1 and len(said.splitlines()) == 1, f"exit code {done.returncode}, wanted one line: {said[-600:]}"
    known = done.returncode == OUT_OF_MEMORY or (done.returncode == IO and "Cannot allocate memory" in said)
    assert known, f"exit code {done.returncode}: {said[-600:]}"
    return f"exit code {done.returncode}"


def one_point(options, weft, models, folder, way, point, undisturbed):
    job = Job(weft, models, folder, way, undisturbed)
    kind, at, length = point
    result = "hung"
    before = job.lines()
    try:
        done = job.run(kind=kind, at=at, length=length, library=options.library)
        result = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        result = check(done, job, undisturbed)
        kept = job.lines()
        assert kept[:len(before)] == before, "an earlier answer was lost or changed"
        if job.answers and done.returncode != 0:
            again = job.run("--resume")
            assert again.returncode == 0, f"--resume: exit code {again.returncode}: {again.stderr.decode()[-600:]}"
            assert job.lines()[:len(kept)] == kept, "--resume changed an answer"
            assert sorted(job.lines()) == sorted(undisturbed.lines()), "--resume: answers are missing or differ"
            assert job.output.read_bytes() == b"".join(job.lines()), "--resume: the output has more than answers"
        if way.command == "convert" and done.returncode != 0:  # one that ends at once leaves what the next one removes
            again = job.run()
            assert again.returncode == 0, f"again: exit code {again.returncode}: {again.stderr.decode()[-600:]}"
            assert job.files() == undisturbed.files(), "again: another copy"
        left = {p.name for p in folder.iterdir()} - {p.name for p in undisturbed.folder.iterdir()}
        assert not left, f"left behind: {left}"
    except (AssertionError, OSError, subprocess.TimeoutExpired) as problem:
        return result, f"{kind} {at}{'' if length == 0 else ' and on'}: {problem}"
    shutil.rmtree(folder)
    return result, None


def spread(numbers, points):
    """All of them, or so many from the first to the last and half as many from the last hundredth."""
    if points == 0 or len(numbers) <= points:
        return numbers
    evenly = [numbers[round(i * (len(numbers) - 1) / (points - 1))] for i in range(points)]
    return evenly + spread(numbers[-(len(numbers) // 100):], points // 2) if len(numbers) >= 200 else evenly


def campaign(options, weft, models, root, name, way):
    """All points of one way. Returns how many failed."""
    root.mkdir()
    undisturbed = Job(weft, models, root / "undisturbed", way)
    done = undisturbed.run()
    undisturbed.said = done.stdout
    assert done.returncode == 0 and len(undisturbed.lines()) == (len(way.requests) if undisturbed.answers else 0), done.stderr
    failed = 0
    for kind in options.kinds:
        job = Job(weft, models, root / f"counted {kind}", way, undisturbed)
        count_file, places_file = root / f"count of {kind}", root / f"places of {kind}"
        done = job.run(kind=kind, count=count_file, places=places_file, library=options.library)
        assert done.returncode == 0, f"counting: exit code {done.returncode}: {done.stderr.decode()}"
        count = int(count_file.read_text())
        assert count > 0 or kind != "memory", "the library counts nothing"
        places = sorted(map(int, places_file.read_text().split()))
        numbers = list(range(1, count + 1)) if options.every_call else places
        for length in options.lengths:
            points = [(kind, at, {"once": 0, "on": FOREVER}[length]) for at in spread(numbers, options.points)]
            results, problems = collections.Counter(), 0
            with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
                runs = [pool.submit(one_point, options, weft, models, root / f"{kind} {at} {length}", way, (kind, at, more),
                                    undisturbed) for _, at, more in points]
                for run in concurrent.futures.as_completed(runs):
                    result, problem = run.result()
                    results[result] += 1
                    if problem:
                        problems += 1
                        print(f"  {name}: {problem}", file=sys.stderr, flush=True)
            print(f"{name}: {kind}, {length}: {len(points)} points, {count} calls from {len(places)} places: " +
                  ", ".join(f"{result}: {number}" for result, number in sorted(results.items())) + f"; {problems} failed", flush=True)
            failed += problems
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weft")
    parser.add_argument("library", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("source", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--ways", type=lambda text: text.split(","))
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["memory", "mapping", "thread"])
    parser.add_argument("--lengths", type=lambda text: text.split(","), default=["once", "on"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every-call", action="store_true")
    options = parser.parse_args()
    weft = Weft(pathlib.Path(options.weft).resolve())
    with tempfile.TemporaryDirectory(prefix="weft-scarcity-") as folder:
        root = pathlib.Path(folder)
        models = {"tiny": write_tiny_model(root / "tiny"), "demo": options.source / "models" / "demo"}
        known = ways(options.source)
        failed = sum(campaign(options, weft, models, root / name, name, known[name]) for name in options.ways or known)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
