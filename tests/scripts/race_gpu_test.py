#!/usr/bin/env python3
"""scripts/compare/race_gpu.py without a GPU: the table of a recorded race, commands, a race on the CPU that goes on.

Usage: race_gpu_test.py WEFT SOURCE_FOLDER [unittest arguments]
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

WEFT = None
SOURCE = None
FASTER = 30.0  # of the recorded race, Weft with h2o


def recorded():
    def ran(system, total, batch, measured):
        return {"workload": "opt-30b 512+512", "system": system, "batch": batch, "total": total, "decode": 2 * total,
                "measured": measured, "seconds": 50, "command": system}

    return {"version": 1, "date": "2026-01-02", "device": "cuda", "gpu": "Some GPU, 16384 MiB", "system": "Linux",
            "device_memory": "16GiB", "host_memory": "96GiB",
            "entries": [ran("weft", 10.0, 100, False), ran("weft-h2o", FASTER, 400, True),
                        {"workload": "opt-30b 512+512", "system": "deepspeed", "reason": "Python's package deepspeed is "
                         "not installed"}, ran("accelerate", 0.5, 8, False), ran("h2o", 15.0, 416, False)]}


class Race(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-race-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.record = self.folder / "race.json"

    def run_script(self, *flags):
        return subprocess.run([sys.executable, SOURCE / "scripts/compare/race_gpu.py", *flags], capture_output=True,
                              text=True, timeout=120)

    def test_the_table_of_a_recorded_race(self):
        self.record.write_text(json.dumps(recorded()))
        run = self.run_script("--table", self.record)
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in run.stdout.splitlines()
                if line.startswith("| opt")]
        self.assertEqual(rows, [
            ["opt-30b 512+512", "weft-h2o", "400", "30.00", "60.00", "", "to its end"],
            ["opt-30b 512+512", "h2o", "416", "15.00", "30.00", "2.0x", "projected"],
            ["opt-30b 512+512", "weft", "100", "10.00", "20.00", "", "projected"],
            ["opt-30b 512+512", "accelerate", "8", "0.50", "1.00", "60.0x", "projected"],
        ])
        self.assertIn("- opt-30b 512+512, deepspeed: Python's package deepspeed is not installed", run.stdout)
        self.assertTrue(run.stdout.startswith("Some GPU, 16384 MiB, 2026-01-02; at most 16GiB of device memory"))

    def test_a_dry_run_has_a_line_for_every_system_and_workload(self):
        run = self.run_script("--dry-run", "--weft", WEFT, "--peers", self.folder)
        self.assertEqual(run.returncode, 0, run.stderr)
        lines = run.stdout.splitlines()
        self.assertEqual(len(lines), 6 * 7)
        weft = [line for line in lines if line.startswith(str(WEFT))]
        self.assertEqual(len(weft), 6 * 3)
        self.assertEqual(sum("--weight-dtype int4" in line for line in weft), 6)
        for path in {word for line in weft for word in line.split() if word.endswith(".json")}:
            self.assertTrue(pathlib.Path(path).exists(), path)
        self.assertIn(f"# opt-30b 512+512, h2o: {self.folder / 'h2o/h2o_flexgen'} is missing: run_flexgen.py says where it "
                      "comes from", lines)

    def test_a_race_on_the_cpu_writes_as_it_goes_and_goes_on(self):
        flags = ["--device", "cpu", "--weft", WEFT, "--record", self.record, "--scratch", self.folder, "--workloads",
                 "tiny-opt 16+8", "--host-memory", "64MiB", "--device-memory", "64MiB"]
        run = self.run_script(*flags, "--systems", "weft,flexgen")
        self.assertEqual(run.returncode, 0, run.stderr)
        first = json.loads(self.record.read_text())
        self.assertEqual([e["system"] for e in first["entries"]], ["weft", "flexgen"])
        self.assertGreater(first["entries"][0]["total"], 0)
        self.assertTrue(first["entries"][0]["measured"])
        self.assertEqual(first["entries"][1]["reason"], "its code wants a GPU")
        run = self.run_script(*flags, "--systems", "weft,weft-h2o")
        self.assertEqual(run.returncode, 0, run.stderr)
        second = json.loads(self.record.read_text())
        self.assertEqual({e["system"] for e in second["entries"]}, {"weft", "flexgen", "weft-h2o"})
        self.assertIn(first["entries"][0], second["entries"])  # not run again
        run = self.run_script(*flags[:-1], "32MiB", "--systems", "weft")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("of another machine or other budgets", run.stderr)

    def test_a_weft_that_fails_is_said_in_the_record(self):
        run = self.run_script("--device", "cpu", "--weft", WEFT, "--record", self.record, "--scratch", self.folder,
                              "--workloads", "tiny-opt 16+8", "--host-memory", "1KiB", "--device-memory", "1KiB",
                              "--systems", "weft")
        self.assertEqual(run.returncode, 0, run.stderr)
        entry, = json.loads(self.record.read_text())["entries"]
        self.assertRegex(entry["reason"], r"exit code 4: weft: error: .*the budget is 1.00 KiB")
        self.assertNotIn("total", entry)

    def test_without_time_nothing_runs(self):
        run = self.run_script("--device", "cpu", "--weft", WEFT, "--record", self.record, "--minutes", "0", "--systems",
                              "weft")
        self.assertEqual(run.returncode, 0, run.stderr)
        for entry in json.loads(self.record.read_text())["entries"]:
            self.assertEqual(entry["reason"], "the 0 minutes are over")

    def test_what_flexgen_reports(self):
        sys.path.insert(0, str(SOURCE / "scripts/compare"))
        import run_flexgen

        said = ("model size: 55.803 GB\tpeak gpu mem: 5.0 GB\tprojected: True\nprefill latency: 609.548 s\tprefill "
                "throughput: 349.4 token/s\ndecode latency: 10704.990 s\tdecode throughput: 19.9 token/s\ntotal latency: "
                "11314.5 s\ttotal throughput: 18.825 token/s")
        self.assertEqual(run_flexgen.times_of(said), {"prefill_seconds": 609.548, "decode_seconds": 10704.99,
                                                      "tokens_per_second": 18.825, "projected": True})
        with self.assertRaises(SystemExit):
            run_flexgen.times_of("Killed")

    def test_what_is_refused(self):
        for words, *flags in (("no system 'vllm'", "--systems", "vllm"), ("no workload 'x'", "--workloads", "x")):
            run = self.run_script(*flags)
            self.assertEqual(run.returncode, 2)
            self.assertIn(words, run.stderr)


if __name__ == "__main__":
    WEFT, SOURCE = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
