#!/usr/bin/env python3
"""Runs a tier of the tests of a build by ctest, prints the ten slowest, and fails if a test of the default tier takes
longer than somebody would wait for it.

    scripts/dev/run_tests.py [--preset release] [--fast | --exhaustive | --part K] [CTEST ARGUMENT...]

    --fast         the tests of the label "fast"
    --exhaustive   all tests
    --part K       the default tier, and the K-th of seven parts of the exhaustive one, which cost alike

What tests write goes to memory if /dev/shm has room and does direct transfers, unless TMPDIR is set; tests of the disk
itself have a folder of the build. Exhaustive tests that draw at random take their seed from WEFT_TEST_SEED, by default
a number made from the commit."""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = 7
MOST_SECONDS = 30  # of a default test, on a machine that counts as fast as the one where this was set
REFERENCE = 0.05  # seconds that count() takes there
MEMORY = pathlib.Path("/dev/shm")
MOST_IN_MEMORY = 4 << 30  # free bytes that it takes; tests write far less at a time
LINE = re.compile(r"^ *\d+/\d+ Test +#\d+: (.+?) \.*(\*\*\*\w+| +Passed| +Not Run| +Skipped).*? (\d+\.\d+) sec")


def count():
    """A fixed piece of work for one core."""
    begin, total = time.perf_counter(), 0
    for i in range(1_000_000):
        total += i & 7
    return time.perf_counter() - begin


def slowness():
    """How many times slower this machine is than the reference, at least 1. The best of several tries, as others may run."""
    return max(1.0, min(count() for _ in range(9)) / REFERENCE)


def property_of(test, name, default):
    return next((p["value"] for p in test.get("properties", []) if p["name"] == name), default)


def labels_of(test):
    return property_of(test, "LABELS", [])


def bundles(tests):
    """The exhaustive tests as (cost, names). Those that need the same fixture come together, so that one part makes it."""
    together = {}
    for test in tests:
        if "exhaustive" in labels_of(test):
            fixture = property_of(test, "FIXTURES_SETUP", []) + property_of(test, "FIXTURES_REQUIRED", [])
            together.setdefault(fixture[0] if fixture else "test " + test["name"], []).append(test)
    return [(sum(property_of(test, "COST", 1) for test in bundle), sorted(test["name"] for test in bundle))
            for bundle in together.values()]


def chosen(tests, part):
    """The numbers of the tests of the default tier and of a part of the exhaustive one; tests are in ctest's order. The
    dearest bundle goes to the cheapest part so far, then the next."""
    parts = [(0, number, set()) for number in range(PARTS)]
    for cost, names in sorted(bundles(tests), key=lambda bundle: (-bundle[0], bundle[1])):
        so_far, number, mine = min(parts, key=lambda each: each[:2])
        parts[number] = (so_far + cost, number, mine.union(names))
    return [i for i, test in enumerate(tests, 1) if test["name"] in parts[part][2] or "exhaustive" not in labels_of(test)]


def commit_seed():
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return str(int(done.stdout[:7], 16) if done.returncode == 0 else 2)


def takes_files(folder):
    """Whether tests can write there as to a disk: enough, programs too, opened for direct transfers (Linux 6.6 and later)."""
    try:
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return False
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            os.close(os.open(file.name, os.O_RDWR | os.O_DIRECT))
        return shutil.disk_usage(folder).free >= MOST_IN_MEMORY
    except OSError:
        return False


@contextlib.contextmanager
def scratch():
    """Sets TMPDIR to a folder in memory, which goes away at the end."""
    if "TMPDIR" in os.environ or not takes_files(MEMORY):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="weft-tests-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)  # tests act as other users too
        os.environ["TMPDIR"] = folder
        yield


def run(command):
    """Shows ctest's output as it comes. Returns its exit code, seconds by test, and the lines that sum it up."""
    seconds, summary = {}, []
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace")
    for line in process.stdout:
        print(line, end="", flush=True)
        if match := LINE.match(line):
            seconds[match.group(1)] = float(match.group(3))
        if re.match(r"\d+% tests passed|Total Test time", line):
            summary.append(line)
    return process.wait(), seconds, summary


def alone(preset, name):
    """Seconds of one test with nothing beside it."""
    begin = time.perf_counter()
    subprocess.run(["ctest", "--preset", preset, "-R", f"^{re.escape(name)}$"], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--preset", default="release")
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument("--fast", action="store_true")
    tier.add_argument("--exhaustive", action="store_true")
    tier.add_argument("--part", type=int, choices=range(PARTS))
    options, arguments = parser.parse_known_args()
    os.environ.setdefault("WEFT_TEST_SEED", commit_seed())
    factor = slowness()
    ctest = ["ctest", "--preset", options.preset]
    listed = json.loads(subprocess.run([*ctest, "--show-only=json-v1"], cwd=ROOT, capture_output=True, text=True,
                                       check=True).stdout)["tests"]
    slow_allowed = {test["name"] for test in listed if "exhaustive" in labels_of(test)}
    with scratch(), tempfile.NamedTemporaryFile("w", suffix=".txt") as numbers:
        if options.fast:
            ctest += ["-L", "fast"]
        elif options.part is not None:
            numbers.write(",".join(map(str, ["0", "0", "0", *chosen(listed, options.part)])))
            numbers.flush()
            ctest += ["-I", numbers.name]
        elif not options.exhaustive:
            ctest += ["-LE", "exhaustive"]
        code, seconds, summary = run([*ctest, *arguments])
    print("\nThe slowest tests:")
    for name, time_taken in sorted(seconds.items(), key=lambda item: -item[1])[:10]:
        print(f"  {time_taken:7.2f} s  {name}")
    most = MOST_SECONDS * factor
    beside = 2  # four tests on two cores
    late = [name for name, time_taken in seconds.items() if time_taken > most * beside and name not in slow_allowed]
    if options.preset == "release":  # what was slow beside others is judged by itself
        late = [name for name in late if alone(options.preset, name) > most]
    if late and options.preset == "release":
        print(f"More than {most:.0f} s, which no test of the default tier may take (30 s, on a machine {factor:.1f} times as "
              f"fast): {', '.join(late)}. Split it, or give it the label exhaustive.")
        code = code or 1
    print("", *summary, sep="", end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
