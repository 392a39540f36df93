#!/usr/bin/env python3
"""Kills a running job at random moments and resumes it: nothing lost, nothing repeated, every answer as if undisturbed.

Usage: kill_test.py WEFT_BINARY SOURCE_FOLDER [--parts anywhere,amid,signals] [--kills N] [--anywhere N] [--seed N]

The part "anywhere" kills a tiny job N times, at any moment of its life from the start of the process to its end. The part
"amid" kills a job with longer answers. The part "signals" stops jobs by SIGINT, SIGTERM and a second run.

A job is killed, resumed, perhaps killed again, until it is done; then the next job begins. A kill counts as "amid" if the
output held at least one whole answer and not all of them when the process died.
"""

import argparse
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, crowding, read_lines, wait_until_it_listens, write_lines, write_tiny_model  # noqa: E402

REQUESTS = 60
LEAST_AMID = 0.8


def requests():
    """Lengths differ, so that answers come out one by one and blocks end raggedly; a third is sampled, half of it twice."""
    words = "the sea and a dark night when old men looked at every door of that house in silence".split()
    return [{"id": i if i % 2 else f"request {i}", "prompt": " ".join(words[i % 7:i % 7 + 3 + i % 11]),
             "max_tokens": 20 + 37 * i % 101, **({"temperature": 0.9, "seed": i, "n": 1 + i % 2} if i % 3 == 0 else {})} for i in range(REQUESTS)]


def whole_lines(path):
    """The answers whose newline is on disk, byte for byte."""
    data = path.read_bytes() if path.exists() else b""
    return data[:data.rfind(b"\n") + 1].splitlines(keepends=True)


class Job:
    def __init__(self, weft, model, folder, spread_over_tiers):
        self.weft, self.input, self.output = weft, folder / "in.jsonl", folder / "out.jsonl"
        write_lines(self.input, requests())
        placement = ["--percent", 34, 33, 34, 33, 34, 33] if spread_over_tiers else []
        self.flags = ["generate", "--model", model, "--input", self.input, "--backend", "cpu", "--quiet", "--threads", 2,
                      "--gpu-batch-size", 5, "--num-gpu-batches", 2, "--retention", "h2o:0.2:0.2", *placement]

    def start(self, resume, output=None):
        return self.weft.start(*self.flags, "--output", output or self.output, *(["--resume"] if resume else []))

    def finish(self, process, code=0):
        said = process.communicate(timeout=HANGS)[1].decode()
        assert process.returncode == code, f"exit code {process.returncode}, wanted {code}: {said}"
        return said


def by_id(lines):
    """Answers by the text of their id; two with one id fail."""
    answers = {}
    for line in lines:
        key = line[:min(line.find(b',"text"') % len(line), line.find(b',"choices"') % len(line))]
        assert key not in answers, f"answered twice: {key.decode()}"
        answers[key] = line
    return answers


