#!/usr/bin/env python3
"""scripts/gpu_check.sh without a GPU: its steps on the CPU, its results after each of them, and what it refuses.

Usage: gpu_check_test.py SOURCE_FOLDER BUILD_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = None
BUILD = None
PARTS = ["machine", "smoke", "headline", "ceilings", "workloads", "agreement", "tests", "more", "sanitizer"]
WITH_WORKLOADS = ["headline", "workloads", "more"]  # their results are among the workloads
WORKLOADS = [f"demo 16+{tokens} {kept}" for tokens in (40, 8) for kept in ("full", "h2o:0.1:0.1")]
GPU = "Some GPU, 16384 MiB, driver 1"


class Check(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-gpu-check-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = self.folder / "out"

    def run_script(self, *flags, path=None):
        environment = dict(os.environ, PATH=f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"])
        return subprocess.run([SOURCE / "scripts/gpu_check.sh", "--build", BUILD, *flags], capture_output=True,
                              text=True, timeout=120, env=environment)

    def results(self):
        return json.loads((self.out / "results.json").read_text())

    def test_every_part_leaves_whole_results(self):
        for done, part in enumerate(PARTS, 1):
            run = self.run_script("--dry-run", "--out", self.out, "--only", part, "--resume", "--sweeps", "4")
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            results = self.results()
            for other in PARTS:
                if other not in WITH_WORKLOADS:
                    self.assertEqual(results[other] is not None, PARTS.index(other) < done, f"{other} after {part}")
            measured = [workload is not None for workload in results["workloads"].values()]
            self.assertEqual(measured, [done > PARTS.index("headline")] * 2 + [done > PARTS.index("workloads")] * 2)
        self.assertTrue(results["dry_run"])
        self.assertGreater(results["tests"]["test_offload"]["passed"], 20)
        self.assertEqual(results["tests"]["test_offload"]["failed"], 0)
        self.assertGreater(results["smoke"]["test_kernels"]["passed"], 0)
        self.assertGreater(results["agreement"]["test_runtime"]["passed"], 0)
        self.assertGreater(results["ceilings"]["dram_read_bytes_per_second"], 0)
        for name, workload in results["workloads"].items():
            with self.subTest(name):
                self.assertGreater(workload["tokens_per_second"]["total"]["median"], 0)
                self.assertEqual(workload["measured"], "+8 " in name)
                if "+8 " not in name:
                    continue  # of the headline: it ran before the ceilings were known
                for phase in ("prefill", "decode", "total"):
                    self.assertGreater(workload["bound"][phase]["tokens_per_second"], 0)
                    self.assertGreater(workload["bound"][phase]["achieved"], 0)
        table = (self.out / "table.md").read_text()
        for line in ("| test_offload |", "| dram_read |", *(f"| {name} |" for name in results["workloads"])):
            self.assertIn(line, table)

    def test_a_kill_at_any_step_leaves_a_whole_report(self):
        # Each run goes on where the one before was killed. What a killed one has last written may not be in its report.
        workloads = [name.replace(" ", "-").replace("+", "-").replace(":", "-") for name in WORKLOADS]
        files = ["machine", "smoke", *workloads[:2], "ceilings", *workloads[2:], "agreement", "tests", "sanitizer"]
        self.assertEqual([name for name in PARTS if name not in WITH_WORKLOADS],
                         [name for name in files if name in PARTS])
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
                self.assertEqual(list(results["workloads"]), WORKLOADS)
                table = (self.out / "table.md").read_text()
                self.assertTrue(table.startswith("# weft on dry run"))
                for earlier in files[:max(0, done - 1)]:
                    if earlier in workloads:
                        name = WORKLOADS[workloads.index(earlier)]
                        self.assertIsNotNone(results["workloads"][name], name)
                        self.assertIn(f"| {name} |", table)
                    else:
                        self.assertIsNotNone(results[earlier], earlier)

    def test_how_long_steps_would_take(self):
        for machine in ("t4", "h100", "h200", "a100-80gb"):
            with self.subTest(machine):
                run = self.run_script("--dry-run", "--machine", SOURCE / f"configs/machines/{machine}.json")
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                lines = [line.split(None, 2) for line in run.stdout.splitlines()]
                steps = [(words[2], int(words[0])) for words in lines if words[1] == "s" and "in all" not in words[2]]
                self.assertEqual([name.split(":")[0] for name, _ in steps[:4]],
                                 ["machine", "smoke", "opt-30b 512+512 full", "opt-30b 512+512 h2o"])
                total = sum(seconds for _, seconds in steps)
                self.assertEqual(run.stdout.splitlines()[-1].split(), f"{total} s in all, of 540".split())
                self.assertLess(total, 540)
                for name in ("ceilings", "agreement", "tests", "opt-6.7b 512+1024"):
                    self.assertTrue(any(step.startswith(name) for step, _ in steps), name)
        self.assertFalse((SOURCE / "docs/results").exists() and list((SOURCE / "docs/results").glob("dry-run*")))

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
        self.assertEqual(len(self.results()["notes"]), len(PARTS))
        self.assertIn("ceilings: skipped, for the 0 minutes are over", (self.out / "table.md").read_text())

    @unittest.skipIf(shutil.which("nvidia-smi"), "there may be a GPU")
    def test_a_gpu_that_fails_is_said_in_the_results(self):
        fake = self.folder / "bin"
        fake.mkdir()
        (fake / "nvidia-smi").write_text("""#!/bin/sh
case "$*" in
  *driver_version*) echo "1, 16384 MiB, 4, 5, 8, 16" ;;
  *memory.total*) echo 16384 ;;
  *) echo "Some GPU" ;;
esac
""")
        (fake / "nvidia-smi").chmod(0o755)
        run = self.run_script("--out", self.out, "--only", "machine,headline,ceilings,workloads,more", path=fake)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        results = self.results()
        self.assertEqual(results["machine"]["gpu"], GPU)
        self.assertEqual(results["machine"]["link"], "PCIe generation 4 of 5, width 8 of 16")
        self.assertIsNone(results["ceilings"])
        self.assertEqual(len(results["workloads"]), 12)
        for workload in results["workloads"].values():
            self.assertIn("--backend cpu", workload["error"])  # weft's own line

    def test_what_is_refused(self):
        refused = [("no part 'tets'", "--dry-run", "--only", "tets"), ("unknown flag '--fast'", "--fast"),
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
