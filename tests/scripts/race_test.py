#!/usr/bin/env python3
"""scripts/compare/race.py: the table of a recorded race, a tiny race of Weft that goes on, the search for a batch.

Usage: race_test.py WEFT SOURCE_FOLDER [unittest arguments]
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

WEFT = None
SOURCE = None


def ran(peer, decode, total, batch, **more):
    return {"workload": "512+512", "peer": peer, "limit_mib": 2048, "batch": batch, "decode": decode, "prefill": 100.0,
            "total": total, "measured": "to its end"} | more


def recorded():
    told = {"decode": 31.0, "prefill": 90.0, "total": 21.0}
    return {"version": 1, "date": "2026-01-02", "machine": "Some processor", "shape": "opt-1.3b", "limit": True, "entries": [
        ran("weft-h2o", 30.0, 20.0, 54, predicted=told),
        ran("accelerate", 2.0, 1.0, 2, dtype="float16"), ran("accelerate", 3.0, 2.5, 4, dtype="float16"),
        {"workload": "512+512", "peer": "accelerate", "limit_mib": 2048, "dtype": "float16", "batch": 8, "killed": True,
         "reason": "killed for memory"},
        ran("weft-h2o", 40.0, 30.0, 70, limit_mib=2560)]}


class Table(unittest.TestCase):
    def test_ratios_are_within_one_limit(self):
        sys.path.insert(0, str(SOURCE / "scripts/compare"))
        from race_table import table

        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(recorded()).splitlines()
                if line.startswith("| 512")]
        self.assertEqual([row[1:5] + row[6:10] for row in rows], [
            ["2048", "Weft, fp16, h2o 20 %", "54", "30.00", "20.00", "31.00 / 90.00 / 21.00", "10.0x / 8.0x", ""],
            ["2048", "Accelerate, float16", "4", "3.00", "2.50", "", "", ""],
            ["2048", "Accelerate, float16", "2", "2.00", "1.00", "", "", ""],
            ["2560", "Weft, fp16, h2o 20 %", "70", "40.00", "30.00", "", "", ""]])
        self.assertIn("- 512+512, 2048 MiB, Accelerate, float16, batch 8: killed for memory", table(recorded()))


class Search(unittest.TestCase):
    """The search for a peer's batch, where a batch of so many needs so much memory."""

    def race(self, kib_each, first=4):
        sys.path.insert(0, str(SOURCE / "scripts/compare"))
        from race import Race

        options = argparse.Namespace(minutes=1, tiny=True, shape="opt-1.3b", work=pathlib.Path("."), first_batch=first, most_batch=16,
                                     memory_mib=2048, dtypes=["float16"])
        race = Race(options, {"entries": []})
        self.tried = []

        def one(peer, workload, limit, dtype, batch):
            self.tried.append((limit, batch))
            return {"decode": 1.0} if batch * kib_each <= limit else {"killed": True}

        race.one = one
        return race

    def test_upwards_until_it_is_killed(self):
        self.assertEqual(self.race(200).peer("accelerate", "512+512"), 2048)
        self.assertEqual(self.tried, [(2048, 4), (2048, 8), (2048, 16)])

    def test_downwards_until_it_fits(self):
        self.assertEqual(self.race(1500).peer("accelerate", "512+512"), 2048)
        self.assertEqual(self.tried, [(2048, 4), (2048, 2), (2048, 1)])

    def test_the_limit_grows_where_nothing_fits(self):
        self.assertEqual(self.race(2500, first=2).peer("accelerate", "512+512"), 2560)
        self.assertEqual(self.tried, [(2048, 2), (2048, 1), (2560, 2), (2560, 1)])


class LlamaCpp(unittest.TestCase):
    def test_what_it_prints(self):
        sys.path.insert(0, str(SOURCE / "scripts/compare"))
        from llama_cpp import llama_figures, table

        line = '{"n_kv_max": 256, "is_pp_shared": 0, "pp": 16, "tg": 4, "pl": 2, "speed_pp": 90.5, "speed_tg": 8.0}'
        self.assertEqual(llama_figures("\n" + line + "\n\n"), {"decode": 8.0, "prefill": 90.5})
        self.assertEqual(llama_figures(line.replace('shared": 0', 'shared": 1')), {"decode": 8.0})
        with self.assertRaises(ValueError):
            llama_figures("\n")
        entries = [{"program": "weft", "format": "F16", "prompt": 128, "batch": 8, "decode": 12.0, "prefill": 100.0},
                   {"program": "llama.cpp", "format": "F16", "prompt": 128, "batch": 8, "decode": 8.0}]
        self.assertIn("| 128 | 8 | float16 / F16 | 12.00 | 8.00 | 1.50x | 100.00 |  |  |", table(entries))


class Race(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-race-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.record = self.folder / "race-opt-1.3b.json"

    def run_script(self, *flags):
        return subprocess.run([sys.executable, SOURCE / "scripts/compare/race.py", "--tiny", "--no-limit", "--work",
                               self.folder, *flags], capture_output=True, text=True, timeout=300)

    def test_a_tiny_race_writes_as_it_goes_and_goes_on(self):
        run = self.run_script("--weft", WEFT, "--peers", "weft-h2o-int4")
        self.assertEqual(run.returncode, 0, run.stderr)
        entry, = first = json.loads(self.record.read_text())["entries"]
        self.assertNotIn("reason", entry)
        for speed in (entry, entry["predicted"]):
            for what in ("decode", "prefill", "total"):
                self.assertGreater(speed[what], 0)
        self.assertEqual(entry["policy"]["weights"]["dtype"], "int4")
        self.assertEqual(entry["policy"]["kv"]["dtype"], "int4")
        self.assertTrue((self.folder / "tiny-opt-int4/model.safetensors").exists())
        run = self.run_script("--weft", WEFT, "--peers", "weft-h2o-int4,weft", "--sweeps", "0")
        self.assertEqual(run.returncode, 0, run.stderr)
        second = json.loads(self.record.read_text())["entries"]
        self.assertEqual([e["peer"] for e in second], ["weft-h2o-int4", "weft"])
        self.assertEqual(second[:1], first)  # not run again
        self.assertEqual(second[1]["measured"], "to its end")
        run = self.run_script("--table", self.record)
        self.assertEqual(sum(line.startswith("| 16+40 ") for line in run.stdout.splitlines()), 2)

    def test_a_dry_run_runs_nothing(self):
        run = self.run_script("--weft", WEFT, "--peers", "weft-h2o-int4,weft", "--dry-run")
        self.assertEqual(run.returncode, 0, run.stderr)
        for words in ("weft convert ", "weft plan ", "weft bench --lanes ", "--skip-prefill --project 4", "--kv-dtype int4"):
            self.assertIn(words, run.stdout)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_without_time_nothing_runs(self):
        run = self.run_script("--weft", WEFT, "--peers", "weft", "--minutes", "0")
        self.assertEqual(run.returncode, 0, run.stderr)
        entry, = json.loads(self.record.read_text())["entries"]
        self.assertEqual(entry["reason"], "its time was over")

    def test_what_is_refused(self):
        for words, *flags in (("no peer 'vllm'", "--peers", "vllm"), ("no peer 'llama.cpp'", "--peers", "llama.cpp"), ("nowhere is missing", "--weft", "nowhere")):
            run = self.run_script(*flags)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(words, run.stderr)


if __name__ == "__main__":
    WEFT, SOURCE = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