def kill_when(process, output, answers, extra_seconds):
    """SIGKILL once the output holds `answers` answers and a moment has passed. False if the job ended before."""
    while process.poll() is None and len(whole_lines(output)) < answers:
        time.sleep(0.001)
    time.sleep(extra_seconds)
    if process.poll() is not None:
        return False
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def kills_anywhere(weft, kills, seed):
    """Each kill is followed by a --resume, which may be killed as well; the moments are even over a whole run's time."""
    choice = random.Random(seed)
    ways = [[], ["--durability=power"], ["--ordered"], ["--percent", 34, 33, 34, 33, 34, 33]]
    resident = ["--percent", 100, 0, 100, 0, 100, 0]
    wanted = [{"id": i if i % 2 else f"request {i}", "prompt_ids": [3, 4 + i % 60, 5], "max_tokens": 2 + i % 40} for i in range(120)]
    with tempfile.TemporaryDirectory(prefix="weft-kill-") as name:
        folder = pathlib.Path(name)
        model = write_tiny_model(folder / "tiny")
        output, allowed = folder / "out.jsonl", {"tiny", "in.jsonl", "out.jsonl", "out.jsonl.run.json", "out.jsonl.sums"}
        write_lines(folder / "in.jsonl", wanted)

        def start(way):
            return weft.start("generate", "--model", model, "--input", folder / "in.jsonl", "--output", output, "--backend",
                              "cpu", "--quiet", "--threads", 1, "--gpu-batch-size", 8, "--num-gpu-batches", 2,
                              *([] if "--percent" in way else resident), *way, *(["--resume"] if output.exists() else []))

        seconds = []
        for _ in range(3):  # the first warms the page cache
            begin = time.monotonic()
            process = start([])
            said = process.communicate(timeout=HANGS)[1].decode()
            assert process.returncode == 0, said
            seconds.append(time.monotonic() - begin)
            undisturbed = by_id(whole_lines(output))
            output.unlink()
        assert len(undisturbed) == len(wanted)
        seconds, done, jobs, kept = min(seconds), 0, 0, []
        moments = {"before the output": 0, "before the first answer": 0, "amid": 0, "after the last": 0}
        while done < kills or output.exists():
            process = start(choice.choice(ways))
            if done < kills:
                time.sleep(choice.random() * 1.1 * seconds)
                process.kill()
            said = process.communicate(timeout=HANGS)[1].decode()
            assert process.returncode in (0, -signal.SIGKILL), said
            lines = whole_lines(output)
            assert lines[:len(kept)] == kept, "an earlier answer was lost or changed"
            assert all(undisturbed[key] == line for key, line in by_id(lines).items()), "an answer differs"
            kept = lines
            if process.returncode == -signal.SIGKILL:
                done += 1
                moments["before the output" if not output.exists() else "before the first answer" if not kept else
                        "amid" if len(kept) < len(wanted) else "after the last"] += 1
                continue
            assert len(lines) == len(wanted), "answers are missing"
            left = {path.name for path in folder.iterdir()} - {"out.sorted.jsonl"}
            assert left == allowed, f"left behind: {left - allowed}"
            output.unlink()
            (folder / "out.sorted.jsonl").unlink(missing_ok=True)
            kept, jobs = [], jobs + 1
    print(f"{done} kills anywhere in runs of {seconds:.2f} s ({', '.join(f'{moment}: {n}' for moment, n in moments.items())}); "
          f"{jobs} jobs of {len(wanted)} requests completed: 0 answers lost, 0 repeated, 0 different; seed {seed}")


