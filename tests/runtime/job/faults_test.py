#!/usr/bin/env python3
"""Every system call on files fails once, or the process dies there: a one-line error of a known kind and no wrong answer,
and then a --resume that ends with the answers of an undisturbed run.

Usage: faults_test.py WEFT_BINARY [--points N] [--calls NAME,...] [--ways 0,1,...] [--jobs N]

strace injects. Its when=K is the K-th call of that name in each thread, so K goes up to the most that a thread makes; of
more than N such points N are taken, spread evenly. What the loader calls before main() is one point of each name. The model
and the job are small, because each call costs much under strace. Exit code 77: strace is not there or may not trace here.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, write_lines, write_tiny_model  # noqa: E402

CALLS = """open openat openat2 creat read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 fsync fdatasync
    sync_file_range ftruncate truncate rename renameat renameat2 flock fallocate stat lstat fstat newfstatat statx close
    link linkat unlink unlinkat access faccessat faccessat2 readlink readlinkat lseek getdents64 statfs fstatfs fcntl fchmod mkdir
    io_uring_setup io_uring_enter io_uring_register""".split()
WRITES = {"write", "writev", "pwrite64", "pwritev", "pwritev2", "fallocate", "openat", "linkat", "rename", "ftruncate", "io_uring_enter"}
KNOWN_CODES = {2, 3, 4, 5, 6}
SKIPPED = 77
REQUESTS = [{"id": f"request {i}" if i % 2 else i, "prompt_ids": [3, i + 1], "max_tokens": 2 + i % 4} for i in range(10)]


JUNK = b"a line of something else\n"


class Way:
    """How the job is run, and what an earlier run has left: so many answers, then these bytes, in place of the next one."""

    def __init__(self, *flags, answers=0, then=b""):
        self.flags, self.answers, self.then = flags, answers, then

    def __str__(self):
        return " ".join(self.flags) + (f", {self.answers} answers and {self.then} are there" if self.answers else "")


WAYS = [Way("--disk-engine", "threads"),
        Way("--disk-engine", "auto", "--durability", "power", "--ordered"),
        Way("--disk-engine", "threads", "--resume", answers=5, then=b'{"id":'),
        Way("--disk-engine", "threads", "--resume=repair", "--durability", "power", answers=5, then=JUNK)]


class Job:
    """A folder of its own for each run; the model is shared."""

    def __init__(self, weft, model, folder, way, undisturbed=None):
        self.weft, self.folder, self.output = weft, folder, folder / "out.jsonl"
        folder.mkdir()
        write_lines(folder / "in.jsonl", REQUESTS)
        self.flags = [flag for flag in way.flags if undisturbed or not flag.startswith("--resume")]
        self.resume = [flag for flag in way.flags if flag.startswith("--resume=")] or ["--resume"]
        self.command = weft.command("generate", "--model", model, "--input", folder / "in.jsonl", "--output", self.output,
                                    "--backend", "cpu", "--quiet", "--threads", 2, "--gpu-batch-size", 5,
                                    "--num-gpu-batches", 1, "--percent", 0, 0, 0, 0, 0, 0)
        if undisturbed and way.answers:
            self.output.write_bytes(b"".join(undisturbed.lines()[:way.answers]) + way.then)
            shutil.copy(undisturbed.record(), self.record())
            if "power" in way.flags:  # without, the output is of a version that wrote no checksums
                shutil.copy(undisturbed.sums(), self.sums())

    def record(self):
        return self.folder / "out.jsonl.run.json"

    def sums(self):
        return self.folder / "out.jsonl.sums"

    def run(self, *strace, resume=False):
        flags = [flag for flag in self.flags if not flag.startswith("--resume")] + self.resume if resume else self.flags
        return subprocess.run([*strace, *self.command, *flags], capture_output=True, timeout=HANGS)

    def durable_lines(self):
        """How many answers a --resume has to keep: with --durability power those after a failed flush are made again."""
        record = json.loads(self.record().read_text()) if self.record().exists() else {}
        if "power" not in self.flags or "durable_bytes" not in record:
            return len(REQUESTS)
        return self.output.read_bytes()[:record["durable_bytes"]].count(b"\n")

    def lines(self):
        """The whole answers."""
        data = self.output.read_bytes() if self.output.exists() else b""
        return [line for line in data[:data.rfind(b"\n") + 1].splitlines(keepends=True) if line != JUNK]


class Point:
    def __init__(self, call, number, what):
        self.call, self.number, self.what = call, number, what

    def __str__(self):
        return f"{self.call}:{self.what}:when={self.number}"


def strace(log, *expressions):
    return ["strace", "-f", "-qq", "--seccomp-bpf", "-o", str(log), *(word for e in expressions for word in ("-e", e))]


def may_trace():
    if shutil.which("strace") is None:
        return False
    probe = subprocess.run([*strace("/dev/null", "trace=close", "inject=close:error=EIO:when=1000"), "true"], capture_output=True)
    return probe.returncode == 0


def count_calls(job, calls):
    """The most that one thread makes of each call, when nothing fails; how many of them the loader makes; and all of them."""
    log = job.folder / "strace"
    done = job.run(*strace(log, "trace=prlimit64," + ",".join("?" + call for call in calls)))
    assert done.returncode == 0 and len(job.lines()) == len(REQUESTS), done.stderr
    text = log.read_text()
    main_begins = text.index("RLIMIT_CORE")  # the first call that main() makes and the loader does not

    def counted(part):
        return collections.Counter(re.findall(r"^(\d+) +(\w+)\(", part, re.MULTILINE))

    most, total, loading = collections.Counter(), collections.Counter(), collections.Counter()
    for (_, call), count in counted(text).items():
        most[call] = max(most[call], count)
        total[call] += count
    for (_, call), count in counted(text[:main_begins]).items():
        loading[call] = count
    for each in most, total, loading:
        del each["prlimit64"]
    return most, loading, total


def spread(first, last, points):
    """first to last, or `points` of them."""
    if last - first < points:
        return list(range(first, last + 1))
    return sorted({first + round(i * (last - first) / (points - 1)) for i in range(points)})


def check(point, done, job, undisturbed):
    """What may come of a fault: all answers, or one line of a known kind; never an answer that differs."""
    said = done.stderr.decode(errors="replace")
    lines, undisturbed = job.lines(), undisturbed.lines()
    assert len(set(lines)) == len(lines) and set(lines) <= set(undisturbed), "an answer is repeated or differs"
    if point.what == "signal=SIGKILL":
        assert done.returncode == -9 or (done.returncode == 0 and len(lines) == len(undisturbed)), done.returncode
        return "killed"
    if done.returncode == 0:
        assert len(lines) == len(undisturbed), "says that all is well, and answers are missing"
        return "did no harm"
    if done.returncode == 127 and "error while loading shared libraries" in said:
        return "refused by the loader"
    assert done.returncode in KNOWN_CODES, f"exit code {done.returncode}: {said}"
    errors = [line for line in said.splitlines() if not re.search(": no space for a result; |damaged lines are now in|is computed again$", line)]
    hidden = point.call in ("write", "writev") and errors == []  # it was the message that could not be written
    assert hidden or (len(errors) == 1 and errors[0].startswith("weft: error: ")), f"wanted one line: {said}"
    return f"exit code {done.returncode}"


def one_point(weft, model, folder, way, point, undisturbed):
    job = Job(weft, model, folder, way, undisturbed)
    result, done = "hung", None
    before = job.lines()
    try:
        done = job.run(*strace(folder / "strace", f"trace={point.call}", f"inject={point}"))
        result = check(point, done, job, undisturbed)
        kept = job.lines()
        assert kept[:len(before)] == before, "an earlier answer was lost or changed"
        kept = kept[:job.durable_lines()]
        again = job.run(resume=True)
        assert again.returncode == 0, f"--resume: exit code {again.returncode}: {again.stderr.decode()}"
        assert job.lines()[:len(kept)] == kept, "--resume changed an answer"
        assert sorted(job.lines()) == sorted(undisturbed.lines()), "--resume: answers are missing or differ"
        assert job.output.read_bytes() == b"".join(job.lines()), "--resume: the output has more than answers"
        left = {p.name for p in folder.iterdir()} - {"out.sorted.jsonl", "out.jsonl.bad"}
        assert left == {"in.jsonl", "out.jsonl", "out.jsonl.run.json", "out.jsonl.sums", "strace"}, f"left behind: {left}"
        if way.then == JUNK:
            assert set((folder / "out.jsonl.bad").read_bytes().splitlines(keepends=True)) == {JUNK}, "a damaged line is lost"
    except (AssertionError, OSError, subprocess.TimeoutExpired) as problem:
        return result, f"{point}: {problem}\n  {' '.join(done.args) if done else ''}"
    shutil.rmtree(folder)
    return result, None


def points_of(most, loading, limit):
    for call, count in most.items():
        for number in sorted({max(1, loading[call]), *spread(loading[call] + 1, count, limit)}):
            yield Point(call, number, "error=EIO")
            yield Point(call, number, "signal=SIGKILL")
            if call in WRITES:
                yield Point(call, number, "error=ENOSPC")


def campaign(weft, model, root, way, options):
    """All points of one way to run the job. Returns how many failed."""
    root.mkdir()
    undisturbed = Job(weft, model, root / "undisturbed", way)
    done = undisturbed.run()
    assert done.returncode == 0 and len(undisturbed.lines()) == len(REQUESTS), done.stderr
    most, loading, total = count_calls(Job(weft, model, root / "counted", way, undisturbed), options.calls)
    points = list(points_of(most, loading, options.points))
    sampled = [call for call in sorted(most) if most[call] - loading[call] > options.points]
    print(f"{way}:\n  calls when nothing fails (most of one thread, of these the loader's): " +
          ", ".join(f"{call} {total[call]} ({most[call]}, {loading[call]})" for call in sorted(most)))
    print(f"  {len(points)} points; " + (f"{options.points} each, evenly, of {', '.join(sampled)}" if sampled else "all of them"))
    results, problems = collections.Counter(), []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(one_point, weft, model, root / f"{number}", way, point, undisturbed)
                for number, point in enumerate(points)]
        for run in concurrent.futures.as_completed(runs):
            result, problem = run.result()
            results[result] += 1
            if problem:
                problems.append(problem)
                print("  " + problem, file=sys.stderr)
    print("  " + ", ".join(f"{result}: {count}" for result, count in sorted(results.items())) +
          f"; {len(problems)} of {len(points)} points failed", flush=True)
    return len(problems)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weft")
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--ways", type=lambda text: [int(way) for way in text.split(",")], default=range(len(WAYS)))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--calls", type=lambda text: text.split(","), default=CALLS)
    parser.add_argument("--third", type=int, choices=(0, 1, 2), help="every third one of the calls, from this one on")
    options = parser.parse_args()
    if options.third is not None:
        options.calls = options.calls[options.third::3]
    if not may_trace():
        print("skipped: strace is not installed, or tracing is not permitted here")
        return SKIPPED
    weft = Weft(pathlib.Path(options.weft).resolve())
    with tempfile.TemporaryDirectory(prefix="weft-faults-") as name:
        root = pathlib.Path(name)
        model = write_tiny_model(root / "tiny", num_hidden_layers=1)
        failed = sum(campaign(weft, model, root / f"way{number}", way, options) for number, way in enumerate(WAYS)
                     if number in options.ways)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
