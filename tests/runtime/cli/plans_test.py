#!/usr/bin/env python3
"""weft plan, and runs that plan themselves.

Usage: plans_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

import cli_test
from cli_test import Case, USAGE, CAPACITY
from weft_process import Weft, read_lines


class Plans(Case):
    def plan(self, *flags, model="opt-30b"):
        done = cli_test.WEFT.run("plan", "--model", cli_test.SOURCE / f"configs/models/{model}.json", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def refused_plan(self, code, words, *flags, model="opt-30b"):
        self.refused(code, words, "plan", "--model", cli_test.SOURCE / f"configs/models/{model}.json", "--machine",
                     cli_test.SOURCE / "configs/machines/t4.json", *flags)

    def test_a_plan_names_its_bottleneck_and_writes_a_policy_that_reads(self):
        policy, report = self.folder / "policy.json", self.folder / "report.json"
        said = self.plan("--machine", cli_test.SOURCE / "configs/machines/t4.json", "--prompt-len", 512, "--gen-len", 512,
                         "--retention", "h2o:0.1:0.1", "--explain", "--output", policy, "--report", report)
        for words in ("predicted: ", "bottleneck: ", "% busy in", "the best", "not measured"):
            self.assertIn(words, said)
        self.assertRegex(said, r"one full block of \d+ sequences: [\d.:]+( s)?; prefill ")
        explained = self.plan("--machine", cli_test.SOURCE / "configs/machines/a100-80gb.json", "--prompt-len", 512,
                              "--gen-len", 512, "--explain")  # it has runners-up
        rows = [line for line in explained.splitlines() if " ms a sequence, there " in line]
        self.assertTrue(rows)
        best = float(re.search(r"predicted: ([\d.]+) tokens/s", explained)[1])
        for row in rows:  # the time that passes says which is faster, and by as much as tokens/s do
            its, there = map(float, re.search(r"([\d.]+) ms a sequence, there ([\d.]+)", row).groups())
            self.assertAlmostEqual(its / there, best / float(row.split()[0]), delta=0.01 * its / there)
        job = self.plan("--machine", cli_test.SOURCE / "configs/machines/t4.json", "--prompt-len", 512, "--gen-len", 512,
                        "--retention", "h2o:0.1:0.1", "--requests", 3000, "--gpu-batch-size", 40)
        self.assertRegex(job, r"the whole job, 3000 sequences in blocks of \d+: \d+:\d\d:\d\d; prefill ")
        self.assertRegex(said, r"--weight-dtype int4: \d\.\dx")
        self.assertRegex(said, r"--kv-dtype int4: \d\.\dx")
        shown = cli_test.WEFT.run("inspect", policy)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual(list(json.loads(shown.stdout)["budgets"]), ["device", "host", "disk"])
        written = json.loads(report.read_text())
        self.assertEqual(written["policy"], json.loads(policy.read_text()))
        self.assertEqual(written["machine"]["measured"], False)
        gains = "".join(f"  {gain['what']}: {gain['factor']:.1f}x\n" for gain in written["gains"])
        self.assertTrue(gains and gains in said, gains)
        budgets = written["policy"]["budgets"]
        for tier, peak in written["predicted"]["peak_bytes"].items():
            self.assertLessEqual(peak, budgets[tier])

    def test_the_same_question_has_the_same_answer(self):
        flags = ("--machine", cli_test.SOURCE / "configs/machines/h200-16gib.json", "--explain", "--gpu-batch-size", 8)
        self.assertEqual(self.plan(*flags, model="opt-6.7b"), self.plan(*flags, model="opt-6.7b"))

    def test_measured_runs_are_predicted_within_a_tenth(self):
        runs = sorted((cli_test.SOURCE / "tests/data/h100").glob("opt-*.json"))
        self.assertEqual(len(runs), 6)
        policy, report = self.folder / "policy.json", self.folder / "report.json"
        for run in runs:
            with self.subTest(run.stem):
                measured = json.loads(run.read_text())
                policy.write_text(json.dumps(measured["policy"]))
                work = measured["workload"]
                self.plan("--machine", cli_test.SOURCE / "configs/machines/h100.json", "--policy", policy, "--prompt-len",
                          work["prompt_len"], "--gen-len", work["gen_len"], "--requests", work["requests"], "--report",
                          report, model=pathlib.Path(measured["model"]).stem)
                predicted = json.loads(report.read_text())["predicted"]["tokens_per_second"]["total"]
                ratio = predicted / measured["tokens_per_second"]["total"]["median"]
                self.assertTrue(0.9 < ratio < 1.1, f"predicted is {ratio:.3f} times what was measured")

    def test_the_file_of_the_h100_is_made_of_what_was_measured(self):
        data, made = cli_test.SOURCE / "tests/data/h100", self.folder / "made.json"
        done = subprocess.run([sys.executable, cli_test.SOURCE / "scripts/bench/measured_machine.py", data / "lanes.json",
                               "--ceilings", data / "ceilings.json", "--runs", *sorted(data.glob("opt-*.json")),
                               "--weft", cli_test.WEFT.binary, "--output", made], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        made, shipped = json.loads(made.read_text()), json.loads((cli_test.SOURCE / "configs/machines/h100.json").read_text())
        together = made.pop("together"), shipped.pop("together")
        for key in ("name", "source"):  # given by flags
            del made[key], shipped[key]
        self.assertEqual(made, shipped)
        for lane, others in together[1].items():  # shares follow from plans, so a planner that knows more moves them
            for other, share in others.items():
                self.assertAlmostEqual(together[0][lane][other], share, delta=0.03, msg=f"{lane} beside {other}")

    def test_the_schedule_knows_the_bytes_that_cross_the_link(self):
        rows = self.folder / "rows.json"
        done = subprocess.run([sys.executable, cli_test.SOURCE / "scripts/bench/link_bytes.py", "--models",
                               cli_test.SOURCE / "models/demo/config.json", "--machine",
                               cli_test.SOURCE / "configs/machines/cpu.json", "--backend", "cpu", "--prompt-len", "32",
                               "--gen-len", "16", "--device-memory", "20MiB", "--host-memory", "64MiB", "--block", "2x2",
                               "--sweeps", "2", "--weft", cli_test.WEFT.binary, "--output", rows],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(rows.read_text())
        self.assertEqual(len(rows), 3)
        for row in rows:
            for lane, planned in row["bytes_per_token"].items():
                self.assertAlmostEqual(row["measured_bytes_per_token"][lane], planned, delta=1, msg=(row["layout"], lane))
        full, h2o, resident = (row["bytes_per_token"]["host_to_device"] for row in rows)  # the weights are all resident
        self.assertGreater(full, 4 * h2o)
        self.assertGreater(h2o, 0)
        self.assertEqual(resident, 0)

    def test_another_retention_is_taken_where_it_is_allowed_and_faster(self):
        report = self.folder / "report.json"
        self.plan("--machine", cli_test.SOURCE / "configs/machines/t4.json", "--gen-len", 512, "--or-retention", "h2o:0.1:0.1", "--gpu-batch-size", 8,
                  "--report", report, model="opt-6.7b")
        written = json.loads(report.read_text())
        self.assertEqual(written["policy"]["retention"]["rule"], "h2o")
        self.assertIn("full", [other["policy"]["retention"]["rule"] for other in written["runners_up"]])

    def test_a_trace_shows_the_sweeps_that_are_simulated(self):
        trace, report = self.folder / "trace.json", self.folder / "report.json"
        self.plan("--machine", cli_test.SOURCE / "configs/machines/t4.json", "--prompt-len", 64, "--gen-len", 64,
                  "--gpu-batch-size", 8, "--num-gpu-batches", 2, "--trace", trace, "--report", report, model="opt-6.7b")
        ops = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
        sweeps = {step: [op for op in ops if op["args"]["step"] == step] for step in range(4)}
        self.assertEqual(sum(map(len, sweeps.values())), len(ops))
        for lane in {op["tid"] for op in ops}:  # the ops of a lane follow each other
            mine = sorted((op for op in ops if op["tid"] == lane), key=lambda op: op["ts"])
            for op, following in zip(mine, mine[1:]):
                self.assertLessEqual(op["ts"] + op["dur"], following["ts"] + 0.3)
        length = lambda step: max(op["ts"] + op["dur"] for op in sweeps[step]) - min(op["ts"] for op in sweeps[step])
        prefill = json.loads(report.read_text())["predicted"]["seconds"]["prefill"]
        self.assertAlmostEqual(length(0) / 1e6, prefill, delta=0.01 * prefill)
        self.assertGreater(sum(op["args"].get("bytes", 0) for op in sweeps[2]), 0)
        other = self.folder / "other.json"
        other.write_text("not a trace")
        self.refused_plan(USAGE, "another file", "--trace", other)
        self.assertEqual(other.read_text(), "not a trace")

    def test_an_arithmetic_is_for_those_of_the_formats_that_have_it(self):
        both = ("--machine", cli_test.SOURCE / "configs/machines/t4.json", "--weight-dtype", "int4", "--or-weight-dtype", "float16")
        self.assertIn("predicted:", self.plan(*both, "--weight-arithmetic", "int8", model="opt-6.7b"))

    def test_other_formats_are_taken_where_they_are_allowed_and_faster(self):
        report = self.folder / "report.json"
        asked = ("--machine", cli_test.SOURCE / "configs/machines/t4.json", "--gpu-batch-size", 8, "--num-gpu-batches", 4,
                 "--percent", 0, 100, 0, 100, 100, 0, "--attention", "device")
        said = self.plan(*asked, "--or-weight-dtype", "int4", "--or-kv-dtype", "int8", "--weight-group", 32, "--explain",
                         "--report", report, model="opt-6.7b")
        written = json.loads(report.read_text())
        self.assertEqual((written["policy"]["weights"]["dtype"], written["policy"]["weights"]["group"]), ("int4", 32))
        self.assertEqual(written["policy"]["kv"]["dtype"], "int8")
        formats = {(other["policy"]["weights"].get("dtype"), other["policy"]["kv"].get("dtype"))
                   for other in [written, *written["runners_up"]]}
        self.assertEqual(formats, {(None, None), (None, "int8"), ("int4", None), ("int4", "int8")})
        for words in ("full, kv int8, weights int4; the best", "full, weights int4;"):
            self.assertIn(words, said)
        self.assertNotIn("--weight-dtype int4:", said)  # no gain of what is in use already
        alone = self.plan(*asked, model="opt-6.7b")
        self.assertIn("--weight-dtype int4:", alone)
        speed = [float(re.search(r"predicted: ([\d.]+) tokens/s", text)[1]) for text in (said, alone)]
        self.assertGreater(speed[0], speed[1])

    def test_quantised_keys_and_values_take_less_and_are_named(self):
        report, block = self.folder / "report.json", ("--gpu-batch-size", 8, "--num-gpu-batches", 4, "--percent", 0, 50, 0, 100, 100, 0)
        peaks = {}
        for dtype, *keys in (["auto"], ["int8"], ["int4"], ["int4", "int4"]):
            self.plan("--machine", cli_test.SOURCE / "configs/machines/t4.json", "--kv-dtype", dtype, "--report", report, *block,
                      *(["--kv-keys", *keys] if keys else []), model="opt-6.7b")
            written = json.loads(report.read_text())
            self.assertEqual(written["policy"]["kv"].get("dtype"), None if dtype == "auto" else dtype)
            self.assertEqual(written["policy"]["kv"].get("keys"), (keys or ["int8"])[0] if dtype == "int4" else None)
            peaks[dtype, *keys] = written["predicted"]["peak_bytes"]["host"]
        self.assertEqual(sorted(peaks.values(), reverse=True), list(peaks.values()))
        self.assertEqual(len(set(peaks.values())), 4)
        self.assertIn(" in int4, keys int8, rotated", self.plan("--machine", cli_test.SOURCE / "configs/machines/t4.json", "--compress-cache", *block,
                                            model="opt-6.7b"))

    def test_sweeps(self):
        said = self.plan("--machine", cli_test.SOURCE / "configs/machines/t4.json", "--host-memory", "24GiB", "--disk-memory", 0, "--sweep",
                         self.folder, model="opt-6.7b")
        self.assertIn("over the block size", said)
        lines = (self.folder / "sweep.csv").read_text().splitlines()
        self.assertEqual(lines[0], "sweep,value,tokens_per_second,bottleneck")
        speed = {tuple(line.split(",")[:2]): float(line.split(",")[2]) for line in lines[1:]}
        self.assertGreater(speed["block size", "16"], speed["block size", "1"])
        over_block = [value for (sweep, _), value in speed.items() if sweep == "block size"]
        best, planned = max(over_block), float(re.search(r"predicted: ([\d.]+) tokens/s", said)[1])
        self.assertLess(min(abs(value - planned) for value in over_block), 0.01)  # the block that the plan takes
        self.assertGreaterEqual(planned, 0.97 * best)
        texts = list(xml.etree.ElementTree.parse(self.folder / "sweep.svg").iter("{http://www.w3.org/2000/svg}text"))
        marks = [text for text in texts if text.get("class") == "best"]
        self.assertEqual(len(marks), 2)
        self.assertTrue(marks[0].text.endswith(f": {best:.1f} tokens/s"), marks[0].text)
        for mark in marks:  # inside the picture
            half = 3.5 * len(mark.text)
            self.assertTrue(half <= float(mark.get("x")) <= 640 - half and float(mark.get("y")) > 24)
        labels = [text for text in texts if text.get("class") == "x"]
        self.assertGreater(len(labels), 8)
        for a, b in zip(labels, labels[1:]):
            if a.get("y") == b.get("y"):
                between = float(b.get("x")) - float(a.get("x"))
                self.assertGreaterEqual(between, 3.5 * (len(a.text) + len(b.text)), (a.text, b.text))

    def test_a_folder_without_weights_is_planned_by_its_config(self):
        machine = cli_test.SOURCE / "configs/machines/t4.json"
        shape = self.plan("--machine", machine)
        (self.folder / "config.json").write_text((cli_test.SOURCE / "configs/models/opt-30b.json").read_text())
        done = cli_test.WEFT.run("plan", "--model", self.folder, "--machine", machine)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"holds no weights; the plan is for what config.json says", done.stderr)
        self.assertEqual(done.stdout.decode().splitlines()[1:], shape.splitlines()[1:])

    def test_a_disk_that_a_plan_leaves_alone_is_not_said_to_help(self):
        said = self.plan("--machine", cli_test.SOURCE / "configs/machines/a100-80gb.json", model="opt-125m")
        self.assertNotIn("twice the disk", said)

    def test_what_cannot_be_done(self):
        self.refused_plan(CAPACITY, ["needs", "on device, the budget is 64.00 MiB"], "--device-memory", "64MiB")
        self.refused_plan(CAPACITY, ["needs", "the budget is 0 B"], "--device-memory", 0, "--host-memory", 0,
                          "--disk-memory", 0)
        self.refused_plan(CAPACITY, ["needs", "on host"], "--host-memory", "1GiB", "--disk-memory", 0)
        self.refused_plan(CAPACITY, "the largest block that fits is", "--gpu-batch-size", 20000, "--num-gpu-batches", 1)
        self.refused_plan(USAGE, "beyond the model's context of 2048", "--prompt-len", 2000, "--gen-len", 100)
        self.refused_plan(USAGE, "from 1 to 1073741824", "--prompt-len", 0)
        self.refused_plan(USAGE, "--requests must be", "--requests", -1)
        self.refused_plan(USAGE, "there is no such folder", "--disk-dir", self.folder / "none")
        self.input.write_text("")
        self.refused_plan(USAGE, "is a file", "--sweep", self.input)
        self.refused(USAGE, "there is no such file", "plan", "--model", cli_test.SOURCE / "configs/models/opt-30b.json", "--machine",
                     self.folder / "none.json")
        self.refused(USAGE, "--model or --published", "plan")
        machine = self.folder / "machine.json"
        machine.write_text('{"name": "x"}')
        self.refused(USAGE, "machine.json", "plan", "--model", cli_test.SOURCE / "configs/models/opt-30b.json", "--machine", machine)

    def test_a_run_plans_and_prints_predicted_against_measured(self):
        report, requests = self.folder / "report.json", [{"id": i, "prompt_ids": [2, 3 + i], "max_tokens": 9} for i in range(5)]
        answers = self.job(self.tiny(), requests, "--report", report, planned=True)
        predicted = json.loads(report.read_text())["predicted"]
        self.assertGreater(predicted["tokens_per_second"]["total"], 0)
        self.assertIn(predicted["bottleneck"], ("device_compute", "disk_read"))
        said = cli_test.WEFT.run("generate", "--model", self.tiny(), "--input", self.input, "--output", self.folder / "again.jsonl",
                        "--backend", "cpu", "--machine", cli_test.SOURCE / "configs/machines/cpu.json", "--or-retention", "recent:20")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("tokens/s predicted", said.stderr.decode())
        self.assertIn("of the total", said.stderr.decode())
        self.assertEqual(len(read_lines(self.folder / "again.jsonl")), len(answers))
        self.output.unlink()
        self.refused_job(USAGE, ["is of a machine with a GPU", "this run is on cpu"], "--machine",
                         cli_test.SOURCE / "configs/machines/t4.json")

    def test_published_figures(self):
        done = cli_test.WEFT.run("plan", "--published", cli_test.SOURCE / "configs/published")
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("Accelerate", "DeepSpeed", "FlexGen", "H2O", "opt-30b", "Weft H2O", "512+1024"):
            self.assertIn(words, done.stdout.decode())


if __name__ == "__main__":
    cli_test.WEFT, cli_test.SOURCE = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