def many_kills(weft, model, kills, seed):
    choice = random.Random(seed)
    done = amid = torn = jobs = 0
    with tempfile.TemporaryDirectory(prefix="weft-kill-") as name:
        layouts = [Job(weft, model, pathlib.Path(name), spread) for spread in (False, True)]
        job, begin = layouts[0], time.monotonic()
        job.finish(job.start(resume=False))
        undisturbed, seconds = by_id(whole_lines(job.output)), time.monotonic() - begin
        assert len(undisturbed) == REQUESTS
        job.output.unlink()
        kept = []
        while done < kills or kept:
            job = choice.choice(layouts)  # a disturbed run need not be laid out as the undisturbed one was
            process = job.start(resume=job.output.exists())
            if done < kills:
                most = max(len(kept) + 1, min(REQUESTS - 1, len(kept) + REQUESTS // 3))
                least = 0 if choice.random() < 0.05 else choice.randint(len(kept) + 1, most)
                if kill_when(process, job.output, least, choice.random() * seconds / 20):
                    before, kept = kept, whole_lines(job.output)
                    assert kept[:len(before)] == before, "an earlier answer was lost or changed"
                    assert all(undisturbed[key] == line for key, line in by_id(kept).items()), "an answer differs"
                    done += 1
                    amid += 0 < len(kept) < REQUESTS
                    torn += job.output.exists() and not job.output.read_bytes().endswith(b"\n") and job.output.stat().st_size > 0
                    continue
            job.finish(process)
            lines = whole_lines(job.output)
            assert lines[:len(kept)] == kept, "an earlier answer was lost or changed"
            assert by_id(lines) == undisturbed, "answers are missing or differ"
            job.output.unlink()
            kept, jobs = [], jobs + 1
        assert sorted(p.name for p in pathlib.Path(name).iterdir()) == ["in.jsonl", "out.jsonl.run.json", "out.jsonl.sums"], \
            "something was left behind"
    print(f"{done} kills, {amid} of them between the first and the last answer ({100 * amid / done:.0f} %), {torn} torn lines cut; "
          f"{jobs} jobs of {REQUESTS} requests completed: 0 answers lost, 0 repeated, 0 different; seed {seed}")
    assert amid >= LEAST_AMID * done, f"wanted at least {LEAST_AMID:.0%} of the kills amid the answers"


def interruption(weft, model, number):
    """SIGINT and SIGTERM: exit code 130 within 10 s, a hint how to go on, and the job can be resumed."""
    with tempfile.TemporaryDirectory(prefix="weft-kill-") as name:
        job = Job(weft, model, pathlib.Path(name), spread_over_tiers=True)
        process = job.start(resume=False)
        while process.poll() is None and len(whole_lines(job.output)) < 5:
            time.sleep(0.001)
        begin = time.monotonic()
        process.send_signal(number)
        said = job.finish(process, code=130)
        seconds = time.monotonic() - begin
        assert seconds < 10 * crowding(), f"took {seconds:.1f} s to stop"
        assert "--resume" in said and said.count("\n") == 1, said
        kept = whole_lines(job.output)
        assert 5 <= len(kept) < REQUESTS and len(kept) == len(read_lines(job.output)), "the output is not whole"
        job.finish(job.start(resume=True))
        assert whole_lines(job.output)[:len(kept)] == kept and len(by_id(whole_lines(job.output))) == REQUESTS
        print(f"{signal.Signals(number).name}: stopped after {seconds:.2f} s with {len(kept)} answers, resumed to {REQUESTS}")


def interruption_while_loading(weft, source):
    """Before there is an answer there is no output either, and the same command starts again."""
    with tempfile.TemporaryDirectory(prefix="weft-kill-") as name:
        folder = pathlib.Path(name)
        write_lines(folder / "in.jsonl", [{"id": 1, "prompt_ids": [3, 4], "max_tokens": 1}])
        process = weft.start("generate", "--model", source / "configs" / "models" / "opt-350m.json", "--weights", "random:1",
                             "--input", folder / "in.jsonl", "--output", folder / "out.jsonl", "--backend", "cpu",
                             "--percent", "100", "0", "100", "0", "100", "0", "--gpu-batch-size", "1",
                             "--num-gpu-batches", "1")  # nothing is left to plan, so that loading begins at once
        wait_until_it_listens(process)
        time.sleep(0.2)  # a fraction of what loading takes
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=HANGS)[1].decode()
        seconds = time.monotonic() - begin
        assert process.returncode == 130 and "stopped" in said, said
        assert seconds < 10 * crowding(), f"took {seconds:.1f} s to stop"
        assert [p.name for p in folder.iterdir()] == ["in.jsonl"], "something was left behind"
        print(f"SIGINT while loading: stopped after {seconds:.2f} s")


def second_run_on_one_output(weft, model):
    with tempfile.TemporaryDirectory(prefix="weft-kill-") as name:
        job = Job(weft, model, pathlib.Path(name), spread_over_tiers=False)
        first = job.start(resume=False)
        while first.poll() is None and not whole_lines(job.output):
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)  # it holds the file for as long as this takes
        try:
            assert "exists" in job.finish(job.start(resume=False), code=2)
            said = job.finish(job.start(resume=True), code=6)
            # Not every file system's locks name the process.
            assert re.search(rf"another run( \(process {first.pid}\))? is writing this file", said), said
        finally:
            first.send_signal(signal.SIGCONT)
        job.finish(first)
        assert len(by_id(whole_lines(job.output))) == REQUESTS
        print("a second run on one output: refused, with --resume and without")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weft")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--parts", default="anywhere,amid,signals")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--anywhere", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("WEFT_TEST_SEED", "1")))
    options = parser.parse_args()
    weft, model = Weft(pathlib.Path(options.weft).resolve()), options.source / "models" / "demo"
    parts = options.parts.split(",")
    if unknown := set(parts) - {"anywhere", "amid", "signals"}:
        parser.error(f"--parts: no part is called {', '.join(unknown)}")
    if "anywhere" in parts:
        kills_anywhere(weft, options.anywhere, options.seed)
    if "amid" in parts:
        many_kills(weft, model, options.kills, options.seed)
    if "signals" in parts:
        interruption(weft, model, signal.SIGINT)
        interruption(weft, model, signal.SIGTERM)
        interruption_while_loading(weft, options.source)
        second_run_on_one_output(weft, model)


if __name__ == "__main__":
    sys.exit(main())
