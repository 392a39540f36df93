#!/usr/bin/env python3
"""scripts/gpu_check.sh without a GPU: its steps on the CPU, its results after each of them, and what it refuses.

Usage: gpu_check_test.py SOURCE_FOLDER BUILD_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

SOURCE = None
BUILD = None
STEPS = {"first": ["smoke", "demo", "rates", "agreement"], "headline": ["headline", "accelerate"],
         "resident": ["resident", "transformers"],
         "rest": ["ceilings", "workloads", "link", "tests", "more", "sanitizer"]}
SECONDS = {"first": 120, "headline": 300, "resident": 120, "rest": 540}
FORMATS = ["h2o:0.1:0.1 int4+int8", "h2o:0.1:0.1 int8+int8", "h2o:0.1:0.1", "full"]  # of the headline, in its order
WORKLOADS = {"headline": [f"demo 16+40 {kept}" for kept in FORMATS],
             "resident": [f"demo 16+8 {kept} resident" for kept in ("full", "h2o:0.1:0.1")],
             "rest": ["demo 16+8 full", "demo 16+8 h2o:0.1:0.1", "demo 16+8 full over the link"]}
ALL_WORKLOADS = [name for names in WORKLOADS.values() for name in names]
FIRST_SECONDS = 20  # until there is an archive; on a machine that does nothing else a fraction of one
GPU = "Some GPU, 16384 MiB, driver 1"
# Stand-ins for a GPU, and for a Python that has the peers' packages.
NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *driver_version*) echo "1, 16384 MiB, 4, 5, 8, 16" ;;
  *memory.total*) echo 16384 ;;
  *) echo "Some GPU" ;;
esac
"""
PYTHON = f"""#!/bin/sh
case "$1" in
  -c) exit 0 ;;
  */run_accelerate.py) echo loading; echo '{{"prefill_seconds": 8, "decode_seconds": 24, "decode_tokens": 24,
    "prompt_tokens": 4096, "batch": 8}}' | tr -d '\\n' ; echo ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


class Check(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-gpu-check-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = self.folder / "out"

    def run_script(self, *flags, path=None):
        environment = dict(os.environ, PATH=f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"])
        return subprocess.run([SOURCE / "scripts/gpu_check.sh", "--build", BUILD, *flags], capture_output=True,
                              text=True, timeout=600, env=environment)

    def results(self):
        return json.loads((self.out / "results.json").read_text())

    def archived(self, archive):
        """The results in an archive, which must be whole."""
        with tarfile.open(archive) as file:
            for member in file:
                if member.isfile():
                    file.extractfile(member).read()
            names = set(file.getnames())
            self.assertLessEqual({"results.json", "table.md", "parts", "logs"}, names)
            return json.load(file.extractfile("results.json")), names

    def sources(self):
        """All files of the source tree but what builds and Python itself put there."""
        return {path.relative_to(SOURCE) for top in SOURCE.iterdir() if top.name not in ("build", ".git")
                for path in (top.rglob("*") if top.is_dir() else [top]) if "__pycache__" not in path.parts}

    def assert_whole(self, part, results):
        for step in STEPS[part]:
            if step in results and step not in ("accelerate", "transformers"):  # which a dry run leaves out
                self.assertIsNotNone(results[step], step)
        for name in WORKLOADS.get(part, []):
            workload = results["workloads"][name]
            self.assertGreater(workload["tokens_per_second"]["total"]["median"], 0, name)
            self.assertEqual(workload["measured"], "+8 " in name, name)

    def test_the_first_part(self):
        before = self.sources()
        run = self.run_script("--dry-run", "--part", "first", "--out", self.out, "--archive", self.folder / "a.tar.gz")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        results, names = self.archived(self.folder / "a.tar.gz")
        self.assertEqual(results, self.results())
        self.assert_whole("first", results)
        self.assertEqual(results["probe"]["device"], "simulated device")
        self.assertTrue(results["probe"]["registered_64_mib"]["kernel_writes"])
        self.assertGreater(results["probe"]["registered_64_mib"]["to_device_bytes_per_second"], 0)
        self.assertEqual((results["demo"]["answers"], results["demo"]["equal"]), (12, 12))
        self.assertGreater(results["smoke"]["test_kernels"]["passed"], 0)
        self.assertGreater(results["agreement"]["test_runtime"]["passed"], 0)
        self.assertIn("rates.json", names)
        self.assertTrue(json.loads((self.out / "rates.json").read_text())["measured"])
        self.assertEqual(self.sources(), before)
        # The next part plans with these rates, and keeps what there is.
        run = self.run_script("--dry-run", "--part", "resident", "--only", "machine,resident", "--out", self.out)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        results, _ = self.archived(self.out / "resident.tar.gz")
        self.assert_whole("first", results)
        self.assert_whole("resident", results)
        for name in WORKLOADS["resident"]:
            self.assertGreater(results["workloads"][name]["predicted"]["tokens_per_second"]["total"], 0)
            self.assertIn(f"| {name} |", (self.out / "table.md").read_text())

    def test_every_part_is_whole_whenever_it_ends(self):
        # What is in its files at a time is what a kill would leave then.
        for part in STEPS:
            with self.subTest(part):
                out = self.folder / part
                begin, seen = time.monotonic(), 0
                with subprocess.Popen([SOURCE / "scripts/gpu_check.sh", "--build", BUILD, "--dry-run", "--part", part, "--out",
                                       out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                      text=True) as run:
                    while run.poll() is None:
                        time.sleep(0.1)
                        if not (out / f"{part}.tar.gz").exists() and not seen and time.monotonic() < begin + FIRST_SECONDS:
                            continue
                        results, _ = self.archived(out / f"{part}.tar.gz")
                        self.assertEqual(list(results["workloads"]), ALL_WORKLOADS)
                        steps = sum(value is not None for value in [*results.values(), *results["workloads"].values()])
                        self.assertGreaterEqual(steps, seen)
                        seen = steps
                    self.assertEqual(run.returncode, 0, run.stderr.read())
                self.assertLess(time.monotonic() - begin, SECONDS[part])
                results, _ = self.archived(out / f"{part}.tar.gz")
                self.assert_whole(part, results)
                self.assertEqual([n for n, w in results["workloads"].items() if w], WORKLOADS.get(part, []))
                self.assertTrue(results["dry_run"])
                self.assertIsNotNone(results["probe"])
        results, _ = self.archived(self.folder / "rest/rest.tar.gz")
        self.assertGreater(results["tests"]["test_offload"]["passed"], 20)
        self.assertEqual(results["tests"]["test_offload"]["failed"], 0)
        self.assertGreater(results["ceilings"]["dram_read_bytes_per_second"], 0)
        for name in WORKLOADS["rest"]:
            for phase in ("prefill", "decode", "total"):
                self.assertGreater(results["workloads"][name]["bound"][phase]["achieved"], 0)
        table = (self.folder / "rest/table.md").read_text()
        for line in ("| test_offload |", "| dram_read |", *(f"| {name} |" for name in WORKLOADS["rest"])):
            self.assertIn(line, table)

    def test_a_kill_at_any_step_leaves_a_whole_report(self):
        # Each run goes on where the one before was killed. What a killed one has last written may not be in its report.
        workloads = [name.replace(" ", "-").replace("+", "-").replace(":", "-") for name in ALL_WORKLOADS]
        files = ["machine", "probe", "smoke", "demo", "rates", "agreement", *workloads[:6], "ceilings", *workloads[6:],
                 "tests", "sanitizer"]
        for done, step in enumerate(["results.json", *(f"parts/{name}.json" for name in files)]):
            with self.subTest(step):
                run = subprocess.Popen([SOURCE / "scripts/gpu_check.sh", "--build", BUILD, "--dry-run", "--out", self.out,
                                        "--resume", "--sweeps", "2"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, start_new_session=True)
                begin = time.monotonic()
                while not (self.out / step).exists() and run.poll() is None and time.monotonic() < begin + 110:
                    time.sleep(0.01)
                time.sleep(0.03 * (done % 3))  # at once, or amid what follows
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
                self.assertTrue((self.out / step).exists())
                results = self.results()
                if done > 0:  # else it was killed as it wrote its first
                    self.archived(self.out / "all.tar.gz")
                self.assertEqual(list(results["workloads"]), ALL_WORKLOADS)
                table = (self.out / "table.md").read_text()
                self.assertTrue(table.startswith("# weft on dry run"))
                for earlier in files[:max(0, done - 1)]:
                    if earlier in workloads:
                        name = ALL_WORKLOADS[workloads.index(earlier)]
                        self.assertIsNotNone(results["workloads"][name], name)
                        self.assertIn(f"| {name} |", table)
                    else:
                        self.assertIsNotNone(results[earlier], earlier)

    def forecast(self, machine, part):
        """The steps of a part, with their seconds, which must be within the part's."""
        run = self.run_script("--dry-run", "--machine", SOURCE / f"configs/machines/{machine}.json", "--part", part)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        title, *lines = run.stdout.splitlines()
        self.assertEqual(title, f"{part}:")
        steps = [(what.split(": ")[0], int(seconds)) for seconds, what in
                 re.findall(r"(?m)^ *(\d+) s  (?!in all)(.*)$", run.stdout)]
        total = sum(seconds for _, seconds in steps)
        self.assertEqual(lines[-1].split(), f"{total} s in all, of {SECONDS[part]}".split())
        self.assertLessEqual(total, SECONDS[part])
        names = [name for name, _ in steps]
        self.assertEqual(names[:2], ["machine", "probe"])
        if part != "rest":  # which leaves out what its time is too short for
            self.assertEqual(len(names), len(lines) - 1, run.stdout)
        return names[2:]

    def test_how_long_short_parts_would_take(self):
        before = self.sources()
        for machine in ("t4", "h100", "h200", "a100-80gb"):
            with self.subTest(machine):
                self.assertEqual(self.forecast(machine, "first"), STEPS["first"])
                self.assertEqual(self.forecast(machine, "resident"), [
                    "opt-6.7b 512+32 full resident", "opt-6.7b 512+128 h2o:0.1:0.1 resident",
                    "opt-6.7b 512+32 h2o:0.1:0.1 int8+int8 resident", "transformers"])
        self.assertEqual(self.sources(), before)

    def test_how_long_parts_would_take(self):
        for machine in ("t4", "h100", "h200", "a100-80gb"):
            with self.subTest(machine):
                self.assertEqual(self.forecast(machine, "headline"),
                                 [*(f"opt-30b 512+512 {kept}" for kept in FORMATS), "accelerate"])
                rest = self.forecast(machine, "rest")
                self.assertLessEqual({"ceilings", "opt-6.7b 512+512 h2o:0.1:0.1", "opt-6.7b 512+512 full over the link"},
                                     set(rest))

    def test_one_workload_to_its_end(self):
        name = "demo 16+40 h2o:0.1:0.1"
        run = self.run_script("--dry-run", "--out", self.out, "--only", "workloads", "--sweeps", "4", "--full", name)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        workloads = self.results()["workloads"]
        self.assertEqual([n for n, workload in workloads.items() if workload], [name])
        self.assertTrue(workloads[name]["measured"])
        self.assertNotIn("bound", workloads[name])  # no ceilings were taken

    def test_without_time_all_is_skipped_and_said(self):
        run = self.run_script("--dry-run", "--out", self.out, "--minutes", "0")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(len(self.results()["notes"]), 2 + sum(map(len, STEPS.values())))
        self.assertIn("ceilings: skipped, for the time of rest is over", (self.out / "table.md").read_text())

    @unittest.skipIf(shutil.which("nvidia-smi"), "there may be a GPU")
    def test_a_gpu_that_fails_is_said_in_the_results(self):
        fake = self.folder / "bin"
        fake.mkdir()
        for name, text in (("nvidia-smi", NVIDIA_SMI), ("python3", PYTHON)):
            (fake / name).write_text(text)
            (fake / name).chmod(0o755)
        run = self.run_script("--out", self.out, "--only", "machine,headline,accelerate,ceilings,workloads,more", path=fake)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        results = self.results()
        self.assertEqual(results["machine"]["gpu"], GPU)
        self.assertEqual(results["machine"]["link"], "PCIe generation 4 of 5, width 8 of 16")
        self.assertIsNone(results["ceilings"])
        tried = {name: workload for name, workload in results["workloads"].items() if workload}
        self.assertEqual(len(tried), 4 + 6 + 4)
        for workload in tried.values():
            self.assertIn("--backend cpu", workload["error"])  # weft's own line
        # The peer, which stands in for itself: a decode step of 8 sequences took 8 s.
        self.assertEqual(results["accelerate"]["batch"], 8)
        self.assertAlmostEqual(results["accelerate"]["decode"], 1.0)
        self.assertAlmostEqual(results["accelerate"]["total"], 8 * 512 / (8 + 511 * 8))
        self.assertIn("| accelerate, opt-30b 512+512 | 8 | 1.00 |", (self.out / "table.md").read_text())

    def test_what_is_refused(self):
        refused = [("no step 'tets'", "--dry-run", "--only", "tets"), ("unknown flag '--fast'", "--fast"),
                   ("no part 'last'", "--dry-run", "--part", "last"),
                   ("--machine: x.json cannot be read", "--dry-run", "--machine", "x.json"),
                   ("no workload 'x'", "--dry-run", "--full", "x"), ("--minutes wants", "--minutes", "soon"),
                   ("--out wants a value", "--out"), ("--resume wants --out", "--dry-run", "--resume")]
        if not shutil.which("nvidia-smi"):
            refused.append(("no NVIDIA GPU", "--out", self.out))
        for words, *flags in refused:
            with self.subTest(words):
                run = self.run_script(*flags)
                self.assertEqual(run.returncode, 2)
                self.assertTrue(run.stderr.startswith("gpu_check: error: "), run.stderr)
                self.assertEqual(run.stderr.count("\n"), 1)
                self.assertIn(words, run.stderr)
                self.assertFalse(self.out.exists())


if __name__ == "__main__":
    SOURCE, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
